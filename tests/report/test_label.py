# SPDX-License-Identifier: Apache-2.0
"""The privacy label: one card, from the public statement of one certificate."""

import re
from html import unescape

import pytest
from tests.report.conftest import JOINT, made_scenario, made_table

from pufferslice._core.numbers import percent_at_most
from pufferslice._core.sampler import SeededTestNoise
from pufferslice.certificate import certify_release
from pufferslice.certificate.sweep import stated_variation
from pufferslice.certificate.wording import limit_sentences
from pufferslice.claims import Guarantee
from pufferslice.claims.guess import right_guesses
from pufferslice.errors import ArgumentError
from pufferslice.queries import summary
from pufferslice.report.page import label_page
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario


def text_of(page):
    body = re.sub(r"<style>.*?</style>", "", page.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def test_a_label_says_what_is_protected_guesses_and_noise(made, certificate):
    text = text_of(label_page([made / "certificate.json"]))
    assert "Protected: the secret 'site' (3 values), from someone" in text
    assert f"at most {percent_at_most(certificate.guess)}".replace("\u00a0", " ") in text
    for row in certificate.to_pandas().to_dict("records"):
        assert f"{row['statistic']} ± {row['within_95_percent']:.3g}" in text
    for sentence in limit_sentences(certificate.statement):
        assert sentence in text
    assert certificate.digest in text
    assert "INSECURE" not in text


def test_a_label_of_a_training_run(made, trained):
    text = text_of(label_page([made / "trained.json"]))
    guess = percent_at_most(right_guesses(stated_variation(trained)))
    assert f"at most {guess}".replace("\u00a0", " ") in text
    assert "the records of 'digits' come (exactly 4 records differ)." in text
    assert "Any single record: differential privacy with epsilon" in text


def test_a_label_is_the_same_without_the_evidence(made, case):
    (case / "certificate.evidence.npz").unlink()
    assert label_page([case / "certificate.json"]) == label_page([made / "certificate.json"])


def test_a_label_allows_its_own_style_alone(made):
    page = label_page([made / "certificate.json"]).decode()
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "<script" not in page
    assert not re.search(r"\b(?:src|href|style)=", page)


def test_a_label_is_about_one_certificate(made):
    with pytest.raises(ArgumentError, match="a label is about one certificate"):
        label_page([made / "certificate.json", made / "release.json"])


def test_test_noise_is_an_alarm(scenario, profile, tmp_path):
    noise = SeededTestNoise(seed=1)
    certify_release(scenario, JOINT.along(profile), generator=noise).save(tmp_path / "c.json")
    assert "INSECURE (seeded test noise, never publish)" in text_of(
        label_page([tmp_path / "c.json"])
    )


def test_a_label_without_noise_and_with_many_statistics(tmp_path):
    query = summary(mean=[f"c{i}" for i in range(15)])
    worlds = {name: FiniteDistribution.uniform([[x] * 15]) for name, x in (("a", 0.0), ("b", 1.0))}
    for other, words in (("b", "and 3 more statistics."), ("a", "No noise is added")):
        pair = {"a": worlds["a"], "b": worlds[other]}
        scenario = Scenario.from_worlds(pair, query=query, source="public_model")
        target = Guarantee.unsliced(order=4, epsilon=1.0)
        certify_release(scenario, target).save(tmp_path / f"{other}.json")
        assert words in text_of(label_page([tmp_path / f"{other}.json"]))


def test_hostile_names_are_text(profile, tmp_path):
    table = made_table(column="<img src=x>", groups=("<script>", '"><b>', "w"))
    held = certify_release(made_scenario(table, column="<img src=x>"), JOINT.along(profile))
    held.save(tmp_path / "c.json")
    page = label_page([tmp_path / "c.json"]).decode()
    assert not {"<img", "<script", "<b>"} & set(re.findall(r"<\w+>?", page))
    assert "&lt;img src=x&gt;" in page
