# SPDX-License-Identifier: Apache-2.0
"""The part of a page about private training: plan, claim, logs and audits of runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pufferslice.audit import Audit
from pufferslice.calibration.guarantee import at_most, in_full
from pufferslice.certificate import Certificate
from pufferslice.certificate.what_if import TrainingSweepPoint, stated_variation
from pufferslice.certificate.wording import limit_sentences, record_conditions
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.report.audit import membership_table, verdict_table
from pufferslice.report.blocks import (
    Block,
    Bullets,
    Figure,
    Gallery,
    Outlook,
    Section,
    Table,
    Words,
    label,
    number,
)
from pufferslice.report.evidence import curve_table
from pufferslice.report.guessing import (
    about_training,
    guess_axes,
    guess_line,
    is_bounded,
    percent,
    right_guesses_of,
)
from pufferslice.report.inputs import MemberAudit, ReportInputs, TrainingLog
from pufferslice.report.svg import Axes, Series, line_chart, marks

_MOST_POINTS: Final = 300
_SHOWN: Final = {
    "spent_epsilon": ("ε spent (nats)", "ε spent"),
    "held_out_accuracy": ("accuracy on held-out records", "Accuracy"),
    "held_out_loss": ("mean loss on held-out records", "Held-out loss"),
}
_SHOWN_INTERNAL: Final = {
    "mean_loss": ("mean loss of the batch (private)", "Training loss"),
    **{name: what for name, what in _SHOWN.items() if name != "spent_epsilon"},
}


def facts(certificate: Certificate) -> dict[str, Any]:
    """What the words of the template fill in."""
    statement = certificate.statement
    runs, record = statement["runs"], statement["one_record"]
    record_epsilon = record["epsilon_at_delta"]
    differing = _differing(runs[0])
    return {
        "n_runs": len(runs),
        "data": label(statement["data"]),
        # A claim that averages over batch draws is not about the draw that the run saw.
        "about_the_run": certificate.guarantee.notion != "average_over_batches",
        "differing": differing[:1].upper() + differing[1:],
        "n_records": f"{runs[0]['sampling']['n_records']:,}",
        "record_epsilon": "" if record_epsilon is None else at_most(record_epsilon),
        "record_delta": in_full(record["delta"]),
        "draws_may_be_seen": statement["draws_may_be_seen"],
        "certifies": statement["certifies"],
        "noise_multipliers": _multipliers(runs),
        "guess": about_training(stated_variation(certificate)),
    }


def plan_section(certificate: Certificate, part: str) -> Section:
    """The plans of the runs, and what they promise."""
    statement, claim = certificate.statement, certificate.guarantee
    table = Table(
        caption="The plan of each run; everything else follows from it",
        head=("steps", "records", "sampling", "clipping", "noise multiplier", "accountant"),
        rows=tuple(_run(run) for run in statement["runs"]),
    )
    blocks: list[Block] = [Words("certifies"), table]
    if statement["views"]:
        blocks.append(
            Table(
                caption="The same as (ε, δ), for everything that the runs release",
                head=("rule", "ε at most", "δ"),
                rows=tuple(
                    (
                        view["rule"].replace("_", " "),
                        at_most(view["epsilon"]),
                        in_full(view["delta"]),
                    )
                    for view in statement["views"]
                ),
            )
        )
    record = statement["one_record"]
    epsilon = record["epsilon_at_delta"]
    blocks += [
        Table(
            caption="What replacing any one record gets, whatever the secret is",
            head=("order", "Rényi divergence at most", "ε at most", "δ", "accountant"),
            rows=(
                (
                    in_full(record["order"]),
                    at_most(record["epsilon"]),
                    "none" if epsilon is None else at_most(epsilon),
                    in_full(record["delta"]),
                    ", ".join(name.replace("_", " ") for name in record["accountants"]),
                ),
            ),
        ),
        Words("record_conditions"),
        Bullets(items=record_conditions(statement)),
    ]
    return Section(id=f"{part}-claim", title=f"The claim: {claim}", blocks=tuple(blocks))


def outlook_section(
    certificate: Certificate, prospects: Sequence[TrainingSweepPoint], part: str
) -> Section:
    """The slider over epsilons, with the noise multiplier of the same plan."""
    epsilons = tuple(row.claim.epsilon for row in prospects)
    noise = Series(
        name="noise multiplier",
        look="first",
        xs=epsilons,
        ys=tuple(row.noise_multiplier for row in prospects),
    )
    variations = [row.total_variation for row in prospects]
    name = "ε of the whole run (nats)"
    label = "noise std / clip norm"
    plots = [("Noise against ε", noise, Axes(x_label=name, y_label=label, log_x=True, log_y=True))]
    numbers = [("noise", "noise multiplier")]
    if any(map(is_bounded, variations)):
        plots.append(("Guessing against ε", guess_line(epsilons, variations), guess_axes(name)))
        numbers.append(("guess", "right guesses of two, at most"))
    figures, places = [], []
    for index, (title, line, axes) in enumerate(plots):
        svg = line_chart(title, [line], axes, marker=f"{part}-marker-{index}")
        table = curve_table(title, [line], number if line is noise else percent)
        figures.append(Figure(title=title, svg=svg, legend=((line.look, line.name),), table=table))
        places.append(marks([line], axes))
    choices = []
    for i, row in enumerate(prospects):
        multiplier = number(row.noise_multiplier)
        guess = right_guesses_of(row.total_variation, 2)
        said = f"At ε = {at_most(row.claim.epsilon)} the run needs noise multiplier {multiplier}."
        choices.append(
            {
                "epsilon": at_most(row.claim.epsilon),
                "noise": multiplier,
                "guess": guess,
                "sentence": f"{said} {about_training(row.total_variation)}",
                "stds": [],
                "marks": [[place[i].x, place[i].y] for place in places],
            }
        )
    block = Outlook(
        id=f"{part}-outlook",
        start=epsilons.index(certificate.guarantee.epsilon),
        choices=tuple(choices),
        numbers=tuple(numbers),
        coordinates=(),
        figures=tuple(figures),
    )
    return Section(id=f"{part}-epsilon", title="If ε were different", blocks=(block,))


def log_section(logs: Sequence[TrainingLog], part: str) -> Section:
    """Curves of the training logs."""
    blocks: list[Block] = []
    for log in logs:
        if log.internal:
            blocks.append(Words("internal_log"))
        shown = _SHOWN_INTERNAL if log.internal else _SHOWN
        figures = [_log_figure(log, key, *names) for key, names in shown.items()]
        blocks.append(Gallery(figures=tuple(one for one in figures if one is not None)))
    return Section(id=f"{part}-logs", title="Training", blocks=tuple(blocks))


def _log_figure(log: TrainingLog, key: str, label: str, title: str) -> Figure | None:
    rows = [row for row in log.rows if isinstance(row.get(key), int | float)]
    if not rows:
        return None
    stride = 1 + (len(rows) - 1) // _MOST_POINTS
    kept = [*rows[::stride], *(rows[-1:] if (len(rows) - 1) % stride else [])]
    line = Series(
        name=label,
        look="first",
        xs=tuple(float(row["step"]) for row in kept),
        ys=tuple(float(row[key]) for row in kept),
    )
    return Figure(
        title=title,
        svg=line_chart(title, [line], Axes(x_label="step", y_label=label)),
        legend=((line.look, label),),
        table=Table(
            caption=title,
            head=("step", label),
            rows=tuple((f"{x:g}", number(y)) for x, y in zip(line.xs, line.ys, strict=True)),
        ),
        note=f"Every {stride}th row is drawn." if stride > 1 else "",
    )


def audit_section(held: ReportInputs, part: str) -> Section:
    """Verdicts on the plan, and attacks on the trained model."""
    blocks: list[Block] = [
        Words("audits"),
    ]
    for one in held.audits:
        if isinstance(one, MemberAudit):
            blocks.append(membership_table(one.audit))
        elif not isinstance(one, Audit):
            caption = f"Training again and again, confidence {in_full(one.verdict.confidence)}"
            blocks.append(verdict_table([one.verdict], caption))
    return Section(id=f"{part}-audits", title="Audits", blocks=tuple(blocks))


def limits_section(certificate: Certificate, part: str, unchecked: tuple[str, ...]) -> Section:
    """Hypotheses, limits, how the noise was drawn, and what nobody can check here."""
    statement = certificate.statement
    blocks: list[Block] = [
        Words("hypotheses"),
        Bullets(items=tuple(HYPOTHESES[code] for code in statement["hypotheses"])),
        Words("noise"),
        Bullets(items=(*statement["noise"], *_drawn(statement["implementation_delta"]))),
        Words("limits"),
        Bullets(items=limit_sentences(statement)),
    ]
    if unchecked:
        blocks += [
            Words("unchecked"),
            Bullets(items=unchecked),
        ]
    return Section(id=f"{part}-limits", title="Assumptions and limits", blocks=tuple(blocks))


def _drawn(implementation_delta: float) -> tuple[str, ...]:
    """What the samplers add to the ideal noise that the claim is about."""
    if not implementation_delta:
        return ()
    return (
        f"Sampling error of all noise at most {at_most(implementation_delta)} in total variation.",
    )


def _differing(run: Mapping[str, Any]) -> str:
    return str(run["differing"].get("origin", run["differing"]["kind"]))


def _multipliers(runs: Sequence[Mapping[str, Any]]) -> str:
    values = [value for run in runs for value in run["noise_multipliers"]]
    low, high = min(values), max(values)
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    sampling, clipping = run["sampling"], run["clipping"]
    size = f"rate {sampling['rate']:g}" if "rate" in sampling else f"{sampling['batch_size']} each"
    norms = [clipping["norm"]] if "norm" in clipping else clipping["norms"]
    return (
        f"{run['n_steps']:,}",
        f"{sampling['n_records']:,}, {_differing(run)}",
        f"{sampling['kind'].replace('_', ' ')}, {size}",
        f"{clipping['kind']}, norm {', '.join(f'{norm:g}' for norm in norms[:4])}",
        _multipliers([run]),
        run["accountant"].replace("_", " "),
    )
