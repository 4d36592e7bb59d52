# SPDX-License-Identifier: Apache-2.0
"""A shop hides how many customers it had, within a factor of two, and publishes its baskets.

Simulated data: 20,000 baskets with a number of items, an amount and how it was paid.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import pufferslice as ps


def main() -> None:
    """Declare, certify, release; then compare the noise with the spread of each column."""
    rng = np.random.default_rng(4)
    n = 20_000
    items = rng.poisson(6, n) + 1
    baskets = pa.table(
        {
            "items": items,
            "amount": np.round(rng.gamma(2.0, 2.0, n) * items, 2),
            "paid": rng.choice(["card", "cash", "phone"], n, p=[0.6, 0.25, 0.15]),
        }
    )
    query = ps.queries.summary(
        mean=["items", "amount"],
        rate=[("paid", "card"), ("paid", "phone")],
        scales={"items": 3, "amount": 20, "rate(paid = card)": 0.5, "rate(paid = phone)": 0.5},
    )
    scenario = ps.Scenario.from_volume(
        baskets, sizes=[10_000, 20_000, 40_000], ratio=2.0, query=query
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.55))
    ledger = Path(tempfile.mkdtemp(prefix="shop-")) / "shop.ledger"
    released = ps.release(scenario, baskets, certificate, ledger=ledger)
    print(released)

    print("\nNoise over the column's own standard deviation:")
    for name, std in zip(("items", "amount"), released.noise_stds[:2], strict=True):
        print(f"  {name:<24} {std / np.std(baskets[name].to_numpy()):.3f}")
    print(f"Noise of the rates: {released.noise_stds[2]:.3f} and {released.noise_stds[3]:.3f}")


if __name__ == "__main__":
    main()
