"""Who is better than whom, over all pairs of a board at once.

A board of k entries makes k(k-1)/2 comparisons, so a pair's own 95 % interval is not enough: among 50 equal entries,
60 pairs would look different. Here all pairs are tested together by the studentised maximum of the paired bootstrap:
in every draw (the same rows for all entries) the largest deviation over all pairs, in units of the pair's own standard
error, is noted; a difference is real when it is larger than 95 % of these maxima. The chance that any pair is called
different without being so is then 5 % for the whole table, with the dependence between entries taken into account
(Romano and Wolf, 2005). The entries that are really better or worse bound an entry's rank from both sides (Mogstad,
Romano, Shaikh and Wilhelm, "Inference for ranks", 2024).

Holm's correction of permutation p-values, which ``kernel-archive compare`` gives for two entries, would need
hundreds of thousands of draws for 1,225 pairs before any of them could be called different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

__all__ = ["LEVEL", "Pairs", "Rank", "pairs_of", "ranks_of"]

#: Level of the intervals, and of the whole table of differences.
LEVEL: Final = 0.95
#: Differences below this share of the figures are rounding.
_EQUAL: Final = 1e-9


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of every pair of k entries; row minus column.

    Attributes:
        difference: shape (k, k); NaN where a metric is not defined.
        low: lower end of the pair's own 95 % interval (paired bootstrap), shape (k, k).
        high: upper end.
        real: shape (k, k), whether the difference is real with all pairs considered together.
    """

    difference: Floats
    low: Floats
    high: Floats
    real: Bools


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one entry by one metric.

    Attributes:
        rank: 1 for the best figure; equal figures share a rank.
        best: best rank that the data allow: 1 + the number of entries that are really better.
        worst: worst rank that they allow.
        tied_with: positions of the entries that it can't be told apart from.
    """

    rank: int
    best: int
    worst: int
    tied_with: tuple[int, ...]


def pairs_of(values: Sequence[float | None], draws: Sequence[Floats | None]) -> Pairs:
    """Differences of every pair with their intervals, and which of them are real.

    Args:
        values: the metric of k entries; ``None`` where it is not defined.
        draws: its value in every bootstrap draw, shape (B,) each, the same rows of a draw for every entry.

    >>> rng = np.random.default_rng(0)
    >>> common = rng.normal(size=1000)
    >>> pairs = pairs_of([0.0, 0.1, 5.0], [common, common + 0.1 * rng.normal(size=1000), common + 5])
    >>> pairs.real.astype(int).tolist()
    [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    """
    k = len(values)
    shape = (k, k)
    difference, low, high = (np.full(shape, np.nan) for _ in range(3))
    error = np.zeros(shape)
    real = np.zeros(shape, dtype=bool)
    known = [i for i, (v, d) in enumerate(zip(values, draws, strict=True)) if v is not None and d is not None]
    if len(known) < 2:
        return Pairs(difference=difference, low=low, high=high, real=real)
    at = np.asarray(known)
    v = np.asarray([values[i] for i in known], dtype=np.float64)
    table = np.stack([d for i in known if (d := draws[i]) is not None])
    table = table[:, ~np.isnan(table).any(axis=0)]
    if table.shape[1] < 2:
        return Pairs(difference=difference, low=low, high=high, real=real)
    largest = np.zeros(table.shape[1])
    tail = (1.0 - LEVEL) / 2.0
    for a in range(len(known) - 1):
        moved = table[a] - table[a + 1 :]
        others = at[a + 1 :]
        ends = np.quantile(moved, (tail, 1.0 - tail), axis=1)
        middle, deviation = moved.mean(axis=1), moved.std(axis=1)
        scale = np.maximum(np.abs(v[a]), np.abs(v[a + 1 :]))
        deviation = np.where(deviation > _EQUAL * np.maximum(scale, _EQUAL), deviation, 0.0)
        d = v[a] - v[a + 1 :]
        d = np.where(np.abs(d) > _EQUAL * scale, d, 0.0)
        difference[at[a], others], difference[others, at[a]] = d, 0.0 - d
        low[at[a], others], high[others, at[a]] = ends[0], -ends[0]
        high[at[a], others], low[others, at[a]] = ends[1], -ends[1]
        error[at[a], others] = error[others, at[a]] = deviation
        moves = deviation > 0
        if moves.any():
            np.maximum(
                largest,
                (np.abs(moved[moves] - middle[moves, None]) / deviation[moves, None]).max(axis=0),
                out=largest,
            )
    critical = float(np.quantile(largest, LEVEL))
    real[np.ix_(at, at)] = (np.abs(difference) > critical * error)[np.ix_(at, at)]
    np.fill_diagonal(real, val=False)
    return Pairs(difference=difference, low=low, high=high, real=real)


def ranks_of(values: Sequence[float | None], pairs: Pairs, better: Literal["higher", "lower"]) -> list[Rank | None]:
    """Ranks by one metric; ``None`` for an entry without the figure.

    Args:
        values: the metric of k entries.
        pairs: their differences.
        better: which way is better.
    """
    sign = 1.0 if better == "higher" else -1.0
    known = [i for i, v in enumerate(values) if v is not None]
    out: list[Rank | None] = [None] * len(values)
    at = np.asarray(known, dtype=np.intp)
    gains = sign * pairs.difference[np.ix_(at, at)]  # [j, i] above 0: j is better than i
    better_ones, worse_ones = ((pairs.real[np.ix_(at, at)] & found) for found in (gains > 0, gains < 0))
    tied = ~(better_ones | worse_ones)
    np.fill_diagonal(tied, val=False)
    for column, i in enumerate(known):
        out[i] = Rank(
            rank=1 + int((gains[:, column] > 0).sum()),
            best=1 + int(better_ones[:, column].sum()),
            worst=len(known) - int(worse_ones[:, column].sum()),
            tied_with=tuple(at[tied[:, column]].tolist()),
        )
    return out
