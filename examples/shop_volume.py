# SPDX-License-Identifier: Apache-2.0
"""A shop hides how many customers it had, within 5 %, and publishes totals of its baskets.

Simulated data: two years of 20,000 baskets with a number of items, an amount and how it was paid.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import pufferslice as ps


def baskets(rng: np.random.Generator, n: int) -> pa.Table:
    """Baskets of one year."""
    items = rng.poisson(6, n) + 1
    return pa.table(
        {
            "items": items,
            "amount": np.round(rng.gamma(2.0, 2.0, n) * items, 2),
            "paid": rng.choice(["card", "cash", "phone"], n, p=[0.6, 0.25, 0.15]),
        }
    )


def main() -> None:
    """Declare, certify, release; then derive a ratio, which costs nothing more."""
    rng = np.random.default_rng(4)
    last_year, this_year = baskets(rng, 19_000), baskets(rng, 20_000)
    query = ps.queries.summary(
        total=["items", "amount"],
        count=[("paid", "card"), ("paid", "cash"), ("paid", "phone")],
        clip={"items": (0, 30), "amount": (0, 200)},
    )
    scenario = ps.Scenario.from_volume(
        this_year, up_to=25_000, ratio=1.05, query=query, moments_from=last_year, name="the shop"
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.6))
    ledger = Path(tempfile.mkdtemp(prefix="shop-")) / "shop.ledger"
    released = ps.release(scenario, this_year, certificate, ledger=ledger)
    print(released)
    print(released.derived(ratio=[("total(amount)", "total(items)")]))

    print("\nNoise over last year's value:")
    earlier = query.outputs(last_year)[0]
    for name, std, value in zip(query.names, released.noise_stds, earlier, strict=True):
        print(
            f"  {name.replace('(', ' ').replace(')', '').replace('= ', ''):<24} {std / value:.3f}"
        )


if __name__ == "__main__":
    main()
