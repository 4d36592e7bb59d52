# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Every reader of a file, as a function of bytes: it gives a value or one of the library's errors.

Used by `test_readers.py` with damaged files, and by `atheris_readers.py` with a fuzzer that looks
for bytes that reach new lines.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pufferslice.audit import Outputs
from pufferslice.certificate import Certificate, verify
from pufferslice.certificate.evidence import Evidence
from pufferslice.config import read_plan, read_request, read_training
from pufferslice.data import read_table
from pufferslice.errors import PuffersliceError
from pufferslice.learning.keys import RunKey
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import Release
from pufferslice.report.inputs import read_file
from pufferslice.sensitivity.profiles import FiniteProfile

SCRATCH = Path(tempfile.mkdtemp(prefix="readers-"))
PEOPLE = "site,pay,age\na,1,2\na,2.5,3\nb,4,5\nb,8,5\nb,,6\n"


def _file(name: str, content: bytes) -> Path:
    path = SCRATCH / name
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def _certificate(path: Path) -> None:
    certificate = Certificate.load(path)
    str(certificate)
    verify(certificate)


def _evidence(path: Path) -> None:
    evidence = Evidence.from_bytes(path.read_bytes())
    for part in (evidence.slices, evidence.full):
        assert part is None or np.isfinite(part.missing).all()
    evidence.digest()


def _scenario(path: Path) -> None:
    (SCRATCH / "people.csv").write_text(PEOPLE)
    read_request(path)


def _training(path: Path) -> None:
    multipliers = read_training(path).plan.noise_multipliers
    assert np.isfinite(multipliers).all()
    assert (multipliers > 0).all()


def _release(path: Path) -> None:
    release = Release.load(path)
    assert np.isfinite(release.values).all()
    assert (release.noise_stds >= 0).all()
    str(release)


def _table(path: Path) -> None:
    assert read_table(path).num_rows


def _run_checkpoint(path: Path) -> None:
    from pufferslice.torch.checkpoint import Checkpoint

    Checkpoint.from_bytes(path.read_bytes(), "the checkpoint")


def _run_key(path: Path) -> None:
    assert len(RunKey.read(path).to_bytes()) == 32


def _ledger(path: Path) -> None:
    for suffix in ("-journal", "-wal", "-shm"):
        (SCRATCH / f"ledger{suffix}").unlink(missing_ok=True)
    for entry in Ledger(path).entries():
        assert entry.state in ("intended", "drawn", "published")


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "certificate": ("statement.json", _certificate),
    "evidence": ("evidence", _evidence),
    "shaped certificate": ("statement.json", _certificate),
    "shaped evidence": ("evidence", _evidence),
    "scenario": ("scenario.toml", _scenario),
    "training": ("training.toml", _training),
    "plan": ("plan.json", read_plan),
    "release": ("release.json", _release),
    "csv": ("table.csv", _table),
    "zipped csv": ("table.csv.gz", _table),
    "parquet": ("table.parquet", _table),
    "run checkpoint": ("checkpoint", _run_checkpoint),
    "run key": ("run.key", _run_key),
    "ledger": ("ledger", _ledger),
    "outputs": ("outputs.npz", Outputs.load),
    "audit": ("reported", read_file),
    "training log": ("reported", read_file),
}
"""The name of the file, and what reads it."""


def read(name: str, content: bytes) -> bool:
    """Whether the reader took the bytes; any other error than the library's own is a failure."""
    file, reader = READERS[name]
    try:
        reader(_file(file, content))
    except PuffersliceError as error:
        if not str(error):
            raise AssertionError from error
        return False
    return True


def good_files() -> dict[str, bytes]:
    """A file of each kind that its reader takes."""
    return dict(_good_files())


def _good_files() -> Iterator[tuple[str, bytes]]:
    import gzip

    from tests.scenario_files import TRAINING, toml_text

    shaped, certificate, scenario, rows = _certified()
    for kind, written in (("", certificate), ("shaped ", shaped)):
        written.save(SCRATCH / "good.json")
        yield f"{kind}certificate", (SCRATCH / "good.json").read_bytes()
        yield f"{kind}evidence", (SCRATCH / "good.evidence.npz").read_bytes()
    yield "scenario", toml_text(_SCENARIO).encode()
    yield "training", toml_text(TRAINING).encode()
    plan = read_training(_file("training.toml", toml_text(TRAINING).encode())).plan
    yield "plan", json.dumps(plan.to_json()).encode()
    yield from _released(certificate, scenario, rows)
    yield "csv", PEOPLE.encode()
    yield "zipped csv", gzip.compress(PEOPLE.encode())
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"site": ["a", "b"], "pay": [1.0, 2.0]}), sink)
    yield "parquet", sink.getvalue().to_pybytes()
    yield "run checkpoint", _trained()
    yield "audit", _audited(certificate, scenario)
    row = {"step": 1, "n_steps": 2, "notion": "unsliced", "order": 4.0, "epsilon": 1.0}
    log = [row | {"step": step, "spent_epsilon": step / 2} for step in (1, 2)]
    yield "training log", "".join(json.dumps(row) + "\n" for row in log).encode()
    yield "run key", b"pufferslice-run-key 1\n" + b"5a" * 32 + b"\n"


_SCENARIO: dict[str, Any] = {
    "data": {"path": "people.csv", "missing": "drop-rows"},
    "secret": {"column": "site"},
    "query": {"distribution": "groups", "mean": ["pay", "age"]},
    "profile": {"n_directions": 2, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}


def _certified() -> tuple[Certificate, Certificate, Any, Any]:
    from pufferslice.certificate import certify_release
    from pufferslice.claims import Guarantee
    from pufferslice.queries import summary
    from pufferslice.scenario.scenario import Scenario

    table = pa.table({"site": ["a", "a", "b", "b"], "pay": [1.0, 2.5, 4.0, 5.0]})
    scenario = Scenario.from_groups(table, secret="site", query=summary(mean=["pay"], std=["pay"]))
    profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=1)
    sliced = Guarantee.joint(order=4, epsilon=1.0, profile=profile)
    shaped = certify_release(scenario, Guarantee.guess(at_most=0.6))
    return shaped, certify_release(scenario, sliced), scenario, table.slice(2)


def _released(certificate: Certificate, scenario: Any, rows: Any) -> Iterator[tuple[str, bytes]]:
    from pufferslice.audit import draw_outputs
    from pufferslice.releases.release import release

    for name in ("ledger", "ledger-journal", "good-release.json"):
        (SCRATCH / name).unlink(missing_ok=True)
    path = SCRATCH / "good-release.json"
    release(scenario, rows, certificate, ledger=SCRATCH / "ledger", out=path)
    yield "release", path.read_bytes()
    yield "ledger", (SCRATCH / "ledger").read_bytes()
    draw_outputs(scenario, certificate, 8, seed=0).save(SCRATCH / "outputs.npz")
    yield "outputs", (SCRATCH / "outputs.npz").read_bytes()


def _audited(certificate: Certificate, scenario: Any) -> bytes:
    from pufferslice.audit import audit_release

    profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=1)
    options = {"n_outputs": 1_000, "confidence": 0.95, "seed": 0}
    return json.dumps(audit_release(scenario, profile, certificate, **options).to_json()).encode()


def _trained() -> bytes:
    import torch

    from pufferslice.torch.checkpoint import Checkpoint

    return Checkpoint(
        run="0" * 16,
        plan="0" * 64,
        step=1,
        block=None,
        states={"model": {"w": torch.zeros(2)}, "optimizer": {}, "scheduler": None},
        names=("w",),
        kinds={"optimizer": "SGD", "scheduler": "NoneType"},
    ).to_bytes()
