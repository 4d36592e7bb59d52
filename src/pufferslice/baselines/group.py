# SPDX-License-Identifier: Apache-2.0
"""Worst-case group privacy: Gaussian noise for a given sensitivity, whatever the priors are."""

from pufferslice.baselines.gwm import shift_noise_std
from pufferslice.checks import check_above
from pufferslice.guarantee import Guarantee


def group_noise_std(group_sensitivity: float, target: Guarantee) -> float:
    r"""Noise when the rows of a group may be anything: $\sigma^2 = \alpha\Delta^2/(2\epsilon)$.

    Guarantee: the unsliced target between any two datasets that differ in one group.
    Needs: `group_sensitivity`, in scaled coordinates, bounds how far the query can move when one
    group is replaced; the caller knows it, nothing here checks it.
    For comparison: no certificate is issued.
    Source: app:worst_case_group_privacy.

    >>> group_noise_std(3.0, Guarantee.unsliced(order=4, epsilon=2.0))
    3.0
    """
    check_above(0, group_sensitivity=group_sensitivity)
    return shift_noise_std(group_sensitivity, target)
