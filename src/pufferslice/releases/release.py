# SPDX-License-Identifier: Apache-2.0
"""Release: compute the query, round it to the grid, add noise once, write one file."""

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Final, NamedTuple, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import is_a
from pufferslice._core.display import Shown, rounded
from pufferslice._core.files import (
    canonical_json,
    check_new,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_new,
)
from pufferslice._core.plot import Plot
from pufferslice._core.sampler import SIGMA_INT, Noise, OperatingSystemNoise
from pufferslice._core.text import listed, quoted, shown
from pufferslice._core.threads import Progress, silent
from pufferslice.certificate import Certificate, verify
from pufferslice.certificate.budget import required_budget_evidence
from pufferslice.certificate.budget_wording import all_outputs_sentence
from pufferslice.certificate.files import DerivedPart, MeasuredPart, RecordedPart, read_release
from pufferslice.certificate.issue import leaves_rows_unchecked, scenario_problems
from pufferslice.certificate.left import whitened_statistics
from pufferslice.certificate.statement import TablePart, UnslicedPart
from pufferslice.certificate.wording import (
    INSECURE,
    clipping_sentence,
    guess_sentence,
    unsliced_sentence,
)
from pufferslice.claims.claim import REPORTED_ORDER
from pufferslice.data.tables import Rows
from pufferslice.errors import ArgumentError, LedgerError, ReleaseError, escaped
from pufferslice.noise.decision import INTERVAL_STDS
from pufferslice.noise.spending import Spending, combined_estimate
from pufferslice.queries import Ball, Box, Query
from pufferslice.queries.derived import Derived
from pufferslice.queries.moments import Design
from pufferslice.queries.ranges import range_of, range_words
from pufferslice.queries.statistics import Quantiles
from pufferslice.releases.budget import (
    Only,
    PartRequest,
    checked_period,
    grant_of_budget,
    part_sums,
    requested_part,
    stated_part,
)
from pufferslice.releases.commands import finished, publishing_again, releasing
from pufferslice.releases.derived import (
    DerivedStatistics,
    Pairs,
    derived_statistics,
    noise_covariance,
    requested,
)
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.marks import Outside
from pufferslice.releases.pictures import release_plot
from pufferslice.releases.states import Entry, Grant, Intent
from pufferslice.releases.value import (
    check_atom,
    fitting_value,
    released_rows,
    table_mark,
)
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.whitening import Shape, exact_product

FORMAT: Final = "pufferslice-release"
VERSION: Final = 5

INTERVAL: Final = 0.95
MOST_STORED: Final = 100
"""Most statistics for which a release holds the covariance of its noise."""

SMALL_COUNT: Final = 10.0
"""Released counts below this get a remark."""

_OUTSIDE: Final = ("digest", "signature")

_MOVED: Final = "Values that noise put outside their public range are moved to its ends."


@final
@attrs.frozen(kw_only=True)
class Recorded:
    """Place of a release in its ledger, in hashes that tell nothing of the ledger."""

    ledger: str
    """Lineage of the ledger: the hash of its first event, which its copies share."""
    intent: str
    """Hash of the event that intended the release."""
    part: str
    period: int
    charge: Fraction
    """Share of the precision of the part and period that the release took."""

    @classmethod
    def of(cls, lineage: str, entry: Entry) -> "Recorded":
        """Describe an entry of the ledger with this lineage."""
        return cls(
            ledger=lineage,
            intent=entry.hash,
            part=entry.part,
            period=entry.period,
            charge=entry.charge,
        )

    @classmethod
    def read(cls, part: RecordedPart) -> "Recorded":
        """Read the place of a release file."""
        return cls(
            ledger=part.id,
            intent=part.intent,
            part=part.part,
            period=part.period,
            charge=Fraction(part.charge),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the place as JSON values."""
        return {
            "id": self.ledger,
            "intent": self.intent,
            "part": self.part,
            "period": self.period,
            "charge": str(self.charge),
        }


@final
@attrs.frozen(kw_only=True)
class Measured:
    """What a release of a part of a budget measured, beside its grid values."""

    serial: int
    """Place among the releases of this part and period, from 1."""
    of_periods: bool
    """Whether the part has several periods."""
    share: float | None
    """Share of the declared precision with which all statistics were measured; None for others."""
    directions: tuple[tuple[float, ...], ...] | None
    """Measured numbers, in coordinates in which the declared precision is 1."""
    coefficients: tuple[tuple[float, ...], ...] | None = None
    """Released combinations of the statistics of the part; None where they are such statistics."""

    @classmethod
    def of(cls, request: PartRequest, part: TablePart, entry: Entry) -> "Measured":
        """Describe what was requested of a part."""
        directions = None
        if request.share is None:
            directions = tuple(map(tuple, request.measurement.directions.tolist()))
        coefficients = None
        if set(request.names) - set(part.scenario.query.names):
            coefficients = tuple(map(tuple, request.coefficients.tolist()))
        return cls(
            serial=entry.serial,
            of_periods=part.kind == "repeated",
            share=request.share,
            directions=directions,
            coefficients=coefficients,
        )

    @classmethod
    def read(cls, part: MeasuredPart) -> "Measured":
        """Read the measurement of a release file."""
        rows, combined = part.directions, part.coefficients
        return cls(
            serial=part.serial,
            of_periods=part.of_periods,
            share=part.share,
            directions=None if rows is None else tuple(map(tuple, rows)),
            coefficients=None if combined is None else tuple(map(tuple, combined)),
        )

    def to_json(self, grid_values: Sequence[str]) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        rows, combined = self.directions, self.coefficients
        return {
            "serial": self.serial,
            "of_periods": self.of_periods,
            "share": self.share,
            "directions": None if rows is None else [list(row) for row in rows],
            "coefficients": None if combined is None else [list(row) for row in combined],
            "grid_values": list(grid_values),
        }


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

    n_rows: int | None = None
    """Public number of rows of the released table; None where it is not public."""
    noise_covariance: Floats | None = attrs.field(
        default=None, converter=attrs.converters.optional(locked), eq=same
    )
    """Covariance of the noise, in the user's units; None for more than 100 statistics, where it
    follows from the certificate."""
    specs: tuple[Derived, ...] = ()
    """Statistics that the query asks for, computed from the values by `derived`."""
    design: Design | None = None
    """Recipe of the columns of `queries.second_moments`, from which `pufferslice.models` builds
    models; None where the query has no second moments, or several."""
    recorded: Recorded | None = None
    """Event of the ledger that intended the release."""
    measured: Measured | None = None
    """Measurement under a budget; None under a certificate of one release."""
    signature: Mapping[str, Any] | None = None
    """Ed25519 signature of the release; None if it was not signed."""
    sealed: str | None = attrs.field(default=None, eq=False)
    """Digest that the file of the release states; None for a release that was not read."""
    read_as: str | None = attrs.field(default=None, eq=False)
    """Digest of what was read; None for a release that was not read."""

    def __attrs_post_init__(self) -> None:
        lengths = {len(self.names), len(self.values), len(self.noise_stds)}
        if self.measured is None:  # a budget may measure other numbers than the statistics
            lengths.add(len(self.grid_values))
        if len(lengths) != 1 or not np.isfinite(self.values).all() or not self.names:
            raise ReleaseError(
                "a release must have names, and a finite value, noise and grid value for each"
            )
        covariance = self.noise_covariance
        if covariance is not None and not _fits(covariance, self.noise_stds):
            raise ReleaseError(
                "the covariance of the noise must be a symmetric matrix with the squared noise "
                "deviations on its diagonal"
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

    @property
    def small_counts(self) -> str:
        """Remark on counts below 10 as released, in a sentence; empty if there are none.

        It is about released values only, and costs nothing.
        """
        pairs = zip(self.names, self.values, strict=True)
        small = [name for name, value in pairs if name.startswith("count(") and value < SMALL_COUNT]
        if not small:
            return ""
        what = "is a count" if len(small) == 1 else "are counts"
        return (
            f"{listed(small, shown)} {what} below {SMALL_COUNT:g} as released: perhaps of few "
            "rows, or of none. The noise hides the secret, and not that a group is small: many "
            "offices merge or withhold such cells."
        )

    def plot(self) -> Plot:
        """Draw every value with the 95 % interval of its noise, each on a scale of its own."""
        return release_plot(self)

    def derived(
        self,
        *,
        ratio: Pairs = (),
        std: Sequence[str] = (),
        covariance: Pairs = (),
        correlation: Pairs = (),
        margin: Mapping[str, Sequence[str]] | None = None,
        quantile: Quantiles | None = None,
        regression: Mapping[str, Sequence[str]] | None = None,
        simultaneous: bool = False,
        certificate: Certificate | None = None,
    ) -> DerivedStatistics:
        """Compute statistics from the released values, after noise, with 95 % intervals.

        Without arguments, those that the query asks for. `ratio`: pairs of released statistics, or
        of sums of released cells (`count(race = B)` for all cells with that race);
        `std`: columns; `covariance` and `correlation`: pairs of columns; `margin`: lists of
        released cells by the name of their sum; `quantile`: levels by column, from a released
        histogram; `regression`: columns by target. `simultaneous`: all intervals hold together.
        `certificate`: that of the release, needed above 100 statistics.

        Guarantee: post-processing, covered by the certificate; intervals cover the noise alone.
        """
        asked = requested(
            self.names,
            ratio=ratio,
            std=std,
            covariance=covariance,
            correlation=correlation,
            margin=margin,
            quantile=quantile,
            regression=regression,
        )
        specs = asked or self.specs
        if not specs:
            raise ArgumentError(
                "the query asks for released values only; name statistics, as in std=['age']"
            )
        return derived_statistics(
            specs,
            names=self.names,
            values=self.values,
            covariance=self.known_noise(certificate),
            n_rows=self.n_rows,
            simultaneous=simultaneous,
        )

    def known_noise(self, certificate: Certificate | None = None) -> Floats:
        """Covariance of the noise, in the user's units: as held, or by the certificate if given."""
        if certificate is not None and certificate.digest != self.certificate:
            raise ArgumentError("certificate must be that of the release")
        if certificate is not None and self.measured is None:
            return noise_covariance(certificate)
        if self.noise_covariance is not None:
            return self.noise_covariance
        if self.measured is not None:
            raise ArgumentError(
                f"release under a budget must be of at most {MOST_STORED} statistics, and has "
                f"{len(self.names):,}: it does not hold the covariance of its noise, which does "
                "not follow from the budget alone. Name fewer with only=[...]"
            )
        raise ArgumentError(
            f"certificate is required, as a release of {len(self.names):,} statistics does not "
            "hold the covariance of its noise; name it with certificate="
        )

    def to_json(self) -> dict[str, Any]:
        """Return the release as JSON values, with its digest and its signature, if it has one."""
        document = self.unsigned()
        if self.signature is not None:
            document["signature"] = dict(self.signature)
        return document

    def unsigned(self) -> dict[str, Any]:
        """Return what a signature is of: the release as JSON values with its digest."""
        document = self._json()
        return document | {"digest": self.sealed or _digest_of(document)}

    def _json(self) -> dict[str, Any]:
        ends: list[dict[str, Any]] = [{}] * len(self.names)
        # As text: other readers of JSON round integers to floats.
        texts = list(map(str, self.grid_values))
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
                    **({"grid_value": texts[place]} if self.measured is None else {}),
                    **moved,
                }
                for place, (row, moved) in enumerate(zip(self.table_rows(), ends, strict=True))
            ],
            **self._json_of_derived(),
            **({} if self.recorded is None else {"ledger": self.recorded.to_json()}),
            **({} if self.measured is None else {"measured": self.measured.to_json(texts)}),
        }

    def _json_of_derived(self) -> dict[str, Any]:
        """Return what derived statistics need, as far as there is any."""
        found: dict[str, Any] = {} if self.n_rows is None else {"n_rows": self.n_rows}
        if self.noise_covariance is not None:
            rows = enumerate(self.noise_covariance.tolist(), start=1)
            found["covariance"] = [row[:place] for place, row in rows]
        if self.specs:
            found["derived"] = [
                {"name": s.name, "kind": s.kind, "of": list(s.of), "numbers": list(s.numbers)}
                for s in self.specs
            ]
        if self.design is not None:
            found["design"] = self.design.description()
        return found

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
            grid_values=tuple(map(int, fields.integers)),
            secure=fields.secure,
            unsliced=fields.unsliced,
            range=None if fields.range is None else range_of(fields.range.to_json()),
            clipping=fields.clipping,
            moved_into=ends,
            n_rows=fields.n_rows,
            noise_covariance=_symmetric(fields.covariance),
            specs=_specs_of(fields.derived or []),
            design=_design_of(fields.design) if "design" in fields.model_fields_set else None,
            recorded=Recorded.read(fields.ledger) if "ledger" in fields.model_fields_set else None,
            measured=Measured.read(fields.measured)
            if "measured" in fields.model_fields_set
            else None,
            signature=fields.signature.to_json()
            if "signature" in fields.model_fields_set
            else None,
            sealed=fields.digest,
            read_as=_digest_of(document),
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

    @property
    def title(self) -> str:
        """What the release is of, in words."""
        if self.measured is None or self.recorded is None:
            return "Release"
        period = f", period {self.recorded.period}" if self.measured.of_periods else ""
        return f"Release {self.measured.serial} of part {quoted(self.recorded.part)}{period}"

    @property
    def _guesses(self) -> str:
        if self.measured is None:
            return guess_sentence(self.unsliced.guess)
        return all_outputs_sentence(self.unsliced.guess or 1.0)

    def sentences(self) -> list[str]:
        """State the claim, and how often the secret is guessed."""
        stamp = [] if self.secure else [INSECURE]
        head = f"{self.title} under {self.guarantee}, certificate {self.certificate[:16]}"
        parts = [*stamp, head, self._guesses, self.clipping, self.small_counts]
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
        head = f"{stamp}{self.title} under {claim}, certificate {certificate}"
        whole = list(filter(None, [self._guesses, self.small_counts]))
        if self.unsliced.epsilon is not None or self.unsliced.guess is None:
            whole.append(f"{unsliced_sentence(self.unsliced)}.")
        if self.specs and self.noise_covariance is not None:
            whole.insert(0, str(self.derived()))
        elif self.specs:
            whole.insert(0, f"{len(self.specs)} more follow: release.derived(certificate=...).")
        return "\n".join([head, *lines, *whole])

    def __repr__(self) -> str:
        return (
            f"Release(dim={len(self.names)}, certificate='{self.certificate[:12]}…', "
            f"guarantee='{self.guarantee}')"
        )


def _digest_of(document: Mapping[str, Any]) -> str:
    """Digest of a release, without the digest and the signature that it may hold."""
    inside = {key: value for key, value in document.items() if key not in _OUTSIDE}
    return digest(canonical_json(inside))


def release(
    scenario: Scenario,
    rows: object,
    certificate: Certificate,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    part: str | None = None,
    period: int | None = None,
    only: Only | None = None,
    spend: float | None = None,
    noise: Mapping[str, float] | None = None,
    out: str | os.PathLike[str] | None = None,
    spent_marks: str | os.PathLike[str] | None = None,
    into_range: bool = False,
    generator: Noise = OperatingSystemNoise(),  # noqa: B008 - it has no state
    progress: Progress = silent,
) -> Release:
    """Release the query on `rows`: once under a certificate, or inside a part of a budget.

    The query is computed here, from rows that must fit the scenario's distribution. Intent is
    recorded in the ledger before noise is drawn, the result before it is handed out; with `out` it
    is also written to a file, whole or not at all. A second release under the certificate is
    refused. `progress` follows the couplings, which are looked for again.

    A spent mark is left in the folder `spent_marks`; without it beside the file that the
    certificate was read from, else beside `out`, else beside the ledger. A ledger that does not
    know a mark of its own, because it was restored from a backup, releases nothing. For a ledger in
    a database the release files are the marks.

    Under a budget, `part` names the part, and `period` the period of a repeated one. `only` lists
    statistics of the part, or maps names to coefficients of statistics. `spend` is the share of the
    declared precision that is spent; `noise`, in place of it, maps each statistic to the standard
    deviation that it should have. Without both, all that is left is spent; without `only` the
    values then combine all releases of the part. All of this may be chosen after seeing earlier
    releases; the ledger refuses more precision than is left.

    `into_range` moves values that noise put outside what the query can have (its range, and 0 to 1
    for a rate) to the nearest end. That costs nothing under a claim about the whole output; claims
    along slices do not survive it, and it is refused.
    """
    if not is_a(certificate, Certificate):
        raise ArgumentError(f"certificate must be a Certificate, got {type(certificate).__name__}")
    ends = public_ends(scenario.query, certificate) if into_range else None
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    choices = {"part": part, "period": period, "only": only, "spend": spend, "noise": noise}
    if certificate.workflow == "budget":
        _check_generator(certificate, generator)
        return _release_part(
            scenario,
            released_rows(scenario, rows),
            certificate,
            book,
            _part_asked(certificate, book, choices),
            out=out,
            spent_marks=spent_marks,
            ends=ends,
            generator=generator,
        )
    if unwanted := [name for name, value in choices.items() if value is not None]:
        raise ArgumentError(
            f"{listed(unwanted)} is for releases under a budget, and this is a certificate of one "
            "release; leave it out"
        )
    _check_certificate(scenario, certificate, generator, progress)
    generator.draw(1)  # so that a machine that cannot draw fails before the ledger is touched
    held = released_rows(scenario, rows)
    value = fitting_value(scenario, held)
    if not certificate.noise_std:
        check_atom(scenario, value)
    if out is not None:
        check_new(out)
    outside = Outside.of(book.path, asked=spent_marks, certificate=certificate.path, out=out)

    def drawn(entry: Entry) -> Release:
        released = _noisy(scenario, certificate, value, generator)
        released = attrs.evolve(released, recorded=Recorded.of(book.lineage, entry))
        if ends is None:
            return released
        moved = np.clip(released.values, ends[:, 0], ends[:, 1])
        return attrs.evolve(released, values=moved, moved_into=ends)

    def handed_out(released: Release) -> None:
        if out is not None:
            write_new(out, pretty_json(released.to_json()))

    return finished(
        releasing(
            book,
            grant_of(scenario, certificate),
            Intent(certificate=certificate.digest, table=table_mark(scenario, held, value)),
            outside,
            draw=drawn,
            text=lambda released: canonical_json(released.to_json()).decode(),
            hand_out=handed_out,
        )
    )


def grant_of(scenario: Scenario, certificate: Certificate) -> Grant:
    """Return what a certificate of one release allows."""
    statement = certificate.released
    return Grant(
        certificate=certificate.digest,
        keys=scenario.ledger_keys(),
        earlier=tuple(statement.earlier_releases),
        claim=str(certificate.guarantee),
        statistics=scenario.query.names,
        n_rows=(scenario.secret or {}).get("n_rows"),
    )


def release_again(
    certificate: Certificate,
    *,
    ledger: str | os.PathLike[str] | Ledger,
    out: str | os.PathLike[str],
    spent_marks: str | os.PathLike[str] | None = None,
    part: str | None = None,
    period: int | None = None,
    serial: int | None = None,
) -> Release:
    """Write the release that the ledger keeps for this certificate again: the same numbers.

    Under a budget, that of a part, of a period if it has any, and with this serial number; without
    a number, the latest.
    """
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    book.check_arrived()
    entry = _entry_of(book, certificate, part, period, serial)
    if entry is None or entry.release is None:
        raise ReleaseError(
            f"ledger {book.name!r} keeps no release of certificate {certificate.digest[:12]}, or "
            "of this part of it with this number; nothing was ever handed out"
        )
    released = _recorded(book, entry, certificate.digest)
    outside = Outside.of(book.path, asked=spent_marks, certificate=certificate.path, out=out)

    def handed_out() -> None:
        write_new(out, pretty_json(released.to_json()))

    finished(publishing_again(book, entry, outside, handed_out))
    return released


def _entry_of(
    book: Ledger,
    certificate: Certificate,
    part: str | None,
    period: int | None,
    serial: int | None,
) -> Entry | None:
    """Find a release in the ledger."""
    if certificate.workflow != "budget":
        if (part, period, serial) != (None, None, None):
            raise ArgumentError(
                "part, period and serial are for releases under a budget; leave them out"
            )
        return book.entry(certificate.digest)
    stated = stated_part(certificate, part)
    number = checked_period(stated, period)
    found = [
        entry
        for entry in book.entries()
        if (entry.certificate, entry.part, entry.period)
        == (certificate.digest, stated.name, number)
        and entry.state != "void"
        and serial in {None, entry.serial}
    ]
    return found[-1] if found else None


def _recorded(book: Ledger, entry: Entry, certificate: str) -> Release:
    """Read a release that the ledger keeps; raise if it is not the one that was recorded."""
    text = entry.release or ""
    if digest(text.encode()) != entry.content:
        raise LedgerError(
            f"ledger {book.name!r} is damaged: the release that it keeps is not the one that was "
            "recorded; restore a copy"
        )
    try:
        released = Release.from_json(parsed_json(text))
    except (ReleaseError, ValueError) as error:
        raise LedgerError(
            f"the release that ledger {book.name!r} keeps is damaged "
            f"({type(error).__name__}); restore a copy of the ledger"
        ) from error
    if released.certificate != certificate:
        raise LedgerError(
            f"ledger {book.name!r} is damaged: it keeps a release of another certificate "
            f"under {certificate[:12]}; restore a copy"
        )
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


def public_ends(query: Query, certificate: Certificate) -> Floats:
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
    scenario: Scenario, certificate: Certificate, generator: Noise, progress: Progress
) -> None:
    """Raise unless the claim holds for the scenario's own distributions, with this noise."""
    if certificate.workflow != "release":
        raise ReleaseError(
            "this certificate is of a training run; a release needs one from certify_release"
        )
    _check_generator(certificate, generator)
    # Everything that is stated follows from the scenario, so that the evidence adds nothing.
    for problem in scenario_problems(certificate, scenario, progress):
        raise ReleaseError(
            f"the certificate does not hold for this scenario: {problem}. Certify this scenario, "
            "or use the one that was certified"
        )
    if leaves_rows_unchecked(certificate, scenario):
        raise ReleaseError(
            "the certificate states epsilons that rest on single rows, of which this scenario has "
            "moments only. Certify this scenario, or release by one whose rows are in memory"
        )


def _check_generator(certificate: Certificate, generator: Noise) -> None:
    """Raise unless the noise comes from the generator that the certificate states."""
    stated = certificate.generator
    is_system = type(generator) is OperatingSystemNoise
    if generator.name != stated or (stated == OperatingSystemNoise.name and not is_system):
        raise ReleaseError(
            f"the certificate states the generator {stated!r}, but generator is "
            f"{generator.name!r}. A seeded test generator must be named both when certifying and "
            "when releasing, and stamps both as insecure"
        )


class _PartAsked(NamedTuple):
    """A part of a budget, a period of it, and what is to be released there."""

    part: TablePart
    period: int
    request: PartRequest


def _part_asked(certificate: Certificate, book: Ledger, choices: Mapping[str, Any]) -> _PartAsked:
    """Read which statistics of which part are to be released, and how precisely."""
    part = stated_part(certificate, choices["part"])
    period = checked_period(part, choices["period"])
    spending = book.spending(certificate.digest, part.name, period)
    request = requested_part(
        part,
        Spending.none(len(part.noise.whitening)) if spending is None else spending,
        only=choices["only"],
        spend=choices["spend"],
        noise=choices["noise"],
    )
    return _PartAsked(part, period, request)


def _release_part(
    scenario: Scenario,
    rows: Rows,
    certificate: Certificate,
    book: Ledger,
    asked: _PartAsked,
    *,
    out: str | os.PathLike[str] | None,
    spent_marks: str | os.PathLike[str] | None,
    ends: Floats | None,
    generator: Noise,
) -> Release:
    """Release statistics of a part of a budget, and spend its precision."""
    part, period, request = asked
    required_budget_evidence(certificate)
    if problems := verify(certificate, scenario={part.name: scenario}).problems:
        raise ReleaseError(
            f"the budget does not hold for this scenario: {problems[0]}. Certify again before the "
            "first output, or use the scenario that was certified"
        )
    generator.draw(1)  # so that a machine that cannot draw fails before the ledger is touched
    n_rows, value = part_sums(scenario, rows, part)
    if ends is not None:
        ends = _ends_of(request, ends)
    if out is not None:
        check_new(out)
    outside = Outside.of(book.path, asked=spent_marks, certificate=certificate.path, out=out)
    earlier = outputs_of(book, certificate, part, period) if request.is_rest else []
    is_whole = request.share is not None
    measurement = request.measurement
    intent = Intent(
        certificate=certificate.digest,
        part=part.name,
        period=period,
        charge=request.charge,
        features=None if is_whole else request.coefficients.tolist(),
        noise=None if is_whole else measurement.covariance.tolist(),
        directions=None if is_whole else measurement.directions.tolist(),
        table=table_mark(scenario, rows, value),
    )

    def drawn(entry: Entry) -> Release:
        released = _measured(scenario, certificate, asked, value, earlier, entry, n_rows, generator)
        released = attrs.evolve(released, recorded=Recorded.of(book.lineage, entry))
        if ends is None:
            return released
        moved = np.clip(released.values, ends[:, 0], ends[:, 1])
        return attrs.evolve(released, values=moved, moved_into=ends)

    def handed_out(released: Release) -> None:
        if out is not None:
            write_new(out, pretty_json(released.to_json()))

    return finished(
        releasing(
            book,
            grant_of_budget(certificate),
            intent,
            outside,
            draw=drawn,
            text=lambda released: canonical_json(released.to_json()).decode(),
            hand_out=handed_out,
        )
    )


def outputs_of(
    book: Ledger, certificate: Certificate, part: TablePart, period: int
) -> list[tuple[Floats, Floats]]:
    """List what the releases of a part measured, and the numbers that they found."""
    outputs = []
    for entry in book.entries():
        place = entry.certificate, entry.part, entry.period
        if place != (certificate.digest, part.name, period) or entry.release is None:
            continue
        released = _recorded(book, entry, certificate.digest)
        values = np.array([integer / SIGMA_INT for integer in released.grid_values])
        directions = math.sqrt(float(entry.charge)) * np.eye(len(part.noise.whitening))
        if entry.directions is not None:
            directions = np.array(entry.directions)
        outputs.append((directions, values))
    return outputs


def _ends_of(request: PartRequest, ends: Floats) -> Floats:
    """Return the public ends of the requested statistics, which must be statistics by name."""
    places = request.coefficients.argmax(axis=1)
    if not np.array_equal(request.coefficients, np.eye(len(ends))[places]):
        raise ReleaseError(
            "into_range needs statistics by name, whose ends are public; leave it out for "
            "combinations"
        )
    return np.asarray(ends[places])


def _measured(
    scenario: Scenario,
    certificate: Certificate,
    asked: _PartAsked,
    value: Sequence[Fraction],
    earlier: Sequence[tuple[Floats, Floats]],
    entry: Entry,
    n_rows: int,
    generator: Noise,
) -> Release:
    """Measure the requested statistics: only grid points are computed from the value.

    Where all that is left is measured, `earlier` outputs of the part are combined with it.
    """
    part, _, request = asked
    measurement, query = request.measurement, scenario.query
    whitened = Shape(whitening=part.noise.whitening).whitened_exactly(value)
    if request.share is None:
        exact = exact_product(measurement.directions, whitened)
    else:
        root = Fraction(float(measurement.directions[0, 0]))
        exact = [root * x for x in whitened]
    drawn = generator.draw(len(exact)).tolist()
    integers = [round(x * SIGMA_INT) + z for x, z in zip(exact, drawn, strict=True)]
    noisy = [Fraction(integer, SIGMA_INT) for integer in integers]
    names, covariance = request.names, measurement.covariance
    values = [_saturated(x) for x in exact_product(measurement.estimate, noisy)]
    if request.is_rest:
        own = measurement.directions, np.array([float(x) for x in noisy])
        found = combined_estimate([*earlier, own], whitened_statistics(part))
        known = np.flatnonzero(found.is_known)
        names = tuple(names[place] for place in known)
        values, covariance = found.values[known].tolist(), found.covariance[np.ix_(known, known)]
    return Release(
        certificate=certificate.digest,
        guarantee=str(certificate.guarantee),
        names=names,
        values=values,
        noise_stds=np.sqrt(np.diagonal(covariance)),
        grid_values=tuple(integers),
        secure=certificate.is_secure,
        unsliced=UnslicedPart(
            order=REPORTED_ORDER,
            epsilon=None,
            source="all outputs of the budget together",
            guess=certificate.budget.guess,
        ),
        n_rows=n_rows if "n_rows" in scenario.secret else None,
        noise_covariance=covariance if len(values) <= MOST_STORED else None,
        specs=released_specs(query, names),
        design=Design.of_query(query.kind, query.parameters),
        measured=Measured.of(request, part, entry),
    )


def _noisy(
    scenario: Scenario, certificate: Certificate, value: Floats | list[Fraction], generator: Noise
) -> Release:
    """Add noise to the query. If there is noise, only grid points are computed from `value`."""
    query = scenario.query
    if certificate.noise_std:
        integers = quantised(value, query.center, certificate.noise_std, certificate.shape)
        drawn = generator.draw(query.dim).tolist()
        released = released_at(certificate, [a + b for a, b in zip(integers, drawn, strict=True)])
    else:
        released = released_at(certificate, [0] * query.dim, [Fraction(x) for x in value])
    return attrs.evolve(released, specs=released_specs(query, query.names))


def released_specs(query: Query, names: Sequence[str]) -> tuple[Derived, ...]:
    """Choose the statistics that the query asks for and that follow from released ones."""
    return tuple(spec for spec in query.derived if set(spec.of) <= set(names))


def released_at(
    certificate: Certificate, grid_values: Sequence[int], exact: Sequence[Fraction] = ()
) -> Release:
    """Build the release that follows from a certificate and the released integers.

    Without noise it follows from the `exact` values, in scaled coordinates.
    """
    statement = certificate.released
    query, noise_std, shape = statement.scenario.query, certificate.noise_std, certificate.shape
    scaled, scales = list(exact), [Fraction(scale) for scale in query.scales]
    if noise_std:
        step = Fraction(noise_std) / SIGMA_INT
        noisy = [n * step for n in grid_values]
        if shape is not None:
            noisy = shape.colored(noisy)
        limits = query.limits
        center = np.zeros(len(scales)) if limits is None else limits.center / np.array(query.scales)
        scaled = [Fraction(c) + x for c, x in zip(center.tolist(), noisy, strict=True)]
    return Release(
        certificate=certificate.digest,
        guarantee=str(certificate.guarantee),
        names=tuple(query.names),
        values=[_saturated(x * scale) for x, scale in zip(scaled, scales, strict=True)],
        noise_stds=statement.noise.std_by_coordinate,
        grid_values=tuple(grid_values),
        secure=certificate.is_secure,
        unsliced=statement.unsliced,
        range=query.limits,
        clipping=clipping_sentence(statement.scenario),
        n_rows=getattr(statement.scenario.secret, "n_rows", None),
        design=Design.of_query(query.kind, query.parameters),
        noise_covariance=noise_covariance(certificate) if len(scales) <= MOST_STORED else None,
    )


def _fits(covariance: Floats, stds: Floats) -> bool:
    """Return whether a matrix can be the covariance of noise with these deviations."""
    if covariance.shape != (len(stds), len(stds)) or not np.isfinite(covariance).all():
        return False
    variances = np.diagonal(covariance)
    return np.array_equal(covariance, covariance.T) and np.allclose(
        variances, stds**2, rtol=1e-6, atol=0.0
    )


def _symmetric(triangle: list[list[float]] | None) -> Floats | None:
    """Read a matrix from its lower triangle."""
    if triangle is None:
        return None
    if [len(row) for row in triangle] != list(range(1, len(triangle) + 1)):
        raise ReleaseError("the covariance of the noise must be a lower triangle")
    matrix = np.zeros((len(triangle),) * 2)
    for place, row in enumerate(triangle):
        matrix[place, : place + 1] = matrix[: place + 1, place] = row
    return matrix


def _specs_of(parts: Iterable[DerivedPart]) -> tuple[Derived, ...]:
    try:
        return tuple(
            Derived(name=part.name, kind=part.kind, of=part.of, numbers=part.numbers)
            for part in parts
        )
    except ArgumentError as error:
        raise ReleaseError(f"the release has no possible derived statistic: {error}") from error


def _design_of(described: Mapping[str, Any]) -> Design:
    """Read a recipe of columns that is written as the library writes it."""
    with contextlib.suppress(ArgumentError, AttributeError, LookupError, TypeError, ValueError):
        design = Design.read(described)
        if canonical_json(design.description()) == canonical_json(described):
            return design
    raise ReleaseError(
        "the design of the release is no recipe of columns; get the original, or write it again "
        "with release --again"
    )


def _saturated(value: Fraction) -> float:
    """Return the nearest finite float."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)
