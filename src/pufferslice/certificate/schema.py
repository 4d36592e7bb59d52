# SPDX-License-Identifier: Apache-2.0
"""Files as types: certificate, release and audit. Their JSON Schemas are generated from here.

Importing this module loads pydantic, so others import it only where a file is read or a statement
is checked. A checked document is returned as it is, because digests are of its exact values.
"""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from pufferslice._core.text import shown
from pufferslice.calibration.calibrate import Rule
from pufferslice.calibration.epsilon_delta import ViewRule
from pufferslice.calibration.guarantee import RELEASE_NOTIONS
from pufferslice.calibration.noise import OperatingSystemNoise
from pufferslice.certificate.limits import CONDITIONS, LIMITS, RELEASE_LIMITS
from pufferslice.certificate.statement import limits_of
from pufferslice.certificate.wording import CHANGED
from pufferslice.errors import ArgumentError, CertificateError, PuffersliceError, ReleaseError
from pufferslice.learning.accountants import (
    ACCOUNTANT_NAMES,
    ACCOUNTANTS,
    MeanSquare,
)
from pufferslice.learning.plan import HYPOTHESES, NonFinite
from pufferslice.queries.query import Level
from pufferslice.scenario.distributions import Kind
from pufferslice.scenario.priors import ONE_RELEASE, Source
from pufferslice.sensitivity.concentration import BandKind
from pufferslice.sensitivity.renyi import SLICED_NOTIONS
from pufferslice.sensitivity.sensitivity import Envelope, Tails

_LARGEST: Final = 1e150
_REASONS: Final = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this file",
    "less_than": "is too large",
    "greater_than": "is too small",
}
AUDIT_CHANGED: Final = "It was changed or is damaged: get the original, or audit again"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


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
Number = Annotated[float, Field(gt=-_LARGEST, lt=_LARGEST)]
Positive = Annotated[float, Field(gt=0, lt=_LARGEST)]
NonNegative = Annotated[float, Field(ge=0, lt=_LARGEST)]
Order = Annotated[float, Field(gt=1, lt=_LARGEST)]
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


def _absent() -> Any:  # of a field that may be absent but not null
    return None


class _Part(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def _rules(self) -> dict[str, bool]:
        """Relations between the fields, in words, and whether they hold; the first counts."""
        return {}

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule, holds in self._rules().items():
            if not holds:
                raise ValueError(rule)
        return self


class BoxRange(_Part):
    """Every coordinate lies between two public ends, in the user's units."""

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


class BallRange(_Part):
    """Every output lies within a public distance of a public center, in the user's units."""

    kind: Literal["ball"]
    center: Vector
    radius: Positive

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.center)


Range = Annotated[BoxRange | BallRange, Field(discriminator="kind")]


class ColumnsSecret(_Part):
    """The value of one column, or of several together."""

    columns: SomeDistinct[Text]


class BinsSecret(_Part):
    """The quantile bin of a numeric column."""

    columns: Annotated[list[Text], Field(min_length=1, max_length=1)]
    quantiles: Annotated[int, Field(ge=2, lt=2**53)]


class WorldsSecret(_Part):
    """Which world a table comes from."""

    worlds: Text


class ShareSecret(_Part):
    """Any two shares of rows with a property that are at most so far apart."""

    share_of: Text
    within: Annotated[float, Field(gt=0, lt=1)]
    n_rows: Count
    n_differing: Count
    """Rows that make the difference, at most; under design `independent`, on average."""
    design: Literal["stratified", "independent"]

    def _rules(self) -> dict[str, bool]:
        differing = math.ceil(Fraction(repr(self.within)) * self.n_rows)
        fits = self.n_differing == differing
        return {"n_differing must be what within and n_rows give": fits}


class SizeSecret(_Part):
    """Any two numbers of rows within a ratio, up to a largest one."""

    size_of: Text
    ratio: Annotated[float, Field(gt=1, lt=_LARGEST)]
    up_to: Count
    n_differing: Count
    """Rows that make the difference, at most."""

    def _rules(self) -> dict[str, bool]:
        differing = self.up_to - math.ceil(self.up_to / Fraction(repr(self.ratio)))
        return {"n_differing must be what ratio and up_to give": self.n_differing == differing}


def _kind_of_secret(secret: object) -> str:
    keys = secret if isinstance(secret, dict) else {}
    if "share_of" in keys or "size_of" in keys:
        return "(share)" if "share_of" in keys else "(size)"
    return "(worlds)" if "worlds" in keys else "(bins)" if "quantiles" in keys else "(columns)"


class PriorPart(_Part):
    """One belief about how secrets and data are linked, and where it comes from."""

    name: Text
    source: Source
    kind: Kind
    origin: Text
    """How the distributions were made, in one sentence."""


class QueryPart(_Part):
    """What is computed and published."""

    kind: Text
    level: Level
    names: SomeDistinct[Text]
    """The coordinates of the released value."""
    columns: Distinct[Text]
    """The columns that are read."""
    parameters: dict[str, Any]
    """What the builder of this kind of query was given; each kind has its own."""
    range: Range | None
    """The public set to which outputs are clipped."""
    scales: Annotated[list[Positive], Field(min_length=1)]
    """The public unit of each coordinate."""
    missing: Literal["refuse", "drop-rows", "middle"]

    def _rules(self) -> dict[str, bool]:
        lengths = {len(self.names), len(self.scales)} | ({self.range.dim} if self.range else set())
        fits = len(lengths) == 1
        return {"names, scales and range must have the same number of coordinates": fits}


class ClippedPart(_Part):
    """Secrets under which the public range moves all, or some, values of the query."""

    all: Distinct[str]
    some: Distinct[str]


class ScenarioPart(_Part):
    """What is protected from whom."""

    distribution: Annotated[str, _OneOf(ONE_RELEASE)]
    one_release_is: Text
    secret: Annotated[
        Annotated[ColumnsSecret, Tag("(columns)")]
        | Annotated[BinsSecret, Tag("(bins)")]
        | Annotated[WorldsSecret, Tag("(worlds)")]
        | Annotated[ShareSecret, Tag("(share)")]
        | Annotated[SizeSecret, Tag("(size)")],
        Discriminator(_kind_of_secret),
    ]
    secrets: Secrets
    """The values that the secret can take."""
    pairs: SomeDistinct[Pair]
    """Secrets that must not be told apart, in either order."""
    priors: SomeDistinct[PriorPart]
    query: QueryPart
    rows_dropped: Annotated[int, Field(ge=0, lt=2**53)]
    """Rows that were left out because of missing values."""
    clipped: ClippedPart

    def _rules(self) -> dict[str, bool]:
        clipped = [*self.clipped.all, *self.clipped.some]
        names = [prior.name for prior in self.priors]
        return {
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


class RenyiGuarantee(_Part):
    """A Rényi claim: the divergence of this order, aggregated by the notion, is at most epsilon."""

    notion: Annotated[str, _OneOf(RELEASE_NOTIONS)]
    order: Order
    epsilon: Positive


class EpsilonDeltaGuarantee(_Part):
    """An (epsilon, delta) claim about the whole output, or aggregated over slices by the notion."""

    notion: Annotated[str, _OneOf(RELEASE_NOTIONS)]
    epsilon: Positive
    delta: Delta


class GuessPart(_Part):
    """Most that guesses between two protected, equally likely secrets can be right."""

    notion: Literal["guess"]
    at_most: Annotated[float, Field(gt=0.5, lt=1)]


class TrainingGuarantee(RenyiGuarantee):
    """What all runs together cost for the declared secret."""

    notion: Literal["unsliced", "average_over_batches"]


class TrainingEpsilonDelta(EpsilonDeltaGuarantee):
    """The same where more records may differ than the plans list: with a delta that covers it."""

    notion: Literal["unsliced"]


def _kind_of_guarantee(guarantee: object) -> str:
    if isinstance(guarantee, dict) and "at_most" in guarantee:
        return "(guess)"
    return "(delta)" if isinstance(guarantee, dict) and "delta" in guarantee else "(order)"


class MethodPart(_Part):
    """How noise and cost are tied."""

    rule: Rule
    envelope: Envelope

    def _rules(self) -> dict[str, bool]:
        fits = self.rule != "closed_form" or self.envelope == "worst_gap"
        return {"rule closed_form goes with envelope worst_gap": fits}


class ShapePart(_Part):
    """The shape of the noise: its covariance, up to a factor."""

    kind: Literal["fitted", "diagonal", "isotropic", "given"]
    """Fitted to the secret, fitted coordinate by coordinate, the same everywhere, or the user's."""
    whitening: list[list[Number]] | None
    """Lower triangular matrix that makes the noise isotropic; null for isotropic noise."""
    guard: NonNegative | None
    """A shift of the output by no more than this, in scaled coordinates, is hidden as well as the
    claim says; null for sliced claims."""
    gap: NonNegative | None
    """The noise has at most 1 + gap times the variance of the best Gaussian noise for this claim
    (point masses), or for the couplings that it was fitted to; null if no such bound is known."""

    def _rules(self) -> dict[str, bool]:
        fits = (self.whitening is None) == (self.kind == "isotropic")
        return {"shape needs a whitening matrix exactly where it is not isotropic": fits}


class NoisePart(_Part):
    """The noise of a release."""

    family: Literal["integer_gaussian"]
    std: NonNegative
    """Standard deviation in scaled coordinates, with a shape in whitened ones."""
    shape: ShapePart
    calibrated: bool
    """Whether the claim decided the noise; otherwise the data holder did."""
    std_by_coordinate: Annotated[list[NonNegative], Field(min_length=1)]
    """Standard deviation of each coordinate in the user's units."""
    grid: NonNegative
    """Step of the grid in scaled coordinates."""
    generator: Text
    secure: bool
    implementation_delta: Probability
    """Total variation between the sampled release and the one the bound is about."""

    def _rules(self) -> dict[str, bool]:
        rule = "secure must be true for the generator of the operating system, and for no other"
        return {rule: self.secure == (self.generator == OperatingSystemNoise.name)}


class ProfilePart(_Part):
    """The slices, by the digest of their directions and weights."""

    kind: Literal["finite", "sphere"]
    """The listed slices themselves, or the whole sphere, from which they were drawn."""
    dim: Count
    n_directions: Count
    """Slices of positive weight."""
    effective_slices: Annotated[float, Field(ge=0.999999, lt=_LARGEST)]
    """How many equally weighted slices would be as concentrated: 1 / sum of squared weights."""
    largest_weight: Annotated[float, Field(gt=0, le=1)]
    digest: Sha256


class WholeSpherePart(_Part):
    """All directions, none of them drawn: claims along them have a closed form."""

    kind: Literal["whole_sphere"]
    dim: Annotated[int, Field(ge=2)]
    digest: Sha256


class SharesPart(_Part):
    """Shares of the noise standard deviation."""

    distribution: Share
    sampling: Share
    slicing: Share


class SamplingPart(_Part):
    """How sampled distributions and drawn slices were bounded."""

    band: BandKind | None
    """The bands around sampled distributions; null if the distributions are exact."""
    tails: Tails | None
    """Beyond the bands, gaps count at the public range, or their mass is in delta."""
    delta_of_tails: Probability | None
    """The part of delta that is the tails; for public models only."""
    noise_shares: SharesPart | None


class UnslicedPart(_Part):
    """Bounds on the whole output; null where there is no finite one."""

    order: Order
    epsilon: NonNegative | None
    source: Text = Field(alias="from")
    """How the bound was found."""
    guess: Annotated[float, Field(ge=0.5, le=1)] | None
    """Most that guesses between two protected, equally likely secrets can be right."""


class ViewPart(_Part):
    """The claim as (epsilon, delta). A sliced one says nothing about the whole output."""

    scope: Literal["sliced average", "sliced joint", "unsliced"]
    rule: ViewRule
    epsilon: NonNegative
    delta: Delta


class ReleaseStatement(_Part):
    """One release of a query."""

    workflow: Literal["release"]
    scenario: ScenarioPart
    guarantee: Annotated[
        Annotated[RenyiGuarantee, Tag("(order)")]
        | Annotated[EpsilonDeltaGuarantee, Tag("(delta)")]
        | Annotated[GuessPart, Tag("(guess)")],
        Discriminator(_kind_of_guarantee),
    ]
    method: MethodPart | None
    """Null for claims about the whole output and along the whole sphere."""
    spent: NonNegative
    """What the noise costs; at most the epsilon, or the share of guesses, of the guarantee."""
    total: Positive | None
    """Of all releases of data that the secret determines, at the order of the guarantee; null where
    releases do not add up."""
    distributions_are_equal: bool
    """Whether the distributions of every pair are the same; only then is there no noise."""
    noise: NoisePart
    profile: Annotated[ProfilePart | WholeSpherePart, Field(discriminator="kind")] | None
    """Null for claims about the whole output."""
    failure_probability: Probability
    """Probability that the claim does not hold; 0 for exact distributions."""
    sampling: SamplingPart | None
    """Null if nothing was sampled."""
    unsliced: UnslicedPart
    deltas: Deltas
    """The deltas of the views."""
    views: list[ViewPart]
    earlier_releases: Distinct[Sha256]
    """Digests of the certificates of earlier releases, which this one does not cover jointly."""
    limits: SomeDistinct[Annotated[str, _OneOf(RELEASE_LIMITS)]]
    """What is not covered, by code."""
    evidence_digest: Sha256
    """Salted SHA-256 of the evidence that belongs to the statement."""

    def _rules(self) -> dict[str, bool]:
        shape = self.noise.shape
        dims = {len(self.scenario.query.names), len(self.noise.std_by_coordinate)}
        if self.profile is not None:
            dims.add(self.profile.dim)
        if shape.whitening is not None:
            dims |= {len(shape.whitening), *map(len, shape.whitening)}
        claim, unsliced = self.guarantee, self.unsliced
        is_renyi, is_guess = isinstance(claim, RenyiGuarantee), isinstance(claim, GuessPart)
        sliced = claim.notion in SLICED_NOTIONS
        isotropic = (shape.kind, shape.guard, shape.gap) == ("isotropic", None, None)
        whole_sphere = isinstance(self.profile, WholeSpherePart)
        free = not (self.spent > (0.5 if is_guess else 0.0) or unsliced.epsilon)
        free = free and not (self.views or self.deltas)
        # Nearly equal distributions need no epsilon at a delta.
        costly = self.noise.std > 0 and (self.spent > 0 or isinstance(claim, EpsilonDeltaGuarantee))
        bound = claim.at_most if isinstance(claim, GuessPart) else claim.epsilon
        same = True
        if isinstance(claim, GuessPart):
            same = unsliced.guess == self.spent
        elif isinstance(claim, RenyiGuarantee) and not sliced:
            same = (unsliced.order, unsliced.epsilon) == (claim.order, self.spent)
        return {
            "query, noise and profile must have the same number of coordinates": len(dims) == 1,
            "profile and method belong to claims along slices, and only to them; the whole sphere "
            "has no method": (
                (self.profile is not None, self.method is not None)
                == (sliced, sliced and not whole_sphere)
            ),
            "the whole sphere goes with Rényi claims, which hold with certainty": (
                not whole_sphere or (is_renyi and not self.failure_probability)
            ),
            "claims along slices have isotropic noise, and neither guard nor gap": (
                isotropic or not sliced
            ),
            "total belongs to unsliced Rényi claims, whose costs add": (
                self.total is None or (is_renyi and not sliced)
            ),
            "equal distributions cost nothing and have no views; others need noise": (
                free if self.distributions_are_equal else costly
            ),
            "spent must be no more than the claim": self.spent <= bound,
            "spent of a claim about the whole output must be what unsliced states": same,
            "a failure probability belongs to what was sampled, and only to that": (
                (self.sampling is None) == (self.failure_probability == 0)
            ),
            "limits must be those that follow from the other fields": (
                self.limits == limits_of(self.model_dump(exclude_unset=True, warnings=False))
            ),
        }


class KindPart(BaseModel):
    """A part of a plan; `TrainingPlan.from_json` checks the rest of it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    kind: Text


class PlanPart(_Part):
    """A training plan, as in the file of a plan."""

    format: Literal["pufferslice-training-plan"]
    version: Literal[1]
    differing: dict[str, Any]
    sampling: KindPart
    clipping: KindPart
    n_steps: Count
    noise_multipliers: Annotated[list[Positive], Field(min_length=1)]
    accountant: Annotated[str, _OneOf(ACCOUNTANT_NAMES)]
    order: Order
    block: Count = Field(default_factory=_absent)
    """Examples per forward and backward pass, where that is chosen."""
    non_finite: NonFinite
    """What is done with an example whose gradient is NaN or infinite."""


class RecordPart(_Part):
    """What the replacement of any one record gets, whatever the secret is."""

    adjacency: Literal["replace-one"]
    accountants: RecordAccountants
    """The accountants that bound the cost of one record; never mean square."""
    order: Order
    epsilon: Positive
    """Rényi divergence at the order, at most."""
    delta: Delta
    """1e-5, or one over the number of records if that is less; includes the noise's distance."""
    epsilon_at_delta: NonNegative | None
    """Epsilon of differential privacy at delta; null if there is none."""
    conditions: SomeDistinct[Annotated[str, _OneOf(CONDITIONS)]]
    """What this needs beside the claim, by code."""


class TrainingStatement(_Part):
    """Training runs over the same data."""

    workflow: Literal["training"]
    data: Text
    """Public name of the data."""
    runs: Annotated[list[PlanPart], Field(min_length=1)]
    guarantee: Annotated[
        Annotated[TrainingGuarantee, Tag("(order)")]
        | Annotated[TrainingEpsilonDelta, Tag("(delta)")],
        Discriminator(_kind_of_guarantee),
    ]
    certifies: Sentences
    draws_may_be_seen: Sentences
    noise: SomeDistinct[Text]
    """How the noise is drawn, in sentences."""
    implementation_delta: Share
    """Total-variation distance of all drawn noise from the noise that the bound is about."""
    failure_probability: Probability
    """Probability that the claim does not hold."""
    deltas: Deltas
    """The deltas of the views."""
    views: list[ViewPart]
    one_record: RecordPart
    hypotheses: SomeDistinct[Annotated[str, _OneOf(HYPOTHESES)]]
    """What a run must keep to, by code."""
    limits: SomeDistinct[Annotated[str, _OneOf(LIMITS)]]
    """What is not covered, by code."""


class SignaturePart(_Part):
    """Ed25519 signature of a fixed context line and the canonical statement."""

    algorithm: Literal["ed25519"]
    public_key: Sha256
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class CertificateFile(_Part):
    """The public part of a certificate. The evidence is a file of its own and confidential."""

    format: Literal["pufferslice-certificate"]
    version: Literal[4]
    statement: Annotated[ReleaseStatement | TrainingStatement, Field(discriminator="workflow")]
    digest: Sha256
    """SHA-256 of the length of the canonical statement as 8 bytes, big-endian, and the canonical
    statement: keys sorted, no spaces, UTF-8."""
    signature: SignaturePart = Field(default_factory=_absent)
    """Absent if the certificate was not signed."""


class ReleasedValue(_Part):
    """One coordinate of a release."""

    name: Text
    value: float
    noise_std: Annotated[float, Field(ge=0)]
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Two ends, for the noise alone."""
    grid_value: Annotated[str, Field(pattern="^-?[0-9]{1,1200}$")]
    """The released integer, as text: other readers of JSON round integers to floats."""
    moved_into: Annotated[list[float | None], Field(min_length=2, max_length=2)] = Field(
        default_factory=_absent
    )
    """Public ends, null where there is none, that the value was moved into after noise; absent if
    it was left as it came."""


class ReleaseFile(_Part):
    """What was released, in the user's units."""

    format: Literal["pufferslice-release"]
    version: Literal[2]
    certificate: Sha256
    """Digest of the certificate that covers it."""
    guarantee: Text
    secure: bool
    unsliced: UnslicedPart
    interval: Delta
    """The probability that an interval covers."""
    interval_is_of: Text
    range: Range | None
    clipping: str
    """Under which secrets the range moves values, in a sentence; empty if under none."""
    values: Annotated[list[ReleasedValue], Field(min_length=1)]


class IntervalPart(_Part):
    """An observed share, and a confidence interval of its expectation."""

    value: Number
    low: Number
    high: Number


class VerdictPart(_Part):
    """The result of one statistic on one claim."""

    claim: Text
    """The claim in words."""
    quantity: Literal["epsilon", "delta", "guess"]
    claimed: NonNegative
    statistic: Text
    lower_bound: NonNegative
    """At least this is true of the mechanism, with the confidence."""
    confidence: Delta
    """Of this verdict alone."""
    refutable_below: NonNegative
    """The largest lower bound that so many outputs can give."""
    n_outputs: Count
    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    prior: str
    line: str
    refuted: bool
    """Whether the lower bound is above the claimed number; readers compare the numbers."""
    outcome: Literal["refuted", "not refuted", "out of reach"]


class InferencePart(_Part):
    """How often an attack names the secret of an output."""

    attack: Literal["gaussian_map", "likelihood_ratio"]
    prior: str
    prior_kind: Literal["natural", "balanced"]
    secrets: Secrets
    n_trials: Count
    accuracy: IntervalPart
    prior_accuracy: IntervalPart
    """Of always naming the likeliest secret."""
    advantage: IntervalPart
    """Accuracy less the largest share of the prior."""
    confidence: Delta
    """Of each interval alone."""


class AuditFile(_Part):
    """The audit of a release certificate. Confidential."""

    format: Literal["pufferslice-audit"]
    version: Literal[1]
    certificate: Sha256
    """Digest of the certificate that was audited."""
    refuted: bool
    confidence: Delta
    """Of all verdicts together."""
    n_outputs: Count
    """Under each secret, the fewest."""
    verdicts: Annotated[list[VerdictPart], Field(min_length=1)]
    inferences: list[InferencePart]
    unaudited: list[Text]
    """Statements of the certificate without a verdict, and why."""


class TrainingAuditFile(VerdictPart):
    """The verdict on a training plan, and the digest of the certificate that it is about."""

    certificate: Sha256


class LowRatePart(_Part):
    """The share of members found at a low false-positive rate."""

    false_positive_rate: Delta
    threshold: Number
    true_positive_rate: IntervalPart


class MembershipFile(_Part):
    """An attack on the members of one model, and the certificate of its training."""

    certificate: Sha256
    attack: str
    n_members: Count
    n_non_members: Count
    roc_auc: IntervalPart
    low_rates: list[LowRatePart]
    confidence: Delta
    """Of all intervals together."""


def check_certificate(document: object) -> dict[str, Any]:
    """The document of a certificate, if it has exactly its fields, each of its kind."""
    return _checked(CertificateFile, document, "certificate", CertificateError)


def check_statement(statement: object) -> dict[str, Any]:
    """A statement, if it has exactly the fields of its workflow, each of its kind."""
    training = isinstance(statement, dict) and statement.get("workflow") == "training"
    model = TrainingStatement if training else ReleaseStatement
    return _checked(model, statement, "statement", CertificateError)


def check_scenario(scenario: object) -> dict[str, Any]:
    """The description of a scenario, if some scenario can have it."""
    return _checked(ScenarioPart, scenario, "scenario", CertificateError)


def check_release(document: object) -> dict[str, Any]:
    """The document of a release, if it has exactly its fields, each of its kind."""
    return _checked(ReleaseFile, document, "release", ReleaseError)


def check_audit(document: object) -> dict[str, Any]:
    """The document of an audit, if it has exactly the fields of its kind, each of its type."""
    model: type[BaseModel] = AuditFile
    if isinstance(document, dict) and "verdicts" not in document:
        model = MembershipFile if "roc_auc" in document else TrainingAuditFile
    return _checked(model, document, "audit", ArgumentError, changed=AUDIT_CHANGED)


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each file, by name.

    Relations between fields are not in it; `verify` checks them.
    """
    models: dict[str, type[BaseModel]] = {
        "certificate": CertificateFile,
        "release": ReleaseFile,
        "audit": AuditFile,
    }
    return {name: {"$schema": _DIALECT} | file.model_json_schema() for name, file in models.items()}


def _checked(
    model: type[BaseModel],
    value: object,
    name: str,
    error_class: type[PuffersliceError],
    changed: str = CHANGED,
) -> dict[str, Any]:
    """The value itself; an error names the path of the wrong field and shows no value."""
    try:
        model.model_validate(value)
    except ValidationError as errors:
        first = errors.errors(include_url=False, include_context=False, include_input=False)[0]
        path = name
        for part in first["loc"]:
            if isinstance(part, int):
                path += f"[{part}]"
            elif not part.startswith("(") and part not in ("box", "ball", "release", "training"):
                path += f".{shown(part)}"
        kind = first["type"]
        reason = _REASONS.get(kind) or re.sub(r"^\w+ should", "must", first["msg"])
        # A code or name that is not known may come from a later version of this program.
        hint = "Use the program that issued it" if kind == "literal_error" else changed
        raise error_class(f"{path}: {reason.removeprefix('Value error, ')}. {hint}") from None
    return value  # type: ignore[return-value]
