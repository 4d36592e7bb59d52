# SPDX-License-Identifier: Apache-2.0
"""Release: compute the query, put it on the grid, add noise once, write it whole."""

import math
import os
import re
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.files import (
    canonical_json,
    check_new,
    parsed_json,
    pretty_json,
    read_bytes,
    write_new,
)
from pufferslice._core.text import shown
from pufferslice.calibration.noise import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice.certificate import Certificate, required_evidence, verify
from pufferslice.certificate.statement import clipping_sentence
from pufferslice.certificate.wording import guess_sentence, unsliced_sentence
from pufferslice.errors import LedgerError, ReleaseError, StorageError, escaped
from pufferslice.queries import Ball, Box
from pufferslice.queries.ranges import range_of, range_words
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.value import check_atom, fitting_value
from pufferslice.scenario.scenario import Scenario

FORMAT: Final = "pufferslice-release"
VERSION: Final = 2

_INTEGER: Final = re.compile("-?[0-9]{1,1200}")
_UNSLICED: Final = ("order", "epsilon", "from", "guess")

AGAIN: Final = "write it again with release_again, or `pufferslice release --again --out NEW`"
"""How to get a release that is recorded and could not be handed out."""

INTERVAL: Final = 0.95
INTERVAL_STDS: Final = 1.959963984540054


@final
@attrs.frozen(kw_only=True, repr=False)
class Release:
    """The released values, in the user's units, with the noise that is in them."""

    certificate: str
    """Digest of the certificate that covers it."""
    guarantee: str
    names: tuple[str, ...]
    values: Floats = attrs.field(converter=locked, eq=same)
    noise_stds: Floats = attrs.field(converter=locked, eq=same)
    grid_values: tuple[int, ...]
    """The integers that were released, of any size; values are (center + grid * them) * scales."""
    secure: bool
    unsliced: Mapping[str, Any]
    """What the noise costs in all dimensions, as the certificate states it, and how often the
    secret can be guessed: `order`, `epsilon`, `from`, `guess`."""
    range: Box | Ball | None = None
    """The public range that the query was clipped to before noise, in the user's units."""
    clipping: str = ""
    """Under which secrets the range cuts off values, in a sentence; empty if under none."""

    def __attrs_post_init__(self) -> None:
        good = self.names and np.isfinite(self.values).all() and (self.noise_stds >= 0).all()
        texts = all(isinstance(one, str) for one in (self.certificate, *self.names))
        whole = all(type(one) is int for one in self.grid_values)
        numbers = [self.unsliced[key] for key in ("order", "epsilon", "guess")]
        stated = all(one is None or type(one) in (int, float) for one in numbers)
        fits = len(self.grid_values) == len(self.names)
        if not (good and texts and whole and stated and fits):
            msg = (
                "a release must have names, finite values, and noise of at least 0. This one was "
                "changed; get the original"
            )
            raise ReleaseError(msg)

    @property
    def intervals(self) -> Floats:
        """95 % intervals, shape (dim, 2), for the query clipped to its range, if it has one.

        The noise is the only error of that value. Nothing is said of the value before clipping.
        """
        half = INTERVAL_STDS * self.noise_stds
        return np.stack([self.values - half, self.values + half], axis=1)

    @property
    def interval_is_of(self) -> str:
        """What the intervals are about, in words."""
        if self.range is None:
            return "the query"
        return "the query clipped to its public range, not its value before clipping"

    def to_json(self) -> dict[str, Any]:
        """The release as JSON values."""
        rows = zip(
            self.names, self.values, self.noise_stds, self.intervals, self.grid_values, strict=True
        )
        return {
            "format": FORMAT,
            "version": VERSION,
            "certificate": self.certificate,
            "guarantee": self.guarantee,
            "secure": self.secure,
            "unsliced": dict(self.unsliced),
            "interval": INTERVAL,
            "interval_is_of": self.interval_is_of,
            "range": None if self.range is None else self.range.description(),
            "clipping": self.clipping,
            "values": [
                {
                    "name": name,
                    "value": float(value),
                    "noise_std": float(std),
                    "interval": [float(low), float(high)],
                    # As text: other readers of JSON round integers to floats.
                    "grid_value": str(integer),
                }
                for name, value, std, (low, high), integer in rows
            ],
        }

    @classmethod
    def from_json(cls, document: object) -> "Release":
        """Read back what `to_json` made."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            msg = (
                f"this is not a release: its 'format' is not {FORMAT!r}. Give the file that "
                "release wrote"
            )
            raise ReleaseError(msg)
        if (version := document.get("version")) != VERSION:
            msg = (
                f"the release has version {version!r}, this program reads {VERSION}. Read it with "
                "the program that made it"
            )
            raise ReleaseError(msg)
        rows = document["values"]
        return cls(
            certificate=document["certificate"],
            guarantee=document["guarantee"],
            names=tuple(row["name"] for row in rows),
            values=[row["value"] for row in rows],
            noise_stds=[row["noise_std"] for row in rows],
            grid_values=tuple(_integer(row["grid_value"]) for row in rows),
            secure=document["secure"],
            unsliced={key: document["unsliced"][key] for key in _UNSLICED},
            range=range_of(document.get("range")),
            clipping=document.get("clipping", ""),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Release":
        """Read a release file."""
        try:
            return cls.from_json(parsed_json(read_bytes(path, "document")))
        except (ValueError, KeyError, TypeError) as error:
            msg = (
                f"{str(path)!r} is not a release, or a damaged one ({type(error).__name__}). Give "
                "the file that release wrote"
            )
            raise ReleaseError(msg) from error

    def __str__(self) -> str:
        names = [shown(name) for name in self.names]
        width = max(map(len, names))
        clipped = [""] * len(names)
        if self.range is not None:
            clipped = [f" of the query clipped to {words}" for words in range_words(self.range)]
        rows = zip(names, self.values, self.noise_stds, self.intervals, clipped, strict=True)
        lines = [
            f"  {name:<{width}}  {value:>12.6g}  noise std {std:<10.4g} "
            f"95 % in [{low:.6g}, {high:.6g}]{of}"
            for name, value, std, (low, high), of in rows
        ]
        lines += [self.clipping] if self.clipping else []
        stamp = "" if self.secure else "INSECURE (seeded test noise, never publish)\n"
        claim, certificate = escaped(self.guarantee), escaped(self.certificate[:16])
        head = f"{stamp}Release under {claim}, certificate {certificate}"
        whole = [f"{unsliced_sentence(self.unsliced)}.", guess_sentence(self.unsliced["guess"])]
        return "\n".join([head, *lines, *whole])

    def __repr__(self) -> str:
        return (
            f"Release(dim={len(self.names)}, certificate='{self.certificate[:12]}…', "
            f"guarantee='{self.guarantee}')"
        )


def release(
    scenario: Scenario,
    rows: object,
    certificate: Certificate,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    out: str | os.PathLike[str] | None = None,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
) -> Release:
    """Release the query on `rows` once, under `certificate`.

    The query is computed here, from rows that must fit the scenario's distribution. Intent is
    recorded in the ledger before noise is drawn, the result before it is handed out; with `out` it
    is also written to a file, whole or not at all. A second release under the certificate is
    refused.
    """
    _check_noise(certificate, noise)
    _check_certificate(scenario, certificate)
    noise.draw(1)  # so that a machine that cannot draw says so before the ledger is touched
    value = fitting_value(scenario, rows)
    if not certificate.noise_std:
        check_atom(scenario, value)
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    if out is not None:
        check_new(out)
    book.intend(scenario.key(), certificate.digest, certificate.statement["earlier_releases"])
    released = _noisy(scenario, certificate, value, noise)
    book.record_drawn(certificate.digest, canonical_json(released.to_json()).decode())
    if out is not None:
        _write(out, released, book)
    book.record_published(certificate.digest)
    return released


def release_again(
    certificate: Certificate,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    out: str | os.PathLike[str],
) -> Release:
    """Write the release that the ledger keeps for this certificate once more: the same numbers."""
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    kept = book.kept_release(certificate.digest)
    if kept is None:
        msg = (
            f"ledger {str(book.path)!r} keeps no release of certificate {certificate.digest[:12]}; "
            "nothing was ever handed out under it"
        )
        raise ReleaseError(msg)
    released = _read_back(kept, certificate, book)
    _write(out, released, book)
    if not book.is_published(certificate.digest):
        book.record_published(certificate.digest)
    return released


def _read_back(kept: str, certificate: Certificate, book: Ledger) -> Release:
    try:
        released = Release.from_json(parsed_json(kept))
    except (ReleaseError, ValueError, KeyError, TypeError) as error:
        msg = (
            f"the release that ledger {str(book.path)!r} keeps is damaged "
            f"({type(error).__name__}); restore a copy of the ledger"
        )
        raise LedgerError(msg) from error
    if released.certificate != certificate.digest:
        msg = (
            f"ledger {str(book.path)!r} is damaged: it keeps a release of another certificate "
            f"under {certificate.digest[:12]}; restore a copy"
        )
        raise LedgerError(msg)
    return released


def quantised(value: Floats | list[Fraction], center: Floats, noise_std: float) -> list[int]:
    """Nearest grid points around the centre, in exact arithmetic: half a step of error at most.

    The integers have any size: no value is refused, because a refusal would tell of the value.
    """
    step = Fraction(noise_std) / SIGMA_INT
    return [round((Fraction(x) - Fraction(c)) / step) for x, c in zip(value, center, strict=True)]


def _check_noise(certificate: Certificate, noise: Noise) -> None:
    if certificate.road != "static":
        msg = "this certificate is of a training run; a release needs one from certify_release"
        raise ReleaseError(msg)
    stated = certificate.statement["noise"]["generator"]
    pretends = noise.name == OperatingSystemNoise.name and type(noise) is not OperatingSystemNoise
    if noise.name != stated or pretends:
        msg = (
            f"the certificate states the generator {stated!r}, but noise is {noise.name!r}. "
            "A seeded test generator must be named both when certifying and when releasing, and "
            "stamps both as insecure"
        )
        raise ReleaseError(msg)


def _check_certificate(scenario: Scenario, certificate: Certificate) -> None:
    """The claim holds for the scenario's own distributions.

    The evidence is not taken at its word.
    """
    required_evidence(certificate)
    verification = verify(certificate, scenario=scenario)
    if not verification.holds:
        msg = (
            f"the certificate does not hold for this scenario: {verification.problems[0]}. Certify "
            "this scenario, or use the one that was certified"
        )
        raise ReleaseError(msg)


def _noisy(
    scenario: Scenario, certificate: Certificate, value: Floats | list[Fraction], noise: Noise
) -> Release:
    """The query with noise; of `value` only grid points are used once noise is added."""
    noise_std, query = certificate.noise_std, scenario.query
    grid_values = (0,) * query.dim
    scaled = [Fraction(one) for one in value]
    if noise_std:
        integers = quantised(value, query.center, noise_std)
        drawn = noise.draw(query.dim).tolist()
        grid_values = tuple(a + b for a, b in zip(integers, drawn, strict=True))
        step = Fraction(noise_std) / SIGMA_INT
        scaled = [Fraction(c) + n * step for c, n in zip(query.center, grid_values, strict=True)]
    scales = query.scales.tolist()
    return Release(
        certificate=certificate.digest,
        guarantee=str(certificate.guarantee),
        names=query.names,
        values=[_saturated(x * Fraction(s)) for x, s in zip(scaled, scales, strict=True)],
        noise_stds=noise_std * query.scales,
        grid_values=grid_values,
        secure=certificate.is_secure,
        unsliced=certificate.statement["unsliced"],
        range=query.range,
        clipping=clipping_sentence(certificate.statement["scenario"]),
    )


def _integer(text: object) -> int:
    if not isinstance(text, str) or not _INTEGER.fullmatch(text):
        msg = "a grid value is an integer, written as a text"
        raise ReleaseError(msg)
    return int(text)


def _saturated(value: Fraction) -> float:
    """The nearest finite float."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


def _write(out: str | os.PathLike[str], released: Release, book: Ledger) -> None:
    try:
        write_new(out, pretty_json(released.to_json()))
    except StorageError as error:
        msg = (
            f"{error.strerror or error}. The release is recorded in the ledger "
            f"{str(book.path)!r}; {AGAIN}"
        )
        raise StorageError(msg) from error
