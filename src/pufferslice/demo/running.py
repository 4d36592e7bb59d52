# SPDX-License-Identifier: Apache-2.0
"""Run the demonstration: certify, release, verify, audit, report; all of it goes to one folder."""

import os
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice import datasets
from pufferslice.arrays import Floats
from pufferslice.audit import Audit, audit_release
from pufferslice.calibration import Slices, calibrate
from pufferslice.certificate import Certificate, certify_release, required_evidence, verify
from pufferslice.demo.result import DemoResult, SweptNoise, for_the_public, listed_files
from pufferslice.demo.setting import (
    CONFIDENCE,
    EPSILONS,
    FILES,
    GROUP,
    N_DIRECTIONS,
    N_OUTPUTS,
    NOTIONS,
    SECRET,
    SEED,
    TARGET,
)
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.guarantee import Guarantee
from pufferslice.laws import EmpiricalLaw
from pufferslice.outlook import CLOSED_FORM, TIGHT
from pufferslice.parallel import Progress, silent
from pufferslice.releasing import release
from pufferslice.report.page import internal_page
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile
from pufferslice.storage import CONFIDENTIAL, pretty_json, read_bytes, write_whole

_MARK: Final = "Made by `pufferslice demo`"
_LEDGER_REMAINS: Final = ("-journal", "-wal", "-shm")
_STEPS: Final = 7


def run_demo(out: str | os.PathLike[str], progress: Progress = silent) -> DemoResult:
    """Certify, release, verify, audit and report on the embedded Adult table; all goes to `out`.

    `out` must be new, empty, or the folder of an earlier demonstration, whose files are replaced,
    its ledger included: each run stands alone. Needs the extra `report`.
    """
    folder = Path(out)
    _clear(folder)
    table, scenario = _adult()
    progress(1, _STEPS)
    certificate = _certified(scenario, folder)
    progress(2, _STEPS)
    released = release(
        scenario,
        table.filter(pc.equal(table[SECRET], pa.scalar(GROUP))),
        certificate,
        ledger=folder / "demo.ledger",
        out=folder / "release.json",
    )
    progress(3, _STEPS)
    audit = _audited(scenario, certificate, folder)
    progress(4, _STEPS)
    values = _values(scenario)
    result = DemoResult(
        folder=folder,
        certificate=certificate,
        verification=verify(Certificate.load(folder / "certificate.json")),
        released=released,
        audit=audit,
        sweep=swept(required_evidence(certificate).slices),
        differences=np.ptp(values, axis=0) * scenario.query.scales,
    )
    progress(5, _STEPS)
    write_whole(folder / "summary.txt", f"{result}\n".encode(), CONFIDENTIAL)
    write_whole(folder / "summary.json", pretty_json(result.to_json()), CONFIDENTIAL)
    progress(6, _STEPS)
    about = ("certificate.json", "release.json", "audit.json")
    page = internal_page([folder / name for name in about])
    write_whole(folder / "report.html", page, CONFIDENTIAL)
    progress(7, _STEPS)
    return result


def swept(slices: Slices) -> tuple[SweptNoise, ...]:
    """The noise for every notion and epsilon, by both rules, from the same evidence."""
    targets = [
        Guarantee(notion=notion, order=TARGET.order, epsilon=epsilon)
        for notion in NOTIONS
        for epsilon in EPSILONS
    ]
    return tuple(
        SweptNoise(
            target=target,
            tight_std=calibrate(target, slices, TIGHT),
            closed_form_std=calibrate(target, slices, CLOSED_FORM),
        )
        for target in targets
    )


def _adult() -> tuple[pa.Table, Scenario]:
    table = datasets.adult_complete()
    query = datasets.adult_summary()
    return table, Scenario.from_groups(table, secret=SECRET, query=query)


def _certified(scenario: Scenario, folder: Path) -> Certificate:
    certificate = certify_release(scenario, _profile(scenario), TARGET, method=TIGHT)
    certificate.save(folder / "certificate.json")
    return certificate


def _profile(scenario: Scenario) -> FiniteProfile:
    return FiniteProfile.uniform(dim=scenario.dim, n_directions=N_DIRECTIONS, seed=SEED)


def _audited(scenario: Scenario, certificate: Certificate, folder: Path) -> Audit:
    audit = audit_release(
        scenario,
        _profile(scenario),
        certificate,
        n_outputs=N_OUTPUTS,
        confidence=CONFIDENCE,
        seed=SEED,
    )
    write_whole(folder / "audit.json", pretty_json(audit.to_json()), CONFIDENTIAL)
    return audit


def _values(scenario: Scenario) -> Floats:
    """The scaled query on each group, shape (n_groups, dim)."""
    laws = scenario.priors[0].laws.values()
    return np.vstack([law.outputs for law in laws if isinstance(law, EmpiricalLaw)])


def _clear(folder: Path) -> None:
    """Make the folder, or empty it of an earlier demonstration; anything else is left alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark = folder / "README.txt"
        ours = mark.exists() and read_bytes(mark, "settings").startswith(_MARK.encode())
        if not ours and any(folder.iterdir()):
            msg = (
                f"out must be a new or empty folder, or that of an earlier demonstration; "
                f"{str(folder)!r} holds other files. Name another folder"
            )
            raise ArgumentError(msg)
        for name in (*FILES, *(f"demo.ledger{suffix}" for suffix in _LEDGER_REMAINS)):
            if name != mark.name:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        msg = f"cannot use the folder {str(folder)!r}: {error}"
        raise StorageError(msg) from error
    # Written first, so that a run that was cut short is known as one.
    write_whole(folder / "README.txt", _readme().encode())


def _readme() -> str:
    return (
        f"{_MARK} on the public Adult table. The next run replaces these files and\n"
        "starts a new ledger. A real ledger is kept: it is what stops a second release.\n"
        f"{for_the_public()}\n\n{listed_files()}\n"
    )
