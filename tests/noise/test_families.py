# SPDX-License-Identifier: Apache-2.0
"""A source of noise of one's own needs nothing but a name and draws."""

from typing import ClassVar

import numpy as np
import pytest

from pufferslice import Guarantee, Scenario, certify_release, release, verify
from pufferslice.errors import PuffersliceError
from pufferslice.queries import summary
from pufferslice.scenario.distributions import FiniteDistribution


class Zeros:
    """No noise at all, for a test that looks for the query's own value."""

    secure: ClassVar[bool] = False
    name: ClassVar[str] = "zeros"

    def draw(self, size):
        return np.zeros(size, dtype=np.int64)


class Pretender(Zeros):
    name: ClassVar[str] = "aes_256_ctr_operating_system"


def points():
    query = summary(mean=["x"])
    worlds = {name: FiniteDistribution.uniform([[at]]) for name, at in (("a", 0.0), ("b", 3.0))}
    return Scenario.from_worlds(worlds, query=query)


def test_a_certificate_names_it_and_does_not_call_it_secure():
    certificate = certify_release(points(), Guarantee.guess(at_most=0.6), generator=Zeros())
    assert certificate.statement.noise.generator == "zeros"
    assert not certificate.is_secure
    assert "insecure-noise" in certificate.statement.limits
    assert verify(certificate).holds


@pytest.mark.soundness
def test_a_name_that_is_not_its_own_is_refused(tmp_path):
    certificate = certify_release(points(), Guarantee.guess(at_most=0.6), generator=Pretender())
    with pytest.raises(PuffersliceError, match="generator"):
        release(
            points(), {"x": [0.0]}, certificate, generator=Pretender(), ledger=tmp_path / "a.ledger"
        )
