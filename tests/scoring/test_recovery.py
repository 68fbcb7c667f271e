"""Speedup recovered: ties against brute force, budgets, curves."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.scoring.recovery import (
    BUDGETS,
    CURVE,
    best_of_draws,
    budget_ranks,
    recovered_at,
    recovery_area,
)


def recovered(expected, speedups, budgets=BUDGETS):
    """Speedup recovered when every row is drawn once."""
    rows = {"expected": np.array(expected), "speedups": np.array(speedups)}
    return recovered_at(**rows, budgets=budgets, weights=np.ones((len(speedups), 1)))[:, 0]


def brute_force(expected, speedups, k):
    """Mean over every order of the rows: sort by S^, order decides ties, take the best of the first
    k.
    """
    values = []
    for order in itertools.permutations(range(len(expected))):
        ranked = sorted(order, key=lambda i: -expected[i])
        values.append(max(speedups[i] for i in ranked[:k]))
    return 100 * float(np.mean(values)) / max(speedups)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=6), st.data())
def test_ties_by_brute_force_on_any_small_case(rows, data):
    """Hypothesis looks for a case in which the closed form and all orders differ."""
    expected, speedups = [float(r[0]) for r in rows], [float(r[1]) for r in rows]
    k = data.draw(st.integers(1, len(rows)))
    got = recovered(expected, speedups, (100 * k // len(rows),))
    assert got == pytest.approx(brute_force(expected, speedups, k), rel=1e-12)


@pytest.mark.parametrize(("size", "drawn"), [(1, 1), (5, 1), (5, 5), (6, 3), (40, 7)])
def test_chances_of_the_best_of_a_draw(size, drawn):
    """C(size - j, drawn - 1) / C(size, drawn), which sums to 1."""
    exact = [math.comb(size - j, drawn - 1) / math.comb(size, drawn) for j in range(1, size + 1)]
    chances = best_of_draws(size, np.array([drawn]))[0]
    np.testing.assert_allclose(chances, exact, rtol=1e-12, atol=1e-300)
    assert chances.sum() == pytest.approx(1.0, abs=1e-12)


def test_a_large_tie_is_its_expectation(rng):
    """Thousands of rows that all tie, or tie in two groups."""
    speedups = np.exp2(rng.normal(0, 1.3, 3000))
    ordered = np.sort(speedups)[::-1]
    whole = best_of_draws(3000, budget_ranks(3000, CURVE)) @ ordered / ordered[0] * 100
    found = recovered(np.ones(3000), speedups, CURVE)
    np.testing.assert_allclose(found, whole, rtol=1e-13)
    half = np.arange(3000) < 1500
    found = recovered(np.where(half, 2.0, 1.0), speedups, (50,))
    assert found[0] == pytest.approx(100 * speedups[half].max() / ordered[0])


@pytest.mark.parametrize(
    ("n", "ranks"),
    [
        (80, [1, 4, 8, 20, 40]),
        (79, [1, 4, 8, 20, 40]),
        (1, [1] * 5),
        (3, [1, 1, 1, 1, 2]),
        (100, [1, 5, 10, 25, 50]),
    ],
)
def test_budgets_are_counted_in_integers(n, ranks):
    """max(1, ceil(c n / 100)): 5 % of 80 is 4, never 5 by a rounding."""
    assert budget_ranks(n).tolist() == ranks


def test_a_perfect_forecast_recovers_exactly_everything_and_a_rounding_is_no_ranking():
    """100.0 to the last bit; S^ that differ in the last bit tie."""
    assert recovered([0.1, 7.3, 2.2], [0.1, 7.3, 2.2], (1,)).tolist() == [100.0]
    assert recovered([0.1 + 0.2, 0.3], [1.0, 3.0], (1,)) == pytest.approx(200 / 3, rel=1e-12)


def test_the_area_by_hand():
    """Trapezoids over budgets: the mean height of a straight line is its middle, of a constant
    itself.
    """
    assert recovery_area(curve=np.linspace(1, 100, 100)) == pytest.approx(50.5)
    assert recovery_area(curve=np.full(100, 42.0)) == pytest.approx(42.0)
    assert recovery_area(curve=np.array([0.0, 10.0, 0.0])) == pytest.approx(5.0)
