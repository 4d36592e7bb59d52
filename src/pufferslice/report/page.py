# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages from files: nothing is loaded, and the pages compute nothing.

The templates hold the words; `release` and `training` hold the numbers.
"""

import base64
import hashlib
import math
import os
import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from pufferslice import __version__
from pufferslice._core.display import rounded
from pufferslice._core.numbers import in_full, percent_at_most
from pufferslice._core.svg import Axes, ellipse_chart, line_chart, marks
from pufferslice._core.text import END_ISOLATE, ISOLATE, label, listed
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate.budget_wording import first_lines, limit_sentences, table_rows
from pufferslice.certificate.sweep import stated_variation
from pufferslice.certificate.wording import (
    INSECURE,
    differing_words,
    guess_sentence,
    run_guess_sentence,
)
from pufferslice.claims.guess import right_guesses
from pufferslice.errors import ArgumentError, MissingExtraError, escaped
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.report.budget import budget_numbers
from pufferslice.report.inputs import Edition, ReportInputs, internal_inputs, public_inputs
from pufferslice.report.release import (
    evidence_numbers,
    release_numbers,
    share_columns,
    shares,
)
from pufferslice.report.text import bound, counted, number, pair_of
from pufferslice.report.training import training_numbers, training_sweep

try:
    import jinja2
    import markupsafe
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "reports need jinja2; install it with: pip install 'pufferslice[report]'"
    ) from error

_FOLDER: Final = Path(__file__).parent / "templates"
_MOST_ON_A_LABEL: Final = 12
_ISOLATED: Final = re.compile(f"{ISOLATE}([^{ISOLATE}{END_ISOLATE}]*){END_ISOLATE}")


def internal_page(paths: Sequence[str | os.PathLike[str]], progress: Progress = silent) -> bytes:
    """Write the internal edition: watermarked, with all that the files and the evidence show.

    Needs: certificates that verify, and only files that are about one of them.
    """
    inputs = internal_inputs(paths)
    parts = []
    for i, held in enumerate(inputs):

        def report(done: int, total: int, first: int = i) -> None:
            progress(first * total + done, len(inputs) * total)

        if held.certificate.workflow == "training":
            parts.append(training_numbers(held) | training_sweep(held.certificate, report))
        elif held.certificate.workflow == "budget":
            parts.append(budget_numbers(held))
        else:
            numbers = release_numbers(held)
            parts.append(numbers | evidence_numbers(held.certificate, numbers, report))
    return _rendered("internal", inputs, parts)


def public_page(paths: Sequence[str | os.PathLike[str]]) -> bytes:
    """Write the public edition, from public statements and released values alone.

    Guarantee: the bytes are the same whether the evidence lies beside the certificates or not.
    """
    inputs = public_inputs(paths)
    numbers = {
        "release": release_numbers,
        "training": training_numbers,
        "budget": budget_numbers,
    }
    return _rendered(
        "public", inputs, [numbers[held.certificate.workflow](held) for held in inputs]
    )


def label_page(paths: Sequence[str | os.PathLike[str]]) -> bytes:
    """Write a privacy label: one public card about one certificate, from its statement alone."""
    inputs = public_inputs(paths)
    if len(paths) != 1:
        raise ArgumentError("a label is about one certificate; give that file alone")
    certificate = inputs[0].certificate
    style = (_FOLDER / "label.css").read_text("utf-8")
    variation = stated_variation(certificate)
    text = (
        _environment()
        .get_template("label.html")
        .render(
            certificate=certificate,
            is_secure=certificate.workflow == "training" or certificate.is_secure,
            lines=first_lines(certificate.statement),
            guess=right_guesses(variation),
            rows=table_rows(certificate.statement)[:_MOST_ON_A_LABEL],
            n_left=max(0, len(table_rows(certificate.statement)) - _MOST_ON_A_LABEL),
            limits=limit_sentences(certificate.statement.escaped()),
            style=style,
            style_hash=_hash(style),
            variation=variation,
            version=__version__,
        )
    )
    return text.encode()


def _rendered(
    edition: Edition, inputs: Sequence[ReportInputs], parts: Sequence[dict[str, Any]]
) -> bytes:
    environment = _environment()
    style, script = ((_FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    text = environment.get_template("page.html").render(
        edition=edition,
        parts=[
            part
            | {"id": f"part-{i}", "edition": edition, "held": held}
            | {"unchecked": () if held.verification is None else held.verification.unchecked}
            for i, (part, held) in enumerate(zip(parts, inputs, strict=True))
        ],
        n_scenarios=len({repr(held.scenario) for held in inputs}),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        version=__version__,
    )
    return text.encode()


@cache
def _environment() -> jinja2.Environment:
    """Load the templates, with the functions that they may call; compiled templates are kept."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_isolated,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "at_most": bound,
        "bare": partial(_marked, start="", end=""),
        "counted": counted,
        "differing": differing_words,
        "guesses": _guesses,
        "guess_sentence": lambda variation: guess_sentence(right_guesses(variation)),
        "run_guess_sentence": lambda variation, n_runs: run_guess_sentence(
            right_guesses(variation), n_runs
        ),
        "in_full": in_full,
        "interval": lambda share: f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]",
        "label": label,
        "labels": partial(listed, show=label),
        "mean_error": lambda noise_std: noise_std * math.sqrt(2 / math.pi),
        "named": lambda lines, names: [names[line.name] for line in lines],
        "number": number,
        "pair": pair_of,
        "pairs": partial(listed, show=pair_of),
        "percent_sign": lambda value: f"{value:.3g}\u00a0%",
        "percent": lambda value: "none" if value is None else percent_at_most(value / 100),
        "beside": rounded,
        "plain": partial(_marked, start=ISOLATE, end=END_ISOLATE),
        "share_columns": share_columns,
        "shares": shares,
        "short": "{:g}".format,
    }
    # A bound that is printed as 100 % says nothing.
    environment.tests["bound"] = lambda variation: _guesses(variation) != percent_at_most(1.0)
    environment.globals |= {
        "axes": Axes,
        "ellipse_chart": ellipse_chart,
        "insecure": INSECURE,
        "interval_stds": INTERVAL_STDS,
        "line_chart": line_chart,
        "marks": marks,
        "zip": zip,
    }
    return environment


def _guesses(variation: float, n_secrets: int = 2) -> str:
    return percent_at_most(right_guesses(variation, n_secrets=n_secrets))


def _isolated(value: object) -> object:
    """Escape a text for the body of the page, with its labels isolated; keep anything else."""
    if not isinstance(value, str) or isinstance(value, markupsafe.Markup):
        return value
    return _marked(value, "<bdi>", "</bdi>")


def _marked(text: str, start: str, end: str) -> markupsafe.Markup:
    parts = [markupsafe.escape(escaped(part, keep="\u00a0")) for part in _ISOLATED.split(text)]
    parts[1::2] = [markupsafe.Markup(f"{start}{part}{end}") for part in parts[1::2]]  # noqa: S704
    return markupsafe.Markup("").join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
