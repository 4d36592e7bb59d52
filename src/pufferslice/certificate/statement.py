# SPDX-License-Identifier: Apache-2.0
"""Types of the statement of a certificate: what is printed, stored and read by attributes.

A statement is built once, from evidence or from a file, and checked there: the kind of each field,
and the relations between fields. Importing this module loads pydantic.
"""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import attrs
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from pufferslice._core.sampler import OperatingSystemNoise
from pufferslice._core.search import LARGEST
from pufferslice._core.text import escaped_texts, shown
from pufferslice.certificate.limits import (
    BUDGET_LIMITS,
    CONDITIONS,
    LIMITS,
    NOT_STATED,
    RELEASE_LIMITS,
)
from pufferslice.claims import Claim, Method, claim_of
from pufferslice.claims.guarantee import CLAIMS, RELEASE_NOTIONS
from pufferslice.claims.slices import Rule
from pufferslice.claims.views import Scope, ViewRule
from pufferslice.errors import CertificateError, PuffersliceError
from pufferslice.learning.accountants import ACCOUNTANT_NAMES, ACCOUNTANTS, MeanSquare
from pufferslice.learning.plan import HYPOTHESES, NonFinite
from pufferslice.queries.query import Level
from pufferslice.queries.ranges import Ball, Box, range_of
from pufferslice.scenario.distributions import Kind
from pufferslice.scenario.priors import ONE_RELEASE, Source
from pufferslice.scenario.rows import shared_secret
from pufferslice.sensitivity.concentration import BandKind
from pufferslice.sensitivity.renyi import SLICED_NOTIONS
from pufferslice.sensitivity.sensitivity import Envelope, Tails

CHANGED: Final = "It was changed or is damaged: get the original, or certify again"
"""Advice to the reader of a statement or evidence that nobody issued."""

_TAGS: Final = frozenset(
    {"box", "ball", "release", "training", "budget", "table", "reserve", "repeated"}
)
"""Parts of a location that name a kind, and no field."""

_REASONS: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this file",
    "less_than": "is too large",
    "greater_than": "is too small",
}


class _OneOf:
    """A string among names that another module lists."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(self.names)


def _each_once(items: list[Any]) -> list[Any]:
    if any(item in items[:index] for index, item in enumerate(items)):
        raise ValueError("must not list anything twice")
    return items


_EACH_ONCE: Final = AfterValidator(_each_once)
_UNIQUE: Final = Field(json_schema_extra={"uniqueItems": True})
Item = TypeVar("Item")
Distinct = Annotated[list[Item], _EACH_ONCE, _UNIQUE]
SomeDistinct = Annotated[list[Item], Field(min_length=1), _EACH_ONCE, _UNIQUE]
Text = Annotated[str, Field(min_length=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Number = Annotated[float, Field(gt=-LARGEST, lt=LARGEST)]
Positive = Annotated[float, Field(gt=0, lt=LARGEST)]
NonNegative = Annotated[float, Field(ge=0, lt=LARGEST)]
Order = Annotated[float, Field(gt=1, lt=LARGEST)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, lt=2**53)]
Vector = Annotated[list[Number], Field(min_length=1)]
Deltas = Distinct[Delta]
Sentences = Annotated[list[Text], Field(min_length=1)]
Pair = Annotated[list[str], Field(min_length=2, max_length=2), _EACH_ONCE, _UNIQUE]
Secrets = Annotated[list[str], Field(min_length=2), _EACH_ONCE, _UNIQUE]
RecordAccountants = SomeDistinct[
    Annotated[str, _OneOf(a.name for a in ACCOUNTANTS if not isinstance(a, MeanSquare))]
]


def absent() -> Any:  # a field
    """Default of a field that may be absent but not null."""
    return None


class Part(BaseModel):
    """A part of a file with exactly its fields, each of its type, and with rules between them."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; a field that was left out stays out."""
        return self.model_dump(exclude_unset=True)

    def escaped(self) -> Self:
        """Return a copy with every text escaped, so that none can pass for prose."""
        return self.model_copy(update={name: _escaped(value) for name, value in self})

    def _rules(self) -> dict[str, bool]:
        """Map rules between the fields, in words, to whether they hold; the first broken counts."""
        return {}

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule, holds in self._rules().items():
            if not holds:
                raise ValueError(rule)
        return self


def _escaped(value: Any) -> Any:  # a field of any kind
    if isinstance(value, Part):
        return value.escaped()
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return escaped_texts(value) if isinstance(value, str | dict) else value


class BoxRange(Part):
    """A range with two public ends for each coordinate, in the user's units."""

    kind: Literal["box"]
    low: Vector
    high: Vector

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.low)

    def _rules(self) -> dict[str, bool]:
        pairs = zip(self.low, self.high, strict=False)
        fits = len(self.low) == len(self.high) and all(low <= high for low, high in pairs)
        return {"must have a low end for every high end, and none above it": fits}


class BallRange(Part):
    """A range of outputs within a public distance of a public center, in the user's units."""

    kind: Literal["ball"]
    center: Vector
    radius: Positive

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.center)


Range = Annotated[BoxRange | BallRange, Field(discriminator="kind")]


class ColumnsSecret(Part):
    """The value of one column, or of several together."""

    columns: SomeDistinct[Text]


class BinsSecret(Part):
    """The quantile bin of a numeric column."""

    columns: Annotated[list[Text], Field(min_length=1, max_length=1)]
    quantiles: Annotated[int, Field(ge=2, lt=2**53)]


class EdgesSecret(Part):
    """The bin of a number between public edges."""

    columns: Annotated[list[Text], Field(min_length=1, max_length=1)]
    edges: Vector
    """Inner edges, ascending; a value on an edge belongs to the upper bin."""


class WorldsSecret(Part):
    """The world that a table comes from."""

    worlds: Text


class ShareSecret(Part):
    """A share of rows with a property, or how rows are divided among several.

    Any two shares, or divisions, at most `within` apart are protected.
    """

    share_of: Text | Annotated[list[Text], Field(min_length=1), _EACH_ONCE, _UNIQUE]
    within: Annotated[float, Field(gt=0, lt=1)]
    n_rows: Count
    n_differing: Count
    """Upper bound on the number of rows that differ between two such shares; under design
    `independent`, on its expectation."""
    design: Literal["stratified", "independent"]

    def _rules(self) -> dict[str, bool]:
        differing = math.ceil(Fraction(repr(self.within)) * self.n_rows)
        fits = self.n_differing == differing
        return {"n_differing must be what within and n_rows give": fits}


class SizeSecret(Part):
    """A number of rows: any two within a ratio, up to a largest one, are protected."""

    size_of: Text
    ratio: Annotated[float, Field(gt=1, lt=LARGEST)]
    up_to: Count
    n_differing: Count
    """Upper bound on the number of rows that differ between two such sizes."""

    def _rules(self) -> dict[str, bool]:
        differing = self.up_to - math.ceil(self.up_to / Fraction(repr(self.ratio)))
        return {"n_differing must be what ratio and up_to give": self.n_differing == differing}


class ChainPart(Part):
    """A Markov chain over the states of a home."""

    transition: Annotated[list[list[Share]], Field(min_length=2)]
    start: Annotated[list[Share], Field(min_length=2)]

    def _rules(self) -> dict[str, bool]:
        fits = {len(self.start), *map(len, self.transition)} == {len(self.transition)}
        return {"transition must be square, and start must have a number for each state": fits}


class StateSecret(Part):
    """The state of a home at some times."""

    state_of: Text
    chains: dict[Text, ChainPart]
    """Chains that a reader may know, by the name of the prior."""
    is_stationary: bool
    """Whether every slot has the same probabilities of states."""
    positions: Annotated[
        list[Annotated[list[int], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ]
    """First and last slot of each protected time."""
    periods: Annotated[list[int], Field(min_length=1)]
    """Period of each slot, from 0."""

    @property
    def n_pairs(self) -> int:
        """Number of pairs of states at protected times."""
        (n_states,) = {len(chain.start) for chain in self.chains.values()}
        return len(self.positions) * math.comb(n_states, 2)

    def _rules(self) -> dict[str, bool]:
        one_size = len({len(chain.start) for chain in self.chains.values()}) == 1
        in_time = all(0 <= first <= last < len(self.periods) for first, last in self.positions)
        return {
            "chains must be of the same states, at least one chain": one_size,
            "positions must be the first and the last of some of the slots": in_time,
        }


def _kind_of_secret(secret: object) -> str:
    keys = secret if isinstance(secret, dict) else vars(secret) if isinstance(secret, Part) else {}
    if "state_of" in keys:
        return "(state)"
    if "share_of" in keys or "size_of" in keys:
        return "(share)" if "share_of" in keys else "(size)"
    named = {"worlds": "(worlds)", "quantiles": "(bins)", "edges": "(edges)"}
    return next((tag for key, tag in named.items() if key in keys), "(columns)")


class PriorPart(Part):
    """One belief about how secrets and data are linked, and where it comes from."""

    name: Text
    source: Source
    kind: Kind
    origin: Text
    """Sentence on how the distributions were made."""


class QueryPart(Part):
    """The query: what is computed and published."""

    kind: Text
    level: Level
    names: SomeDistinct[Text]
    """Names of the coordinates of the released value."""
    columns: Distinct[Text]
    """Columns of the data that the query reads."""
    parameters: dict[str, Any]
    """Arguments of the function that builds this kind of query; each kind has its own."""
    range: Range | None
    """Public set to which outputs are clipped; null if there is none."""
    scales: Annotated[list[Positive], Field(min_length=1)]
    """Public unit of each coordinate."""
    missing: Literal["refuse", "drop-rows", "middle"]

    @property
    def limits(self) -> Box | Ball | None:
        """Public range as a set; None if there is none."""
        return None if self.range is None else range_of(self.range.to_json())

    def _rules(self) -> dict[str, bool]:
        lengths = {len(self.names), len(self.scales)} | ({self.range.dim} if self.range else set())
        fits = len(lengths) == 1
        return {"names, scales and range must have the same number of coordinates": fits}


class ClippedPart(Part):
    """The secrets under which the public range moves all, or some, values of the query."""

    all: Distinct[str]
    some: Distinct[str]


class ScenarioPart(Part):
    """The scenario: what is protected from whom."""

    distribution: Annotated[str, _OneOf(ONE_RELEASE)]
    one_release_is: Text
    secret: Annotated[
        Annotated[ColumnsSecret, Tag("(columns)")]
        | Annotated[BinsSecret, Tag("(bins)")]
        | Annotated[EdgesSecret, Tag("(edges)")]
        | Annotated[WorldsSecret, Tag("(worlds)")]
        | Annotated[ShareSecret, Tag("(share)")]
        | Annotated[SizeSecret, Tag("(size)")]
        | Annotated[StateSecret, Tag("(state)")],
        Discriminator(_kind_of_secret),
    ]
    secrets: Secrets
    """Values that the secret can take."""
    pairs: SomeDistinct[Pair]
    """Pairs of secrets that must not be told apart, in either order."""
    priors: SomeDistinct[PriorPart]
    query: QueryPart
    rows_dropped: Annotated[int, Field(ge=0, lt=2**53)]
    """Number of rows that were left out because of missing values."""
    clipped: ClippedPart

    def has_priors(self, kind: Kind) -> bool:
        """Return whether a prior is of this kind."""
        return any(prior.kind == kind for prior in self.priors)

    def _rules(self) -> dict[str, bool]:
        clipped = [*self.clipped.all, *self.clipped.some]
        names = [prior.name for prior in self.priors]
        fits = True
        if isinstance(self.secret, StateSecret):
            fits = (list(self.secret.chains), self.secret.n_pairs) == (names, len(self.pairs))
        return {
            "each prior must have a chain, and each protected time all pairs of states": fits,
            "one_release_is must be what its distribution says": (
                self.one_release_is == ONE_RELEASE[self.distribution]
            ),
            "pairs must be of secrets": {s for pair in self.pairs for s in pair}
            <= set(self.secrets),
            "priors must have different names": len(set(names)) == len(names),
            "clipped must name secrets, each once, and only with a range": (
                len(clipped) == len(set(clipped))
                and set(clipped) <= set(self.secrets)
                and (not clipped or self.query.range is not None)
            ),
        }


class _ClaimType:
    """A claim in JSON: an object of its notion and its numbers."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _read_claim,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda claim: claim.to_json()
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        number = {"type": "number", "exclusiveMinimum": 0}
        kinds = []
        for claim in CLAIMS:
            notions = [claim.notion, *(SLICED_NOTIONS if claim.has_slices else ())]
            names = [field.name for field in attrs.fields(claim)]
            kinds.append(
                {
                    "type": "object",
                    "properties": {"notion": {"enum": notions}} | dict.fromkeys(names, number),
                    "required": ["notion", *names],
                    "additionalProperties": False,
                }
            )
        return {"anyOf": kinds}


def _read_claim(value: object) -> Claim:
    """Return a claim, or read it from JSON values; pydantic words the error."""
    if isinstance(value, Claim):
        return value
    numbers = {k: v for k, v in value.items() if k != "notion"} if isinstance(value, dict) else {}
    is_json = isinstance(value, dict) and isinstance(value.get("notion"), str)
    for number in numbers.values():
        is_json &= isinstance(number, int | float) and not isinstance(number, bool)
        is_json = is_json and 0 < number < LARGEST
    if not is_json:
        raise ValueError("must be a notion, with the numbers that it has")
    try:
        return claim_of(value)  # type: ignore[arg-type]
    except PuffersliceError as error:
        raise ValueError(str(error)) from None


class MethodPart(Part):
    """The method that ties noise to cost along slices."""

    rule: Rule
    envelope: Envelope

    def _rules(self) -> dict[str, bool]:
        fits = self.rule != "closed_form" or self.envelope == "worst_gap"
        return {"rule closed_form goes with envelope worst_gap": fits}


class ShapePart(Part):
    """The shape of the noise: its covariance, up to a factor."""

    kind: Literal["fitted", "diagonal", "isotropic", "given"]
    """Origin of the shape: fitted to the secret, fitted coordinate by coordinate, the same in every
    direction, or given by the user."""
    whitening: list[list[Number]] | None
    """Lower triangular matrix that makes the noise isotropic; null for isotropic noise, and for a
    matrix of more than 10,000 entries."""
    whitening_digest: Sha256 = Field(default_factory=absent)
    """Digest of the matrix in the public file `.noise.npz` beside the certificate; absent where the
    matrix is stated."""
    guard: NonNegative | None
    """Length, in scaled coordinates, up to which any shift of the output is hidden as well as the
    claim says; null for sliced claims."""
    gap: NonNegative | None
    """Bound on the excess variance: the noise has at most 1 + gap times the variance of the best
    Gaussian noise for this claim (point masses), or for the couplings that it was fitted to; null
    if no such bound is known."""

    def _rules(self) -> dict[str, bool]:
        has_matrix = self.whitening is not None
        fits = has_matrix + self.is_beside == (self.kind != "isotropic")
        return {"shape needs one whitening matrix exactly where it is not isotropic": fits}

    @property
    def is_beside(self) -> bool:
        """Whether the matrix is in a file of its own."""
        return "whitening_digest" in self.model_fields_set


class NoisePart(Part):
    """The noise of a release."""

    family: Literal["integer_gaussian"]
    std: NonNegative
    """Standard deviation in scaled coordinates; with a shape, in whitened ones."""
    shape: ShapePart
    calibrated: bool
    """Whether the claim decided the noise; if not, the data holder did."""
    std_by_coordinate: Annotated[list[NonNegative], Field(min_length=1)]
    """Standard deviation of each coordinate in the user's units."""
    grid: NonNegative
    """Step of the grid in scaled coordinates."""
    generator: Text
    secure: bool
    implementation_delta: Probability
    """Total variation between the sampled release and the release that the bound is about."""

    def _rules(self) -> dict[str, bool]:
        rule = "secure must be true for the generator of the operating system, and for no other"
        return {rule: self.secure == (self.generator == OperatingSystemNoise.name)}


class ProfilePart(Part):
    """The slices, by the digest of their directions and weights."""

    kind: Literal["finite", "sphere"]
    """Kind of profile: the listed slices themselves, or the whole sphere from which they were
    drawn."""
    dim: Count
    n_directions: Count
    """Number of slices of positive weight."""
    effective_slices: Annotated[float, Field(ge=0.999999, lt=LARGEST)]
    """Number of equally weighted slices of equal concentration: 1 / sum of squared weights."""
    largest_weight: Annotated[float, Field(gt=0, le=1)]
    digest: Sha256


class WholeSpherePart(Part):
    """All directions, none of them drawn: claims along them have a closed form."""

    kind: Literal["whole_sphere"]
    dim: Annotated[int, Field(ge=2)]
    digest: Sha256


class SharesPart(Part):
    """Shares of the noise standard deviation."""

    distribution: Share
    sampling: Share
    slicing: Share


class SamplingPart(Part):
    """The bounds on sampled distributions and drawn slices."""

    band: BandKind | None
    """Kind of bands around sampled distributions; null if the distributions are exact."""
    tails: Tails | None
    """Treatment of levels beyond the bands: gaps count at the public range, or their mass is in
    delta; null without bands."""
    delta_of_tails: Probability | None
    """Part of delta that covers the tails; for public models only."""
    noise_shares: SharesPart | None


class UnslicedPart(Part):
    """Bounds on the whole output; null where there is no finite one."""

    order: Order
    epsilon: NonNegative | None
    source: Text
    """Sentence on how the bound was found."""
    guess: Annotated[float, Field(ge=0.5, le=1)] | None
    """Upper bound on the share of right guesses between two protected, equally likely secrets; null
    if there is none."""


class OnePersonPart(Part):
    """Differential privacy of the release for the replacement of one row; one row per person."""

    epsilon: NonNegative
    delta: Delta
    """Delta of the statement; includes the distance of the drawn noise from ideal noise."""


class CouplingPart(Part):
    """The coupling of the two rows of a change, which the bounds rest on."""

    name: Annotated[str, Field(pattern="^(independent|transport|(cells|transport):.+)$")]
    """`independent`; `transport`; or `cells:` or `transport:` and the public label of cells, equal
    or near ones, by which rows meet; the label `*` is that of all conditions of the query."""
    least_share: Share
    """No coupling would allow noise of this shape that is less than this share of it; rounded
    down."""


class ViewPart(Part):
    """The claim as (epsilon, delta). A sliced view says nothing about the whole output."""

    scope: Scope
    rule: ViewRule
    epsilon: NonNegative
    delta: Delta


class ReleaseStatement(Part):
    """The statement about one release of a query."""

    workflow: Literal["release"]
    scenario: ScenarioPart
    guarantee: Annotated[Claim, _ClaimType]
    method: MethodPart | None
    """Method that ties noise to cost along slices; null for claims about the whole output and along
    the whole sphere."""
    spent: NonNegative
    """Cost of the noise; at most the epsilon, or the share of right guesses, of the guarantee."""
    distributions_are_equal: bool
    """Whether the distributions of every pair are equal; only then is there no noise."""
    noise: NoisePart
    profile: Annotated[ProfilePart | WholeSpherePart, Field(discriminator="kind")] | None
    """Slices of the claim; null for claims about the whole output."""
    failure_probability: Probability
    """Probability that the claim does not hold; 0 for exact distributions."""
    sampling: SamplingPart | None
    """Bounds on what was sampled; null if nothing was."""
    unsliced: UnslicedPart
    mean_square: NonNegative | None
    """Mean squared distance of coupled outputs, in noise deviations: what a budget adds up. Null
    where the scenario is not one of rows."""
    coupling: CouplingPart | None
    """Coupling of the rows of a change; null where the scenario is not one of rows."""
    one_person: OnePersonPart | None
    """What the release promises to any one person; null where it promises nothing."""
    one_person_given_noise: OnePersonPart | None
    """The same given the noise, which was itself computed from the released rows: no promise."""
    not_stated: dict[str, Annotated[str, _OneOf(NOT_STATED)]]
    """Codes of why `mean_square` and `one_person` are null, where they are."""
    deltas: Deltas
    """Deltas at which the views are stated."""
    views: list[ViewPart]
    earlier_releases: Distinct[Sha256]
    """Digests of the certificates of releases before version 0.3 that this one does not cover
    jointly."""
    limits: SomeDistinct[Annotated[str, _OneOf(RELEASE_LIMITS)]]
    """Codes of what is not covered."""
    evidence_digest: Sha256
    """Salted SHA-256 of the evidence that belongs to the statement."""

    @property
    def guess(self) -> float | None:
        """Upper bound on the share of right guesses; None if there is none."""
        return self.unsliced.guess

    @property
    def claim(self) -> Claim:
        """Claim of the release, with the method of its slices."""
        stated = self.method
        method = None if stated is None else Method(rule=stated.rule, envelope=stated.envelope)
        return self.guarantee.by(method)

    def expected_limits(self) -> list[str]:
        """Derive the codes of what is not covered from the rest of the statement."""
        scenario, equal = self.scenario, self.distributions_are_equal
        private = any(prior.source == "released_data" for prior in scenario.priors)
        rows, band = scenario.has_priors("rows"), self.sampling and self.sampling.band
        tails = self.sampling and self.sampling.tails
        fitted = self.noise.shape.kind in ("fitted", "diagonal")
        present = {
            "named-secret-only": self.one_person is None,
            "slices-are-ideal": self.guarantee.is_sliced,
            "earlier-releases-apart": bool(self.earlier_releases),
            "declared-priors-only": not rows,
            "rows-like-these": rows and not isinstance(scenario.secret, StateSecret),
            "slots-like-these": isinstance(scenario.secret, StateSecret),
            "rare-rows-like-these": rows and bool(self.unsliced.epsilon or self.views),
            "noise-from-released-rows": rows and private,
            "shape-shows-differences": private and not rows and fitted,
            "prior-is-released-data": private and not rows,
            "rows-dropped": bool(scenario.rows_dropped),
            "query-is-clipped": scenario.query.range is not None,
            "range-clips-data": bool(scenario.clipped.all or scenario.clipped.some),
            "priors-sampled": band is not None,
            "priors-normal": scenario.has_priors("gaussian"),
            "tails-in-delta": tails == "in_delta",
            "sphere-sampled": self.profile is not None and self.profile.kind == "sphere",
            "distributions-equal": equal,
            "noise-not-ideal": not equal,
            "insecure-noise": not self.noise.secure,
        }
        return [code for code in RELEASE_LIMITS if present.get(code, True)]

    def _rules(self) -> dict[str, bool]:
        shape = self.noise.shape
        dims = {len(self.scenario.query.names), len(self.noise.std_by_coordinate)}
        if self.profile is not None:
            dims.add(self.profile.dim)
        if shape.whitening is not None:
            dims |= {len(shape.whitening), *map(len, shape.whitening)}
        claim, unsliced, rows = self.guarantee, self.unsliced, self.scenario.has_priors("rows")
        sliced, whole_sphere = claim.is_sliced, isinstance(self.profile, WholeSpherePart)
        isotropic = (shape.kind, shape.guard, shape.gap) == ("isotropic", None, None)
        free = not (self.spent > claim.free or unsliced.epsilon or self.views or self.deltas)
        # Nearly equal distributions need no epsilon at a delta.
        costly = self.noise.std > 0 and (self.spent > 0 or claim.allows_tails)
        same = True
        if claim.has_order and not sliced:
            same = (unsliced.order, unsliced.epsilon) == (claim.reported_order, self.spent)
        elif claim.hockey_stick is not None and claim.hockey_stick[0] == 0:
            same = unsliced.guess == self.spent
        return {
            "the notion must be one that a release can bound": claim.notion in RELEASE_NOTIONS,
            "query, noise and profile must have the same number of coordinates": len(dims) == 1,
            "profile and method belong to claims along slices, and only to them; the whole sphere "
            "has no method": (
                (self.profile is not None, self.method is not None)
                == (sliced, sliced and not whole_sphere)
            ),
            "the whole sphere goes with Rényi claims, which hold with certainty": (
                not whole_sphere or (claim.has_order and not self.failure_probability)
            ),
            "claims along slices have isotropic noise, and neither guard nor gap": (
                isotropic or not sliced
            ),
            "equal distributions cost nothing and have no views; others need noise": (
                free if self.distributions_are_equal else costly
            ),
            "spent must be no more than the claim": self.spent <= claim.bound,
            "mean_square and coupling belong to scenarios of rows, and to them alone": (
                (self.mean_square is not None, self.coupling is not None) == (rows, rows)
            ),
            "not_stated must give a reason for each of mean_square and one_person that is null": (
                set(self.not_stated)
                == {name for name in ("mean_square", "one_person") if getattr(self, name) is None}
            ),
            "noise from the released rows promises nothing to one person": (
                self.one_person is None
                if "noise-from-released-rows" in self.limits
                else self.one_person_given_noise is None
            ),
            "spent of a claim about the whole output must be what unsliced states": same,
            "a failure probability belongs to what was sampled, and only to that": (
                (self.sampling is None) == (self.failure_probability == 0)
            ),
            "limits must be those that follow from the other fields": (
                self.limits == self.expected_limits()
            ),
        }


class KindPart(Part):
    """A part of a plan; `TrainingPlan.from_json` checks the rest of it."""

    model_config = ConfigDict(extra="allow")

    kind: Text


class PlanPart(Part):
    """A training plan, as in a plan file."""

    format: Literal["pufferslice-training-plan"]
    version: Literal[5]
    differing: dict[str, Any]
    sampling: KindPart
    clipping: KindPart
    n_steps: Count
    noise_multipliers: Annotated[list[Positive], Field(min_length=1)]
    accountant: Annotated[str, _OneOf(ACCOUNTANT_NAMES)]
    claim: dict[str, Any]
    """What the guarantee bounds: a claim without its bound."""
    block: Count = Field(default_factory=absent)
    """Number of examples per forward and backward pass; absent if it was not chosen."""
    non_finite: NonFinite
    """Treatment of an example whose gradient is NaN or infinite."""

    @property
    def n_records(self) -> int:
        """Number of records from which batches are drawn."""
        return int((self.sampling.model_extra or {})["n_records"])


class RecordPart(Part):
    """The protection of any one record against replacement, whatever the secret is."""

    adjacency: Literal["replace-one"]
    accountants: RecordAccountants
    """Accountants that bound the cost of one record; never mean square."""
    order: Order
    """Order of the claim, or 2."""
    epsilon: Positive
    """Upper bound on the Rényi divergence at the order."""
    delta: Delta
    """Delta of the (epsilon, delta) statement: 1e-5, or one over the number of records if that is
    less; includes the distance of the drawn noise from ideal noise."""
    epsilon_at_delta: NonNegative | None
    """Epsilon of differential privacy at `delta`; null if there is none."""
    conditions: SomeDistinct[Annotated[str, _OneOf(CONDITIONS)]]
    """Codes of the conditions that this statement needs beside the claim."""


class TrainingStatement(Part):
    """The statement about training runs over the same data."""

    workflow: Literal["training"]
    data: Text
    """Public name of the data."""
    runs: Annotated[list[PlanPart], Field(min_length=1)]
    guarantee: Annotated[Claim, _ClaimType]
    """Joint claim of all runs for the declared secret."""
    guess: Annotated[float, Field(ge=0.5, le=1)] | None
    """Upper bound on the share of right guesses between two values of the secret, both equally
    likely; null if there is none."""
    mean_square: NonNegative | None
    """Mean squared distance of coupled runs, in deviations of the noise: what a budget adds up.
    Null where more records may differ than the claim counts."""
    certifies: Sentences
    draws_may_be_seen: Sentences
    noise: SomeDistinct[Text]
    """Sentences on how the noise is drawn."""
    implementation_delta: Share
    """Total variation between all drawn noise and the noise that the bound is about."""
    failure_probability: Probability
    """Probability that the claim does not hold."""
    deltas: Deltas
    """Deltas at which the views are stated."""
    views: list[ViewPart]
    one_record: RecordPart
    hypotheses: SomeDistinct[Annotated[str, _OneOf(HYPOTHESES)]]
    """Codes of the hypotheses that a run must satisfy."""
    limits: SomeDistinct[Annotated[str, _OneOf(LIMITS)]]
    """Codes of what is not covered."""

    def _rules(self) -> dict[str, bool]:
        claim = self.guarantee
        return {
            "the notion must be one that a run can bound": not claim.is_sliced,
            "guess must be what a claim of right guesses says": (
                claim.notion != "guess" or self.guess == claim.bound
            ),
        }


class PartNoise(Part):
    """The noise with which all features of a part can be released once; its whole precision."""

    kind: Literal["fitted", "diagonal"]
    """Origin of the covariance: fitted, or fitted coordinate by coordinate."""
    whitening: Annotated[list[list[Number]], Field(min_length=1)]
    """Lower triangular matrix U that whitens the features, in scaled coordinates: the declared
    precision is U'U."""
    std_by_coordinate: Annotated[list[Positive], Field(min_length=1)]
    """Standard deviation of each coordinate in the user's units."""


class TablePart(Part):
    """A part of a budget that publishes sums over the rows of one table, or of one each period."""

    kind: Literal["table", "reserve", "repeated"]
    """Kind of part: one table; a table for features that may be needed later; or a table of fresh
    rows in every period."""
    name: Text
    scenario: ScenarioPart
    times: Count
    """Number of periods; 1 unless repeated."""
    rows: Annotated[list[Count], Field(min_length=2, max_length=2)] | None
    """Public range of the number of rows of a period; null where the scenario says it."""
    share: Annotated[float, Field(gt=0, le=1)]
    mean_square: NonNegative
    """Mean squared distance of coupled outputs of all periods together."""
    noise: PartNoise

    def _rules(self) -> dict[str, bool]:
        names, noise = self.scenario.query.names, self.noise
        sizes = {len(names), len(noise.std_by_coordinate), *map(len, noise.whitening)}
        secret, rows = self.scenario.secret, self.rows
        ranged = self.kind == "repeated" and isinstance(secret, ShareSecret)
        return {
            "must be about rows, with one noise for each coordinate": (
                self.scenario.has_priors("rows") and sizes == {len(noise.whitening)}
            ),
            "times belongs to repeated parts": self.times == 1 or self.kind == "repeated",
            "rows belongs to repeated parts that hide a share, least first": (
                (rows is not None) == ranged and (rows is None or 2 <= rows[0] <= rows[1])
            ),
            "the state of a home cannot be repeated with fresh rows": (
                self.kind != "repeated" or not isinstance(secret, StateSecret)
            ),
        }


class TrainingPart(Part):
    """A part of a budget that trains a model."""

    kind: Literal["training"]
    name: Text
    plan: PlanPart
    share: Annotated[float, Field(gt=0, le=1)]
    mean_square: NonNegative
    """Mean squared distance of the noisy sums of coupled runs, over all steps."""
    signal: Positive
    """Bound on the ratio of signal to noise over the whole run, for a model with one parameter;
    with d parameters it is smaller by the root of d."""


class BudgetNoise(Part):
    """How all noise of a budget is drawn."""

    family: Literal["integer_gaussian"]
    generator: Text
    secure: bool
    most_numbers: Count
    """Most numbers that may be released from tables, which the certificate accounts for."""
    most_parameters: Count
    """Most parameters of a trained model."""
    implementation_delta: Probability
    """Total variation between all sampled outputs and those that the bound is about."""

    def _rules(self) -> dict[str, bool]:
        rule = "secure must be true for the generator of the operating system, and for no other"
        return {rule: self.secure == (self.generator == OperatingSystemNoise.name)}


class BudgetStatement(Part):
    """The statement about all outputs of a budget together."""

    workflow: Literal["budget"]
    guarantee: Annotated[Claim, _ClaimType]
    spent: NonNegative
    """Cost of all outputs together; at most the bound of the guarantee."""
    mean_square: NonNegative
    """Mean squared distance of all coupled outputs, in deviations of their noise."""
    guess: Annotated[float, Field(ge=0.5, le=1)]
    """Upper bound on right guesses between two protected, equally likely secrets."""
    information: NonNegative
    """Upper bound on the information about a pair of protected secrets, in bits."""
    coupling: Annotated[str, Field(pattern="^(independent|cells:.+)$")]
    """Coupling of the rows of a change, the same in all parts: `independent`, or `cells:` and the
    public label by which rows meet."""
    parts: Annotated[
        list[Annotated[TablePart | TrainingPart, Field(discriminator="kind")]],
        Field(min_length=1),
    ]
    noise: BudgetNoise
    one_person: OnePersonPart | None
    """What all outputs together promise to any one person; null where they promise nothing."""
    one_person_given_noise: OnePersonPart | None
    """The same given the noise, which was itself computed from the released rows: no promise."""
    not_stated: dict[str, Annotated[str, _OneOf(NOT_STATED)]]
    """Code of why `one_person` is null, where it is."""
    hypotheses: Distinct[Annotated[str, _OneOf(HYPOTHESES)]]
    """Codes of the hypotheses that training runs must satisfy; none without training."""
    earlier_releases: Distinct[Sha256]
    """Digests of the certificates of releases before version 0.3 that this budget does not cover
    jointly."""
    limits: SomeDistinct[Annotated[str, _OneOf(BUDGET_LIMITS)]]
    """Codes of what is not covered."""
    evidence_digest: Sha256
    """Salted SHA-256 of the evidence that belongs to the statement."""

    @property
    def tables(self) -> list[TablePart]:
        """Parts that publish statistics of rows."""
        return [part for part in self.parts if isinstance(part, TablePart)]

    @property
    def runs(self) -> list[TrainingPart]:
        """Parts that train a model."""
        return [part for part in self.parts if isinstance(part, TrainingPart)]

    def expected_limits(self) -> list[str]:
        """Derive the codes of what is not covered from the rest of the statement."""
        priors = [prior for part in self.tables for prior in part.scenario.priors]
        repeated = any(part.kind == "repeated" for part in self.tables)
        present = {
            "named-secret-only": self.one_person is None,
            "noise-from-released-rows": any(prior.source == "released_data" for prior in priors),
            "earlier-releases-apart": bool(self.earlier_releases),
            "periods-are-fresh": repeated,
            "training-follows-plan": bool(self.runs),
            "insecure-noise": not self.noise.secure,
        }
        return [code for code in BUDGET_LIMITS if present.get(code, True)]

    def _rules(self) -> dict[str, bool]:
        names, tables = [part.name for part in self.parts], self.tables
        fitted = "noise-from-released-rows" in self.limits
        person = self.one_person_given_noise if not fitted else self.one_person
        shares = [Fraction(repr(part.share)) for part in self.parts]
        return {
            "the notion must be one that a mean squared distance bounds": (
                self.guarantee.by_mean_square
            ),
            "parts must have different names, and a table among them": (
                len(set(names)) == len(names) and bool(tables)
            ),
            "shares must add up to at most 1": sum(shares) <= 1 + Fraction(1, 2**40),
            "parts must be about one secret": (
                len({str(shared_secret(part.scenario.secret.to_json())) for part in tables}) == 1
            ),
            "spent must be no more than the claim": self.spent <= self.guarantee.bound,
            "not_stated must give a reason where one_person is null": (
                (self.one_person is None) == ("one_person" in self.not_stated)
                and set(self.not_stated) <= {"one_person"}
            ),
            "noise from the released rows promises nothing to one person": person is None,
            "hypotheses belong to training": bool(self.hypotheses) == bool(self.runs),
            "limits must be those that follow from the other fields": (
                self.limits == self.expected_limits()
            ),
        }


Statement = ReleaseStatement | TrainingStatement | BudgetStatement
"""Promise of a certificate: about one release, training runs, or a budget of both."""

Model = TypeVar("Model", bound=BaseModel)


def read_statement(values: object) -> Statement:
    """Read a statement from JSON values with exactly the fields of its workflow."""
    workflow = values.get("workflow") if isinstance(values, dict) else None
    if workflow == "training":
        return checked(TrainingStatement, values, "statement", CertificateError)
    if workflow == "budget":
        return checked(BudgetStatement, values, "statement", CertificateError)
    return checked(ReleaseStatement, values, "statement", CertificateError)


def read_scenario(values: object) -> ScenarioPart:
    """Read the description of a scenario; refuse one that no scenario can have."""
    return checked(ScenarioPart, values, "scenario", CertificateError)


def checked(
    model: type[Model],
    values: object,
    name: str,
    error_class: type[PuffersliceError],
    changed: str = CHANGED,
) -> Model:
    """Validate values against a model; an error names the wrong field and shows no value."""
    try:
        return model.model_validate(values)
    except ValidationError as errors:
        first = errors.errors(include_url=False, include_context=False, include_input=False)[0]
        path = name
        for part in first["loc"]:
            if isinstance(part, int):
                path += f"[{part}]"
            elif not part.startswith("(") and part not in _TAGS:
                path += f".{shown(part)}"
        kind = first["type"]
        reason = _REASONS.get(kind) or re.sub(r"^\w+ should", "must", first["msg"])
        # A code or name that is not known may come from a later version of this program.
        hint = "Use the program that issued it" if kind == "literal_error" else changed
        raise error_class(f"{path}: {reason.removeprefix('Value error, ')}. {hint}") from None
