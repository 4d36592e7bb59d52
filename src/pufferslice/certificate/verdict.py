# SPDX-License-Identifier: Apache-2.0
"""Whether a release is worth making: its noise compared with what each statistic could show.

Everything here is computed from confidential numbers and must stay internal.
"""

from typing import Any, Literal, final

import attrs

from pufferslice._core.display import Shown
from pufferslice._core.text import shown
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.issue import required_evidence


@final
@attrs.frozen(kw_only=True)
class StatisticVerdict:
    """The noise of one statistic, in the user's units, and three yardsticks for it."""

    name: str
    noise_std: float
    difference: float
    """Largest difference of the statistic's means between two protected secrets."""
    constant_error: float
    """Error (root mean square) of the best constant under the declared priors: what someone who
    publishes no data at all would achieve."""
    size: float
    """Largest absolute mean of the statistic under any secret."""
    is_useful: bool
    """Whether the noise leaves something to read."""


@final
@attrs.frozen(kw_only=True)
class Verdict(Shown):
    """The verdict on every statistic of a release, and a sentence if it is not worth making."""

    statistics: tuple[StatisticVerdict, ...]
    is_determined: bool
    """Whether the statistics are functions of the secret."""
    yardstick: Literal["constant", "size"]
    """Yardstick with which the noise is compared."""

    @property
    def is_useful(self) -> bool:
        """Whether at least one statistic is worth releasing."""
        return any(statistic.is_useful for statistic in self.statistics)

    @property
    def sentence(self) -> str:
        """Verdict in one sentence."""
        n, useless = len(self.statistics), [s for s in self.statistics if not s.is_useful]
        if not useless:
            return "For every statistic, the noise is smaller than what it measures."
        what = "This release is not worth making"
        if len(useless) < n:
            what = f"{len(useless)} of {n} statistics are not worth releasing"
        why = (
            "under the declared priors a constant, which reveals nothing, is at least as accurate"
            if self.yardstick == "constant"
            else "the noise is at least as large as what is measured"
        )
        advice = (
            " The query is a function of the secret here: publish it for the whole table instead, "
            "or declare how data vary under a secret."
            if self.is_determined
            else " Check the scales, allow a larger bound, release fewer statistics, protect "
            "only secrets that are closer together, or cap outliers by a public rule before "
            "you certify."
        )
        return f"{what}: {why}.{advice}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "statistics": self.table_rows(),
            "yardstick": self.yardstick,
            "is_useful": self.is_useful,
            "sentence": self.sentence,
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """Return one row per statistic."""
        return [attrs.asdict(statistic) for statistic in self.statistics]

    def sentences(self) -> list[str]:
        """Return the verdict in words."""
        return [self.sentence]

    def __str__(self) -> str:
        names = [shown(statistic.name) for statistic in self.statistics]
        width = max(map(len, ["statistic", *names]))
        by_size = self.yardstick == "size"
        last = f"{'size':>8}" if by_size else "error of a constant"
        head = f"{'statistic':<{width}}  noise std  between secrets  {last}"
        lines = [
            f"{name:<{width}}  {s.noise_std:>9.3g}  {s.difference:>15.3g}  "
            f"{s.size if by_size else s.constant_error:>{len(last)}.3g}"
            + ("" if s.is_useful else "  mostly noise")
            for name, s in zip(names, self.statistics, strict=True)
        ]
        return "\n".join([head, *lines, self.sentence])


def verdict(certificate: Certificate) -> Verdict:
    """Judge whether a certified release is worth making.

    Where the secret determines the data, one release is about one group or row, or the priors are
    a public model that readers have, the yardstick is the best constant. Otherwise the priors, made
    of the data, know the statistics already, and readers without them do not: the yardstick is the
    size of the statistic.
    """
    evidence = required_evidence(certificate)
    spreads = evidence.confidential["spreads"]
    statement, determined = certificate.released, evidence.full.is_determined
    scenario = statement.scenario
    is_public = all(prior.source == "public_model" for prior in scenario.priors)
    of_rows = scenario.has_priors("rows")
    by_constant = determined or is_public or scenario.distribution != "worlds"
    by_constant = by_constant and not of_rows
    rows = zip(
        scenario.query.names,
        statement.noise.std_by_coordinate,
        spreads["difference"],
        spreads["constant"],
        spreads["size"],
        strict=True,
    )
    return Verdict(
        statistics=tuple(
            StatisticVerdict(
                name=name,
                noise_std=std,
                difference=difference,
                constant_error=constant,
                size=size,
                is_useful=std < (constant if by_constant else size),
            )
            for name, std, difference, constant, size in rows
        ),
        is_determined=determined,
        yardstick="constant" if by_constant else "size",
    )
