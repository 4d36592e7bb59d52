# SPDX-License-Identifier: Apache-2.0
"""Norms are at least what they are, in exact fractions, and sums lie on their grid."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pufferslice.torch.contributions import (
    add_quantised,
    are_ordinary,
    row_norms,
    scaled,
    squared_row_norms,
    units,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def exact_square(row):
    return sum(Fraction(float(value)) ** 2 for value in row)


def check_bounds(rows):
    """At least the exact norms, and hardly more."""
    slack = 1 + Fraction(1, 2**40)
    for norm, square, row in zip(
        row_norms(rows).tolist(), squared_row_norms(rows).tolist(), rows.tolist(), strict=True
    ):
        exact = exact_square(row)
        assert exact <= Fraction(norm) ** 2 <= exact * slack
        if math.isfinite(square) and square > 1e-290:
            assert exact <= Fraction(square) <= exact * slack


def numbers(smallest, largest, width):
    return st.floats(-largest, largest, width=width).map(
        lambda value: 0.0 if abs(value) < smallest else value
    )


@pytest.mark.soundness
@settings(max_examples=100)
@given(st.lists(numbers(0.0, 2.0**127, 32), min_size=1, max_size=9))
@example([2.0**-149])
@example([2.0**-149, 2.0**127, 2.0**-70])
@example([1.0, 2.0**-27] * 4)
def test_norms_of_single_precision_are_upper_bounds(values):
    check_bounds(torch.tensor([values], dtype=torch.float32))


@pytest.mark.soundness
@settings(max_examples=100)
@given(st.lists(numbers(2.0**-900, 2.0**1000, 64), min_size=1, max_size=9))
@example([1e-163, 1e-170])
@example([1e200, 1e200, -1e180])
@example([1.0, 2.0**-27, 2.0**-53])
def test_norms_of_double_precision_are_upper_bounds_beyond_the_range_of_squares(values):
    check_bounds(torch.tensor([values], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_any_memory_layout(dtype, rng):
    values = torch.from_numpy(rng.normal(size=(5, 4, 3))).to(dtype)
    expected = values.double().square().sum((1, 2))
    layouts = (values, values.mT, values.flip(0).flip(0), values.repeat(1, 2, 1)[:, ::2])
    for rows in layouts[:3]:
        torch.testing.assert_close(squared_row_norms(rows), expected, rtol=1e-12, atol=0)
    twice = layouts[3].double().square().sum((1, 2))
    torch.testing.assert_close(squared_row_norms(layouts[3]), twice, rtol=1e-12, atol=0)


def test_rows_of_nothing_one_number_and_parameters():
    assert squared_row_norms(torch.zeros(2, 0)).tolist() == [0, 0]
    assert squared_row_norms(torch.zeros(2, 0, dtype=torch.float64)).tolist() == [0, 0]
    assert row_norms(torch.full((3, 1), -2.0)).tolist() == pytest.approx([2, 2, 2])
    assert row_norms(torch.ones(3, requires_grad=True)[:, None]).tolist() == pytest.approx([1] * 3)


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_small_terms_beside_a_large_one_are_not_lost(dtype):
    """In a running sum of single precision they would all vanish."""
    rows = torch.full((1, 100_001), 2.0**-13, dtype=dtype)
    rows[0, 0] = 2.0**13
    exact = Fraction(2) ** 26 + 100_000 * Fraction(2) ** -26
    (found,) = squared_row_norms(rows).tolist()
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_its_own_row(dtype, bad):
    rows = torch.ones(3, 4, dtype=dtype)
    rows[1, 2] = bad
    assert torch.isfinite(row_norms(rows)).tolist() == [True, False, True]


def test_the_norm_of_a_row_has_the_same_bits_beside_other_rows(rng):
    for dtype in (torch.float32, torch.float64):
        rows = torch.from_numpy(rng.normal(size=(6, 37))).to(dtype)
        others = torch.cat([rows[:1], rows[1:] * 1e20])
        assert torch.equal(row_norms(rows)[:1], row_norms(others)[:1])


def test_units_have_norm_one_and_zeros_stay():
    values = torch.tensor([[[3e-40, 4e-40]], [[0.0, 0.0]], [[3e37, -4e37]]])
    found = units(values, row_norms(values))
    assert found.dtype == torch.float64
    assert found[1].tolist() == [[0, 0]]
    assert found[2].flatten().tolist() == pytest.approx([0.6, -0.8], rel=1e-6)
    assert found[0].norm() == pytest.approx(1, rel=1e-6)


def test_ordinary_are_norms_that_keep_their_digits_in_single_precision():
    ones, weights = torch.ones(2).double(), torch.tensor([1.0, 1e-9]).double()
    assert are_ordinary(ones, ones, weights)
    assert are_ordinary(ones * 0, ones, weights)
    for size in (1e-30, 1e30, math.inf):
        extreme = torch.tensor([1.0, size]).double()
        assert not are_ordinary(extreme, ones, weights)
        assert not are_ordinary(ones, extreme, weights)
        # without weight it does not count
        assert are_ordinary(extreme, ones, torch.tensor([1.0, 0.0]).double())


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=5),
    st.sampled_from([1.0, 2.0**-44, 0.1, 3e-20]),
)
def test_sums_on_the_grid_come_back_as_their_numbers(numbers, step):
    sums = torch.tensor(numbers, dtype=torch.float64) * step
    integers = np.zeros(len(numbers), dtype=np.int64)
    add_quantised(sums, step, integers)
    assert np.abs(integers - np.array(numbers)).max() <= 1
    if max(map(abs, numbers)) < 2**50:
        assert integers.tolist() == numbers


@settings(max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), st.floats(1e-6, 1e3))
def test_sums_are_rounded_to_the_nearest_multiple(values, step):
    integers = np.zeros(len(values), dtype=np.int64)
    add_quantised(torch.tensor(values), step, integers)
    for value, integer in zip(values, integers.tolist(), strict=True):
        off = abs(Fraction(value) - integer * Fraction(step))
        assert off <= Fraction(step) / 2 + abs(Fraction(value)) / 2**52


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5),
    st.floats(2.0**-60, 2.0**10),
    st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_integers_are_scaled_in_double_precision_and_rounded_once_more(numbers, scale, dtype):
    integers = np.array(numbers, dtype=np.int64)
    expected = torch.from_numpy(integers.astype(np.float64) * scale).to(dtype)
    assert torch.equal(scaled(integers, scale, dtype), expected)


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_not_rounded_to_it(dtype, seed):
    torch.manual_seed(seed)
    rows = torch.randn(50, 300).to(dtype)
    exact = rows.double().square().sum(1).sqrt()
    assert (row_norms(rows) >= exact).all()
    torch.testing.assert_close(row_norms(rows), exact, rtol=1e-12, atol=0.0)
