# SPDX-License-Identifier: Apache-2.0
"""The set-up of the paper's experiments on learning, as data."""

import math
from fractions import Fraction
from typing import Final, final

import attrs

from pufferslice.arrays import Floats
from pufferslice.sgd import Poisson, WithoutReplacement
from pufferslice.sgd.schedules import recipe_learning_rates

ORDER: Final = 16.0
EPSILONS: Final = (
    80.0, 70.0, 65.0, 60.0, 55.0, 50.0, 45.0, 40.0, 35.0, 30.0, 25.0, 20.0, 18.0, 14.0, 12.0, 10.0,
    8.0, 4.0, 2.0, 1.0, 0.5,
)  # fmt: skip
"""The paper's 21 budgets."""

N_RECORDS: Final = 50_000
N_DIFFERING: Final = 20
"""The paper's number of differing labels. Its printed shares, 0.10000 and 0.10004, give 2."""
PRINTED_SHARES: Final = (0.10000, 0.10004)
CAT: Final = 3
"""The class whose prevalence is the secret."""

_WARM_UP: Final = Fraction(5, 100)


@final
@attrs.frozen(kw_only=True)
class SgdSetup:
    """One row of the paper's hyperparameters."""

    batch_size: int
    clip_norm: float
    peak_learning_rate: float
    n_epochs: int = 40
    n_records: int = N_RECORDS

    @property
    def n_steps(self) -> int:
        """Epochs times batches of an epoch, the last of which may be smaller."""
        return self.n_epochs * math.ceil(self.n_records / self.batch_size)

    @property
    def n_warmup_steps(self) -> int:
        """Five per cent of the steps."""
        return int(_WARM_UP * self.n_steps)

    @property
    def learning_rates(self) -> Floats:
        """Linear warm-up, then half a cosine."""
        return recipe_learning_rates(
            peak=self.peak_learning_rate,
            n_steps=self.n_steps,
            n_warmup_steps=self.n_warmup_steps,
        )

    @property
    def fixed_size(self) -> WithoutReplacement:
        """The sampling that the paper accounts for."""
        return WithoutReplacement(n_records=self.n_records, batch_size=self.batch_size)

    @property
    def poisson(self) -> Poisson:
        """Poisson sampling with the batch size as its mean."""
        return Poisson(n_records=self.n_records, rate=self.batch_size / self.n_records)


SETUPS: Final = (
    SgdSetup(batch_size=512, clip_norm=4.0, peak_learning_rate=0.2),
    SgdSetup(batch_size=1024, clip_norm=5.0, peak_learning_rate=0.14),
)
"""Both batch sizes of the paper."""
