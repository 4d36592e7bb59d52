# SPDX-License-Identifier: Apache-2.0
"""Grants of one secret, and a release that goes through all of its states."""

import json

from pufferslice.releases.states import Grant

SECRET = ("secret",)
ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


def granted(certificate, keys=SECRET, **said):
    """A certificate of the secret."""
    return Grant(certificate=certificate, keys=keys, **said)


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
