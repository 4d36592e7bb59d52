# SPDX-License-Identifier: Apache-2.0
"""Write docs/cifar.md: tables, pictures and claims from the CIFAR-10 runs that have finished."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pufferslice._core.files import canonical_json, digest, write_whole
from reproduction.cifar import ANCHOR_RUNG, PARTS, SEED, CifarRun, planned_runs
from reproduction.experiment import Row, number_in
from reproduction.figures import (
    GREY,
    LABEL_SIZE,
    LOOKS,
    NAMES,
    TITLE_SIZE,
    as_percentages,
    caption,
    chosen,
    draw_interval,
    draw_series,
    legend_below,
    new_figure,
    png_of,
    scale_by_epsilon,
)
from reproduction.gallery import DOCS, PAPERS, claim_line, small
from reproduction.ladder import (
    BUDGETS,
    NOT_RUN,
    RECIPE,
    FinishedRuns,
    attack_rows,
    compared_rows,
    ladder_claims,
    ladder_rows,
    overfitted_claims,
)
from reproduction.noise import BOTH_DIFFERING, SERIES

PAGE: Final = DOCS / "cifar.md"
PICTURES: Final = DOCS / "assets" / "cifar"
RESULTS: Final = Path(__file__).resolve().parent / "results"
"""One small file per finished run."""

_COMMAND: Final = "python -m reproduction cifar reproduction/results --scratch build/cifar"

_INTRODUCTION: Final = f"""\
# CIFAR-10 in hours

The paper's learning experiments on the 50,000 images of CIFAR-10, at a scale that two cores finish
in hours. `{_COMMAND}` trains
what has no result yet, run by run, and resumes where it was interrupted; `make cifar` is short for
it and for this page.

Weights, order of the images, worlds and the batches of the runs without privacy come from the seed
{SEED}. Noise and private batches come from the operating system and have no seed, so accuracies of
another attempt differ a little; a test accuracy of 10,000 images has a standard error of up to
0.5 %. The runs were made on several machines, which did other work at the same time, so the minutes
show only the order of magnitude; two of them (`ladder-1024-10`, `attack-0p56`) contain a pause of
more than an hour. On a core of its own, a run of the small network takes 3 to 10 minutes.

**A ladder instead of a run for every point.** Accuracy depends on the sampling rate, the clipping
and the noise multiplier, and not on the account by which the noise was chosen. So eight noise
multipliers are trained at each of two rates, with a small convolutional network of 33,834
parameters for 20 epochs. The curves of every account are *read off* the two ladders: between two
rungs on a straight line in the logarithm of the multiplier, and above the last rung at its value.
All other settings are the paper's: its clip norms, learning rates, schedule, momentum and weight
decay. The noise is accounted for the 20 epochs that were trained.

Both conventions are shown: the paper's recipe as printed, together with its true cost
([why](errata.md#the-noise-space-of-sgd)), and noise that costs what is claimed. Both numbers of
differing records are shown, too: 2, which the printed shares give, and 20, which the text says
([why](errata.md#two-worlds-of-cifar-10)).
"""

_LADDER_TEXT: Final = """\
Test accuracy at the claimed epsilon (order 16), read off the ladders. The rows *as the paper prints
it* cost more than they claim: their true epsilon at a claimed 8 is in the last column, by the
account of the same kind. Source: `subfig:gep_resnet`, `subfig:group_dp`.
"""
_ATTACK_TEXT: Final = """\
ResNet-22 on 1,000 random images without weight decay, 100 epochs; 1,000 members against 1,000 other
images, the loss as score, intervals at 95 %. The run without privacy stops after the first epoch in
which 99 % of its training images are right before their step, and after 200 epochs at the latest.
Epsilon is what the paper's sa-SRPP recipe would print for the noise. The next columns show what the
run costs by mean square and by the amplified account, and Opacus's reference for one record
(δ = 1e-5), which does not bound anything about the secret. The advantage is that of Yeom's
threshold, the mean loss of the members; the picture shows the share of right guesses there,
(1 + advantage) / 2. Source: `subfig:overfit`,
`subfig:overfit_attack`.
"""
_ATTACK_HEADING: Final = (
    "| noise | printed ε, 2 / 20 differ | mean square | amplified | reference | training, test "
    "| loss of members, others | AUC [interval] | advantage |"
)
_COMPARED_TEXT: Final = """\
Test accuracy at batch size 1,024 for the same cost: the multiplier is the effective one, and layers
are clipped to norms in proportion to the root of their size. *Equal* gives every layer the same
multiplier, as the paper does; *least noise* is the allocation with the smallest total variance. The
last column draws batches without replacement, as the paper accounts for them, at the same
multiplier. Source: `app:perlayer:num_example`.
"""


def write_page(results: Path, say: Callable[[str], None]) -> None:
    """Page and pictures from the results in a folder, complete or not."""
    runs = FinishedRuns.of(results)
    read = ladder_rows(runs)
    attacked = {count: attack_rows(runs, count) for count in BOTH_DIFFERING}
    parts = [_INTRODUCTION, _runs_section(runs), *_ladder_section(runs, read)]
    parts += _attack_section(attacked)
    parts += [_compared_section(runs), _anchor_section(runs)]
    page = "\n".join(parts)
    write_whole(PAGE, page.encode())
    for picture in PICTURES.glob("*.png"):
        if picture.name not in page:
            picture.unlink()
    say(f"{len(runs.results)} of {len(planned_runs('all'))} runs have finished; wrote {PAGE.name}")


def _runs_section(runs: FinishedRuns) -> str:
    lines = [
        "## Runs\n",
        f"{len(runs.results)} of {len(planned_runs('all'))} runs have finished.\n",
        "| run | noise | batches | clipping | epochs | test | training | minutes | version |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in PARTS:
        for run, result in runs.of_part(part):
            start = f"| `{run.name}` | {_noise(run)} | {_batches(run)} | {_clipping(run)} "
            end = f"| {run.setup.n_epochs} | {NOT_RUN} | | | |"
            if result is not None:
                end = (
                    f"| {result.n_epochs} | {result.test_accuracy:.1%} | "
                    f"{result.train_accuracy:.1%} | {result.seconds / 60:.0f} | {result.version} |"
                )
            lines.append(start + end)
    return "\n".join(lines) + "\n"


def _noise(run: CifarRun) -> str:
    return f"{run.noise_multiplier:g}" if run.noise_multiplier else "no noise"


def _batches(run: CifarRun) -> str:
    kinds = {"poisson": "Poisson", "fixed_size": "fixed size", "shuffled": "shuffled"}
    return f"{kinds[run.sampling]}, {run.setup.batch_size:,} of {run.setup.n_records:,}"


def _clipping(run: CifarRun) -> str:
    kinds = {
        "flat": "flat",
        "equal": "layers, equal",
        "least_noise": "layers, least noise",
        "none": "none",
    }
    return kinds[run.clipping]


def _ladder_section(runs: FinishedRuns, rows: Sequence[Row]) -> Iterator[str]:
    yield "## Accuracy against epsilon\n"
    yield _LADDER_TEXT
    if any(row["test_accuracy"] is not None for row in rows):
        yield _picture("accuracy", _accuracy_figure(runs, rows), list(rows))
    panels = dict.fromkeys((row["n_differing"], row["batch_size"]) for row in rows)
    for n_differing, size in panels:
        base = runs.baseline(f"ladder-{size}")
        without = NOT_RUN if base is None else f"{base.test_accuracy:.1%}"
        lines = [
            f"{n_differing} records differ, batch size {size}; without privacy {without}:\n",
            "| account | "
            + " | ".join(f"{budget:g}" for budget in BUDGETS)
            + " | true cost of 8 |",
            "|---|" + "---|" * (len(BUDGETS) + 1),
        ]
        for series in SERIES:
            of_series = chosen(rows, n_differing=n_differing, batch_size=size, series=series)
            cells = [_share(row["test_accuracy"]) for row in of_series]
            (eight,) = chosen(of_series, epsilon=8)
            cost = eight["epsilon_by_own_account"]
            shown = "" if cost is None else _number(cost)
            lines.append(f"| {NAMES[series]} | {' | '.join(cells)} | {shown} |")
        yield "\n".join(lines) + "\n"
    claims = [claim for count in BOTH_DIFFERING for claim in ladder_claims(rows, count)]
    yield _claims_list([claim_line(claim, PAPERS) for claim in claims])


def _attack_section(attacked: dict[int, list[Row]]) -> Iterator[str]:
    yield "## Overfitted models and the membership attack\n"
    yield _ATTACK_TEXT
    rows = attacked[BOTH_DIFFERING[-1]]
    if not any(row["series"] == RECIPE for row in rows):
        yield f"{NOT_RUN.capitalize()}.\n"
    else:
        everything = [row for part in attacked.values() for row in part]
        yield _picture("attack", _attack_figure(attacked), everything)
    if rows:
        yield _attack_table(attacked)
    claims = [claim for part in attacked.values() for claim in overfitted_claims(part)]
    yield _claims_list([claim_line(claim, PAPERS) for claim in claims])


def _attack_table(attacked: dict[int, list[Row]]) -> str:
    few, many = (attacked[count] for count in BOTH_DIFFERING)
    lines = [
        _ATTACK_HEADING,
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for two, twenty in zip(few, many, strict=True):
        both = [
            " / ".join(_number(row[column]) for row in (two, twenty))
            for column in ("epsilon", "epsilon_by_mean_square", "epsilon_by_amplified")
        ]
        epochs = f"none; stopped after {two['n_epochs']} epochs"
        noise = f"{number_in(two, 'noise_multiplier'):g}" if two["epsilon"] else epochs
        lines.append(
            f"| {noise} | {' | '.join(both)} | {_number(two['reference_epsilon'])} | "
            f"{_share(two['train_accuracy'])}, {_share(two['test_accuracy'])} | "
            f"{number_in(two, 'member_loss'):.2f}, {number_in(two, 'non_member_loss'):.2f} | "
            f"{number_in(two, 'attack_auc'):.3f} [{number_in(two, 'attack_auc_low'):.3f}, "
            f"{number_in(two, 'attack_auc_high'):.3f}] | "
            f"{number_in(two, 'attack_advantage'):+.3f} |"
        )
    return "\n".join(lines) + "\n"


def _compared_section(runs: FinishedRuns) -> str:
    lines = [
        "## Clipping by layer, and batches of a fixed size\n",
        _COMPARED_TEXT,
        "| noise multiplier | flat | layers, equal | layers, least noise | flat, fixed size |",
        "|---|---|---|---|---|",
    ]
    columns = ("flat", "layers_equal", "layers_least_noise", "fixed_size")
    for row in compared_rows(runs):
        cells = " | ".join(_share(row[column]) for column in columns)
        lines.append(f"| {number_in(row, 'noise_multiplier'):g} | {cells} |")
    return "\n".join(lines) + "\n"


def _anchor_section(runs: FinishedRuns) -> str:
    ((_, result),) = runs.of_part("anchor")
    found = NOT_RUN
    if result is not None:
        found = f"{result.test_accuracy:.1%} test accuracy, {result.seconds / 3600:.1f} hours"
    return (
        "## One run at the paper's own scale\n\n"
        f"ResNet-22, 50,000 images, batch size 512, 40 epochs, noise multiplier {ANCHOR_RUNG:g}: "
        "what the paper's sa-SRPP recipe has at its largest budget, 80, if 20 records differ. The "
        f"paper says 60 % to 70 %. Found: {found}.\n"
    )


def _accuracy_figure(runs: FinishedRuns, rows: Sequence[Row]) -> Figure:
    read = [row for row in rows if row["test_accuracy"] is not None]
    panels = list(dict.fromkeys((row["n_differing"], row["batch_size"]) for row in read))
    figure = new_figure(4.6 * len(panels), 7)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (n_differing, size) in zip(grid, panels, strict=True):
        for series in SERIES:
            of_series = chosen(rows, n_differing=n_differing, batch_size=size, series=series)
            draw_series(axes, of_series, "epsilon", "test_accuracy")
        base = runs.baseline(f"ladder-{size}")
        if base is not None:
            axes.axhline(base.test_accuracy, color=GREY, linestyle="-.", label="not private")
        _finish(axes, f"{n_differing} differ, batch size {size}")
    as_percentages(grid[0], "test accuracy")
    legend_below(figure, grid[:1])
    scale = "50,000 CIFAR-10 images, small convolutional network, 20 epochs; read off a ladder."
    caption(figure, "Accuracy against ε; open markers cost more than they claim", scale)
    return figure


def _attack_figure(attacked: dict[int, list[Row]]) -> Figure:
    figure = new_figure(13, 8.6)
    grid = figure.subplots(len(attacked), 3, squeeze=False)
    for (accuracy, losses, attack), (count, rows) in zip(grid, attacked.items(), strict=True):
        shown = [row for row in rows if row["series"] == RECIPE]
        pale: dict[str, Any] = {"alpha": 0.5, "marker": "^"}
        draw_series(accuracy, shown, "epsilon", "test_accuracy", label="test, non-members")
        draw_series(accuracy, shown, "epsilon", "train_accuracy", label="training, members", **pale)
        draw_series(losses, shown, "epsilon", "non_member_loss")
        draw_series(losses, shown, "epsilon", "member_loss", **pale)
        draw_interval(attack, shown)
        attack.plot(
            [number_in(row, "epsilon") for row in shown],
            [(1 + number_in(row, "attack_advantage")) / 2 for row in shown],
            color=LOOKS["amplified"][0],
            marker="D",
            linestyle=":",
            label="right guesses at Yeom's threshold",
        )
        attack.axhline(0.5, color=GREY, linewidth=1)
        for row in rows:
            if row["series"] != RECIPE:
                for axes, column in (
                    (accuracy, "test_accuracy"),
                    (losses, "non_member_loss"),
                    (attack, "attack_auc"),
                ):
                    level = number_in(row, column)
                    axes.axhline(level, color=GREY, linestyle="-.", label="not private")
        as_percentages(accuracy, "accuracy")
        losses.set_ylabel("mean loss (nats)", fontsize=LABEL_SIZE)
        attack.set_ylabel("area under the ROC curve", fontsize=LABEL_SIZE)
        for axes, title in (
            (accuracy, f"{count} differ: accuracy"),
            (losses, "loss: members pale"),
            (attack, "membership attack"),
        ):
            _finish(axes, title)
    legend_below(figure, (grid[0][0], grid[0][2]), ncols=4)
    scale = "1,000 CIFAR-10 images, ResNet-22, 100 epochs; 1,000 members against 1,000 others."
    caption(figure, "Overfitted models, by the ε that the paper's recipe prints", scale)
    return figure


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=TITLE_SIZE)
    axes.set_xlabel("ε that is claimed, order 16 (nats)", fontsize=LABEL_SIZE)
    scale_by_epsilon(axes, both=False)


def _picture(name: str, figure: Figure, rows: list[Row]) -> str:
    PICTURES.mkdir(parents=True, exist_ok=True)
    source = digest(canonical_json([dict(row) for row in rows]))
    write_whole(PICTURES / f"{name}.png", small(png_of(figure), source))
    return f"![{name} against epsilon](assets/cifar/{name}.png)\n"


def _claims_list(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n" if lines else f"Claims: {NOT_RUN}.\n"


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) else NOT_RUN


def _number(value: object) -> str:
    if not isinstance(value, float):
        return "none"
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
