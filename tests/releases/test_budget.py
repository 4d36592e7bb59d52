# SPDX-License-Identifier: Apache-2.0
"""Releases inside a budget: what is spent, what is left, what is published, and what is refused."""

import json
import math
from fractions import Fraction
from importlib import import_module
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from tests.certificate.test_budget import (
    EARLIER,
    EXTRA,
    GUESS,
    LATER,
    MONTHLY,
    PARTS,
    SHARES,
    TABLE,
    YEAR,
    YEARBOOK,
    part_of,
    prevalence,
    survey,
    volume,
)
from tests.refusal_tables import refusals
from tests.refusals import check_refused

from pufferslice import (
    Certificate,
    Ledger,
    Release,
    Repeated,
    certify_budget,
    certify_release,
    queries,
    release,
)
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.data.frames import frame_of
from pufferslice.errors import (
    AlreadyReleasedError,
    ArgumentError,
    CalibrationError,
    CertificateError,
    LedgerError,
    ReleaseError,
    TableError,
)
from pufferslice.noise.spending import Spending
from pufferslice.releases import combined, release_again
from pufferslice.releases.budget import grant_of_budget, part_sums, requested_part
from pufferslice.releases.commands import finished, reconciling
from pufferslice.releases.marks import found_in, marks_of_releases
from pufferslice.releases.states import Intent

MODULE = import_module("pufferslice.releases.release")
SEEDED = SeededTestNoise(seed=0)
BUDGET = certify_budget(PARTS, GUESS, shares=SHARES, coupling="independent")
DRAWN = certify_budget(PARTS, GUESS, shares=SHARES, coupling="independent", generator=SEEDED)
JANUARY, FEBRUARY = survey(160), survey(170)
STDS = dict(
    zip(YEARBOOK.query.names, part_of(BUDGET, "yearbook").noise.std_by_coordinate, strict=True)
)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "office.ledger")


def of_year(ledger, table=TABLE, certificate=BUDGET, scenario=YEARBOOK, **options):
    return release(scenario, table, certificate, part="yearbook", ledger=ledger, **options)


def of_month(ledger, table=JANUARY, period=1, certificate=BUDGET, **options):
    return release(
        MONTHLY, table, certificate, part="monthly", period=period, ledger=ledger, **options
    )


def stds_of(released):
    return dict(zip(released.names, released.noise_stds.tolist(), strict=True))


class TestSpending:
    def test_the_whole_part_at_once(self, ledger):
        released = of_year(ledger)
        assert stds_of(released) == pytest.approx(STDS, rel=1e-9)
        assert released.title == "Release 1 of part 'yearbook'"
        assert "sees all outputs of this budget guesses right at most 64" in str(released)
        truth = np.array(YEARBOOK.query.outputs(TABLE)[0])
        assert (np.abs(released.values - truth) < 6 * released.noise_stds).all()

    def test_in_two_steps(self, ledger):
        for serial, share in enumerate((0.4, 0.6), start=1):
            released = of_year(ledger, spend=share)
            expected = {name: std / math.sqrt(share) for name, std in STDS.items()}
            assert stds_of(released) == pytest.approx(expected, rel=1e-9)
            assert released.measured.serial == serial
        with pytest.raises(AlreadyReleasedError, match="'yearbook'"):
            of_year(ledger, spend=0.001)
        with pytest.raises(AlreadyReleasedError, match="nothing is left"):
            of_year(ledger)

    def test_one_statistic_and_then_all_that_is_left(self, ledger):
        first = of_year(ledger, only=["mean(age)"], spend=0.4)
        assert stds_of(first) == pytest.approx({"mean(age)": STDS["mean(age)"] / math.sqrt(0.4)})
        second = of_year(ledger)
        assert stds_of(second) == pytest.approx(STDS, rel=1e-6)
        with pytest.raises(AlreadyReleasedError):
            of_year(ledger, only=["mean(hours)"], spend=1e-6)

    def test_all_that_is_left_of_one_statistic(self, ledger):
        of_year(ledger, only=["mean(age)"], spend=0.25)
        rest = of_year(ledger, only=["mean(age)"])
        assert stds_of(rest)["mean(age)"] == pytest.approx(STDS["mean(age)"] / math.sqrt(0.75))
        with pytest.raises(AlreadyReleasedError, match="nothing is left of these"):
            of_year(ledger, only=["mean(age)"])

    def test_a_wanted_noise(self, ledger):
        wanted = {"mean(age)": 3.0, "rate(site = a)": 0.1}
        released = of_year(ledger, noise=wanted)
        assert stds_of(released) == pytest.approx(wanted)
        with pytest.raises(CalibrationError, match="the least is mean"):
            of_year(ledger, only=["mean(age)"], noise={"mean(age)": STDS["mean(age)"]})
        assert len(ledger.entries()) == 1

    def test_what_left_says_can_be_had(self, ledger):
        of_year(ledger, only=["mean(hours)"], spend=0.5)
        left = {each.statistic: each for each in BUDGET.left(ledger).statistics[:3]}
        assert left["mean(hours)"].share == pytest.approx(0.5, rel=1e-4)
        wanted = {name: each.least_noise_std for name, each in left.items()}
        released = of_year(ledger, noise=wanted)
        assert stds_of(released) == pytest.approx(wanted)

    def test_combinations(self, ledger):
        terms = {"hours a week beside age": {"mean(hours)": 2.0, "mean(age)": -1.0}}
        released = of_year(ledger, only=terms, spend=0.5)
        truth = YEARBOOK.query.outputs(TABLE)[0] @ [-1.0, 2.0, 0.0]
        assert abs(released.values[0] - truth) < 6 * released.noise_stds[0]
        covariance = of_year(ledger, spend=0.5).noise_covariance
        expected = np.array([-1.0, 2.0, 0.0]) @ covariance @ [-1.0, 2.0, 0.0]
        assert released.noise_stds[0] ** 2 == pytest.approx(expected, rel=1e-9)

    def test_periods_have_their_own_precision(self, ledger):
        one = of_month(ledger)
        two = of_month(ledger, FEBRUARY, 2)
        assert stds_of(one) == stds_of(two)
        assert two.title == "Release 1 of part 'monthly', period 2"
        assert (one.n_rows, two.n_rows) == (160, 170)
        with pytest.raises(AlreadyReleasedError):
            of_month(ledger)

    def test_the_reserve_is_a_part_like_others(self, ledger):
        released = release(EXTRA, TABLE, BUDGET, part="later", ledger=ledger)
        truth = EXTRA.query.outputs(TABLE)[0, 0]
        assert abs(released.values[0] - truth) < 6 * released.noise_stds[0]

    def test_hidden_numbers_of_rows(self, tmp_path):
        parts = {"months": Repeated(volume(), times=3)}
        certificate = certify_budget(parts, GUESS)
        released = release(
            volume(), survey(77), certificate, part="months", period=3, ledger=tmp_path / "l"
        )
        assert released.n_rows is None
        assert "n_rows" not in released.to_json()


class TestOutputs:
    def test_files(self, ledger, tmp_path):
        out = tmp_path / "year.json"
        for place, options in enumerate(({"only": ["mean(age)"], "spend": 0.5}, {})):
            released = of_year(ledger, out=out.with_suffix(f".{place}"), **options)
            loaded = Release.load(out.with_suffix(f".{place}"))
            assert loaded == released
            document = json.loads(out.with_suffix(f".{place}").read_text())
            assert document["measured"]["serial"] == place + 1
            assert len(document["measured"]["grid_values"]) == [1, 3][place]
            assert "grid_value" not in document["values"][0]

    def test_the_same_release_again(self, ledger, tmp_path):
        first = of_year(ledger, spend=0.3)
        second = of_year(ledger, spend=0.3)
        month = of_month(ledger)
        again = [
            release_again(BUDGET, ledger=ledger, out=tmp_path / f"{k}.json", **place)
            for k, place in enumerate(
                (
                    {"part": "yearbook", "serial": 1},
                    {"part": "yearbook"},
                    {"part": "monthly", "period": 1},
                )
            )
        ]
        assert again == [first, second, month]

    def test_derived_statistics(self, ledger):
        query = queries.summary(std=["age"], clip={"age": (18, 90)})
        scenario = prevalence(query)
        certificate = certify_budget({"year": scenario}, GUESS)
        released = release(scenario, TABLE, certificate, part="year", ledger=ledger)
        assert released.derived()["std(age)"].value > 0

    def test_values_are_moved_into_their_range(self, ledger):
        released = of_year(ledger, only=["rate(site = a)"], spend=0.001, into_range=True)
        assert 0 <= released.values[0] <= 1
        with pytest.raises(ReleaseError, match="by name"):
            of_year(ledger, only={"twice": {"rate(site = a)": 2.0}}, spend=0.1, into_range=True)

    def test_the_estimate_of_several_releases(self, ledger):
        with pytest.raises(ReleaseError, match="no release"):
            combined(BUDGET, ledger=ledger, part="yearbook")
        first = of_year(ledger, only=["mean(age)"], spend=0.5)
        alone = combined(BUDGET, ledger=ledger, part="yearbook")
        assert [row.name for row in alone.rows] == ["mean(age)"]
        assert alone["mean(age)"].value == pytest.approx(first.values[0], rel=1e-12)
        second = of_year(ledger, only=["mean(age)"], spend=0.5)
        both = combined(BUDGET, ledger=ledger.path, part="yearbook")["mean(age)"]
        assert both.value == pytest.approx((first.values[0] + second.values[0]) / 2, rel=1e-9)
        assert both.standard_error == pytest.approx(STDS["mean(age)"], rel=1e-6)
        rest = of_year(ledger)
        everything = combined(BUDGET, ledger=ledger, part="yearbook")
        assert [row.value for row in everything.rows] == pytest.approx(rest.values, rel=1e-9)
        assert [row.standard_error for row in everything.rows] == pytest.approx(
            rest.noise_stds, rel=1e-9
        )


class Stream:
    """A long seeded stream of noise, drawn once and handed out in parts."""

    name = SEEDED.name
    secure = False

    def __init__(self, n):
        self.numbers, self.place = SeededTestNoise(seed=1).draw(n), 0

    def draw(self, size):
        self.place += size
        return self.numbers[self.place - size : self.place]


def drawn_values(calls, n_draws):
    """Values of the last of several releases, drawn many times with seeded noise, and its form.

    Without a ledger, which only writes down what is drawn.
    """
    part = part_of(DRAWN, "yearbook")
    _, value = part_sums(YEARBOOK, frame_of(TABLE), part)
    entry = SimpleNamespace(serial=1)
    found, stream = [], Stream(3 * len(calls) * n_draws)
    for _ in range(n_draws):
        spending, earlier = Spending.none(3), []
        for options in calls:
            request = requested_part(part, spending, **options)
            asked = MODULE._PartAsked(part, 1, request)
            last = MODULE._measured(YEARBOOK, DRAWN, asked, value, earlier, entry, 2_000, stream)
            directions = request.measurement.directions
            spending = spending.plus(request.measurement)
            earlier.append((directions, np.array(last.grid_values) / 2**44))
        found.append(last.values)
    return np.array(found), last


@pytest.mark.soundness
class TestNoise:
    @pytest.mark.parametrize(
        "calls",
        [
            ({"spend": 0.5},),
            ({"only": ["mean(age)", "rate(site = a)"], "spend": 0.25},),
            ({"noise": {"mean(age)": 3.0, "mean(hours)": 2.0}},),
            ({"only": ["mean(age)"], "spend": 0.7}, {}),
            ({"only": ["mean(age)"]}, {"only": ["rate(site = a)"], "spend": 1e-9}, {}),
        ],
        ids=["share", "some", "noise", "rest", "rest of three"],
    )
    def test_values_have_the_stated_noise(self, calls):
        n = 1_500
        values, last = drawn_values(calls, n)
        truth = dict(zip(YEARBOOK.query.names, YEARBOOK.query.outputs(TABLE)[0], strict=True))
        errors = values - [truth[name] for name in last.names]
        factor = np.linalg.cholesky(last.noise_covariance)
        whitened = np.linalg.solve(factor, errors.T)
        assert np.abs(whitened.mean(axis=1)).max() < 5 / math.sqrt(n)
        correlation = np.atleast_2d(np.cov(whitened)) - np.eye(len(whitened))
        assert np.abs(correlation).max() < 6 * math.sqrt(2 / n)

    def test_an_interrupted_release_counts_as_spent(self, ledger, monkeypatch):
        def broken(*_args, **_options):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(MODULE, "_measured", broken)
            with pytest.raises(KeyboardInterrupt):
                of_year(ledger, spend=0.5)
        (entry,) = ledger.entries()
        assert (entry.state, entry.release) == ("intended", None)
        with pytest.raises(AlreadyReleasedError):
            of_year(ledger, spend=0.6)
        released = of_year(ledger, spend=0.5)
        assert released.measured.serial == 2
        ledger.give_up(entry)
        assert of_year(ledger, spend=0.5).measured.serial == 3

    def test_two_that_ask_for_the_rest_at_once(self, ledger, monkeypatch):
        """The second reads what is left before the first has recorded; the ledger refuses it."""
        stale = ledger.spending(BUDGET.digest, "yearbook", 1)
        of_year(ledger, spend=0.7)
        monkeypatch.setattr(Ledger, "spending", lambda *_: stale)
        with pytest.raises(AlreadyReleasedError):
            of_year(ledger)

    def test_a_ledger_refuses_whatever_it_is_asked(self, ledger):
        """The rules are those of the ledger, not of the function that asks."""
        grant = grant_of_budget(BUDGET)
        wide = Intent(
            certificate=BUDGET.digest,
            part="yearbook",
            charge=Fraction(1, 100),
            directions=(np.eye(3) * 1.1).tolist(),
        )
        for intent in (wide, attrs.evolve(wide, directions=[[1.0, 0.0]])):
            with pytest.raises(AlreadyReleasedError):
                ledger.intend(grant, intent)
        few = attrs.evolve(grant, most_numbers=4)
        ledger.intend(few, attrs.evolve(wide, directions=None))
        with pytest.raises(AlreadyReleasedError, match="4 released numbers"):
            ledger.intend(few, attrs.evolve(wide, directions=None))


class TestTables:
    def test_another_table_of_the_same_part_is_refused(self, ledger):
        of_year(ledger, spend=0.3)
        with pytest.raises(LedgerError, match="another table"):
            of_year(ledger, survey(2_000), spend=0.3)
        of_month(ledger, spend=0.3)
        with pytest.raises(LedgerError, match="another table"):
            of_month(ledger, survey(160), spend=0.3)

    def test_rows_of_an_earlier_period_are_not_fresh(self, ledger):
        of_month(ledger)
        with pytest.raises(LedgerError, match="not fresh"):
            of_month(ledger, JANUARY, 2)

    def test_one_budget_for_a_secret(self, ledger):
        of_year(ledger)
        other = certify_budget({"yearbook": YEARBOOK}, GUESS)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            of_year(ledger, certificate=other)
        alone = certify_release(prevalence(YEAR, within=0.04), GUESS)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            release(prevalence(YEAR, within=0.04), TABLE, alone, ledger=ledger)
        of_month(ledger)

    def test_a_budget_after_a_single_release(self, ledger):
        alone = certify_release(YEARBOOK, GUESS)
        release(YEARBOOK, TABLE, alone, ledger=ledger)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            of_month(ledger)

    def test_the_other_side_of_the_same_secret(self, ledger):
        of_year(ledger)
        sides = prevalence(YEAR, value="no")
        other = certify_budget({"yearbook": sides}, GUESS)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            of_year(ledger, certificate=other, scenario=sides)


class TestLeft:
    def test_for_people_and_programs(self, ledger):
        of_year(ledger)
        of_month(ledger, only=["mean(age)"], spend=0.5)
        left = BUDGET.left(ledger)
        text = str(left)
        assert "monthly, 11 of 12 periods: nothing was spent" in text
        assert "yearbook: mean(age): nothing is left of it alone" in text
        assert left.to_json()["left"][0]["least_noise_std"] is None
        assert len(left.table_rows()) == 3 + 24 + 1
        assert left.sentences()

    def test_the_ledger_shows_what_is_spent(self, ledger):
        of_month(ledger, spend=0.5)
        text = str(ledger)
        assert "part monthly 1" in text
        assert "left: 1/2 of the precision" in text


def loose(**options):
    return {"only": ["mean(age)"], "spend": 0.1} | options


REFUSED = {
    ArgumentError: [
        (
            "part must be",
            lambda name: release(YEARBOOK, TABLE, BUDGET, part=name, ledger="l"),
            None,
            "model",
            "yearly",
        ),
        ("spend or noise", lambda: of_year("l", spend=0.1, noise={"mean(age)": 3.0})),
        ("spend", lambda share: of_year("l", spend=share), 0.0, 1.5, -1, np.nan),
        ("only", lambda only: of_year("l", only=only), "mean(age)", 3, [], {}, ["mean(pay)"]),
        ("only", lambda only: of_year("l", only=only), {"a": {}}, {"a": {"mean(pay)": 1.0}}),
        ("only", lambda only: of_year("l", only=only), ["mean(age)", "mean(age)"], {"a": 2}),
        (
            "coefficients",
            lambda only: of_year("l", only=only),
            {"a": {"mean(age)": 0.0}},
            {"a": {"mean(age)": np.inf}},
        ),
        (
            "follow from others",
            lambda: of_year("l", only={"a": {"mean(age)": 1.0}, "b": {"mean(age)": 2.0}}),
        ),
        (
            "noise",
            lambda noise: of_year("l", only=["mean(age)"], noise=noise),
            3.0,
            {},
            {"mean(hours)": 1.0},
            {"mean(age)": 0.0},
        ),
        ("only", lambda: of_year("l", noise={"mean(pay)": 1.0})),
        ("period", lambda: of_year("l", period=1)),
        ("period", lambda period: of_month("l", period=period), None, 0, 13),
        ("ledger", lambda: BUDGET.left("office.ledger")),
        ("part", lambda: certify_of_year(part="yearbook")),
        ("only, spend", lambda: certify_of_year(only=["mean(age)"], spend=0.3)),
        ("part", BUDGET.plan, "yearbook", "none"),
        (
            "part, period and serial",
            lambda: release_again(
                certify_release(YEARBOOK, GUESS), ledger="l", out="o.json", serial=1
            ),
        ),
    ],
    CalibrationError: [
        ("the least is", lambda: of_year("l", noise={"mean(age)": 1e-3})),
    ],
    ReleaseError: [
        ("2,000 rows", lambda: of_year("l", survey(1_999))),
        ("150 to 180 rows", lambda n: of_month("l", survey(n)), 149, 181),
        ("scenario", lambda: of_year("l", scenario=prevalence(YEAR, within=0.06))),
        ("other rows", lambda: of_year("l", scenario=prevalence(YEAR, earlier=survey(2_000)))),
        ("generator", lambda: of_year("l", generator=SEEDED)),
        ("generator", lambda: of_year("l", certificate=DRAWN)),
        (
            "keeps no release",
            lambda: release_again(BUDGET, ledger="l", out="o.json", part="yearbook", serial=7),
        ),
        (
            "by name",
            lambda: of_year(
                "l", only={"sum": {"mean(age)": 1.0, "mean(hours)": 1.0}}, into_range=True
            ),
        ),
    ],
    TableError: [("age", lambda: of_year("l", TABLE.drop_columns(["age"])))],
    CertificateError: [
        ("statement only", lambda: of_year("l", certificate=attrs.evolve(BUDGET, evidence=None))),
        ("budgets", lambda: certify_release(YEARBOOK, GUESS).plan("model")),
    ],
}


def certify_of_year(**options):
    return release(YEARBOOK, TABLE, certify_release(YEARBOOK, GUESS), ledger="l", **options)


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(refusal)
    assert not list(tmp_path.iterdir())


def test_a_damaged_release_file(ledger, tmp_path):
    out = tmp_path / "year.json"
    of_year(ledger, spend=0.5, out=out)
    document = json.loads(out.read_text())
    for change in (
        {"measured": document["measured"] | {"grid_values": []}},
        {"measured": document["measured"] | {"share": None}},
        {"ledger": None},
        {"values": [document["values"][0] | {"grid_value": "3"}]},
    ):
        changed = {k: v for k, v in (document | change).items() if v is not None}
        with pytest.raises(ReleaseError):
            Release.from_json(changed)


def test_a_released_part_is_seen_as_one(ledger):
    """The certificate of a budget that was written and read again releases as the first did."""
    path = ledger.path.with_suffix(".json")
    BUDGET.save(path)
    assert of_year(ledger, certificate=Certificate.load(path)).certificate == BUDGET.digest
    assert LATER.names == ("total(hours)",)
    assert EARLIER.num_rows == 2_000


@pytest.mark.soundness
class TestMarks:
    """Release files are spent marks: all that is left of a release if the other marks are gone."""

    @pytest.mark.parametrize("beside", ["budget", "nothing"])
    def test_a_restored_ledger_does_not_forget_a_release_file(self, ledger, tmp_path, beside):
        other = certify_budget({"loads": volume()}, GUESS)
        release(volume(), survey(9), other, part="loads", ledger=ledger, spend=0.1)
        before, files = ledger.path.read_bytes(), tmp_path / "published"
        files.mkdir()
        if beside == "budget":
            BUDGET.save_statement(files / "budget.json")
        options = {"only": ["mean(age)"], "out": files / "year.json"}
        first = of_year(ledger, spend=0.7, spent_marks=tmp_path / "marks", **options)
        ledger.path.write_bytes(before)
        restored = Ledger(ledger.path)
        (mark,) = marks_of_releases([files])
        # the keys of a share depend on rows, which neither file has: any secret
        assert (mark.part, mark.period, mark.grant.keys) == ("yearbook", 1, None)
        with pytest.raises(LedgerError, match="older than the spent marks"):
            of_year(restored, out=files / "again.json", spent_marks=tmp_path / "new")
        assert finished(reconciling(restored, found_in([files]))) == 1
        assert restored.problems() == []
        assert "part yearbook 1; left:" in str(restored)
        for asked in ({"spend": 0.5, "only": ["mean(age)"]}, {"spend": 1.0}):
            with pytest.raises(AlreadyReleasedError):
                of_year(restored, **asked)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            of_year(restored, certificate=certify_budget({"yearbook": YEARBOOK}, GUESS))
        with pytest.raises(LedgerError):  # there is another secret in the ledger
            of_month(restored, out=files / "january.json")
        again = release_again(BUDGET, ledger=restored, part="yearbook", out=files / "copy.json")
        assert again == first

    def test_parts_are_those_of_the_budget(self, ledger, tmp_path):
        BUDGET.save_statement(tmp_path / "budget.json")
        of_month(ledger, out=tmp_path / "january.json")
        (mark,) = marks_of_releases([tmp_path])
        assert mark.grant.parts == grant_of_budget(BUDGET).parts
