# SPDX-License-Identifier: Apache-2.0
"""`pufferslice account`: the noise for a claim, or the cost of a noise, by every accountant."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import Json, answer
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.claims import Claim, Measure
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
        typer.Option(help="How rarely more records may differ; part of --delta or --guess."),
    ] = None,
    failure_probability: Annotated[
        float | None, typer.Option(help="That the tail of --at-most is larger than stated.")
    ] = None,
    guess: Annotated[
        float | None,
        typer.Option(help="Find the noise for at most this share of right guesses, as 0.64."),
    ] = None,
    bits: Annotated[
        float | None, typer.Option(help="Find the noise for at most so many bits.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Find the noise for this epsilon, at --order or --delta.")
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Find the cost of this noise: right guesses, or at --order or --delta."),
    ] = None,
    order: Annotated[float | None, typer.Option(help="Rényi order of epsilon, above 1.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of epsilon.")] = None,
    n_parameters: Annotated[
        int | None, typer.Option(help="Parameters that are trained, to compare signal and noise.")
    ] = None,
    json: Json = False,
) -> None:
    """Account for a training run with all accountants side by side. Trains nothing."""
    from pufferslice.baselines import account
    from pufferslice.claims import Measure

    design = _design(n_records, sampling, batch_size)
    differing = _differing(
        n_records,
        exactly=exactly,
        at_most=at_most,
        mismatch_probability=mismatch_probability,
        tail_probability=tail_probability,
        failure_probability=failure_probability,
    )
    run = account.Run(differing=differing, sampling=design, n_steps=n_steps)
    asked = {"order": order, "delta": delta}
    if noise_multiplier is None:
        target = _target(guess=guess, bits=bits, epsilon=epsilon, **asked)
        if target is None:
            raise ArgumentError(
                "give --guess, --bits or --epsilon, to find the noise, or --noise-multiplier, to "
                "find the cost"
            )
        measure, what = Measure.of(target), f"noise for {target}"
        accounts = account.accounts_for(run, target)
    else:
        if any(bound is not None for bound in (guess, bits, epsilon)):
            raise ArgumentError(
                "give either --noise-multiplier, to find the cost, or what the noise is to meet"
            )
        target, measure = None, _measure(**asked)
        what = f"cost of the noise in {measure}"
        accounts = account.accounts_for_noise(run, noise_multiplier, measure)
    table = account.account_table(run, accounts, measure, target=target, n_parameters=n_parameters)
    answer(table, _prose(table, what), json=json)


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


def _target(
    *,
    guess: float | None,
    bits: float | None,
    epsilon: float | None,
    order: float | None,
    delta: float | None,
) -> "Claim | None":
    """Build the claim that the noise is to meet; None if there is none."""
    from pufferslice.claims import Guarantee

    if sum(bound is not None for bound in (guess, bits, epsilon)) > 1:
        raise ArgumentError("give one of --guess, --bits and --epsilon: runs are compared at one")
    if epsilon is not None:
        if (order is None) == (delta is None):
            raise ArgumentError("--epsilon goes with either --order or --delta")
        if delta is not None:
            return Guarantee.epsilon_delta(epsilon, delta)
        return Guarantee.unsliced(order=order or 0.0, epsilon=epsilon)
    if order is not None or delta is not None:
        raise ArgumentError("--order and --delta go with --epsilon or --noise-multiplier")
    if guess is not None:
        return Guarantee.guess(at_most=guess)
    return None if bits is None else Guarantee.information(bits=bits)


def _measure(order: float | None, delta: float | None) -> "Measure":
    """Choose what the cost of a given noise is stated in: right guesses, if nothing is asked."""
    from pufferslice.claims import Measure

    if order is not None and delta is not None:
        raise ArgumentError("give one of --order and --delta: runs are compared at one")
    if order is not None:
        return Measure.renyi(order=order)
    return Measure.guess() if delta is None else Measure.epsilon_delta(delta=delta)


def _prose(table: dict[str, Any], what: str) -> str:
    from pufferslice._core.numbers import at_most, in_full, percent_at_most
    from pufferslice.report.text import text_table

    def cost(claim: dict[str, Any]) -> str:
        if "at_most" in claim:
            return percent_at_most(claim["at_most"]).replace("\u00a0", " ")
        return at_most(claim["bits"] if "bits" in claim else claim["epsilon"])

    header = ["", "relation", "noise multiplier", "cost", "right guesses"]
    rows = [header] + [
        [
            name,
            row["relation"],
            at_most(row["noise_multiplier"]),
            cost(row["claim"]),
            cost({"at_most": row["guess"]}),
        ]
        for name, row in table["accountants"].items()
    ]
    others = {n: r for n, r in table.get("comparison", {}).items() if "not_applicable" not in r}
    rows += [
        [name, row["relation"], at_most(row["noise_multiplier"]), "", ""]
        for name, row in others.items()
    ]
    tail = ""
    if "excess_probability" in table:
        tail = f"; of that, {at_most(table['excess_probability'])} is for more differing records"
    parts = [
        f"{table['n_steps']} steps, {what}{tail}.",
        text_table(rows),
        "\n".join(f"{name}: {row['certifies']}" for name, row in table["accountants"].items()),
    ]
    if table.get("failure_probability"):
        failure = in_full(table["failure_probability"])
        parts.append(f"The claims hold except with probability {failure}, that of the simulation.")
    parts += [f"{name} does not apply: {why}" for name, why in table["not_applicable"].items()]
    parts += [
        f"{name} does not apply: {row['not_applicable']}"
        for name, row in table.get("comparison", {}).items()
        if "not_applicable" in row
    ]
    if others:
        parts.append(
            "The rows without a cost protect single records, or groups of them, as well as the "
            "target says; none of them protects the secret. Where records are added or removed, "
            "the promise is weaker than where they are replaced."
        )
    return "\n\n".join([*parts, _record_prose(table), _signal_prose(table)])


def _record_prose(table: dict[str, Any]) -> str:
    from pufferslice._core.numbers import at_most, in_full

    records = {name: row["one_record"] for name, row in table["accountants"].items()}
    if not records:
        return ""
    some = next(iter(records.values()))
    title = (
        "Any single record, if it is replaced, at this noise: epsilon of differential privacy at "
        f"delta {in_full(some['delta'])}, and cost at order {in_full(some['order'])}:"
    )
    lines = [title]
    for name, record in records.items():
        epsilon = record["epsilon_at_delta"]
        at_delta = "none" if epsilon is None else at_most(epsilon)
        by = "" if record["accountant"] == name else f" (bounded by {record['accountant']})"
        lines.append(f"  {name}: {at_delta}; {at_most(record['epsilon'])}{by}")
    return "\n".join(lines)


def _signal_prose(table: dict[str, Any]) -> str:
    rows = {name: row["signal_to_noise"] for name, row in table["accountants"].items()}
    if not rows:
        return ""
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
