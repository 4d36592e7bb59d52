# SPDX-License-Identifier: Apache-2.0
"""The claim of a scenario file: guarantee, failure probability, profile and method."""

from typing import Final

from pufferslice.calibration import ENVELOPES, RULES, Method
from pufferslice.checks import check_one_of
from pufferslice.concentration import BANDS, BandKind
from pufferslice.errors import ArgumentError
from pufferslice.files.toml_values import Document, number, required, section, word
from pufferslice.guarantee import ApproximateGuarantee, Claim, Guarantee
from pufferslice.slicing import FiniteProfile, Profile, SampledSphere

CLAIMS: Final = ("srpp", "epsilon_delta")
"""A Rényi claim, or sliced (epsilon, delta)."""

PROFILES: Final = ("uniform", "sphere", "axes", "orthogonal", "blocks", "given")


def target_of(document: Document) -> Claim:
    """What is claimed; the word `claim` decides, and the numbers must be those of that claim."""
    said = section(document, "guarantee")
    claim = word(said.get("claim", "srpp"), "claim")
    check_one_of(CLAIMS, claim=claim)
    notion = word(required(said, "guarantee", "notion"), "notion")
    epsilon = number(required(said, "guarantee", "epsilon"), "epsilon")
    if claim == "srpp":
        if "delta" in said:
            msg = (
                "delta belongs to claim 'epsilon-delta'; say that claim, or give the deltas of the "
                "(epsilon, delta) views as deltas = [...]"
            )
            raise ArgumentError(msg)
        order = number(required(said, "guarantee", "order"), "order")
        return Guarantee(notion=notion, order=order, epsilon=epsilon)  # type: ignore[arg-type]
    if "order" in said:
        msg = "claim 'epsilon-delta' has no order; leave order out, or claim srpp"
        raise ArgumentError(msg)
    delta = number(required(said, "guarantee", "delta"), "delta")
    return ApproximateGuarantee(notion=notion, epsilon=epsilon, delta=delta)  # type: ignore[arg-type]


def failure_probability_of(document: Document) -> float | None:
    """The failure probability, if the file says one."""
    said = section(document, "guarantee")
    if "failure_probability" not in said:
        return None
    return number(said["failure_probability"], "failure_probability")


def noise_std_of(document: Document) -> float | None:
    """A noise of the user's own, if the file says one."""
    said = section(document, "calibration")
    return number(said["noise_std"], "noise_std") if "noise_std" in said else None


def band_of(document: Document) -> BandKind:
    """How sampled laws are bounded."""
    band = word(section(document, "prior").get("band", "order_statistics"), "band")
    check_one_of(BANDS, band=band)
    return band  # type: ignore[return-value]


def profile_of(document: Document, dim: int) -> Profile:
    """The slices: those that are listed or drawn, or the whole sphere."""
    said = section(document, "profile")
    kind = word(said.get("kind", "given" if "directions" in said else "uniform"), "kind")
    check_one_of(PROFILES, kind=kind)
    if kind == "axes":
        return FiniteProfile.axes(dim=dim)
    if kind == "given":
        return _given(said)
    seed = required(said, "profile", "seed")
    if kind == "orthogonal":
        n_sets = required(said, "profile", "n_sets")
        return FiniteProfile.orthogonal(dim=dim, n_sets=n_sets, seed=seed)
    n_directions = required(said, "profile", "n_directions")
    if kind == "sphere":
        return SampledSphere.draw(dim=dim, n_directions=n_directions, seed=seed)
    if kind == "blocks":
        blocks = required(said, "profile", "blocks")
        return FiniteProfile.blocks(dim=dim, blocks=blocks, n_directions=n_directions, seed=seed)
    return FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=seed)


def _given(said: Document) -> FiniteProfile:
    rows = required(said, "profile", "directions")
    if "weights" not in said:
        return FiniteProfile.of(rows)
    return FiniteProfile(directions=rows, weights=said["weights"])


def method_of(document: Document) -> Method | None:
    """Rule and envelope, or none where the file leaves the choice to the library."""
    said = section(document, "calibration")
    if not set(said) - {"noise_std"}:
        return None
    rule = word(said.get("rule", "tight"), "rule")
    check_one_of(RULES, rule=rule)
    default = "worst_gap" if rule == "closed_form" else "transport"
    if document.get("gaussian") and rule == "tight":
        default = "exact"
    envelope = word(said.get("envelope", default), "envelope")
    check_one_of(ENVELOPES, envelope=envelope)
    return Method(rule=rule, envelope=envelope)  # type: ignore[arg-type]
