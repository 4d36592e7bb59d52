# SPDX-License-Identifier: Apache-2.0
"""`pufferslice calibrate`: noise and certificate, nothing released."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import Json, answer, progress_bar
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.certificate import Certificate

_NOT_ABOUT_THE_CLAIM = frozenset(
    {
        "scenario", "set", "out", "ledger", "json", "sweep", "bounds", "plot",
    }
)  # fmt: skip


def _flag(text: str, *names: str) -> Any:  # typer's own marker
    """An option of the short form, without a scenario file."""
    return typer.Option(*names, help=text, rich_help_panel="Instead of a scenario file")


def calibrate(
    context: typer.Context,
    scenario: Annotated[Path | None, typer.Argument(help="A scenario.toml.")] = None,
    set: Annotated[  # noqa: A002 - the name of the flag
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Override a key, with the value in TOML, as guarantee.epsilon=2. Repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write certificate and evidence here.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="A ledger whose releases the certificate states.")
    ] = None,
    json: Json = False,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Print what other bounds would cost, instead of one."),
    ] = False,
    bounds: Annotated[
        str | None,
        typer.Option(help="With --sweep: epsilons (or shares of guesses), as 0.5,1,2."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --sweep: write an SVG picture here.")
    ] = None,
    data: Annotated[str | None, _flag("CSV, Parquet, a folder or glob of Parquet.")] = None,
    dataset: Annotated[str | None, _flag("adult or adult-complete.")] = None,
    null_value: Annotated[list[str] | None, _flag("A string that means missing, as '?'.")] = None,
    missing: Annotated[str, _flag("refuse or drop-rows.")] = "refuse",
    secret: Annotated[str | None, _flag("Column, or columns by commas.")] = None,
    quantiles: Annotated[int | None, _flag("Bin the secret into quantiles.")] = None,
    distribution: Annotated[
        str | None, _flag("groups, bootstrap or records.", "--distribution", "--law")
    ] = None,
    columns: Annotated[str | None, _flag("Numeric columns (distribution records).")] = None,
    mean: Annotated[str | None, _flag("Columns to average.")] = None,
    std: Annotated[str | None, _flag("Columns to take the standard deviation of.")] = None,
    rate: Annotated[list[str] | None, _flag("column=value or column>number: a share.")] = None,
    scales: Annotated[
        str | None, _flag("Public unit per coordinate: 10,0.1 or age=10,income=0.1.")
    ] = None,
    low: Annotated[str | None, _flag("Public range, low ends.")] = None,
    high: Annotated[str | None, _flag("Public range, high ends.")] = None,
    range: Annotated[str | None, _flag("Public range: 17:90,0:1 or age=17:90,income=0:1.")] = None,  # noqa: A002
    prior: Annotated[
        str | None, _flag("empirical (the data are the prior; default) or sampled.")
    ] = None,
    band: Annotated[
        str | None, _flag("order-statistics or dkw, around sampled distributions.")
    ] = None,
    replicates: Annotated[int, _flag("Of the bootstrap.")] = 200,
    source: Annotated[str, _flag("public-model, held-out, released-data.")] = "released-data",
    notion: Annotated[
        str | None, _flag("unsliced (the whole output), guess, or sliced: joint, average.")
    ] = None,
    order: Annotated[float | None, _flag("Rényi order, above 1.")] = None,
    epsilon: Annotated[float | None, _flag("The bound claimed, above 0.")] = None,
    delta: Annotated[
        list[float] | None,
        _flag("Instead of --order: an (epsilon, delta) claim. With it: deltas of the views."),
    ] = None,
    guess: Annotated[
        float | None, _flag("Claim that at most this share of guesses is right, as 0.6.")
    ] = None,
    claim: Annotated[
        str | None, _flag("srpp, epsilon-delta or guess; follows if left out.")
    ] = None,
    total: Annotated[
        float | None, _flag("Epsilon of several releases together, fixed before the first.")
    ] = None,
    failure_probability: Annotated[
        float | None, _flag("Probability that the claim fails, for sampled priors and the sphere.")
    ] = None,
    shape: Annotated[
        str | None, _flag("Of the noise: fitted (the default), diagonal or isotropic.")
    ] = None,
    guard: Annotated[
        float | None, _flag("Shifts up to this radius, in scaled units, are always hidden.")
    ] = None,
    effort: Annotated[str | None, _flag("To find couplings: thorough or quick.")] = None,
    accuracy: Annotated[
        list[str] | None,
        _flag("name=half-width: the 95 % interval that a coordinate needs. Repeatable."),
    ] = None,
    profile: Annotated[
        str | None, _flag("uniform (a finite profile), sphere (drawn) or whole-sphere.")
    ] = None,
    directions: Annotated[int | None, _flag("Number of random slices.")] = None,
    seed: Annotated[int | None, _flag("Public seed of slices and bootstrap.")] = None,
    rule: Annotated[str | None, _flag("tight or closed-form.")] = None,
    envelope: Annotated[str | None, _flag("transport or worst-gap.")] = None,
    noise_std: Annotated[
        float | None, _flag("Certify this noise, in scaled coordinates, instead of the smallest.")
    ] = None,
) -> None:
    """Find the noise for a scenario and state what it promises. Releases nothing."""
    values = locals()
    from pufferslice.certificate import certify_release
    from pufferslice.certificate.verdict import verdict
    from pufferslice.cli.flags import document_of
    from pufferslice.config.document import overridden
    from pufferslice.config.scenario import read_request, request_of
    from pufferslice.releases.ledger import Ledger

    # The context keeps the order of the command line, which is that of the coordinates.
    flags: dict[str, Any] = {
        name: values[name]
        for name in context.params
        if name not in _NOT_ABOUT_THE_CLAIM and values[name] is not None
    }
    if scenario is not None:
        _check_no_flags(context, flags)
    if sweep and out is not None:
        raise ArgumentError(
            "--sweep certifies no bound; leave --out out, and calibrate again with the one chosen"
        )
    if not sweep and (bounds is not None or plot is not None):
        raise ArgumentError("--bounds and --plot are for --sweep")
    if scenario is None:
        request = request_of(overridden(document_of(flags), set or []), Path(), progress_bar)
    else:
        request = read_request(scenario, progress_bar, overrides=set)
    file, options = request.file, request.file.calibration
    with progress_bar("gap tables" if request.target.is_sliced else "couplings") as progress:
        certificate = certify_release(
            request.scenario,
            request.guarantee,
            shape=options.shape,
            guard=options.guard,
            weights=options.weights,
            effort=options.effort,
            failure_probability=file.guarantee.failure_probability,
            band=file.prior.band,
            method=request.method,
            deltas=file.guarantee.deltas,
            noise_std=options.noise_std,
            accuracy=options.accuracy,
            total=file.guarantee.total,
            earlier_releases=Ledger(ledger).releases() if ledger else (),
            progress=progress,
        )
    if sweep:
        _answer_sweep(certificate, bounds, plot, json=json)
        return
    note = "Nothing was written; add --out certificate.json to keep the certificate."
    if out is not None:
        certificate.save(out)
        note = f"Written: {out} and, confidential, its evidence beside it."
    judgement = verdict(certificate)
    value = _summary(certificate) | {"verdict": judgement.to_json()}
    name, protected, *rest = str(certificate).split("\n\n")
    # What everyone should read comes first.
    internal = f"{judgement}\nThis table is internal: do not publish it."
    answer(value, "\n\n".join([protected, internal, name, *rest, note]), json=json)


def _answer_sweep(
    certificate: "Certificate",
    bounds: str | None,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """Print what other bounds would cost, with a picture of it if asked."""
    from pufferslice._core.files import CONFIDENTIAL, write_whole
    from pufferslice.certificate import Sweep
    from pufferslice.cli.flags import numbers

    chosen = None if bounds is None else numbers(bounds, "--bounds")
    with progress_bar("bounds") as progress:
        sweep = Sweep.of(certificate, chosen, progress=progress)
    text = str(sweep)
    if plot is not None:
        from pufferslice.report.sweep import sweep_svg

        write_whole(plot, sweep_svg(sweep).encode(), CONFIDENTIAL)
        text += f"\nWritten: {plot}"
    answer(sweep.to_dict(), text, json=json)


def _check_no_flags(context: typer.Context, flags: Iterable[str]) -> None:
    """Refuse flags that a scenario file would silently override."""
    sources = {name: context.get_parameter_source(name) for name in flags}
    on_the_line = [
        name for name, source in sources.items() if source and source.name == "COMMANDLINE"
    ]
    if on_the_line:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in on_the_line)
        raise ArgumentError(
            f"give either a scenario file or --data with flags, not both: {named}. Override a key "
            "of the file with --set, as --set guarantee.epsilon=2"
        )


def _summary(certificate: "Certificate") -> dict[str, Any]:
    """The numbers of a certificate that scripts ask for, flat."""
    statement = certificate.statement
    names = statement["scenario"]["query"]["names"]
    noise, claim = statement["noise"], statement["guarantee"]
    numbers = ("order", "epsilon", "delta", "at_most")
    kind = "guess" if "at_most" in claim else "epsilon_delta" if "delta" in claim else "srpp"
    profile = statement["profile"] or dict.fromkeys(("kind", "digest"))
    method = statement["method"] or dict.fromkeys(("rule", "envelope"))
    return {
        "noise_std": noise["std"],
        "noise_std_by_coordinate": dict(zip(names, noise["std_by_coordinate"], strict=True)),
        "shape": noise["shape"]["kind"],
        "guard": noise["shape"]["guard"],
        "claim": kind,
        "notion": claim["notion"],
        **{name: claim.get(name) for name in numbers},
        "spent": statement["spent"],
        "total": statement["total"],
        "unsliced_epsilon": statement["unsliced"]["epsilon"],
        "guess": statement["unsliced"]["guess"],
        "failure_probability": statement["failure_probability"],
        "sampling": statement["sampling"],
        "prior": statement["scenario"]["priors"][0]["kind"],
        "range": statement["scenario"]["query"]["range"],
        "profile": profile["kind"],
        "dim": len(names),
        "n_directions": profile.get("n_directions"),
        "profile_digest": profile["digest"],
        **method,
        "distribution": statement["scenario"]["distribution"],
        "secrets": statement["scenario"]["secrets"],
        "rows_dropped": statement["scenario"]["rows_dropped"],
        "clipped": statement["scenario"]["clipped"],
        "distributions_are_equal": statement["distributions_are_equal"],
        "views": statement["views"],
        "certificate": certificate.digest,
    }
