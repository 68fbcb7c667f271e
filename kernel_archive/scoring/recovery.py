"""Compute how much of the best speedup a budget finds when the forecasts choose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kernel_archive.scoring.arrays import Bools, Floats, Ints, group_ties, product, running

#: Budgets of speedup recovered, in percent of a task's candidates.
BUDGETS: Final = (1, 5, 10, 25, 50)
#: Budgets of the recovery curve.
CURVE: Final = tuple(range(1, 101))


def budget_ranks(n: ArrayLike, budgets: tuple[int, ...] = BUDGETS) -> NDArray[np.intp]:
    """Count the candidates of n that budgets in whole percent measure: max(1, ceil(c n / 100)).

    >>> budget_ranks(80).tolist()
    [1, 4, 8, 20, 40]
    """
    counts: Ints = -(np.multiply.outer(np.negative(budgets), n) // 100)
    return np.maximum(1, counts, dtype=np.intp)


def fastest_tenth(speedups: Floats) -> Bools:
    """Say which of n rows are among the fastest tenth, ties included: shape (n,).

    >>> fastest_tenth(np.array([1.0, 3.0, 2.0, 3.0])).tolist()
    [False, True, False, True]
    """
    least = np.sort(speedups)[-budget_ranks(len(speedups), (10,))[0]]
    return np.asarray(speedups >= least)


def _drawn_places(counts: Ints) -> Ints:
    """Spread drawn rows out: shape (m, D), ascending; n fills the draws of fewer rows.

    ``counts`` has shape (n, D), how often each row is in each draw.
    """
    n, n_draws = counts.shape
    small = np.int16 if n < 2**15 else np.int32
    drawn = np.repeat(np.tile(np.arange(n, dtype=small), n_draws), counts.T.ravel())
    sizes = counts.sum(axis=0)
    places = np.full((n_draws, max(1, int(sizes.max(initial=0)))), n, dtype=small)
    places[np.arange(places.shape[1]) < sizes[:, None]] = drawn
    return np.ascontiguousarray(places.T)


def recovered_at(
    *,
    expected: Floats,
    speedups: Floats,
    weights: Floats,
    budgets: tuple[int, ...] = BUDGETS,
) -> Floats:
    """Compute the speedup recovered from n candidates at K budgets, in percent: shape (K, D).

    The candidates with the largest expected speedup are measured; the value is 100 times their best
    measured speedup over the best of the whole set. A tie at the cut counts with its exact
    expectation over random orders; copies of a row tie. NaN where no row was drawn.

    >>> expected, speedups = np.array([3.0, 1.0, 2.0]), np.array([1.0, 4.0, 2.0])
    >>> every = np.ones((3, 1))
    >>> recovered_at(expected=expected, speedups=speedups, weights=every, budgets=(33, 66, 100)).T
    array([[ 25.,  50., 100.]])
    """
    group = group_ties(-expected)
    order = np.lexsort((-speedups, group))
    drawn = weights[order].astype(np.intp)
    places, sizes = _drawn_places(drawn), drawn.sum(axis=0)
    ordered = np.append(speedups[order], 0.0)
    best = running(np.maximum, ordered[places])
    whole = best[-1].copy()
    ends = np.cumsum(np.bincount(group))
    # Inside a group the speedups are sorted: they differ when its first and last do.
    mixed = np.append(ordered[np.append(0, ends[:-1])] != ordered[ends - 1], False)
    if mixed.any():
        labels = np.append(group[order], len(ends))
        cuts = np.unique(budget_ranks(np.flatnonzero(np.bincount(sizes)), budgets))
        for rank, draw, expected_best in _tie_expectations(
            best, ordered, places, labels, mixed, cuts
        ):
            best[rank, draw] = expected_best
    # The ratio first: the best candidate gives exactly 100.
    with np.errstate(invalid="ignore"):
        ratio: Floats = np.take_along_axis(best, budget_ranks(sizes, budgets) - 1, axis=0) / whole
    return 100.0 * ratio


def best_of_draws(size: int, drawn: Ints) -> Floats:
    """Compute P(the j-th best of ``size`` is the best of r drawn), for K numbers r: (K, size).

    C(size-j, r-1) / C(size, r) without replacement, as a running product that neither overflows nor
    cancels.
    """
    j = np.arange(size)
    r = np.asarray(drawn)[:, None]
    missed = np.ones((len(r), size))
    np.cumprod((size - r - j[:-1]).clip(0) / (size - j[:-1]), axis=1, out=missed[:, 1:])
    missed *= (r / (size - j)).clip(max=1.0)
    return missed


def _tie_expectations(
    best: Floats, ordered: Floats, places: Ints, labels: Ints, mixed: Bools, cuts: Ints
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield ranks, draws, and the best there: its expectation over random orders of a tie group.

    ``best``, shape (m, D), is of the first k candidates. ``places``, shape (m, D),
    are the drawn places in the order of ``ordered`` speedups and tie-group ``labels``, shape (n,);
    ``mixed``, shape (G,), are groups of unequal speedups: of no others does the order matter.
    ``cuts`` are the ranks that will be asked for, ascending.
    """
    m, n_draws = places.shape
    cells = labels[places] * n_draws + np.arange(n_draws)
    sizes = np.bincount(cells.ravel(), minlength=len(mixed) * n_draws).reshape(-1, n_draws)
    first = (np.cumsum(sizes, axis=0) - sizes)[mixed]
    sizes = sizes[mixed]
    # A group matters in the draws in which an asked rank cuts it: first < rank < first + size.
    up_to = np.searchsorted(cuts, np.arange(m + 1), side="right")
    below = np.searchsorted(cuts, np.arange(m + 1), side="left")
    group, draw = np.nonzero(up_to[first] < below[first + sizes])
    begin, size = first[group, draw], sizes[group, draw]
    above = np.where(begin > 0, best[begin - 1, draw], 0.0)
    for many in _distinct(size):
        part = np.flatnonzero(size == many)
        start, column = begin[part], draw[part]
        rows = start + np.arange(many)[:, None]
        candidates = np.maximum(ordered[places[rows, column]], above[part])
        left = (cuts[:, None] - start).ravel()
        left = np.array(_distinct(left[(left > 0) & (left < many)]), np.intp)
        chances = best_of_draws(many, left)
        yield start + left[:, None] - 1, column, product(chances, candidates)


def _distinct(counts: Ints) -> list[int]:
    """List the distinct numbers of rows, ascending; to sort many counts would take far longer."""
    distinct: list[int] = np.flatnonzero(np.bincount(counts)).tolist()
    return distinct


def recovery_area(*, curve: Floats) -> Floats:
    """Average the height of a recovery curve, shape (100, ...), by the trapezoid rule, percent."""
    area: Floats = (curve[:-1] + curve[1:]).sum(axis=0) / (2 * (len(curve) - 1))
    return area
