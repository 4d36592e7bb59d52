# SPDX-License-Identifier: Apache-2.0
"""Is what a certificate says true? Recomputed with 40 digits from the true distributions of a case.

Nothing here calls a formula of the library; `tests/oracles.py` has the fractions and the 40-digit
envelopes, this module the rest of what a statement says: unsliced cost, sphere, views.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
from soak.fuzz.random_scenarios import Case, random_case
from tests.oracles import (
    HP,
    aggregated,
    atoms,
    closed_form_cost,
    envelope,
    exact,
    gap_distribution,
    gaussian_divergence,
    grid_margin,
    tight_cost,
)

from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.certificate.statement import ReleaseStatement, ViewPart
from pufferslice.claims import Renyi, Sliced
from pufferslice.errors import CalibrationError, PuffersliceError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import WholeSphere

SMALL = HP.mpf("1e-9")
MOST_PERMUTED = 5
MOST_LINES = 8
SHAPES = ("fitted", "diagonal", "isotropic")
EXACT_KINDS = ("groups", "records", "bootstrap", "weighted", "gaussian")


@attrs.frozen(kw_only=True)
class Outcome:
    """What one case led to."""

    index: int
    kind: str
    refused: str | None = None
    """Why no certificate was issued."""
    problems: tuple[str, ...] = ()
    """What is false in the certificate."""
    missed: bool = False
    """The claim does not hold for the true distribution; allowed with the failure probability
    only."""
    failure_probability: float = 0.0


def outcome_of(seed: int, index: int, kind: str | None = None) -> Outcome:
    """Make a case, certify it, verify it, and recompute it."""
    case = random_case(seed, index, kind)
    about = {"index": index, "kind": case.kind, "failure_probability": case.failure_probability}
    options = dict(case.options)
    if not case.target.is_sliced or (
        not case.target.has_order and case.method.rule == "closed_form"
    ):
        options.pop("method", None)
    if not case.target.is_sliced:
        options["shape"] = SHAPES[index % len(SHAPES)]
    try:
        certificate = certify_release(case.scenario, case.target.along(case.profile), **options)
    except CalibrationError as error:
        return Outcome(**about, refused=" ".join(str(error).split()[:6]))
    except PuffersliceError as error:
        return Outcome(**about, problems=(f"unexpected refusal: {type(error).__name__}: {error}",))
    problems = [*_plain_problems(case, certificate)]
    if certificate.statement.distributions_are_equal:
        problems += [] if _truly_equal(case) else ["distributions that differ were called equal"]
        return Outcome(**about, problems=tuple(problems))
    case = attrs.evolve(case, options=options, truth=_whitened(case, certificate))
    claimed = _claim_problems(case, certificate)
    missed = bool(claimed) and case.failure_probability > 0
    if not missed:
        problems += claimed
    problems += _other_problems(case, certificate)
    return Outcome(**about, problems=tuple(problems), missed=missed)


def _whitened(case: Case, certificate: Certificate) -> list[tuple[Any, Any]]:
    """The true distributions in coordinates where the noise is isotropic."""
    shape = certificate.shape
    if shape is None:
        return case.truth

    def whitened(distribution: Any) -> Any:
        if not isinstance(distribution, tuple):
            rows = shape.whitened(distribution.outputs, case.scenario.query.center)
            return FiniteDistribution(outputs=rows, counts=distribution.counts)
        a, mean, cov = (_fractions(array) for array in (shape.whitening, *distribution))
        return a @ mean, a @ cov @ a.T

    return [(whitened(first), whitened(second)) for first, second in case.truth]


def _fractions(array: np.ndarray) -> np.ndarray:
    return np.array([Fraction(x) for x in array.flat], dtype=object).reshape(array.shape)


def _plain_problems(case: Case, certificate: Certificate) -> list[str]:
    statement = certificate.statement
    problems = []
    verification = verify(certificate)
    if not verification.holds:
        problems.append(f"verify: {verification.problems}")
    spent, noise_std = statement.spent, statement.noise.std
    if not (0 <= spent <= case.target.epsilon and 0 <= noise_std < math.inf):
        problems.append(f"spent {spent!r} with noise {noise_std!r} for {case.target}")
    if not statement.distributions_are_equal and not noise_std > 0:
        problems.append("no noise for distributions that differ")
    problems += [f"view {v}" for v in statement.views if not 0 <= v.epsilon < math.inf]
    unsliced = statement.unsliced.epsilon
    if unsliced is not None and not 0 <= unsliced < math.inf:
        problems.append(f"unsliced epsilon {unsliced!r}")
    return problems


def _truly_equal(case: Case) -> bool:
    return all(_difference(first, second) == 0 for first, second in case.truth)


def _difference(first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))
    dim = first.dim
    return max(
        max(gap for gap, _ in gap_distribution(atoms(first, axis), atoms(second, axis)))
        for axis in np.eye(dim)
    )


def _claim_problems(case: Case, certificate: Certificate) -> list[str]:
    """The one claim that the certificate makes."""
    noise_std, target = certificate.noise_std, case.target
    if not target.is_sliced:
        truth = unsliced_truth(case, target.order, noise_std)
        return [] if truth <= exact(target.epsilon) else [f"unsliced truth {truth} above {target}"]
    if not target.has_order:
        claim = {"notion": target.notion, "epsilon": target.epsilon, "delta": target.delta}
        return _approximate_problems(case, noise_std, **claim)
    truth = sliced_truth(case, noise_std, case.method.envelope, case.method.rule)
    return [] if truth <= exact(target.epsilon) else [f"truth {truth} above {target}"]


def _other_problems(case: Case, certificate: Certificate) -> list[str]:
    """Everything else that is stated, and that the noise is not far too large."""
    noise_std, target, statement = certificate.noise_std, case.target, certificate.statement
    problems = []
    order = statement.unsliced.order
    stated = statement.unsliced.epsilon
    if stated is not None:
        truth = unsliced_truth(case, order, noise_std)
        if not truth <= exact(stated):
            problems.append(f"unsliced truth {truth} above the stated {stated!r}")
        if case.kind != "sphere":
            problems += _ordering_problems(case, order, noise_std, stated)
    if case.kind in EXACT_KINDS and target.is_sliced and target.has_order:
        problems += _waste_problems(case, noise_std)
    if isinstance(case.profile, WholeSphere) and _spread(case) > 1e-5 * _size(case):
        less = _sphere_truth(case, noise_std * (1 - 1e-6))
        problems += [] if less > exact(target.epsilon) else [f"noise {noise_std!r} is too much"]
    if case.kind not in ("gaussian", "sampled", "sphere"):
        for view in statement.views:
            problems += _view_problems(case, noise_std, view)
    for view in statement.views:
        problems += _formula_problems(case, statement, view)
    return problems


def _ordering_problems(case: Case, order: float, noise_std: float, stated: float) -> list[str]:
    """average <= joint <= unsliced, at the order of the statement."""
    way = "exact" if case.kind == "gaussian" else "transport"
    both = [
        sliced_truth(_asked(case, notion, order), noise_std, way, "tight")
        for notion in ("average", "joint")
    ]
    if both[0] <= both[1] * (1 + HP.mpf("1e-30")) and (both[1] <= exact(stated)):
        return []
    return [f"not average {both[0]} <= joint {both[1]} <= unsliced {stated!r}"]


def _waste_problems(case: Case, noise_std: float) -> list[str]:
    """Less noise would not do, up to the rounding of gap tables; never above the closed form."""
    way, rule, epsilon = case.method.envelope, case.method.rule, exact(case.target.epsilon)
    share = 0.98 if way == "transport" else 1 - 1e-6
    problems = []
    if _is_resolved(case, noise_std) and sliced_truth(case, noise_std * share, way, rule) < epsilon:
        problems.append(f"noise {noise_std!r} is more than {case.target} needs")
    if case.kind != "gaussian" and rule == "tight" and _is_resolved(case, noise_std):
        closed = closed_form_cost(case.target, gap_distributions(case), case.profile, noise_std)
        if not closed >= epsilon * (1 - SMALL):
            problems.append(f"tight noise {noise_std!r} is above the closed form")
    return problems


def _is_resolved(case: Case, noise_std: float) -> bool:
    """Whether noise is needed, and the differences are far above the float error of the outputs."""
    if case.kind == "gaussian":  # where their own spread is enough, the least noise only is added
        own = sliced_truth(case, noise_std * 2.0**-30, case.method.envelope, case.method.rule)
        return bool(own > exact(case.target.epsilon))
    worst = max(
        gap for row in gap_distributions(case) for distribution in row for gap, _ in distribution
    )
    return float(worst) > 1e-5 * _size(case)


def _size(case: Case) -> float:
    return max(
        float(np.abs(distribution.outputs).max()) for pair in case.truth for distribution in pair
    )


def _spread(case: Case) -> float:
    """Between point masses, the largest distance."""
    pairs = ((first.outputs[0], second.outputs[0]) for first, second in case.truth)
    return float(max(_length(first, second) for first, second in pairs))


def _asked(case: Case, notion: str, order: float) -> Case:
    claim = Renyi(order=order, epsilon=1.0)
    return attrs.evolve(case, target=Sliced(claim=claim, notion=notion))


def gap_distributions(case: Case) -> list[list[Any]]:
    """[instance][slice] -> distribution of the gap, as fractions."""
    return [
        [gap_distribution(atoms(first, u), atoms(second, u)) for u in case.profile.directions]
        for first, second in case.truth
    ]


def sliced_truth(case: Case, noise_std: float, way: str, rule: str) -> Any:
    """The number that a sliced Rényi claim bounds."""
    if case.kind == "sphere":
        return _sphere_truth(case, noise_std)
    if case.kind == "gaussian":
        return _gaussian_truth(case, noise_std)
    gaps = gap_distributions(case)
    if rule == "closed_form":
        return closed_form_cost(case.target, gaps, case.profile, noise_std)
    return tight_cost(case.target, gaps, case.profile, noise_std, way)


def _sphere_truth(case: Case, noise_std: float) -> Any:
    """Point masses on the whole sphere: alpha |shift|^2 / (2 s^2 d); joint by 1F1(1/2; d/2; .)."""
    dim, a, s = case.profile.dim, exact(case.target.order), exact(noise_std)
    shift = max(_length(first.outputs[0], second.outputs[0]) for first, second in case.truth)
    if case.target.notion == "average":
        return a * shift**2 / (2 * s**2 * dim)
    return HP.log(HP.hyp1f1(0.5, HP.mpf(dim) / 2, a * (a - 1) * shift**2 / (2 * s**2))) / (a - 1)


def _length(first: np.ndarray, second: np.ndarray) -> Any:
    return HP.sqrt(
        HP.fsum(
            (exact(float(x)) - exact(float(y))) ** 2 for x, y in zip(first, second, strict=True)
        )
    )


def _gaussian_truth(case: Case, noise_std: float) -> Any:
    order, v = case.target.order, exact(noise_std) ** 2
    used = case.profile.weights > 0  # along the others the divergence may be infinite
    worst = HP.mpf(0)
    for pair in case.truth:
        costs = []
        for u in case.profile.directions[used]:
            along = [_along(u, mean, cov) for mean, cov in pair]
            noisy = [(mean, variance + v) for mean, variance in along]
            costs.append(
                max(gaussian_divergence(order, *noisy), gaussian_divergence(order, *noisy[::-1]))
            )
        worst = max(worst, aggregated(case.target.notion, order, costs, case.profile.weights[used]))
    return worst


def _along(u: np.ndarray, mean: np.ndarray, cov: np.ndarray) -> tuple[Any, Any]:
    along = [exact(float(x)) for x in u]
    middle = HP.fsum(x * exact(m) for x, m in zip(along, mean, strict=True))
    variance = HP.fsum(
        x * y * exact(cov[i, j]) for i, x in enumerate(along) for j, y in enumerate(along)
    )
    return middle, variance


def unsliced_truth(case: Case, order: float, noise_std: float) -> Any:
    """At most the best bound that any coupling gives, and for Gaussians the divergence itself."""
    whole = isinstance(case.profile, WholeSphere)
    directions = np.eye(case.profile.dim) if whole else case.profile.directions
    return max(_pair_unsliced(pair, order, noise_std, directions) for pair in case.truth)


def _pair_unsliced(
    pair: tuple[Any, Any], order: float, noise_std: float, directions: np.ndarray
) -> Any:
    a, s = exact(order), exact(noise_std)
    first, second = pair
    if isinstance(first, tuple):
        noisy = [_noisy(distribution, s) for distribution in pair]
        return max(_divergence_nd(a, *noisy), _divergence_nd(a, *noisy[::-1]))
    n = first.n_samples
    if n > MOST_PERMUTED or n != second.n_samples or not (first.is_uniform and second.is_uniform):
        # No coupling of the whole output costs less than the best one along a line.
        return max(
            envelope(
                "transport", order, gap_distribution(atoms(first, u), atoms(second, u)), noise_std
            )
            for u in directions[:MOST_LINES]
        )
    rate = a * (a - 1) / (2 * s**2)
    moments = [[HP.exp(rate * _length(x, y) ** 2) for y in second.outputs] for x in first.outputs]
    best = min(
        HP.fsum(moments[i][j] for i, j in enumerate(chosen))
        for chosen in itertools.permutations(range(n))
    )
    return HP.log(best / n) / (a - 1)


def _noisy(distribution: tuple[np.ndarray, np.ndarray], s: Any) -> tuple[Any, Any]:
    mean, cov = distribution
    dim = len(mean)
    spread = HP.matrix(dim, dim)
    for i in range(dim):
        for j in range(dim):
            spread[i, j] = exact(cov[i, j]) + (s**2 if i == j else 0)
    return HP.matrix([exact(m) for m in mean]), spread


def _divergence_nd(a: Any, first: tuple[Any, Any], second: tuple[Any, Any]) -> Any:
    """Between N(m1, S1) and N(m2, S2), by M = a S2 + (1 - a) S1; infinite unless M is positive."""
    (m1, s1), (m2, s2) = first, second
    mixed = a * s2 + (1 - a) * s1
    if any(HP.det(mixed[:k, :k]) <= 0 for k in range(1, mixed.rows + 1)):
        return HP.inf
    shift = m1 - m2
    square = (shift.T * HP.lu_solve(mixed, shift))[0]
    logs = HP.log(HP.det(mixed)) - (1 - a) * HP.log(HP.det(s1)) - a * HP.log(HP.det(s2))
    return a * square / 2 - logs / (2 * (a - 1))


def _delta(ratio: Any, epsilon: Any) -> Any:
    """Delta of two Gaussians at `ratio` standard deviations."""
    if ratio == 0:
        return HP.mpf(0)
    return HP.ncdf(ratio / 2 - epsilon / ratio) - HP.exp(epsilon) * HP.ncdf(
        -ratio / 2 - epsilon / ratio
    )


def _slice_delta(distribution: Any, noise_std: float, margin: Any, epsilon: Any) -> Any:
    s = exact(noise_std)
    return HP.fsum(
        exact(mass) * _delta((exact(gap) + margin) / s, epsilon) for gap, mass in distribution
    )


def _rough_epsilon(distribution: Any, noise_std: float, delta: float) -> float:
    """Where delta is met along a slice, in plain floats."""

    def at(epsilon: float) -> float:
        total = 0.0
        for gap, mass in distribution:
            r = float(gap) / noise_std
            if r:
                upper = 0.5 * math.erfc(-(r / 2 - epsilon / r) / math.sqrt(2))
                lower = 0.5 * math.erfc((r / 2 + epsilon / r) / math.sqrt(2))
                total += float(mass) * (upper - (math.exp(epsilon) * lower if lower else 0.0))
        return total

    low, high = 0.0, 1.0
    if at(0.0) <= delta:
        return 0.0
    while at(high) > delta and high < 500:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if at(middle) <= delta else (middle, high)
    return high


def _approximate_problems(
    case: Case, noise_std: float, *, notion: str, epsilon: float, delta: float
) -> list[str]:
    """(epsilon, delta) along the slices, from the true gaps: mean of deltas or of epsilons."""
    margin = grid_margin(case.profile.dim, noise_std)
    weights = [exact(float(w)) for w in case.profile.weights]
    weights = [w / HP.fsum(weights) for w in weights]
    for row in gap_distributions(case):
        if notion == "joint":
            total = HP.fsum(
                w * _slice_delta(distribution, noise_std, margin, exact(epsilon))
                for w, distribution in zip(weights, row, strict=True)
            )
            if not total <= exact(delta) * (1 + SMALL):
                return [f"delta {total} at epsilon {epsilon!r}, above {delta!r}"]
            continue
        mean = HP.mpf(0)
        for w, distribution in zip(weights, row, strict=True):
            rough = exact(_rough_epsilon(distribution, noise_std, delta))
            less = rough * (1 - SMALL)
            if rough > 0 and _slice_delta(distribution, noise_std, margin, less) <= delta:
                rough = less  # the rough search ended a little above
            mean += w * rough
        if not mean <= exact(epsilon) * (1 + 10 * SMALL) + HP.mpf("1e-12"):
            return [f"mean epsilon {mean} at delta {delta!r}, above {epsilon!r}"]
    return []


def _view_problems(case: Case, noise_std: float, view: ViewPart) -> list[str]:
    """A view is a true (epsilon, delta) statement, whatever rule it came from."""
    scope, epsilon, delta = view.scope, view.epsilon, view.delta
    if scope == "unsliced":
        if any(distribution.n_samples > 1 for pair in case.truth for distribution in pair):
            return []
        shift = max(_length(a.outputs[0], b.outputs[0]) for a, b in case.truth)
        truth = _delta(shift / exact(noise_std), exact(epsilon))
        fine = truth <= exact(delta) * (1 + SMALL)
        return [] if fine else [f"unsliced view {view}: delta is {truth}"]
    notion = scope.removeprefix("sliced ")
    problems = _approximate_problems(case, noise_std, notion=notion, epsilon=epsilon, delta=delta)
    return [f"view {view}: {problem}" for problem in problems]


def _formula_problems(case: Case, statement: ReleaseStatement, view: ViewPart) -> list[str]:
    """The two conversions that are formulas of epsilon, order and delta."""
    order = statement.unsliced.order
    base = statement.unsliced.epsilon if view.scope == "unsliced" else case.target.epsilon
    a, e, d = exact(order), exact(base) if base is not None else None, exact(view.delta)
    if e is None or view.rule not in ("paper", "improved"):
        return []
    added = HP.log((a - 1) / a) - (HP.log(d) + HP.log(a)) / (a - 1)
    if view.rule == "paper":
        truth = e - HP.log(d) / (a - 1)
    elif view.scope == "sliced average":
        truth = e + max(HP.mpf(0), added)
    else:
        truth = max(HP.mpf(0), e + added)
    close = abs(exact(view.epsilon) - truth) <= SMALL * (1 + abs(truth))
    return [] if close else [f"view {view} should be {truth}"]
