# SPDX-License-Identifier: Apache-2.0
"""Whether a release is worth making: its noise compared with what each statistic could show.

Everything here is computed from confidential numbers and must stay internal.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, final

import attrs
import numpy as np
from scipy.special import ndtr

from pufferslice._core.arrays import Floats
from pufferslice._core.display import Shown
from pufferslice._core.numbers import percent_at_most
from pufferslice._core.text import shown
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.statement import ReleaseStatement, StateSecret
from pufferslice.queries.derived import Derived
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.whitening import Covariance

_STEP: Final = 2.0**-200
"""Imaginary step of derivatives, too small to round anything."""
_N_DRAWS: Final = 2_000
_ROUNDED: Final = 1 + 1e-6
"""Factor by which a mean squared distance may exceed another by rounding alone."""
_ONE_HOME: Final = (
    "Sizes are those of one home alone: where rows of other homes are in the release as well, the "
    "same noise is on their total."
)


Yardstick = Literal["constant", "size", "both"]


@final
@attrs.frozen(kw_only=True)
class StatisticVerdict:
    """The noise of one statistic, in the user's units, and three yardsticks for it."""

    name: str
    noise_std: float
    difference: float | None
    """Largest difference of the statistic's means between two protected secrets; None for what is
    computed from several of them."""
    constant_error: float | None
    """Error (root mean square) of the best constant that someone who publishes no data could name:
    under the declared priors, or by a public range or model; None where there is no such range."""
    size: float | None
    """Largest absolute mean of the statistic; None for a sum of centred numbers."""
    yardstick: Yardstick
    """Yardstick with which the noise is compared."""

    @property
    def is_useful(self) -> bool:
        """Whether the noise leaves something to read."""
        sizes = {"constant": [self.constant_error], "size": [self.size]}
        for size in sizes.get(self.yardstick, [self.constant_error, self.size]):
            if size is not None and not self.noise_std < size:
                return False
        return True


@final
@attrs.frozen(kw_only=True)
class Verdict(Shown):
    """The verdict on every statistic of a release, and a sentence if it is not worth making."""

    statistics: tuple[StatisticVerdict, ...]
    is_determined: bool
    """Whether the statistics are functions of the secret."""
    yardstick: Yardstick
    """Yardstick with which the noise is compared."""
    claimed: float | None = None
    """Right guesses of the certificate; None where the noise is not from another table."""
    current_guess: float | None = None
    """Right guesses that the rows at hand would allow under this noise; None as before."""
    remark: str = ""
    """What the yardsticks leave out, and what the rows at hand break; mostly empty."""

    @property
    def is_useful(self) -> bool:
        """Whether at least one statistic is worth releasing."""
        return any(statistic.is_useful for statistic in self.statistics)

    @property
    def current_sentence(self) -> str:
        """Warn the holder if the rows at hand would need more noise; empty if not."""
        if self.current_guess is None or self.claimed is None or self.current_guess <= self.claimed:
            return ""
        return (
            "The rows at hand would need more noise than the certified one: between them, guesses "
            f"could be right {percent_at_most(self.current_guess)} of the time instead of "
            f"{percent_at_most(self.claimed)}. The promise is for rows like those of the other "
            "table. Where that is not enough, certify a smaller share of right guesses, or take "
            "the moments from a table that is more like this one. Decide by the size of the table "
            "and not by this number: noise that follows the rows at hand tells about them."
        )

    @property
    def sentence(self) -> str:
        """Verdict in one sentence."""
        n, useless = len(self.statistics), [s for s in self.statistics if not s.is_useful]
        if not useless:
            return {
                "constant": "For every statistic, a constant would be further off than the noise.",
                "size": "For every statistic, the noise is smaller than what it measures.",
                "both": (
                    "For every statistic, the noise is smaller than what it measures, and than the "
                    "error of someone without data."
                ),
            }[self.yardstick]
        what = "This release is not worth making"
        if len(useless) < n:
            what = f"{len(useless)} of {n} statistics are not worth releasing"
        why = {
            "constant": (
                "under the declared priors a constant, which reveals nothing, is at least as "
                "accurate"
            ),
            "size": "the noise is at least as large as what is measured",
            "both": (
                "the noise is at least as large as what is measured, or as the error of the best "
                "constant that someone without data could name"
            ),
        }[self.yardstick]
        advice = (
            " Publish fewer statistics or coarser ones (weeks in place of days), protect only "
            "values that are closer together, allow more right guesses, or clip more narrowly."
        )
        if self.is_determined:
            advice = (
                " The query is a function of the secret here: publish it for the whole table "
                "instead, or declare how data vary under a secret."
            )
        elif self.yardstick != "both":
            advice = (
                " Check the scales, allow a larger bound, release fewer statistics, or protect "
                "only secrets that are closer together."
            )
        return f"{what}: {why}.{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        current = {"current": self.current_sentence} if self.current_sentence else {}
        return {
            "statistics": self.table_rows(),
            "yardstick": self.yardstick,
            "is_useful": self.is_useful,
            "sentence": self.sentence,
        } | current

    def table_rows(self) -> list[dict[str, Any]]:
        """Return one row per statistic."""
        return [
            {key: value for key, value in attrs.asdict(statistic).items() if key != "yardstick"}
            | {"is_useful": statistic.is_useful}
            for statistic in self.statistics
        ]

    def sentences(self) -> list[str]:
        """Return the verdict in words."""
        return list(filter(None, (self.sentence, self.remark, self.current_sentence)))

    def __str__(self) -> str:
        columns = {"statistic": [shown(s.name) for s in self.statistics]}
        columns["noise std"] = [_number(s.noise_std) for s in self.statistics]
        columns["between secrets"] = [_number(s.difference) for s in self.statistics]
        if self.yardstick != "constant":
            columns["size"] = [_number(s.size) for s in self.statistics]
        if self.yardstick != "size":
            columns["error of a constant"] = [_number(s.constant_error) for s in self.statistics]
        widths = [max(map(len, [head, *cells])) for head, cells in columns.items()]
        rows = [tuple(columns), *zip(*columns.values(), strict=True)]
        marks = ["", *("" if s.is_useful else "  mostly noise" for s in self.statistics)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + mark
            for row, mark in zip(rows, marks, strict=True)
        ]
        return "\n".join([*lines, *self.sentences()])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def verdict(
    certificate: Certificate, scenario: Scenario | None = None, derived: Sequence[Derived] = ()
) -> Verdict:
    """Judge whether a certified release is worth making.

    Where the secret determines the data, one release is about one group or row, or the priors are
    a public model that readers have, the yardstick is the best constant. Otherwise the priors, made
    of the data, know the statistics already, and readers without them do not: the yardstick is the
    size of the statistic; for sums of rows also the best constant of a reader without data, who
    knows the public range, or the declared chain and loads of a home.

    With the `scenario` of the certificate, the statistics that are computed from released sums are
    judged as well, in place of centred sums: those that its query asks for, and `derived`.
    """
    evidence = required_evidence(certificate)
    spreads = evidence.confidential["spreads"]
    statement, determined = certificate.released, evidence.full.is_determined
    by_constant = determined or statement.scenario.distribution != "worlds"
    by_constant |= all(prior.source == "public_model" for prior in statement.scenario.priors)
    yardstick: Yardstick = "constant" if by_constant else "size"
    if statement.scenario.has_priors("rows"):
        yardstick = "both"
    current = evidence.confidential["current"]
    moments = None if current is None else np.array(current)
    rows = zip(
        statement.scenario.query.names,
        statement.noise.std_by_coordinate,
        spreads["difference"],
        spreads["constant"],
        spreads["size"],
        strict=True,
    )
    statistics = [
        StatisticVerdict(
            name=name,
            noise_std=std,
            difference=difference,
            constant_error=constant,
            size=size,
            yardstick=yardstick,
        )
        for name, std, difference, constant, size in rows
    ]
    if scenario is not None and statement.scenario.has_priors("rows"):
        computed = _computed(certificate, scenario, [*scenario.query.derived, *derived])
        serving = {name for spec in scenario.query.derived for name in spec.of}
        kept = [one for one in statistics if one.size is not None or one.name not in serving]
        statistics = [*kept, *computed]
    return Verdict(
        statistics=tuple(statistics),
        is_determined=determined,
        yardstick=yardstick,
        claimed=None if moments is None else statement.guess,
        current_guess=None
        if moments is None
        else _current_guess(evidence.full.noise(certificate.noise_std), moments, statement),
        remark=_ONE_HOME
        if isinstance(statement.scenario.secret, StateSecret)
        else ""
        if scenario is None
        else _beyond(scenario),
    )


def _beyond(scenario: Scenario) -> str:
    """Warn the holder of more rows than the largest size that is covered."""
    most = float(scenario.secret.get("up_to", math.inf))
    for prior in scenario.priors:
        for world in (prior.current or prior.distributions).values():
            rows = world.rows if isinstance(world, RowDistribution) else None
            if rows is not None and len(rows) > most:
                return (
                    f"The table at hand has more rows than up_to={most:,.0f}, the largest number "
                    "that is covered: declare a larger one."
                )
    return ""


def _computed(
    certificate: Certificate, scenario: Scenario, specs: Sequence[Derived]
) -> list[StatisticVerdict]:
    """Judge statistics that are computed from released sums, to first order in the noise."""
    query, secret = scenario.query, scenario.secret
    world = next(iter(scenario.priors[0].distributions.values()))
    if not specs or query.features is None or not isinstance(world, RowDistribution):
        return []
    values = world.size * query.scales
    scaled = required_evidence(certificate).full.noise(certificate.noise_std).covariance
    covariance = scaled * np.outer(query.scales, query.scales)
    places = {name: place for place, name in enumerate(query.names)}
    judged = []
    for spec in specs:
        where = [places[name] for name in spec.of]
        steps = values[where][:, None] + 1j * _STEP * np.eye(len(where))
        n_rows = secret.get("n_rows")
        ends = spec.ends([query.features.parts[place] for place in where], n_rows)
        value, cov = float(spec.value(values[where], n_rows)), covariance[np.ix_(where, where)]
        if spec.is_smooth:
            slopes = spec.value(steps, n_rows).imag / _STEP
            std = math.sqrt(max(float(slopes @ cov @ slopes), 0.0))
        else:
            noise = np.random.default_rng(0).multivariate_normal(values[where], cov, _N_DRAWS)
            std = float(spec.value(noise.T, n_rows).std())
        judged.append(
            StatisticVerdict(
                name=spec.name,
                noise_std=std,
                difference=None,
                constant_error=None if ends is None else (ends[1] - ends[0]) / math.sqrt(12),
                size=abs(value) if math.isfinite(value) else None,
                yardstick="both",
            )
        )
    return judged


def _current_guess(noise: Covariance, moments: Floats, statement: ReleaseStatement) -> float:
    """Estimate right guesses by the second moments of a change; for the holder, not rounded up.

    Within the mean squared distance of the statement its own bound holds, which is smaller than
    that of second moments where a single flag is released.
    """
    whitened = noise.whitening / noise.std
    square = max(float(np.sum((whitened @ moment) * whitened)) for moment in moments)
    guess = float(ndtr(math.sqrt(square) / 2))
    if statement.mean_square is None or statement.guess is None:
        return guess
    if square <= statement.mean_square * _ROUNDED:
        return min(guess, statement.guess)
    return guess
