# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Messages as a user reads them: all are found in the source, met by a test, and say enough.

Which messages the tests meet is noted by tests/met_messages.py and listed after a whole run. Most
are met beside the code that raises them; here are those that no other test reads.
"""

import re
import shlex
from types import SimpleNamespace

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.met_messages import Recorder, messages

import pufferslice as ps
from pufferslice._core.arrays import locked, locked_integers
from pufferslice.audit import TrainingRuns
from pufferslice.certificate import statement
from pufferslice.certificate.evidence import Evidence
from pufferslice.cli import app
from pufferslice.cli.output import WRONG_USE
from pufferslice.config.scenario import request_of
from pufferslice.data.readers import pieces_of
from pufferslice.errors import PuffersliceError
from pufferslice.learning import Poisson, WorstCase, exactly, plan_with_noise

TABLE = pa.table({"site": ["a", "a", "b", "b"], "x": [0.0, 1.0, 2.0, 3.0]})
SCENARIO = ps.Scenario.from_groups(TABLE, secret="site", query=ps.queries.summary(mean=["x"]))
RECORDS = ps.Scenario.from_records(TABLE, secret="site", query=ps.queries.columns(["x"]))
LINE = ps.FiniteProfile.axes(dim=1)
TARGET = ps.Guarantee.joint(order=4, epsilon=1.0)
CERTIFICATE = ps.certify_release(SCENARIO, TARGET.along(LINE))
DOCUMENT = {
    "data": {"dataset": "adult"},
    "secret": {"column": "race"},
    "query": {"distribution": "groups", "mean": ["age"]},
    "prior": {"source": "released-data"},
    "profile": {"n_directions": 4, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}

WORLDS = """
[query]
distribution = "worlds"
mean = ["x"]

[gaussian.a]
mean = [0.0]
cov = [[1.0]]

[gaussian.b]
mean = [1.0]
cov = [[1.0]]

[profile]
kind = "axes"

[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""


def worlds(first, second):
    return ps.Scenario.from_worlds({"a": first, "b": second}, query=SCENARIO.query)


def changed(section, **keys):
    return DOCUMENT | {section: DOCUMENT.get(section, {}) | keys}


IN_PYTHON = [
    (lambda: locked("words"), "expected numbers, got str"),
    (lambda: locked_integers([0.5]), "expected integers, got list"),
    (
        lambda: attrs.evolve(
            CERTIFICATE.evidence, full=attrs.evolve(CERTIFICATE.evidence.full, dim=2)
        ).check(),
        "the evidence along the slices and in full",
    ),
    (
        lambda: TrainingRuns(worker="train", plan=None, n_runs=9),
        "as 'module:function', got 'train'",
    ),
    (
        lambda: ps.Scenario.from_groups(
            TABLE, secret="site", query=SCENARIO.query, pairs=[("a", "a")]
        ),
        "a pair must name two different secrets, got ('a', 'a')",
    ),
    (
        lambda: Evidence.of(RECORDS.with_sampled_priors(), LINE, None),
        "sampled distributions need a failure probability",
    ),
    (
        lambda: ps.Scenario.from_groups(
            TABLE.set_column(0, "site", [["a\0", "a\0", "b", "b"]]),
            secret="site",
            query=SCENARIO.query,
        ),
        "column 'site' has labels with a NUL character; remove it",
    ),
    (
        lambda: ps.Scenario.from_groups(
            TABLE.append_column("town", [["p & q", "p & q", "r", "r"]]),
            secret=["site", "town"],
            query=SCENARIO.query,
        ),
        "two secrets could become one. Rename these labels",
    ),
    (
        lambda: ps.Certificate.from_json(
            CERTIFICATE.to_json()
            | {"signature": {"algorithm": "ed25519", "public_key": "x", "value": 1}}
        ),
        "certificate.signature.public_key: must match pattern",
    ),
    (
        lambda: ps.plan_samples(
            SCENARIO, TARGET.along(LINE), noise_std=1.0, failure_probability=0.1
        ),
        "got (4, 1)-Joint-SRPP and empirical priors",
    ),
    (
        lambda: worlds([], TABLE),
        "a world that is a list of tables needs at least one table",
    ),
    (
        lambda: request_of(changed("guarantee", order="four"), "."),
        "[guarantee] order: must be a number",
    ),
    (
        lambda: request_of(changed("query", range={"low": [0]}), "."),
        "[query] range: needs low and high, or center and radius, or",
    ),
    (
        lambda: request_of(changed("query", distribution="worlds"), "."),
        "distribution 'worlds' needs exactly one section that declares them",
    ),
]
ON_THE_COMMAND_LINE = [
    ("calibrate", "there is no scenario.toml in this folder; name a scenario file"),
    ("calibrate worlds.toml --set epsilon=2", "--set 'epsilon' must be section.key=value"),
    (
        "release worlds.toml --certificate c.json --ledger l --out r.json --group a",
        "distribution 'worlds' has no rows to choose among; use --rows FILE",
    ),
    (
        "release --certificate c.json --ledger l --out r.json --group a",
        "give the scenario.toml that was certified; only --again works without it",
    ),
]


@pytest.mark.parametrize(("wrong", "said"), IN_PYTHON, ids=[said[:40] for _, said in IN_PYTHON])
def test_wrong_calls(wrong, said):
    with pytest.raises(PuffersliceError, match=re.escape(said)):
        wrong()


def test_a_release_without_noise_of_a_value_that_the_distributions_do_not_have(tmp_path):
    same = pa.table({"site": ["a", "a", "b", "b"], "x": [1.0, 2.0, 1.0, 2.0]})
    query = ps.queries.columns(["x"])
    scenario = ps.Scenario.from_records(same, secret="site", query=query, source="held_out")
    certificate = ps.certify_release(scenario, TARGET.along(LINE))
    with pytest.raises(
        ps.errors.ReleaseError, match="the rows have a value that these distributions do not have"
    ):
        ps.release(scenario, TABLE.slice(3, 1), certificate, ledger=tmp_path / "one.ledger")


def test_a_release_under_the_certificate_of_a_run(tmp_path):
    run = {"differing": exactly(1), "sampling": Poisson(n_records=9, rate=0.5), "clip_norm": 1.0}
    plan = plan_with_noise(**run, noise_multipliers=[2.0], accountant=WorstCase(), order=4)
    certificate = ps.certify_training(plan, data="nine records", noise="drawn by the system")
    with pytest.raises(ps.errors.ReleaseError, match="this certificate is of a training run"):
        ps.release(SCENARIO, TABLE.slice(0, 2), certificate, ledger=tmp_path / "one.ledger")


def test_a_noise_that_would_cost_more_than_the_target(monkeypatch):
    monkeypatch.setattr(statement, "spent_on", lambda *_: 1.5)
    with pytest.raises(ps.errors.CalibrationError, match=r"costs 1\.5, more than the target"):
        ps.certify_release(SCENARIO, TARGET.along(LINE))


def test_a_parquet_file_without_rows_among_others(tmp_path):
    pq.write_table(TABLE, tmp_path / "a.parquet")
    pq.write_table(TABLE.slice(0, 0), tmp_path / "b.parquet")
    with pytest.raises(
        ps.errors.TableError, match="has no rows; remove it, or name the other files"
    ):
        pieces_of([tmp_path / "a.parquet", tmp_path / "b.parquet"], ["x"])


@pytest.mark.parametrize(("command", "said"), ON_THE_COMMAND_LINE, ids=lambda text: text[:30])
def test_wrong_commands(command, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app.run(["init", "start"])
    CERTIFICATE.save("c.json")
    (tmp_path / "worlds.toml").write_text(WORLDS)
    capsys.readouterr()
    assert app.run(shlex.split(command)) == WRONG_USE
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert said in told


class TestFound:
    def test_messages_in_all_spellings(self, tmp_path, monkeypatch):
        path = tmp_path / "pufferslice" / "some.py"
        path.parent.mkdir()
        path.write_text(
            """
def f(x):
    if x:
        msg = (
            f"x must be 0, got {x!r}. "
            "Take 0"
        )
        raise ArgumentError(msg)
    try:
        return 1
    except OSError as error:
        raise StorageError(error.errno, "cannot read" + f" {x}") from error

def built(why):
    return errors.LedgerError(
        why
    )

def other():
    raise KeyError("not ours")
""",
            encoding="utf-8",
        )
        names = messages.error_names()
        monkeypatch.setattr(messages, "PACKAGE", path.parent)
        monkeypatch.setattr(messages, "error_names", lambda: names)
        found = messages.sites_of(path)
        assert [(site.kind, site.text) for site in found] == [
            ("ArgumentError", "x must be 0, got {x}. Take 0"),
            ("StorageError", "cannot read {x}"),
            ("LedgerError", "{why}"),
        ]
        assert found[2].last_line == found[2].first_line + 2
        assert str(found[0]).startswith("pufferslice.some:8 ArgumentError: x must")

    def test_every_error_of_the_package_is_a_site(self):
        """Counted another way: by the text of the source."""
        kinds = "|".join(messages.error_names())
        pattern = re.compile(rf"\b(?:raise|return) (?:\w+\.)?({kinds})\(")
        counted = {
            messages.name_of(path): len(pattern.findall(path.read_text(encoding="utf-8")))
            for path in messages.modules()
        }
        found = dict.fromkeys(counted, 0)
        for site in messages.all_sites():
            found[site.module] += 1
        assert not {name: n for name, n in counted.items() if n > found[name]}

    def test_quotes_inside_a_message_do_not_end_it(self):
        assert messages.quoted("plain") == "`plain`"
        assert messages.quoted("use `x`") == "`` use `x` ``"

    def test_other_pages_stay_as_they_are(self):
        assert messages.on_page_markdown("a page") == "a page"
        assert "ArgumentError" in messages.on_page_markdown(f"x {messages.PLACEHOLDER}")


class TestEach:
    """What can be checked without reading; the rest was read."""

    def test_every_message_says_something(self):
        assert not [str(site) for site in messages.all_sites() if not site.text]

    def test_no_message_shouts_or_ends_in_a_full_stop(self):
        wrong = [
            str(site)
            for site in messages.all_sites()
            if "!" in re.sub(r"\{[^}]*\}", "", site.text) or site.text.endswith(".")
        ]
        assert not wrong

    def test_only_training_warns(self):
        """An unsound request raises; a wasteful one is told in the certificate, or while training.

        Training says once that it is slow, that it takes examples by themselves, and that noise
        drowns what Adam adapts to.
        """
        places = [site.module for site in messages.all_sites() if site.kind == "warning"]
        assert places == ["pufferslice.torch.clipping"] * 2 + ["pufferslice.torch.trainer"]


class TestRecorder:
    def test_a_site_is_met_when_its_error_is_built(self):
        recorder = Recorder()
        before = PuffersliceError.__dict__["__init__"]
        recorder.start()
        try:
            with pytest.raises(ps.errors.ArgumentError):
                locked("words")
            with pytest.raises(ps.errors.StorageError) as caught:
                ps.Certificate.load("/nowhere/at/all.json")
        finally:
            PuffersliceError.__init__ = before
        assert caught.value.errno == 2
        assert {module for module, _ in recorder.met} >= {"pufferslice._core.arrays"}
        unmet = {site.module for site in recorder.unmet()}
        assert "pufferslice.releases.ledger" in unmet
        assert len(recorder.unmet()) < len(messages.all_sites())

    def test_workers_hand_over_what_they_met(self):
        said = {"pufferslice_messages_met": [["pufferslice._core.arrays", 1]]}
        recorder = Recorder()
        recorder.pytest_testnodedown(SimpleNamespace(workeroutput=said), None)
        recorder.pytest_testnodedown(object(), "crashed before it could say")
        assert recorder.met == {("pufferslice._core.arrays", 1)}
