# SPDX-License-Identifier: Apache-2.0
"""Pictures of noise beside the sampling error, which only the evidence tells."""

import math
import re

import attrs
import numpy as np
import pyarrow as pa
import pytest

from pufferslice import Guarantee, Scenario, certify_budget, certify_release, queries
from pufferslice._core.display import rounded
from pufferslice.certificate.pictures import sampling_errors

RNG = np.random.default_rng(3)
ILL = RNG.random(2_000) < 0.5
TABLE = pa.table(
    {
        "ill": np.where(ILL, "yes", "no").tolist(),
        "age": np.clip(RNG.normal(40 + 10 * ILL, 8), 0, 100).round(),
        "smokes": np.where(RNG.random(2_000) < 0.2, "yes", "no").tolist(),
    }
)
QUERY = queries.join(
    queries.summary(mean=["age"], rate={"smokes": "yes"}, clip={"age": (0, 100)}),
    queries.contingency_table({"smokes": ["yes"]}),
)


@pytest.fixture(scope="module")
def scenario():
    return Scenario.from_prevalence(TABLE, column="ill", value="yes", within=0.05, query=QUERY)


@pytest.fixture(scope="module")
def certificate(scenario):
    return certify_release(scenario, Guarantee.guess(at_most=0.64))


def titles(plot):
    return re.findall(r"<title>(.*?)</title>", plot._repr_svg_())


def test_sampling_errors_are_those_of_rows_half_of_which_have_the_secret(certificate):
    """Known answers: the variance of an equal mixture of both kinds of rows, over the root of n."""
    age, smokes = (
        TABLE["age"].to_numpy(),
        np.array([value == "yes" for value in TABLE["smokes"].to_pylist()], dtype=float),
    )
    errors = sampling_errors(certificate.released, certificate.evidence)
    for column, error in zip((age, smokes), errors[:2], strict=True):
        kinds = [column[ILL], column[~ILL]]
        within = np.mean([kind.var() for kind in kinds])
        between = (kinds[0].mean() - kinds[1].mean()) ** 2 / 4
        assert error == pytest.approx(math.sqrt((within + between) / 2_000), rel=0.01)
    assert errors[2] == pytest.approx(2_000 * errors[1], rel=0.01)


def test_a_picture_with_sampling_errors_is_internal(certificate):
    plot = certificate.plot()
    assert plot.is_internal
    assert "Internal: do not publish." in plot._repr_svg_()
    error = sampling_errors(certificate.released, certificate.evidence)[0]
    std = certificate.released.noise.std_by_coordinate[0]
    assert titles(plot)[0] == f"mean(age): noise {rounded(std)}, sampling {rounded(error)}"
    widths = re.findall(r'<rect class="\w+" x="16.0" y="\d+" width="([\d.]+)"', plot._repr_svg_())
    noise, beside = widths[:2]
    assert float(noise) / float(beside) == pytest.approx(std / error, rel=1e-3)


@pytest.mark.soundness
def test_without_evidence_it_has_public_ranges_alone(certificate):
    public = attrs.evolve(certificate, evidence=None).plot()
    assert not public.is_internal
    stds = certificate.released.noise.std_by_coordinate
    for title, std, width in zip(titles(public), stds, (100, 1, 2_000), strict=True):
        half = 1.959964 * std
        share = f"{100 * half / width:.2g}\u00a0% of the range"
        assert title.endswith(f": ±\u00a0{rounded(half, std)} ({share})")


def test_the_parts_of_a_budget(scenario):
    budget = certify_budget({"<year>": scenario}, Guarantee.guess(at_most=0.64))
    plot = budget.plot()
    assert not plot.is_internal
    names = [title.partition(": ")[0] for title in titles(plot)]
    assert names == ["&lt;year&gt;"] * 3
    assert "Noise with the whole precision" in plot._repr_svg_()
