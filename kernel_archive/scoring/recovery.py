"""Speedup recovered: how much of the best speedup a measuring budget finds when the forecasts choose."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.arrays import group_ties, product, running

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernel_archive.scoring.arrays import Bools, Floats, Ints

#: Budgets of speedup recovered, in percent of a task's candidates.
BUDGETS: Final = (1, 5, 10, 25, 50)
#: Budgets of the recovery curve.
CURVE: Final = tuple(range(1, 101))
#: Tie groups of up to so many rows use a kept table of chances; larger ones only the ranks that are asked for.
_TABLE: Final = 160
#: exp of minus this is far below the rounding of a sum.
_NEGLIGIBLE: Final = 42.0


def budget_ranks(n: int, budgets: tuple[int, ...] = BUDGETS) -> NDArray[np.intp]:
    """How many of n candidates each budget (in whole percent) measures: max(1, ceil(c n / 100)), in integers.

    >>> budget_ranks(80).tolist()
    [1, 4, 8, 20, 40]
    """
    return np.array([max(1, -(-c * n // 100)) for c in budgets], dtype=np.intp)


def _places(order: Ints, picks: Ints | None) -> Ints:
    """Places of the picked rows in an order, ascending down each draw: shape (m, D); those of every row once without picks."""
    small = np.int16 if len(order) < 2**15 else np.int32
    place = np.empty(len(order), dtype=small)
    place[order] = np.arange(len(order), dtype=small)
    return np.sort(place[np.arange(len(order))[None, :] if picks is None else picks], axis=1).T


def recovered_at(*, expected: Floats, speedups: Floats, ranks: Ints, picks: Ints | None = None) -> Floats:
    """Speedup recovered in one candidate set after so many measurements, in percent.

    The k candidates with the largest expected speedup are measured; the value is 100 times their best measured
    speedup over the best of the whole set. A tie at the cut counts with its exact expectation over random orders.

    Args:
        expected: shape (n,), S^ in x.
        speedups: shape (n,), measured, in x.
        ranks: shape (K,), numbers of candidates k to measure, 1 to m.
        picks: shape (D, m), the m rows of every draw; every row once when not given. Copies of a row tie.

    Returns:
        shape (K, D), or (K,) without picks.

    >>> recovered_at(expected=np.array([3.0, 1.0, 2.0]), speedups=np.array([1.0, 4.0, 2.0]), ranks=np.array([1, 2, 3]))
    array([ 25.,  50., 100.])
    >>> recovered_at(expected=np.ones(2), speedups=np.array([1.0, 3.0]), ranks=np.array([1]))  # (100/3 + 100) / 2
    array([66.66666667])
    """
    group = group_ties(-expected)
    order = np.lexsort((-speedups, group))
    places = np.ascontiguousarray(_places(order, picks))
    ordered, labels = speedups[order], group[order]
    found = running(np.maximum, ordered[places])
    best = found[-1].copy()
    ends = np.cumsum(np.bincount(labels))
    # Inside a group the speedups are sorted: they differ when its first and last do.
    mixed = ordered[np.append(0, ends[:-1])] != ordered[ends - 1]
    if mixed.any():
        _expect_ties(found, ordered, places, labels, mixed, np.unique(ranks))
    # The ratio first: the best candidate gives exactly 100.
    out: Floats = found[ranks - 1] / best
    out *= 100.0
    return out[:, 0] if picks is None else out


def recovered_at_random(*, speedups: Floats, ranks: Ints, picks: Ints | None = None) -> Floats:
    """What so many measurements recover in random order, in percent: the expectation, exact.

    Args:
        speedups: shape (n,), measured, in x.
        ranks: shape (K,), numbers of candidates k to measure, 1 to m.
        picks: shape (D, m), the m rows of every draw; every row once when not given.

    Returns:
        shape (K, D), or (K,) without picks.

    >>> recovered_at_random(speedups=np.array([1.0, 3.0]), ranks=np.array([1, 2])).round(4).tolist()  # (100/3 + 100) / 2
    [66.6667, 100.0]
    """
    order = np.argsort(-speedups, kind="stable")
    found = speedups[order][_places(order, picks)]
    out: Floats = 100.0 * _expected_best(ranks, found / found[0])
    return out[:, 0] if picks is None else out


def best_of_draws(size: int, drawn: Ints, width: int | None = None) -> Floats:
    """P(the j-th best is the best drawn), when so many of ``size`` are drawn without replacement: shape (K, width).

    C(size-j, drawn-1) / C(size, drawn) for j up to ``width`` (the size, when not given) and every one of the K numbers drawn,
    as a running product that neither overflows nor cancels.

    >>> best_of_draws(3, np.array([2])).round(6).tolist()
    [[0.666667, 0.333333, 0.0]]
    """
    j = np.arange(size if width is None else width)
    r = np.asarray(drawn)[:, None]
    missed = np.ones((len(r), len(j)))
    np.cumprod((size - r - j[:-1]).clip(0) / (size - j[:-1]), axis=1, out=missed[:, 1:])
    missed *= (r / (size - j)).clip(max=1.0)
    return missed


def _expected_best(drawn: Ints, values: Floats) -> Floats:
    """Expected best of so many, shape (K,) and ascending, drawn from falling values, shape (size, D): shape (K, D).

    All of the first j are missed with a chance of at most exp(-j drawn / size): what lies behind the first
    :data:`_NEGLIGIBLE` * size / drawn of them adds less than rounding does.
    """
    size = len(values)
    if size <= _TABLE:
        return product(best_of_draws(size, drawn), values)
    out = np.empty((len(drawn), values.shape[1]))
    # In octaves of the number drawn, each as wide as its first needs.
    octaves = np.flatnonzero(np.diff(np.log2(drawn).astype(int))) + 1
    for part in np.split(np.arange(len(drawn)), octaves) if len(drawn) else ():
        width = min(size, int(_NEGLIGIBLE * size / drawn[part[0]]) + 1)
        out[part] = product(best_of_draws(size, drawn[part], width), values[:width])
    return out


@lru_cache(maxsize=512)
def _chances(size: int) -> Floats:
    """P(the j-th best is the best of r drawn), shape (size, size): row r - 1, column j - 1."""
    return best_of_draws(size, np.arange(1, size + 1))


def _expect_ties(found: Floats, ordered: Floats, places: Ints, labels: Ints, mixed: Bools, asked: Ints) -> None:
    """Replace the best found inside tie groups by its expectation over random orders of each group.

    Args:
        found: shape (m, D), best of the first k candidates; changed in place.
        ordered: shape (n,), speedups in order.
        places: shape (m, D), the drawn places in that order, sorted.
        labels: shape (n,), tie groups in that order, from 0 to G - 1.
        mixed: shape (G,), groups of unequal speedups: of no others does the order matter.
        asked: the ranks that will be asked for, ascending.
    """
    m, n_draws = places.shape
    cells = labels[places] * n_draws + np.arange(n_draws)
    held = np.bincount(cells.ravel(), minlength=len(mixed) * n_draws).reshape(-1, n_draws)
    first = (np.cumsum(held, axis=0) - held)[mixed]
    held = held[mixed]
    # Where a rank asked for cuts a group: how many candidates that holds in this draw, and how many come before it.
    up_to, below = (np.searchsorted(asked, np.arange(m + 1), side=side) for side in ("right", "left"))
    group, draw = np.nonzero(up_to[first] < below[first + held])
    begin, size = first[group, draw], held[group, draw]
    above = np.where(begin > 0, found[begin - 1, draw], 0.0)
    by_size = np.argsort(size, kind="stable")
    for part in np.split(by_size, np.flatnonzero(np.diff(size[by_size])) + 1) if len(size) else ():
        many = int(size[part[0]])
        at, column = begin[part], draw[part]
        rows = at + np.arange(many)[:, None]
        candidates = np.maximum(ordered[places[rows, column]], above[part])
        if many <= _TABLE:
            found[rows, column] = product(_chances(many), candidates)
            continue
        left = asked[:, None] - at
        taken = np.unique(left[(left > 0) & (left < many)])
        found[at + taken[:, None] - 1, column] = _expected_best(taken, candidates)


def recovery_area(*, curve: Floats) -> Floats:
    """Mean height of a recovery curve by the trapezoid rule, in percent: shape (...,).

    The difference of two areas is the area-averaged difference in percentage points.

    Args:
        curve: shape (100, ...), speedup recovered at budgets of 1 to 100 %.

    >>> float(recovery_area(curve=np.linspace(1, 100, 100)))
    50.5
    """
    area: Floats = (curve[:-1] + curve[1:]).sum(axis=0) / (2 * (len(curve) - 1))
    return area
