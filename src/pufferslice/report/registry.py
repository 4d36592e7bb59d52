# SPDX-License-Identifier: Apache-2.0
"""A record of the OpenDP deployments registry, from a public statement and the holder's facts.

Field names and enumerations are those of the registry's schema `schemas/deployments-schema.yaml`
(https://github.com/opendp/deployments-registry-data, commit 057e5d81). The registry is about
differential privacy, which a release is not, so its variant is always "Custom", and the record says
which distributions are compared and how; what a certificate does not know is asked of the holder or
left out.
"""

import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Final, final

import attrs

from pufferslice._core.checks import check_one_of
from pufferslice._core.text import escaped_texts, given, listed
from pufferslice.calibration.guessing import released_delta
from pufferslice.certificate import Certificate
from pufferslice.certificate.wording import doubt_sentence, first_lines, limit_sentences
from pufferslice.errors import ArgumentError, escaped

CURATOR_TYPES: Final = ("Government", "Industry", "Nonprofit")
SECTORS: Final = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")

_PRIORS: Final = (
    "What is compared: the distributions of everything that is released, given two protected "
    "values, under each declared prior."
)
_WORLDS: Final = (
    "What is compared: the distributions of everything that is released, in the two worlds."
)
_MARKDOWN: Final = re.compile(r"([\\`*_\[\]<>$|~#&{}!])")


@final
@attrs.frozen(kw_only=True)
class DeploymentFacts:
    """What the registry asks for and no certificate knows; every text is the holder's own."""

    name: str
    """Of what is published."""
    curator: str
    """Who publishes it."""
    curator_type: str
    """One of `CURATOR_TYPES`."""
    intended_use: str
    region: str
    """Which region the data describe, or whose laws apply."""
    published: str
    """When, as YYYY-MM-DD."""
    author: str
    """Who wrote the record."""
    sector: str | None = None
    """One of `SECTORS`."""

    def __attrs_post_init__(self) -> None:
        for field in ("name", "curator", "intended_use", "region", "author"):
            if not str(getattr(self, field)).strip():
                raise ArgumentError(f"{field} must be a non-empty string: the registry requires it")
        check_one_of(CURATOR_TYPES, curator_type=self.curator_type)
        if self.sector is not None:
            check_one_of(SECTORS, sector=self.sector)
        try:
            is_date = date.fromisoformat(self.published).isoformat() == self.published
        except ValueError:
            is_date = False
        if not is_date:
            raise ArgumentError(
                f"published must be a date as YYYY-MM-DD, got {given(self.published)}"
            )
        if not _slug(self.name):
            raise ArgumentError(
                "name must have a letter or digit of ASCII: the registry makes an address of it"
            )

    @property
    def slug(self) -> str:
        """The part of an address that the registry gives a record: name, curator and year."""
        parts = (self.name, self.curator, self.published[:4])
        return "-".join(filter(None, map(_slug, parts)))


def registry_record(certificate: Certificate, facts: DeploymentFacts) -> dict[str, Any]:
    """The record as the registry's schema has it; nothing but the public statement is read."""
    statement = certificate.statement
    if certificate.workflow == "release" and not certificate.is_secure:
        raise ArgumentError(
            "the certificate states seeded test noise, which protects nothing and must never be "
            "published; certify with the noise of the operating system"
        )
    protected, noise, last = map(_plain, first_lines(statement).splitlines())
    training = certificate.workflow == "training"
    relation = _WORLDS if training else _PRIORS
    if training:
        last += doubt_sentence(statement)
    basic: dict[str, Any] = {
        "name": escaped(facts.name),
        "data_curators": [
            {
                "data_curator_name": escaped(facts.curator),
                "data_curator_type": facts.curator_type,
            }
        ],
        "description": _product(statement),
        "intended_use": escaped(facts.intended_use),
        "data_product_type": "Machine learning model" if training else "Summary statistics",
        "data_product_region": escaped(facts.region),
        "publication_date": facts.published,
    }
    if facts.sector is not None:
        basic["data_product_sector"] = facts.sector
    parameters = _parameters(statement)
    return {
        "url_slug": facts.slug,
        "deployment": {
            "basic": basic,
            "dp_variant": {"variant_name": "Custom"},
            "privacy_loss": {
                "privacy_unit": "A declared secret about the data, not a person (Pufferfish).",
                "privacy_unit_details": f"{protected} {relation}",
                **({"privacy_parameters": parameters} if parameters else {}),
                "privacy_parameters_details": f"{_plain(str(certificate.guarantee))}. {last}",
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": _plain(" ".join(limit_sentences(escaped_texts(statement)))),
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "mechanisms": f"{_mechanism(statement)} Certificate {certificate.digest} of "
                "pufferslice.",
                "utility": noise,
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [escaped(facts.author)],
                "tier": 2 if parameters else 1,
            },
        },
    }


def registry_yaml(certificate: Certificate, facts: DeploymentFacts) -> bytes:
    """The record as a YAML file."""
    return "\n".join(_lines(registry_record(certificate, facts))).encode() + b"\n"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _product(statement: Mapping[str, Any]) -> str:
    if statement["workflow"] == "training":
        return "A model that was trained with noise on every step."
    names = statement["scenario"]["query"]["names"]
    number = "1 statistic" if len(names) == 1 else f"{len(names)} statistics"
    return _plain(f"{number} with noise: {listed(names)}.")


def _mechanism(statement: Mapping[str, Any]) -> str:
    if statement["workflow"] == "training":
        return _plain(escaped(" ".join(statement["noise"])))
    return (
        f"Gaussian noise on an integer grid, generator {_plain(statement['noise']['generator'])}."
    )


def _parameters(statement: Mapping[str, Any]) -> dict[str, float]:
    """The best (epsilon, delta) of everything that is released; empty where there is none."""
    holder = statement if statement["workflow"] == "training" else statement["noise"]
    views = [view for view in statement["views"] if view["scope"] == "unsliced"]
    if not views:
        return {}
    best = min(views, key=lambda view: (view["epsilon"], view["delta"]))
    epsilon = float(best["epsilon"])
    delta = released_delta(best["delta"], epsilon, holder["implementation_delta"])
    return {"epsilon": epsilon, "delta": delta}


def _plain(text: str) -> str:
    """The text for a reader of Markdown and LaTeX, their special characters escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def _lines(value: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            lines += [f"{indent}{key}:", *_lines(item, f"{indent}  ")]
        elif isinstance(item, list):
            lines.append(f"{indent}{key}:")
            for part in item:
                inner = _lines(part) if isinstance(part, Mapping) else [_scalar(part)]
                marks = ["- ", *["  "] * (len(inner) - 1)]
                lines += [
                    f"{indent}  {mark}{line}" for mark, line in zip(marks, inner, strict=True)
                ]
        else:
            lines.append(f"{indent}{key}: {_scalar(item)}")
    return lines


def _scalar(value: object) -> str:
    """A string as JSON has it, which YAML reads; a float with the point that YAML 1.1 asks for."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in text:
        text = text.replace("e", ".0e")
    return text
