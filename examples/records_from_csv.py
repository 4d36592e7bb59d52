# SPDX-License-Identifier: Apache-2.0
"""Release the measurements of one patient from a CSV file and hide the patient's site.

In a scenario of kind `records` one release is the query of one row, and the secret is the group of
that row. The script first makes up a file; use your own instead. Everything goes to a new folder.
"""

import csv
import tempfile
from pathlib import Path

import numpy as np

import pufferslice as ps
from pufferslice.data import read_table


def write_patients(path: Path) -> None:
    """Three sites, 400 patients each, that differ a little in age and dose."""
    rng = np.random.default_rng(20)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "age", "dose", "responded"])
        for site, shift in (("north", 0.0), ("south", 2.0), ("west", 4.0)):
            ages, doses = rng.normal(50 + shift, 8, 400), rng.gamma(4, 5 + shift / 4, 400)
            answers = np.where(rng.random(400) < 0.4 + shift / 40, "yes", "no")
            for age, dose, answer in zip(ages, doses, answers, strict=True):
                writer.writerow([site, f"{age:.1f}", f"{dose:.1f}", answer])


def main() -> None:
    """Make the file, certify all pairs of sites, release one row."""
    folder = Path(tempfile.mkdtemp(prefix="records-"))
    write_patients(folder / "patients.csv")
    patients = read_table(folder / "patients.csv")

    # Range and scales are public: what such a trial can measure, not what this one did.
    query = (
        ps.queries.columns(["age", "dose"], flags={"responded": "yes"})
        .with_range({"age": (18, 100), "dose": (0, 80)})
        .with_scales({"age": 10, "dose": 10, "responded": 0.5})
    )
    scenario = ps.Scenario.from_records(patients, secret="site", query=query)  # noqa: S106 - a column
    certificate = ps.certify_release(scenario, ps.Guarantee.unsliced(order=4, epsilon=1.0))
    print(certificate)

    released = ps.release(scenario, patients.slice(17, 1), certificate, ledger=folder / "t.ledger")
    print(f"\n{released}")


if __name__ == "__main__":
    main()
