# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106, S107 - a secret is a column here
"""What scenarios refuse: distributions, secrets, priors, worlds and templates that cannot be."""

import math
from functools import partial

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.refusal_tables import keywords, positions, refusals
from tests.refusals import check_refused

from pufferslice import Guarantee, certify_release
from pufferslice.data.frames import frame_of
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError, TableError
from pufferslice.queries import Box, above, columns, group_by, join, summary
from pufferslice.scenario.chains import Chain
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    SampledDistribution,
)
from pufferslice.scenario.pairs import ordered_pairs
from pufferslice.scenario.priors import (
    Bootstrap,
    Prior,
    check_probabilities_of,
    group_rows,
    grouped_prior,
)
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins, ColumnSecret, secret_columns, secret_rule
from pufferslice.scenario.simulator import (
    DeclaredSample,
    OutputSimulator,
    SimulatedSample,
    Simulator,
)

TABLE = pa.table(
    {
        "site": ["a", "a", "b", "b", "c", "c"],
        "sex": ["f", "m", "f", "m", "f", "m"],
        "x": [1.0, 2, 3, 4, 50, 60],
        "y": [0.0, 1, 2, 3, 4, 5],
    }
)
MEAN, BOTH, ROW = summary(mean=["x"]), summary(mean=["x", "y"]), columns(["x"])
CLIPPED_MEAN = summary(mean=["x"], clip={"x": (0, 100)})
ONES = summary(count={"state": 1})
ATOM, ONE = FiniteDistribution.uniform([[0.0]]), FiniteDistribution.uniform([[1.0]])
WEIGHTED = FiniteDistribution.weighted([[1.0], [2.0]], [0.25, 0.75])
LINE, SHIFTED = (GaussianDistribution(mean=[mean], cov=[[1.0]]) for mean in (0.0, 1.0))
PLANE = GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2))
DRAWN = Simulator(draw_table=lambda rng: pa.table({"x": rng.normal(size=4)}))
NUMBERS = OutputSimulator(draw_outputs=lambda rng, n: np.zeros((n, 2)))
SAMPLES = (DeclaredSample, SimulatedSample)
GUESS = Guarantee.guess(at_most=0.64)
UNSLICED, TINY = Guarantee.unsliced(order=4, epsilon=1.0), Guarantee.epsilon_delta(1.0, 1e-5)
VALUES = {"a": 1.0, "b": 1.5, "c": 4.0}
LOADS = {0: ([1.0], [[0.5]]), 1: ([3.0], [[0.25]])}
MANY_STATES = {
    "chain": np.full((5, 5), 0.2),
    "length": 200,
    "query": summary(count=[("state", state) for state in range(1, 5)]),
}


def counted(counts):
    return FiniteDistribution(outputs=[[0.0], [1.0]], counts=counts)


def weighted(weights):
    return FiniteDistribution.weighted([[0.0], [1.0]], weights)


def sampled(outputs):
    return SampledDistribution(outputs=outputs)


def gaussian(mean, cov):
    return GaussianDistribution(mean=mean, cov=cov)


def mixture(components, counts):
    return GaussianMixture(components=components, counts=counts)


def bins(quantiles, values):
    return secret_rule(Bins(column="x", quantiles=quantiles), [frame_of(pa.table({"x": values}))])


def labels_of(**held):
    return ColumnSecret(columns=tuple(held)).labels(frame_of(pa.table(held)))


def groups(table=TABLE, secret="site", query=MEAN, **options):
    return Scenario.from_groups(table, secret=secret, query=query, **options)


def joined(**changed):
    return groups({"one": TABLE}).with_prior(groups({"two": TABLE}, **changed))


def halves(table, name="now"):
    return groups({name: table}, Bins(column="x", quantiles=2))


def records(limits, secrets=TABLE["site"], values=TABLE["x"]):
    table, query = pa.table({"site": secrets, "x": values}), columns(["x"], range=limits)
    return Scenario.from_records(table, secret="site", query=query)


def worlds(first, second, query=MEAN, **options):
    return Scenario.from_worlds({"a": first, "b": second}, query=query, **options)


def only_clipping_makes_equal(kind):
    query = summary(mean=["x"], range={"x": (0, 10)})
    return worlds(kind([[5.0], [20.0]]), kind([[5.0], [30.0]]), query)


def ordered(given):
    values, rule = given
    return ordered_pairs(values, **rule)


def prior(first=ATOM, second=ATOM, **changed):
    fields = {"name": "p", "source": "held_out", "origin": "declared"}
    fields |= {"probabilities": {"a": 0.25, "b": 0.75}, "distributions": {"a": first, "b": second}}
    return Prior(**fields | changed)


def grouped(query, distribution):
    labels, bootstrap = np.array(TABLE["site"].to_pylist()), Bootstrap(n_replicates=2, seed=0)
    about = ("p", "held_out", "declared", query, frame_of(TABLE), labels)
    return grouped_prior(*about, distribution, bootstrap)


def prevalence(table=TABLE, **options):
    settings = {"column": "sex", "value": "f", "within": 0.1, "query": CLIPPED_MEAN}
    return Scenario.from_prevalence(table, **(settings | options))


def drawn(table=TABLE, **options):
    settings = {"shares": [0.3, 0.4], "within": None, "prior": "draws", "n_draws": 20, "seed": 0}
    settings |= {"query": summary(median=["x"]), "n_rows": 100}
    return prevalence(table, **(settings | options))


def attribute(**options):
    cov = ((4.0, 2.0, 0.0), (2.0, 3.0, 0.5), (0.0, 0.5, 1.0))
    settings = {"query": BOTH, "values": [0.0, 2.0], "mean": (0.0, 1.0, 2.0), "cov": cov}
    return Scenario.from_attribute(**(settings | options))


def from_history(**options):
    settings = {"query": columns(["x"]), "history": TABLE, "name": "x", "bins": [50.0]}
    return Scenario.from_attribute(**(settings | options))


def occupancy(**options):
    settings = {"chain": [[0.9, 0.1], [0.2, 0.8]], "length": 6, "positions": [2]}
    return Scenario.from_occupancy(**(settings | {"query": ONES} | options))


def loaded(loads=LOADS):
    query = summary(total=["kwh"], clip={"kwh": (0, 5)})
    return occupancy(query=query, loads=loads)


def world():
    return next(iter(loaded().priors[0].distributions.values()))


def uneven_weeks():
    weeks = [
        group_by({"week": [week]}, total=["kwh"], clip={"kwh": (0, most)})
        for week, most in ((1, 5), (2, 4))
    ]
    settings = {"query": join(*weeks), "loads": LOADS, "length": None}
    return occupancy(**settings, periods={"week": [1, 1, 1, 2, 2, 2]})


def impossible_paths():
    """Paths through a state that a chain never stays in, which no template would build."""
    loads = pa.table({"state": [0, 0, 1, 1], "kwh": [0.5, 1.0, 1.5, 2.0]})
    held = loaded(loads).priors[0].distributions.values()
    chain = Chain.of([[0.5, 0.5], [1.0, 0.0]])
    for each in held:
        attrs.evolve(each, chain=chain, known=range(2, 4)).draw(1, rng=np.random.default_rng(0))


REFUSED = {
    ArgumentError: [
        # Distributions.
        ("outputs", lambda shape: FiniteDistribution(outputs=np.zeros(shape), counts=[1]), (0, 2)),
        ("outputs", lambda shape: FiniteDistribution(outputs=np.zeros(shape), counts=[1]), (2, 0)),
        (
            "outputs",
            lambda shape: FiniteDistribution(outputs=np.zeros(shape), counts=[1]),
            (2, 2, 2),
        ),
        ("counts", counted, [0, 1], [-1, 2], [1], [1, 1, 1], [[1, 1]], [2**31] * 2, [2**62] * 2),
        ("integers", counted, [1.5, 1.0], [math.nan, 1.0]),
        ("weights", weighted, [0.5, 0.6], [-0.5, 1.5], [0.5], [math.nan, 1], [0.2, 0.3, 0.5]),
        ("weights", weighted, [0.5, 0.4999], [0, 1], [1e-12, 1 - 1e-12]),
        ("shapes", positions(gaussian), (np.zeros(2), np.eye(3)), (np.zeros((2, 1)), np.eye(2))),
        ("shapes", positions(gaussian), ([], [])),
        ("mean", positions(gaussian), ([math.nan], [[1.0]]), ([1e151], [[1.0]])),
        ("cov", positions(gaussian), ([0.0], [[1e301]]), ([0.0], [[math.inf]])),
        ("symmetric", positions(gaussian), ([0.0, 0.0], [[1.0, 0.5], [0.4, 1.0]])),
        ("semi-definite", positions(gaussian), ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]])),
        ("semi-definite", positions(gaussian), ([0.0], [[-1.0]])),
        ("outputs", sampled, [], [[]], [1.0], [[np.nan]]),
        ("components", positions(mixture), ([], []), (["N(0, 1)"], [2**30])),
        ("components", positions(mixture), ([LINE, PLANE], [2**29] * 2)),
        ("counts", positions(mixture), ([LINE], [1]), ([LINE], [0]), ([LINE], [2**29] * 2)),
        ("draws", lambda: GaussianDistribution.from_draws([[1.0]])),
        ("on", lambda: LINE.conditioned(on=[0], at=[1.0])),
        ("on", lambda: PLANE.conditioned(on=[], at=[])),
        ("density", lambda: gaussian([0, 0], np.zeros((2, 2))).conditioned(on=[0], at=[1])),
        # Secrets and pairs.
        ("one column, several", secret_columns, [], "", ["a", ""], [1], 5),
        ("'a' repeats", secret_columns, ["a", "b", "a"]),
        ("column", lambda: Bins(column=5, quantiles=2)),
        ("quantiles", lambda n: Bins(column="x", quantiles=n), 1, 0, -3, 2.0, True),
        ("edges", lambda options: Bins(column="x", **options), {}, {"quantiles": 2, "edges": [1]}),
        ("edges", lambda edges: Bins(column="x", edges=edges), [], "12", 3.0, [np.nan]),
        ("edges", lambda edges: Bins(column="x", edges=edges), [2, 1], [1, 1], [[1, 2]]),
        ("pairs", lambda pairs: groups(pairs=pairs), "some", [], 5),
        ("a pair must", lambda pair: groups(pairs=[pair]), ("a", "a"), "ab", ("a", "b", "c"), 1),
        # Priors and worlds.
        ("table", lambda: groups({})),
        ("'table'", lambda: groups().with_prior(groups())),
        ("source", lambda: prior(source="guess")),
        ("worlds", lambda: Scenario.from_worlds({1: TABLE, 2: TABLE}, query=MEAN)),
        ("sum to 1", lambda: worlds(LINE, LINE, probabilities={"a": 0.2, "b": 0.7})),
        ("'b'", partial(check_probabilities_of, ["a", "b"]), {"a": 1.0}),
        ("sum to 1", partial(check_probabilities_of, ["a", "b"]), {"a": 0.5, "b": 0.6}),
        ("['a']", partial(check_probabilities_of, ["a", "b"]), {"a": -0.5, "b": 1.5}),
        ("['c']", partial(check_probabilities_of, ["a", "b"]), {"a": 1.0, "b": 1.0, "c": -1.0}),
        ("n_replicates", lambda n: Bootstrap(n_replicates=n, seed=0), 1, 2**31, 2.5),
        ("seed", lambda: Bootstrap(n_replicates=2, seed=-1)),
        ("n_draws", lambda kind: kind(simulator=DRAWN, n_draws=0, seed=1), *SAMPLES),
        ("seed", lambda kind: kind(simulator=DRAWN, n_draws=1, seed=-1), *SAMPLES),
        ("seed", lambda: DRAWN.declared(n_draws=1, seed=None)),
        # Templates.
        ("within", keywords(prevalence), {"within": None}, {"within": 1.5}),
        ("shares", keywords(prevalence), {"shares": [0.1, 0.2]}, {"prior": "draws"}),
        ("n_rows", lambda: prevalence(None)),
        ("guard", lambda: certify_release(prevalence(), GUESS, guard=1.0)),
        ("shape", lambda: certify_release(prevalence(), GUESS, shape="isotropic")),
        ("clip", lambda clip: summary(mean=["x"], clip=clip), {"x": (5, 5)}, {"pay": (0, 5)}),
        ("clip", lambda clip: summary(mean=["x"], clip=clip), [0, 1], {"x": 5}, {"x": ("a", 5)}),
        ("shares", keywords(drawn), {"shares": [0.3]}, {"shares": [0.3, 1.5]}),
        ("shares", keywords(drawn), {"shares": [0.3, 0.3]}),
        ("n_rows", keywords(drawn), {"n_rows": 2**70}, {"n_rows": 1}),
        ("n_rows", keywords(prevalence), {"n_rows": 2**41}, {"n_rows": 1}),
        ("n_draws", keywords(drawn), {"n_draws": 2**31}),
        ("shares", keywords(drawn), {"shares": [0.3, 0.3001]}),
        ("seed", keywords(drawn), {"seed": None}),
        ("close", keywords(drawn), {"within": 0.01}),
        ("design", keywords(drawn), {"design": "systematic"}),
        ("prior", keywords(drawn), {"prior": "exact"}),
        ("values", keywords(attribute), {"values": [1.0]}, {"values": [1.0, 1.0]}),
        ("values", keywords(attribute), {"values": [np.nan, 1.0]}),
        ("mean", keywords(attribute), {"mean": [0.0, 1.0]}, {"mean": None, "cov": None}),
        ("mean", keywords(attribute), {"mean": [0.0, 1.0], "cov": np.eye(2)}),
        ("cov", keywords(attribute), {"cov": None}, {"values": None}),
        ("history with bins", keywords(attribute), {"history": TABLE}, {"bins": [1.0]}),
        ("bins", keywords(from_history), {"bins": None}, {"history": None}),
        ("edges", keywords(from_history), {"bins": [2.0, 1.0]}),
        ("within", keywords(from_history), {"within": 0.0}),
        ("close", keywords(attribute), {"within": 0.1}),
        ("transition", keywords(occupancy), {"chain": [[0.9, 0.2], [0.2, 0.8]]}),
        ("transition", keywords(occupancy), {"chain": {}}),
        ("transition", keywords(occupancy), {"chain": [[0.9, 0.1], [0.2, 0.800005]]}),
        ("transition", keywords(occupancy), {"chain": [[1.0]]}),
        ("start", keywords(occupancy), {"chain": [[1.0, 0.0], [0.0, 1.0]]}),
        ("start", keywords(occupancy), {"start": [0.5, 0.6]}),
        ("positions", keywords(occupancy), {"positions": [6]}, {"positions": [2.5]}),
        ("positions", keywords(occupancy), {"positions": [(3, 2)]}),
        ("positions", keywords(occupancy), {"positions": [(1, 2, 3)]}),
        (
            "windows",
            keywords(occupancy),
            *({"windows": [window]} for window in [(0, 7), (3, 3), 4]),
        ),
        ("query", keywords(occupancy), {"windows": [(0, 3), (3, 6)]}),
        ("n_draws", keywords(occupancy), {"n_draws": 10}, {"n_draws": 1, "seed": 1}, {"seed": 1}),
        (
            "n_draws",
            keywords(occupancy),
            {"n_draws": 2**31, "seed": 1},
            {"n_draws": 2**70, "seed": 1},
        ),
        ("counted", keywords(occupancy), {"counted": [-1]}, {"counted": [7]}),
        ("length", keywords(occupancy), {"length": 1}, {"length": 2**70}),
        ("query", keywords(occupancy), {"query": summary(count=[("state", 1), ("state", 0)])}),
        ("query", keywords(occupancy), {"query": ONES.with_missing("drop-rows")}),
        ("difference, ratio", ordered, (VALUES, {}), (VALUES, {"ratio": 2, "difference": 1})),
        ("ratio", ordered, (VALUES, {"ratio": 0.5}), ({"a": -1.0, "b": 1.0}, {"ratio": 2})),
        ("close", ordered, (VALUES, {"ratio": 1.01})),
        ("difference", ordered, (VALUES, {"difference": 0.0})),
        ("nearest", ordered, (VALUES, {"nearest": 0})),
        ("numbers", ordered, ({"a": 1.0}, {"nearest": 1})),
        ("numbers", ordered, ({"a": 1, "b": math.nan}, {"nearest": 1})),
    ],
    ScenarioError: [
        ("two secrets could become one", lambda: labels_of(a=["x & y", "x"], b=["z", "y & z"])),
        ("values are tied", lambda x: bins(3, x), [1] * 4, [0] * 6 + [9], [0] + [9] * 6),
        ("rows", lambda quantiles: bins(quantiles, [1, 2, 3, 4]), 5, 2**31, 2**70),
        ("found 'a'", lambda: groups(TABLE.slice(0, 2))),
        ("found none", lambda: Scenario.from_worlds({}, query=MEAN)),
        ("2 of the 3", lambda: group_rows(np.array(["d", "a", "c", "a"]))),
        ("'groups'", lambda: groups().with_sampled_priors()),
        ("'z'", lambda: groups(pairs=[("a", "z")])),
        (
            "prior 'survey' gives 'c' probability 0",
            lambda: groups({"census": TABLE, "survey": TABLE.slice(0, 4)}),
        ),
        ("secrets", keywords(joined), {"secret": "sex"}, {"query": MEAN.with_scales([2.0])}),
        ("pairs", keywords(joined), {"pairs": [("a", "b")]}),
        ("secrets", lambda: halves(TABLE).with_prior(halves(TABLE.slice(1), "later"))),
        ("Gaussian", lambda: worlds(LINE, SHIFTED).with_prior(worlds(ATOM, ONE))),
        # Ranges.
        ("range", lambda box: groups(query=summary(mean=["x"], range=box)), Box([0], [0.5])),
        ("range", lambda box: groups(query=summary(mean=["x"], range=box)), Box([90], [100])),
        ("range", records, Box([0], [0.5]), Box([-5], [0])),
        ("'mean(y)'", lambda: groups(query=BOTH.with_range(Box([0, 2000], [100, 3000])))),
        ("range clips", lambda: records({"x": (0, 10)}, [*"aabb"], [5.0, 20, 5, 30])),
        ("range clips", only_clipping_makes_equal, FiniteDistribution.uniform, sampled),
        # Priors and worlds.
        ("distributions", lambda: prior(distributions={})),
        ("one kind", lambda: prior(ATOM, LINE)),
        ("one dimension", lambda: prior(ATOM, FiniteDistribution.uniform([[0.0, 0.0]]))),
        ("declared", lambda: prior(LINE, LINE)),
        ("weighted atoms", lambda: prior(WEIGHTED, WEIGHTED).sampled()),
        ("empirical", lambda: prior().sampled().sampled()),
        ("summary(...)", lambda distribution: grouped(ROW, distribution), "groups", "bootstrap"),
        ("columns(...)", lambda: grouped(MEAN, "records")),
        ("summary(...)", lambda: worlds(TABLE, TABLE, ROW)),
        ("table", lambda: worlds(TABLE, [])),
        ("1 coordinates, got 2", lambda: worlds(PLANE, PLANE)),
        ("range", lambda: worlds(LINE, LINE, MEAN.with_range(Box([0.0], [1.0])))),
        ("scales", lambda: worlds(LINE, LINE, MEAN.with_scales([1e-200]))),
        ("simulator.sampled", lambda: worlds(DRAWN, NUMBERS)),
        ("(3, 1), got (3, 2)", lambda: worlds(*[NUMBERS.sampled(n_draws=3, seed=0)] * 2)),
        # Templates.
        ("gaussian", keywords(prevalence), {"prior": "gaussian"}),
        ("clip", keywords(prevalence), {"query": MEAN}),
        ("sum over rows", keywords(prevalence), {"query": summary(median=["x"])}),
        ("scales", keywords(prevalence), {"query": CLIPPED_MEAN.with_scales([10])}),
        ("dropped", keywords(prevalence), {"query": CLIPPED_MEAN.with_missing("drop-rows")}),
        ("2 rows", keywords(prevalence), {"value": "nobody"}),
        ("2 rows", lambda: drawn(TABLE.slice(0, 3))),
        ("number of rows", lambda: Scenario.from_volume(TABLE, query=CLIPPED_MEAN, up_to=100)),
        ("no case in", keywords(from_history), {"bins": [-1e9, 50.0]}),
        ("query of a row", keywords(from_history), {"query": MEAN}),
        ("count or a rate", keywords(occupancy), {"query": summary(total=["wh"])}, {"query": MEAN}),
        ("count or a rate", keywords(occupancy), {"query": summary(count={"wh": above(3)})}),
        ("cells", keywords(occupancy), MANY_STATES),
        ("every period", uneven_weeks),
        ("cannot occur", impossible_paths),
        ("how many rows", lambda: loaded().differing()),
        ("all alike", lambda: world().kinds[0].mean),
    ],
    CalibrationError: [
        ("guess", lambda claim: certify_release(loaded(), claim), UNSLICED, TINY),
    ],
    TableError: [
        ("missing", lambda: worlds(TABLE, pa.table({"x": [40.0, None, 60.0]}))),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)
