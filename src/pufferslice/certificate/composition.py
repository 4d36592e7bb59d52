# SPDX-License-Identifier: Apache-2.0
r"""Composition of several certificates over the same data.

Training runs add their costs as functions of the number of differing records. Releases add where
the secret determines the data: outputs are then independent given the secret, so unsliced Rényi
costs at one order add, also if a later release was chosen after seeing an earlier one, as long as
the total was fixed beforehand. Where the data stay random given the secret they do not: neither of
two fair bits reveals their exclusive or, and both together do.
"""

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np
from scipy.special import ndtr

from pufferslice._core.checks import check_between
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.numbers import at_most, in_full, percent_at_most
from pufferslice._core.search import SAFETY, smallest_epsilon
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.statement import ReleaseStatement
from pufferslice.certificate.training import composed_runs
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.sensitivity.renyi import gaussian_delta

_SHARED: Final = ("distribution", "secret", "secrets", "pairs", "priors")
_DELTA_ERROR: Final = 2.0**-49
"""Bound on the float error of a difference of two probabilities."""
_CONCATENATE: Final = "Calibrate the concatenated query once"


@final
@attrs.frozen(kw_only=True)
class ComposedReleases:
    """The joint promise of several releases of data that the secret determines."""

    certificates: tuple[str, ...]
    """Digests of the composed certificates."""
    order: float
    epsilon: float
    """Sum of what the releases spent at the order: the joint cost if every choice was made
    beforehand."""
    total: float
    """Total fixed beforehand: the claim where later choices depended on earlier outputs."""
    implementation_delta: float

    def delta(self, epsilon: float) -> float:
        """Bound the delta of all releases together at `epsilon`, for the total."""
        added = (1 + math.exp(min(epsilon, 700.0))) * self.implementation_delta
        ideal = float(gaussian_delta(np.array(self._shift), epsilon)) + _DELTA_ERROR
        return min(1.0, ideal * SAFETY + added)

    def epsilon_at(self, delta: float) -> float:
        """Bound the epsilon of all releases together at `delta`, for the total."""
        check_between(0, 1, delta=delta)
        return smallest_epsilon(self.delta, delta)

    @property
    def guess(self) -> float:
        """Upper bound on right guesses between two protected, equally likely secrets."""
        return min(1.0, float(ndtr(self._shift / 2)) * SAFETY + self.implementation_delta)

    @property
    def _shift(self) -> float:
        """Distance of two point masses, in standard deviations of the Gaussian noise."""
        return math.sqrt(2 * self.total / self.order) * SAFETY

    def __str__(self) -> str:
        return (
            f"{len(self.certificates)} releases of data that the secret determines cost "
            f"together at most {at_most(self.epsilon)} at order {in_full(self.order)}, of a total "
            f"of {in_full(self.total)} that was fixed beforehand.\n"
            "Someone who holds one of the priors, has narrowed the secret down to two protected "
            "values, both equally likely, and sees all of these releases guesses right at most "
            f"{percent_at_most(self.guess)} of the time."
        )


def _shared_key(statement: ReleaseStatement) -> str:
    """Identify what releases must share to add up: secrets, pairs, priors and order."""
    scenario = statement.scenario.to_json()
    shared = {key: scenario[key] for key in _SHARED}
    return digest(canonical_json([shared, statement.guarantee.reported_order]))


def compose(certificates: Sequence[Certificate]) -> Certificate | ComposedReleases:
    """State what several certificates over the same data promise together.

    For training runs: one certificate. For releases that state a common total: their sum. Others
    do not compose.
    """
    if not certificates:
        raise ArgumentError("certificates must hold at least one certificate, got none")
    workflows = {certificate.workflow for certificate in certificates}
    if workflows == {"training"}:
        return composed_runs(certificates)
    if len(workflows) > 1:
        raise CertificateError(
            "training runs and releases do not compose; publish their certificates separately"
        )
    statements = [certificate.released for certificate in certificates]
    totals = {statement.total for statement in statements if statement.total is not None}
    if any(statement.total is None for statement in statements):
        raise CertificateError(
            "these releases do not compose: with two fair bits and their exclusive or as the "
            "secret, each bit alone reveals nothing, both together reveal it. Only releases of "
            "data that the secret determines add up, certified with total=... (--total) under one "
            f"total. {_CONCATENATE}"
        )
    if len(totals) > 1 or len(set(map(_shared_key, statements))) > 1:
        raise CertificateError(
            "only releases with one secret, the same pairs, priors and order, and one total add "
            f"up; these differ. {_CONCATENATE}"
        )
    digests = tuple(certificate.digest for certificate in certificates)
    if len(set(digests)) != len(digests):
        raise ArgumentError("a certificate covers one release; name each once")
    (total,) = totals
    spent = added_up([statement.spent for statement in statements])
    if not spent <= total:
        raise CertificateError(
            f"together the releases cost {at_most(spent)}, more than their total {total!r}"
        )
    return ComposedReleases(
        certificates=digests,
        order=statements[0].guarantee.reported_order,
        epsilon=spent,
        total=total,
        implementation_delta=added_up([s.noise.implementation_delta for s in statements]),
    )


def added_up(costs: Sequence[float]) -> float:
    """Add costs, and round the sum up."""
    total = math.fsum(costs)
    return total if len(costs) == 1 or not total else math.nextafter(total, math.inf)


def budget_of(statement: ReleaseStatement) -> tuple[str, float, float] | None:
    """Return key, cost and total of a release that adds up, for a ledger; None for others."""
    if statement.total is None:
        return None
    return _shared_key(statement), statement.spent, statement.total
