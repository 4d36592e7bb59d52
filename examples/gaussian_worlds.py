# SPDX-License-Identifier: Apache-2.0
"""Hide whether a sales table is of a quiet or of a busy year.

Each world is a declared Gaussian distribution of the query. The divergences are exact, also where
the spreads differ and the worst-gap distance is infinite. `spent` goes from noise to cost.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import pufferslice as ps


def main() -> None:
    """Declare, certify, compute the cost at other orders, release."""
    folder = Path(tempfile.mkdtemp(prefix="gaussian-worlds-"))
    query = ps.queries.summary(mean=["orders", "returns"]).with_scales([10, 1])
    worlds = {
        "quiet": ps.GaussianDistribution(mean=[100, 5], cov=[[16, 1], [1, 0.25]]),
        "busy": ps.GaussianDistribution(mean=[112, 6], cov=[[25, 1], [1, 0.36]]),
    }
    scenario = ps.Scenario.from_worlds(worlds, query=query, source="public_model", name="year")
    profile = ps.FiniteProfile.orthogonal(dim=2, n_sets=32, seed=7)
    certificate = ps.certify_release(
        scenario, ps.Guarantee.average(order=8, epsilon=0.5, profile=profile)
    )
    print(certificate)

    print("\nThe same noise at other orders and notions:")
    for order in (2, 8, 32):
        costs = (ps.spent(certificate, order=order, notion=n) for n in ("average", "joint"))
        print("  ", *costs, ps.spent(certificate, order=order, notion="unsliced"))

    rng = np.random.default_rng(3)
    days = pa.table({"orders": rng.normal(110, 20, 250), "returns": rng.normal(5.5, 2, 250)})
    print(f"\n{ps.release(scenario, days, certificate, ledger=folder / 'sales.ledger')}")


if __name__ == "__main__":
    main()
