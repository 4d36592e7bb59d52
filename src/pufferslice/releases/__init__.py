# SPDX-License-Identifier: Apache-2.0
"""Releases: the query with noise, once or within a budget, and the ledger of releases."""

from pufferslice.releases.combined import combined
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import Release, release, release_again

__all__ = ["Ledger", "Release", "combined", "release", "release_again"]
