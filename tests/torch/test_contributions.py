# SPDX-License-Identifier: Apache-2.0
"""Norms of contributions are never too small and sums never off by more than said, exactly."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nan

from pufferslice.learning import rounding_share
from pufferslice.torch.contributions import (
    Dense,
    Outer,
    Rows,
    Tokens,
    Weights,
    added,
    token_products,
)

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("dense", "outer", "tokens", "rows")
N_EXAMPLES, N_TOKENS, N_OUT, N_IN = 3, 2, 2, 3
BITS = st.integers(0, 2**32 - 1)
ORDINARY = st.integers(-4, 4)
ANY_EXPONENT = st.integers(-149, 127)


@st.composite
def float32s(draw, shape, exponents=ORDINARY):
    """Float32 numbers of the sizes that exponents say, denormal ones too; some are 0."""
    rng = np.random.default_rng(draw(BITS))
    mantissas = 1 + rng.integers(0, 2**23, shape) / 2**23
    signs = rng.choice([-1.0, 1.0, 1.0, 0.0], shape, p=[0.45, 0.3, 0.15, 0.1])
    n_scales = min(3, math.prod(shape))
    scales = np.array(draw(st.lists(exponents, min_size=n_scales, max_size=n_scales)))
    values = signs * mantissas * 2.0 ** rng.choice(scales, shape)
    return torch.from_numpy(values).float()


@st.composite
def contributions(draw, kind, exponents=ORDINARY):
    n = N_EXAMPLES
    if kind == "dense":
        return Dense(draw(float32s((n, N_OUT * N_IN), exponents)))
    if kind == "outer":
        # one exponent for each side: the products cover the range of float64 well enough
        return Outer(draw(float32s((n, N_OUT), exponents)), draw(float32s((n, N_IN), exponents)))
    if kind == "tokens":
        left = draw(float32s((n, N_TOKENS, N_OUT), exponents))
        return Tokens(left, draw(float32s((n, N_TOKENS, N_IN), exponents)))
    owners = torch.tensor([0, 0, 1, 2])
    rows = torch.tensor([0, 1, 1, 0])
    vectors = draw(float32s((4, N_IN), exponents))
    return Rows(owners=owners, rows=rows, vectors=vectors, n_examples=n, n_rows=N_OUT)


def fractions(tensor):
    return [[Fraction(float(value)) for value in row] for row in tensor.double().tolist()]


def exact_vectors(contribution):
    """What the contribution stands for, in fractions: one row per example."""
    if isinstance(contribution, Outer):
        pairs = zip(fractions(contribution.left), fractions(contribution.right), strict=True)
        return [[a * b for a in left for b in right] for left, right in pairs]
    if isinstance(contribution, Tokens):
        parts = [
            exact_vectors(Outer(contribution.left[:, t], contribution.right[:, t]))
            for t in range(contribution.left.shape[1])
        ]
        examples = zip(*parts, strict=True)
        return [[sum(entries) for entries in zip(*rows, strict=True)] for rows in examples]
    return fractions(contribution.dense())


def squared(vector):
    return sum(value * value for value in vector)


def clipping_weights(contribution, radius):
    """As the clipping makes them: radius over the norm, and over what rounding may move."""
    share = rounding_share(N_EXAMPLES)
    squares = contribution.squared_norms().numpy()
    radii = contribution.rounding_radii()
    bounds = np.sqrt(squares)
    if radii is not None:
        bounds = np.maximum(bounds, radii.numpy() / share)
    with np.errstate(divide="ignore"):
        return np.minimum(radius / (bounds * (1 + 2.0**-40)), 1.0)


def exact_sum(contribution, weights):
    rows = exact_vectors(contribution)
    return [
        sum(w * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(len(rows[0]))
    ]


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data())
def test_squared_norms_are_upper_bounds_and_close(kind, data):
    contribution = data.draw(contributions(kind, ANY_EXPONENT))
    squares = contribution.squared_norms()
    assert squares.dtype == torch.float64
    slack = Fraction(1) + Fraction(1, 2**45)
    for bound, vector, most in zip(
        squares.tolist(), exact_vectors(contribution), uncancelled(contribution), strict=True
    ):
        assert Fraction(bound) >= squared(vector)
        assert Fraction(bound) <= slack * squared(vector) + most / 2**40 + Fraction(1, 2**900)


def uncancelled(contribution):
    """What the norms of tokens would be without cancellation; 0 for all others."""
    if not isinstance(contribution, Tokens):
        return [0] * N_EXAMPLES
    pairs = zip(
        fractions(contribution.left.flatten(1)),
        fractions(contribution.right.flatten(1)),
        strict=True,
    )
    return [squared(left) * squared(right) for left, right in pairs]


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data(), st.sampled_from([1e-3, 0.1, 1.0, 37.0]))
def test_a_weighted_example_stays_within_the_radius_and_its_rounding_share(kind, data, radius):
    contribution = data.draw(contributions(kind, ANY_EXPONENT))
    assume(torch.isfinite(contribution.squared_norms()).all())
    exact = clipping_weights(contribution, radius)
    share = Fraction(rounding_share(N_EXAMPLES))
    for i in range(N_EXAMPLES):
        alone = np.zeros(N_EXAMPLES)
        alone[i] = exact[i]
        total = contribution.weighted_sum(Weights(torch.from_numpy(alone)))
        moved = squared([Fraction(value) for value in total.double().tolist()])
        assert moved <= (Fraction(radius) * (1 + share)) ** 2


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data(), st.sampled_from([1e-3, 0.1, 1.0, 37.0]))
def test_sums_are_off_by_no_more_than_a_share_of_the_radius_each(kind, data, radius):
    """With v_i the exact vector times its weight in the dtype of the sum, never above w_i."""
    contribution = data.draw(contributions(kind, ANY_EXPONENT))
    assume(torch.isfinite(contribution.squared_norms()).all())
    weights = Weights(torch.from_numpy(clipping_weights(contribution, radius)))
    total = contribution.weighted_sum(weights).double()
    assert torch.isfinite(total).all()
    counted = weights.exact if total_is_double(contribution) else weights.like(torch.zeros(1))
    expected = exact_sum(contribution, [Fraction(w) for w in counted.tolist()])
    off = squared([Fraction(a) - b for a, b in zip(total.tolist(), expected, strict=True)])
    assert off <= (N_EXAMPLES * Fraction(rounding_share(N_EXAMPLES)) * Fraction(radius)) ** 2


def total_is_double(contribution):
    return contribution.weighted_sum(Weights(torch.ones(N_EXAMPLES).double())).dtype == (
        torch.float64
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(st.data())
def test_ordinary_sums_are_off_by_ordinary_rounding(kind, data):
    """The default radius: block + 4 units in the last place of each weighted norm."""
    contribution = data.draw(contributions(kind))
    weights = Weights(torch.from_numpy(data.draw(weight_arrays())))
    total = contribution.weighted_sum(weights).double().tolist()
    counted = weights.exact if total_is_double(contribution) else weights.like(torch.zeros(1))
    counted = [Fraction(w) for w in counted.tolist()]
    expected = exact_sum(contribution, counted)
    off = squared([Fraction(a) - b for a, b in zip(total, expected, strict=True)])
    norms = [math.sqrt(squared(vector)) for vector in exact_vectors(contribution)]
    parts = sum(float(w) * norm for w, norm in zip(counted, norms, strict=True))
    if kind == "tokens":
        parts = float(weights.exact @ contribution.rounding_radii()) / (N_EXAMPLES + 4) * 2.0**24
    assert math.sqrt(off) <= (N_EXAMPLES + 4) * 2.0**-24 * parts * (1 + 1e-9)


def weight_arrays():
    weights = st.floats(0, 1, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    return st.lists(weights, min_size=N_EXAMPLES, max_size=N_EXAMPLES).map(np.array)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(st.data())
def test_dense_rows_are_the_vectors(kind, data):
    contribution = data.draw(contributions(kind))
    rows = contribution.dense()
    assert rows.shape == (N_EXAMPLES, N_OUT * N_IN)
    expected = torch.tensor([[float(x) for x in row] for row in exact_vectors(contribution)])
    torch.testing.assert_close(rows, expected, rtol=1e-6, atol=1e-4)


def test_rows_of_a_table_lie_where_their_numbers_say():
    contribution = Rows(
        owners=torch.tensor([0, 1, 1]),
        rows=torch.tensor([2, 0, 2]),
        vectors=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        n_examples=2,
        n_rows=3,
    )
    assert contribution.dense().tolist() == [[0, 0, 0, 0, 1, 2], [3, 4, 0, 0, 5, 6]]
    assert contribution.squared_norms().tolist() == pytest.approx([5, 86], rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [nan, math.inf, -math.inf])
@settings(max_examples=10)
@given(st.data())
def test_what_is_not_finite_shows_in_its_own_norm_only_and_can_be_masked(kind, bad, data):
    contribution = data.draw(contributions(kind))
    before = contribution.squared_norms().clone()
    spoilt = spoil(contribution, bad)
    squares = spoilt.squared_norms()
    assert not math.isfinite(squares[1])
    assert torch.equal(squares[[0, 2]], before[[0, 2]])
    kept = spoilt.masked(torch.isfinite(squares))
    assert kept.squared_norms()[1] == 0
    total = kept.weighted_sum(Weights(torch.tensor([1.0, 0.0, 1.0]).double()))
    clean = contribution.weighted_sum(Weights(torch.tensor([1.0, 0.0, 1.0]).double()))
    assert torch.equal(total, clean)


def spoil(contribution, bad):
    """The second example gets one entry that is not finite; the rest of it has no zeros."""
    if isinstance(contribution, Dense):
        return Dense(put(contribution.vectors, bad))
    if isinstance(contribution, Rows):
        vectors = contribution.vectors.clone()
        vectors[2, 0] = bad
        return Rows(contribution.owners, contribution.rows, vectors, N_EXAMPLES, N_OUT)
    right = contribution.right.clone()
    right[1] = right[1].masked_fill(right[1] == 0, 1.0)
    return type(contribution)(put(contribution.left, bad), right)


def put(values, bad):
    values = values.clone()
    values[1].view(-1)[0] = bad
    return values


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(st.data())
def test_the_norm_of_an_example_does_not_see_the_others(kind, data):
    contribution = data.draw(contributions(kind))
    other = data.draw(contributions(kind))
    mixed = with_first_of(contribution, other)
    assert torch.equal(mixed.squared_norms()[0], contribution.squared_norms()[0])
    if contribution.rounding_radii() is not None:
        assert torch.equal(mixed.rounding_radii()[0], contribution.rounding_radii()[0])


def with_first_of(one, other):
    """The first example of one, the rest of the other."""

    def joined(a, b, n_first=1):
        return torch.cat([a[:n_first], b[n_first:]])

    if isinstance(one, Dense):
        return Dense(joined(one.vectors, other.vectors))
    if isinstance(one, Rows):
        vectors = joined(one.vectors, other.vectors, 2)[:3]
        return Rows(one.owners[:3], one.rows[:3], vectors, N_EXAMPLES, N_OUT)
    return type(one)(joined(one.left, other.left), joined(one.right, other.right))


@pytest.mark.soundness
@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(-20, 20), BITS)
@example(54, 0, 7)
def test_tokens_that_cancel_keep_a_norm_that_is_large_enough(n_lost, exponent, bits):
    """Outer products that cancel but for their last bits: single precision would see nothing."""
    rng = np.random.default_rng(bits)
    left = torch.from_numpy(rng.normal(size=(1, 1, 3)) * 2.0**exponent).float()
    right = torch.from_numpy(rng.normal(size=(1, 1, 4))).float()
    nearly = (-right * (1 + 2.0**-n_lost)).float()
    tokens = Tokens(torch.cat([left, left], 1), torch.cat([right, nearly], 1))
    (vector,) = exact_vectors(tokens)
    (bound,) = tokens.squared_norms().tolist()
    assert Fraction(bound) >= squared(vector)
    (radius,) = tokens.rounding_radii().tolist()
    total = tokens.weighted_sum(Weights(torch.ones(1, dtype=torch.float64))).tolist()
    off = squared([Fraction(a) - b for a, b in zip(total, vector, strict=True)])
    assert off <= Fraction(radius) ** 2


@settings(max_examples=100)
@given(st.floats(0, 1))
@example(5.5e-42)
@example(2.0**-150 * 1.02)
@example(2.0**-126)
@example(2.0**-149 * 1.5)
@example(1.0)
def test_weights_in_single_precision_are_never_larger(weight):
    (rounded,) = Weights(torch.tensor([weight], dtype=torch.float64)).like(torch.zeros(1)).tolist()
    assert 0 <= rounded <= weight
    if weight > 2.0**-80:
        assert rounded >= weight * (1 - 2.0**-22)


def test_weights_in_double_precision_are_themselves():
    exact = torch.tensor([0.1, 1 / 3, 1.0], dtype=torch.float64)
    assert torch.equal(Weights(exact).like(torch.zeros(1, dtype=torch.float64)), exact)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((1, 4, 5), Outer), ((2, 64, 64), Tokens), ((30, 4, 5), Dense), ((8, 3, 3), Dense)],
)
def test_the_form_of_token_products_goes_by_their_shapes(shape, kind, rng):
    n_tokens, n_out, n_in = shape
    left = torch.from_numpy(rng.normal(size=(3, n_tokens, n_out))).float()
    right = torch.from_numpy(rng.normal(size=(3, n_tokens, n_in))).float()
    found = token_products(left, right)
    assert isinstance(found, kind)
    expected = torch.einsum("nto,nti->noi", left.double(), right.double()).flatten(1)
    torch.testing.assert_close(found.dense().double(), expected, rtol=1e-5, atol=1e-5)
    squares = expected.square().sum(1)
    torch.testing.assert_close(found.squared_norms(), squares, rtol=1e-5, atol=0)
    weights = torch.tensor([0.25, 0.0, 1.0], dtype=torch.float64)
    total = found.weighted_sum(Weights(weights)).double()
    torch.testing.assert_close(total, weights @ expected, rtol=1e-5, atol=1e-5)


def test_several_uses_of_a_parameter_add_up_example_by_example(rng):
    first = Outer(torch.ones(2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    second = Dense(torch.from_numpy(rng.normal(size=(2, 4))).float())
    both = added([first, second])
    assert torch.equal(both.dense(), first.dense() + second.vectors)
    assert added([first]) is first
    # the parts are left as they were
    assert torch.equal(first.dense()[0], torch.tensor([1.0, 2.0, 1.0, 2.0]))


def test_uses_that_cancel_leave_nothing():
    rows = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert added([Dense(rows), Dense(-rows)]).squared_norms().tolist() == [0, 0]
