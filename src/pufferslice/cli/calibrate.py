# SPDX-License-Identifier: Apache-2.0
"""`pufferslice calibrate`: noise and certificate, nothing released."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer

from pufferslice.cli.output import (
    Json,
    Overrides,
    PlotFile,
    answer,
    check_plot,
    plotted,
    progress_bar,
)
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.certificate import Certificate
    from pufferslice.config.scenario import Request
    from pufferslice.queries.unusual import Unusual


def calibrate(
    scenario: Annotated[
        Path | None,
        typer.Argument(help="A scenario.toml or budget.toml; left out, the one in this folder."),
    ] = None,
    set: Overrides = None,  # noqa: A002 - the name of the flag
    out: Annotated[Path | None, typer.Option(help="Write certificate and evidence here.")] = None,
    ledger: Annotated[
        str | None,
        typer.Option(help="The ledger of the release: refuse now what it would refuse then."),
    ] = None,
    acknowledge_earlier: Annotated[
        bool,
        typer.Option(
            "--acknowledge-earlier",
            help="State the releases before 0.3 in that ledger as not covered jointly.",
        ),
    ] = False,
    json: Json = False,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Print what other bounds would cost, instead of one."),
    ] = False,
    bounds: Annotated[
        str | None,
        typer.Option(help="With --sweep: epsilons (or shares of guesses), as 0.5,1,2."),
    ] = None,
    plot: PlotFile = None,
) -> None:
    """Find the noise for a scenario or a budget and state what it promises. Releases nothing."""
    from pufferslice.certificate import certify_release
    from pufferslice.certificate.verdict import verdict
    from pufferslice.config.budget import is_budget, read_budget
    from pufferslice.config.scenario import read_request
    from pufferslice.releases.budget import grant_of_budget
    from pufferslice.releases.derived import requested
    from pufferslice.releases.ledger import Ledger
    from pufferslice.releases.states import Grant

    if sweep and out is not None:
        raise ArgumentError(
            "--sweep certifies no bound; leave --out out, and calibrate again with the one chosen"
        )
    if not sweep and bounds is not None:
        raise ArgumentError("--bounds is for --sweep")
    check_plot(plot)
    if acknowledge_earlier and ledger is None:
        raise ArgumentError("--acknowledge-earlier needs --ledger, which holds those releases")
    path = _file_here() if scenario is None else scenario
    book = None if ledger is None else Ledger(ledger)
    earlier = book.earlier() if book is not None and acknowledge_earlier else []
    if is_budget(path):
        if sweep:
            raise ArgumentError("--sweep is for a scenario.toml; leave it out")
        budget = read_budget(path, progress_bar, overrides=set).certify().acknowledging(earlier)
        if book is not None:
            book.check_free(grant_of_budget(budget))
        _answer_budget(budget, out, plot, json=json)
        return
    request = read_request(path, progress_bar, overrides=set)
    file, claimed, options = request.file, request.claimed, request.file.calibration
    # A wrong name is found before anything is written.
    derived = requested(request.scenario.query.names, **file.derived.arguments())
    if book is not None:
        keys = request.scenario.ledger_keys()
        book.check_free(Grant(certificate="", keys=keys, earlier=earlier))
    with progress_bar("gap tables" if request.target.is_sliced else "couplings") as progress:
        certificate = certify_release(
            request.scenario,
            request.guarantee,
            shape=options.shape,
            guard=options.guard,
            weights=options.weights,
            effort=options.effort,
            failure_probability=claimed.failure_probability,
            band=file.prior.band,
            method=request.method,
            deltas=claimed.deltas,
            noise_std=options.noise_std,
            accuracy=options.accuracy,
            coupling=options.coupling,
            person=options.person,
            progress=progress,
        ).acknowledging(earlier)
    if sweep:
        _answer_sweep(certificate, bounds, plot, json=json)
        return
    note = "Nothing was written; add --out certificate.json to keep the certificate."
    if out is not None:
        certificate.save(out)
        note = f"Written: {out} and, confidential, its evidence beside it."
    note += plotted(plot, certificate.plot)
    judgement = verdict(certificate, request.scenario, derived)
    columns = _unusual(request)
    value = _summary(certificate) | {"verdict": judgement.to_json()}
    if columns:
        value["columns"] = [attrs.asdict(column) for column in columns]
    name, protected, *rest = str(certificate).split("\n\n")
    # What everyone should read comes first.
    lines = [str(judgement), *(str(column) for column in columns)]
    internal = "\n".join([*lines, "This table is internal: do not publish it."])
    note += f"\nScenario {certificate.scenario_digest}: print(scenario.digest) in Python."
    answer(value, "\n\n".join([protected, internal, name, *rest, note]), json=json)


def _unusual(request: "Request") -> "list[Unusual]":
    """Find the columns of the released table with values that are missing or clipped."""
    features = request.scenario.query.features
    if request.scenario.prior_kind != "rows" or features is None or request.table is None:
        return []
    return [each for each in features.unusual(request.table) if each.n_missing or each.n_clipped]


def _answer_sweep(
    certificate: "Certificate",
    bounds: str | None,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """Print what other bounds would cost, with a picture of it if asked."""
    from pufferslice.certificate import Sweep

    chosen = None if bounds is None else _numbers(bounds)
    with progress_bar("bounds") as progress:
        sweep = Sweep.of(certificate, chosen, progress=progress)
    answer(sweep.to_dict(), f"{sweep}{plotted(plot, sweep.plot)}", json=json)


def _numbers(bounds: str) -> list[float]:
    """Read numbers separated by commas."""
    try:
        return [float(part) for part in bounds.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--bounds must be numbers separated by commas, got {bounds!r}"
        ) from None


def _answer_budget(
    certificate: "Certificate", out: Path | None, plot: Path | None, *, json: bool
) -> None:
    """Print the noise of every part of a budget, with and without reserves."""
    note = "Nothing was written; add --out budget.json to keep the certificate."
    if out is not None:
        certificate.save(out)
        note = f"Written: {out} and, confidential, its evidence beside it."
    note += plotted(plot, certificate.plot)
    statement = certificate.budget
    value = {
        **{name: getattr(statement, name) for name in ("spent", "mean_square", "guess")},
        **certificate.guarantee.to_json(),
        "information": statement.information,
        "coupling": statement.coupling,
        "one_person": None if statement.one_person is None else statement.one_person.to_json(),
        "noise": certificate.table_rows(),
        "certificate": certificate.digest,
    }
    answer(value, f"{certificate}\n\n{note}", json=json)


def _file_here() -> Path:
    """Find the scenario or budget file of the current folder, which the user did not name."""
    found = [path for path in map(Path, ("scenario.toml", "budget.toml")) if path.is_file()]
    if not found:
        raise ArgumentError(
            "there is no scenario.toml or budget.toml in this folder; name a file, or write one "
            "with `pufferslice init . --template prevalence` or `--template budget`"
        )
    if len(found) > 1:
        raise ArgumentError(
            "there are a scenario.toml and a budget.toml in this folder; name the one you mean"
        )
    typer.echo(f"Reading {found[0]}", err=True)
    return found[0]


_COPIED: Final = (
    "spent",
    "failure_probability",
    "sampling",
    "distributions_are_equal",
    "views",
)
"""Fields of a statement that the summary repeats."""


def _summary(certificate: "Certificate") -> dict[str, Any]:
    """Flatten the numbers of a certificate that scripts ask for."""
    from pufferslice.config.scenario import claim_name

    stated = certificate.released
    values, claim = stated.to_json(), certificate.guarantee.to_json()
    scenario, noise = values["scenario"], values["noise"]
    names = scenario["query"]["names"]
    profile = values["profile"] or dict.fromkeys(("kind", "digest"))
    method = values["method"] or dict.fromkeys(("rule", "envelope"))
    return {
        "noise_std": noise["std"],
        "noise_std_by_coordinate": dict(zip(names, noise["std_by_coordinate"], strict=True)),
        "shape": noise["shape"]["kind"],
        "guard": noise["shape"]["guard"],
        "claim": claim_name(certificate.guarantee),
        **dict.fromkeys(("notion", "order", "epsilon", "delta", "at_most")),
        **claim,
        "unsliced_epsilon": stated.unsliced.epsilon,
        "guess": stated.unsliced.guess,
        "prior": scenario["priors"][0]["kind"],
        "range": scenario["query"]["range"],
        "profile": profile["kind"],
        "dim": len(names),
        "n_directions": profile.get("n_directions"),
        "profile_digest": profile["digest"],
        **method,
        **{key: scenario[key] for key in ("distribution", "secrets", "rows_dropped", "clipped")},
        **{key: values[key] for key in _COPIED},
        "certificate": certificate.digest,
        "scenario": certificate.scenario_digest,
    }
