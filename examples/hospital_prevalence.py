# SPDX-License-Identifier: Apache-2.0
"""A hospital hides how many of its patients are ill, and publishes ten means.

Real data: 569 patients of the Wisconsin breast cancer study, which come with scikit-learn. The
secret is the share of malignant diagnoses: 35, 37.5 or 40 %.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_breast_cancer

import pufferslice as ps


def main() -> None:
    """Declare, certify, release; then compare the noise with the spread of each column."""
    study = load_breast_cancer()
    names = [name for name in study.feature_names if name.startswith("mean ")]
    columns = {name: study.data[:, list(study.feature_names).index(name)] for name in names}
    diagnoses = np.array(["malignant", "benign"])[study.target]
    patients = pa.table({**columns, "diagnosis": diagnoses})

    # Public units, from the literature and not from these patients.
    units = [4, 4, 25, 350, 0.015, 0.05, 0.08, 0.04, 0.03, 0.007]
    query = ps.queries.summary(mean=names, scales=units)
    scenario = ps.Scenario.from_prevalence(
        patients,
        column="diagnosis",
        value="malignant",
        shares=[0.35, 0.375, 0.40],
        query=query,
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.65))
    ledger = Path(tempfile.mkdtemp(prefix="hospital-")) / "hospital.ledger"
    released = ps.release(scenario, patients, certificate, ledger=ledger)
    print(released)

    print("\nNoise over the column's own standard deviation:")
    for name, std in zip(names, released.noise_stds, strict=True):
        print(f"  {name:<24} {std / np.std(columns[name]):.3f}")


if __name__ == "__main__":
    main()
