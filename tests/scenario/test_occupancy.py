# SPDX-License-Identifier: Apache-2.0
"""Loads given the state of a home: a known answer, real draws, evidence, and what is refused."""

import math

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr
from scipy.stats import binom, norm

from pufferslice import Guarantee, Scenario, certify_release, queries, release, verify
from pufferslice.audit import audit_release
from pufferslice.certificate.verdict import verdict
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import distribution_pairs

CHAIN = [[0.9, 0.1], [0.2, 0.8]]
GUESS = Guarantee.guess(at_most=0.64)
WEEKS = {"week": [1] * 6 + [2] * 6}
LOADS = pa.table(
    {
        "state": [0, 1] * 40,
        "kwh": [k % 7 / 10 + (k % 2) * (1 + k % 3) for k in range(80)],
    }
)
ALL = queries.summary(total=["kwh"], clip={"kwh": (0, 5)})
BY_WEEK = queries.group_by({"week": [1, 2]}, total=["kwh"], clip={"kwh": (0, 5)})


def occupancy(**options):
    settings = {"positions": [5], "query": BY_WEEK, "periods": WEEKS, "loads": LOADS}
    settings |= {"chain": CHAIN} | options
    return Scenario.from_occupancy(settings.pop("chain"), **settings)


def moments_of(scenario):
    return RowDifference.of(*distribution_pairs(scenario))


def test_the_count_of_a_state():
    """T = 12, t = 5: the noise of the count for a guess of 64 %."""
    scenario = occupancy(
        query=queries.summary(count={"state": 1}),
        periods=None,
        length=12,
        loads={0: ([0.0], [[0.0]]), 1: ([1.0], [[0.0]])},
    )
    (std,) = certify_release(scenario, GUESS).statement.noise.std_by_coordinate
    assert std == pytest.approx(7.94505131220131, rel=1e-6)


def test_moments_by_hand():
    """Two periods of one slot each: the protected one differs, the other with probability 0.7."""
    loads = {0: ([1.0], [[0.5]]), 1: ([3.0], [[0.25]])}
    scenario = occupancy(positions=[0], periods={"week": [1, 2]}, loads=loads)
    (scale,) = set(scenario.query.scales)
    moment = moments_of(scenario).second_moments[0] * scale**2
    expected = np.array([[4 + 0.75, 0.7 * 4], [0.7 * 4, 0.7 * (4 + 0.75)]])
    np.testing.assert_allclose(moment, expected, rtol=1e-6)


@pytest.mark.soundness
class TestDraws:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"positions": [(4, 7)]},
            {"chain": [[0.2, 0.8], [0.7, 0.3]]},
            {"start": [0.95, 0.05], "positions": [11]},
            {"chain": [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]], "states": [0, 1, 2]},
        ],
        ids=["stationary", "interval", "turning", "not stationary", "three states"],
    )
    def test_no_attack_on_real_slots_is_above_the_claim(self, options, seed):
        loads = LOADS
        if "states" in options:
            states = pa.array(np.arange(80) % 3)
            loads = LOADS.set_column(0, "state", states)
        scenario = occupancy(loads=loads, **options)
        certificate = certify_release(scenario, GUESS)
        audit = audit_release(
            scenario, None, certificate, n_outputs=8_000, confidence=0.999, seed=seed
        )
        assert not audit.refuted
        assert max(attack.accuracy.low for attack in audit.inferences) <= 0.64

    def test_states_that_alternate_within_one_total(self, seed):
        """Fewer slots turn than differ, so that the second moment is below the squared number."""
        scenario = occupancy(
            chain=[[0.2, 0.8], [0.7, 0.3]], query=ALL, periods=None, length=12, positions=[5]
        )
        rows = moments_of(scenario)
        assert rows.counts[0, 0, 0] ** 2 > rows.squares[0, 0, 0]
        certificate = certify_release(scenario, GUESS)
        assert certificate.statement.coupling.least_share == 0.0
        assert verify(certificate, scenario=scenario).holds
        audit = audit_release(
            scenario, None, certificate, n_outputs=8_000, confidence=0.999, seed=seed
        )
        assert not audit.refuted

    def test_drawn_sums_have_the_stated_mean(self, seed):
        scenario = occupancy()
        world = scenario.priors[0].distributions["state 1 at 5"]
        drawn, _ = world.draw(40_000, rng=np.random.default_rng(seed))
        error = drawn.std(axis=0) / 200
        assert (np.abs(drawn.mean(axis=0) - world.mean) < 5 * error).all()


class TestStatement:
    def test_what_is_said(self):
        certificate = certify_release(occupancy(name="home 7"), GUESS)
        text = str(certificate)
        assert "the state of 'home 7' at 1 protected time among 12" in text
        assert "meet as early as they can" in text
        assert certificate.statement.not_stated == {"one_person": "person-not-a-row"}

    def test_a_slot_is_no_persons_only_row(self):
        """Also where one total covers all slots, so that one row could be bounded."""
        scenario = occupancy(query=ALL, periods=None, length=12)
        stated = certify_release(scenario, GUESS).statement
        assert stated.one_person is stated.one_person_given_noise is None
        assert stated.not_stated == {"one_person": "person-not-a-row"}
        with pytest.raises(ArgumentError, match="slots of one home"):
            certify_release(scenario, GUESS, person=(1.0, 1e-6))

    def test_a_total_for_each_slot_says_nothing(self):
        """The noise that hides one state covers one slot, so that the verdict says so."""
        slots = list(range(12))
        query = queries.group_by({"slot": slots}, total=["kwh"], clip={"kwh": (0, 5)})
        scenario = occupancy(query=query, periods={"slot": slots})
        judged = verdict(certify_release(scenario, GUESS))
        assert not judged.is_useful

    def test_verified_from_the_chain(self):
        scenario = occupancy(chain={"calm": CHAIN, "busy": [[0.6, 0.4], [0.3, 0.7]]})
        certificate = certify_release(scenario, GUESS)
        assert verify(certificate, scenario=scenario).holds
        evidence = certificate.evidence
        rows = evidence.full.differences
        smaller = attrs.evolve(rows, counts=rows.counts / 4, squares=rows.squares / 4)
        edited = attrs.evolve(evidence, full=attrs.evolve(evidence.full, differences=smaller))
        statement = certificate.statement.model_copy(update={"evidence_digest": edited.digest()})
        assert not verify(attrs.evolve(certificate, statement=statement, evidence=edited)).holds

    def test_a_street_is_released_with_the_noise_of_one_home(self, tmp_path):
        scenario = occupancy()
        certificate = certify_release(scenario, GUESS)
        street = pa.table({"week": [1, 2] * 600, "kwh": [0.5, 1.5] * 600})
        released = release(scenario, street, certificate, ledger=tmp_path / "ledger")
        assert released.names == ("total(kwh | week = 1)", "total(kwh | week = 2)")
        assert math.isclose(released.values[1], 900, abs_tol=10 * released.noise_stds[1])


@pytest.mark.soundness
class TestTransport:
    """Slots may meet by closeness only where all that differ are of the pair's two states."""

    N_ROOMS = 8
    WALK = np.roll(np.eye(N_ROOMS), 1, axis=1)
    """From each room to the next one, quiet or loud throughout."""
    LOADS = pa.table(
        {
            "state": np.repeat(np.arange(2 * N_ROOMS), 2),
            "kwh": [2.5, 2.5] * N_ROOMS + [0.0, 5.0] * N_ROOMS,
        }
    )

    def test_the_change_of_one_pair_is_not_that_of_others(self):
        """Stated 64 %, true 77 %: a quiet home against a loud one, over 64 slots."""
        scenario = occupancy(
            chain=np.kron(np.eye(2), self.WALK),
            start=np.full(2 * self.N_ROOMS, 1 / (2 * self.N_ROOMS)),
            states=list(range(2 * self.N_ROOMS)),
            loads=self.LOADS,
            positions=[0],
            query=ALL,
            periods=None,
            length=64,
        )
        with pytest.raises(ArgumentError, match="coupling"):
            certify_release(scenario, GUESS, coupling="transport")
        # Of one pair alone 8 slots count, each with a change of variance 6.25.
        false = math.sqrt(8 * 6.25 / GUESS.distance_limit)
        (right,) = certify_release(scenario, GUESS).statement.noise.std_by_coordinate
        grid = np.linspace(-200, 520, 72_001)
        quiet, loud = binom.pmf(np.arange(65), 64, 0.5), 5.0 * np.arange(65)
        for std, is_right in ((false, False), (right, True)):
            first = norm.pdf(grid, 160, std)
            second = norm.pdf(grid[:, None], loud, std) @ quiet
            truth = 0.5 + np.abs(first - second).sum() * (grid[1] - grid[0]) / 4
            assert (truth <= 0.64) == is_right
            assert is_right or truth > 0.65

    def test_two_states(self):
        """All slots that differ are of the pair: in both worlds one is quiet, one loud."""
        loads = self.LOADS.filter(np.isin(np.array(self.LOADS["state"]), [0, self.N_ROOMS]))
        scenario = occupancy(
            chain=[[0.9, 0.1], [0.2, 0.8]],
            states=[0, self.N_ROOMS],
            loads=loads,
            query=ALL,
            periods=None,
            length=12,
        )
        stds = [
            certify_release(scenario, GUESS, coupling=coupling).noise_std
            for coupling in ("independent", "transport")
        ]
        assert stds[0] == pytest.approx(stds[1], rel=1e-9)  # one of the two loads is constant

    def test_several_periods(self):
        with pytest.raises(ArgumentError, match="coupling"):
            certify_release(occupancy(), GUESS, coupling="transport")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"loads": None}, ArgumentError, "need length"),
        ({"periods": None, "length": 12}, ScenarioError, "periods="),
        ({"periods": None, "query": ALL, "length": 0}, ArgumentError, "length"),
        ({"periods": None, "query": ALL, "length": 2**70}, ArgumentError, "length"),
        ({"states": [[0], [1]], "loads": {0: ([1.0], [[0.0]])}}, ArgumentError, "a mean and a"),
        ({"seed": 3}, ArgumentError, "counts of states alone"),
        ({"chain": {}}, ArgumentError, "at least one"),
        ({"chain": {"a": CHAIN, "b": np.full((3, 3), 1 / 3)}}, ArgumentError, "same states"),
        ({"states": [0]}, ArgumentError, "2 states of the chain"),
        ({"positions": []}, ArgumentError, "positions"),
        ({"positions": [12]}, ArgumentError, "positions"),
        ({"query": ALL, "periods": None}, ArgumentError, "length"),
        ({"length": 9}, ArgumentError, "number of slots"),
        ({"periods": [1, 2]}, ArgumentError, "map one column"),
        ({"periods": {"week": "12"}}, ArgumentError, "list a value"),
        ({"query": ALL}, ScenarioError, "of one group"),
        ({"periods": {"week": [1] * 12}}, ScenarioError, "one group of 'week'"),
        ({"query": queries.summary(mean=["kwh"], clip={"kwh": (0, 5)})}, ScenarioError, "divides"),
        ({"states": [0, 7]}, ScenarioError, "state = 7"),
        ({"loads": {0: ([1.0], [[0.0]])}}, ArgumentError, "a mean and a covariance"),
        ({"loads": {0: ([9.0], [[0.0]]), 1: ([1.0], [[0.0]])}}, ArgumentError, "clip ranges"),
    ],
)
def test_refused(options, error, words):
    with pytest.raises(error, match=words):
        occupancy(**options)


def test_the_best_guess_of_a_home_whose_state_lasts():
    """Close to the claim where the state decides almost every slot."""
    slow = [[0.9999, 0.0001], [0.0001, 0.9999]]
    scenario = occupancy(
        chain=slow,
        query=queries.summary(count={"state": 1}),
        periods=None,
        length=12,
        loads={0: ([0.0], [[0.0]]), 1: ([1.0], [[0.0]])},
    )
    (std,) = certify_release(scenario, GUESS).statement.noise.std_by_coordinate
    assert ndtr(12 / std / 2) == pytest.approx(0.64, abs=0.01)
