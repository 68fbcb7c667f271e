"""Rank entries with what the data allow: all pairs of a board at once.

A board of k entries makes k(k-1)/2 comparisons, so a pair's own 95 % interval is not enough: among
50 equal entries, 60 pairs would look different. A difference is real when it is further from 0 than
Bonferroni's bound allows: 5 % over the number of pairs, by a normal distribution with the standard
error of the paired bootstrap. The entries with a real difference bound an entry's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Final, Literal

import msgspec
import numpy as np

from kernel_archive.scoring.arrays import Bools, Floats
from kernel_archive.scoring.figures import LEVEL, TAILS

#: Pairs are compared among this many entries, the best ones; the others are ranked by value alone.
MAX_COMPARED: Final = 200
#: Differences below this share of the figures are rounding.
_EQUAL: Final = 1e-9


class Pairs(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """All pairs of k entries compared by one metric; shape (k, k), row minus column."""

    known: Bools  # shape (k,), entries with the figure, defined in at least half of the draws
    #: Of the figures; 0 where they are equal but for rounding, NaN where unknown.
    differences: Floats
    low: Floats  # lower end of the pair's own 95 % interval (paired bootstrap); NaN where unknown
    high: Floats  # upper end
    real: Bools  # whether the difference is real with all pairs considered together


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """The rank of one entry by one metric."""

    rank: int  # 1 for the best figure; equal figures share a rank
    #: Best rank that the data allow; ``None`` for an entry that is ranked by value alone.
    best: int | None = None
    worst: int | None = None  # worst rank that they allow; likewise
    tied_with: tuple[int, ...] = ()  # positions of the entries that it can't be told apart from


def compare_pairs(values: Sequence[float | None], draws: Sequence[Floats]) -> Pairs:
    """Compare all pairs of k entries, in the draws in which all of them have the metric.

    ``values`` are their figures, ``None`` where not defined; ``draws`` those of each bootstrap
    draw, shape (B,), the same rows of a draw for all.
    """
    k = len(values)
    figures = np.array(values, dtype=np.float64)  # None becomes NaN
    for i, drawn in enumerate(draws):
        if np.isnan(drawn).mean() > 0.5:
            figures[i] = np.nan
    differences = figures[:, None] - figures
    rounding = _EQUAL * np.maximum(np.fmax.outer(np.abs(figures), np.abs(figures)), _EQUAL)
    differences[np.abs(differences) <= rounding] = 0.0
    low, high = np.full((2, k, k), np.nan)
    real = np.zeros((k, k), dtype=bool)
    compared = np.flatnonzero(~np.isnan(figures)).tolist()
    n_pairs = len(compared) * (len(compared) - 1) // 2
    bound = NormalDist().inv_cdf(1.0 - (1.0 - LEVEL) / (2 * max(n_pairs, 1)))
    drawn_figures = np.array([draws[i] for i in compared])  # shape (entries, draws)
    if compared:
        drawn_figures = drawn_figures[:, ~np.isnan(drawn_figures).any(axis=0)]
    # i is an entry's row in the (k, k) arrays, place its row in drawn_figures.
    for place, i in enumerate(compared[:-1] if drawn_figures.size else []):
        others = compared[place + 1 :]
        drawn_differences = drawn_figures[place] - drawn_figures[place + 1 :]
        low[i, others], high[i, others] = np.quantile(drawn_differences, TAILS, axis=1)
        low[others, i], high[others, i] = -high[i, others], -low[i, others]
        limits = bound * drawn_differences.std(axis=1)
        real[i, others] = np.abs(differences[i, others]) > limits
        real[others, i] = real[i, others]
    return Pairs(known=~np.isnan(figures), differences=differences, low=low, high=high, real=real)


def ranks_of(pairs: Pairs, better: Literal["higher", "lower"]) -> list[Rank | None]:
    """Rank entries by one metric; ``None`` for an entry without the figure."""
    # Above 0 where the row's entry is better than the column's.
    ahead = np.nan_to_num(pairs.differences if better == "higher" else -pairs.differences)
    k = int(pairs.known.sum())
    ranks: list[Rank | None] = []
    for i, known in enumerate(pairs.known):
        tied = pairs.known & ~pairs.real[i]
        tied[i] = False
        rank = Rank(
            rank=1 + int((ahead[i] < 0).sum()),
            best=1 + int(((ahead[i] < 0) & pairs.real[i]).sum()),
            worst=k - int(((ahead[i] > 0) & pairs.real[i]).sum()),
            tied_with=tuple(np.flatnonzero(tied).tolist()),
        )
        ranks.append(rank if known else None)
    return ranks
