"""Order: pairs in the right order, ranks that go with the measured ones, and discoveries that stand first.

Pairs and ranks look inside one candidate set (a task, or a task and language), which a forecast orders by a key of whole
numbers, in which equal keys tie: :func:`order_keys`. A discovery is an edit that brings a speedup.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.scoring.arrays import Ranking, counted, group_ties, per_draw, row_sums, running

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernel_archive.scoring.arrays import Bools, Floats, Ints

#: Pairs whose speedups differ by no more than this factor don't count, however well either was measured.
MIN_RATIO: Final = 1.05
#: Name -> the factors between which the two speedups of a pair differ, right-closed.
PAIR_CLASSES: Final = {"1.4": (1.0, 1.4), "2": (1.4, 2.0), "4": (2.0, 4.0), "more": (4.0, np.inf)}
#: Of a candidate set with more rows, so many enter pairs: evenly spaced in order of row id, which is a digest.
MAX_ROWS: Final = 1_000
#: Draws that are multiplied at once: so few that no BLAS splits the product over threads and then waits for the slowest.
_COLUMNS: Final = 40
#: Whole numbers up to here are exact in 32 bits.
_EXACT: Final = 2**24


def order_keys(*, expected: Floats, stated: Floats | None = None) -> Ints:
    """Ranks by expected speedup, 0 for the lowest, equal where they tie; a stated speedup orders what ties.

    Args:
        expected: shape (n,), S^ in x.
        stated: shape (n,), the expected speedups that a forecaster stated beside its bins, NaN where it stated none:
            there S^ itself counts.

    >>> order_keys(expected=np.array([2.0, 1.0, 2.0])).tolist()
    [1, 0, 1]
    >>> order_keys(expected=np.array([2.0, 1.0, 2.0]), stated=np.array([1.7, 9.0, 1.5])).tolist()
    [2, 0, 1]
    """
    first = group_ties(expected)
    if stated is None:
        return first
    second = group_ties(np.where(np.isnan(stated), expected, stated))
    _, keys = np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)
    return keys.astype(np.intp)


@lru_cache(maxsize=16)
def _pairs_that_count(speedups: bytes, spreads: bytes) -> tuple[NDArray[np.intp], ...]:
    """For each class of distance the pairs that count, the faster row first, as positions in a flat table of m x m.

    Of falling speedups and their spreads, both as bytes; kept, since a score compares a dozen forecasts of one set.
    """
    s, spread = np.frombuffer(speedups), np.frombuffer(spreads)
    ratio = np.divide.outer(s, s)
    ratio[~np.triu(ratio > np.maximum.outer(spread, spread), 1)] = 0.0
    return tuple(np.flatnonzero((ratio > low) & (ratio <= high)) for low, high in PAIR_CLASSES.values())


class PairTable:
    """The pairs of one candidate set that count, ready to be counted in many draws; arguments as in :func:`pair_accuracy`."""

    def __init__(self, keys: Ints, speedups: Floats, spreads: Floats) -> None:
        n = len(speedups)
        rows = np.arange(n) if n <= MAX_ROWS else np.linspace(0, n - 1, MAX_ROWS).astype(np.intp)
        self._rows = rows[np.argsort(-speedups[rows], kind="stable")]
        s, spread = speedups[self._rows].astype(float), np.maximum(spreads[self._rows], MIN_RATIO).astype(float)
        self._pairs = _pairs_that_count(s.tobytes(), spread.tobytes())
        above = np.zeros((len(s), len(s)), np.int32)
        for key in keys[:, self._rows].astype(np.int32):
            above += np.sign(np.subtract.outer(key, key))
        #: Of the pairs of every class, over all repeats twice the right orders, once those that tie.
        self._points = [len(keys) + above.ravel()[at] for at in self._pairs]
        self._most = 2.0 * len(keys)

    @cached_property
    def _tables(self) -> Floats:
        """The points of every pair that counts, and whether it does, by class of distance: shape (2, K, m, m)."""
        m = len(self._rows)
        exact = self._most * m * m < _EXACT
        out: Floats = np.zeros((2, len(self._pairs), m * m), np.float32 if exact else np.float64)
        for points, counts, at, value in zip(*out, self._pairs, self._points, strict=True):
            points[at], counts[at] = value, 1.0
        return out.reshape(2, -1, m, m)

    def count(self, weights: Floats) -> tuple[Floats, Floats]:
        """Pairs in the right order (mean over the repeats, a tie half) and pairs that count, by class: shape (K, D) each.

        A row that is drawn twice (weights have shape (n, D)) makes its pairs twice; with itself it makes none.
        """
        drawn = weights[self._rows]
        if drawn.shape[1] == 1 and (drawn == 1.0).all():
            right, of = ([[float(sum_of(part))] for part in self._points] for sum_of in (np.sum, len))
            return np.array(right) / self._most, np.array(of)
        points, counts = self._tables
        return self._forms(points, drawn) / self._most, self._forms(counts, drawn)

    @staticmethod
    def _forms(tables: Floats, drawn: Floats) -> Floats:
        """The quadratic forms w' A w of every table and draw, in whole numbers and so without rounding: shape (K, D)."""
        m, n_draws = drawn.shape
        width = min(_COLUMNS, n_draws)
        blocks = -(-n_draws // width)
        w = np.zeros((m, blocks * width), tables.dtype)
        w[:, :n_draws] = drawn
        parts = w.reshape(m, blocks, width).transpose(1, 0, 2)
        out = np.empty((len(tables), blocks * width))
        for number, table in enumerate(tables):
            out[number] = np.einsum("bij,bij->bj", parts, table @ parts).ravel()
        return out[:, :n_draws]


def pair_accuracy(
    *, keys: Ints, speedups: Floats, spreads: Floats | None = None, weights: Floats | None = None
) -> Floats:
    """Share of the pairs of one candidate set that are put in the right order, ties half: shape (1 + K, D).

    First over all pairs that count, then by class of distance (:data:`PAIR_CLASSES`); NaN where no pair counts.

    Args:
        keys: shape (R, n), :func:`order_keys` of every repeat.
        speedups: shape (n,), measured, in x.
        spreads: shape (n,), largest over smallest measurement of each row; 1 when not given.
        weights: shape (n, D); every row once when not given, and then the result has shape (1 + K,).

    >>> speedups = np.array([0.5, 1.0, 1.02, 4.0])
    >>> pair_accuracy(keys=np.array([[0, 2, 1, 1]]), speedups=speedups).tolist()  # four of five pairs: 1 + 1 + 1 + 0 + 1/2
    [0.7, nan, 1.0, 0.5, 1.0]
    """
    n = len(speedups)
    table = PairTable(keys, speedups, np.ones(n) if spreads is None else spreads)
    right, of = table.count(counted(weights, n))
    return per_draw(shares(right, of), weights)


def shares(right: Floats, of: Floats) -> Floats:
    """Of all classes together and of each: shape (1 + K, D), NaN where there is nothing."""
    right, of = (np.concatenate([counts.sum(axis=0, keepdims=True), counts]) for counts in (right, of))
    with np.errstate(invalid="ignore"):
        return right / of


def _centred_ranks(keys: Ints, weights: Floats) -> Floats:
    """Mean rank of every row in every draw, less the mean of all ranks: shape (n, D)."""
    keys = np.unique(keys, return_inverse=True)[1]
    ends = running(np.add, weights[np.argsort(keys, kind="stable")])[np.cumsum(np.bincount(keys)) - 1]
    ranks = ends.copy()
    ranks[1:] += ends[:-1]
    out: Floats = ((ranks - ends[-1]) * 0.5)[keys]
    return out


def rank_correlation(*, keys: Ints, speedups: Floats, weights: Floats | None = None) -> Floats:
    """Spearman's rank correlation with the measured speedups, ties by their mean rank, mean over the repeats: shape (D,).

    0 for a forecast that ties everything; NaN where the speedups don't differ.

    Args:
        keys: shape (R, n), :func:`order_keys` of every repeat.
        speedups: shape (n,), measured, in x.
        weights: shape (n, D); every row once when not given, and then the result is one value.

    >>> round(float(rank_correlation(keys=np.array([[0, 2, 1]]), speedups=np.array([0.5, 1.0, 4.0]))), 6)
    0.5
    """
    w = counted(weights, len(speedups))
    truth = _centred_ranks(group_ties(speedups), w)
    weighted = w * truth
    spread = np.einsum("nd,nd->d", weighted, truth)
    total = np.zeros(w.shape[1])
    for key in keys:
        ranks = _centred_ranks(key, w)
        together = np.einsum("nd,nd->d", weighted, ranks)
        scale = np.sqrt(np.einsum("nd,nd->d", w, ranks * ranks) * spread)
        total += np.divide(together, scale, out=np.zeros_like(scale), where=scale > 0)
    total[spread <= 0] = np.nan
    return per_draw(total / len(keys), weights)


def shares_above(cutoff: float, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Share of every bin's mass that lies above a cutoff in x, log-uniform inside the bin: shape (8,).

    Raises:
        ValueError: the cutoff lies inside an open end bin.

    >>> shares_above(1.25).round(6).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.356144, 1.0, 1.0, 1.0]
    """
    rule = scheme_of(scheme)
    if not rule.edges[0] <= cutoff <= rule.edges[-1]:
        raise ValueError(f"the cutoff {cutoff} lies inside an open end bin of scheme {scheme}")
    edges = np.log2(rule.edges)
    inner = (edges[1:] - np.log2(cutoff)) / np.diff(edges)
    return np.concatenate([[0.0], np.clip(inner, 0.0, 1.0), [1.0]])


def exceedance(*, probabilities: Floats, cutoff: float, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Pr[g >= cutoff] of every forecast: shape (...,).

    Args:
        probabilities: shape (..., 8).
        cutoff: in x.
        scheme: rule of the bins.

    >>> float(exceedance(probabilities=np.full(8, 1 / 8), cutoff=2.0))
    0.25
    """
    return row_sums(probabilities * shares_above(cutoff, scheme))


def precision_recall(*, scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """Precision and recall over the distinct scores, from the highest down; tied scores are one step.

    Args:
        scores: shape (n,).
        positive: shape (n,), at least one.

    Returns:
        precision and recall, one value per distinct score.

    >>> p, r = precision_recall(scores=np.array([0.9, 0.5, 0.5]), positive=np.array([True, False, True]))
    >>> p.round(4).tolist(), r.tolist()
    ([1.0, 0.6667], [0.5, 1.0])
    """
    group = group_ties(-scores)
    hits = np.cumsum(np.bincount(group, weights=positive))
    taken = np.cumsum(np.bincount(group))
    return hits / taken, hits / hits[-1]


def average_precision(*, scores: Floats, positive: Bools, weights: Floats | None = None) -> Floats:
    """Average precision sum_n (R_n - R_{n-1}) P_n over the distinct scores.

    As ``sklearn.metrics.average_precision_score``; a constant score gives the share of positives.

    Args:
        scores: shape (n,).
        positive: shape (n,).
        weights: shape (n, D), how often each row counts in each draw, in whole numbers; once when not given.

    Returns:
        shape (D,), or one value without weights; NaN without a positive.

    >>> float(average_precision(scores=np.zeros(4), positive=np.array([True, False, False, False])))
    0.25
    """
    w = counted(weights, len(scores))
    if not len(scores):
        return per_draw(np.full(w.shape[1], np.nan), weights)
    # Counts of rows: exact in 32 bits, which are half of what would be read and written.
    ranking = Ranking(w.astype(np.int32), scores)
    found = ranking.up_to(ranking.weights * positive[ranking.order][:, None])
    precision = np.zeros(found.shape)
    np.divide(found, ranking.counts, out=precision, where=ranking.counts > 0)
    hits = found.astype(np.float64)
    # sum_n (h_n - h_{n-1}) p_n, without a table of the steps
    total = np.einsum("nd,nd->d", hits, precision) - np.einsum("nd,nd->d", hits[:-1], precision[1:])
    with np.errstate(invalid="ignore", divide="ignore"):
        return per_draw(total / hits[-1], weights)
