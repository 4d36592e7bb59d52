# SPDX-License-Identifier: Apache-2.0
"""A census office hides the share of women, and publishes a model of incomes.

Real data: the Adult table. Any two shares of women at most 5 points apart look alike. One release
of the second moments of ten columns, which an earlier table suggests, is all that the models see.
"""

import tempfile
from pathlib import Path

import numpy as np

import pufferslice as ps


def main() -> None:
    """Choose columns, certify, release; fit models; compare them with what hides nothing."""
    table = ps.datasets.adult()
    order = np.random.default_rng(2026).permutation(table.num_rows)
    earlier, current, test = (
        table.take(order[place])
        for place in (slice(0, 6_000), slice(6_000, 26_000), slice(26_000, None))
    )

    target = {"income": ">50K"}
    columns = ps.models.suggest_columns(earlier, 10, target=target, without=["sex"])
    query = ps.queries.second_moments(target=target, **columns)
    scenario = ps.Scenario.from_prevalence(
        current, column="sex", value="Female", within=0.05, query=query, moments_from=earlier
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.64))
    ledger = Path(tempfile.mkdtemp(prefix="adult-model-")) / "census.ledger"
    released = ps.release(scenario, current, certificate, ledger=ledger)
    print(f"Release under {released.guarantee}, certificate {certificate.digest[:16]}")
    print(f"{len(released.names)} moments of {len(columns['numbers'])} numbers and levels")

    # From here on nothing reads the rows of the released table.
    model = ps.models.lda(released)
    print(model)
    rich = np.array(test["income"]) == ">50K"
    print(f"\nmajority of the test rows    {max(rich.mean(), 1 - rich.mean()):.3f}")
    for name in ("ridge", "lda", "naive_bayes", "least_squares"):
        score = getattr(ps.models, name)(released).score(test)
        print(f"{name:<28} {score:.3f}")


if __name__ == "__main__":
    main()
