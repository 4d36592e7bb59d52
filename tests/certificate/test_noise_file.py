# SPDX-License-Identifier: Apache-2.0
"""The public file of a large matrix of noise: what needs it, and what does not fit it."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pufferslice import Certificate, Guarantee, Scenario, certify_release, queries, release, verify
from pufferslice.certificate import new_key_pair, sign
from pufferslice.certificate.certificate import noise_path
from pufferslice.certificate.release import MOST_STATED
from pufferslice.certificate.statement import read_statement
from pufferslice.cli.app import app
from pufferslice.errors import CertificateError, StorageError
from pufferslice.report.page import public_page
from pufferslice.sensitivity.whitening import Shape

N_CELLS = 101
RNG = np.random.default_rng(4)
TABLE = pa.table({"k": ["u", "v"] * 400, "x": RNG.integers(0, N_CELLS, 800)})


def certified(shape="fitted", n_cells=N_CELLS):
    query = queries.contingency_table({"x": list(range(n_cells))})
    scenario = Scenario.from_prevalence(
        TABLE, column="k", value="u", within=0.1, query=query, source="held_out"
    )
    return scenario, certify_release(scenario, Guarantee.guess(at_most=0.64), shape=shape)


@pytest.fixture(scope="module")
def fitted():
    return certified()


@pytest.fixture
def saved(fitted, tmp_path):
    fitted[1].save(tmp_path / "c.json")
    return tmp_path / "c.json"


def test_a_small_matrix_is_stated(tmp_path):
    _, certificate = certified(n_cells=100)
    assert np.size(certificate.statement.noise.shape.whitening) == MOST_STATED
    certificate.save(tmp_path / "c.json")
    assert not noise_path(tmp_path / "c.json").exists()


def test_the_statement_has_the_digest_alone(fitted, saved):
    scenario, certificate = fitted
    stated = json.loads(saved.read_bytes())["statement"]["noise"]["shape"]
    assert stated["whitening"] is None
    assert stated["whitening_digest"] == certificate.shape.digest()
    loaded = Certificate.load(saved)
    assert loaded.shape == certificate.shape
    assert loaded.digest == certificate.digest
    assert verify(loaded).holds
    assert verify(loaded, scenario=scenario).holds
    assert "correlated" in str(loaded)


def test_a_diagonal_is_stored_as_such(tmp_path):
    _, certificate = certified("diagonal")
    certificate.save(tmp_path / "c.json")
    with np.load(noise_path(tmp_path / "c.json")) as file:
        assert file["whitening"].shape == (N_CELLS,)
    loaded = Certificate.load(tmp_path / "c.json")
    assert loaded.shape == certificate.shape
    assert "no correlation" in str(loaded)


def test_release_signature_and_page(fitted, saved, tmp_path):
    scenario, _ = fitted
    private, public = new_key_pair()
    signed = sign(Certificate.load(saved), private)
    signed.save_statement(tmp_path / "signed.json")
    again = Certificate.load(tmp_path / "signed.json")
    assert again.shape == signed.shape
    assert verify(signed, public_key=public).holds
    released = release(
        scenario, TABLE, Certificate.load(saved), ledger=tmp_path / "l", out=tmp_path / "r.json"
    )
    stds = signed.shape.stds(signed.noise_std) * scenario.query.scales
    np.testing.assert_allclose(released.noise_stds, stds, rtol=1e-9)
    assert public_page([saved, tmp_path / "r.json"])


@pytest.mark.parametrize("command", [["verify"], ["report", "--public", "--out", "page.html"]])
def test_commands(saved, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *options = command
    result = CliRunner().invoke(app, [name, str(saved), *options])
    assert result.exit_code == 0, result.output


def test_without_the_file(fitted, saved):
    noise_path(saved).unlink()
    with pytest.raises(CertificateError, match=r"matrix.*noise\.npz"):
        Certificate.load(saved)
    with pytest.raises(CertificateError, match="missing"):
        Certificate.from_json(fitted[1].to_json())


def edited(values):
    file = io.BytesIO()
    np.savez(file, whitening=values)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda packed: edited(packed * (1 + 1e-12)), "digest differs"),
        (lambda packed: edited(packed[1:]), "diagonal or its lower triangle"),
        (lambda packed: edited(np.full_like(packed, np.nan)), "finite"),
        (lambda _: b"no archive", "damaged"),
        (lambda _: edited([])[:-30], "damaged"),
    ],
)
def test_another_file(fitted, saved, content, words):
    noise_path(saved).write_bytes(content(fitted[1].shape.packed))
    with pytest.raises(CertificateError, match=words):
        Certificate.load(saved)


def test_a_file_that_nobody_asked_for_is_not_read(tmp_path):
    _, certificate = certified(n_cells=20)
    certificate.save(tmp_path / "c.json")
    noise_path(tmp_path / "c.json").write_bytes(b"")
    assert Certificate.load(tmp_path / "c.json").digest == certificate.digest


def test_another_shape_in_the_evidence_is_refused(fitted, saved, tmp_path):
    scenario, certificate = fitted
    other = Shape(whitening=certificate.shape.whitening * np.linspace(1, 2, N_CELLS)[:, None])
    statement = certificate.statement.to_json()
    statement["noise"]["shape"]["whitening_digest"] = other.digest()
    forged = Certificate(
        statement=read_statement(statement), evidence=certificate.evidence, noise=other
    )
    assert not verify(forged).holds
    assert not verify(forged, scenario=scenario).holds
    with pytest.raises(Exception, match="another shape"):
        release(scenario, TABLE, forged, ledger=tmp_path / "l")


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_packing(dim):
    triangle = np.tril(RNG.uniform(0.5, 1.0, (dim, dim)))
    for matrix in (triangle, np.diag(np.diagonal(triangle))):
        shape = Shape(whitening=matrix)
        again = Shape.of_packed(shape.packed, dim)
        assert again == shape
        assert again.digest() == shape.digest()
        assert len(shape.packed) in {dim, dim * (dim + 1) // 2}


@pytest.mark.parametrize("name", ["c.noise.npz", "c.evidence.npz"])
def test_names(name):
    with pytest.raises(StorageError, match="cannot name"):
        noise_path(name)
