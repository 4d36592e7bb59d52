# SPDX-License-Identifier: Apache-2.0
"""Records for the OpenDP deployments registry: by its schema, public, and safe to render."""

import attrs
import jsonschema
import pytest
import yaml
from tests.report.conftest import JOINT, made_scenario, made_table

from pufferslice.calibration.guarantee import Guarantee, percent_at_most
from pufferslice.calibration.noise import SeededTestNoise
from pufferslice.certificate import certify_release
from pufferslice.errors import ArgumentError
from pufferslice.report import registry
from pufferslice.report.registry import (
    CURATOR_TYPES,
    DeploymentFacts,
    registry_record,
    registry_yaml,
)

FACTS = DeploymentFacts(
    name="Staff pay 2026: means",
    curator='Office "A"',
    curator_type="Government",
    intended_use="Research: wages",
    region="Nowhere",
    published="2026-11-17",
    author="A. Author",
)


def closed(required=(), **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def one_of(*values):
    return {"type": "string", "enum": list(values)}


ANYTHING, TEXT, NUMBER = {}, {"type": "string"}, {"type": "number"}
CURATOR = {
    "type": "object",
    "required": ["data_curator_name", "data_curator_type"],
    "properties": {
        "data_curator_name": TEXT,
        "data_curator_type": one_of("Government", "Industry", "Nonprofit"),
    },
}
BASIC = ("name", "data_curators", "description", "intended_use", "data_product_type",
         "data_product_region", "publication_date")  # fmt: skip
PRODUCTS = ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data",
            "Interactive API", "SQL queries")  # fmt: skip
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")
STATUSES = ("Converted", "Draft", "Pending", "Changes Required", "Approved",
            "Approved (Update Requested)", "Approved (Pending)")  # fmt: skip
# What schemas/deployments-schema.yaml of https://github.com/opendp/deployments-registry-data asks
# for at commit 057e5d81cf60150dd3307e0cf4504b957802fb3b: every field with its type, its choices and
# whether it is required. That repository states no licence, so its file is not copied: its
# descriptions, and the bibliography below evidence_sources, which we do not write, are left out.
SCHEMA = closed(
    ("url_slug", "deployment"),
    url_slug=TEXT,
    deployment=closed(
        ("basic", "administrative"),
        basic=closed(
            BASIC,
            name=TEXT,
            data_curators={"type": "array", "items": CURATOR, "minItems": 1},
            description=TEXT,
            intended_use=TEXT,
            data_product_type=one_of(*PRODUCTS),
            data_product_region=TEXT,
            data_product_sector=one_of(*SECTORS),
            publication_date={"type": "string", "format": "date"},
        ),
        dp_variant=closed(
            variant_name=one_of(
                "Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"
            ),
            data_domain=TEXT,
            unprotected_quantities=TEXT,
        ),
        privacy_loss=closed(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            number_of_privacy_units={"type": "integer"},
            privacy_parameters=closed(
                epsilon=NUMBER, delta={"type": ["number", "string"]}, rho=NUMBER
            ),
            privacy_parameters_details=ANYTHING,
        ),
        deployment_model=closed(
            model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
            model_name_details=TEXT,
            trust_assumptions=TEXT,
            actors=ANYTHING,
            release_type=one_of("One release", "Many releases"),
            release_type_details=TEXT,
            data_source_type=one_of("Static", "Dynamic"),
            data_source_type_details=TEXT,
            access_type=one_of("Interactive", "Non-interactive"),
            access_type_details=TEXT,
        ),
        implementation=closed(
            preprocessing_and_hyperparameter_tuning=TEXT,
            mechanisms=TEXT,
            composition=TEXT,
            post_processing=TEXT,
            justification=TEXT,
            utility=ANYTHING,
            additional_information=ANYTHING,
        ),
        administrative=closed(
            ("status", "registry_authors", "tier"),
            evidence_sources={"type": "object"},
            status=one_of(*STATUSES),
            registry_authors={"type": "array", "items": TEXT, "minItems": 1},
            tier={"type": "integer", "enum": [1, 2, 3]},
        ),
    ),
)


@pytest.fixture(scope="module")
def whole(scenario):
    return certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0))


@pytest.mark.parametrize("sector", [None, "Energy"])
def test_a_record_keeps_to_the_schema(whole, certificate, trained, sector):
    facts = attrs.evolve(FACTS, sector=sector)
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    for held in (whole, certificate, trained):
        record = registry_record(held, facts)
        jsonschema.validate(record, SCHEMA, jsonschema.Draft7Validator, format_checker=checker)
        assert yaml.safe_load(registry_yaml(held, facts)) == record
        assert record["deployment"]["dp_variant"] == {"variant_name": "Custom"}
        assert record["url_slug"] == "staff-pay-2026-means-office-a-2026"


def test_choices_are_those_of_the_schema():
    assert tuple(CURATOR["properties"]["data_curator_type"]["enum"]) == CURATOR_TYPES
    assert registry.SECTORS == SECTORS


def test_a_custom_variant_says_what_is_compared(whole, trained):
    for held, words in ((whole, "under each declared prior"), (trained, "in the two worlds")):
        loss = registry_record(held, FACTS)["deployment"]["privacy_loss"]
        assert words in loss["privacy_unit_details"]


def test_the_parameters_are_those_of_what_is_released(whole):
    """The best reading of the whole output, its delta raised by the error of the sampler."""
    loss = registry_record(whole, FACTS)["deployment"]["privacy_loss"]
    views = [view for view in whole.statement["views"] if view["scope"] == "unsliced"]
    epsilon = min(view["epsilon"] for view in views)
    assert loss["privacy_parameters"]["epsilon"] == epsilon
    assert loss["privacy_parameters"]["delta"] >= 1e-5
    assert percent_at_most(whole.guess) in loss["privacy_parameters_details"]
    assert "not a person" in loss["privacy_unit"]


def test_without_a_reading_of_the_whole_output_no_parameter_is_stated(scenario):
    held = certify_release(scenario, Guarantee.unsliced(order=4, epsilon=1.0), deltas=())
    deployment = registry_record(held, FACTS)["deployment"]
    assert "privacy_parameters" not in deployment["privacy_loss"]
    assert deployment["administrative"]["tier"] == 1


def test_evidence_changes_nothing(whole):
    bare = attrs.evolve(whole, evidence=None)
    assert registry_yaml(bare, FACTS) == registry_yaml(whole, FACTS)


def test_labels_are_no_markdown(profile):
    hostile = "<script>alert(1)</script> [a](http://b) $x$"
    table = made_table(column=hostile, groups=("*n*", "s`", "w"))
    held = certify_release(made_scenario(table, column=hostile), JOINT.along(profile))
    record = yaml.safe_load(registry_yaml(held, FACTS))
    description = record["deployment"]["basic"]["description"]
    assert r"\<script\>alert(1)\</script\> \[a\](http://b) \$x\$" in description
    assert r"\*n\* / s\`" in record["deployment"]["privacy_loss"]["privacy_unit_details"]


def test_test_noise_is_not_registered(scenario, profile):
    held = certify_release(scenario, JOINT.along(profile), noise=SeededTestNoise(seed=1))
    with pytest.raises(ArgumentError, match="seeded test noise, which protects nothing"):
        registry_record(held, FACTS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"curator": " "}, "curator must be a non-empty string"),
        ({"curator_type": "Person"}, "curator_type"),
        ({"sector": "Sea"}, "sector"),
        ({"published": "17.11.2026"}, "published must be a date as YYYY-MM-DD, got '17.11.2026'"),
        ({"published": "20261117"}, "published must be a date"),
        ({"name": "…"}, "name must have a letter or digit of ASCII"),
    ],
)
def test_wrong_facts_are_refused(wrong, words):
    with pytest.raises(ArgumentError, match=words):
        attrs.evolve(FACTS, **wrong)
