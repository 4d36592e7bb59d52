# SPDX-License-Identifier: Apache-2.0
"""What sensitivities refuse: profiles, tables, bands, couplings, and shapes that cannot be."""

import math

import attrs
import numpy as np
import pytest
from tests.refusal_tables import keywords, positions, refusals
from tests.refusals import check_refused
from tests.row_moments import rows_of

from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
    SampledDistribution,
)
from pufferslice.sensitivity import DistributionPair, GapTables, gap_tables
from pufferslice.sensitivity.bands import (
    SortedSample,
    band_tables,
    common_bands,
    tail_cut_estimate,
)
from pufferslice.sensitivity.concentration import (
    MOST_SAMPLES,
    band_levels,
    band_ranks,
    clopper_pearson,
    dkw_halfwidth,
    samples_for_tail,
    split,
)
from pufferslice.sensitivity.couplings import Recipe, coupled_differences, coupling_tables
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.periods import PeriodDifference, TableSizes
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, check_profile
from pufferslice.sensitivity.renyi import aggregate, transport_envelope
from pufferslice.sensitivity.whitening import Shape

PAIR = [DistributionPair(0, 1)]
LINE, PLANE, SPACE = (FiniteDistribution.uniform(np.zeros((1, dim))) for dim in (1, 2, 3))
DRAWS = SampledDistribution(outputs=np.arange(100.0).reshape(50, 2))
RANKED = SortedSample.of(DRAWS, np.eye(2))
FAR = tuple(GaussianDistribution(mean=[m], cov=[[1.0]]) for m in (1e150, -1e150))
GAPS = {
    "starts": [0, 2, 3, 5, 7],
    "gaps": [2.0, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25],
    "counts": [1, 3, 5, 2, 2, 1, 4],
    "totals": [4, 5],
    "equal": [False, False],
}
"""Two instances, two slices."""
KINDS = {"gaps": float, "equal": bool}
PIECES = GaussianPairs(
    means=np.zeros((2, 2, 1)),
    covs=np.ones((2, 2, 1, 1)),
    owners=np.array([0, 0]),
    counts=np.array([2**29, 2**29]),
)
HUGE, ONE = 2**63 - 1, np.array([1.0])


def tables(**changes):
    """The check of the tables with some arrays changed."""
    fields = GAPS | changes
    kinds = {name: np.array(fields[name], dtype=KINDS.get(name, np.int64)) for name in fields}
    GapTables(**kinds).check()


def pieces(**changes):
    attrs.evolve(PIECES, **{name: np.array(value) for name, value in changes.items()}).check()


def banded(n_samples):
    return band_tables([RANKED] * 2, PAIR, common_bands([n_samples] * 2, 0.1, "dkw"), 2)


def shape(matrix):
    return Shape(whitening=matrix)


def uniform(dim=2, n_directions=1, seed=0):
    return FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=seed)


def orthogonal(dim=2, n_sets=1, seed=0):
    return FiniteProfile.orthogonal(dim=dim, n_sets=n_sets, seed=seed)


def in_blocks(dim=3, n_directions=1, seed=0, blocks=((0,),)):
    return FiniteProfile.blocks(dim=dim, n_directions=n_directions, seed=seed, blocks=blocks)


def equally_weighted(directions):
    return FiniteProfile(directions=directions, weights=[1.0])


def period(is_mean):
    rows = rows_of(shift=[1.0], spread=[[0.0]], spans=[1.0], counts=[1.0, 1.0])
    sizes = TableSizes(within=0.1, design="stratified", least=10, most=20)
    return PeriodDifference(rows=rows, is_mean=np.array(is_mean), n_rows=10, sizes=sizes)


REFUSED = {
    ArgumentError: [
        ("period", period, [True, False], []),
        # Profiles.
        ("n_directions", keywords(uniform), {"n_directions": 0}, {"n_directions": 2**31}),
        ("n_sets", keywords(orthogonal), {"n_sets": 0}, {"n_sets": 2**31}),
        ("n_directions", keywords(in_blocks), {"n_directions": 0}, {"n_directions": 2**31}),
        ("dim", lambda build: build(dim=0), uniform, orthogonal, in_blocks),
        ("seed", lambda build: build(seed=-1), uniform, orthogonal, in_blocks),
        ("dim * dim", lambda: FiniteProfile.axes(dim=2**31)),
        ("block", lambda blocks: in_blocks(blocks=blocks), [[0], []], [[0, 0]], [[3]]),
        ("block", lambda blocks: in_blocks(blocks=blocks), [[-1]], [3], []),
        ("directions", FiniteProfile.of, [[1.0, 1.0]], [[1.0, 0.0], [0.6, 0.8 + 1e-9]]),
        ("directions", FiniteProfile.of, [1.0, 0.0], np.ones((0, 2))),
        ("directions", equally_weighted, [[1.0, 1.0]], [[1.0, 0.0], [0.6, 0.8 + 1e-9]]),
        ("directions", equally_weighted, [1.0, 0.0], np.ones((0, 2))),
        (
            "weights",
            lambda weights: FiniteProfile(directions=np.eye(2), weights=weights),
            [0.5, 0.6],
            [1.5, -0.5],
            [1.0],
            [0.5, 0.25, 0.25],
        ),
        ("dim", lambda: SampledSphere.draw(dim=1, n_directions=3, seed=1)),
        ("seed", lambda: SampledSphere.draw(dim=2, n_directions=3, seed=-1)),
        ("slice", lambda: SampledSphere(directions=[[1.0]])),
        ("directions", lambda: SampledSphere(directions=[[1.0, 1.0]])),
        ("profile", lambda profile: check_profile(profile, 1), None, (1.0,), np.eye(1)),
        ("dimension 2", lambda: check_profile(FiniteProfile.axes(dim=2), 1)),
        # Gap tables, and pieces of mixtures.
        ("dimension", lambda u: gap_tables([PLANE, PLANE], PAIR, u), np.eye(3), np.eye(1)),
        ("dimension", lambda: gap_tables([PLANE, SPACE], PAIR, np.eye(2))),
        ("gap tables", keywords(tables), {"starts": [1, 2, 3, 5, 7]}, {"starts": [0, 2, 3, 5, 6]}),
        ("gap tables", keywords(tables), {"starts": [0, 3, 2, 5, 7]}, {"starts": [0, 2, 2, 5, 7]}),
        ("gap tables", keywords(tables), {"gaps": [0.5, 2.0, 3.0, 4.0, 0.0, 1.0, 0.25]}),
        ("gap tables", keywords(tables), {"gaps": [2.0, -0.5, 3.0, 4.0, 0.0, 1.0, 0.25]}),
        ("gap tables", keywords(tables), {"gaps": [math.inf, 0.5, 3.0, 4.0, 0.0, 1.0, 0.25]}),
        ("gap tables", keywords(tables), {"gaps": [2.0, math.nan, 3.0, 4.0, 0.0, 1.0, 0.25]}),
        ("gap tables", keywords(tables), {"counts": [1, 2, 5, 2, 2, 1, 4]}),
        ("gap tables", keywords(tables), {"counts": [4, 0, 5, 2, 2, 1, 4]}),
        ("gap tables", keywords(tables), {"counts": [5, -1, 5, 2, 2, 1, 4]}),
        (
            "gap tables",
            keywords(tables),
            {"counts": [HUGE, HUGE, 5, 2, 2, 1, 4], "totals": [-2, 5]},
        ),
        (
            "gap tables",
            keywords(tables),
            {
                "starts": [0, 3],
                "gaps": [3.0, 2.0, 1.0],
                "counts": [HUGE, HUGE, 3],
                "totals": [1],
                "equal": [False],
            },
        ),
        ("gap tables", keywords(tables), {"totals": [4, 6]}, {"equal": [False]}),
        ("gap tables", keywords(tables), {"starts": [0, 2, 3, 7]}, {"counts": [1, 3, 5, 2, 2, 1]}),
        ("gap tables", keywords(tables), {name: [] for name in GAPS} | {"starts": [0]}),
        ("owners", keywords(pieces), {"owners": [1, 1]}, {"owners": [0, 2]}, {"owners": [0]}),
        ("counts", keywords(pieces), {"counts": [1, 0]}, {"counts": [1, 3]}, {"counts": [1]}),
        ("counts", keywords(pieces), {"counts": [2**62, 2**62]}),
        ("scales", lambda: GaussianPairs.of([FAR], np.array([1e-160]))),
        # Bands.
        ("dimension 2", lambda: SortedSample.of(DRAWS, np.array([[1.0]]))),
        ("60 samples", banded, 60),
        ("5 samples", lambda: tail_cut_estimate(np.zeros(5), np.zeros(5), 0.05)),
        ("n_samples", lambda: dkw_halfwidth(0, 0.1)),
        ("failure_probability", lambda failure: dkw_halfwidth(10, failure), 0.0, math.nan),
        ("n_parts", lambda: split(0.1, 0)),
        ("failure_probability", lambda: split(1.0, 3)),
        ("n_trials", positions(clopper_pearson), (6, 5, 0.1), (0, 0, 0.1)),
        ("2^45", lambda: band_levels(MOST_SAMPLES + 1)),
        ("kind", lambda: band_ranks(10, 0.1, "bootstrap")),
        ("failure_probability", lambda: band_ranks(10, 0.0, "dkw")),
        ("delta", lambda: samples_for_tail(1e-14, 0.05, "dkw")),
        # Couplings.
        ("effort", lambda: Recipe(effort="lazy")),
        ("cost", lambda: Recipe(cost="linear")),
        ("rate", keywords(Recipe), {"rate": -1.0}, {"rate": math.nan}, {"cost": "renyi"}),
        ("noise_std", keywords(Recipe), {"cost": "delta", "epsilon": 1.0}, {"cost": "guess"}),
        ("epsilon", lambda: Recipe(cost="delta", epsilon="1", noise_std=1.0)),
        ("dimension", lambda: coupling_tables([PLANE, SPACE], PAIR, Recipe())),
        ("most", lambda: coupled_differences([PLANE, PLANE], PAIR, Recipe(), 0)),
        # Divergences and shapes.
        (
            "noise_std",
            lambda std: transport_envelope(2, ONE, ONE, std),
            0.0,
            -1.0,
            math.nan,
            math.inf,
        ),
        (
            "notion",
            lambda notion: aggregate(notion, 2, ONE, ONE),
            "median",
            "unsliced",
            "",
            "Average",
        ),
        ("square", Shape.of_covariance, [1.0, 2.0], [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0]]),
        ("cov", Shape.of_covariance, [[1.0, np.nan], [np.nan, 1.0]], [[1.0, 0.5], [0.4, 1.0]]),
        ("cov", Shape.of_covariance, [[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]]),
        ("singular", Shape.of_covariance, [[1e30, 0.0], [0.0, 1e-30]]),
        ("triangular", shape, [[1.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]),
        ("square", shape, [1.0]),
    ],
    ValueError: [
        ("costs", lambda notion: aggregate(notion, 2, np.ones(2), ONE), "average", "joint")
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)
