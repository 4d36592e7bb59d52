# SPDX-License-Identifier: Apache-2.0
"""Release: compute the query, round it to the grid, add noise once, write one file."""

import math
import os
import sys
from fractions import Fraction
from typing import Any, ClassVar, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import is_a
from pufferslice._core.display import Shown, rounded
from pufferslice._core.files import (
    canonical_json,
    check_new,
    parsed_json,
    pretty_json,
    read_bytes,
    write_new,
)
from pufferslice._core.sampler import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice._core.text import shown
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate import Certificate, verify
from pufferslice.certificate.composition import budget_of
from pufferslice.certificate.files import read_release
from pufferslice.certificate.issue import required_evidence
from pufferslice.certificate.statement import UnslicedPart
from pufferslice.certificate.wording import (
    INSECURE,
    clipping_sentence,
    guess_sentence,
    unsliced_sentence,
)
from pufferslice.errors import ArgumentError, LedgerError, ReleaseError, StorageError, escaped
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.queries import Ball, Box, Query
from pufferslice.queries.ranges import range_of, range_words
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.value import check_atom, fitting_value
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.whitening import Shape

FORMAT: Final = "pufferslice-release"
VERSION: Final = 5

AGAIN: Final = "write it again with release_again, or `pufferslice release --again --out NEW`"
"""Advice on how to get a release that is recorded and could not be handed out."""

INTERVAL: Final = 0.95

_MOVED: Final = "Values that noise put outside their public range are moved to its ends."


@final
@attrs.frozen(kw_only=True, repr=False)
class Release(Shown):
    """The released values, in the user's units, and the size of their noise."""

    is_internal: ClassVar[bool] = False

    certificate: str
    """Digest of the certificate that covers the release."""
    guarantee: str
    names: tuple[str, ...]
    values: Floats = attrs.field(converter=locked, eq=same)
    noise_stds: Floats = attrs.field(converter=locked, eq=same)
    grid_values: tuple[int, ...]
    """Released integers, of any size; times the grid they are the whitened values, and with
    isotropic noise (center + grid * integer) * scale is the value."""
    secure: bool
    unsliced: UnslicedPart
    """Cost of the noise in all dimensions, as the certificate states it, and how often the secret
    can be guessed: `order`, `epsilon`, `from`, `guess`."""
    range: Box | Ball | None = None
    """Public range that the query was clipped to before noise, in the user's units."""
    clipping: str = ""
    """Secrets under which the range cuts off values, in a sentence; empty if there are none."""
    moved_into: Floats | None = attrs.field(
        default=None, converter=attrs.converters.optional(locked), eq=same
    )
    """Public ends that the values were moved into after noise, shape (dim, 2), infinite where there
    is none; None if they were left as they came. The grid values never move."""

    def __attrs_post_init__(self) -> None:
        lengths = {len(self.names), len(self.values), len(self.noise_stds), len(self.grid_values)}
        if len(lengths) != 1 or not np.isfinite(self.values).all() or not self.names:
            raise ReleaseError(
                "a release must have names, and a finite value, noise and grid value for each"
            )
        ends = self.moved_into
        if ends is not None and (
            ends.shape != (len(self.names), 2)
            or not ((ends[:, 0] <= self.values) & (self.values <= ends[:, 1])).all()
        ):
            raise ReleaseError(
                "values that were moved into a range must have two ends each, and lie between"
            )

    @property
    def intervals(self) -> Floats:
        """95 % intervals, shape (dim, 2), for the query clipped to its range, if it has one.

        They cover the noise alone, and not the value before clipping.
        """
        half = INTERVAL_STDS * self.noise_stds
        intervals = np.stack([self.values - half, self.values + half], axis=1)
        if self.moved_into is None:
            return intervals
        # The query lies between the ends, and a value that moves to them moves towards it.
        return np.clip(intervals, self.moved_into[:, :1], self.moved_into[:, 1:])

    @property
    def interval_is_of(self) -> str:
        """Say what the intervals are about."""
        if self.range is None:
            return "the query"
        return "the query clipped to its public range, not its value before clipping"

    def to_json(self) -> dict[str, Any]:
        """Return the release as JSON values."""
        ends: list[dict[str, Any]] = [{}] * len(self.names)
        if self.moved_into is not None:
            # JSON has no infinity.
            ends = [
                {"moved_into": [end if math.isfinite(end) else None for end in pair]}
                for pair in self.moved_into.tolist()
            ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "certificate": self.certificate,
            "guarantee": self.guarantee,
            "secure": self.secure,
            "unsliced": self.unsliced.to_json(),
            "interval": INTERVAL,
            "interval_is_of": self.interval_is_of,
            "range": None if self.range is None else self.range.description(),
            "clipping": self.clipping,
            "values": [
                {
                    "name": row["statistic"],
                    "value": row["value"],
                    "noise_std": row["noise_std"],
                    "interval": [row["low"], row["high"]],
                    # As text: other readers of JSON round integers to floats.
                    "grid_value": str(integer),
                    **moved,
                }
                for row, integer, moved in zip(
                    self.table_rows(), self.grid_values, ends, strict=True
                )
            ],
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """Return released values, noise and intervals, one row per statistic."""
        columns = zip(self.names, self.values, self.noise_stds, self.intervals, strict=True)
        return [
            {
                "statistic": name,
                "value": float(value),
                "noise_std": float(std),
                "low": float(low),
                "high": float(high),
            }
            for name, value, std, (low, high) in columns
        ]

    @classmethod
    def from_json(cls, document: object) -> "Release":
        """Read what `to_json` made; anything else raises a `ReleaseError`."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ReleaseError(
                f"this is not a release: its 'format' is not {FORMAT!r}. Give the file that "
                "release wrote"
            )
        if (version := document.get("version")) != VERSION:
            raise ReleaseError(
                f"the release has version {version!r}, this program reads {VERSION}. Read it with "
                "the program that made it"
            )
        fields = read_release(document)
        rows, ends = fields.values, None
        if any("moved_into" in row.model_fields_set for row in rows):
            pairs = [row.moved_into or [None, None] for row in rows]
            ends = [
                (-math.inf if low is None else low, math.inf if high is None else high)
                for low, high in pairs
            ]
        return cls(
            certificate=fields.certificate,
            guarantee=fields.guarantee,
            names=tuple(row.name for row in rows),
            values=[row.value for row in rows],
            noise_stds=[row.noise_std for row in rows],
            grid_values=tuple(int(row.grid_value) for row in rows),
            secure=fields.secure,
            unsliced=fields.unsliced,
            range=None if fields.range is None else range_of(fields.range.to_json()),
            clipping=fields.clipping,
            moved_into=ends,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Release":
        """Read a release file."""
        try:
            document = parsed_json(read_bytes(path, "document"))
        except ValueError as error:
            raise ReleaseError(
                f"{str(path)!r} is not a release: it is not JSON. Give the file that release wrote"
            ) from error
        return cls.from_json(document)

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows with rounded values."""
        return [
            row | {name: rounded(row[name], row["noise_std"]) for name in ("value", "low", "high")}
            for row in self.table_rows()
        ]

    def sentences(self) -> list[str]:
        """State the claim, and how often the secret is guessed."""
        stamp = [] if self.secure else [INSECURE]
        head = f"Release under {self.guarantee}, certificate {self.certificate[:16]}"
        parts = [*stamp, head, guess_sentence(self.unsliced.guess), self.clipping]
        return [part for part in parts if part]

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
        lines += [escaped(self.clipping)] if self.clipping else []
        lines += [] if self.moved_into is None else [_MOVED]
        stamp = "" if self.secure else f"{INSECURE}\n"
        claim, certificate = escaped(self.guarantee), escaped(self.certificate[:16])
        head = f"{stamp}Release under {claim}, certificate {certificate}"
        whole = [guess_sentence(self.unsliced.guess)]
        if self.unsliced.epsilon is not None or self.unsliced.guess is None:
            whole.insert(0, f"{unsliced_sentence(self.unsliced)}.")
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
    into_range: bool = False,
    noise: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    progress: Progress = silent,
) -> Release:
    """Release the query on `rows` once, under `certificate`.

    The query is computed here, from rows that must fit the scenario's distribution. Intent is
    recorded in the ledger before noise is drawn, the result before it is handed out; with `out` it
    is also written to a file, whole or not at all. A second release under the certificate is
    refused. `progress` follows the couplings, which are looked for again.

    `into_range` moves values that noise put outside what the query can have (its range, and 0 to 1
    for a rate) to the nearest end. That costs nothing under a claim about the whole output; claims
    along slices do not survive it, and it is refused.
    """
    if not is_a(certificate, Certificate):
        raise ArgumentError(f"certificate must be a Certificate, got {type(certificate).__name__}")
    ends = _public_ends(scenario.query, certificate) if into_range else None
    _check_certificate(scenario, certificate, noise, progress)
    noise.draw(1)  # so that a machine that cannot draw fails before the ledger is touched
    value = fitting_value(scenario, rows)
    if not certificate.noise_std:
        check_atom(scenario, value)
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    if out is not None:
        check_new(out)
    statement = certificate.released
    book.intend(
        scenario.key(), certificate.digest, statement.earlier_releases, budget_of(statement)
    )
    released = _noisy(scenario, certificate, value, noise)
    if ends is not None:
        moved = np.clip(released.values, ends[:, 0], ends[:, 1])
        released = attrs.evolve(released, values=moved, moved_into=ends)
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
    """Write the release that the ledger keeps for this certificate again: the same numbers."""
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    book.check_arrived()
    entry = book.entry(certificate.digest)
    if entry is None or entry.release is None:
        raise ReleaseError(
            f"ledger {book.name!r} keeps no release of certificate {certificate.digest[:12]}; "
            "nothing was ever handed out under it"
        )
    try:
        released = Release.from_json(parsed_json(entry.release))
    except (ReleaseError, ValueError) as error:
        raise LedgerError(
            f"the release that ledger {book.name!r} keeps is damaged "
            f"({type(error).__name__}); restore a copy of the ledger"
        ) from error
    if released.certificate != certificate.digest:
        raise LedgerError(
            f"ledger {book.name!r} is damaged: it keeps a release of another certificate "
            f"under {certificate.digest[:12]}; restore a copy"
        )
    _write(out, released, book)
    entry = book.entry(certificate.digest)
    if entry is None or entry.state != "published":
        book.record_published(certificate.digest)
    return released


def quantised(
    value: Floats | list[Fraction], center: Floats, noise_std: float, shape: Shape | None = None
) -> list[int]:
    """Find the nearest grid points of a value from its public centre, in whitened coordinates.

    Floats are whitened by the function that whitened the atoms of the distributions; exact values,
    of Gaussian distributions, exactly. Rounding is exact: half a step of error at most. The
    integers have any size: no value is refused, because a refusal reveals something.
    """
    step = Fraction(noise_std) / SIGMA_INT
    if shape is not None and isinstance(value, np.ndarray):
        exact = [Fraction(x) for x in shape.whitened(value[None, :], center)[0].tolist()]
    else:
        exact = [Fraction(x) - Fraction(c) for x, c in zip(value, center, strict=True)]
        if shape is not None:
            exact = shape.whitened_exactly(exact)
    return [round(x / step) for x in exact]


def _public_ends(query: Query, certificate: Certificate) -> Floats:
    """Return the least and greatest possible value of each coordinate, shape (dim, 2)."""
    if certificate.workflow == "release" and certificate.guarantee.is_sliced:
        raise ReleaseError(
            f"into_range is not covered by {certificate.guarantee}: a claim along slices does not "
            "survive a change of the output. Leave it out, or claim the whole output"
        )
    if isinstance(query.range, Ball):
        raise ReleaseError(
            "into_range needs ends for each coordinate, and this query has a ball; leave it out, "
            "or declare a Box"
        )
    ends = np.array([(coordinate.low, coordinate.high) for coordinate in query.coordinates])
    if query.range is not None:
        ends = np.clip(ends, query.range.low[:, None], query.range.high[:, None])
    if not np.isfinite(ends).any():
        raise ReleaseError(
            "into_range has nothing to do: no statistic of this query has a public range. Leave it "
            "out, or declare a range with query.with_range(...)"
        )
    return ends


def _check_certificate(
    scenario: Scenario, certificate: Certificate, noise: Noise, progress: Progress
) -> None:
    """Raise unless the claim holds for the scenario's own distributions, with this noise."""
    if certificate.workflow != "release":
        raise ReleaseError(
            "this certificate is of a training run; a release needs one from certify_release"
        )
    stated = certificate.released.noise.generator
    pretends = noise.name == OperatingSystemNoise.name and type(noise) is not OperatingSystemNoise
    if noise.name != stated or pretends:
        raise ReleaseError(
            f"the certificate states the generator {stated!r}, but noise is {noise.name!r}. "
            "A seeded test generator must be named both when certifying and when releasing, and "
            "stamps both as insecure"
        )
    required_evidence(certificate)
    verification = verify(certificate, scenario=scenario, progress=progress)
    if not verification.holds:
        raise ReleaseError(
            f"the certificate does not hold for this scenario: {verification.problems[0]}. Certify "
            "this scenario, or use the one that was certified"
        )


def _noisy(
    scenario: Scenario, certificate: Certificate, value: Floats | list[Fraction], noise: Noise
) -> Release:
    """Add noise to the query. If there is noise, only grid points are computed from `value`."""
    noise_std, query, shape = certificate.noise_std, scenario.query, certificate.shape
    grid_values = (0,) * query.dim
    center = [Fraction(c) for c in query.center]
    scaled = [Fraction(x) for x in value]
    if noise_std:
        integers = quantised(value, query.center, noise_std, shape)
        drawn = noise.draw(query.dim).tolist()
        grid_values = tuple(a + b for a, b in zip(integers, drawn, strict=True))
        step = Fraction(noise_std) / SIGMA_INT
        noisy = [n * step for n in grid_values]
        if shape is not None:
            noisy = shape.colored(noisy)
        scaled = [c + x for c, x in zip(center, noisy, strict=True)]
    scales = query.scales.tolist()
    return Release(
        certificate=certificate.digest,
        guarantee=str(certificate.guarantee),
        names=query.names,
        values=[_saturated(x * Fraction(s)) for x, s in zip(scaled, scales, strict=True)],
        noise_stds=certificate.released.noise.std_by_coordinate,
        grid_values=grid_values,
        secure=certificate.is_secure,
        unsliced=certificate.released.unsliced,
        range=query.range,
        clipping=clipping_sentence(certificate.released.scenario),
    )


def _saturated(value: Fraction) -> float:
    """Return the nearest finite float."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


def _write(out: str | os.PathLike[str], released: Release, book: Ledger) -> None:
    try:
        write_new(out, pretty_json(released.to_json()))
    except StorageError as error:
        raise StorageError(
            f"{error.strerror or error}. The release is recorded in the ledger "
            f"{book.name!r}; {AGAIN}"
        ) from error
