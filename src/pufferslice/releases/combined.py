# SPDX-License-Identifier: Apache-2.0
"""The best values from all releases of a part: post-processing of published numbers.

Once everything is spent, every statistic has the noise that was declared, in however many steps and
combinations that was done. The intervals are those of releases that were not chosen after seeing
the values of earlier ones.
"""

import os

import numpy as np

from pufferslice.certificate import Certificate
from pufferslice.certificate.left import whitened_statistics
from pufferslice.errors import ReleaseError
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.noise.spending import combined_estimate
from pufferslice.releases.budget import checked_period, stated_part
from pufferslice.releases.derived import DerivedStatistics, DerivedValue
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import outputs_of


def combined(
    certificate: Certificate,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    part: str,
    period: int | None = None,
) -> DerivedStatistics:
    """Combine all releases of a part, and period, into one value of each statistic.

    Statistics that the releases so far do not determine are left out.
    """
    stated = stated_part(certificate, part)
    number = checked_period(stated, period)
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    outputs = outputs_of(book, certificate, stated, number)
    if not outputs:
        raise ReleaseError(
            f"ledger {book.name!r} keeps no release of this part of the budget; release some of it"
        )
    found = combined_estimate(outputs, whitened_statistics(stated))
    stds = np.sqrt(np.diagonal(found.covariance))
    rows = zip(stated.scenario.query.names, found.values, stds, found.is_known, strict=True)
    return DerivedStatistics(
        rows=tuple(
            DerivedValue(
                name=name,
                value=float(value),
                standard_error=float(std),
                low=float(value - INTERVAL_STDS * std),
                high=float(value + INTERVAL_STDS * std),
            )
            for name, value, std, is_known in rows
            if is_known
        )
    )
