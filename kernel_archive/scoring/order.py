"""Measure order: pairs in the right order, and discoveries that stand first.

Pairs lie inside one candidate set (a task and language), which a forecast orders by a key of whole
numbers, in which equal keys tie: :func:`order_keys`. A discovery is an edit that brings a speedup.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kernel_archive.bins import Scheme, scheme_of
from kernel_archive.scoring.arrays import Bools, Floats, Ints, group_ties, running
from kernel_archive.splits import SPLITS

#: A pair is a discovery when the child is at least this many times as fast as its parent.
CUTOFFS: Final = SPLITS["discovery"].cutoffs
#: Pairs whose speedups differ by no more than this factor don't count.
MIN_RATIO: Final = 1.05
#: Close pairs lie at most this far apart.
MAX_CLOSE_RATIO: Final = 2.0
#: A probability this near to 1/2 names no side: sums of eight numbers differ in their last digits.
SIDE_TOLERANCE: Final = 1e-9
#: Of a larger candidate set this many rows enter pairs, evenly spaced in order of row id.
MAX_ROWS: Final = 1_000
#: OpenBLAS splits a matrix product of more multiplications over threads, and waits for the slowest.
_ONE_THREAD: Final = 4 * 2**16
#: Whole numbers up to here are exact in 32 bits.
_EXACT: Final = 2**24


def order_keys(*, expected: Floats, stated: Floats) -> Ints:
    """Rank rows by expected speedup from 0 up, equal where they tie; a stated speedup orders ties.

    ``stated`` holds what a forecaster stated beside its bins, NaN where it stated none: there S^
    counts.

    >>> order_keys(expected=np.array([2.0, 1.0, 2.0]), stated=np.array([1.7, 9.0, 1.5])).tolist()
    [2, 0, 1]
    """
    first = group_ties(expected)
    second = group_ties(np.where(np.isnan(stated), expected, stated))
    _, keys = np.unique(first * len(first) + second, return_inverse=True)
    return np.asarray(keys)


def close_pairs(speedups: Floats, goals: Floats | None = None) -> Bools:
    """Say which pairs are at most 2x apart, and of one goal where goals are known: (n, n)."""
    ratio = np.divide.outer(speedups, speedups)
    close: Bools = (ratio <= MAX_CLOSE_RATIO) & (ratio >= 1.0 / MAX_CLOSE_RATIO)
    return close if goals is None else close & np.equal.outer(goals, goals)


class PairTable:
    """The pairs of one candidate set that count, ready to be counted in many draws."""

    def __init__(self, keys: Ints, speedups: Floats, spreads: Floats, goals: Floats | None) -> None:
        """Compare n rows by keys of shape (R, n); the others have shape (n,)."""
        n, m = len(speedups), min(len(speedups), MAX_ROWS)  # m of them enter pairs
        rows = np.linspace(0, n - 1, m).astype(np.intp)
        #: Positions of these, from the fastest to the slowest.
        self.rows = rows[np.argsort(-speedups[rows], kind="stable")]
        s, spread = speedups[self.rows], np.maximum(spreads[self.rows], MIN_RATIO)
        # The pairs that count: the upper half of a table of shape (m, m).
        apart = np.divide.outer(s, s) > np.maximum.outer(spread, spread)
        self.countable: Bools = np.triu(apart, 1)
        close = self.countable & close_pairs(s, None if goals is None else goals[self.rows])
        self.points = np.full((m, m), len(keys))
        for key in keys[:, self.rows]:
            self.points += np.sign(np.subtract.outer(key, key))
        # Over all repeats a right order scores 2, a tie 1: whole numbers, so that sums are exact.
        self._points_per_pair = 2.0 * len(keys)
        tables = [self.points * self.countable, self.countable, self.points * close, close]
        dtype = np.float32 if self._points_per_pair * m * m < _EXACT else np.float64
        self._tables: Floats = np.array(tables, dtype)

    def count(self, weights: Floats) -> Floats:
        """Count pairs in the right order (a tie half) and all, then close ones: shape (4, D).

        A row that is drawn twice (weights have shape (n, D)) makes its pairs twice; with itself it
        makes none.
        """
        drawn: Floats = weights[self.rows].astype(self._tables.dtype)
        width = max(1, _ONE_THREAD // len(self.rows) ** 2)
        parts = [drawn[:, k : k + width] for k in range(0, drawn.shape[1], width)]
        # w' A w of every table A
        forms: list[Floats] = [np.einsum("id,tid->td", w, self._tables @ w) for w in parts]
        counts = np.concatenate(forms, axis=1).astype(np.float64)
        counts[::2] /= self._points_per_pair
        return counts

    def count_right(self, within: Bools) -> tuple[float, int]:
        """Count those of some pairs that are in the right order (a tie half), and all of them."""
        chosen = self.countable & within
        return float(self.points[chosen].sum()) / self._points_per_pair, int(chosen.sum())


def shares_above(cutoff: float, scheme: Scheme) -> Floats:
    """Compute the share of each bin above a cutoff in x, log-uniform inside the bin: shape (8,).

    The cutoff lies in none of the open end bins.
    """
    edges = np.log2(scheme_of(scheme).edges)
    inner = (edges[1:] - np.log2(cutoff)) / np.diff(edges)
    return np.concatenate([[0.0], np.clip(inner, 0.0, 1.0), [1.0]])


def named_faster(*, above: Floats, speedups: Floats) -> Floats:
    """Score 1 where the forecast names the faster of two programs, 1/2 if it names none, else 0.

    ``above`` is Pr[S > 1], shape (R, n); S is the time of the first program over that of the
    second.
    """
    side = np.where(np.abs(above - 0.5) < SIDE_TOLERANCE, 0.0, np.sign(above - 0.5))
    return np.asarray(0.5 + 0.5 * side * np.sign(np.log(speedups)))


def precision_recall(*, scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """Compute precision and recall over the distinct scores, highest first; a tie is one step.

    >>> positive = np.array([True, False, True])
    >>> p, r = precision_recall(scores=np.array([0.9, 0.5, 0.5]), positive=positive)
    >>> p.round(4).tolist(), r.tolist()
    ([1.0, 0.6667], [0.5, 1.0])
    """
    group = group_ties(-scores)
    hits = np.cumsum(np.bincount(group, weights=positive))
    counts = np.cumsum(np.bincount(group))
    return hits / counts, hits / hits[-1]


def average_precision(*, scores: Floats, positive: Bools, weights: Floats) -> Floats:
    """Compute the average precision, sum_n (R_n - R_{n-1}) P_n over distinct scores: shape (D,).

    As ``sklearn.metrics.average_precision_score``; a constant score gives the share of positives,
    and without a positive it is NaN.
    """
    if not positive.any():
        return np.full(weights.shape[1], np.nan)
    group = group_ties(-scores)
    ranked = np.argsort(group, kind="stable")
    hit = ranked[positive[ranked]]
    # The sum is over the tie groups that hold a positive: only their ends are counted.
    groups, first = np.unique(group[hit], return_index=True)
    ends = np.searchsorted(group[ranked], groups, side="right")
    starts = np.append(0, ends[:-1])
    counts = running(np.add, np.add.reduceat(weights[ranked[: ends[-1]]], starts, axis=0))
    hits = np.add.reduceat(weights[hit], first, axis=0)
    reached = running(np.add, hits.copy())
    precision = np.divide(reached, counts, out=np.zeros_like(counts), where=counts > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.einsum("nd,nd->d", hits, precision) / reached[-1])
