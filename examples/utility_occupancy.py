# SPDX-License-Identifier: Apache-2.0
"""A utility hides whether a home was occupied at 20:00, and publishes its weekly totals.

Simulated data: someone is at home or not in each half-hour of four weeks, by a Markov chain, and
uses more electricity at home. What a half-hour uses in each state is known from other homes. Totals
of single days would tell nothing under noise that hides an evening, and the verdict says so.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import pufferslice as ps
from pufferslice.certificate import verdict

WEEKS, WEEK, DAY = 4, 336, 48
CHAIN = np.array([[0.97, 0.03], [0.07, 0.93]])
CLAIM = ps.Guarantee.guess(at_most=0.64)


def kwh(rng: np.random.Generator, states: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Electricity of half-hours in these states."""
    return np.round(rng.gamma(2.0, np.where(states == 1, 0.3, 0.08)), 3)


def hidden(column: str, slots: int, loads: pa.Table) -> ps.Scenario:
    """Every evening at 20:00, where the total of so many half-hours each is published."""
    period = [slot // slots + 1 for slot in range(WEEKS * WEEK)]
    query = ps.queries.group_by({column: sorted(set(period))}, total=["kwh"], clip={"kwh": (0, 3)})
    return ps.Scenario.from_occupancy(
        CHAIN,
        positions=range(40, WEEKS * WEEK, DAY),
        periods={column: period},
        loads=loads,
        query=query,
        name="home 7",
    )


def main() -> None:
    """Declare chain and loads, certify, judge, release."""
    rng = np.random.default_rng(20)
    known = np.arange(4_000) % 2
    loads = pa.table({"state": known, "kwh": kwh(rng, known)})
    states = [1]
    for _ in range(WEEKS * WEEK - 1):
        states.append(int(rng.random() < CHAIN[states[-1], 1]))
    weeks = np.repeat(np.arange(1, WEEKS + 1), WEEK)
    meter = pa.table({"week": weeks, "kwh": kwh(rng, np.array(states))})

    daily = ps.certify_release(hidden("day", DAY, loads), CLAIM)
    print(f"Daily totals: {verdict(daily).sentence}\n")

    scenario = hidden("week", WEEK, loads)
    certificate = ps.certify_release(scenario, CLAIM)
    print(verdict(certificate))  # for the utility alone
    ledger = Path(tempfile.mkdtemp(prefix="utility-")) / "home.ledger"
    released = ps.release(scenario, meter, certificate, ledger=ledger)
    print(f"\n{released}")

    print("\nNoise over the total of the week:")
    totals = np.bincount(weeks, meter["kwh"].to_numpy())[1:]
    for week, (std, total) in enumerate(zip(released.noise_stds, totals, strict=True), start=1):
        print(f"  week {week}   {std / total:.3f}")


if __name__ == "__main__":
    main()
