"""Order: how many pairs a forecast puts in the right order, and how its ranks go with the measured ones.

Both look inside one candidate set (a task, or a task and language) and ask only for the order. A forecast orders
candidates by a key of whole numbers, in which equal keys tie: :func:`order_keys`.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.arrays import counted, group_ties, per_draw, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from kernel_archive.scoring.arrays import Floats, Ints

#: Pairs whose speedups differ by no more than this factor don't count, however well either was measured.
MIN_RATIO: Final = 1.05
#: Name -> the factors between which the two speedups of a pair differ, right-closed.
PAIR_CLASSES: Final[dict[str, tuple[float, float]]] = {
    "1.4": (1.0, 1.4),
    "2": (1.4, 2.0),
    "4": (2.0, 4.0),
    "more": (4.0, np.inf),
}
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
    """Of all pairs of rows, whatever is forecast of them: kept, since a score compares a dozen forecasts of one set.

    Args:
        speedups: shape (m,), falling, as bytes.
        spreads: shape (m,), as bytes.

    Returns:
        For each class of distance the pairs that count, the faster row first, as positions in a flat table of m x m.
    """
    s, spread = np.frombuffer(speedups), np.frombuffer(spreads)
    ratio = np.divide.outer(s, s)
    ratio[~np.triu(ratio > np.maximum.outer(spread, spread), 1)] = 0.0
    return tuple(np.flatnonzero((ratio > low) & (ratio <= high)) for low, high in PAIR_CLASSES.values())


class PairTable:
    """The pairs of one candidate set, ready to be counted in many draws.

    Attributes:
        n_repeats: repeats whose orders are counted.
        rows: positions of the rows that enter pairs, the fastest first.
    """

    def __init__(self, keys: Ints, speedups: Floats, spreads: Floats) -> None:
        """Find the pairs that count.

        Args:
            keys: shape (R, n), :func:`order_keys` of every repeat.
            speedups: shape (n,), measured, in x.
            spreads: shape (n,), largest over smallest measurement of the row, at least 1.
        """
        n = len(speedups)
        self.n_repeats = len(keys)
        rows = np.arange(n) if n <= MAX_ROWS else np.linspace(0, n - 1, MAX_ROWS).astype(np.intp)
        self.rows = rows[np.argsort(-speedups[rows], kind="stable")]
        s, spread = speedups[self.rows].astype(float), np.maximum(spreads[self.rows], MIN_RATIO).astype(float)
        self._pairs = _pairs_that_count(s.tobytes(), spread.tobytes())
        self._keys = keys[:, self.rows].astype(np.int32)
        exact = 2 * self.n_repeats * max(len(s), 1) ** 2 < _EXACT
        self.dtype = np.float32 if exact else np.float64

    def _points(self) -> Iterator[Ints]:
        """Of the pairs of every class, over all repeats twice the right orders, once those that tie."""
        above = sum(np.sign(np.subtract.outer(key, key)) for key in self._keys)
        flat = np.asarray(above).ravel()
        return (self.n_repeats + flat[at] for at in self._pairs)

    def _table(self, values: Iterable[Ints | int]) -> Floats:
        m = len(self.rows)
        out: Floats = np.zeros((len(self._pairs), m * m), self.dtype)
        for table, at, value in zip(out, self._pairs, values, strict=True):
            table[at] = value
        return out.reshape(-1, m, m)

    @cached_property
    def right(self) -> Floats:
        """Shape (K, m, m), the points of every pair that counts; above the diagonal."""
        return self._table(self._points())

    @cached_property
    def counts(self) -> Floats:
        """Shape (K, m, m), whether a pair counts, by class of distance."""
        return self._table([1] * len(self._pairs))

    def count(self, weights: Floats) -> tuple[Floats, Floats]:
        """Pairs in the right order (mean over the repeats, a tie half) and pairs that count, by class: shape (K, D) each.

        A row that is drawn twice makes its pairs twice; with itself it makes none.

        Args:
            weights: shape (n, D), how often each row is in each draw.
        """
        drawn = weights[self.rows]
        if drawn.shape[1] == 1 and (drawn == 1.0).all():
            points = np.array([[points.sum(dtype=np.int64)] for points in self._points()])
            return points / (2.0 * self.n_repeats), np.array([[float(len(at))] for at in self._pairs])
        return self._forms(self.right, drawn) / (2.0 * self.n_repeats), self._forms(self.counts, drawn)

    def _forms(self, tables: Floats, drawn: Floats) -> Floats:
        """The quadratic forms w' A w of every table and draw, in whole numbers and so without rounding: shape (K, D)."""
        m, n_draws = drawn.shape
        width = min(_COLUMNS, n_draws)
        blocks = -(-n_draws // width)
        w = np.zeros((m, blocks * width), self.dtype)
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
    with np.errstate(invalid="ignore"):
        out: Floats = np.concatenate([right.sum(axis=0, keepdims=True), right]) / np.concatenate(
            [of.sum(axis=0, keepdims=True), of]
        )
    return out


def _centred_ranks(keys: Ints, weights: Floats) -> Floats:
    """Mean rank of every row in every draw, less the mean of all ranks: shape (n, D)."""
    keys = np.unique(keys, return_inverse=True)[1]
    order = np.argsort(keys, kind="stable")
    sizes = np.bincount(keys)
    ends = running(np.add, weights[order])[np.cumsum(sizes) - 1]
    ranks = ends.copy()
    ranks[1:] += ends[:-1]
    ranks -= ends[-1]
    ranks *= 0.5
    out: Floats = ranks[keys]
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
        ranks *= ranks
        own = np.einsum("nd,nd->d", w, ranks)
        scale = np.sqrt(own * spread)
        total += np.divide(together, scale, out=np.zeros_like(scale), where=scale > 0)
    total[spread <= 0] = np.nan
    return per_draw(total / len(keys), weights)
