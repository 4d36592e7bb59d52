# SPDX-License-Identifier: Apache-2.0
"""A utility hides whether a home was occupied at 20:00, and publishes the average daily total.

Simulated data: someone is at home or not in each of the 720 hours of a month, by a Markov chain,
and uses 0.2 kWh in every hour and 0.6 kWh more in those at home. Every evening at 20:00 is
protected. (The total of a single day could not be published: the noise is nine of its 24 hours.)
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import pufferslice as ps

DAYS, HOURS = 30, 24
CHAIN = np.array([[0.85, 0.15], [0.10, 0.90]])
BASE, AT_HOME = 0.2, 0.6


def main() -> None:
    """Declare the chain, certify, release the hours at home of the month."""
    rng = np.random.default_rng(20)
    states = [1]
    for _ in range(DAYS * HOURS - 1):
        states.append(int(rng.random() < CHAIN[states[-1], 1]))
    month = pa.table({"at_home": states})

    query = ps.queries.summary(count={"at_home": 1})
    scenario = ps.Scenario.from_markov_chain(
        CHAIN,
        length=DAYS * HOURS,
        positions=[HOURS * day + 20 for day in range(DAYS)],
        query=query,
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.65))
    ledger = Path(tempfile.mkdtemp(prefix="utility-")) / "home.ledger"
    released = ps.release(scenario, month, certificate, ledger=ledger)
    print(released)

    # What follows is computed from the release and costs nothing.
    daily = HOURS * BASE + AT_HOME * released.values[0] / DAYS
    noise = AT_HOME * released.noise_stds[0] / DAYS
    own = np.std(HOURS * BASE + AT_HOME * np.reshape(states, (DAYS, HOURS)).sum(axis=1))
    print(f"\nAverage daily total: {daily:.2f} kWh, noise {noise:.2f} kWh")
    print("Noise over the column's own standard deviation:")
    print(f"  daily total              {noise / own:.3f}")
    print(f"Noise of the share of hours at home: {released.noise_stds[0] / DAYS / HOURS:.3f}")


if __name__ == "__main__":
    main()
