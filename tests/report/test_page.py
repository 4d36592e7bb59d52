# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""The page as bytes: what it says, what the public edition leaves out, what it cannot load."""

import base64
import hashlib
import importlib
import json
import math
import re
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.certificate.conftest import of_rows
from tests.report.conftest import LEARNING, PUBLIC, STATIC, files, put

import pufferslice as ps
from pufferslice._core.display import rounded
from pufferslice._core.numbers import at_most, percent_at_most
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.baselines.comparison import UNSLICED
from pufferslice.certificate import certify_release, certify_training, new_key_pair, sign
from pufferslice.certificate.limits import CONDITIONS
from pufferslice.certificate.sweep import (
    CLOSED_FORM,
    TIGHT,
    costs_if_off,
    pair_costs,
    slice_profile,
    sweep_points,
)
from pufferslice.certificate.verdict import verdict
from pufferslice.certificate.wording import first_lines, limit_sentences
from pufferslice.claims import Guarantee
from pufferslice.errors import MissingExtraError
from pufferslice.learning import (
    LogMoment,
    MeanSquare,
    Poisson,
    TrainingPlan,
    WithoutReplacement,
    exactly,
    mostly_at_most,
    plan_training,
)
from pufferslice.learning.plan import HYPOTHESES
from pufferslice.queries import Box, summary
from pufferslice.report import page as page_module
from pufferslice.report.page import internal_page, label_page, public_page
from pufferslice.report.text import N_BOUNDS
from pufferslice.scenario.distributions import FiniteDistribution, GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, WholeSphere

SOURCES = Path(page_module.__file__).parent / "templates"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.fixture(scope="module")
def internal(made):
    return internal_page(files(made, (*STATIC, *LEARNING))).decode()


@pytest.fixture(scope="module")
def public(made):
    return public_page(files(made, PUBLIC)).decode()


def text_of(page):
    """The text of a page as a reader sees it."""
    inline = re.sub(r"</?bdi>", "", without_code(page))
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", inline)))  # also no-break spaces


def editions(path):
    """The text of the internal and of the public page of one certificate."""
    return [text_of(make([path]).decode()) for make in (internal_page, public_page)]


def without_code(page):
    return re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)


def tokens(text):
    return {found.replace(",", "") for found in NUMBER.findall(text)}


def roundings(value):
    """The ways in which a number is printed, from three digits to all."""
    shown = {f"{value:.{digits}g}" for digits in range(3, 18)}
    shown |= {f"{value:.{digits}f}" for digits in range(3, 8)}
    bounds = {at_most(float(value)), at_most(float(value), digits=3)}
    return shown | bounds | {repr(float(value)), rounded(float(value))}


def evidence_numbers(certificate):
    """Everything that the evidence holds or that is computed from it, but not stated."""
    evidence = certificate.evidence
    numbers = [*evidence.slices.differences.gaps, *evidence.full.differences.gaps]
    rows = sweep_points(certificate, certificate.guarantee.bounds_around(N_BOUNDS))
    others = [row for row in rows if row.claim != certificate.guarantee]
    numbers += [row.noise_std for row in others]
    numbers += [row.closed_form_std for row in rows]
    numbers += [row.unsliced_epsilon for row in others]
    numbers += [row.sliced_cost for row in pair_costs(certificate)[1:]]
    numbers += [row.unsliced_cost for row in pair_costs(certificate)[1:]]
    numbers += [row.largest_gap for row in pair_costs(certificate)]
    profile = slice_profile(certificate)
    return {float(x) for x in (*numbers, *profile.costs, profile.average) if x > 0}


def public_numbers(value):
    """Every number of public JSON documents."""
    if isinstance(value, dict):
        return {x for one in value.values() for x in public_numbers(one)}
    if isinstance(value, list):
        return {x for one in value for x in public_numbers(one)}
    return {float(value)} if isinstance(value, int | float) else set()


def explained_tokens(folder):
    """Number-like words of a public page that public files or its own sources account for."""
    names = ("certificate.json", "release.json", "trained.json")
    documents = [json.loads((folder / name).read_text()) for name in names]
    # Ticks of a page that cannot have numbers of the certificate's evidence.
    others = public_page(files(folder, ["trained.json", "public.jsonl"])).decode()
    return stated_tokens(documents) | tokens(others)


def stated_tokens(documents):
    """The numbers of public documents, the first a certificate, and of the templates."""
    stds = documents[0]["statement"]["noise"]["std_by_coordinate"]
    derived = {std * factor for std in stds for factor in (math.sqrt(2 / math.pi), 1.959964)}
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.iterdir())
    numbers = public_numbers(documents) | derived
    forms = {form for x in numbers for form in roundings(abs(x))}
    # The digest is salted; one that begins with 45f looks like the number 45.
    digest = documents[0]["digest"]
    return forms | tokens(sources) | tokens(f"{digest} {digest[:12]}")


@pytest.mark.soundness
def test_no_number_of_the_evidence_is_in_the_public_page(made, certificate, public, internal):
    """The same search finds hundreds of them in the internal page, and one that leaked."""
    forms = {form for x in evidence_numbers(certificate) for form in roundings(x)}
    explained = explained_tokens(made)
    assert not (tokens(public) & forms) - explained
    found = (tokens(internal) & forms) - explained
    assert len(found) > 100
    for row in pair_costs(certificate)[1:]:
        assert {rounded(row.sliced_cost), rounded(row.largest_gap)} <= tokens(internal)
    leaked = f"{pair_costs(certificate)[1].largest_gap:.4g}"
    assert (tokens(public.replace("</main>", f"{leaked}</main>")) & forms) - explained == {leaked}


WHOLE = {
    "renyi": Guarantee.unsliced(order=4, epsilon=1.0),
    "approximate": Guarantee.epsilon_delta(1.0, 1e-5),
    "guess": Guarantee.guess(at_most=0.6),
}


WHOLE_CASES = [
    *((kind, "fitted") for kind in WHOLE),
    ("renyi", "diagonal"),
    ("renyi", "isotropic"),
    ("guess", "isotropic"),
]


@pytest.fixture(scope="module")
def whole(scenario, tmp_path_factory):
    """Certificates about the whole output, by claim and shape, with both pages."""
    folder = tmp_path_factory.mktemp("whole")
    made = {}
    for kind, shape in WHOLE_CASES:
        held, path = certify_release(scenario, WHOLE[kind], shape=shape), folder / "c.json"
        held.save(path)
        pages = [make([path]).decode() for make in (internal_page, public_page)]
        made[kind, shape] = (held, *pages)
    return made


@pytest.mark.parametrize(("kind", "shape"), WHOLE_CASES)
def test_claims_about_the_whole_output_have_their_page(whole, kind, shape):
    held, internal, public = whole[kind, shape]
    guess = percent_at_most(held.guess).replace("\u00a0", " ")
    for text in (text_of(internal), text_of(public)):
        assert f"Claim: {held.guarantee}, for the whole output." in text
        assert f"Right guesses: at most {guess}" in text
        assert "The same noise, read in 3 ways" in text
        assert "Shape of the noise" in text
        assert "Guard: every shift of the output by up to" in text
        assert ("it reveals the directions" in text) == (shape != "isotropic")
        assert ("of the best Gaussian noise" in text) == (kind == "renyi" and shape != "isotropic")
        assert ("Correlation of the noise" in text) == (shape != "isotropic")
        assert "Slice profile" not in text
        assert "along slices" not in text
    assert ("other shares of right guesses" in internal) == (kind == "guess")
    assert ("If ε were different" in internal) == (kind != "guess")
    assert "Is this release worth making?" in text_of(internal)
    assert "a constant, which reveals nothing, is at least as accurate" in text_of(internal)
    for words in ("worth making", "constant", "were different", "Pairs, by"):
        assert words not in text_of(public)


def check_shares(text, held, plain, between):
    """Each statistic stands in the table with its noise as a share of isotropic noise."""
    names = held.statement.scenario.query.names
    stds, others = (c.statement.noise.std_by_coordinate for c in (held, plain))
    for name, std, other in zip(names, stds, others, strict=True):
        (found,) = re.findall(rf"{re.escape(name)} {rounded(std)} {between} ([\d.]+) %", text)
        assert float(found) == pytest.approx(100 * std / other, rel=0.006)


def test_a_comparison_tells_the_share_of_isotropic_noise(case, whole):
    """It belongs to the certificate by the noise of one of our unsliced forms."""
    held, plain = whole["renyi", "fitted"][0], whole["renyi", "isotropic"][0]
    document = json.loads((case / "comparison.json").read_text())
    (row,) = (row for row in document["rows"] if row["mechanism"] == UNSLICED)
    ours = [
        row | {"mechanism": UNSLICED, "noise_std": plain.noise_std},
        row | {"mechanism": "unsliced, fitted shape", "noise_std": held.noise_std},
    ]
    put(case / "comparison.json", document | {"rows": ours})
    held.save(case / "shaped.json")
    page = internal_page(files(case, ["shaped.json", "comparison.json"])).decode()
    check_shares(text_of(page), held, plain, "[^%]* %")


def test_the_share_of_isotropic_noise_needs_no_comparison_for_gaussian_priors(tmp_path):
    """The oracle is a certificate with isotropic noise for the same scenario."""
    cov = [[4.0, 1.0], [1.0, 2.0]]
    worlds = {
        "low": GaussianDistribution(mean=[0.0, 0.0], cov=cov),
        "high": GaussianDistribution(mean=[1.0, 3.0], cov=[[5.0, 1.0], [1.0, 3.0]]),
    }
    query = summary(mean=["pay", "age"]).with_scales([2.0, 5.0])
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    target = Guarantee.unsliced(order=4, epsilon=0.2)
    held, plain = (
        certify_release(scenario, target, shape=kind) for kind in ("fitted", "isotropic")
    )
    held.save(tmp_path / "c.json")
    internal, public = editions(tmp_path / "c.json")
    check_shares(internal, held, plain, r"[\d.,]+ ± [\d.,]+")
    assert "share of isotropic noise" not in public


def test_symbols_are_explained_last(internal, public):
    for page in (internal, public):
        assert page.index("<math") > page.index("Symbols and words")


def test_the_internal_page_prices_priors_that_are_off(whole):
    held, internal, public = whole["guess", "fitted"]
    costs = costs_if_off(held, [0.1, 0.25, 0.5, 1.0])
    shown = " ".join(
        f"{share} % {percent_at_most(cost)}"
        for share, cost in zip((10, 25, 50, 100), costs, strict=True)
    )
    assert shown.replace("\u00a0", " ") in text_of(internal)
    assert "off by a share of the guard" not in text_of(public)


def test_correlations_and_ellipses_are_those_of_the_noise(whole):
    held, _, public = whole["renyi", "fitted"]
    covariance = held.shape.covariance
    wanted = covariance / np.sqrt(np.outer(np.diagonal(covariance), np.diagonal(covariance)))
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', public)[1])
    assert np.allclose(np.array(data["correlations"], dtype=float), wanted, atol=0.0051)
    reach = math.sqrt(-2 * math.log(0.05)) * 38
    axes = np.array(data["axes"])
    assert np.allclose(axes[..., 0], reach * np.sqrt(1 + wanted), atol=0.01)
    assert np.allclose(axes[..., 1], reach * np.sqrt(np.maximum(0, 1 - wanted)), atol=0.05)
    first = re.search(r'<ellipse rx="([\d.]+)" ry="([\d.]+)"', public)
    assert [float(first[1]), float(first[2])] == axes[0, 1].tolist()
    stds = held.statement.noise.std_by_coordinate
    assert data["ends"] == [f"{1.959964 * std:.3g}" for std in stds]


@pytest.mark.soundness
@pytest.mark.parametrize("kind", WHOLE)
def test_no_number_of_the_evidence_of_shaped_noise_is_public(whole, kind):
    held, internal, public = whole[kind, "fitted"]
    rows = sweep_points(held, held.guarantee.bounds_around(N_BOUNDS))
    others = [row for row in rows if row.claim != held.guarantee]
    numbers = [*held.evidence.full.differences.gaps, *(row.noise_std for row in others)]
    numbers += [row.unsliced_epsilon for row in others]
    numbers += [row.unsliced_cost for row in pair_costs(held)[1:]]
    for row in verdict(held).statistics:
        numbers += [row.difference, row.constant_error, row.size]
    forms = {form for x in numbers if x > 0 for form in roundings(float(x))}
    explained = stated_tokens([held.to_json()])
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', public)[1])
    # The public matrix tells the correlations; its picture has coordinates on the page.
    explained |= {text.lstrip("-") for row in data["correlations"] for text in row}
    drawn = re.sub(r"<svg.*?</svg>", " ", without_code(public), flags=re.DOTALL)
    assert not (tokens(drawn) & forms) - explained
    assert len((tokens(internal) & forms) - explained) > 50


@pytest.mark.soundness
def test_public_bytes_do_not_depend_on_the_evidence(case):
    with_evidence = public_page(files(case, PUBLIC))
    (case / "certificate.evidence.npz").unlink()
    assert public_page(files(case, PUBLIC)) == with_evidence


@pytest.mark.soundness
def test_the_public_edition_has_no_chart_of_the_static_road(made):
    page = without_code(public_page(files(made, PUBLIC[:2])).decode())
    charts = re.findall(r'<svg [^>]*aria-label="([^"]*)"', page)
    assert charts == ["Released values and their noise"]
    for mark in ("slider", "application/json", "closed form", "Slice profile", "Pairs, by"):
        assert mark not in page
    assert "INTERNAL" not in text_of(page)
    assert "Public edition" in text_of(page)


def test_the_first_screen_answers(internal, certificate):
    text = text_of(internal)
    first = text[: text.index("Is this release worth making?")]
    std, whole = 1.959964 * certificate.noise_std, at_most(certificate.unsliced_epsilon, digits=3)
    for fact in (
        f"at most {percent_at_most(certificate.guess)}",
        "north, south, west",
        "3 pairs",
        f"± {rounded(2 * std, 2 * std / 1.96)}",
        f"ε at most {whole} at order 4",
        "(4, 1)-Joint-SRPP",
    ):
        assert fact.replace("\u00a0", " ") in first
    assert first.index("mean(pay)") < first.index("Right guesses") < first.index("Joint-")


def test_every_certificate_ends_with_its_assumptions_and_symbols(internal):
    headings = [unescape(h) for h in re.findall(r"<h2 id=[^>]*>(.*?)</h2>", internal)]
    claims = [heading for heading in headings if heading.startswith("The claim: ")]
    assert claims == ["The claim: (4, 1)-Joint-SRPP", "The claim: (8, 4)-RPP"]
    places = [place for place, heading in enumerate(headings) if heading == "Symbols and words"]
    assert [headings[place - 1] for place in places] == ["Assumptions and limits"] * 2
    assert places[-1] == len(headings) - 1


def training_sentences(trained):
    """What a training certificate says by code, in words."""
    statement = trained.statement
    yield from (HYPOTHESES[code] for code in statement.hypotheses)
    yield from limit_sentences(statement)
    yield from (CONDITIONS[code] for code in statement.one_record.conditions)


def test_what_was_given_is_shown(made, internal, certificate, trained):
    text = text_of(internal)
    release = json.loads((made / "release.json").read_text())
    for row in release["values"]:
        std = row["noise_std"]
        assert f"{row['name']} {rounded(row['value'], std)} {rounded(std)}" in text
    for sentence in (*limit_sentences(certificate.statement), *training_sentences(trained)):
        assert sentence in text
    delta = certificate.statement.noise.implementation_delta
    for sentence in (
        f"own error of at most {at_most(delta, digits=3)} in total variation",
        "not refuted",
        "9,000 members",
        "covered by no guarantee",
        certificate.digest,
        trained.digest,
        "verified when this page was written",
    ):
        assert sentence in text


@pytest.mark.parametrize("make", [internal_page, public_page])
def test_every_certificate_says_how_to_check_it(made, make):
    """The command stands in the public edition too: a reader must not have to trust the page."""
    page = make(files(made, ("certificate.json", "trained.json"))).decode()
    for footer, source in zip(
        re.findall(r"<footer>.*?</footer>", page, flags=re.DOTALL),
        ("its evidence, which stays with the holder and the auditors", "the plan that it states"),
        strict=True,
    ):
        command = "pufferslice verify certificate.json recomputes the claim from " + source
        assert command in text_of(footer)
        assert "public.pem" not in footer


def test_a_signature_and_insecure_noise_are_said(tmp_path, scenario, profile, certificate):
    private, _ = new_key_pair()
    sign(certificate, private).save(tmp_path / "signed.json")
    assert "--key public.pem" in editions(tmp_path / "signed.json")[1]
    target = certificate.guarantee.along(profile)
    certify_release(scenario, target, generator=SeededTestNoise(seed=1)).save(tmp_path / "c.json")
    assert all("INSECURE" in text for text in editions(tmp_path / "c.json"))


@pytest.mark.soundness
def test_an_average_over_batch_draws_promises_nothing_about_the_run(tmp_path):
    plan = plan_training(
        differing=exactly(20),
        sampling=WithoutReplacement(n_records=50_000, batch_size=512),
        clip_norm=4.0,
        n_steps=3_920,
        accountant=MeanSquare(),
        target=Guarantee.average_over_batches(order=16, epsilon=1.0),
    )
    certify_training(plan, data="cifar10").save(tmp_path / "c.json")
    for text in editions(tmp_path / "c.json"):
        assert "about the run that took place nothing is promised" in text
        assert "on average over batch draws only" in text
        assert "at most 57.1 % of the time, on average over training runs" in text
        for claim in ("Anyone who sees the model", "can tell"):
            assert claim not in text


@pytest.mark.soundness
def test_the_failure_probability_of_training_stands_beside_its_numbers(tmp_path):
    """Not only among the limits: how many records differ was bounded by a simulation."""
    plan = plan_training(
        differing=mostly_at_most(4, tail_probability=1e-4, failure_probability=0.02),
        sampling=Poisson(n_records=500, rate=0.5),
        clip_norm=1.0,
        n_steps=12,
        accountant=LogMoment(),
        target=Guarantee.epsilon_delta(4.0, 1e-3),
    )
    held, doubt = certify_training(plan, data="digits", deltas=(1e-3,)), "with probability 0.02."
    held.save(tmp_path / "c.json")
    for text in (
        *editions(tmp_path / "c.json"),
        text_of(label_page([tmp_path / "c.json"]).decode()),
    ):
        guesses = text[text.index("at most 71.4 %") :]
        assert f"All of this holds except {doubt}" in guesses[: guesses.index("oise")]


def save(path, worlds, target, *, query=None, **options):
    """A certificate of two worlds, saved; its text in both editions."""
    dim = next(iter(worlds.values())).dim
    query = query or summary(mean=["pay", "age"][:dim])
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    if options:
        scenario = scenario if query.range else scenario.with_sampled_priors()
    certify_release(scenario, target, **options).save(path)
    return editions(path)


def points(first, second):
    return {"a": FiniteDistribution.uniform(first), "b": FiniteDistribution.uniform(second)}


def test_one_of_a_kind_is_not_called_several(tmp_path):
    target = Guarantee.average(order=2, epsilon=0.5, profile=FiniteProfile.axes(dim=1))
    text, _ = save(tmp_path / "c.json", points([[1.0], [3.0]], [[2.0], [5.0]]), target)
    assert not re.search(
        r"\b1 (pairs|slices|dimensions|couplings|numbers|values|coordinates)", text
    )
    assert "Slice profile" not in text, "one slice has no profile"


def test_the_whole_sphere_is_named_as_what_is_claimed(tmp_path):
    sphere = ps.SampledSphere.draw(dim=2, n_directions=50, seed=1)
    _, text = save(
        tmp_path / "c.json",
        points([[1.0, 1.0]], [[2.0, 0.0]]),
        Guarantee.joint(order=2, epsilon=1.0, profile=sphere),
        query=summary(mean=["pay", "age"]).with_range(Box([0, 0], [4, 4])),
        failure_probability=0.01,
    )
    assert "except with probability 0.01, along the whole sphere of 2 dimensions" in text
    assert "known by 50 directions drawn from it" in text
    whole = Guarantee.joint(order=2, epsilon=1.0, profile=WholeSphere(dim=2))
    internal, text = save(tmp_path / "w.json", points([[1.0, 1.0]], [[2.0, 0.0]]), whole)
    assert (
        "under the declared priors, along the whole sphere of 2 dimensions, in closed form" in text
    )
    assert "closed form on the whole sphere" in internal
    assert "Slice profile" not in internal


@pytest.mark.soundness
def test_without_an_unsliced_bound_nothing_is_promised_about_readers(tmp_path):
    draws = [np.random.default_rng(i).normal(i, 1, (4_000, 2)) for i in range(2)]
    target = ps.Guarantee.joint(epsilon=1.0, delta=0.05)
    target = target.along(FiniteProfile.axes(dim=2))
    for text in save(tmp_path / "c.json", points(*draws), target, failure_probability=0.01):
        assert "for a reader of the whole release nothing is promised" in text
        assert "Anyone who looks along one slice alone" in text
        assert "No useful bound on right guesses" in text
        for words in ("Anyone who sees the release", "guesses right", "unsliced ε at order"):
            assert words not in text


def test_one_sampled_coordinate_is_the_whole_output(tmp_path):
    """Bands without a range bound no ε there, but right guesses."""
    draws = [np.random.default_rng(i).normal(i, 1, (4_000, 1)) for i in range(2)]
    target = Guarantee.guess(at_most=0.8)
    for text in save(tmp_path / "c.json", points(*draws), target, failure_probability=0.01):
        assert "Anyone who sees the release" in text
        assert "Right guesses: at most 80 %" in text
        assert "No finite ε is known for the whole output" in text
        assert "of the time, on average over releases, except with probability 0.01" in text


ATOMS = np.array([[1.0, 2.0], [3.0, 5.0]])


@pytest.mark.parametrize(
    ("kind", "worlds"),
    [
        ("gaussian", {
            "a": GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2)),
            "b": GaussianDistribution(mean=[1.0, 0.5], cov=np.eye(2) * 2),
        }),
        ("equal", points(ATOMS, ATOMS[::-1])),
        ("unsliced", points(ATOMS, ATOMS + 1)),
        ("line", points(ATOMS[:, :1], ATOMS[:1, :1])),
    ],
)  # fmt: skip
def test_every_kind_of_certificate_has_its_page(tmp_path, kind, worlds):
    make = Guarantee.unsliced if kind == "unsliced" else Guarantee.average
    target = make(order=2.5, epsilon=0.4).along(FiniteProfile.axes(dim=worlds["a"].dim))
    inside, outside = save(tmp_path / "c.json", worlds, target)
    assert f"The claim: {make(order=2.5, epsilon=0.4)}" in inside
    assert f"The claim: {make(order=2.5, epsilon=0.4)}" in outside
    assert ("If ε were different" in inside) == (kind != "equal")
    assert ("No noise: the distributions are equal" in inside) == (kind == "equal")
    assert ("published, without noise" in inside) == (kind == "equal")
    assert ("published, with noise" in inside) == (kind != "equal")
    assert ("paper's closed form" in inside) == (kind == "line")


@pytest.mark.parametrize(
    ("options", "subject", "whom"),
    [
        ({}, "share of ill = yes", "Even from someone who knows every row but the 20 that make"),
        (
            {"design": "independent", "moments_from": None},
            "share of ill = yes",
            "On average over the other rows; about 20 of 400 rows make the difference.",
        ),
        ({"kind": "volume"}, "size of the shop", "Even from someone who knows every row but"),
        ({"kind": "state"}, "state of the home", "From someone who knows how states follow"),
    ],
)
def test_the_first_screen_of_sums_of_rows(tmp_path, options, subject, whom):
    """What is hidden, from whom, and what one person gets; no prior is said to be assumed."""
    certificate = of_rows(**options)
    certificate.save(tmp_path / "c.json")
    card = label_page([tmp_path / "c.json"]).decode()
    for text in (*editions(tmp_path / "c.json"), text_of(card)):
        for sentence in filter(None, first_lines(certificate.statement)[1:3]):
            assert sentence.replace("\u00a0", " ") in text
    for text in editions(tmp_path / "c.json"):
        assert f"“\u2068{subject}\u2069”" in text
        assert f"From whom Anyone who sees the release, with any computer {whom}" in text
        assert "for rows like those that the noise was fitted to" in text
        assert "prior covered" not in text.lower()
        assert "the world's own" not in text


def test_what_is_computed_from_released_numbers_stands_beside_them(tmp_path):
    """Group means and standard deviations are what people read, in both editions."""
    rng = np.random.default_rng(4)
    rows = {"ill": ["yes", "no"] * 200, "pay": rng.uniform(0, 100, 400)}
    query = summary(std=["pay"], count={"ill": "yes"}, clip={"pay": (0, 100)})
    scenario = Scenario.from_prevalence(
        pa.table(rows), column="ill", value="yes", within=0.05, query=query,
        moments_from=pa.table(rows | {"pay": rng.uniform(0, 100, 400)}),
    )  # fmt: skip
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
    certificate.save(tmp_path / "c.json")
    released = ps.release(
        scenario, pa.table(rows), certificate, ledger=tmp_path / "l", out=tmp_path / "r.json"
    )
    (row,) = released.derived().rows
    shown = [row.name, rounded(row.value, row.standard_error), rounded(row.standard_error)]
    for make in (internal_page, public_page):
        text = text_of(make([tmp_path / "c.json", tmp_path / "r.json"]).decode())
        _, _, computed = text.partition("Computed from the released numbers, after noise")
        assert re.sub("[\u2068\u2069]", "", computed).split()[13:16] == shown


@pytest.mark.parametrize(
    ("curves", "legend", "words"),
    [
        ({"general": [2.0, 1.0], "others": [2.001, None], "same": [2.001, 1.0]},
         ["general ≈ same", "others"], "joined by ≈ lie on one line"),
        ({"general": [0.0, 0.0], "others": [None, 0.0]}, ["general", "others"],
         "general 0 0 others none 0"),
        ({f"mechanism {i}": [2.0 + i, 1.0 + i] for i in range(9)},
         [f"mechanism {i}" for i in range(9)], "Data table"),
    ],
    ids=["shared", "no noise", "many"],
)  # fmt: skip
def test_curves_of_others(case, curves, legend, words):
    """Curves on top of each other share a line; those of no noise are in the table alone."""
    document = json.loads((case / "comparison.json").read_text()) | {"noise_curves": curves}
    put(case / "comparison.json", document)
    page = internal_page(files(case, ("certificate.json", "comparison.json"))).decode()
    figure = page[page.index("Noise of all mechanisms against ε") :]
    assert re.findall(r"</svg>([^<]+)</li>", figure[: figure.index("</ul>")]) == legend
    assert words in text_of(figure)
    drawn = sum(stds.count(None) == 0 and min(stds) > 0 for stds in curves.values())
    assert figure.count("<polyline") == drawn - ("≈" in legend[0])


def test_different_scenarios_are_clearly_separated(internal, made):
    assert "Part 1 of 2" in text_of(internal)
    assert internal.count("<article ") == 2
    assert "Part 1" not in text_of(internal_page(files(made, STATIC)).decode())


def test_each_chart_has_a_label_and_a_table(internal):
    figures = re.findall(r"<figure>.*?</figure>", internal, flags=re.DOTALL)
    assert len(figures) >= 9
    for figure in figures:
        assert re.search(r'<svg [^>]*role="img"[^>]*aria-label="[^"]+"', figure)
        assert re.search(r"<details( class=\"long\")?><summary>Data table</summary>", figure)
        assert "<caption>" in figure
        assert figure.count("<tr>") > 1


def test_only_this_style_and_this_script_may_run(internal, public):
    for page in (internal, public):
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
        policy = unescape(policy)
        assert policy.startswith("default-src 'none';")
        for tag in ("style", "script"):
            (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
        assert not re.search(r"<[^>]* (style|on\w+)=", page)
        assert not re.search(r"(src|href)=\"(?!#)", page)
        assert "http" not in page.replace("http-equiv", "")


def test_pages_are_small_and_marked(internal, public):
    assert len(public.encode()) < 100_000
    assert len(internal.encode()) < 400_000
    assert '<div class="watermark" aria-hidden="true">INTERNAL</div>' in internal
    assert 'class="watermark"' not in public


def test_a_large_certificate_still_makes_a_small_page(tmp_path, rng):
    """Twelve secrets, 66 pairs, 450 slices, 60 coordinates."""
    worlds = {f"w{i}": FiniteDistribution.uniform(rng.normal(size=(1, 60))) for i in range(12)}
    query = summary(mean=[f"c{i}" for i in range(60)])
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    profile = FiniteProfile.uniform(dim=60, n_directions=450, seed=1)
    target = Guarantee.average(order=2, epsilon=1.0)
    certify_release(scenario, target.along(profile), deltas=()).save(tmp_path / "c.json")
    page = internal_page([tmp_path / "c.json"])
    assert len(page) < 200_000
    assert "36 pairs" in text_of(page.decode())
    assert "400 of 450 slices" in text_of(page.decode())


def test_a_refuted_claim_is_an_alarm(case):
    document = json.loads((case / "audit.json").read_text())
    document["verdicts"][0]["lower_bound"] = 5.0
    put(case / "audit.json", document)
    page = internal_page(files(case, ["certificate.json", "audit.json"])).decode()
    assert "REFUTED by an audit: (4, 1)-Joint-SRPP" in text_of(page)
    assert page.index('role="alert"') < page.index('class="cards"')
    document = json.loads((case / "verdict.json").read_text())
    put(case / "verdict.json", document | {"lower_bound": 5.0})
    page = internal_page(files(case, ["trained.json", "verdict.json"])).decode()
    assert "REFUTED by an audit: (8, 4)-RPP" in text_of(page)


def test_without_evidence_the_internal_page_says_so(case):
    (case / "certificate.evidence.npz").unlink()
    page = internal_page(files(case, ["certificate.json", "release.json"])).decode()
    assert "not verified" in text_of(page[page.index("<footer>") :])
    assert "slider" not in without_code(page)


@pytest.mark.parametrize(
    ("method", "name", "other"),
    [
        (TIGHT, "tight rule", "paper's closed form"),
        (CLOSED_FORM, "paper's closed form", "tight rule"),
    ],
)
def test_both_rules_are_drawn_and_the_certificate_has_its_name(
    tmp_path, scenario, profile, method, name, other
):
    target = Guarantee.joint(order=4, epsilon=1.0, profile=profile)
    certify_release(scenario, target, method=method).save(tmp_path / "c.json")
    text, _ = editions(tmp_path / "c.json")
    assert f"{name} (this certificate) {other}" in text
    assert f"{other} (this" not in text


def test_several_runs_have_a_page_without_a_slider(tmp_path, trained):
    run = TrainingPlan.from_json(trained.statement.runs[0].to_json())
    certify_training([run, run], data="d").save(tmp_path / "c.json")
    text, _ = editions(tmp_path / "c.json")
    assert "2 training runs" in text
    assert "If ε were different" not in text


def test_without_jinja_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pufferslice\[report\]"):
        importlib.reload(page_module)
    monkeypatch.undo()
    importlib.reload(page_module)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", range(4), ids=["light", "dark", "prefers dark", "print"])
def test_colours_reach_the_contrast_of_wcag_aa(theme):
    """4.5 for text, 3 for lines of charts."""
    style = (SOURCES / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r"\{([^{}]*--ground: [^{}]*)\}", style)
    assert len(blocks) == 4
    colour = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme]))
    assert re.findall(r"--.*#.*", blocks[1]) == re.findall(r"--.*#.*", blocks[2]), (
        "both dark themes"
    )
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    for ground in ("ground", "raised"):
        for ink in ("ink", "quiet", "accent", "good", "bad", "open"):
            assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
        for line in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
                     "bar"):  # fmt: skip
            assert contrast(colour[line], colour[ground]) >= 3, (line, ground)
    assert contrast(colour["on-warn"], colour["warn"]) >= 4.5
    assert contrast(colour["ground"], colour["bad"]) >= 4.5


@pytest.mark.soundness
def test_pairs_that_are_not_all_are_named(tmp_path):
    """Values 0, 1 and 1000, and only the first two are a protected pair."""
    table = pa.table({"g": ["a", "b", "c"] * 2, "x": [0.0, 1.0, 1000.0] * 2})
    query = summary(mean=["x"])
    scenario = Scenario.from_groups(table, query=query, pairs=[("a", "b")], secret="g")
    target = Guarantee.joint(order=4, epsilon=0.5, profile=FiniteProfile.axes(dim=1))
    certify_release(scenario, target).acknowledging(["ab" * 32]).save(tmp_path / "c.json")
    for text in editions(tmp_path / "c.json"):
        for words in (
            "two protected values",
            "Must not be told apart: a / b. No other pair is protected.",
            "Protected pairs, and no others: a / b.",
            "it may reveal other values",
            "not covered jointly with this one: abababababab.",
        ):
            assert words in text
        assert "one of two" not in text
        assert "any two listed secrets" not in text
