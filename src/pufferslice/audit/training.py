# SPDX-License-Identifier: Apache-2.0
"""Audit of a training plan: train many times in both worlds of a secret, and compare.

A worker trains once and returns what it would release. Each finished block of runs is a complete
file, so an interrupted audit keeps its finished blocks.
"""

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, array_in, locked
from pufferslice._core.checks import check_between, check_count, check_finite, check_unique, is_a
from pufferslice._core.files import (
    CONFIDENTIAL,
    make_folder,
    parsed_json,
    pretty_json,
    read_bytes,
    write_new,
    write_whole,
)
from pufferslice._core.threads import Progress, n_cores, silent
from pufferslice.audit.divergence import (
    Claimed,
    Lines,
    LineTest,
    RenyiTest,
    SplitOutputs,
    audit_lines,
    both_orders,
    epsilon_test,
    guess_test,
    outputs_needed,
)
from pufferslice.audit.noise import MOST_AXES, pilot_lines
from pufferslice.audit.verdict import Verdict
from pufferslice.claims import Guess, Renyi
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import TrainingPlan

FORMAT: Final = "pufferslice-training-audit"
VERSION: Final = 1

MANIFEST: Final = "audit.json"

DEFAULT_BLOCK: Final = 50
"""Runs per file: the most that a killed audit loses in each process."""


@final
@attrs.frozen(kw_only=True)
class TrainingRuns:
    """Training that is repeated under a plan, and how often in each of two worlds.

    `worker` names a function as `module:function`. It is called as `function(world, plan)`, trains
    once in that world, and returns the numbers that it releases: weights, some of them, or
    projections of them by a rule fixed beforehand. It must draw new noise and batches in every call
    and keep no state between calls.
    """

    worker: str
    plan: TrainingPlan
    n_runs: int
    """Number of runs in each world, fixed before the first: adding some after a look is unsound."""
    worlds: tuple[str, str] = attrs.field(default=("first", "second"), converter=tuple)
    """Names of the two worlds of the secret."""
    block: int = DEFAULT_BLOCK
    """Runs per file."""

    def __attrs_post_init__(self) -> None:
        module, _, function = str(self.worker).partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
            raise ArgumentError(
                f"worker must name a function as 'module:function', got {self.worker!r}"
            )
        if not is_a(self.plan, TrainingPlan):
            raise ArgumentError(
                f"plan must be a TrainingPlan, got {type(self.plan).__name__}; see plan_training"
            )
        check_count(1, n_runs=self.n_runs, block=self.block)
        n_worlds = len(self.worlds)
        if n_worlds != 2:
            raise ArgumentError(f"worlds must be the names of two worlds, got {n_worlds}")
        check_unique("worlds", self.worlds)

    @property
    def blocks(self) -> tuple["RunBlock", ...]:
        """All blocks, the worlds in turn, so that an unfinished audit has as many runs of both."""
        starts = range(0, self.n_runs, self.block)
        return tuple(
            RunBlock(world=world, number=number, n_runs=min(self.block, self.n_runs - start))
            for number, start in enumerate(starts)
            for world in (0, 1)
        )

    def to_json(self) -> dict[str, Any]:
        """The identity of a folder of runs, as JSON values."""
        return {
            "worker": self.worker,
            "plan": self.plan.to_json(),
            "n_runs": int(self.n_runs),
            "worlds": list(self.worlds),
            "block": int(self.block),
        }


class RunBlock(NamedTuple):
    """Some runs in one world, in one file."""

    world: int
    """0 or 1."""
    number: int
    n_runs: int

    @property
    def file_name(self) -> str:
        """The file of its released vectors, one per row."""
        return f"world-{self.world}-block-{self.number:06d}.npy"


def train_repeatedly(
    runs: TrainingRuns,
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    n_processes: int | None = None,
    progress: Progress = silent,
) -> tuple[Floats, Floats]:
    """Train in both worlds and return what was released, shape (n_runs, dim) for each world.

    The folder is created if needed, and serves one call at a time. If it holds blocks of the same
    runs, only the missing ones are run; if it belongs to other runs, or to other `settings` of the
    caller, it is refused. Only the owner can read its files: no plan covers so many runs on the
    same records. `progress` counts runs, including those in the folder.

    Ctrl-C ends the processes at once, and finished blocks stay. If only this process is
    interrupted, it first waits for the current runs.
    """
    place = Path(folder)
    n_workers = n_cores() if n_processes is None else n_processes
    check_count(1, n_processes=n_workers)
    _open_folder(place, runs.to_json() | dict(settings or {}))
    missing = [block for block in runs.blocks if not (place / block.file_name).exists()]
    total = 2 * int(runs.n_runs)
    done = total - sum(block.n_runs for block in missing)
    progress(done, total)
    # Closed at once when interrupted, so that the processes do not outlive the call.
    with closing(_finished(runs, missing, min(n_workers, len(missing)))) as finished:
        for block, released in finished:
            with io.BytesIO() as file:
                np.save(file, released, allow_pickle=False)
                write_whole(place / block.file_name, file.getvalue(), CONFIDENTIAL)
            done += block.n_runs
            progress(done, total)
    return _collected(runs, place)


def _open_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Claim the folder for these runs, or check that it belongs to them."""
    wanted = {"format": FORMAT, "version": VERSION, **identity}
    path = folder / MANIFEST
    make_folder(folder, mode=0o700)
    if not path.exists():
        if any(folder.glob("*.npy")):
            raise ArgumentError(
                f"{str(folder)!r} holds arrays but no {MANIFEST}; use another folder"
            )
        write_new(path, pretty_json(wanted), CONFIDENTIAL)
    try:
        manifest = parsed_json(read_bytes(path, "document"))
    except ValueError:
        manifest = None
    # Through JSON, so that both sides have the same spelling.
    wanted = parsed_json(pretty_json(wanted))
    if not isinstance(manifest, dict):
        manifest = {}
    other = sorted(key for key in {*manifest, *wanted} if manifest.get(key) != wanted.get(key))
    if other:
        raise ArgumentError(
            f"the folder {str(folder)!r} belongs to another audit: {', '.join(other)} differ. Use "
            "another folder; an audit is fixed before its first run"
        )
    for unfinished in folder.glob(".world-*.npy.*"):
        unfinished.unlink(missing_ok=True)


def _finished(
    runs: TrainingRuns, blocks: list[RunBlock], n_workers: int
) -> Generator[tuple[RunBlock, Floats], None, None]:
    """The blocks as they are finished, in any order."""
    if not blocks:
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(n_workers, context, _begin, (stop,))
    try:
        pending: dict[Future[Floats], RunBlock] = {
            pool.submit(_train_block, runs, block): block for block in blocks
        }
        for future in as_completed(pending):
            yield pending[future], future.result()
    except BrokenProcessPool as error:
        raise TrainingError(
            f"a process of worker {runs.worker!r} died: it was killed, ran out of memory, or could "
            "not start (a script must call the audit below `if __name__ == '__main__':`). Finished "
            "runs are kept; call again with the same folder to resume"
        ) from error
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


_stop: Event | None = None
"""Event in a process of the pool: set when the remaining runs are no longer wanted."""


def _begin(stop: Event) -> None:
    """Let a process of the pool end silently with an interrupt, and with its parent."""
    global _stop  # noqa: PLW0603 - the one way to hand a process something before its first task
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _train_block(runs: TrainingRuns, block: RunBlock) -> Floats:
    """Train one block in a process of the pool, or its beginning if it is no longer wanted."""
    try:
        train = resolve_name(runs.worker)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"worker {runs.worker!r} cannot be imported: {error}") from error
    if not callable(train):
        raise ArgumentError(
            f"worker {runs.worker!r} must be a function, got a {type(train).__name__}"
        )
    released: list[Floats] = []
    for _ in range(block.n_runs):
        if _stop is not None and _stop.is_set():
            break
        values = np.atleast_1d(locked(train(runs.worlds[block.world], runs.plan)))
        if values.ndim != 1 or not values.size:
            raise ArgumentError(
                f"worker {runs.worker!r} must return a vector of numbers, got shape {values.shape}"
            )
        check_finite(**{f"what worker {runs.worker!r} released": values})
        released.append(values)
        _check_lengths(runs, released[0], values)
    return np.array(released)


def _collected(runs: TrainingRuns, folder: Path) -> tuple[Floats, Floats]:
    """All blocks of both worlds, in order."""
    parts: tuple[list[Floats], list[Floats]] = ([], [])
    for block in runs.blocks:
        path = folder / block.file_name
        try:
            released = array_in(read_bytes(path, "archive"))
        except ValueError:
            released = np.empty(0)
        right = released.dtype == np.float64 and released.ndim == 2
        if not (right and len(released) == block.n_runs and np.isfinite(released).all()):
            raise ArgumentError(
                f"{str(path)!r} is not the block of {block.n_runs} runs that was written; delete "
                "that file and call again to repeat its runs"
            )
        parts[block.world].append(released)
        _check_lengths(runs, parts[0][0][0], released[0])
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _check_lengths(runs: TrainingRuns, first: Floats, other: Floats) -> None:
    if len(first) != len(other):
        raise ArgumentError(
            f"worker {runs.worker!r} must release the same number of values in every run, got "
            f"{len(first)} and {len(other)}"
        )


def audit_training(
    runs: TrainingRuns,
    *,
    folder: str | os.PathLike[str],
    confidence: float,
    seed: int,
    n_processes: int | None = None,
    progress: Progress = silent,
) -> Verdict:
    """Try to refute the guarantee of a plan by what its training releases.

    The training runs in both worlds, in `n_processes` processes. A tenth of the runs, chosen by the
    public `seed`, selects the line and its bins: axes of the released vector, the difference of the
    means, and two lines along which the covariance shows least noise. The others bound the
    divergence from below.
    The folder keeps finished runs; called again with the same arguments, an audit resumes.

    Guarantee: if what is released keeps the plan's guarantee, the verdict is `refuted` with
    probability at most 1 - `confidence`. It does not cover what the worker does not release.
    Needs: independent runs in the two worlds of the plan, which differ in no more records than the
    plan allows.
    """
    check_between(0, 1, confidence=confidence)
    check_count(0, seed=seed)
    test, claimed = auditable_claim(runs.plan)
    needed = outputs_needed(test, claimed.claimed, 1, confidence)
    if needed is None:
        raise ArgumentError(
            f"no number of runs can refute {claimed.claim}: an audit refutes an epsilon up to "
            "about the logarithm of their number. Audit a plan with a smaller bound"
        )
    if runs.n_runs < needed:
        raise ArgumentError(
            f"too few runs for confidence {confidence:g}: {runs.n_runs} in each world can never "
            f"refute {claimed.claim}, and {needed} are needed. To find a wrong factor takes "
            "several times as many"
        )
    settings = {"confidence": float(confidence), "seed": int(seed)}
    released = train_repeatedly(
        runs, folder, settings=settings, n_processes=n_processes, progress=progress
    )
    return audit_released(runs, released, confidence=confidence, seed=seed)


def audit_released(
    runs: TrainingRuns, released: tuple[Floats, Floats], *, confidence: float, seed: int
) -> Verdict:
    """The verdict on finished runs: one released vector per row, by world."""
    (test, claimed), rng = auditable_claim(runs.plan), np.random.default_rng(seed)
    parts = [SplitOutputs.of(values, rng=rng) for values in released]
    named = dict(zip(runs.worlds, parts, strict=True))
    lines = _lines(*(part.pilot for part in parts))
    comparisons = both_orders(runs.plan.differing.origin, named, [runs.worlds])
    return audit_lines(
        [(comparison, lines) for comparison in comparisons],
        test,
        claimed,
        confidence=confidence,
    )


def auditable_claim(plan: TrainingPlan) -> tuple[LineTest, Claimed]:
    """The guarantee of the plan and its test, if runs can refute it."""
    measure, claim = plan.measure, plan.guarantee()
    words = f"{claim}, whole run"
    if measure.kind is Renyi:
        return RenyiTest(measure.order), Claimed(words, "epsilon", claim.bound)
    if measure.delta is not None:
        return epsilon_test(measure.delta), Claimed(words, "epsilon", claim.bound)
    if measure.kind is Guess:
        return guess_test(), Claimed(words, "guess", claim.bound)
    raise ArgumentError(
        f"the plan claims {claim}; no run can refute bits, nor a mean over batch draws. Audit a "
        "plan that claims right guesses, (epsilon, delta) or a Rényi divergence"
    )


def _lines(first: Floats, second: Floats) -> Lines:
    """The axes if there are few, the means over variances, and the lines of the pilots."""
    dim = first.shape[1]
    lines: dict[str, Floats] = {}
    if dim <= MOST_AXES:
        lines = {f"released number {i}": axis for i, axis in enumerate(np.eye(dim))}
    if dim > 1:
        spread = first.var(axis=0) + second.var(axis=0)
        spread[spread == 0] = max(float(spread.max()), 1.0) * 1e-12
        weighted = (first.mean(axis=0) - second.mean(axis=0)) / spread
        length = float(np.linalg.norm(weighted))
        if length > 0:
            lines["the difference of the means"] = weighted / length
    lines |= pilot_lines(first, second)
    lines = lines or {"released number 0": np.eye(1, dim)[0]}
    return Lines(np.array([*lines.values()]), tuple(lines))
