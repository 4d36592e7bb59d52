# SPDX-License-Identifier: Apache-2.0
"""`pufferslice account`: the noise for an epsilon, or the cost of a noise, by every accountant."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import Json, answer
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.learning import DifferingRecords, SamplingDesign

_SAMPLINGS = ("poisson", "without-replacement", "with-replacement")


def account(
    n_records: Annotated[
        int, typer.Option("--n-records", "--records", help="Records in the dataset.")
    ],
    sampling: Annotated[str, typer.Option(help=", ".join(_SAMPLINGS) + ".")],
    batch_size: Annotated[
        float,
        typer.Option("--batch-size", "--batch", help="Batch size; the expected one for Poisson."),
    ],
    n_steps: Annotated[int, typer.Option("--n-steps", "--steps", help="Noisy steps of the run.")],
    order: Annotated[float, typer.Option(help="Rényi order, above 1.")],
    exactly: Annotated[
        int | None, typer.Option("--exactly", "--differing", help="Records that differ, exactly.")
    ] = None,
    at_most: Annotated[int | None, typer.Option(help="Records that differ, at most.")] = None,
    mismatch_probability: Annotated[
        float | None,
        typer.Option(
            "--mismatch-probability",
            "--mismatch",
            help="Probability that each record differs, independently.",
        ),
    ] = None,
    tail_probability: Annotated[
        float | None,
        typer.Option(help="How rarely more records may differ; it is part of --delta."),
    ] = None,
    failure_probability: Annotated[
        float | None, typer.Option(help="That the tail of --at-most is larger than stated.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Find the noise for this epsilon.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Find the cost of this noise.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Also (epsilon, delta), and DP-SGD beside it.")
    ] = None,
    n_parameters: Annotated[
        int | None, typer.Option(help="Parameters that are trained, to compare signal and noise.")
    ] = None,
    json: Json = False,
) -> None:
    """Account for a training run with all accountants side by side. Trains nothing."""
    from pufferslice.baselines import account

    design = _design(n_records, sampling, batch_size)
    differing = _differing(
        n_records,
        exactly=exactly,
        at_most=at_most,
        mismatch_probability=mismatch_probability,
        tail_probability=tail_probability,
        failure_probability=failure_probability,
    )
    run = account.Run(
        differing=differing, sampling=design, n_steps=n_steps, order=order, delta=delta
    )
    if (epsilon is None) == (noise_multiplier is None):
        raise ArgumentError(
            "give either --epsilon, to find the noise, or --noise-multiplier, to find the cost"
        )
    if noise_multiplier is None:
        accounts = account.accounts_for_epsilon(run, epsilon or 0.0)
    else:
        accounts = account.accounts_for_noise(run, noise_multiplier)
    table = account.account_table(run, accounts, epsilon=epsilon, n_parameters=n_parameters)
    answer(table, _prose(table), json=json)


def _differing(n_records: int, **flags: float | None) -> "DifferingRecords":
    """Build differing records from options that are named as the keys of [secret]."""
    from pufferslice.config.training import TAIL_KEYS, SecretSection

    n_given = sum(value is not None for name, value in flags.items() if name not in TAIL_KEYS)
    if n_given != 1:
        raise ArgumentError(
            "give exactly one of --exactly, --at-most and --mismatch-probability; got "
            f"{n_given} of the three"
        )
    options: dict[str, Any] = {k: value for k, value in flags.items() if value is not None}
    return SecretSection.model_construct(**options).differing(n_records)


def _design(n_records: int, sampling: str, batch_size: float) -> "SamplingDesign":
    from pufferslice._core.checks import check_count, check_one_of
    from pufferslice.learning.sampling import sampling_from_description

    check_one_of(_SAMPLINGS, sampling=sampling)
    check_count(1, n_records=n_records)
    design: dict[str, Any] = {"kind": sampling.replace("-", "_"), "n_records": n_records}
    if sampling == "poisson":
        if not 0 < batch_size <= n_records:
            raise ArgumentError(
                f"--batch-size must be above 0 and at most --n-records {n_records}, "
                f"got {batch_size:g}"
            )
        return sampling_from_description(design | {"rate": batch_size / n_records})
    if not batch_size.is_integer():
        raise ArgumentError(
            f"--batch-size must be an integer for {sampling} sampling, got {batch_size!r}"
        )
    return sampling_from_description(design | {"batch_size": int(batch_size)})


def _prose(table: dict[str, Any]) -> str:
    from pufferslice._core.numbers import at_most, in_full
    from pufferslice.report.text import text_table

    header = ["accountant", "noise multiplier", "epsilon"]
    rows = [header] + [
        [name, at_most(row["noise_multiplier"]), at_most(row["epsilon"])]
        for name, row in table["accountants"].items()
    ]
    claim = f"at order {table['order']:g}"
    if "excess_probability" in table:
        claim = (
            f"as (epsilon, delta) with delta {in_full(table['delta'])}, of which "
            f"{at_most(table['excess_probability'])} is for more differing records"
        )
    parts = [
        f"{table['n_steps']} steps {claim}; {table['differing']}.",
        text_table(rows),
        "\n".join(f"{name}: {row['certifies']}" for name, row in table["accountants"].items()),
    ]
    if table.get("failure_probability"):
        failure = in_full(table["failure_probability"])
        parts.append(f"The claims hold except with probability {failure}, that of the simulation.")
    parts += [f"{name} does not apply: {why}" for name, why in table["not_applicable"].items()]
    parts += [_record_prose(table), _signal_prose(table)]
    if "delta" in table:
        parts.append(_delta_prose(table))
    return "\n\n".join(parts)


def _record_prose(table: dict[str, Any]) -> str:
    from pufferslice._core.numbers import at_most, in_full

    records = {name: row["one_record"] for name, row in table["accountants"].items()}
    delta = next(iter(records.values()))["delta"]
    title = (
        f"Protection of any single record with this noise: cost at order {table['order']:g}, "
        f"and epsilon of differential privacy at delta {in_full(delta)}:"
    )
    lines = [title]
    for name, record in records.items():
        epsilon = record["epsilon_at_delta"]
        at_delta = "none" if epsilon is None else at_most(epsilon)
        by = "" if record["accountant"] == name else f" (bounded by {record['accountant']})"
        lines.append(f"  {name}: {at_most(record['epsilon'])}; {at_delta}{by}")
    return "\n".join(lines)


def _signal_prose(table: dict[str, Any]) -> str:
    rows = {name: row["signal_to_noise"] for name, row in table["accountants"].items()}
    n_parameters = next(iter(rows.values()))["n_parameters"]
    where = (
        "in one coordinate (--n-parameters gives all)"
        if n_parameters is None
        else f"over {n_parameters} parameters"
    )
    lines = [f"Signal to noise of a step, at most, {where}:"]
    lines += [f"  {name}: {row['per_step']:.3g}" for name, row in rows.items()]
    for advice in dict.fromkeys(row["advice"] for row in rows.values() if row["advice"]):
        names = ", ".join(name for name, row in rows.items() if row["advice"] == advice)
        lines.append(f"{names}: {advice}")
    return "\n".join(lines)


def _delta_prose(table: dict[str, Any]) -> str:
    from pufferslice._core.numbers import at_most

    lines = [f"Unsliced epsilon at delta {table['delta']:g}:"]
    for name, row in table["accountants"].items():
        ways = (
            f"{way} {at_most(value)}" if isinstance(value, float) else f"{way}: {value}"
            for way, value in row["epsilon_at_delta"].items()
        )
        lines.append(f"  {name}: {'; '.join(ways)}")
    if "comparison" in table:
        lines.append("Differential privacy for the same numbers, which is a different guarantee:")
    for name, row in table.get("comparison", {}).items():
        if "not_applicable" in row:
            lines.append(f"  {name} does not apply: {row['not_applicable']}")
        else:
            noise = at_most(row["noise_multiplier_rdp"])
            lines.append(f"  {name} (protects {row['protects']}): noise multiplier {noise}")
    return "\n".join(lines)
