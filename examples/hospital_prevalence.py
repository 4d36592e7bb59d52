# SPDX-License-Identifier: Apache-2.0
"""A hospital hides how many of its patients are ill, and publishes ten means.

Real data: 569 patients of the Wisconsin breast cancer study, which come with scikit-learn. The
secret is the share of malignant diagnoses: any two shares at most 5 points apart look alike. Half
of the patients stand for an earlier year, to which the noise is fitted.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_breast_cancer

import pufferslice as ps


def main() -> None:
    """Declare, certify, release; compare the noise with the columns; then try a second table."""
    study = load_breast_cancer()
    names = [name for name in study.feature_names if name.startswith("mean ")]
    columns = {name: study.data[:, list(study.feature_names).index(name)] for name in names}
    diagnoses = np.array(["malignant", "benign"])[study.target]
    patients = pa.table({**columns, "diagnosis": diagnoses})

    earlier, current = patients.take(np.arange(0, 569, 2)), patients.take(np.arange(1, 569, 2))

    # Public ranges, from the literature and not from these patients.
    low = [6, 9, 40, 100, 0.05, 0, 0, 0, 0.1, 0.04]
    high = [30, 40, 200, 2500, 0.17, 0.4, 0.5, 0.25, 0.32, 0.1]
    clip = {name: ends for name, *ends in zip(names, low, high, strict=True)}
    query = ps.queries.summary(mean=names, clip=clip)
    scenario = ps.Scenario.from_prevalence(
        current,
        column="diagnosis",
        value="malignant",
        within=0.05,
        query=query,
        moments_from=earlier,
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.65))
    ledger = Path(tempfile.mkdtemp(prefix="hospital-")) / "hospital.ledger"
    released = ps.release(scenario, current, certificate, ledger=ledger)
    print(released)

    print("\nNoise over the column's own standard deviation:")
    for name, std in zip(names, released.noise_stds, strict=True):
        print(f"  {name:<24} {std / np.std(columns[name]):.3f}")

    # A month later somebody asks for one more number of the same patients. Nothing covers both
    # releases together, so that the ledger refuses: it should have been in the first query.
    extra = ps.queries.summary(rate=[("mean radius", ps.queries.above(15))])
    more = ps.Scenario.from_prevalence(
        current,
        column="diagnosis",
        value="malignant",
        within=0.05,
        query=extra,
        moments_from=earlier,
    )
    second = ps.certify_release(more, ps.Guarantee.guess(at_most=0.6))
    try:
        ps.release(more, current, second, ledger=ledger)
    except ps.errors.AlreadyReleasedError as error:
        print(f"\nOne more table: {error}")


if __name__ == "__main__":
    main()
