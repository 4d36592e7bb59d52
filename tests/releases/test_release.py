# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import contextlib
import functools
import json
import math
import sqlite3
import threading
from fractions import Fraction
from typing import ClassVar

import attrs
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.stats import kstest, norm
from tests.certificate.conftest import bell, issued, stating, worlds
from tests.fitting import fitting_value

from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice._core.sampler import SIGMA_INT, OperatingSystemNoise, SeededTestNoise
from pufferslice.certificate import certify_release, verify
from pufferslice.claims import Guarantee
from pufferslice.errors import (
    AlreadyReleasedError,
    LedgerError,
    ReleaseError,
    StorageError,
    TableError,
)
from pufferslice.queries import Box, columns, row_function, summary, table_function
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import Release, grant_of, quantised, release, release_again
from pufferslice.scenario.priors import Bootstrap, Resampled
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

COLUMNS = {
    "s": ["a", "a", "a", "b", "b", "c", "c", "c", "c"],
    "t": ["u", "v", "u", "v", "u", "v", "u", "v", "u"],
    "x": [1.5, 2.25, 4.0, 8.5, 9.75, 3.0, 3.125, 5.5, 6.0],
    "y": [10.0, 20.0, 40.0, 35.0, 15.0, 25.0, 30.0, 45.0, 5.0],
}
TABLE = pa.table(COLUMNS)
MEAN = summary(mean=["x", "y"]).with_range(Box([0, 0], [10, 50])).with_scales([2.0, 10.0])
ROW = columns(["x", "y"]).with_range(Box([0, 0], [10, 50])).with_scales([2.0, 10.0])
AXES = FiniteProfile.axes(dim=2)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
SEEDED = SeededTestNoise(seed=5)
RESAMPLING = Bootstrap(n_replicates=10, seed=1)

GROUPS = Scenario.from_groups(TABLE, secret="s", query=MEAN)
RECORDS = Scenario.from_records(TABLE, secret="s", query=ROW)
RESAMPLED = Scenario.from_bootstrap(TABLE, secret="s", query=MEAN, bootstrap=RESAMPLING)
WORLDS = Scenario.from_worlds(
    {"then": TABLE, "now": TABLE.slice(0, 5)}, query=MEAN, source="released_data"
)
LISTED = Scenario.from_worlds(
    {"then": [TABLE, TABLE.slice(0, 8)], "now": [TABLE.slice(0, 5), TABLE.slice(0, 4)]}, query=MEAN
)
DRAWN = Scenario.from_worlds(
    {
        "then": Resampled(table=TABLE, bootstrap=RESAMPLING),
        "now": Resampled(table=TABLE.slice(0, 5), bootstrap=RESAMPLING),
    },
    query=MEAN,
)
GAUSSIAN = worlds(
    low=bell([0.0, 0.0], np.eye(2)),
    high=bell([9.0, 9.0], np.eye(2)),
    query=summary(mean=["x", "y"]),
)
LINE = FiniteProfile.axes(dim=1)


def rows_of(secret, table=TABLE):
    return table.filter(pa.array([value == secret for value in table["s"].to_pylist()]))


release_a = functools.partial(release, GROUPS, rows_of("a"))


def certified(scenario, target=JOINT, profile=AXES, **said):
    return certify_release(scenario, target.along(profile), deltas=(), **said)


@pytest.fixture
def certificate():
    return certified(GROUPS)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "census.ledger")


@attrs.frozen
class Watched:
    """Seeded noise that writes down what the ledger says whenever it is asked for noise."""

    ledger: Ledger
    seen: list = attrs.field(factory=list)
    secure: ClassVar[bool] = False
    name: ClassVar[str] = SeededTestNoise.name

    def draw(self, size):
        self.seen.append((size, [entry.state for entry in self.ledger.entries()]))
        return SEEDED.draw(size)


def test_a_release_and_its_ledger(certificate, ledger, tmp_path):
    released = release_a(certificate, ledger=ledger, out=tmp_path / "release.json")
    (entry,) = ledger.entries()
    assert entry.certificate == certificate.digest
    assert entry.state == "published"
    assert Release.from_json(json.loads(entry.release)) == released
    assert Release.load(tmp_path / "release.json") == released
    names = ["census.ledger", "census.spent", "release.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert released.certificate == certificate.digest
    assert released.names == ("mean(x)", "mean(y)")
    assert released.secure
    assert repr(released) == (
        f"Release(dim=2, certificate='{certificate.digest[:12]}…', guarantee='(4, 1)-Joint-SRPP')"
    )


def test_intent_before_noise_and_the_result_after(ledger):
    noise = Watched(ledger)
    release_a(certified(GROUPS, generator=SEEDED), ledger=ledger, generator=noise)
    # The first draw only shows that this machine can draw; it touches nothing.
    assert noise.seen == [(1, []), (2, ["intended"])]
    assert [entry.state for entry in ledger.entries()] == ["published"]


@pytest.mark.parametrize("scenario", [GROUPS, RESAMPLED, GAUSSIAN], ids=lambda s: s.distribution)
def test_values_are_the_grid_values_in_the_users_units(scenario, ledger):
    certificate = certified(scenario, generator=SEEDED)
    released = release(scenario, rows_of("b"), certificate, ledger=ledger, generator=SEEDED)
    step = certificate.noise_std / SIGMA_INT
    truth = np.array([9.125, 25.0])
    center, scales = scenario.query.center, scenario.query.scales
    expected = (center + np.array(released.grid_values) * step) * scales
    np.testing.assert_allclose(released.values, expected, rtol=1e-14)
    np.testing.assert_array_equal(released.noise_stds, certificate.noise_std * scales)
    exact = [
        round((Fraction(float(t)) - Fraction(float(c))) / (Fraction(certificate.noise_std) / 2**44))
        for t, c in zip(truth / scales, center, strict=True)
    ]
    np.testing.assert_array_equal(released.grid_values, np.array(exact) + SEEDED.draw(2))


def test_intervals_are_in_the_users_units(ledger):
    certificate = certified(GROUPS, generator=SEEDED)
    released = release(GROUPS, rows_of("b"), certificate, ledger=ledger, generator=SEEDED)
    half = 1.959963984540054 * certificate.noise_std * np.array([2.0, 10.0])
    np.testing.assert_allclose(released.intervals[:, 0], released.values - half)
    np.testing.assert_allclose(released.intervals[:, 1], released.values + half)
    written = released.to_json()["values"][1]
    assert written["name"] == "mean(y)"
    assert written["interval"] == released.intervals[1].tolist()
    assert written["noise_std"] == released.noise_stds[1]
    text = str(released)
    assert f"{released.values[0]:.6g}" in text
    assert f"at most {at_most(certificate.unsliced_epsilon)} at order 4" in text
    assert percent_at_most(certificate.guess) in text


@pytest.mark.statistical
@pytest.mark.soundness
def test_released_values_have_the_certified_noise(seed, tmp_path):
    """20 000 draws: with a tenth too much or too little noise the p-value is below 1e-8."""
    dim = 1000
    names = [f"v{k}" for k in range(dim)]
    means = np.random.default_rng(seed).uniform(-5, 5, size=(2, dim))
    query = table_function(
        lambda table: means[int(table["s"][0].as_py() == "b")],
        names=names,
        columns=["s"],
        description="as many numbers as are needed here",
    ).with_scales(np.linspace(1, 3, dim))
    table = pa.table({"s": ["a", "a", "b", "b"]})
    scenario = Scenario.from_groups(table, secret="s", query=query)
    profile = FiniteProfile.uniform(dim=dim, n_directions=3, seed=1)
    target = Guarantee.average(order=2, epsilon=0.5)
    certificate = certify_release(scenario, target.along(profile), generator=SEEDED, deltas=())
    errors = []
    for k in range(20):
        released = release(
            scenario,
            table.slice(2),
            certificate,
            ledger=tmp_path / f"{k}.ledger",
            generator=SeededTestNoise(seed=1000 * (seed % 997) + k),
        )
        errors.append((released.values - means[1]) / released.noise_stds)
    draws = np.concatenate(errors)
    p = {scale: kstest(draws, norm(scale=scale).cdf).pvalue for scale in (0.9, 1.0, 1.1)}
    assert p[1.0] > 1e-7
    assert p[0.9] < 1e-7
    assert p[1.1] < 1e-7


class TestIntoRange:
    """Values moved into their public range, of claims about the whole output alone."""

    WHOLE = Guarantee.unsliced(order=4, epsilon=0.01)
    QUERY = summary(mean=["x"], rate={"t": "u"}, std=["y"], total=["y"])

    def released(self, ledger, query=QUERY, target=WHOLE, **options):
        scenario = Scenario.from_groups(TABLE, secret="s", query=query)
        held = certify_release(scenario, target, generator=SEEDED, deltas=())
        return release(scenario, rows_of("a"), held, ledger=ledger, generator=SEEDED, **options)

    def test_known_answer(self, ledger, tmp_path):
        """The noise is the same with and without: rates end in [0, 1], spreads at 0."""
        path = tmp_path / "release.json"
        plain = self.released(tmp_path / "other.ledger")
        moved = self.released(ledger, into_range=True, out=path)
        low, high = [-math.inf, 0.0, 0.0, -math.inf], [math.inf, 1.0, math.inf, math.inf]
        assert moved.values.tolist() == np.clip(plain.values, low, high).tolist()
        assert (moved.values != plain.values).any()
        assert moved.grid_values == plain.grid_values
        assert plain.moved_into is None
        assert moved.moved_into.T.tolist() == [low, high]
        assert moved.intervals[0].tolist() == plain.intervals[0].tolist()
        assert 0 <= moved.intervals[1, 0] <= moved.intervals[1, 1] <= 1
        assert "moved to its ends" in str(moved)
        assert "moved to its ends" not in str(plain)
        assert Release.load(path) == moved != plain
        rows = json.loads(path.read_text())["values"]
        assert [row["moved_into"] for row in rows] == [
            [None, None], [0.0, 1.0], [0.0, None], [None, None],
        ]  # fmt: skip
        assert all("moved_into" not in row for row in plain.to_json()["values"])

    def test_a_declared_box_counts(self, ledger):
        moved = self.released(ledger, query=MEAN, into_range=True)
        assert moved.moved_into.tolist() == [[0, 10], [0, 50]]
        assert (moved.values >= 0).all()
        assert (moved.values <= [10, 50]).all()

    def test_intervals_still_cover(self):
        """Whatever the noise, an interval that covers a value in the range still does."""
        rng = np.random.default_rng(0)
        ends = np.tile([0.0, 1.0], (2000, 1))
        true, noisy = rng.uniform(0, 1, 2000), rng.normal(0.5, 2.0, 2000)
        plain = Release(
            certificate="0" * 64,
            guarantee="x",
            names=tuple(map(str, range(2000))),
            values=noisy,
            noise_stds=np.full(2000, 0.5),
            grid_values=(0,) * 2000,
            secure=True,
            unsliced={},
        )
        moved = attrs.evolve(plain, values=np.clip(noisy, 0, 1), moved_into=ends)

        def covers(given):
            return (given.intervals[:, 0] <= true) & (true <= given.intervals[:, 1])

        assert covers(moved)[covers(plain)].all()
        assert 0.1 < covers(plain).mean() < 0.9

    def test_claims_along_slices_do_not_survive_it(self, certificate, ledger):
        with pytest.raises(ReleaseError, match="along slices"):
            release(GROUPS, rows_of("a"), certificate, ledger=ledger, into_range=True)
        assert not ledger.entries()


def test_small_counts_get_a_remark_by_released_values_alone(certificate, ledger):
    """Counts, not means, and below 10 after noise, whatever they were before."""
    made = release_a(certificate, ledger=ledger)
    assert made.small_counts == ""  # two means
    made = attrs.evolve(made, names=("count(x = 1)", "count(x = 2)"), values=[9.99, 10.0])
    remark = made.small_counts
    assert remark.startswith("count(x = 1) is a count below 10 as released")
    assert remark in str(made)
    assert remark in made.sentences()
    both = attrs.evolve(made, values=[9.99, -3.0])
    assert both.small_counts.startswith("count(x = 1), count(x = 2) are counts below 10")
    assert "below 10" not in str(attrs.evolve(made, values=[11.0, 12.0]))


def test_equal_distributions_are_released_without_noise(tmp_path):
    scenario = worlds(p=TABLE, q=TABLE, query=MEAN, source="released_data")
    certificate = certified(scenario)
    assert certificate.noise_std == 0
    released = release(scenario, TABLE, certificate, ledger=tmp_path / "l")
    np.testing.assert_allclose(released.values, [np.mean(COLUMNS["x"]), np.mean(COLUMNS["y"])])
    assert released.noise_stds.tolist() == [0.0, 0.0]


@pytest.mark.soundness
def test_what_is_released_without_noise_is_the_same_to_the_last_bit(tmp_path):
    """Distributions that are called equal must release the same text, minus zeros included."""
    table = pa.table({"s": ["a", "a", "b", "b"], "x": [0.0, 1.0, -0.0, 1.0]})
    scenario = Scenario.from_records(table, secret="s", query=columns(["x"]))
    certificate = certify_release(scenario, JOINT.along(LINE))
    texts = set()
    for k in (0, 2):
        out, book = tmp_path / str(k) / "released.json", tmp_path / str(k) / "ledger"
        out.parent.mkdir()
        release(scenario, table.slice(k, 1), certificate, ledger=book, out=out)
        document = json.loads(out.read_text())
        del document["ledger"], document["digest"]  # the second is of the first, too
        texts.add(json.dumps(document))
    assert certificate.noise_std > 0 or len(texts) == 1


def test_a_second_release_is_refused(certificate, ledger, tmp_path):
    first = release_a(certificate, ledger=ledger, out=tmp_path / "one.json")
    for secret in "ab":
        with pytest.raises(AlreadyReleasedError, match="again"):
            release(GROUPS, rows_of(secret), certificate, ledger=ledger, out=tmp_path / "two.json")
    assert not (tmp_path / "two.json").exists()
    again = release_again(certificate, ledger=ledger, out=tmp_path / "again.json")
    assert again == first
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_another_certificate_of_the_same_secret_is_refused(certificate, ledger):
    release_a(certificate, ledger=ledger)
    with pytest.raises(AlreadyReleasedError, match="another certificate of the same secret"):
        release_a(certified(GROUPS), ledger=ledger)
    with pytest.raises(AlreadyReleasedError, match="same secret"):
        release_a(certified(GROUPS).acknowledging(ledger.releases()), ledger=ledger)
    assert ledger.releases() == [certificate.digest]


def test_a_ledger_holds_several_secrets(certificate, ledger):
    release_a(certificate, ledger=ledger)
    other = Scenario.from_groups(TABLE, secret="t", query=MEAN)
    release(other, TABLE.take([0, 2, 4, 6, 8]), certified(other), ledger=ledger)
    assert len(ledger.entries()) == 2


def test_an_existing_file_is_not_overwritten_and_nothing_is_drawn(ledger, tmp_path):
    (tmp_path / "r.json").write_text("mine")
    noise = Watched(ledger)
    with pytest.raises(StorageError, match="cannot write"):
        release_a(
            certified(GROUPS, generator=SEEDED),
            ledger=ledger,
            out=tmp_path / "r.json",
            generator=noise,
        )
    assert (tmp_path / "r.json").read_text() == "mine"
    assert not ledger.path.exists()
    assert noise.seen == [(1, [])]


def test_release_again_of_nothing(certificate, ledger, tmp_path):
    with pytest.raises(ReleaseError, match="nothing"):
        release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    ledger.intend(grant_of(GROUPS, certificate))
    with pytest.raises(ReleaseError, match="nothing"):
        release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


def drawn_only(certificate, ledger):
    """A ledger as a crash leaves it before the file was written."""
    released = release_a(certificate, ledger=ledger.path.with_name("other"))
    entry = ledger.intend(grant_of(GROUPS, certificate))
    ledger.record_drawn(entry, json.dumps(released.to_json()))
    return released


def test_release_again_is_a_publication_and_the_ledger_says_so(certificate, ledger, tmp_path):
    drawn_only(certificate, ledger)
    release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    assert [entry.state for entry in ledger.entries()] == ["published"]


def test_release_again_does_not_overwrite(certificate, ledger, tmp_path):
    release_a(certificate, ledger=ledger)
    (tmp_path / "r.json").write_text("mine")
    with pytest.raises(StorageError, match="recorded in the ledger"):
        release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == "mine"


OTHER = pa.table({**COLUMNS, "x": [value + 0.5 for value in COLUMNS["x"]]})
RENAMED = TABLE.set_column(0, "s", pa.array(["z"] * 9))


@pytest.mark.parametrize(
    ("scenario", "rows"),
    [(LISTED, TABLE.slice(0, 8)), (LISTED, TABLE.slice(0, 4)), (DRAWN, TABLE), (DRAWN, OTHER)],
)
def test_tables_that_worlds_can_have(scenario, rows):
    """A given table is what was given; a resampled one may be any of the same size."""
    assert fitting_value(scenario, rows).shape == (2,)


@pytest.mark.soundness
def test_how_many_rows_are_complete_does_not_decide_whether_a_table_fits():
    """Worlds of 8 and 7 complete rows, 3 dropped in all: tables of 7 to 11, whatever is missing."""
    gaps = {"then": [2], "now": [0, 4]}
    tables = {
        world: pa.table({"x": [None if i in places else float(i) for i in range(9)]})
        for world, places in gaps.items()
    }
    scenario = Scenario.from_worlds(
        {world: Resampled(table=t, bootstrap=RESAMPLING) for world, t in tables.items()},
        query=summary(mean=["x"]).with_missing("drop-rows"),
    )
    for table in tables.values():
        assert fitting_value(scenario, table).shape == (1,)
    for values in ([1.0] * 5 + [None] * 4, [1.0] * 9):
        assert fitting_value(scenario, pa.table({"x": values})).shape == (1,)
    for values in ([1.0] * 8 + [None] * 4, [1.0] * 12, [1.0] * 6):
        with pytest.raises(ReleaseError, match="another number of rows"):
            fitting_value(scenario, pa.table({"x": values}))


@pytest.mark.soundness
def test_how_many_rows_are_complete_does_not_decide_whether_a_group_fits():
    """Groups of 6 and 8 complete rows, 3 dropped in all: 6 to 9 rows are a, whatever is missing."""
    numbers = [None if i in (2, 9, 12) else float(i) for i in range(17)]
    table = pa.table({"s": ["a"] * 7 + ["b"] * 10, "x": numbers})
    scenario = Scenario.from_bootstrap(
        table,
        secret="s",
        query=summary(mean=["x"]).with_missing("drop-rows"),
        bootstrap=RESAMPLING,
    )
    for priors in (scenario, scenario.with_sampled_priors()):
        for values in ([1.0] * 3 + [None] * 4, [1.0] * 7, [1.0] * 6):
            given = pa.table({"s": ["a"] * len(values), "x": values})
            assert fitting_value(priors, given).shape == (1,)
        for values in ([1.0] * 6 + [None] * 4, [1.0] * 10, [1.0] * 5):
            with pytest.raises(ReleaseError, match="at its own size"):
                fitting_value(priors, pa.table({"s": ["a"] * len(values), "x": values}))


@pytest.mark.soundness
def test_a_missing_value_does_not_make_two_rows_one_record():
    table = pa.table({"s": ["a"] * 4 + ["b"] * 4, "x": [1.0, 2, 3, None, 5, 6, 7, 8]})
    scenario = Scenario.from_records(
        table, secret="s", query=columns(["x"]).with_missing("drop-rows")
    )
    for priors in (scenario, scenario.with_sampled_priors()):
        for place in (1, 2):  # both complete; only one
            with pytest.raises(ReleaseError, match="exactly one row"):
                fitting_value(priors, table.slice(place, 2))


@pytest.mark.soundness
def test_a_row_with_the_label_of_another_group_is_not_of_that_distribution():
    row = TABLE.slice(0, 1).set_column(0, "s", pa.array(["b"]))
    with pytest.raises(ReleaseError, match="do not fit distribution 'records'"):
        fitting_value(RECORDS, row)


def test_no_message_shows_the_value():
    with pytest.raises(ReleaseError) as caught:
        fitting_value(GROUPS, rows_of("a", OTHER))
    for number in ("3.08", "1.54", "2.33", "23.3"):
        assert number not in str(caught.value)


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0]])
@pytest.mark.parametrize("library", [pa.table, pd.DataFrame, pl.DataFrame])
def test_row_order_and_library_give_the_same_grid_point(order, library):
    table = pa.table({"s": ["a"] * 3 + ["b"] * 2, "x": [0.1, 0.2, 0.3, 5.0, 6.0]})
    scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["x"]))
    part = rows_of("a", table).take(order).to_pydict()
    value = fitting_value(scenario, library(part))
    np.testing.assert_array_equal(value, fitting_value(scenario, rows_of("a", table)))
    np.testing.assert_array_equal(value, scenario.priors[0].distributions["a"].outputs[0])


def test_distributions_that_allow_other_rows():
    """A bootstrap distribution is about any rows of the group's size.

    A Gaussian one about any table.
    """
    rows = rows_of("a", OTHER)
    assert fitting_value(RESAMPLED, rows) == pytest.approx([(7.75 + 1.5) / 3 / 2, 70 / 3 / 10])
    assert fitting_value(GAUSSIAN, OTHER.slice(0, 1)) == [2, 10]
    public = Scenario.from_records(TABLE, secret="s", query=ROW, source="public_model")
    assert fitting_value(public, OTHER.slice(0, 1)).tolist() == [1.0, 1.0]


def test_a_secret_that_one_prior_does_not_know_and_no_pair_names():
    few = TABLE.slice(0, 5)
    scenario = Scenario.from_bootstrap(
        {"one": TABLE, "two": few}, secret="s", query=MEAN, bootstrap=RESAMPLING, pairs=[("a", "b")]
    )
    assert fitting_value(scenario, rows_of("c")) == pytest.approx(
        np.array([17.625 / 4 / 2, 105 / 4 / 10])
    )


def test_seeded_noise_is_stamped_insecure(ledger, tmp_path):
    certificate = certified(GROUPS, generator=SEEDED)
    released = release_a(
        certificate, ledger=ledger, out=tmp_path / "r.json", generator=SeededTestNoise(seed=9)
    )
    assert not released.secure
    assert str(released).startswith("INSECURE")
    assert json.loads((tmp_path / "r.json").read_text())["secure"] is False
    assert Release.load(tmp_path / "r.json").secure is False


@attrs.frozen
class Pretender:
    """No noise at all, under the name of the secure generator."""

    secure: ClassVar[bool] = False
    name: ClassVar[str] = OperatingSystemNoise.name

    def draw(self, size):
        return np.zeros(size, dtype=np.int64)


@pytest.mark.soundness
def test_a_generator_that_is_not_secure_cannot_take_the_name_of_one_that_is(certificate, ledger):
    with pytest.raises(ReleaseError):
        release_a(certificate, ledger=ledger, generator=Pretender())


def test_threads_that_release_at_once(tmp_path):
    certificate = certified(GROUPS)
    start, won, lost = threading.Barrier(4), [], []

    def attempt(k):
        start.wait()
        try:
            out = tmp_path / f"{k}.json"
            won.append(release_a(certificate, ledger=tmp_path / "l", out=out))
        except AlreadyReleasedError:
            lost.append(k)

    threads = [threading.Thread(target=attempt, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert len(Ledger(tmp_path / "l").entries()) == 1


def step_of(certificate):
    return Fraction(certificate.noise_std) / SIGMA_INT


def without_noise(released):
    """The integers that the seeded noise was added to."""
    drawn = SEEDED.draw(len(released.grid_values)).tolist()
    return [value - noise for value, noise in zip(released.grid_values, drawn, strict=True)]


def released_gaussian(means, values, ledger):
    """Released values of Gaussian priors with these means, in units of 3, and the certificate."""
    query = summary(mean=["x"]).with_scales([3.0])
    p, q = (bell([mean], [[1.0]]) for mean in means)
    scenario = worlds(p=p, q=q, query=query)
    certificate = certified(scenario, profile=LINE, generator=SEEDED)
    rows = pa.table({"x": values})
    return release(scenario, rows, certificate, ledger=ledger, generator=SEEDED), certificate


@pytest.mark.soundness
@pytest.mark.parametrize("mean", [262144.01, -1e9, 1e15])
def test_no_value_is_refused_for_its_size(mean, ledger):
    """A refusal of one group and not of another would tell which group it was."""
    table = pa.table({"s": ["a", "a", "b", "b"], "x": [mean, mean, mean + 1.0, mean + 1.0]})
    scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["x"]))
    certificate = certified(scenario, profile=LINE, generator=SEEDED)
    released = release(scenario, table.slice(0, 2), certificate, ledger=ledger, generator=SEEDED)
    assert without_noise(released) == [round(Fraction(mean) / step_of(certificate))]
    assert released.values[0] == pytest.approx(mean, abs=10 * certificate.noise_std)
    assert Release.from_json(json.loads(json.dumps(released.to_json()))) == released


@pytest.mark.soundness
def test_gaussian_values_are_not_refused_and_saturate(ledger):
    """Beyond all floats the output is the largest one; the integers stay exact."""
    largest = np.finfo(np.float64).max
    released, certificate = released_gaussian((0.0, 9.0), [largest / 2], ledger)
    exact = round(Fraction(largest / 2) / 3 / step_of(certificate))
    assert without_noise(released) == [exact]
    assert abs(released.values[0]) <= largest
    assert Release.from_json(json.loads(json.dumps(released.to_json()))) == released


@pytest.mark.soundness
def test_gaussian_values_are_scaled_exactly(ledger):
    """1e15 / 3 is not a float: the quotient that was rounded would be off by a third of it."""
    released, certificate = released_gaussian((1e15 + 1, 1e15 + 2), [1e15 + 1], ledger)
    (found,) = without_noise(released)
    assert abs(found - Fraction(10**15 + 1, 3) / step_of(certificate)) <= Fraction(1, 2)


@pytest.mark.soundness
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("range_", [None, Box([-5], [5])])
def test_sampled_priors_refuse_no_value(value, range_):
    """What was never drawn may still occur, and more often under one of the secrets."""
    query = row_function(
        lambda row: row["x"] and value, names=["x"], columns=["x"], description="x, or nothing"
    )
    rows = pa.table({"s": ["a", "b"] * 500, "x": [0.0] * 1000})
    scenario = Scenario.from_records(
        rows, secret="s", query=query if range_ is None else query.with_range(range_)
    ).with_sampled_priors()
    (found,) = fitting_value(scenario, pa.table({"s": ["a"], "x": [1.0]}))
    assert math.isfinite(found)
    assert abs(found) <= 5


def fails_as_told(table):
    """Fails in the way that the secret tells: a refusal would publish it."""
    told = table["told"][0].as_py()
    if told == "division":
        return 1 / 0
    if told == "refusal":
        raise ReleaseError("the secret is told")
    return {"one number": [1.0], "text": "told", "nan": [math.nan, 2.0], "value": [3.0, 2.0]}[told]


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("value", [3.0, 2.0]),
        ("nan", [1e6, 2.0]),
        *[(told, [1e6, 5.0]) for told in ("division", "refusal", "one number", "text", None)],
    ],
)
def test_gaussian_priors_refuse_no_value(ledger, told, expected):
    """What cannot be computed is put where the priors are, not refused, and nothing says so."""
    query = table_function(
        fails_as_told, names=["x", "y"], columns=["told"], description="two numbers, or none"
    ).with_scales([1.0, 3.0])
    p, q = bell([1e6 - 1, 4.0], np.eye(2)), bell([1e6 + 1, 6.0], np.eye(2))
    scenario = worlds(p=p, q=q, query=query)
    certificate = certified(scenario, generator=SEEDED)
    rows = pa.table({"told": pa.array([told], pa.string())})
    released = release(scenario, rows, certificate, ledger=ledger, generator=SEEDED)
    step = step_of(certificate)
    exact = [round(Fraction(x) / s / step) for x, s in zip(expected, (1, 3), strict=True)]
    assert without_noise(released) == exact
    assert "told" not in str(released.to_json())


def test_quantising_is_exact_and_to_the_nearest():
    step = 3.0 / 2**44
    value = np.array([1.0, -2.5, 0.1])
    center = np.array([0.25, 0.0, 0.1])
    grid = quantised(value, center, 3.0)
    for v, c, k in zip(value, center, grid, strict=True):
        assert abs(Fraction(v) - Fraction(c) - k * Fraction(step)) <= Fraction(step) / 2
    assert grid[2] == 0


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("noise", "std"), 1e-3),
        (("guarantee", "epsilon"), 0.1),
        (("scenario", "query", "scales"), [1.0, 1.0]),
        (("scenario", "pairs"), [["a", "b"]]),
    ],
)
def test_a_certificate_that_does_not_hold_releases_nothing(certificate, ledger, path, value):
    with pytest.raises(ReleaseError, match="does not hold for this scenario"):
        release_a(stating(certificate, path, value), ledger=ledger)
    assert not ledger.path.exists()


def closer(certificate, parts, **options):
    """The certificate as if distances of its parts were these factors of what they are."""
    evidence, edited = certificate.evidence, {}
    for name, factor in parts.items():
        if part := getattr(evidence, name):
            tables = attrs.evolve(part.differences, gaps=part.differences.gaps * factor)
            edited[name] = attrs.evolve(part, differences=tables)
    return issued(attrs.evolve(evidence, **edited), certificate.statement, **options)


@pytest.mark.soundness
@pytest.mark.parametrize("make", [GROUPS, RECORDS], ids=lambda s: s.distribution)
@pytest.mark.parametrize("target", [JOINT, Guarantee.unsliced(order=4, epsilon=1.0)], ids=str)
def test_evidence_that_was_edited_releases_nothing(make, target, ledger):
    """Evidence and statement were edited together, so they agree; the data do not."""
    certificate = certify_release(make, target.along(AXES))
    forged = closer(certificate, {"slices": 1e-3, "full": 1e-3})
    assert verify(forged).holds
    assert forged.noise_std < 2e-3 * certificate.noise_std
    assert not verify(forged, scenario=make).holds
    rows = rows_of("a") if make is GROUPS else rows_of("a").slice(0, 1)
    with pytest.raises(ReleaseError, match="does not hold for this scenario"):
        release(make, rows, forged, ledger=ledger)
    assert not ledger.path.exists()


@pytest.mark.soundness
def test_an_unsliced_bound_that_was_edited_releases_nothing(ledger):
    """The noise is right, but all coupled atoms but the farthest are said to be closer."""
    certificate = certified(RECORDS)
    tables = certificate.evidence.full.differences
    factors = np.full(len(tables.gaps), 0.5)
    factors[tables.starts[:-1]] = 1.0
    forged = closer(certificate, {"full": factors})
    assert forged.noise_std == certificate.noise_std
    assert forged.unsliced_epsilon < certificate.unsliced_epsilon
    assert verify(forged).holds
    with pytest.raises(ReleaseError, match="the data give"):
        release(RECORDS, rows_of("a").slice(0, 1), forged, ledger=ledger)


@pytest.mark.soundness
def test_a_cost_along_slices_that_was_edited_releases_nothing(ledger):
    """The noise is right and the unsliced bound too; only the cost along slices is understated."""
    certificate = certified(RECORDS, Guarantee.average(order=4, epsilon=4.0))
    forged = closer(certificate, {"slices": 1 / 20}, noise_std=certificate.noise_std)
    assert forged.spent < 0.02
    assert verify(forged).holds
    with pytest.raises(ReleaseError, match="spent"):
        release(RECORDS, rows_of("a").slice(0, 1), forged, ledger=ledger)


@pytest.mark.soundness
def test_an_unsliced_bound_cannot_be_left_out(certificate):
    evidence = certificate.evidence
    bare = attrs.evolve(evidence, full=attrs.evolve(evidence.full, differences=None))
    forged = issued(bare, certificate.statement)
    assert forged.unsliced_epsilon is None
    assert not verify(forged).holds
    assert not verify(forged, scenario=GROUPS).holds


@pytest.mark.soundness
def test_a_description_is_compared_to_the_last_digit(ledger):
    """A range far from 0 must not be stated narrower than it is."""
    query = summary(mean=["x"]).with_range(Box([1e9], [1e9 + 1]))
    table = pa.table({"s": ["a", "a", "b", "b"], "x": [1e9, 1e9 + 0.25, 1e9 + 0.5, 1e9 + 1]})
    scenario = Scenario.from_groups(table, secret="s", query=query)
    certificate = certified(scenario, profile=LINE)
    narrow = {"kind": "box", "low": [1e9 + 0.45], "high": [1e9 + 0.5]}
    changed_query = {**certificate.evidence.scenario["query"], "range": narrow}
    evidence = attrs.evolve(
        certificate.evidence, scenario={**certificate.evidence.scenario, "query": changed_query}
    )
    forged = issued(evidence, certificate.statement)
    with pytest.raises(ReleaseError, match="description"):
        release(scenario, table.slice(0, 2), forged, ledger=ledger)


@pytest.mark.soundness
def test_the_tables_of_a_certificate_are_locked(certificate):
    """They are used again by a release of the same process."""
    for tables in (certificate.evidence.slices.differences, certificate.evidence.full.differences):
        for array in (tables.gaps, tables.counts, tables.starts, tables.totals, tables.equal):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0


@pytest.mark.soundness
def test_no_value_of_any_prior_is_refused(tmp_path):
    """Under the second prior y lies where the first has no atom: a refusal would tell y from x."""

    def records(values, source):
        rows = [(s, float(x)) for s, xs in values.items() for x in xs for _ in range(2)]
        table = pa.table({"s": [s for s, _ in rows], "v": [v for _, v in rows]})
        return Scenario.from_records(table, secret="s", query=columns(["v"]), source=source)

    own = records({"x": [0, 1], "y": [0, 1, 2]}, "released_data")
    other = records({"x": [0, 1], "y": [5, 6]}, "held_out")
    other = attrs.evolve(other, priors=tuple(attrs.evolve(p, name="other") for p in other.priors))
    scenario = own.with_prior(other)
    for secret, value in (("x", 1.0), ("y", 5.0), ("y", 2.0)):
        found = fitting_value(scenario, pa.table({"s": [secret], "v": [value]}))
        assert found.tolist() == [value]
    with pytest.raises(ReleaseError, match="do not fit"):
        fitting_value(own, pa.table({"s": ["y"], "v": [5.0]}))


@pytest.mark.soundness
@pytest.mark.parametrize("cell", [0.0, math.inf, math.nan, None])
def test_sampled_priors_refuse_no_row(cell):
    """A division by 0, an infinite or a missing cell may be commoner under one of the secrets."""
    query = row_function(
        lambda row: row["x"] / row["y"], names=["r"], columns=["x", "y"], description="a ratio"
    ).with_range(Box([-5], [5]))
    rows = pa.table({"s": ["a", "b"] * 500, "x": [1.0] * 1000, "y": [1.0, 2.0] * 500})
    scenario = Scenario.from_records(rows, secret="s", query=query).with_sampled_priors()
    row = pa.table({"s": ["a"], "x": [1.0], "y": pa.array([cell], pa.float64())})
    (found,) = fitting_value(scenario, row)
    assert abs(found) <= 5
    with pytest.raises(TableError, match="y"):
        fitting_value(scenario, row.select(["s", "x"]))


@pytest.mark.soundness
@pytest.mark.parametrize(
    "other",
    [
        Scenario.from_groups(OTHER, secret="s", query=MEAN),
        Scenario.from_groups(TABLE, secret="s", query=MEAN, pairs=[("a", "b")]),
        Scenario.from_groups(TABLE, secret="s", query=MEAN.with_scales([1.0, 10.0])),
        RESAMPLED,
    ],
)
def test_the_certificate_of_another_scenario(certificate, ledger, other):
    with pytest.raises(ReleaseError, match=r"other distributions|does not hold for this scenario"):
        release(other, rows_of("a"), certificate, ledger=ledger)
    assert not ledger.path.exists()


def test_a_text_of_a_file_cannot_pass_for_another_line(ledger, certificate):
    document = release_a(certificate, ledger=ledger).to_json()
    text = str(Release.from_json({**document, "clipping": "x\nUnsliced: at most 0"}))
    assert "\nUnsliced: at most 0" not in text


class TestFromSamplesAndBins:
    """What a release may be of when the prior was sampled, or its rows only counted."""

    DRAWN = np.random.default_rng(4)
    MANY = pa.table({"s": ["a", "b"] * 1500, "x": DRAWN.normal(size=3000)})

    def sampled(self, query):
        return Scenario.from_records(self.MANY, secret="s", query=query).with_sampled_priors()

    @pytest.mark.parametrize("target", [JOINT, Guarantee.joint(epsilon=1.0, delta=0.05)], ids=str)
    def test_a_new_row_of_the_population_is_released(self, target, tmp_path):
        """The prior is the population, so the row need not be one of the draws."""
        scenario = self.sampled(columns(["x"]).with_range(Box([-5], [5])))
        certificate = certify_release(scenario, target.along(LINE), failure_probability=0.05)
        row = pa.table({"s": ["a"], "x": [0.12345]})
        released = release(scenario, row, certificate, ledger=tmp_path / "l")
        assert released.guarantee == str(target)
        assert abs(released.values[0]) < 8 * certificate.noise_std


@pytest.mark.soundness
@pytest.mark.parametrize(
    "damage", ["UPDATE contents SET text = replace(text, '1', '2')", "xx", "[]"]
)
def test_a_damaged_release_in_the_ledger_is_not_handed_out(certificate, ledger, tmp_path, damage):
    if damage.startswith("UPDATE"):
        release_a(certificate, ledger=ledger)
        with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
            connection.execute(damage)
            connection.commit()
    else:
        ledger.record_drawn(ledger.intend(grant_of(GROUPS, certificate)), damage)
    with pytest.raises(LedgerError, match="damaged"):
        release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()


def test_a_release_of_another_certificate_in_the_ledger_is_not_handed_out(
    certificate, ledger, tmp_path
):
    document = release_a(certificate, ledger=tmp_path / "one.ledger").to_json()
    entry = ledger.intend(grant_of(GROUPS, certificate))
    ledger.record_drawn(entry, json.dumps(document | {"certificate": "0" * 64}))
    with pytest.raises(LedgerError, match="another certificate"):
        release_again(certificate, ledger=ledger, out=tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()
