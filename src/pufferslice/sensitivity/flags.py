# SPDX-License-Identifier: Apache-2.0
r"""A single feature that is one of two numbers in every row, coupled as well as it can be.

A row that differs then changes with the probability p by which the two kinds of rows differ, and
always by the same number. Of D rows that differ, or of n that each may, as many change as a
binomial says, so that every claim is a finite sum.
"""

import math
from functools import cached_property
from typing import Final, final

import attrs
import numpy as np
from scipy.special import erf, gammaln

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats
from pufferslice.sensitivity.renyi import gaussian_delta

MOST_FLAGS: Final = 2**17
"""Most rows of which the sum is taken."""
_DELTA_ERROR: Final = 2.0**-48
_LARGEST_EXPONENT: Final = 700.0
_UP: Final = 1 + 2.0**-40


@final
@attrs.frozen(kw_only=True, slots=False, repr=False)
class FlagSum:
    """The number of rows that change, each by the same length, in whitened coordinates."""

    n_rows: int
    """Number of rows that may change, at most 2^17."""
    probability: float
    """Probability that each of them does."""
    length: float
    """Length of the change of one row."""

    @cached_property
    def _masses(self) -> tuple[Floats, Floats]:
        """Logarithms of the probabilities of each number of rows, rounded up, and the lengths."""
        counts = np.arange(self.n_rows + 1.0)
        n, p = self.n_rows, self.probability
        with np.errstate(divide="ignore", invalid="ignore"):
            by_p = np.where(counts > 0, counts * np.log(p), 0.0)
            by_rest = np.where(counts < n, (n - counts) * np.log1p(-p), 0.0)
        logs = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1) + by_p + by_rest
        largest = 2 * float(gammaln(n + 1)) - by_p - by_rest
        errors = 16 * UNIT_ROUNDOFF * (1 + np.where(np.isfinite(largest), largest, 0.0))
        return np.minimum(logs + errors, 0.0), counts * self.length

    def log_moments(self, rates: Floats) -> Floats:
        r"""Compute $\ln E\, e^{c |Z|^2}$ for each rate c, rounded up."""
        logs, lengths = self._masses
        found = []
        for rate in np.asarray(rates, dtype=np.float64).tolist():
            exponents = rate * lengths**2
            if float(exponents[-1]) < _LARGEST_EXPONENT:
                found.append(math.log1p(float(np.exp(logs) @ np.expm1(exponents))))
            else:
                terms = exponents + logs
                top = float(terms.max())
                found.append(top + math.log(float(np.exp(terms - top).sum())))
        return np.array(found) * _UP

    def delta(self, epsilon: float, std: float, margin: float) -> float:
        """Compute the delta at this epsilon, rounded up."""
        logs, lengths = self._masses
        ratios = np.where(lengths > 0, (lengths + margin) / std, 0.0)
        found = float(np.exp(logs) @ gaussian_delta(ratios, epsilon))
        return min(1.0, found * _UP + _DELTA_ERROR)

    def variation(self, std: float, margin: float) -> float:
        """Compute the total variation, rounded up."""
        logs, lengths = self._masses
        ratios = np.where(lengths > 0, (lengths + margin) / std, 0.0)
        return min(1.0, float(np.exp(logs) @ erf(ratios / math.sqrt(8))) * _UP)

    def __repr__(self) -> str:
        return f"FlagSum(n_rows={self.n_rows})"
