# SPDX-License-Identifier: Apache-2.0
"""Certificates of rows: verified from evidence and data, and every tampering refused."""

import copy
import itertools
import math

import attrs
import numpy as np
import pytest
from scipy.special import ndtr
from tests.certificate.conftest import changes, issued
from tests.certificate.test_verify import is_free, with_scenario
from tests.json_edits import inner, put, statement_of
from tests.row_moments import difference_of
from tests.row_scenarios import EARLIER, GUESS, LOADS, MADE, made, prevalence

from pufferslice import Guarantee, certify_release, verify
from pufferslice.certificate import Certificate
from pufferslice.certificate.release import CertificateOptions
from pufferslice.certificate.verify import UNCHECKED
from pufferslice.errors import ArgumentError, PuffersliceError
from pufferslice.scenario.occupancy import stated_changes
from pufferslice.scenario.rows import Differing
from pufferslice.sensitivity.rows import RowDifference, are_moments_of_same_rows
from pufferslice.sensitivity.whitening import Shape

pytestmark = pytest.mark.soundness

KINDS = list(MADE)


@pytest.fixture(scope="module")
def row_certificates():
    return {kind: made(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_verifies_from_evidence_and_from_data(row_certificates, kind):
    scenario, certificate = row_certificates[kind]
    assert verify(certificate).problems == ()
    assert verify(certificate, scenario=scenario).problems == ()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_proved(row_certificates, kind):
    pytest.importorskip("flint")
    _, certificate = row_certificates[kind]
    proof = verify(certificate, rigorous=True).proof
    assert proof.outcome == "proved"
    assert any("mean_square" in finding.stated for finding in proof.findings)


def test_bits_are_proved_and_fewer_refuted():
    pytest.importorskip("flint")
    certificate = certify_release(prevalence(), Guarantee.information(bits=0.3))
    assert verify(certificate, rigorous=True).holds
    from pufferslice.certificate.rigorous import prove

    statement = certificate.statement.model_copy(
        update={"mean_square": certificate.statement.mean_square * 0.99}
    )
    assert prove(attrs.evolve(certificate, statement=statement)).outcome == "refuted"


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.soak), 3], ids=["all", "some"])
def step(request):
    """Which of all changes are tried: every one by `make soak`, every third by `make test`."""
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_field_is_noticed_though_the_digest_fits(row_certificates, kind, step):
    _, certificate = row_certificates[kind]
    values = certificate.statement.to_json()
    reversed_lists = (
        (path, statement_of(put(values, path, value[::-1])))
        for path, value in inner(values)
        if isinstance(value, list) and value != value[::-1]
    )
    tried = list(itertools.chain(changes(certificate.statement), reversed_lists))
    missed = {
        path
        for path, statement in tried[KINDS.index(kind) % step :: step]
        if verify(Certificate(statement=statement, evidence=certificate.evidence)).holds
    }
    missed = {path for path in missed if path[0] != "deltas" or certificate.statement.views}
    assert {path for path in missed if not is_free(path, certificate.statement)} == set()
    assert {".".join(map(str, path)).split(".0")[0] for path in missed} <= set(UNCHECKED)


def changed_arrays(rows):
    """One entry of each array changed, up and down, kept symmetric where the array is."""
    for name, array in rows.arrays().items():
        for position in sorted({0, array.size // 2, max(0, array.size - 1)} if array.size else ()):
            for factor in (0.5, 0.999, 1.001, 2.0):
                other = array.astype(float)
                other.flat[position] = array.flat[position] * factor + (factor - 1) * 0.01
                if other.ndim > 2 and other.shape[-1] == other.shape[-2]:
                    place = np.unravel_index(position, other.shape)
                    other[(*place[:-2], place[-1], place[-2])] = other.flat[position]
                if array.dtype.kind == "i":
                    other = np.rint(other).astype(array.dtype)
                if (other != array).any():
                    yield f"{name}[{position}] * {factor}", {name: other}
        if len(array):
            yield f"{name}, none of it", {name: array[:0]}


def forgeries(certificate, step):
    """The certificate with other arrays in its evidence, and a digest that fits."""
    full = certificate.evidence.full
    for what, arrays in list(changed_arrays(full.differences))[::step]:
        changed = attrs.evolve(full.differences, **arrays)
        yield what, attrs.evolve(certificate.evidence, full=attrs.evolve(full, differences=changed))


def plain_guess(evidence, noise_std):
    """Right guesses of the evidence by the formula of the second moment, in plain numpy."""
    rows, full = evidence.full.differences, evidence.full
    whitening = np.eye(full.dim) if full.shape is None else full.shape.whitening
    largest = 0.0
    for i, (a, _) in enumerate(rows.pairs):
        shift = np.kron(np.eye(rows.n_periods), rows.means[1:] - rows.means[0])
        moment = shift.T @ rows.squares[i] @ shift
        counts = rows.counts[i]
        if rows.shares.shape[1] or len(rows.coupled):
            moment = moment + counts[0, a] * rows.changes[i].cov
        else:
            for j, of_period in enumerate(counts):
                cov = sum(n * cov for n, cov in zip(of_period, rows.covs, strict=True))
                moment = moment + np.kron(np.diag(np.arange(len(counts)) == j).astype(float), cov)
        largest = max(largest, np.trace(whitening @ moment @ whitening.T) / noise_std**2)
    return float(ndtr(math.sqrt(largest) / 2))


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_guess_is_the_certified_one(row_certificates, kind):
    _, certificate = row_certificates[kind]
    plain = plain_guess(certificate.evidence, certificate.noise_std)
    assert plain <= certificate.guess == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_evidence_is_noticed_or_leaves_the_claim_true(row_certificates, kind, step):
    """From the evidence alone, with the statement as it was issued."""
    _, certificate = row_certificates[kind]
    n_noticed = 0
    for what, evidence in forgeries(certificate, step):
        statement = certificate.statement.model_copy(update={"evidence_digest": evidence.digest()})
        if not verify(Certificate(statement=statement, evidence=evidence)).holds:
            n_noticed += 1
            continue
        assert plain_guess(evidence, certificate.noise_std) <= certificate.guess + 1e-9, what
    assert n_noticed > 20 / step


@pytest.mark.parametrize("kind", KINDS)
def test_changed_evidence_is_noticed_from_the_data(row_certificates, kind, step):
    """The statement is that of the changed evidence: only the data can refute it."""
    scenario, certificate = row_certificates[kind]
    n_issued = 0
    for what, evidence in forgeries(certificate, step):
        try:
            evidence.check()  # as whoever reads it
            options = {"noise_std": certificate.noise_std}
            forged = issued(evidence, certificate.statement, **options)
        except (PuffersliceError, ValueError, LookupError):
            continue
        n_issued += 1
        assert not verify(forged, scenario=scenario).holds, what
    assert n_issued > 3 / step


SECRETS = {
    "independent": [
        {"within": 0.1, "n_differing": 20},
        {"n_rows": 400, "n_differing": 20},
        {"n_rows": 400},
        {"within": 0.1},
        {"n_differing": 9},
    ],
    "random number": [{"n_rows": 400, "n_differing": 20}, {"within": 0.06, "n_differing": 12}],
    "several kinds": [{"within": 0.1, "n_differing": 20}],
    "volume": [
        {"ratio": 1.2, "n_differing": 36},
        {"up_to": 440, "n_differing": 40},
        {"up_to": 440},
        {"ratio": 1.2},
    ],
    "supplier": [{"up_to": 160, "n_differing": 32}],
    "chain": [
        {"positions": [[4, 7]]},
        {"positions": [[5, 5], [6, 6]]},
        {"positions": [[5, 12]]},
        {"periods": [0] * 24},
        {"chains": {"chain": {"transition": [[0.99, 0.01], [0.01, 0.99]], "start": [0.5, 0.5]}}},
        {"chains": {}},
    ],
    "weeks": [{"periods": [0] * 12}, {"periods": [0, 1] * 6}, {"periods": [0] * 5 + [1] * 7}],
    "turning": [{"is_stationary": False}, {"is_stationary": 1}],
    "rooms": [{"positions": [[3, 3], [7, 9]]}, {"positions": [[8, 9], [3, 3]]}],
}


@pytest.mark.parametrize(
    ("kind", "secret"), [(kind, change) for kind, some in SECRETS.items() for change in some]
)
def test_a_secret_with_more_rows_than_the_evidence_has(row_certificates, kind, secret):
    """Changed in the statement and in the evidence, where both fit one another."""
    _, certificate = row_certificates[kind]
    stated = certificate.evidence.scenario["secret"]
    forged = with_scenario(certificate, secret={**stated, **secret})
    problems = verify(forged).problems
    if kind == "turning" and secret["is_stationary"] is False:
        # Its start is stated as well, and is that of the stationary chain.
        needed = next(stated_changes({**stated, **secret}, ["chain"]))
        assert (needed[0] <= certificate.evidence.full.differences.counts[0] * (1 + 1e-9)).all()
    else:
        assert problems


@pytest.mark.parametrize("kind", ["independent", "random number", "volume", "weeks", "turning"])
def test_a_few_rows_less_than_the_secret_needs(row_certificates, kind):
    """By more than rounding, however little: a claim would be off by as much."""
    evidence = row_certificates[kind][1].evidence
    rows, scenario = evidence.full.differences, evidence.scenario
    assert not list(rows.problems(scenario))
    last = np.ones(rows.squares.shape[1])
    last[-1] -= 1e-9
    for fewer in (
        {"counts": rows.counts * (1 - 1e-9)},
        {"squares": rows.squares * (1 - 1e-9)},
        {"squares": rows.squares * np.outer(last, last)},
        {"trials": rows.trials * [1.0, 1 - 1e-15]},
    ):
        if fewer.get("trials") is None or rows.trials.any():
            (problem,) = attrs.evolve(rows, **fewer).problems(scenario)
            assert "fewer rows differ" in problem


@pytest.mark.parametrize("word", ["independent", "transport", "cells:site", "cells:", "other"])
@pytest.mark.parametrize("kind", ["independent", "cells", "transport", "volume", "chain"])
def test_another_coupling_than_that_of_the_numbers(row_certificates, kind, word):
    _, certificate = row_certificates[kind]
    full = certificate.evidence.full
    if full.recipe.coupling == word or (kind == "cells" and word.startswith("cells")):
        return
    recipe = attrs.evolve(full.recipe, coupling=word)
    try:
        evidence = attrs.evolve(certificate.evidence, full=attrs.evolve(full, recipe=recipe))
        forged = issued(evidence, certificate.statement)
    except PuffersliceError:
        return
    assert any("in another way" in problem for problem in verify(forged).problems)


def test_a_label_that_no_query_has(row_certificates):
    scenario, certificate = row_certificates["cells"]
    full = certificate.evidence.full
    recipe = attrs.evolve(full.recipe, coupling="cells:age")
    evidence = attrs.evolve(certificate.evidence, full=attrs.evolve(full, recipe=recipe))
    forged = issued(evidence, certificate.statement)
    assert verify(forged, scenario=scenario).problems


@pytest.mark.parametrize("change", ["source", "clip", "n_rows", "value", "within", "design"])
def test_data_of_another_scenario(row_certificates, change):
    _, certificate = row_certificates["independent"]
    options = {
        "source": {"source": "public_model"},
        "clip": {"query": None},
        "n_rows": {"n_rows": 201},
        "value": {"value": "no"},
        "within": {"within": 0.04},
        "design": {"design": "independent"},
    }[change]
    if change == "clip":
        from tests.row_scenarios import CLIP, queries

        wider = {**CLIP, "age": (0, 128)}
        options = {
            "query": queries.join(
                queries.summary(mean=["age", "cost"], clip=wider),
                queries.contingency_table({"site": ["a", "b"]}, statistic="rate"),
            )
        }
    assert verify(certificate, scenario=prevalence(**options)).problems


class TestOtherRows:
    """From the data: rows in another order are the same rows, and one other row is noticed."""

    @pytest.mark.parametrize("kind", ["independent", "cells", "transport", "several kinds"])
    def test_any_order(self, row_certificates, kind):
        make, options, _ = MADE[kind]
        places = np.random.default_rng(3).permutation(len(EARLIER))
        shuffled = make(**(options | {"moments_from": EARLIER.take(places)}))
        assert verify(row_certificates[kind][1], scenario=shuffled).problems == ()

    def test_slots_in_any_order(self, row_certificates):
        make, options, _ = MADE["rooms"]
        places = np.random.default_rng(3).permutation(len(LOADS))
        shuffled = make(**(options | {"loads": LOADS.take(places)}))
        assert verify(row_certificates["rooms"][1], scenario=shuffled).problems == ()

    @pytest.mark.parametrize("kind", ["independent", "cells", "transport", "volume"])
    def test_one_other_row(self, row_certificates, kind):
        make, options, _ = MADE[kind]
        costs = np.array(EARLIER["cost"]).copy()
        costs[7] += 0.01
        other = EARLIER.set_column(3, "cost", [costs])
        if kind == "volume":
            other = other.take(np.arange(59))
        scenario = make(**(options | {"moments_from": other}))
        assert verify(row_certificates[kind][1], scenario=scenario).problems

    @pytest.mark.parametrize("kind", ["cells", "near cells", "transport"])
    def test_numbers_that_differ_by_more_than_sums_do(self, row_certificates, kind):
        rows = row_certificates[kind][1].evidence.full.differences
        assert are_moments_of_same_rows(rows, rows)
        summed = {"means", "covs", "counts", "squares", "cell_means", "coupled", "plans"}
        for name, array in rows.arrays().items():
            if not array.size or array.dtype.kind == "i":
                continue
            near, far = (
                attrs.evolve(rows, **{name: array * (1 + share)}) for share in (1e-15, 1e-8)
            )
            assert are_moments_of_same_rows(near, rows) == (name in summed | {"radii", "layers"})
            assert not are_moments_of_same_rows(far, rows), name
        assert not are_moments_of_same_rows(rows, attrs.evolve(rows, radii=rows.radii[:1]))

    @pytest.mark.parametrize("kind", ["cells", "near cells", "independent", "weeks"])
    def test_the_raise_is_above_what_is_taken_for_the_same(self, row_certificates, kind):
        """All moments off by as much as is accepted, in the worst direction, exactly computed."""
        rows = row_certificates[kind][1].evidence.full.differences
        rng = np.random.default_rng(4)
        for _ in range(50):
            off = rng.choice([-1, 1], rows.means.shape) * rows.spans * 2.0**-37
            root = rng.choice([-1, 1], (len(rows.covs), rows.n_features)) * rows.spans
            more = root[:, :, None] * root[:, None, :] * 2.0**-37
            plans = np.array(rows.plans)
            if plans.size:
                places = rng.integers(plans.shape[1], size=2)
                plans[:, places, places] = np.maximum(plans[:, places, places] - 2.0**-39, 0.0)
            true = attrs.evolve(
                rows,
                means=rows.means + off,
                covs=rows.covs + more,
                cell_means=rows.cell_means + off[:, None],
                plans=plans,
            )
            assert are_moments_of_same_rows(rows, true)
            for stored, needed in zip(rows.second_moments, unraised(true), strict=True):
                assert np.linalg.eigvalsh(stored - needed)[0] > 0


class TestManyCells:
    """Errors that are small in each of 128 cells, and not in all of them together."""

    def rows(self, n_cells=128, coupling="transport:x"):
        """Rows of a cell add almost the same 0 or 1; cells meet that are close."""
        rng = np.random.default_rng(6)
        labels = np.repeat(np.arange(n_cells), 3)
        shape = (2, 3 * n_cells, 1)
        kinds = labels[:, None] % 2 + np.clip(rng.normal(size=shape) / 64, -0.1, 0.1)
        meeting = {"labels": (labels, labels), "coupling": coupling}
        rows = difference_of(*kinds, Differing(most=3), **meeting)
        rows = attrs.evolve(rows, low=np.full((1, 1), -0.1), high=np.full((1, 1), 1.1))
        rows.check()
        return rows

    def understates(self, forged, rows):
        """Whether the second moment of the forgery is below the true one."""
        (true,) = unraised(rows)
        return bool((forged.second_moments[0] < true).any())

    def check_noticed(self, forged, rows):
        assert self.understates(forged, rows)
        assert not are_moments_of_same_rows(forged, rows)

    def apart(self, rows):
        return (rows.cell_means - rows.means[:, None])[..., 0]

    def test_plans(self):
        """Every entry is within 2^-34, and cells that are both high meet more often."""
        rows = self.rows()
        signs = np.sign(np.outer(*self.apart(rows)))
        forged = attrs.evolve(rows, plans=rows.plans + 2.0**-34 * np.maximum(signs, 0.0))
        self.check_noticed(forged, rows)
        with pytest.raises(ArgumentError, match="not moments of rows"):
            forged.check()

    def test_marginals(self):
        """The share of every cell is within 1e-9, and their sum is not 1."""
        rows = self.rows()
        places = np.argsort(self.apart(rows), axis=1)
        plans = np.array(rows.plans)
        plans[0, places[0], places[1]] += 0.9e-9
        forged = attrs.evolve(rows, plans=plans)
        self.check_noticed(forged, rows)
        with pytest.raises(ArgumentError, match="not moments of rows"):
            forged.check()

    def test_shares(self):
        """Every share is within 2^-34: equal cells would meet more often than they can."""
        equal = self.rows(2048, "cells:x")
        forged = attrs.evolve(equal, shares=equal.shares + 2.0**-34)
        self.check_noticed(forged, equal)
        with pytest.raises(ArgumentError, match="not moments of rows"):
            forged.check()

    def test_any_plan_with_these_shares(self):
        """Cells may meet in another way: that is the second moment of another coupling."""
        rows = self.rows()
        shares = np.outer(*rows.shares)[None]
        drawn = attrs.evolve(rows, plans=shares)
        assert are_moments_of_same_rows(drawn, rows)
        (moment,), (cov,) = unraised(drawn), rows.covs.sum(axis=0)
        assert moment.item() == pytest.approx(9 * drawn.changes[0].mean.item() ** 2 + 3 * cov[0])

    def test_layers_of_few_rows(self):
        """A layer with little in it: what it is raised by is little, too."""
        rows = self.rows()
        few = np.argwhere((rows.layers[..., 0, 0] > 0) & (rows.layers[..., 0, 0] < 2e-5))
        assert len(few)
        for law, layer in few:
            layers = np.array(rows.layers)
            layers[law, layer] -= 2.0**-34 * rows.spans**2
            assert not are_moments_of_same_rows(attrs.evolve(rows, layers=layers), rows)

    def test_radii_where_features_have_unlike_sizes(self):
        """A tolerance by the largest span and the largest whitening is above every radius."""
        rng = np.random.default_rng(7)
        kinds = [rng.normal(size=(40, 2)) * [1e-9, 1.0] + [0, k] for k in range(2)]
        shape = Shape.of_covariance(np.diag([1e-18, 1.0]))
        rows = difference_of(*kinds, Differing(most=3), shape=shape)
        rows = attrs.evolve(rows, low=rows.low * [[1e-9, 1.0]], high=rows.high * [[1e-9, 1.0]])
        assert are_moments_of_same_rows(rows, rows)
        forged = attrs.evolve(rows, radii=np.maximum(rows.radii - 0.01, 0.0))
        assert not are_moments_of_same_rows(forged, rows)


def unraised(rows):
    """Second moments without what is added for rounding."""
    shift = np.kron(np.eye(rows.n_periods), rows.means[1:] - rows.means[0])
    for i, (counts, squares) in enumerate(zip(rows.counts, rows.squares, strict=True)):
        moment = shift.T @ squares @ shift
        for j, of_period in enumerate(counts):
            if rows.is_coupled:
                cov = of_period.max() * rows.changes[i].cov
            else:
                cov = np.einsum("x,xfg->fg", of_period, rows.covs)
            moment += np.kron(np.diag(np.arange(len(counts)) == j).astype(float), cov)
        yield moment


class TestNoise:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_little_less_than_certified(self, row_certificates, kind):
        _, certificate = row_certificates[kind]
        values = copy.deepcopy(certificate.statement.to_json())
        noise, factor = values["noise"], 1 - 6e-10
        noise["std"], noise["grid"] = noise["std"] * factor, noise["grid"] * factor
        noise["std_by_coordinate"] = [std * factor for std in noise["std_by_coordinate"]]
        if noise["calibrated"]:
            forged = Certificate(statement=statement_of(values), evidence=certificate.evidence)
            assert not verify(forged).holds

    def test_one_person_gets_no_more_than_was_asked_for(self):
        for epsilon in (0.5, 1.0, 3.0):
            certificate = certify_release(prevalence(), GUESS, person=(epsilon, 1e-6))
            assert certificate.statement.one_person.epsilon <= epsilon
        options = CertificateOptions.read_off(certificate.statement)
        assert options.person_delta == 1e-6

    def test_the_grid_counts_for_one_person(self, row_certificates):
        """Two rounded outputs may be farther apart than the rows move them."""
        _, certificate = row_certificates["independent"]
        full = certificate.evidence.full
        noise = full.noise(certificate.noise_std)
        low, high = full.differences.boxes
        ends = np.unique(np.vstack([low, high]), axis=0)
        whitened = ends @ full.shape.whitening.T
        apart = np.linalg.norm(whitened[:, None] - whitened[None], axis=2).max() / noise.std
        least = apart + noise.margin / noise.std
        assert full.differences.one_row_distance(noise) >= least > apart


def test_differences_of_other_kinds_have_no_rows():
    """A recipe says nothing about atoms; rows are met as the arrays have them."""
    from tests.row_moments import rows_of

    rows = rows_of(shift=[1.0], spread=[[1.0]], spans=[3.0], counts=[1.0, 1.0])
    assert isinstance(rows, RowDifference)
    assert rows.is_coupled_as("independent")
    assert not rows.is_coupled_as("cells:x")
