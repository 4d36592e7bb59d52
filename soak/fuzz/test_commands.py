# SPDX-License-Identifier: Apache-2.0
"""Odd files and odd flags: never a traceback, never a budget that is none, never half a file."""

import contextlib
import json
import os
import re
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak.fuzz.commands import FUZZED, command
from soak.fuzz.odd import ODD_NUMBERS, ODD_TEXTS, changed, damaged
from soak.sizes import SIZE
from tests.scenario_files import PEOPLE, TRAINING, csv_text, toml_text

from pufferslice._core.files import canonical_json, digest

slow_to_make = settings(
    max_examples=SIZE.commands,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.fixture
def place(good, tmp_path):
    """An empty folder, filled anew for every example."""
    numbers = iter(range(10**9))

    def fresh(*names):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for name in names:
            shutil.copyfile(good / name, folder / name)
        return folder

    return fresh


DATA = ("people.csv", "people.parquet", "many.parquet")


@pytest.mark.parametrize("name", FUZZED)
@given(data=st.data())
@slow_to_make
def test_calibrate_a_changed_scenario(place, name, data):
    folder = place(*DATA)
    document = data.draw(changed(FUZZED[name]))
    (folder / "s.toml").write_text(toml_text(document))
    command(folder, "calibrate", "s.toml", "--out", "made.json", "--json")


@given(data=st.data())
@slow_to_make
def test_calibrate_a_damaged_scenario(place, good, data):
    folder = place(*DATA)
    name = data.draw(st.sampled_from(sorted(FUZZED)))
    raw = data.draw(damaged((good / f"{name}.toml").read_bytes()))
    (folder / "s.toml").write_bytes(raw)
    command(folder, "calibrate", "s.toml", "--out", "made.json", "--json")


cells = st.one_of(
    st.sampled_from(["", "nan", "NaN", "inf", "-inf", "1e400", "-1e308", "1e308", "0", "-0", "?",
                     "5", "5.5", "x", '"', '"a,b"', "\0", "é", "9" * 400, "1e-320", "true",
                     "2020-01-01"]),
    st.floats(-100, 100).map(repr),
)  # fmt: skip


@st.composite
def odd_tables(draw):
    """CSV text with odd cells, groups, headers and line ends."""
    n = draw(st.integers(0, 8))
    constant = draw(st.booleans())
    cell = st.just(draw(cells)) if constant else cells
    rows = [(draw(st.sampled_from(["a", "b", "", "a "])), draw(cell), draw(cell)) for _ in range(n)]
    if draw(st.booleans()):
        rows = [*PEOPLE, *rows]
    header = draw(
        st.sampled_from(["site,pay,age"] * 4 + ["site,pay,pay", "site,pay", "", ",,",
                                                "\ufeffsite,pay,age", "site;pay;age"])
    )  # fmt: skip
    text = csv_text(rows, header)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return text.encode("latin-1" if draw(st.booleans()) and "\ufeff" not in text else "utf-8")


@given(raw=odd_tables(), name=st.sampled_from(["groups", "records", "bootstrap"]))
@slow_to_make
def test_calibrate_an_odd_table(place, raw, name):
    folder = place()
    (folder / "people.csv").write_bytes(raw)
    (folder / "s.toml").write_text(toml_text(FUZZED[name]))
    command(folder, "calibrate", "s.toml", "--out", "made.json", "--json")


@given(data=st.data(), name=st.sampled_from(["groups", "records", "sampled"]))
@slow_to_make
def test_calibrate_a_damaged_table(place, good, data, name):
    folder, file = place(*DATA), FUZZED[name]["data"]["path"]
    (folder / file).write_bytes(data.draw(damaged((good / file).read_bytes())))
    (folder / "s.toml").write_text(toml_text(FUZZED[name]))
    command(folder, "calibrate", "s.toml", "--out", "made.json", "--json")


def damaged_certificate(draw, folder, good, name):
    """A changed statement, its digest made right again or not; or damaged bytes."""
    path, evidence = folder / "c.json", folder / "c.evidence.npz"
    shutil.copyfile(good / f"{name}.json", path)
    shutil.copyfile(good / f"{name}.evidence.npz", evidence)
    way = draw(st.sampled_from(["statement", "document", "bytes", "evidence", "absent", "good"]))
    if way in ("statement", "document"):
        document = json.loads(path.read_bytes())
        if way == "statement":
            document["statement"] = draw(changed(document["statement"]))
            # NaN has no canonical spelling; the file says it all the same.
            with contextlib.suppress(ValueError):
                document["digest"] = digest(canonical_json(document["statement"]))
        else:
            document = draw(changed(document))
        path.write_text(json.dumps(document))
    elif way == "bytes":
        path.write_bytes(draw(damaged(path.read_bytes())))
    elif way == "evidence":
        evidence.write_bytes(draw(damaged(evidence.read_bytes())))
    elif way == "absent":
        evidence.unlink()
    return path


@given(data=st.data())
@slow_to_make
def test_what_reads_certificates(place, good, data):
    folder = place(*DATA, "release.json", "ledger")
    name = data.draw(st.sampled_from(sorted(FUZZED)))
    shutil.copyfile(good / f"{name}.toml", folder / "s.toml")
    shutil.copytree(good / "keys", folder / "keys")
    damaged_certificate(data.draw, folder, good, name)
    arguments = data.draw(
        st.sampled_from(
            [
                ["verify", "c.json", "--json"],
                ["verify", "c.json", "--key", "keys/public.pem"],
                ["spent", "c.json", "--json"],
                ["spent", "c.json", "--scenario", "s.toml", "--json"],
                ["sign", "c.json", "--key", "keys/private.pem"],
                ["audit", "c.json", "--scenario", "s.toml", "--n-outputs", "200", "--json"],
                ["report", "c.json", "release.json", "--out", "report.html"],
                ["release", "s.toml", "--certificate", "c.json", "--ledger", "new", "--out",
                 "r.json", "--group", "a", "--json"],
                ["release", "s.toml", "--certificate", "c.json", "--ledger", "ledger", "--out",
                 "r.json", "--row", "1"],
                ["release", "--certificate", "c.json", "--ledger", "ledger", "--out", "r.json",
                 "--again"],
            ]
        )
    )  # fmt: skip
    command(folder, *arguments)
    page = folder / "report.html"
    assert not page.exists() or page.read_bytes().rstrip().endswith(b"</html>")


@given(data=st.data())
@slow_to_make
def test_release_with_a_damaged_ledger_key_or_release(place, good, data):
    folder = place(
        *DATA, "scenario.toml", "groups.json", "groups.evidence.npz", "release.json", "ledger"
    )
    shutil.copytree(good / "keys", folder / "keys")
    name = data.draw(
        st.sampled_from(["ledger", "release.json", "keys/private.pem", "keys/public.pem"])
    )
    raw = data.draw(damaged((good / name).read_bytes()))
    (folder / name).write_bytes(raw)
    release = ["release", "--certificate", "groups.json", "--ledger", "ledger", "--out", "r.json"]
    if name == "ledger":
        command(folder, *release, "scenario.toml", "--group", "b")
        command(folder, *release[:-1], "again.json", "--again")
        command(folder, "calibrate", "scenario.toml", "--ledger", "ledger", "--out", "made.json")
    elif name == "release.json":
        command(folder, "report", "groups.json", "release.json", "--out", "report.html")
    else:
        command(folder, "sign", "groups.json", "--key", "keys/private.pem")
        command(folder, "verify", "groups.json", "--key", "keys/public.pem", "--json")


words = st.one_of(st.sampled_from(ODD_TEXTS).filter(lambda s: "\0" not in s), st.text(max_size=6))
numbers = st.sampled_from(ODD_NUMBERS).map(repr)

CALIBRATE = {
    "data.path": st.sampled_from(["people.csv", "people.parquet", "nothing.csv", "."]),
    "data.missing": st.sampled_from(["refuse", "drop-rows", "x"]),
    "data.null_values": words,
    "secret.column": st.sampled_from(["site", "pay", "site,pay", "none", ""]),
    "query.distribution": st.sampled_from(["groups", "records", "bootstrap", "worlds", "none"]),
    "query.columns": st.sampled_from(['["pay"]', '["site"]', "[]", '["pay", "pay"]', "pay"]),
    "query.mean": st.sampled_from(['["pay"]', "[]", "pay"]),
    "query.scales": st.lists(numbers, max_size=3).map(",".join),
    "query.range": st.sampled_from(["{low=[0,0], high=[1,1]}", "{pay=[1,0]}", "[nan, inf]"]),
    "prior.kind": st.sampled_from(["empirical", "sampled", "x"]),
    "prior.source": st.sampled_from(["held-out", "public-model", "x"]),
    "guarantee": st.sampled_from(["{notion='guess', at_most=0.6}", "{}", "x"]),
    "guarantee.notion": st.sampled_from(["joint", "unsliced", "average-over-batches", "x"]),
    "guarantee.order": numbers,
    "guarantee.epsilon": numbers,
    "guarantee.delta": numbers,
    "guarantee.failure_probability": numbers,
    "profile.kind": st.sampled_from(["uniform", "sphere", "whole-sphere", "x"]),
    "profile.n_directions": st.sampled_from(["0", "1", "5", "-3", "1e3", "x"]),
    "profile.seed": numbers,
    "calibration.rule": st.sampled_from(["tight", "closed-form", "x"]),
    "calibration.envelope": st.sampled_from(["transport", "worst-gap", "exact", "x"]),
    "": words,
}

ACCOUNT = {
    "--n-records": numbers, "--sampling": st.sampled_from(["poisson", "with-replacement", "x"]),
    "--batch-size": numbers, "--n-steps": numbers, "--order": numbers, "--exactly": numbers,
    "--at-most": numbers, "--mismatch-probability": numbers, "--epsilon": numbers,
    "--noise-multiplier": numbers, "--delta": numbers,
}  # fmt: skip
ACCOUNT_FIRST = {
    "--n-records": "50", "--sampling": "poisson", "--batch-size": "5", "--n-steps": "3",
    "--order": "4", "--exactly": "2", "--epsilon": "1",
}  # fmt: skip


@st.composite
def flags(draw, known, first):
    """Good flags, of which one to three are changed, left out or added."""
    extra = dict(first)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(known)))
        if draw(st.integers(0, 4)) == 0:
            extra.pop(name, None)
        else:
            extra[name] = draw(known[name])
    return [part for flag in extra.items() for part in flag]


@given(data=st.data(), keys=st.lists(st.sampled_from(sorted(CALIBRATE)), min_size=1, max_size=3))
@slow_to_make
def test_calibrate_with_odd_overrides(place, data, keys):
    changes = [f"--set={key}={data.draw(CALIBRATE[key])}" for key in keys]
    command(
        place(*DATA, "records.toml"), "calibrate", "records.toml", *changes, "--out", "made.json"
    )


@given(extra=flags(ACCOUNT, ACCOUNT_FIRST))
@slow_to_make
def test_account_with_odd_flags(place, extra):
    command(place(), "account", *extra, "--json")


@given(data=st.data())
@slow_to_make
def test_train_a_changed_file(place, data):
    """Only files that are refused are run; whether the others train well is tested elsewhere."""
    from pufferslice.config import read_training
    from pufferslice.errors import PuffersliceError

    folder = place()
    (folder / "t.toml").write_text(toml_text(data.draw(changed(TRAINING))))
    try:
        request = read_training(folder / "t.toml")
    except PuffersliceError:
        command(folder, "train", "t.toml")
        return
    plan = request.plan
    assert plan.noise_multipliers.min() > 0
    assert plan.noise_multipliers.max() < float("inf")
    assert 0 <= plan.guarantee().epsilon < float("inf")


@given(extra=st.lists(words, max_size=4), name=st.sampled_from(
    ["", "init", "calibrate", "spent", "release", "verify", "audit", "account", "train", "compare",
     "sign", "keygen", "report", "none", "--help"]
))  # fmt: skip
@slow_to_make
def test_any_words(place, extra, name):
    """Words that are no options; a folder that they name is made below the example's own.

    It does not begin with a dot, as the remains of files that `command` looks for do.
    """
    safe = [word for word in extra if not re.match(r"/|-|(.*/)?\.(?!$)", word, re.DOTALL)]
    if name or safe:  # without a word it prints its help, and that is wrong use
        command(place(), *([name] if name else []), *safe)


COMPARE = {
    "--q": numbers, "--regularisation": numbers, "--tolerance": numbers,
    "--group-sensitivity": numbers, "--largest-table": numbers,
}  # fmt: skip


@given(data=st.data(), extra=flags(COMPARE, {}))
@slow_to_make
def test_compare_a_changed_scenario(place, data, extra):
    folder = place(*DATA)
    name = data.draw(st.sampled_from(["groups", "records"]))
    (folder / "s.toml").write_text(toml_text(data.draw(changed(FUZZED[name]))))
    command(folder, "compare", "s.toml", *extra, "--json")


OUTS = ["people.csv/made.json", ".", "no/such/made.json", "pipe", "pipe/x", ""]


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["calibrate", "scenario.toml", "--out"],
        ["release", "scenario.toml", "--certificate", "groups.json", "--ledger", "new", "--group",
         "a", "--out"],
        ["release", "--certificate", "groups.json", "--ledger", "ledger", "--again", "--out"],
        ["report", "groups.json", "--out"],
        ["report", "groups.json", "--label", "--out"],
        ["init"],
        ["keygen"],
        ["release", "scenario.toml", "--certificate", "groups.json", "--out", "r.json", "--group",
         "a", "--ledger"],
        ["calibrate", "scenario.toml", "--ledger"],
        ["verify"],
        ["train"],
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)  # fmt: skip
def test_places_where_nothing_can_be_written(place, arguments, out):
    """A file in place of a folder, a folder in place of a file, a pipe, no name at all."""
    folder = place(*DATA, "scenario.toml", "groups.json", "groups.evidence.npz", "ledger")
    os.mkfifo(folder / "pipe")
    if arguments[0] in ("verify", "train") or arguments[-1] == "--ledger":
        out = out.replace("pipe", "scenario.toml")  # nobody writes to the pipe that they would read
    command(folder, *arguments, out)
    assert (folder / "pipe").is_fifo()
