# SPDX-License-Identifier: Apache-2.0
"""Compiled products are those of float64, stay in place, and have norms that are no smaller."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferslice.torch import products as products_module
from pufferslice.torch import tiles
from pufferslice.torch.products import are_compiled, convolution_products, token_products
from pufferslice.torch.tiles import LANES, ROWS, VECTORS

N = 3
BITS = st.integers(0, 2**32 - 1)
GUARD = 64


def guarded(shape):
    """An array inside a larger one of a number that no product writes."""
    size = math.prod(shape)
    whole = np.full(size + 2 * GUARD, 777.0, dtype=np.float32)
    return whole, whole[GUARD : GUARD + size].reshape(shape)


def untouched(whole):
    return (whole[:GUARD] == 777).all() and (whole[-GUARD:] == 777).all()


def singles(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def check_norms(products, norms):
    """At least the exact norms of what was written, and hardly more."""
    for rows, norm in zip(products.reshape(len(norms), -1), norms, strict=True):
        exact = sum(Fraction(float(value)) ** 2 for value in rows)
        assert exact <= Fraction(float(norm)) ** 2 <= exact * (1 + Fraction(1, 2**36))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 40, 256, 257, 600]),
    st.integers(1, 2 * ROWS + 1),
    st.integers(1, VECTORS + 2),
    BITS,
)
def test_products_over_tokens(n_tokens, n_out, n_vectors, bits):
    rng, n_in = np.random.default_rng(bits), n_vectors * LANES
    left, right = singles(rng, N, n_tokens, n_out), singles(rng, N, n_tokens, n_in)
    whole, products = guarded((N, n_out, n_in))
    norms = np.empty(N)
    token_products(left, right, products, norms)
    expected = np.einsum("nto,nti->noi", left.astype(float), right.astype(float))
    sizes = np.einsum("nto,nti->noi", abs(left).astype(float), abs(right).astype(float))
    # 256 terms one by one, then three such sums
    assert (abs(products - expected) <= (min(n_tokens, 256) + 3) * 2.0**-24 * sizes).all()
    assert untouched(whole)
    check_norms(products, norms)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (3, 3)]),
    st.sampled_from([(0, 0), (1, 1), (2, 0), (0, 1)]),
    st.sampled_from([(1, 1), (3, 3), (2, 3), (3, 1)]),
    st.integers(1, ROWS + 2),
    BITS,
)
def test_products_of_convolutions(stride, padding, kernel, n_out, bits):
    rng = np.random.default_rng(bits)
    images = torch.from_numpy(singles(rng, N, LANES, 9, 7))
    weight = torch.zeros(n_out, LANES, *kernel, dtype=torch.float64, requires_grad=True)
    made = torch.conv2d(images.double(), weight, stride=stride, padding=padding)
    gradients = torch.from_numpy(singles(rng, *made.shape))
    whole, products = guarded((N, n_out, *kernel, LANES))
    norms = np.empty(N)
    convolution_products(images.numpy(), gradients.numpy(), (stride, padding), products, norms)
    for i in range(N):
        (expected,) = torch.autograd.grad(made[i], weight, gradients[i].double(), retain_graph=True)
        found = torch.from_numpy(products[i]).permute(0, 3, 1, 2).double()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert untouched(whole)
    check_norms(products, norms)


def test_large_images_are_summed_in_parts():
    """One by one in single precision, the last of 90,000 equal terms lose their digits."""
    images = np.full((1, LANES, 300, 300), 1.0, dtype=np.float32)
    gradients = np.full((1, 1, 300, 300), np.float32(0.1), dtype=np.float32)
    products, norms = np.empty((1, 1, 1, 1, LANES), dtype=np.float32), np.empty(1)
    convolution_products(images, gradients, ((1, 1), (0, 0)), products, norms)
    assert products.ravel() == pytest.approx(90_000 * float(np.float32(0.1)), rel=2e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_with_its_example(bad, rng):
    left, right = singles(rng, N, 5, 4), singles(rng, N, 5, LANES)
    left[1, 0, 0] = bad
    products, norms = np.empty((N, 4, LANES), dtype=np.float32), np.empty(N)
    token_products(left, right, products, norms)
    assert np.isfinite(norms).tolist() == [True, False, True]
    assert np.isfinite(products[[0, 2]]).all()


def test_an_example_has_the_same_bits_beside_other_examples(rng):
    left, right = singles(rng, N, 70, 5), singles(rng, N, 70, 2 * LANES)
    together = np.empty((N, 5, 2 * LANES), dtype=np.float32)
    alone = np.empty((1, 5, 2 * LANES), dtype=np.float32)
    token_products(left, right, together, np.empty(N))
    token_products(left[1:2], right[1:2], alone, np.empty(1))
    assert np.array_equal(alone[0], together[1])


def test_products_are_compiled_for_single_precision_and_whole_vectors():
    assert are_compiled(torch.zeros(1), 2 * LANES)
    assert not are_compiled(torch.zeros(1), LANES + 1)
    assert not are_compiled(torch.zeros(1).double(), LANES)
    assert not are_compiled(torch.zeros(1, device="meta"), LANES)


def test_products_are_left_to_torch_where_numba_makes_no_code(monkeypatch):
    monkeypatch.setattr(products_module, "_HAS_CODE", False)
    assert not are_compiled(torch.zeros(1), 2 * LANES)


def unknown():
    msg = "Unable to determine host CPU features"
    raise RuntimeError(msg)


@pytest.mark.parametrize(
    ("features", "n_lanes"),
    [(unknown, 8), (lambda: {"avx512f": False}, 8), (lambda: {"avx512f": True}, 16)],
)
def test_vectors_are_as_long_as_the_processor_has_them(features, n_lanes, monkeypatch):
    monkeypatch.setattr(tiles.llvmlite.binding, "get_host_cpu_features", features)
    assert tiles.n_lanes() == n_lanes
