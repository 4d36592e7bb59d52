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
        certify_runs,
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
        ClusterError,
        LedgerError,
        MissingExtraError,
        PuffersliceError,
        ReleaseError,
        RewindError,
        ScenarioError,
        StorageError,
        TableError,
        TrainingError,
    )
    from pufferslice.guarantee import ApproximateGuarantee, Guarantee
    from pufferslice.laws import EmpiricalLaw, GaussianLaw, SampledLaw
    from pufferslice.ledger import Ledger
    from pufferslice.noise import OperatingSystemNoise, SeededTestNoise
    from pufferslice.planning import plan_samples
    from pufferslice.priors import Bootstrap, Resampled
    from pufferslice.queries import Ball, Box
    from pufferslice.releasing import Release, release, release_again
    from pufferslice.scenario import Scenario, SecretPair
    from pufferslice.secret import Bins
    from pufferslice.simulation import OutputSimulator, Simulator
    from pufferslice.slicing import FiniteProfile, SampledSphere

__version__ = "0.1.0"

__all__ = [
    "AlreadyReleasedError",
    "ApproximateGuarantee",
    "ArgumentError",
    "Ball",
    "Bins",
    "Bootstrap",
    "Box",
    "CalibrationError",
    "Certificate",
    "CertificateError",
    "ClusterError",
    "EmpiricalLaw",
    "FiniteProfile",
    "GaussianLaw",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "Method",
    "MissingExtraError",
    "OperatingSystemNoise",
    "OutputSimulator",
    "PuffersliceError",
    "Release",
    "ReleaseError",
    "Resampled",
    "RewindError",
    "SampledLaw",
    "SampledSphere",
    "Scenario",
    "ScenarioError",
    "SecretPair",
    "SeededTestNoise",
    "Simulator",
    "StorageError",
    "TableError",
    "TrainingError",
    "certify_release",
    "certify_runs",
    "certify_training",
    "compose",
    "datasets",
    "plan_samples",
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
    "ApproximateGuarantee": "guarantee",
    "ArgumentError": "errors",
    "Ball": "queries",
    "Bins": "secret",
    "Bootstrap": "priors",
    "Box": "queries",
    "CalibrationError": "errors",
    "Certificate": "certificate",
    "CertificateError": "errors",
    "ClusterError": "errors",
    "EmpiricalLaw": "laws",
    "FiniteProfile": "slicing",
    "GaussianLaw": "laws",
    "Guarantee": "guarantee",
    "Ledger": "ledger",
    "LedgerError": "errors",
    "Method": "calibration",
    "MissingExtraError": "errors",
    "OperatingSystemNoise": "noise",
    "OutputSimulator": "simulation",
    "PuffersliceError": "errors",
    "Release": "releasing",
    "ReleaseError": "errors",
    "Resampled": "priors",
    "RewindError": "errors",
    "SampledLaw": "laws",
    "SampledSphere": "slicing",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SecretPair": "scenario",
    "SeededTestNoise": "noise",
    "Simulator": "simulation",
    "StorageError": "errors",
    "TableError": "errors",
    "TrainingError": "errors",
    "certify_release": "certificate",
    "certify_runs": "certificate",
    "certify_training": "certificate",
    "compose": "certificate",
    "plan_samples": "planning",
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
