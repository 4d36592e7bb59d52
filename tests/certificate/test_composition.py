# SPDX-License-Identifier: Apache-2.0
"""Releases of data that the secret determines add up; others do not, and say what to do."""

import math
import subprocess
import sys

import attrs
import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm
from tests.certificate.conftest import changed, stating, worlds

from pufferslice import FiniteDistribution, Guarantee, Scenario, certify_release, release
from pufferslice.certificate import Certificate, ComposedReleases, compose, verify
from pufferslice.certificate.composition import added_up
from pufferslice.errors import (
    AlreadyReleasedError,
    ArgumentError,
    CalibrationError,
    CertificateError,
    PuffersliceError,
)
from pufferslice.queries import summary
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import grant_of
from pufferslice.sensitivity.profiles import FiniteProfile

TOTAL = 1.0


def points(name="a", values=(0.0, 3.0, 5.0), **declared):
    """One statistic that the secret determines."""
    sides = zip("xyz", values, strict=False)
    worlds = {secret: FiniteDistribution.uniform([[value]]) for secret, value in sides}
    return Scenario.from_worlds(worlds, query=summary(mean=[name]), **declared)


def part(epsilon, name="a", order=4, total=TOTAL, **declared):
    target = Guarantee.unsliced(order=order, epsilon=epsilon)
    return certify_release(points(name, **declared), target, total=total)


@pytest.fixture(scope="module")
def both():
    return part(0.25), part(0.75, "b")


class TestSum:
    def test_of_two_releases(self, both):
        composed = compose(both)
        assert isinstance(composed, ComposedReleases)
        assert composed.certificates == tuple(certificate.digest for certificate in both)
        costs = [certificate.spent for certificate in both]
        assert math.fsum(costs) <= composed.epsilon <= composed.total == TOTAL
        assert composed.epsilon == pytest.approx(1.0, rel=1e-9)
        assert composed.order == 4
        one = both[0].statement.noise.implementation_delta
        assert composed.implementation_delta == pytest.approx(2 * one)
        assert "2 releases" in str(composed)

    @pytest.mark.soundness
    @pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
    def test_delta_and_guesses_against_one_gaussian_of_both(self, both, epsilon):
        """Two outputs, given the secret independent: one Gaussian with both shifts."""
        composed = compose(both)
        shift = math.hypot(*(5.0 / certificate.noise_std for certificate in both))
        truth = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(
            -shift / 2 - epsilon / shift
        )
        assert truth <= composed.delta(epsilon) <= truth * (1 + 1e-6) + 1e-12
        assert composed.epsilon_at(composed.delta(epsilon)) == pytest.approx(epsilon, abs=1e-6)
        assert norm.cdf(shift / 2) <= composed.guess <= norm.cdf(shift / 2) * (1 + 1e-6)

    def test_the_total_is_claimed_whatever_was_spent(self, both):
        """Later choices may depend on earlier outputs; only the total was fixed beforehand."""
        alone = compose(both[:1])
        assert alone.epsilon == both[0].spent < alone.total == TOTAL
        assert alone.guess == pytest.approx(compose(both).guess)
        assert alone.delta(0.5) == pytest.approx(compose(both).delta(0.5))
        assert alone.guess > both[0].guess

    def test_rounding_goes_up(self):
        assert added_up([0.3]) == 0.3
        assert added_up([0.0, 0.0]) == 0.0
        for costs in np.random.default_rng(0).uniform(size=(50, 3)):
            exact = sum(int(cost * 2**60) for cost in costs)
            assert int(added_up(costs) * 2**60) > exact

    def test_delta_stays_a_probability(self, both):
        composed = attrs.evolve(compose(both), total=1e6, implementation_delta=1e-3)
        assert composed.delta(0.0) == composed.delta(1e5) == composed.guess == 1.0

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
    def test_no_epsilon_at_what_is_not_a_delta(self, both, delta):
        with pytest.raises(ArgumentError, match="delta"):
            compose(both).epsilon_at(delta)


@pytest.mark.soundness
class TestRefusals:
    @pytest.mark.parametrize(
        "other",
        [
            {"order": 8},
            {"total": 2.0},
            {"values": (0.0, 3.0)},
            {"pairs": [("x", "y")]},
            {"source": "held_out"},
        ],
        ids=str,
    )
    def test_what_differs_does_not_add_up(self, both, other):
        with pytest.raises(CertificateError, match=r"these differ\. Calibrate the concatenated"):
            compose([both[0], part(0.25, "b", **other)])

    def test_another_column_of_secrets(self):
        table = pa.table({"g": [*"xxyy"], "h": [*"xyxy"], "a": [0.0, 1.0, 3.0, 9.0]})
        target, query = Guarantee.unsliced(order=4, epsilon=0.5), summary(mean=["a"])
        made = [
            certify_release(
                Scenario.from_groups(table, secret=column, query=query), target, total=TOTAL
            )
            for column in ("g", "h")
        ]
        with pytest.raises(CertificateError, match="these differ"):
            compose(made)

    def test_more_than_the_total(self, both):
        with pytest.raises(CertificateError, match=r"cost 1\.50?0*1?, more than their total 1\.0"):
            compose([*both, part(0.5, "c")])

    def test_one_certificate_twice(self, both):
        with pytest.raises(ArgumentError, match="each once"):
            compose([both[0], both[0]])

    def test_none(self):
        with pytest.raises(ArgumentError, match="at least one certificate"):
            compose([])

    def test_without_a_total(self, both):
        for given in ([part(0.5, total=None)], [both[0], part(0.5, "b", total=None)]):
            with pytest.raises(CertificateError, match="Calibrate the concatenated query once"):
                compose(given)

    def test_data_that_stay_random(self):
        scenario = worlds(x=[[0.0], [1.0]], y=[[0.0], [2.0]])
        with pytest.raises(CalibrationError, match="one concatenated query"):
            certify_release(scenario, Guarantee.unsliced(order=4, epsilon=0.5), total=TOTAL)

    @pytest.mark.parametrize(
        "target",
        [
            Guarantee.joint(order=4, epsilon=0.5, profile=FiniteProfile.axes(dim=1)),
            Guarantee.epsilon_delta(0.5, 1e-5),
            Guarantee.guess(at_most=0.6),
        ],
        ids=str,
    )
    def test_claims_that_do_not_add(self, target):
        with pytest.raises(CalibrationError, match="unsliced Rényi claims"):
            certify_release(points(), target, total=TOTAL)

    def test_a_total_below_the_first_release(self):
        with pytest.raises(CalibrationError, match=r"total 0\.2 must be at least"):
            part(0.25, total=0.2)

    @pytest.mark.parametrize("total", [0.0, -1.0, math.nan, math.inf])
    def test_totals_that_are_none(self, total):
        with pytest.raises(ArgumentError, match="total"):
            part(0.25, total=total)


def released(certificate, name, path):
    rows = pa.table({name: [3.0]})
    return release(points(name), rows, certificate, ledger=path)


class TestLedger:
    def test_it_admits_what_is_within_the_total(self, both, tmp_path):
        path = tmp_path / "ledger"
        for certificate, name in zip(both, "ab", strict=True):
            assert np.isfinite(released(certificate, name, path).values).all()
        more = part(1e-6, "c")
        with pytest.raises(AlreadyReleasedError, match="total of 1"):
            released(more, "c", path)
        assert Ledger(path).releases() == [certificate.digest for certificate in both]

    def test_a_larger_total_later_changes_nothing(self, both, tmp_path):
        path = tmp_path / "ledger"
        released(both[0], "a", path)
        with pytest.raises(AlreadyReleasedError, match="never raised"):
            released(part(0.25, "b", total=2.0), "b", path)

    def test_others_do_not_add_up(self, both, tmp_path):
        path = tmp_path / "ledger"
        released(both[0], "a", path)
        for other in (part(0.25, "b", order=8), part(0.25, "b", total=None)):
            with pytest.raises(AlreadyReleasedError, match="same secret"):
                released(other, "b", path)

    def test_a_release_that_was_only_intended_counts(self, both, tmp_path):
        book = Ledger(tmp_path / "ledger")
        book.intend(grant_of(points(), both[1]))
        released(both[0], "a", book.path)
        with pytest.raises(AlreadyReleasedError):
            released(part(0.01, "c"), "c", book.path)

    def test_processes_at_once(self, tmp_path):
        """Of three that would take 0.4 each, exactly two fit into 1."""
        path = tmp_path / "ledger"
        script = (
            "import sys; from pufferslice.releases.ledger import Ledger\n"
            "from pufferslice.releases.states import Grant, Shared\n"
            "shared = Shared(name='order', cost=0.4, total=1.0)\n"
            "grant = Grant(certificate=sys.argv[2] * 64, keys=('s',), shared=shared)\n"
            "Ledger(sys.argv[1]).intend(grant)"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(path), str(k)], stderr=subprocess.PIPE, text=True
            )
            for k in range(3)
        ]
        errors = [process.communicate()[1] for process in processes]
        refused = [error for error in errors if "would cost 1.2" in error]
        assert [process.returncode for process in processes].count(0) == 2
        assert len(refused) == 1
        assert len(Ledger(path).releases()) == 2

    def test_what_is_left_is_listed(self, both, tmp_path):
        released(both[0], "a", tmp_path / "ledger")
        (row,) = Ledger(tmp_path / "ledger").table_rows()
        assert row["left"] == f"{TOTAL - both[0].spent:.3g} of {TOTAL:g}"


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total": 0.1}, "total"),
        ({"total": None}, "limits"),
        ({"spent": 0.1}, "spent"),
    ],
    ids=str,
)
def test_an_edited_total_is_refuted(both, change, words):
    forged = changed(both[0], lambda s: s.update(change))
    assert any(words in problem for problem in verify(forged).problems)


def test_a_total_of_another_claim_is_no_statement():
    certificate = certify_release(points(), Guarantee.guess(at_most=0.6))
    with pytest.raises(PuffersliceError, match="total belongs to unsliced"):
        Certificate.from_json(stating(certificate, ("total",), 1.0).to_json())
