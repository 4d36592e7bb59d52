# SPDX-License-Identifier: Apache-2.0

"""Every file that the library writes fits its schema, and nothing else is read."""

import json

import jsonschema
import pytest
from tests.certificate.conftest import KINDS, PLAN, worlds
from tests.json_edits import edited, inner, put

from pufferslice.audit import Audit, Verdict
from pufferslice.audit.inference import Inference, Interval
from pufferslice.audit.release import AUDIT_FORMAT, AUDIT_VERSION
from pufferslice.certificate import (
    Certificate,
    certify_release,
    certify_training,
    new_key_pair,
    sign,
)
from pufferslice.certificate.certificate import FORMAT, VERSION
from pufferslice.certificate.files import (
    json_schemas,
    read_audit,
    read_release,
)
from pufferslice.certificate.statement import UnslicedPart, read_statement
from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, CertificateError, ReleaseError
from pufferslice.queries import Ball, summary
from pufferslice.releases import Release
from pufferslice.releases.release import FORMAT as RELEASE_FORMAT
from pufferslice.releases.release import VERSION as RELEASE_VERSION
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins
from pufferslice.sensitivity.profiles import FiniteProfile


@pytest.fixture(scope="module")
def validators():
    schemas = json_schemas()
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas.items()}


@pytest.fixture(scope="module")
def released():
    return Release(
        certificate="ab" * 32,
        guarantee="(4, 1)-Joint-SRPP",
        names=("x", "y"),
        values=[1.0, -2.5],
        noise_stds=[0.5, 0.0],
        grid_values=(3, -(10**300)),
        secure=True,
        unsliced=UnslicedPart(order=2.0, epsilon=1.0, source="x", guess=None),
        range=Ball([0.0, 0.0], 2.0),
    )


@pytest.fixture(scope="module")
def audit():
    share = Interval(0.5, 0.25, 0.75)
    verdict = Verdict(
        claim="(2, 1)-RPP", quantity="epsilon", claimed=1.0, statistic="divergence",
        lower_bound=0.5, confidence=0.95, refutable_below=8.5, n_outputs=100, pair=("a", "b"),
        prior="table", line="axis x",
    )  # fmt: skip
    inference = Inference(
        attack="gaussian_map", prior="table", prior_kind="natural", secrets=("a", "b"),
        n_trials=100, accuracy=share, prior_accuracy=share, advantage=Interval(0.0, -0.25, 0.25),
        confidence=0.95,
    )  # fmt: skip
    return Audit(
        certificate="ab" * 32, confidence=0.95, n_outputs=100, verdicts=(verdict,),
        inferences=(inference,), unaudited=("the unsliced cost",),
    )  # fmt: skip


def accepted(document):
    try:
        Certificate.from_json(document)
    except CertificateError as error:
        # Only then was the schema met.
        return "was edited" in str(error)
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_certificate_fits_the_schema(certificates, validators, kind):
    private, _ = new_key_pair()
    for certificate in (certificates[kind], sign(certificates[kind], private)):
        document = json.loads(json.dumps(certificate.to_json()))
        validators["certificate"].validate(document)
        assert Certificate.from_json(document).digest == certificate.digest


@pytest.mark.parametrize(
    "secret",
    [Bins(column="pay", quantiles=3), Bins(column="pay", edges=[25]), ["site"]],
    ids=str,
)
def test_other_secrets_and_ranges_fit_the_schema(table, validators, secret):
    query = summary(mean=["pay", "age"]).with_range(Ball([30.0, 20.0], 50.0))
    scenario = Scenario.from_groups(table, secret=secret, query=query)
    target = Guarantee.average(order=2, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
    document = json.loads(json.dumps(certify_release(scenario, target).to_json()))
    validators["certificate"].validate(document)
    assert accepted(document)


def test_a_release_fits_the_schema(validators, released):
    document = json.loads(json.dumps(released.to_json()))
    validators["release"].validate(document)
    assert Release.from_json(document) == released


def test_an_audit_fits_the_schema(validators, audit):
    document = json.loads(json.dumps(audit.to_json()))
    validators["audit"].validate(document)
    assert read_audit(document).to_json() == document
    for path, value in inner(document):
        if isinstance(value, dict):
            with pytest.raises(ArgumentError, match=r"more: is not a field of this file"):
                read_audit(edited(document, (*path, "more"), lambda at, key: at.update({key: 1})))
        if path and isinstance(path[-1], str):
            with pytest.raises(ArgumentError, match="is missing"):
                read_audit(edited(document, path, lambda at, key: at.pop(key)))


@pytest.mark.parametrize("document", [None, 5, [], {}, {"verdicts": []}, {"roc_auc": 1}])
def test_what_is_no_audit(document):
    with pytest.raises(ArgumentError, match="audit"):
        read_audit(document)


def test_formats_and_versions_are_those_of_the_writers():
    for name, format_, version in (
        ("certificate", FORMAT, VERSION),
        ("release", RELEASE_FORMAT, RELEASE_VERSION),
        ("audit", AUDIT_FORMAT, AUDIT_VERSION),
    ):
        properties = json_schemas()[name]["properties"]
        assert (properties["format"]["const"], properties["version"]["const"]) == (format_, version)


@pytest.mark.parametrize("kind", ["records", "gaussian", "approximate", "sphere", "training"])
def test_no_field_can_be_added_or_left_out(certificates, validators, kind):
    certificate = certify_training(PLAN, data="d") if kind == "training" else certificates[kind]
    document = json.loads(json.dumps(sign(certificate, new_key_pair()[0]).to_json()))
    open_ended = ("parameters", "differing", "sampling", "clipping", "claim")
    more, less = set(), set()
    for path, value in inner(document):
        if any(key in open_ended for key in path[3:] if isinstance(key, str)):
            continue
        if isinstance(value, dict):
            larger = edited(document, (*path, "more"), lambda holder, key: holder.update({key: 1}))
            assert validators["certificate"].is_valid(larger) == accepted(larger)
            more |= {path} if accepted(larger) else set()
        if path and isinstance(path[-1], str):
            smaller = edited(document, path, lambda holder, key: holder.pop(key))
            less |= {path} if accepted(smaller) else set()
    assert {path[-1] for path in more} <= set(open_ended)
    assert less == {("signature",)}


@pytest.mark.parametrize("file", ["certificate", "release", "audit"])
def test_every_field_has_its_type(certificates, released, audit, file):
    read, document = Release.from_json, released.to_json()
    if file == "audit":
        read, document = read_audit, audit.to_json()
    if file == "certificate":
        read = Certificate.from_json
        document = sign(certificates["records"], new_key_pair()[0]).to_json()
    document = json.loads(json.dumps(document))
    untyped = []
    for path, value in inner(document):
        for other in ({"a": []}, [{}], True, "\n", 10**400, None, 0.5):
            same = isinstance(value, type(other)) or value == other  # True is 1
            if not path or "parameters" in path or same:
                continue
            broken = put(document, path, other)
            try:
                read(broken)
            except CertificateError as error:
                if "was edited" not in str(error):
                    continue
            except (ReleaseError, ArgumentError):
                continue
            untyped.append((path, other))
    nullable = {("statement", "unsliced", "epsilon"), ("statement", "unsliced", "guess"),
                ("statement", "scenario", "query", "range"),
                ("unsliced", "epsilon"), ("unsliced", "guess"), ("range",)}  # fmt: skip
    assert {path for path, _ in untyped} <= nullable
    assert all(other in (None, 0.5) for _, other in untyped)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("noise", lambda s: s["noise"].update(secure=False)),
        ("noise", lambda s: s["noise"].update(generator="seeded_test")),
        ("statement", lambda s: s["noise"].update(std=0.0)),
        ("statement", lambda s: s.update(distributions_are_equal=True)),
        ("statement", lambda s: s["noise"]["std_by_coordinate"].pop()),
        ("workflow", lambda s: s.update(workflow="static")),
        ("workflow", lambda s: s.pop("workflow")),
        ("guarantee", lambda s: s["guarantee"].update(order=1.0)),
        ("guarantee", lambda s: s["guarantee"].update(epsilon=0.0)),
        ("guarantee", lambda s: s["guarantee"].update(epsilon=1e151)),
        ("guarantee", lambda s: s["guarantee"].update(notion="Joint")),
        ("method", lambda s: s["method"].update(rule="closed_form")),
        ("failure_probability", lambda s: s.update(failure_probability=1.0)),
        ("scenario.pairs[0]", lambda s: s["scenario"]["pairs"][0].pop()),
        ("scenario.pairs", lambda s: s["scenario"]["pairs"].append(["north", "south"])),
        ("scenario", lambda s: s["scenario"]["pairs"].append(["north", "Zion"])),
        ("scenario", lambda s: s["scenario"].update(one_release_is="all of it")),
        ("scenario", lambda s: s["scenario"]["clipped"].update(all=["nobody"])),
        ("scenario.priors[0].source", lambda s: s["scenario"]["priors"][0].update(source="x")),
        ("scenario.secret.columns", lambda s: s["scenario"].update(secret={"column": "site"})),
        ("scenario.query", lambda s: s["scenario"]["query"]["scales"].pop()),
        ("scenario.query.range", lambda s: s["scenario"]["query"]["range"]["low"].pop()),
        ("scenario.query.range.low", lambda s: s["scenario"]["query"]["range"].update(low="a")),
        ("earlier_releases[0]", lambda s: s.update(earlier_releases=["first"])),
        ("evidence_digest", lambda s: s.update(evidence_digest="ABC")),
        ("views[0].delta", lambda s: s["views"][0].update(delta=1.0)),
        ("limits[0]", lambda s: s.update(limits=["a-code-of-tomorrow"])),
    ],
)
def test_the_path_of_the_wrong_field_is_named_and_no_value(certificates, path, change):
    statement = json.loads(json.dumps(certificates["records"].statement.to_json()))
    change(statement)
    with pytest.raises(CertificateError) as caught:
        read_statement(statement)
    assert str(caught.value).partition(": ")[0].removeprefix("statement.") == path
    for value in ("nobody", "Zion", "tomorrow", "ABC", "1e+151"):
        assert value not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "rule", "change"),
    [
        ("records", "limits", lambda s: s["limits"].remove("named-secret-only")),
        ("records", "limits", lambda s: s["limits"].reverse()),
        ("records", "limits", lambda s: s["scenario"]["priors"][0].update(source="public_model")),
        ("seeded", "limits", lambda s: s["limits"].remove("insecure-noise")),
        ("sampled", "limits", lambda s: s["limits"].remove("priors-sampled")),
        ("sphere", "limits", lambda s: s["limits"].remove("sphere-sampled")),
        ("sampled", "failure probability", lambda s: s.update(failure_probability=0.0)),
        ("records", "failure probability", lambda s: s.update(failure_probability=0.01)),
        ("records", "no more than", lambda s: s["guarantee"].update(epsilon=s["spent"] / 2)),
        ("unsliced", "whole output", lambda s: s["unsliced"].update(epsilon=1e-9)),
        ("unsliced", "whole output", lambda s: s["unsliced"].update(order=1.5)),
        ("guess", "whole output", lambda s: s["unsliced"].update(guess=0.5)),
        ("guess", "no more than", lambda s: s["guarantee"].update(at_most=0.51)),
    ],
)
def test_a_statement_that_contradicts_itself_needs_no_evidence(certificates, kind, rule, change):
    guess = certify_release(worlds(a=[[0.0]], b=[[1.0]]), Guarantee.guess(at_most=0.6))
    certificate = {**certificates, "guess": guess}[kind]
    statement = json.loads(json.dumps(certificate.statement.to_json()))
    read_statement(statement)
    change(statement)
    with pytest.raises(CertificateError, match=rule):
        read_statement(statement)


@pytest.mark.parametrize("statement", [None, 5, [], {}, {"workflow": "training"}])
def test_what_is_no_statement(statement):
    with pytest.raises(CertificateError, match="statement"):
        read_statement(statement)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noise_std", -1.0),
        ("value", float("inf")),
        ("value", None),
        ("name", 3),
        ("grid_value", 0.5),
        ("grid_value", "1.5"),
    ],
)
def test_a_release_with_odd_numbers_is_refused(released, key, value):
    document = released.to_json()
    document["values"][0][key] = value
    with pytest.raises(ReleaseError, match=rf"release\.values\[0\]\.{key}"):
        read_release(document)
