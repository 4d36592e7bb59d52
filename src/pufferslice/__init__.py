# SPDX-License-Identifier: Apache-2.0
"""Sliced Rényi Pufferfish Privacy: protect a declared secret, with a certificate to check.

The public names are resolved on first use (PEP 562), so that `import pufferslice` is quick and
loads only what is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pufferslice import datasets, queries
    from pufferslice.calibration import Method
    from pufferslice.certificate import (
        Certificate,
        certify_release,
        certify_training,
        compose,
        sign,
        spent,
        verify,
    )
    from pufferslice.errors import (
        AlreadyReleasedError,
        ArgumentError,
        CalibrationError,
        CertificateError,
        LedgerError,
        MissingExtraError,
        PuffersliceError,
        ReleaseError,
        ScenarioError,
        StorageError,
        TableError,
    )
    from pufferslice.guarantee import Guarantee
    from pufferslice.laws import EmpiricalLaw, GaussianLaw
    from pufferslice.ledger import Ledger
    from pufferslice.noise import OperatingSystemNoise, SeededTestNoise
    from pufferslice.priors import Bootstrap, Resampled, Simulator
    from pufferslice.queries import Ball, Box
    from pufferslice.releasing import Release, release, release_again
    from pufferslice.scenario import Scenario, SecretPair
    from pufferslice.secret import Bins
    from pufferslice.slicing import FiniteProfile

__version__ = "0.1.0.dev0"

__all__ = [
    "AlreadyReleasedError",
    "ArgumentError",
    "Ball",
    "Bins",
    "Bootstrap",
    "Box",
    "CalibrationError",
    "Certificate",
    "CertificateError",
    "EmpiricalLaw",
    "FiniteProfile",
    "GaussianLaw",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "Method",
    "MissingExtraError",
    "OperatingSystemNoise",
    "PuffersliceError",
    "Release",
    "ReleaseError",
    "Resampled",
    "Scenario",
    "ScenarioError",
    "SecretPair",
    "SeededTestNoise",
    "Simulator",
    "StorageError",
    "TableError",
    "certify_release",
    "certify_training",
    "compose",
    "datasets",
    "queries",
    "release",
    "release_again",
    "sign",
    "spent",
    "verify",
]

_SUBMODULES: Final = frozenset({"datasets", "queries"})

_HOMES: Final = {
    "AlreadyReleasedError": "errors",
    "ArgumentError": "errors",
    "Ball": "queries",
    "Bins": "secret",
    "Bootstrap": "priors",
    "Box": "queries",
    "CalibrationError": "errors",
    "Certificate": "certificate",
    "CertificateError": "errors",
    "EmpiricalLaw": "laws",
    "FiniteProfile": "slicing",
    "GaussianLaw": "laws",
    "Guarantee": "guarantee",
    "Ledger": "ledger",
    "LedgerError": "errors",
    "Method": "calibration",
    "MissingExtraError": "errors",
    "OperatingSystemNoise": "noise",
    "PuffersliceError": "errors",
    "Release": "releasing",
    "ReleaseError": "errors",
    "Resampled": "priors",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SecretPair": "scenario",
    "SeededTestNoise": "noise",
    "Simulator": "priors",
    "StorageError": "errors",
    "TableError": "errors",
    "certify_release": "certificate",
    "certify_training": "certificate",
    "compose": "certificate",
    "release": "releasing",
    "release_again": "releasing",
    "sign": "certificate",
    "spent": "certificate",
    "verify": "certificate",
}
"""The module of each public name."""


# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use and keep it."""
        if name in _SUBMODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return sorted([*__all__, "__version__"])
