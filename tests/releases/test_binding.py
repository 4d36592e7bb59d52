# SPDX-License-Identifier: Apache-2.0
"""Released numbers belong to their certificate: what is edited does not verify."""

import json

import attrs
import pytest
from tests.certificate.test_budget import EXTRA, TABLE, YEARBOOK
from tests.releases.test_budget import BUDGET, JANUARY, MONTHLY, of_month, of_year
from tests.releases.test_release import GROUPS, certified, release_a

from pufferslice import Ledger, Release
from pufferslice._core.files import canonical_json, digest
from pufferslice.certificate.signing import new_key_pair
from pufferslice.errors import ReleaseError
from pufferslice.releases import release, sign_release, verify_release

SCENARIOS = {"yearbook": YEARBOOK, "monthly": MONTHLY, "later": EXTRA}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "office.ledger")


def again(released, *place, seal=True, **changes):
    """The release as a forger writes it, with the digest of what it now says."""
    document = json.loads(canonical_json(released.to_json()))
    inner = document
    for key in place:
        inner = inner[key]
    inner.update(changes)
    if seal:
        inside = {k: v for k, v in document.items() if k not in ("digest", "signature")}
        document["digest"] = digest(canonical_json(inside))
    return Release.from_json(document)


def problems(released, *earlier, scenario=SCENARIOS, certificate=BUDGET):
    return verify_release(certificate, released, scenario=scenario, earlier=earlier).problems


OPTIONS = {
    "everything": {},
    "share": {"spend": 0.3},
    "some": {"only": ["mean(age)", "rate(site = a)"], "spend": 0.4},
    "noise": {"noise": {"mean(age)": 3.0, "mean(hours)": 2.0}},
    "combinations": {"only": {"both": {"mean(age)": 1.0, "mean(hours)": -2.0}}, "spend": 0.5},
}


@pytest.mark.soundness
class TestParts:
    """Releases under a budget, recomputed from what was measured."""

    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_what_was_released_verifies_and_what_was_edited_does_not(self, ledger, options):
        released = of_year(ledger, **options)
        assert problems(again(released)) == ()
        value = released.values[0] + 1e-3 * released.noise_stds[0]
        assert "values" in problems(again(released, "values", 0, value=value))[0]
        grid = [str(number + 2**40) for number in released.grid_values]
        assert "values" in problems(again(released, "measured", grid_values=grid))[0]
        assert "digest" in problems(again(released, "values", 0, seal=False, value=value))[0]

    def test_noise_is_that_of_the_measurement(self, ledger):
        document = of_year(ledger, spend=0.3).to_json()
        del document["covariance"], document["digest"]
        document["digest"] = digest(canonical_json(document))
        std = document["values"][0]["noise_std"]
        assert "values" in problems(Release.from_json(document))[0]  # 100 statistics have one
        forged = again(Release.from_json(document), "values", 0, noise_std=0.99 * std)
        assert "values" in problems(forged)[0]

    def test_a_release_of_the_rest_needs_those_before(self, ledger):
        first = of_year(ledger, only=["mean(age)"], spend=0.4)
        second = of_year(ledger, spend=0.25)
        rest = of_year(ledger)
        assert problems(rest, first, second) == problems(rest, second, first) == ()
        assert "give those as well" in problems(rest)[0]
        assert "give those as well" in problems(rest, first)[0]
        value = rest.values[1] + rest.noise_stds[1]
        assert "values" in problems(again(rest, "values", 1, value=value), first, second)[0]
        other = of_month(ledger)
        assert "give those as well" in problems(rest, first, other)[0]

    @pytest.mark.parametrize(
        ("place", "changes", "word"),
        [
            ((), {"guarantee": "nothing"}, "guarantee"),
            ((), {"secure": False}, "secure"),
            ((), {"certificate": "ab" * 32}, "another certificate"),
            (("ledger",), {"part": "later"}, "directions"),
            (("ledger",), {"part": "elsewhere"}, "part"),
            (("ledger",), {"period": 2}, "period"),
            (("ledger",), {"charge": "1/100"}, "spend more"),
            (("measured",), {"of_periods": True}, "of_periods"),
            (("unsliced",), {"guess": 0.55}, "unsliced"),
            ((), {"n_rows": 1999}, "n_rows"),
        ],
    )
    def test_what_a_release_states_is_that_of_its_budget(self, ledger, place, changes, word):
        released = of_year(ledger, spend=0.3)
        assert word in " ".join(problems(again(released, *place, **changes)))

    def test_periods(self, ledger):
        released = of_month(ledger, JANUARY, period=3)
        assert problems(released) == ()
        assert "n_rows" in problems(again(released, n_rows=200))[0]
        assert "period" in problems(again(released, "ledger", period=13))[0]

    def test_ends_are_those_of_the_scenario(self, ledger):
        released = of_year(ledger, only=["rate(site = a)"], spend=0.001, into_range=True)
        assert problems(again(released)) == ()
        assert "values" in problems(again(released, "values", 0, value=0.5))[0]
        forged = again(released, "values", 0, moved_into=[-1.0, 1.0])
        assert "moved_into" in " ".join(problems(forged))
        assert "moved_into" in " ".join(verify_release(BUDGET, released, scenario=None).unchecked)

    def test_a_release_is_signed_with_those_before(self, ledger):
        private, public = new_key_pair()
        first = of_year(ledger, only=["mean(age)"], spend=0.4)
        rest = of_year(ledger)
        with pytest.raises(ReleaseError, match="not signed"):
            sign_release(rest, BUDGET, private)
        signed = sign_release(rest, BUDGET, private, earlier=[first])
        held = verify_release(BUDGET, signed, earlier=[first], public_key=public)
        assert (held.holds, held.signed) == (True, True)


@pytest.mark.soundness
class TestOne:
    """The release of a certificate of one."""

    def test_grid_value_and_value_belong_together(self, tmp_path):
        certificate = certified(GROUPS)
        released = release_a(certificate, ledger=tmp_path / "l")
        held = verify_release(certificate, released, scenario=GROUPS)
        assert held.problems == ()
        assert "grid_value" in held.unchecked[0]
        for changes in (
            {"value": released.values[0] + 1.0},
            {"grid_value": str(released.grid_values[0] + 2**44)},
        ):
            forged = again(released, "values", 0, **changes)
            assert "values" in problems(forged, scenario=None, certificate=certificate)[0]
        assert (
            "digest"
            in problems(
                again(released, seal=False, guarantee="x"), scenario=None, certificate=certificate
            )[0]
        )

    def test_another_number_of_statistics(self, tmp_path):
        certificate = certified(GROUPS)
        released = release_a(certificate, ledger=tmp_path / "l")
        fewer = attrs.evolve(
            released,
            names=released.names[:1],
            values=released.values[:1],
            noise_stds=released.noise_stds[:1],
            grid_values=released.grid_values[:1],
            noise_covariance=None,
        )
        assert "names" in problems(fewer, scenario=None, certificate=certificate)[0]

    def test_a_reserve_is_bound_as_well(self, ledger):
        released = release(EXTRA, TABLE, BUDGET, part="later", ledger=ledger)
        assert problems(released) == ()
