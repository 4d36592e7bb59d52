# SPDX-License-Identifier: Apache-2.0
"""Pages and labels about a budget."""

import pytest
from tests.certificate.test_budget import GUESS, PARTS, SHARES

from pufferslice import certify_budget
from pufferslice.report.page import internal_page, label_page, public_page

EDITIONS = {"internal": internal_page, "public": public_page, "label": label_page}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("budget") / "budget.json"
    certify_budget(PARTS, GUESS, shares=SHARES).save(file)
    return file


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_edition_says_what_is_promised(path, edition):
    page = EDITIONS[edition]([path]).decode()
    assert "sees all outputs of this budget guesses right at most 64\u00a0%" in page
    assert "yearbook" in page
    assert "ill = yes" in page
    assert "another budget or certificate about the same secret is not covered" in page


def test_the_public_page_does_not_depend_on_the_evidence(path, tmp_path):
    alone = tmp_path / "budget.json"
    alone.write_bytes(path.read_bytes())
    assert public_page([alone]) == public_page([path])


def test_the_page_lists_the_parts_and_the_reserve(path):
    page = internal_page([path]).decode()
    assert "12 periods of 150 to 180 fresh rows" in page
    assert "Without the reserve" in page
    assert "Batches are drawn afresh" in page
