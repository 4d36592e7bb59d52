# SPDX-License-Identifier: Apache-2.0
"""Grants of one secret, and a release that goes through all of its states."""

import json

from pufferslice.releases.states import Grant, Shared

SECRET = ("secret",)
ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


def granted(certificate, keys=SECRET, *, cost=None, total=1.0, **said):
    """A certificate of the secret; with a cost one of several that add up to a total."""
    shared = None if cost is None else Shared(name="order", cost=cost, total=total)
    return Grant(certificate=certificate, keys=keys, shared=shared, **said)


def text_of(certificate):
    return json.dumps({"certificate": certificate})


def lived(ledger, certificate=ONE, state="published", **said):
    """Release a certificate up to a state, and return the entry of its intent."""
    entry = ledger.intend(granted(certificate, **said))
    if state != "intended":
        ledger.record_drawn(entry, text_of(certificate))
    if state == "published":
        ledger.record_published(entry)
    return entry


def states_of(ledger):
    """Certificate, state and release of every entry."""
    return [(entry.certificate, entry.state, entry.release) for entry in ledger.entries()]
