# SPDX-License-Identifier: Apache-2.0
"""Properties that several test classes inherit from one contract."""

from hypothesis import HealthCheck, given, settings

EXAMPLES = max(1, settings.default.max_examples // 5)
"""Fewer than elsewhere, because every class that inherits a property tests it."""


def for_every(**strategies):
    """`given`, on a test that several classes inherit: no example is replayed from another."""
    return lambda test: settings(
        database=None,
        max_examples=EXAMPLES,
        suppress_health_check=[HealthCheck.differing_executors],
    )(given(**strategies)(test))
