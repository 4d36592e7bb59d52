# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the library, one tree.

    PuffersliceError
    ├── ArgumentError (ValueError)         an argument is outside its rule
    ├── ScenarioError (ValueError)         secrets, pairs, priors or query do not make a scenario
    ├── TableError (ValueError)            a table or file cannot be used as data
    ├── CalibrationError (ArithmeticError) no finite noise gives the guarantee
    │   └── ClaimError                     the difference between the worlds cannot answer a claim
    ├── CertificateError (ValueError)      a certificate is unreadable, edited or does not verify
    ├── LedgerError (RuntimeError)         a ledger belongs elsewhere or cannot be used
    │   ├── AlreadyReleasedError           the certificate has had its one release
    │   └── RewindError                    a run would take a step again with other sums
    ├── ReleaseError (RuntimeError)        rows or noise that may not be released
    ├── TrainingError (RuntimeError)       a training run cannot take or go on with a step
    ├── StorageError (OSError)             a file could not be read or written whole
    └── MissingExtraError (ImportError)    an optional dependency is not installed

A message names the argument, the value, the rule and the way out, and never shows a record. It is
one line: what could break or turn it is escaped, wherever it comes from.
"""

import re
from typing import Final

_UNSEEN: Final = re.compile(
    # Letters and marks without an outline, which `str.isprintable` lets through.
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class PuffersliceError(Exception):
    """Base of every error that the library raises on purpose."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(escaped(value) if isinstance(value, str) else value for value in args))


class ArgumentError(PuffersliceError, ValueError):
    """An argument is outside its rule."""


class ScenarioError(PuffersliceError, ValueError):
    """Secrets, pairs, priors or query do not make a sound scenario."""


class TableError(PuffersliceError, ValueError):
    """A table or a file cannot be used as data."""


class CalibrationError(PuffersliceError, ArithmeticError):
    """No finite noise gives the wanted guarantee."""


class ClaimError(CalibrationError):
    """The difference between the worlds cannot answer what a claim asks."""


class CertificateError(PuffersliceError, ValueError):
    """A certificate is unreadable, edited, from another version, or does not verify."""


class LedgerError(PuffersliceError, RuntimeError):
    """A ledger belongs to another scenario or cannot be used."""


class AlreadyReleasedError(LedgerError):
    """The certificate has had its one release."""


class RewindError(LedgerError):
    """A training run would go back and take noisy steps again that were taken already."""


class ReleaseError(PuffersliceError, RuntimeError):
    """The rows or the noise may not be released under this certificate."""


class TrainingError(PuffersliceError, RuntimeError):
    """A training run cannot take this step, or cannot go on."""


class StorageError(PuffersliceError, OSError):
    """A file could not be read, or could not be written whole."""


class MissingExtraError(PuffersliceError, ImportError):
    """An optional dependency is not installed."""


def escaped(text: str, keep: str = "") -> str:
    r"""The text, with an escape for every character that breaks, turns or hides a part of a line.

    >>> print(escaped("one\ntwo\u202e"))
    one\ntwo\u202e
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep else _visible(character) for character in text)


def _visible(character: str) -> str:
    if character.isprintable() and not _UNSEEN.match(character):
        return character
    return character.encode("unicode_escape").decode("ascii")
