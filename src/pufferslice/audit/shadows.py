# SPDX-License-Identifier: Apache-2.0
"""The likelihood-ratio attack: how a record scores under models that saw it and that did not.

Carlini et al. 2022, "Membership Inference Attacks From First Principles". Shadow models are trained
as the attacked one was, each on a random part of the records.
"""

from typing import Final, Literal, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats, locked, same
from pufferslice.audit.membership import Flags, check_alike, locked_flags
from pufferslice.checks import check_finite, check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.showing import given

Spread = Literal["pooled", "per_record"]

SPREADS: Final[tuple[Spread, ...]] = ("pooled", "per_record")

FEWEST_SHADOWS: Final = 2
"""Shadow models with a record, and without: fewer have no spread."""

_LEAST_SHARE: Final = 1e-12
"""A record's own variance counts for at least this share of the pooled one."""


@final
@attrs.frozen(kw_only=True, repr=False)
class ShadowModels:
    """Scores of the records under shadow models, and which records each model was trained on."""

    scores: Floats = attrs.field(converter=locked, eq=same)
    """Shape (n_models, n_records)."""
    members: Flags = attrs.field(converter=locked_flags, eq=same)
    """Shape (n_models, n_records): whether the model was trained on the record."""

    def __attrs_post_init__(self) -> None:
        if self.scores.ndim != 2 or not self.scores.size:
            msg = (
                "shadow models are missing: their scores must have shape (n_models, n_records), "
                f"both at least 1, got {self.scores.shape}"
            )
            raise ArgumentError(msg)
        check_finite(shadow_scores=self.scores)
        check_alike(self.scores, self.members)

    @property
    def n_models(self) -> int:
        """How many shadow models there are."""
        return len(self.scores)

    @property
    def n_records(self) -> int:
        """How many records they scored."""
        return int(self.scores.shape[1])

    def __repr__(self) -> str:
        return f"ShadowModels(n_models={self.n_models}, n_records={self.n_records})"


class _Gaussians(NamedTuple):
    """One per record, fitted to its scores under some of the shadow models."""

    means: Floats
    variances: Floats


def likelihood_ratio_scores(
    scores: npt.ArrayLike, shadows: ShadowModels, *, spread: Spread = "pooled"
) -> Floats:
    r"""The online attack: how much likelier the score is if the record was trained on.

    $$\ln N(s; \mu_{in}, \sigma_{in}^2) - \ln N(s; \mu_{out}, \sigma_{out}^2)$$

    `scores` are those of the attacked model, best made by `margin_scores`. `pooled` fits one
    variance to all records, better below about 64 shadow models; `per_record` one to each.
    Needs: every record in the training set of at least two shadow models, and outside of two.
    """
    values = _attacked(scores, shadows)
    inside = _fitted(shadows, shadows.members, spread, "with")
    outside = _fitted(shadows, ~shadows.members, spread, "without")
    return _log_density(values, inside) - _log_density(values, outside)


def offline_likelihood_ratio_scores(
    scores: npt.ArrayLike, shadows: ShadowModels, *, spread: Spread = "pooled"
) -> Floats:
    r"""The offline attack: how far above its scores without training on it, $(s - \mu) / \sigma$.

    Weaker than the online attack, and shadow models need not see the attacked records at all.
    Needs: every record outside of the training set of at least two shadow models.
    """
    values = _attacked(scores, shadows)
    outside = _fitted(shadows, ~shadows.members, spread, "without")
    return np.asarray((values - outside.means) / np.sqrt(outside.variances))


def _attacked(scores: npt.ArrayLike, shadows: ShadowModels) -> Floats:
    if not isinstance(shadows, ShadowModels):
        msg = f"shadow models are missing: shadows must be ShadowModels, got {given(shadows)}"
        raise ArgumentError(msg)
    values = locked(scores)
    if values.shape != (shadows.n_records,):
        msg = (
            f"scores must be one number for each of the {shadows.n_records} records that the "
            f"shadow models scored, in the same order; got shape {values.shape}"
        )
        raise ArgumentError(msg)
    check_finite(scores=values)
    return values


def _fitted(shadows: ShadowModels, chosen: Flags, spread: Spread, word: str) -> _Gaussians:
    check_one_of(SPREADS, spread=spread)
    counts = chosen.sum(axis=0)
    short = int(np.count_nonzero(counts < FEWEST_SHADOWS))
    if short:
        msg = (
            f"shadow models are missing: {short} of {shadows.n_records} records have fewer than "
            f"{FEWEST_SHADOWS} models trained {word} them, and {FEWEST_SHADOWS} are needed. Train "
            "more shadow models"
        )
        if word == "with":
            msg += ", or use offline_likelihood_ratio_scores, which needs none with the record"
        raise ArgumentError(msg)
    means = np.where(chosen, shadows.scores, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (shadows.scores - means) ** 2, 0.0).sum(axis=0)
    pooled = float(squares.sum() / (counts - 1).sum())
    if not pooled > 0:
        msg = (
            f"the models trained {word} a record all give it the same score, for every record: "
            "they are copies of one model. Train shadow models on different parts of the data"
        )
        raise ArgumentError(msg)
    if spread == "pooled":
        return _Gaussians(means, np.full(shadows.n_records, pooled))
    return _Gaussians(means, np.maximum(squares / (counts - 1), _LEAST_SHARE * pooled))


def _log_density(values: Floats, law: _Gaussians) -> Floats:
    """Up to a constant that is the same for both laws."""
    return np.asarray(-((values - law.means) ** 2) / law.variances / 2 - np.log(law.variances) / 2)
