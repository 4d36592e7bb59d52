# SPDX-License-Identifier: Apache-2.0
import io
import itertools
import json

import attrs
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.issue import required_evidence
from pufferslice.claims import Guarantee
from pufferslice.errors import CertificateError
from pufferslice.queries import summary
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.gaussian import GaussianPairs

KINDS = ["records", "groups", "gaussian", "equal", "sampled", "approximate", "sphere", "unsliced"]


def parts_of(evidence):
    with np.load(io.BytesIO(evidence.to_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def packed(parts):
    file = io.BytesIO()
    np.savez_compressed(file, **parts)
    return file.getvalue()


@pytest.fixture(scope="session")
def small(gaussian, profile):
    """A certificate whose evidence is small enough to damage it byte by byte."""
    return certify_release(
        gaussian, Guarantee.joint(order=4, epsilon=1.0, profile=profile), deltas=()
    )


def test_what_is_in_it(certificates, records):
    evidence = certificates["records"].evidence
    assert isinstance(evidence.slices.differences, GapTables)
    assert evidence.slices.differences.n_slices == 6
    assert evidence.slices.differences.n_instances == 3
    assert evidence.scenario == records.description()
    spreads = evidence.confidential["spreads"]
    assert {name: len(values) for name, values in spreads.items()} == {
        "difference": 2, "constant": 2, "size": 2,
    }  # fmt: skip
    assert evidence.confidential == {
        "spreads": spreads,
        "distributions_digest": records.distributions_digest(),
        "n_rows": {"table": {"north": 37, "south": 53, "west": 29}},
        "n_samples": {},
        "current": None,
    }
    assert len(evidence.salt) == 32
    assert repr(evidence) == f"Evidence(full={evidence.full.differences!r})"
    assert isinstance(certificates["gaussian"].evidence.slices.differences, GaussianPairs)


def test_there_are_no_records_in_it(certificates, table):
    """Gaps are differences; no number of the table itself is kept."""
    values = {v for name in ("pay", "age") for v in table[name].to_pylist()}
    values |= {v / s for name, s in (("pay", 2.0), ("age", 5.0)) for v in table[name].to_pylist()}
    for name, array in parts_of(certificates["records"].evidence).items():
        if array.dtype.kind == "f":
            assert not values & set(array.ravel().tolist()), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_sees_every_part(certificates, kind):
    """Every array, every fact and the salt."""
    evidence = certificates[kind].evidence
    digests = {evidence.digest()}
    for change in (
        {"salt": bytes(32)},
        {"scenario": {**evidence.scenario, "distribution": "other"}},
        {"confidential": {**evidence.confidential, "distributions_digest": "other"}},
    ):
        digests.add(attrs.evolve(evidence, **change).digest())
    names = ("means", "covs") if kind == "gaussian" else ("gaps", "counts", "totals", "equal")
    parts = ("full",) if evidence.slices is None else ("slices", "full")
    for part in parts:
        half = getattr(evidence, part)
        for name in names:
            array = getattr(half.differences, name).copy()
            array.flat[-1] = not array.flat[-1] if array.dtype == bool else array.flat[-1] + 1
            seen = attrs.evolve(half.differences, **{name: array})
            digests.add(
                attrs.evolve(evidence, **{part: attrs.evolve(half, differences=seen)}).digest()
            )
    assert len(digests) == 4 + len(parts) * len(names)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"not a zip", packed({}), packed({"facts": np.zeros(2)})]
)
def test_content_that_is_no_evidence(content):
    with pytest.raises(CertificateError, match="the evidence cannot be read"):
        Evidence.from_bytes(content)


def test_truncated_anywhere(small):
    content = small.evidence.to_bytes()
    for end in range(0, len(content), 7):
        with pytest.raises(CertificateError, match="the evidence cannot be read"):
            Evidence.from_bytes(content[:end])


def test_damaged_anywhere(small):
    """One byte at a time: an error of ours, or evidence that no longer fits the statement."""
    content = small.evidence.to_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        try:
            evidence = Evidence.from_bytes(bytes(damaged))
        except CertificateError:
            continue
        if evidence.digest() == small.evidence.digest():
            continue  # a byte that the archive does not use, such as a date
        with pytest.raises(CertificateError, match="does not belong to this statement"):
            required_evidence(Certificate(statement=small.statement, evidence=evidence))


def state(change):
    """Change the facts of evidence, which are JSON."""

    def apply(parts):
        facts = json.loads(parts["facts"].tobytes())
        change(facts)
        parts["facts"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)

    return apply


def test_another_version(certificates):
    parts = parts_of(certificates["records"].evidence)
    state(lambda facts: facts.update(version=1))(parts)
    with pytest.raises(CertificateError, match=r"version 1, this program reads 2|cannot be read"):
        Evidence.from_bytes(packed(parts))


def test_pickles_are_not_read(certificates):
    parts = parts_of(certificates["records"].evidence)
    parts["weights"] = np.array([{"a": 1}], dtype=object)
    with pytest.raises(CertificateError, match="cannot be read"):
        Evidence.from_bytes(packed(parts))


def without(name):
    return lambda parts: parts.pop(name)


def put(name, value):
    return lambda parts: parts.update({name: value(parts[name])})


@pytest.mark.parametrize(
    "change",
    [
        without("slices_gaps"),
        without("salt"),
        without("directions"),
        put("weights", lambda w: w * 2),
        put("directions", lambda d: d * 1.1),
        put("directions", lambda d: d[:-1]),
        put("slices_starts", lambda s: s[::-1]),
        put("slices_starts", lambda s: s[:-1]),
        put("slices_gaps", lambda g: g[::-1]),
        put("slices_gaps", lambda g: -g),
        put("slices_gaps", lambda g: np.where(g == g.max(), np.inf, g)),
        put("slices_gaps", lambda g: np.where(g == g.max(), np.nan, g)),
        put("slices_counts", lambda c: c + 1),
        put("slices_counts", lambda c: c[:-1]),
        put("slices_counts", lambda c: c * 0),
        put("slices_totals", lambda t: t + 1),
        put("slices_totals", lambda t: t * 0),
        put("slices_totals", lambda t: t[:0]),
        put("slices_equal", lambda e: e[:-1]),
        put("full_totals", lambda t: t[:-1]),
        put("full_gaps", lambda g: g[:-1]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
def test_tables_that_do_not_fit_together(certificates, change):
    parts = parts_of(certificates["records"].evidence)
    change(parts)
    with pytest.raises(CertificateError, match="cannot be read"):
        Evidence.from_bytes(packed(parts))


@pytest.mark.parametrize(
    "change",
    [
        put("slices_means", lambda m: m[:, :1]),
        put("slices_means", lambda m: m[..., :1]),
        put("slices_covs", lambda c: c[..., 0]),
        put("slices_covs", lambda c: c * np.nan),
        put("slices_covs", lambda c: -c),
        put("full_means", lambda m: m[:-1]),
    ],
)
def test_gaussian_pairs_that_do_not_fit_together(certificates, change):
    parts = parts_of(certificates["gaussian"].evidence)
    change(parts)
    with pytest.raises(CertificateError):
        Evidence.from_bytes(packed(parts))


def recipe(**keys):
    return state(lambda facts: facts["full"]["recipe"].update(keys))


def at(row, column, value):
    def apply(matrix):
        matrix = matrix.copy()
        matrix[row, column] = value
        return matrix

    return put("whitening", apply)


@pytest.mark.parametrize(
    "change",
    [
        at(0, 0, np.nan),
        at(1, 0, np.inf),
        at(0, 0, 0.0),
        at(1, 1, -1.0),
        at(0, 1, 1e-9),
        at(0, 0, 1e-30),
        put("whitening", lambda a: a[:1]),
        put("whitening", lambda a: a[:1, :1]),
        put("whitening", lambda a: np.eye(3)),
        put("whitening", lambda a: a.ravel()),
        put("whitening", lambda a: a[:0, :0]),
        recipe(effort="endless"),
        recipe(rate=-1.0),
        recipe(rate="x"),
        recipe(cost="delta", noise_std=0.0),
        recipe(seed=3),
        state(lambda facts: facts["full"]["recipe"].pop("rate")),
        state(lambda facts: facts["full"]["recipe"].pop("epsilon")),
        state(lambda facts: facts["full"].update(recipe=[])),
        state(lambda facts: facts.update(full=None)),
        state(lambda facts: facts.pop("differences")),
        state(lambda facts: facts["differences"].update(full="nothing")),
        state(lambda facts: facts["differences"].update(full="gaussian")),
        state(lambda facts: facts["differences"].update(slices="gaps")),
        without("full_gaps"),
        put("full_gaps", lambda g: -g),
        put("full_gaps", lambda g: g * np.nan),
        put("full_totals", lambda t: t[:-1]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
def test_evidence_of_the_whole_output_that_is_none(certificates, change):
    parts = parts_of(certificates["unsliced"].evidence)
    change(parts)
    with pytest.raises(CertificateError):
        Evidence.from_bytes(packed(parts))


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("change", "restated"),
    [
        *itertools.product(
            [
                without("whitening"),
                put("whitening", lambda a: a * 0.5),
                state(lambda facts: facts["full"].update(from_range=True)),
                state(lambda facts: facts["differences"].pop("full")),
            ],
            [False, True],
        ),
        (put("whitening", lambda a: np.eye(2)), False),
        (recipe(effort="quick"), False),
        (put("full_gaps", lambda g: g * 0.5), False),
        (state(lambda facts: facts["confidential"].update(spreads=None)), False),
    ],
)
def test_edited_evidence_of_the_whole_output_is_refuted(certificates, change, restated):
    """By its digest; if the statement was edited to have that too, by relations between them."""
    certificate = certificates["unsliced"]
    parts = parts_of(certificate.evidence)
    change(parts)
    evidence = Evidence.from_bytes(packed(parts))
    digest = {"evidence_digest": evidence.digest()} if restated else {}
    forged = Certificate(
        statement=certificate.statement.model_copy(update=digest), evidence=evidence
    )
    assert not verify(forged).holds


def test_sliced_evidence_is_required_where_slices_are_asked_for(certificates):
    assert certificates["records"].evidence.required_slices().profile.dim == 2
    with pytest.raises(CertificateError, match="has no slices"):
        certificates["unsliced"].evidence.required_slices()


@pytest.mark.soundness
def test_other_rows_with_the_same_sums_have_evidence_of_their_own():
    """Rows around their mean, and rows at the ends of the range: the same sums, other noise."""

    def scenario(values):
        rows = pa.table({"kind": ["u", "v"] * 10, "x": values * 5})
        return Scenario.from_prevalence(
            rows,
            column="kind",
            value="u",
            within=0.1,
            query=summary(mean=["x"], clip={"x": (0, 100)}),
            source="held_out",
        )

    near, far = scenario([49.0, 49.0, 51.0, 51.0]), scenario([0.0, 0.0, 100.0, 100.0])
    assert near.distributions_digest() == far.distributions_digest()
    guess = Guarantee.guess(at_most=0.64)
    squares = {}
    for each in (near, far, near):
        certificate = certify_release(each, guess, noise_std=10.0)
        assert verify(certificate, scenario=each).holds
        squares.setdefault(each is near, set()).add(certificate.released.mean_square)
    assert len(squares[True]) == 1
    assert min(squares[False]) > 1000 * max(squares[True])
