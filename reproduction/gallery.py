# SPDX-License-Identifier: Apache-2.0
"""Write the gallery: run every experiment at its default scale, then page and pictures.

`make paper` runs it. Experiments whose results are already in the working folder are not run again.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pufferslice._core.files import digest, write_whole
from reproduction.experiment import (
    EXPERIMENTS,
    Claim,
    Experiment,
    Outcome,
    Setting,
    Verdict,
    n_reproduced_of,
)
from reproduction.figures import figures_of, png_of, write_outcome
from reproduction.panels import SHAPED, curves_of
from reproduction.static import STUDIES, same_attack_ratios

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "gallery.md"
PICTURES = DOCS / "assets" / "gallery"
EXACT = ("sliced-divergences", "cap-rings", "sgd-noise")
"""Experiments without any randomness; their tables are kept beside their pictures."""

LARGEST_PICTURE = 120_000
DATA = "data"
"""The entry of a picture's file that holds the digest of the numbers it was drawn from."""

_WIDTHS = (1_500, 1_350, 1_200, 1_050, 900)
_INKS = (
    "#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555",
)  # fmt: skip
"""The colours of the pictures; each fades into white where a line is thin or pale."""
_SHADES = 30

_TITLE = """\
# Gallery: the paper's figures reproduced

Every figure of the paper, drawn from our own numbers. Each picture leads to its section.
"""
_INTRODUCTION = """\
## How to read it

Each section compares the claims that the paper makes about a figure with the numbers. A claim is
*reproduced*, *not reproduced* (with our numbers), *not decided* where the intervals leave it open,
or *equal* where the two sides are the same. Words such as "much smaller"
have thresholds, which the claim states. Claims of the paper about its closed form are also tested
with the library's tight rule, which adds less noise, and both are compared with shaped noise for
the whole output; these are counted separately, because the paper does not make them.

In a clone of the repository, `python -m reproduction list` shows the experiments, and
`python -m reproduction run NAME --out DIR` runs one and writes its table (CSV), its numbers and
claims (JSON), and its pictures (PNG, SVG). With `--full` the training experiments run at the
paper's own scale, on CIFAR-10 with its ResNet-22; that takes days, and an interrupted run resumes
when the command is repeated. All pictures here are of the default scale, which is printed on each.
[CIFAR-10](cifar.md) is trained at a scale in between, in hours, on a page of its own.

`make paper` writes this page. Profiles and noise curves are exact. Static experiments simulate
outputs from a public seed. Trained models get noise from the operating system, which has no seed,
so their numbers vary from run to run; each point is one run.

Where the paper and the library disagree, [the errata](errata.md) say why. Most of what was not
reproduced has one of five reasons: the printed noise of learning lives in [another
space](errata.md#the-noise-space-of-sgd) than the one it is added in; the group size of the
comparison rounds up to one record; the two [worlds](errata.md#two-worlds-of-cifar-10) of the
printed shares differ in 2 records, not 20; the log-moment of means is
[no bound](errata.md#log-moments-of-mean-square-caps) on the mean of log-moments; and the noise of
an average claim does not keep the attack [at the prior](errata.md#where-the-attack-starts) when
there are two secrets.

What was added or done differently, because the paper does not say it or says two things:

- Statistics and coefficients are divided by public scales before noise is added, and errors are in
  these units. Features and targets of the models, the function behind the hash groups, the two
  Gaussians and the layers of the profile figures are ours. Gradient boosting is named in the text
  and shown in no figure; it has an experiment of its own.
- Student performance is run for both secrets under both priors; the paper shows sex under the
  natural and the grade group under the balanced prior.
- Models are trained on Poisson batches, as Opacus, which the paper used, draws them by default;
  the paper's account is for batches of a fixed size. Its ResNet-22 as described has 291,898
  parameters, not about 270,000.
- The overfitted models of `--full` train on the first 1,000 images instead of a random subset, are
  attacked with the next 1,000, and warm up like the others.
"""


def write_gallery(folder: Path, say: Callable[[str], None]) -> None:
    """Run what `folder` does not hold yet, then write pictures, tables and page."""
    outcomes = {one.name: kept_outcome(folder, one) for one in EXPERIMENTS}
    thumbnails, sections = [], []
    for experiment in EXPERIMENTS:
        outcome = outcomes[experiment.name]
        pictures = write_pictures(outcome)
        thumbnails.append(thumbnail(experiment, pictures[0]))
        sections.append(section(experiment, outcome, pictures))
        say(outcome.verdict)
    static = same_attack([outcomes[name] for name in STUDIES])
    parts = [_INTRODUCTION, summary(list(outcomes.values())), static, *sections]
    write_whole(PAGE, "\n".join([_TITLE, *thumbnails, "", *parts]).encode())


def kept_outcome(folder: Path, experiment: Experiment) -> Outcome:
    """The outcome in the folder, or a new one."""
    path = folder / f"{experiment.name}.json"
    if not path.exists():
        runs = folder / "runs" / experiment.name / "default"
        write_outcome(experiment.run(Setting(full=False, folder=runs)), folder)
    document = json.loads(path.read_bytes())
    return Outcome(
        experiment=document["experiment"],
        scale=document["scale"],
        rows=tuple(document["rows"]),
        claims=tuple(Claim(**claim) for claim in document["claims"]),
        our_claims=tuple(Claim(**claim) for claim in document["our_claims"]),
    )


def write_pictures(outcome: Outcome) -> list[str]:
    """The pictures of an outcome, small, and its table if it is exact; names of the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    table = outcome.to_csv().encode()
    if outcome.experiment in EXACT:
        write_whole(PICTURES / f"{outcome.experiment}.csv", table)
    names = []
    for name, figure in figures_of(outcome).items():
        write_whole(PICTURES / f"{name}.png", small(png_of(figure), digest(table)))
        names.append(f"{name}.png")
    return names


def small(png: bytes, source: str) -> bytes:
    """The picture in few colours, as wide as fits the size that a page should load."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    entries = PngInfo()
    entries.add_text(DATA, source)
    for width in _WIDTHS:
        height = round(image.height * width / image.width)
        scaled = image.resize((min(width, image.width), height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        in_inks(scaled).save(file, "PNG", optimize=True, pnginfo=entries)
        if len(file.getvalue()) < LARGEST_PICTURE:
            return file.getvalue()
    message = f"a picture of {len(file.getvalue())} bytes does not fit {LARGEST_PICTURE}"
    raise ValueError(message)


def in_inks(image: Image.Image) -> Image.Image:
    """Every pixel in the nearest shade of an ink, so that lines keep their hue."""
    inks = np.array([[int(ink[k : k + 2], 16) for k in (1, 3, 5)] for ink in _INKS])
    shares = np.linspace(0, 1, _SHADES)[:, None, None]
    palette = np.rint(255 + shares * (inks - 255)).astype(np.int64).reshape(-1, 3)
    pixels = np.asarray(image, dtype=np.int64) @ (2**16, 2**8, 1)
    colours, places = np.unique(pixels, return_inverse=True)
    parts = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    nearest = ((parts[:, None, :] - palette) ** 2).sum(axis=2).argmin(axis=1)
    indexed = Image.fromarray(nearest.astype(np.uint8)[places].reshape(pixels.shape))
    indexed.putpalette(palette.astype(np.uint8).ravel().tolist())
    return indexed


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line per experiment: how many claims were reproduced."""
    lines = [
        "| experiment | claims of the paper reproduced | about our own mechanisms, held |",
        "|---|---|---|",
    ]
    for outcome in outcomes:
        name, papers = outcome.experiment, n_reproduced_of(outcome.claims)
        ours = n_reproduced_of(outcome.our_claims) if outcome.our_claims else ""
        lines.append(f"| [{name}](#{name}) | {papers} | {ours} |")
    return "\n".join(lines) + "\n"


_SAME_ATTACK = """\
The error of the paper's closed form (Ave / Joint) over that of shaped noise for the whole output,
where the attack is *as accurate*: squared errors, the median over the budgets that can be
compared. Above 1 the paper's mechanism is worse. Its epsilon does not enter, because a sliced
epsilon and one of the whole output are different claims.
"""


def same_attack(outcomes: Sequence[Outcome]) -> str:
    """A table of all static panels: errors of the paper's mechanisms over ours at one accuracy."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    queries = list(dict.fromkeys(str(row["query"]) for row in rows))
    heading = " | ".join(query.replace("_", " ") for query in queries)
    lines = [_SAME_ATTACK, f"| experiment, prior | {heading} |", "|---|" + "---|" * len(queries)]
    for outcome in outcomes:
        curves = curves_of(outcome.rows)
        for prior in dict.fromkeys(curve.prior for curve in curves):
            cells = [
                " / ".join(
                    _median(same_attack_ratios(curve, shaped))
                    for curve in curves
                    if (curve.prior, curve.query, curve.rule) == (prior, query, "closed_form")
                    for shaped in curves
                    if (shaped.panel, shaped.notion, shaped.rule) == (curve.panel, *SHAPED)
                )
                for query in queries
            ]
            lines.append(f"| {outcome.experiment}, {prior} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _median(ratios: Sequence[float]) -> str:
    return f"{np.median(ratios):.2g}" if ratios else "not comparable"


def thumbnail(experiment: Experiment, picture: str) -> str:
    """A small picture that leads to the section of its experiment."""
    shown = f'![{experiment.title}](assets/gallery/{picture}){{ width="230" }}'
    return f"[{shown}](#{experiment.name})"


def section(experiment: Experiment, outcome: Outcome, pictures: list[str]) -> str:
    """What the page says about one experiment."""
    parts = [
        f"## {experiment.name}",
        f"{experiment.title}. Source: {_labels(experiment.source)}.",
        *(f"![{experiment.title}](assets/gallery/{name})" for name in pictures),
        f"Scale: {outcome.scale.removesuffix('.')}.",
    ]
    if outcome.experiment in EXACT:
        parts.append(f"The numbers: [table](assets/gallery/{outcome.experiment}.csv).")
    papers = f"{n_reproduced_of(outcome.claims)} claims of the paper reproduced."
    parts.append("\n".join([papers, "", *(claim_line(claim, PAPERS) for claim in outcome.claims)]))
    if outcome.our_claims:
        ours = f"{n_reproduced_of(outcome.our_claims)} about our own mechanisms held."
        lines = [claim_line(claim, OURS) for claim in outcome.our_claims]
        parts.append("\n".join([ours, "", *lines]))
    return "\n\n".join(parts) + "\n"


PAPERS: Mapping[Verdict, str] = {
    "reproduced": "Reproduced",
    "not reproduced": "**Not reproduced**",
    "not decided": "Not decided",
    "equal": "Equal",
}
OURS: Mapping[Verdict, str] = {
    **PAPERS,
    "reproduced": "Held",
    "not reproduced": "**Did not hold**",
}
"""The paper says nothing about these claims, so there is nothing to reproduce."""


def claim_line(claim: Claim, words: Mapping[Verdict, str]) -> str:
    """One item of a list."""
    verdict = words[claim.verdict]
    statement = f"{claim.statement.removesuffix('.')} ({_labels(claim.source)})"
    return f"- {verdict}: {statement}. Found: {claim.found.removesuffix('.')}."


def _labels(source: str) -> str:
    """Labels of the paper in typewriter letters."""
    return ", ".join(f"`{label}`" for label in source.split(", "))
