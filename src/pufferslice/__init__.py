# SPDX-License-Identifier: Apache-2.0
"""Sliced Rényi Pufferfish Privacy: protect a declared secret, with a certificate to check.

The public names are resolved on first use (PEP 562), so that `import pufferslice` is quick and
loads only what is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pufferslice import data as datasets
    from pufferslice import queries
    from pufferslice.calibration.calibrate import Method
    from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
    from pufferslice.calibration.noise import OperatingSystemNoise, SeededTestNoise
    from pufferslice.calibration.sample_size import plan_samples
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
    from pufferslice.queries import Ball, Box
    from pufferslice.releases.ledger import Ledger
    from pufferslice.releases.release import Release, release, release_again
    from pufferslice.scenario.distributions import (
        FiniteDistribution,
        GaussianDistribution,
        SampledDistribution,
    )
    from pufferslice.scenario.priors import Bootstrap, Resampled
    from pufferslice.scenario.scenario import Scenario, SecretPair
    from pufferslice.scenario.secrets import Bins
    from pufferslice.scenario.simulator import OutputSimulator, Simulator
    from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere

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
    "FiniteDistribution",
    "FiniteProfile",
    "GaussianDistribution",
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
    "SampledDistribution",
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
    "ApproximateGuarantee": "calibration",
    "ArgumentError": "errors",
    "Ball": "queries",
    "Bins": "scenario",
    "Bootstrap": "scenario",
    "Box": "queries",
    "CalibrationError": "errors",
    "Certificate": "certificate",
    "CertificateError": "errors",
    "ClusterError": "errors",
    "FiniteDistribution": "scenario",
    "FiniteProfile": "sensitivity",
    "GaussianDistribution": "scenario",
    "Guarantee": "calibration",
    "Ledger": "releases",
    "LedgerError": "errors",
    "Method": "calibration",
    "MissingExtraError": "errors",
    "OperatingSystemNoise": "calibration",
    "OutputSimulator": "scenario",
    "PuffersliceError": "errors",
    "Release": "releases",
    "ReleaseError": "errors",
    "Resampled": "scenario",
    "RewindError": "errors",
    "SampledDistribution": "scenario",
    "SampledSphere": "sensitivity",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SecretPair": "scenario",
    "SeededTestNoise": "calibration",
    "Simulator": "scenario",
    "StorageError": "errors",
    "TableError": "errors",
    "TrainingError": "errors",
    "certify_release": "certificate",
    "certify_runs": "certificate",
    "certify_training": "certificate",
    "compose": "certificate",
    "plan_samples": "calibration",
    "release": "releases",
    "release_again": "releases",
    "sign": "certificate",
    "spent": "certificate",
    "verify": "certificate",
}
"""The module of each public name."""


# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use and keep it."""
        if name == "datasets":
            return import_module(f"{__name__}.data")
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
