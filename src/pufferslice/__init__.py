# SPDX-License-Identifier: Apache-2.0
"""Protect a declared secret in what you publish, with a certificate that can be checked.

Public names are resolved on first use (PEP 562), so that `import pufferslice` is quick and loads
only what is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pufferslice import data as datasets
    from pufferslice import errors, queries
    from pufferslice.calibration import ApproximateGuarantee, Guarantee, Method, plan_samples
    from pufferslice.certificate import (
        Certificate,
        certify_release,
        certify_training,
        compose,
        sign,
        spent,
        verify,
        what_if,
    )
    from pufferslice.errors import (
        PuffersliceError,
    )
    from pufferslice.releases import (
        Ledger,
        Release,
        release,
    )
    from pufferslice.scenario import (
        Bins,
        Bootstrap,
        FiniteDistribution,
        GaussianDistribution,
        OutputSimulator,
        Resampled,
        SampledDistribution,
        Scenario,
        Simulator,
    )
    from pufferslice.sensitivity import FiniteProfile, SampledSphere

__version__ = "0.2.0"

__all__ = [
    "ApproximateGuarantee",
    "Bins",
    "Bootstrap",
    "Certificate",
    "FiniteDistribution",
    "FiniteProfile",
    "GaussianDistribution",
    "Guarantee",
    "Ledger",
    "Method",
    "OutputSimulator",
    "PuffersliceError",
    "Release",
    "Resampled",
    "SampledDistribution",
    "SampledSphere",
    "Scenario",
    "Simulator",
    "certify_release",
    "certify_training",
    "compose",
    "datasets",
    "errors",
    "plan_samples",
    "queries",
    "release",
    "sign",
    "spent",
    "verify",
    "what_if",
]

_HOMES: Final = {
    "ApproximateGuarantee": "calibration",
    "Bins": "scenario",
    "Bootstrap": "scenario",
    "Certificate": "certificate",
    "FiniteDistribution": "scenario",
    "FiniteProfile": "sensitivity",
    "GaussianDistribution": "scenario",
    "Guarantee": "calibration",
    "Ledger": "releases",
    "Method": "calibration",
    "OutputSimulator": "scenario",
    "PuffersliceError": "errors",
    "Release": "releases",
    "Resampled": "scenario",
    "SampledDistribution": "scenario",
    "SampledSphere": "sensitivity",
    "Scenario": "scenario",
    "Simulator": "scenario",
    "certify_release": "certificate",
    "certify_training": "certificate",
    "compose": "certificate",
    "plan_samples": "calibration",
    "release": "releases",
    "sign": "certificate",
    "spent": "certificate",
    "verify": "certificate",
    "what_if": "certificate",
}
"""The package of each public name."""

_MODULES: Final = {"datasets": "data", "errors": "errors", "queries": "queries"}
"""Public modules by their public names."""


# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a public name on its first use and keep it."""
        if name in _MODULES:
            value = import_module(f"{__name__}.{_MODULES[name]}")
        elif name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return sorted([*__all__, "__version__"])
