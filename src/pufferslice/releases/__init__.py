# SPDX-License-Identifier: Apache-2.0
"""One release per certificate: the query with noise, and the ledger of releases."""

from pufferslice.releases.binding import sign_release, verify_release
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.release import Release, release, release_again

__all__ = [
    "Ledger",
    "Release",
    "release",
    "release_again",
    "sign_release",
    "verify_release",
]
