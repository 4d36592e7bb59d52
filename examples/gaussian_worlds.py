# SPDX-License-Identifier: Apache-2.0
"""Hide whether a sales table comes from a quiet or a busy year.

Each world is a declared Gaussian distribution of the query. The claim is how often someone who
sees the release guesses the year right. `spent` goes from noise to cost.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import pufferslice as ps


def main() -> None:
    """Declare, certify, compute the cost of other noise, release."""
    folder = Path(tempfile.mkdtemp(prefix="gaussian-worlds-"))
    query = ps.queries.summary(mean=["orders", "returns"]).with_scales([10, 1])
    worlds = {
        "quiet": ps.GaussianDistribution(mean=[100, 5], cov=[[16, 1], [1, 0.25]]),
        "busy": ps.GaussianDistribution(mean=[112, 6], cov=[[25, 1], [1, 0.36]]),
    }
    scenario = ps.Scenario.from_worlds(worlds, query=query, source="public_model", name="year")
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.6))
    print(certificate)

    print("\nThe same claim with other noise, in whitened coordinates:")
    for factor in (0.5, 1, 2):
        std = factor * certificate.noise_std
        print(f"  {std:.3g}: {ps.spent(certificate, noise_std=std)}")

    rng = np.random.default_rng(3)
    days = pa.table({"orders": rng.normal(110, 20, 250), "returns": rng.normal(5.5, 2, 250)})
    print(f"\n{ps.release(scenario, days, certificate, ledger=folder / 'sales.ledger')}")


if __name__ == "__main__":
    main()
