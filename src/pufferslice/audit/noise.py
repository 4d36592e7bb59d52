# SPDX-License-Identifier: Apache-2.0
r"""Test of the noise that a certificate states, along lines that pilot outputs recommend.

With noise of standard deviation $\sigma$ along a line, whatever it is added to,

$$P(Y \in I) \le 2\Phi(|I| / 2\sigma) - 1$$

for every interval $I$: noise spreads any distribution. Values that repeat, directions with too
little noise and tails that are cut off all put more into some interval.

Noise with a shape is isotropic in whitened coordinates. Lines are chosen there and used in scaled
coordinates, where outputs are rounded: $w \cdot A(y - c)$ is $A^T w \cdot y$ up to a constant.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.audit.bins import lower_share
from pufferslice.audit.divergence import SplitOutputs
from pufferslice.audit.verdict import Verdict
from pufferslice.sensitivity.profiles import project
from pufferslice.sensitivity.whitening import Shape

MOST_AXES: Final = 64
"""Most coordinates of which all are tested; of more only some are."""

_PILOT_PER_AXIS: Final = 10
"""Outputs per coordinate below which a sample covariance is mostly chance."""
_SINGULAR: Final = 1e-12
"""Eigenvalues below this share of the largest are raised to it."""

_PILOT_SHARE: Final = 1e-6
"""Failure probability of the prediction by the pilot, so that it does not choose by chance."""
_FEWEST_INSIDE: Final = 3
_SIZES: Final = 24
_SATURATED: Final = 2.0**17
"""Outputs this many noise standard deviations from the centre may have been saturated."""

WHITENED: Final = "the mean difference over the covariance"
LEAST: Final = "the direction of least variance"


def pilot_lines(first: Floats, second: Floats) -> dict[str, Floats]:
    r"""Unit vectors by name, from the pilot outputs of two secrets; none if they are too few.

    Of all lines, Gaussian noise with covariance $\Sigma$ hides a difference $\Delta$ of means least
    along $\Sigma^{-1}\Delta$, here with $\Sigma$ regularised. Outputs with shaped noise should be
    whitened: then only broken noise is far from isotropic.
    """
    covariance = _covariance(first, second)
    if covariance is None:
        return {}
    variances, vectors = np.linalg.eigh(covariance)
    floor = _SINGULAR * float(variances[-1]) or 1.0
    difference = vectors.T @ (first.mean(axis=0) - second.mean(axis=0))
    whitened = vectors @ (difference / np.maximum(variances, floor))
    length = float(np.linalg.norm(whitened))
    return ({WHITENED: whitened / length} if length > 0 else {}) | {LEAST: vectors[:, 0]}


def _covariance(*pilots: Floats) -> Floats | None:
    """Around the mean of each secret, pooled; None if too few outputs estimate it."""
    dim = pilots[0].shape[1]
    if not 1 < dim <= MOST_AXES or min(map(len, pilots)) < _PILOT_PER_AXIS * dim:
        return None
    centred = np.concatenate([pilot - pilot.mean(axis=0) for pilot in pilots])
    return np.asarray(centred.T @ centred / len(centred))


class _Interval(NamedTuple):
    """An interval along a line, chosen on the pilot outputs of one secret."""

    promise: float
    line: str
    direction: Floats
    ends: tuple[float, float]
    allowed: float
    """The largest probability that the stated noise gives it."""
    prior: str = ""
    secret: str = ""


def audit_noise(
    outputs: Mapping[str, Mapping[str, SplitOutputs]],
    axes: Sequence[str],
    *,
    noise_std: float,
    center: Floats,
    confidence: float,
    shape: Shape | None = None,
) -> Verdict:
    """Refute noise of standard deviation `noise_std` in every direction, by prior and secret.

    `outputs` and `center` are in scaled coordinates. With a shape, the directions are those of
    whitened coordinates: the noise has the covariance that the certificate states. The bound is on
    the distance (delta at epsilon 0) between the outputs and all distributions that such noise can
    make.

    Guarantee: if independent noise, Gaussian with that standard deviation in every direction, was
    added to any distribution, the verdict is `refuted` with probability at most 1 - `confidence`.
    Rounding of the outputs is allowed for, if no coarser than the smallest step between two pilot
    outputs. More noise than stated is never refuted.
    """
    limits = _SATURATED * (noise_std if shape is None else shape.stds(noise_std))

    def near(values: Floats) -> Floats:
        return values[(np.abs(values - center) < limits).all(axis=1)]

    intervals = []
    for prior, secrets in outputs.items():
        for secret, part in secrets.items():
            pilot = near(part.pilot)
            directions, names = _noise_lines(pilot, axes, center, shape)
            interval = _best_interval(pilot, directions, names, noise_std, len(part.pilot))
            intervals.append(interval._replace(prior=prior, secret=secret))
    best = max(intervals, key=lambda interval: interval.promise)
    counted = outputs[best.prior][best.secret].counted
    (values,) = project(best.direction[None], near(counted))
    inside = int(((values >= best.ends[0]) & (values <= best.ends[1])).sum())
    share = 1 - confidence
    length = (best.ends[1] - best.ends[0]) / noise_std
    where = "direction (scaled units)" if shape is None else "direction (whitened units)"
    return Verdict(
        claim=f"noise of standard deviation {noise_std:.6g} in every {where}",
        quantity="delta",
        claimed=0.0,
        statistic="outputs in one interval, beyond what that noise allows",
        lower_bound=max(0.0, lower_share(inside, len(counted), share) - best.allowed),
        confidence=confidence,
        refutable_below=lower_share(len(counted), len(counted), share),
        n_outputs=outputs[best.prior][best.secret].n_outputs,
        pair=(best.secret, "the stated noise"),
        prior=best.prior,
        line=f"{best.line}, in an interval of {length:.3g} standard deviations",
    )


def _noise_lines(
    pilot: Floats, axes: Sequence[str], center: Floats, shape: Shape | None
) -> tuple[Floats, list[str]]:
    """Directions in scaled coordinates along which the stated noise has the same deviation.

    The narrowest axes, with a shape those of whitened coordinates too, and where the outputs vary
    least next to the stated noise.
    """
    directions, names, white = np.eye(len(axes)), list(axes), pilot
    if not len(pilot):
        return directions, names
    variances = pilot.var(axis=0)
    if shape is not None:
        white, stds = shape.whitened(pilot, center), shape.stds(1.0)
        directions = np.vstack([directions / stds[:, None], shape.whitening])
        names += [f"whitened axis {index}" for index in range(shape.dim)]
        variances = np.concatenate([variances / stds**2, white.var(axis=0)])
    narrow = np.argsort(variances, kind="stable")[:MOST_AXES]
    directions, names = directions[narrow], [names[where] for where in narrow]
    covariance = _covariance(white)
    if covariance is not None:
        least = np.linalg.eigh(covariance)[1][:, 0]
        scaled = least if shape is None else shape.whitening.T @ least
        directions, names = np.vstack([directions, scaled]), [*names, LEAST]
    return directions, names


def _best_interval(
    pilot: Floats, directions: Floats, names: Sequence[str], noise_std: float, n_pilot: int
) -> _Interval:
    """The most promising of the shortest intervals with 3, ..., all pilot outputs."""
    best = _Interval(-math.inf, names[0], directions[0], (0.0, 0.0), 1.0)
    if len(pilot) < _FEWEST_INSIDE:
        return best
    few = np.geomspace(_FEWEST_INSIDE, len(pilot), _SIZES)
    many = len(pilot) - np.geomspace(1, len(pilot) / 2, _SIZES // 2)
    sizes = np.unique(np.concatenate([few, many, [len(pilot)]]).astype(np.int64))
    likely = [lower_share(int(size), n_pilot, _PILOT_SHARE) for size in sizes]
    # The smallest step between outputs in every coordinate, at least that of floats.
    gaps = np.diff(np.sort(pilot, axis=0), axis=0)
    smallest = np.where(gaps > 0, gaps, np.inf).min(axis=0)
    floats = (4 + pilot.shape[1]) * np.spacing(np.abs(pilot).max(axis=0))
    steps = np.maximum(np.where(np.isfinite(smallest), smallest, 0.0), floats)
    for direction, name in zip(directions, names, strict=True):
        values = np.sort(project(direction[None], pilot)[0])
        rounding = float(np.abs(direction) @ steps)
        for size, share in zip(sizes, likely, strict=True):
            lengths = values[size - 1 :] - values[: len(values) - size + 1]
            where = int(lengths.argmin())
            ends = (values[where] - rounding, values[where + size - 1] + rounding)
            # Again, for outputs that were rounded into the interval from outside.
            length = ends[1] - ends[0] + rounding
            allowed = math.erf(length / (noise_std * math.sqrt(8)))
            if share - allowed > best.promise:
                promise = share - allowed
                best = _Interval(promise, name, direction, ends, allowed)
    return best
