# SPDX-License-Identifier: Apache-2.0
"""Streamed couplings: exact marginals, bounds near those in memory, files that cannot be forged."""

import gc
import itertools
import json
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferslice import Guarantee, Scenario, certify_release, release, verify
from pufferslice._core.files import canonical_json, digest
from pufferslice.baselines import w_infinity
from pufferslice.errors import ArgumentError, ScenarioError, StorageError
from pufferslice.queries import Box, columns
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.histograms import BinnedDistribution
from pufferslice.sensitivity import (
    DistributionPair,
    RowScan,
    scan_files,
    scan_tables,
    spill_files,
    spill_tables,
    strata,
    streamed_scenario,
)
from pufferslice.sensitivity.couplings import Recipe, coupling_tables
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import full_sensitivity
from pufferslice.sensitivity.strata import (
    ORDER_KEY,
    Cut,
    cuts_of,
    ordered_places,
    rounded_masses,
    strata_count,
    strata_tables,
)
from pufferslice.sensitivity.whitening import Shape

GROUP = "group"
NAMES = ["x", "y", "z"]
QUERY = columns(NAMES).with_range(Box([-4] * 3, [4] * 3)).with_scales([1, 2, 0.5])
PROFILE = FiniteProfile.uniform(dim=3, n_directions=5, seed=3)
SCAN = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=64)
WHOLE = Guarantee.unsliced(order=4, epsilon=1.0)
SHAPE = Shape.of_covariance([[1.0, 0.2, 0.0], [0.2, 0.5, 0.1], [0.0, 0.1, 2.0]])


def people(rng, **sizes):
    """Rows of groups in random order, some of them beyond the range."""
    groups = rng.permutation(np.repeat(list(sizes), list(sizes.values())))
    numbers = rng.normal(size=(len(groups), 3)) + 0.5 * (groups == "a")[:, None]
    return pa.table({GROUP: groups, **dict(zip(NAMES, numbers.T, strict=True))})


def spilled(table, most_rows, scan=SCAN):
    histograms = scan_tables([table], scan)
    return histograms, spill_tables([table], scan, histograms, most_rows=most_rows)


def prepared(table, secret):
    chosen = np.array(table[GROUP].to_pylist()) == secret
    return QUERY.prepared(np.column_stack([table[name].to_numpy()[chosen] for name in NAMES]))


def temporary_folders():
    return set(Path(tempfile.gettempdir()).glob("pufferslice-strata-*"))


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
def data(rng, tmp_path):
    """A file of 200 and 151 rows."""
    pa.parquet.write_table(people(rng, a=200, b=151), tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def coupled(found, recipe, shape=None):
    """The tables of all pairs of secrets."""
    sides = list(found.values())
    pairs = [DistributionPair(*pair) for pair in itertools.combinations(range(len(sides)), 2)]
    tables = strata_tables(sides, pairs, recipe, shape=shape, center=QUERY.center)
    tables.check()
    return tables


def coupled_in_memory(table, secrets, recipe, shape=None):
    rows = [prepared(table, secret) for secret in secrets]
    if shape is not None:
        rows = [shape.whitened(part, QUERY.center) for part in rows]
    distributions = [FiniteDistribution.uniform(part) for part in rows]
    pairs = [DistributionPair(*pair) for pair in itertools.combinations(range(len(rows)), 2)]
    return coupling_tables(distributions, pairs, recipe)


class TestOrder:
    @given(n=st.integers(1, 3_000), cut=st.integers(0, 3_000))
    def test_it_is_a_permutation_however_rows_come(self, n, cut):
        first = min(cut, n)
        parts = (
            ordered_places(0, first, n, ORDER_KEY),
            ordered_places(first, n - first, n, ORDER_KEY),
        )
        assert sorted(np.concatenate(parts).tolist()) == list(range(n))

    def test_it_mixes_early_and_late_rows(self):
        n = 100_000
        strata_of_rows = ordered_places(0, n, n, ORDER_KEY) * 8 // n
        table = np.zeros((8, 8))
        np.add.at(table, (np.arange(n) * 8 // n, strata_of_rows), 1)
        assert np.abs(table * 64 / n - 1).max() < 0.1


class TestCut:
    @pytest.mark.soundness
    @given(n_rows=st.integers(1, 60), data=st.data())
    def test_every_row_and_every_stratum_has_its_mass(self, n_rows, data):
        cut = Cut(n_rows=n_rows, n_strata=data.draw(st.integers(1, n_rows)))
        mass = Counter()
        for k in range(cut.n_strata):
            masses = cut.masses(k).tolist()
            assert min(masses) >= 1
            for place, part in enumerate(masses, start=cut.first(k)):
                mass[place] += Fraction(part, sum(masses) * cut.n_strata)
        assert mass == {place: Fraction(1, n_rows) for place in range(n_rows)}

    def test_more_strata_than_rows(self):
        with pytest.raises(ArgumentError, match="n_strata must be at most n_rows = 3, got 4"):
            Cut(n_rows=3, n_strata=4)

    def test_the_number_grows_with_rows_and_columns(self):
        assert [strata_count(n, 10) for n in (1, 200_000, 200_001, 10_000_000)] == [1, 1, 2, 64]
        assert strata_count(100_000, 1_000) == 32
        assert strata_count(5, 10**9) == 4


@st.composite
def two_groups(draw):
    sizes = {"a": draw(st.integers(2, 9)), "b": draw(st.integers(2, 9))}
    return people(np.random.default_rng(draw(st.integers(0, 99))), **sizes)


class TestMarginals:
    @pytest.mark.soundness
    @given(table=two_groups(), most_rows=st.integers(1, 9), batch=st.integers(1, 7))
    @settings(max_examples=50)
    def test_strata_put_together_are_the_rows(self, table, most_rows, batch):
        histograms = scan_tables([table], SCAN)
        tables = [table.slice(i, batch) for i in range(0, table.num_rows, batch)]
        found = spill_tables(tables, SCAN, histograms, most_rows=most_rows)
        for secret, part in found.items():
            mass = Counter()
            totals = set()
            for k in range(part.n_strata):
                rows, masses = part.rows(k), part.masses(k)
                totals.add(int(masses.sum()))
                for row, count in zip(rows.tolist(), masses.tolist(), strict=True):
                    mass[tuple(row)] += Fraction(count, int(masses.sum()) * part.n_strata)
            expected = Counter()
            for row in prepared(table, secret).tolist():
                expected[tuple(row)] += Fraction(1, part.n_rows)
            assert mass == expected
            assert len(totals) == 1

    @pytest.mark.soundness
    @given(table=two_groups(), most_rows=st.integers(1, 9))
    @settings(max_examples=25)
    def test_the_bound_is_never_below_the_truth(self, table, most_rows):
        _, found = spilled(table, most_rows)
        tables = coupled(found, Recipe())
        exact = [FiniteDistribution.uniform(prepared(table, secret)) for secret in "ab"]
        assert tables.worst().min() >= w_infinity(*exact) * (1 - 1e-12)
        # Small enough to be solved exactly.
        best = coupled_in_memory(table, "ab", Recipe())
        squares = [
            np.add.reduceat(each.masses * each.gaps**2, each.starts[:-1]).min()
            for each in (tables, best)
        ]
        assert squares[0] * (1 + 2 / 128) >= squares[1] / (1 + 2 / 128)

    def test_batches_and_files_do_not_matter(self, rng, tmp_path, monkeypatch):
        table = people(rng, a=301, b=500)
        histograms, whole = spilled(table, 64)
        pieces = [table.slice(i, 77) for i in range(0, 801, 77)]
        cut = spill_tables(pieces, SCAN, histograms, most_rows=64)
        monkeypatch.setattr("pufferslice.data.readers.ROWS_PER_BATCH", 50)
        pa.parquet.write_table(table, tmp_path / "people.parquet", row_group_size=130)
        files = spill_files(tmp_path / "people.parquet", SCAN, histograms, most_rows=64)
        for secret in "ab":
            assert whole[secret].digest == cut[secret].digest == files[secret].digest
        assert whole["a"].n_strata == whole["b"].n_strata == 8
        other = spill_tables([table], SCAN, histograms, most_rows=65)
        assert other["a"].digest == whole["a"].digest
        assert spill_tables([table], SCAN, histograms)["a"].digest != whole["a"].digest


class TestTables:
    @pytest.mark.parametrize("shape", [None, SHAPE], ids=["isotropic", "shaped"])
    @pytest.mark.parametrize("cost", ["squared", "renyi"])
    def test_one_stratum_is_as_in_memory(self, rng, shape, cost):
        table = people(rng, a=400, b=307)
        _, found = spilled(table, 1_000)
        assert found["a"].n_strata == 1
        recipe = Recipe(effort="quick", cost=cost, rate=0.2 if cost == "renyi" else 0.0)
        ours = coupled(found, recipe, shape)
        theirs = coupled_in_memory(table, "ab", recipe, shape)
        assert np.array_equal(ours.starts, theirs.starts)
        assert np.array_equal(ours.counts, theirs.counts)
        assert ours.gaps == pytest.approx(theirs.gaps, rel=1e-12, abs=1e-12)
        assert (ours.gaps >= theirs.gaps).all()

    @pytest.mark.parametrize(
        ("sizes", "most_rows", "noise_std"),
        [
            ({"a": 20_000, "b": 20_000}, 10_001, 3.0),
            ({"a": 20_001, "b": 18_000}, 10_001, 3.0),
            ({"a": 30_000, "b": 300}, 10_001, 3.0),
            pytest.param(
                dict.fromkeys("abc", 250_000), strata.MOST_ROWS, 2.0, marks=pytest.mark.slow
            ),
        ],
    )
    def test_strata_cost_little(self, rng, sizes, most_rows, noise_std):
        """A small group is one stratum for all of a large one."""
        table = people(rng, **sizes)
        _, found = spilled(table, most_rows)
        assert max(part.n_strata for part in found.values()) > 1
        recipe = Recipe(effort="quick", cost="renyi", rate=4 * 3 / (2 * noise_std**2))
        costs = [
            tables.log_moments(recipe.rate, 0.0).min(axis=1).max()
            for tables in (coupled(found, recipe), coupled_in_memory(table, sizes, recipe))
        ]
        assert costs[0] <= 1.3 * costs[1]

    @pytest.mark.soundness
    def test_masses_that_do_not_fit_are_moved_up(self, rng, monkeypatch):
        table = people(rng, a=61, b=53)
        _, found = spilled(table, 10)
        exact = coupled(found, Recipe())
        monkeypatch.setattr(strata, "_LARGEST_TOTAL", 100)
        monkeypatch.setattr(strata, "_QUANTA", 1_000)
        moved = coupled(found, Recipe())
        assert moved.totals.tolist() == [1_000]
        assert (moved.worst() == exact.worst()).all()
        for rate in (0.01, 0.5, 3.0):
            costs = exact.log_moments(rate, 0.0), moved.log_moments(rate, 0.0)
            assert (costs[1] >= costs[0]).all()
        assert moved.means() == pytest.approx(exact.means(), rel=0.1)

    @given(
        masses=st.lists(st.integers(1, 10**30), min_size=1, max_size=8), quanta=st.integers(1, 50)
    )
    def test_rounded_masses_are_never_fewer_above(self, masses, quanta):
        total = sum(masses)
        rounded = rounded_masses(np.array(masses, dtype=object), total, quanta).tolist()
        assert sum(rounded) == quanta
        assert min(rounded) >= 0
        for i in range(len(masses)):
            assert Fraction(sum(rounded[: i + 1]), quanta) >= Fraction(sum(masses[: i + 1]), total)


class TestScenario:
    def test_a_certificate_from_strata(self, rng, tmp_path):
        table = people(rng, a=900, b=700)
        histograms, found = spilled(table, 10_000)
        streamed = streamed_scenario(histograms, SCAN, strata=found)
        in_memory = Scenario.from_records(table, secret=GROUP, query=QUERY)
        ours, theirs = (
            certify_release(scenario, WHOLE, effort="quick") for scenario in (streamed, in_memory)
        )
        assert ours.noise_std == pytest.approx(theirs.noise_std, rel=1e-9)
        assert ours.statement["noise"]["shape"]["kind"] == "fitted"
        assert not ours.evidence.full.from_range
        assert verify(ours, scenario=streamed).holds
        released = release(streamed, table.slice(0, 1), ours, ledger=tmp_path / "people.ledger")
        assert len(released.values) == 3

    @pytest.mark.parametrize("n_bins", [4, 64])
    def test_a_coupling_is_never_below_the_gaps_of_wide_bins(self, rng, n_bins):
        table = people(rng, a=200, b=150)
        scan = RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=n_bins)
        histograms, found = spilled(table, 60, scan)
        scenario = streamed_scenario(histograms, scan, strata=found)
        sliced = Guarantee.joint(order=4, epsilon=1.0).along(PROFILE)
        certificate = certify_release(scenario, sliced, effort="quick")
        assert verify(certificate, scenario=scenario).holds
        assert "couplings" in certificate.statement["unsliced"]["from"]

    def test_the_digest_covers_the_strata(self, rng):
        table = people(rng, a=200, b=150)
        histograms, found = spilled(table, 60)
        with_strata = streamed_scenario(histograms, SCAN, strata=found)
        without = streamed_scenario(histograms, SCAN)
        assert with_strata.distributions_digest() != without.distributions_digest()
        first, second = (
            scenario.priors[0].distributions["a"] for scenario in (with_strata, without)
        )
        assert isinstance(first, BinnedDistribution)
        assert first != second
        again = streamed_scenario(*spilled(table, 60)[:1], SCAN, strata=spilled(table, 60)[1])
        assert again.distributions_digest() == with_strata.distributions_digest()

    @pytest.mark.soundness
    def test_sampled_priors_keep_the_range(self, rng):
        """Couplings of samples bound the samples only."""
        histograms, found = spilled(people(rng, a=200, b=150), 60)
        sampled = streamed_scenario(histograms, SCAN, strata=found).with_sampled_priors()
        assert full_sensitivity(sampled, recipe=Recipe()).from_range
        plain = streamed_scenario(histograms, SCAN).with_sampled_priors()
        assert sampled.distributions_digest() == plain.distributions_digest()

    def test_strata_of_other_rows_are_refused(self, rng):
        histograms, found = spilled(people(rng, a=200, b=150), 60)
        with pytest.raises(ScenarioError, match="strata must be those of the secrets"):
            streamed_scenario(histograms, SCAN, strata={"a": found["a"]})
        with pytest.raises(ArgumentError, match="strata must be of the rows that were counted"):
            streamed_scenario(histograms, SCAN, strata={"a": found["b"], "b": found["a"]})


class Stop(Exception):  # noqa: N818 - not an error
    """Raised in the middle of a spill."""


def stop(_done, _total):
    raise Stop


FORKED = """
import os, sys, tempfile
from tests.sensitivity.test_strata import SCAN
from pufferslice.sensitivity import scan_files, spill_files
path = sys.argv[1]
tempfile.tempdir = os.path.dirname(path)
found = spill_files(path, SCAN, scan_files(path, SCAN), most_rows=60)
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1], len(found["a"].rows(0)))
else:
    found["a"].folder.close()
    os._exit(0)
"""


class TestFolder:
    def test_size_is_announced_before_and_files_are_confidential(self, rng):
        table = people(rng, a=200, b=151)
        histograms = scan_tables([table], SCAN)
        sizes = []
        found = spill_tables([table], SCAN, histograms, most_rows=60, announce=sizes.append)
        (folder,) = temporary_folders()
        file = folder / "rows.f64"
        assert sizes == [file.stat().st_size]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        del found, file
        gc.collect()
        assert not temporary_folders()

    def test_a_full_disk_is_told_before(self, rng, monkeypatch):
        table = people(rng, a=200, b=151)
        histograms = scan_tables([table], SCAN)
        full = type("Usage", (), {"free": 1_000})
        monkeypatch.setattr(strata.shutil, "disk_usage", lambda _: full)
        with pytest.raises(StorageError, match=r"the strata take .* GiB in"):
            spill_tables([table], SCAN, histograms)
        assert not temporary_folders()

    def test_errors_leave_nothing(self, data, tmp_path):
        histograms = scan_files(data, SCAN)
        with pytest.raises(Stop):
            spill_tables([pa.parquet.read_table(data)], SCAN, histograms, progress=stop)
        with pytest.raises(Stop):
            spill_files(data, SCAN, histograms, progress=stop)
        assert not temporary_folders()
        with pytest.raises(Stop):
            spill_files(data, SCAN, histograms, progress=stop, folder=tmp_path / "kept")
        assert [file.name for file in (tmp_path / "kept").iterdir()] == ["lock"]

    @pytest.mark.soundness
    @pytest.mark.parametrize("change", ["fewer", "more", "secret", *NAMES])
    def test_rows_that_the_scan_has_not_counted_are_refused(self, rng, change):
        """A change of any column, each of which only one direction sees."""
        table = people(rng, a=200, b=150)
        axes = RowScan.of(QUERY, secret=GROUP, profile=FiniteProfile.axes(dim=3), n_bins=64)
        histograms = scan_tables([table], axes)
        if change in NAMES:
            halved = pa.array(table[change].to_numpy() / 2)
            tables = [table.set_column(1 + NAMES.index(change), change, halved)]
        else:
            renamed = table.set_column(0, GROUP, pa.array(["c"] * 350))
            more = [table, table.slice(0, 1)]
            tables = {"fewer": [table.slice(1)], "more": more, "secret": [renamed]}[change]
        with pytest.raises(ScenarioError, match="the rows are not those that were counted"):
            spill_tables(tables, axes, histograms)
        assert not temporary_folders()

    def test_a_removed_folder_is_told(self, rng):
        _, found = spilled(people(rng, a=200, b=150), 60)
        found["a"].folder.close()
        with pytest.raises(StorageError, match="are gone or cannot be read"):
            found["a"].rows(0)

    def test_a_folder_of_another_user_is_left_alone(self, rng, tmp_path, monkeypatch):
        """Whose process is gone or not; a folder of this user is removed."""
        folder = Path(tempfile.gettempdir()) / "pufferslice-strata-abandoned"
        folder.mkdir()
        (folder / "lock").write_bytes(b"")
        with monkeypatch.context() as other:
            other.setattr(strata.os, "getuid", lambda: folder.stat().st_uid + 1)
            spilled(people(rng, a=20, b=20), 10)
        assert folder.exists()
        spilled(people(rng, a=20, b=20), 10)
        assert not folder.exists()

    def test_a_system_without_locks(self, rng, monkeypatch):
        """Rows are spilled as elsewhere; what others left is not touched, since they may run."""
        table = people(rng, a=200, b=151)
        _, locked = spilled(table, 60)
        folder = Path(tempfile.gettempdir()) / "pufferslice-strata-abandoned"
        folder.mkdir()
        (folder / "lock").write_bytes(b"")
        monkeypatch.setattr(strata, "fcntl", None)
        _, found = spilled(table, 60)
        assert {secret: part.digest for secret, part in found.items()} == {
            secret: part.digest for secret, part in locked.items()
        }
        assert folder.exists()

    def test_a_forked_process_does_not_remove_the_rows_of_its_parent(self, data, tmp_path):
        command = [sys.executable, "-c", FORKED, str(data)]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert done.stdout.split() == ["0", "50"], done.stderr
        assert not list(tmp_path.glob("pufferslice-strata-*"))

    def test_secrets_that_a_part_names_but_does_not_have(self, rng):
        """Parts of a table with a dictionary name every secret of it."""
        table = people(rng, a=200, b=151)
        coded = table.set_column(0, GROUP, table[GROUP].dictionary_encode())
        order = np.argsort(np.array(table[GROUP].to_pylist()), kind="stable")
        histograms = scan_tables([table], SCAN)
        _, whole = spilled(table.take(order), 60)
        parts = [coded.take(order).slice(0, 200), coded.take(order).slice(200)]
        found = spill_tables(parts, SCAN, histograms, most_rows=60)
        for secret in "ab":
            assert found[secret].digest == whole[secret].digest


def spill_into(data, folder, scan=SCAN, most_rows=60):
    """The strata, their digests, and whether rows were written."""
    histograms, reports = scan_files(data, scan), []
    options = {"folder": folder, "most_rows": most_rows}
    found = spill_files(
        data, scan, histograms, **options, progress=lambda *counts: reports.append(counts)
    )
    return found, {secret: part.digest for secret, part in found.items()}, bool(reports)


class TestHostileFolder:
    def test_a_finished_spill_is_taken_up(self, data, tmp_path):
        found, digests, is_written = spill_into(data, tmp_path / "kept")
        assert is_written
        with pytest.raises(StorageError, match="is used by another process"):
            spill_into(data, tmp_path / "kept")
        del found
        gc.collect()
        _kept, again, is_written = spill_into(data, tmp_path / "kept")
        assert again == digests
        assert not is_written

    @pytest.mark.parametrize("options", [{"most_rows": 30}, {"scan": "other"}])
    def test_another_scan_is_refused(self, data, tmp_path, options):
        spill_into(data, tmp_path / "kept")
        gc.collect()
        if "scan" in options:
            options = {"scan": RowScan.of(QUERY, secret=GROUP, profile=PROFILE, n_bins=32)}
        with pytest.raises(StorageError, match="are of other data or another scan"):
            spill_into(data, tmp_path / "kept", **options)

    @pytest.mark.soundness
    @pytest.mark.parametrize("change", ["missing", "truncated", "edited", "longer manifest"])
    def test_changed_files_are_refused(self, data, tmp_path, change):
        found, _, _ = spill_into(data, tmp_path / "kept")
        rows = tmp_path / "kept" / "rows.f64"
        content = bytearray(rows.read_bytes())
        if change == "missing":
            rows.unlink()
        elif change == "truncated":
            rows.write_bytes(content[:-8])
        elif change == "edited":
            content[-1] ^= 1
            rows.write_bytes(content)
        if change == "longer manifest":
            manifest = tmp_path / "kept" / "manifest.json"
            manifest.write_bytes(manifest.read_bytes().replace(b'"a"', b'"A"'))
        else:
            part = found["b"]
            with pytest.raises(StorageError, match=r"are gone|were truncated or changed"):
                part.rows(part.n_strata - 1)
            del part
        del found
        gc.collect()
        with pytest.raises(StorageError, match=r"are gone|were truncated or changed"):
            spill_into(data, tmp_path / "kept")

    @pytest.mark.soundness
    @pytest.mark.parametrize("change", ["borders", "one border", "far border", "rows"])
    def test_a_manifest_made_to_fit_is_refused(self, data, tmp_path, change):
        """Digests alone could be recomputed by whoever edits: the rows are counted again."""
        spill_into(data, tmp_path / "kept")
        gc.collect()
        manifest, rows = tmp_path / "kept" / "manifest.json", tmp_path / "kept" / "rows.f64"
        facts = json.loads(manifest.read_bytes())
        facts.pop("digest")
        part = facts["secrets"]["b"]
        if change == "borders":
            part["borders"][0][1] = (part["borders"][0][1] + 1) % 30
        elif change == "one border":
            part["borders"][0][0] = part["borders"][0][1]
        elif change == "far border":
            part["borders"][0][0] -= Cut(n_rows=151, n_strata=4).size(0)
        else:
            values = np.frombuffer(rows.read_bytes()).copy()
            values[-3:] = -values[-3:]
            rows.write_bytes(values.tobytes())
            size = Cut(n_rows=151, n_strata=4).size(3)
            part["digests"][3] = strata.hashlib.sha256(values[-3 * size :].tobytes()).hexdigest()
        manifest.write_text(json.dumps({**facts, "digest": digest(canonical_json(facts))}))
        with pytest.raises(StorageError, match="were truncated or changed"):
            spill_into(data, tmp_path / "kept")

    @pytest.mark.parametrize("content", [b"", b"hello", b"[]", b"{}", b'{"digest": 1}'])
    def test_another_manifest_is_refused(self, data, tmp_path, content):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "manifest.json").write_bytes(content)
        with pytest.raises(StorageError, match="were truncated or changed"):
            spill_into(data, tmp_path / "kept")

    def test_a_folder_that_cannot_be_made(self, data, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageError):
            spill_into(data, tmp_path / "file")


KILLED = """
import os, signal, sys, tempfile
from tests.sensitivity.test_strata import SCAN
from pufferslice.sensitivity import scan_files, spill_files
path, folder, when = sys.argv[1:]
tempfile.tempdir = os.path.dirname(path)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
counted = scan_files(path, SCAN)
found = spill_files(path, SCAN, counted, folder=folder or None, most_rows=60,
                    **({"progress": die} if when == "writing" else {}))
die()
"""


class TestKilled:
    def kill(self, data, folder, when):
        command = [sys.executable, "-c", KILLED, str(data), str(folder), when]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr

    @pytest.mark.parametrize("when", ["writing", "finished"])
    def test_the_next_spill_removes_what_was_left(self, data, tmp_path, monkeypatch, when):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        self.kill(data, "", when)
        (left,) = temporary_folders()
        histograms = scan_files(data, SCAN)
        found = spill_files(data, SCAN, histograms, most_rows=60)
        (folder,) = temporary_folders()
        assert folder != left
        assert found["a"].rows(0).shape == (50, 3)

    @pytest.mark.parametrize("when", ["writing", "finished"])
    def test_a_kept_folder_resumes_or_starts_again(self, data, tmp_path, when):
        self.kill(data, tmp_path / "kept", when)
        assert (tmp_path / "kept" / "manifest.json").exists() == (when == "finished")
        _, digests, is_written = spill_into(data, tmp_path / "kept")
        assert is_written == (when == "writing")
        assert spill_into(data, None)[1] == digests


class TestStorage:
    def test_no_temporary_folder(self, rng, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        with pytest.raises(StorageError, match="temporary folder"):
            spilled(people(rng, a=20, b=20), 10)

    def test_a_folder_that_cannot_be_locked(self, data, tmp_path):
        (tmp_path / "kept" / "lock").mkdir(parents=True)
        with pytest.raises(StorageError, match="cannot write"):
            spill_files(data, SCAN, scan_files(data, SCAN), folder=tmp_path / "kept")

    def test_a_full_disk(self, rng):
        table = people(rng, a=2_000, b=2_000)
        spilled(table, 1_000)  # compiles, which writes files
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
        try:
            with pytest.raises(StorageError, match=r"cannot write|nothing was kept"):
                spilled(table, 1_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def test_too_many_rows_to_count(self):
        with pytest.raises(ScenarioError, match="rows"):
            cuts_of(SimpleNamespace(n_rows={"a": 2**31}), 1_000)
