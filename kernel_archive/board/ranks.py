"""Rank entries with what the data allow: all pairs of a board at once.

A board of k entries makes k(k-1)/2 comparisons, so a pair's own 95 % interval is not enough: among
50 equal entries, 60 pairs would look different. All pairs are tested together by the studentised
maximum of the paired bootstrap: in each draw (the same rows for all entries) the largest deviation
over all pairs is noted, in units of the pair's own standard error. A difference is real when it is
larger than 95 % of these maxima: the chance that any pair is called different without being so is
5 % for the whole table (Romano and Wolf, 2005). The entries that are really better or worse bound
an entry's rank from both sides (Mogstad, Romano, Shaikh and Wilhelm, 2024).
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

#: Level of the intervals, and of the whole table of differences.
LEVEL: Final = 0.95
_TAILS: Final = ((1.0 - LEVEL) / 2.0, 1.0 - (1.0 - LEVEL) / 2.0)
#: Pairs are compared among this many entries, the best ones; the others are ranked by value alone.
MAX_COMPARED: Final = 200
#: Differences below this share of the figures are rounding.
_EQUAL: Final = 1e-9


class Pairs(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Compare all pairs of k entries by one metric; matrices have shape (k, k), row minus column.

    Attributes:
        known: shape (k,), entries with the figure, defined in at least half of the draws.
        differences: of the figures; 0 where they are equal but for rounding, NaN where unknown.
        low: lower end of the pair's own 95 % interval (paired bootstrap); NaN without draws.
        high: upper end.
        real: whether the difference is real with all pairs considered together.
    """

    known: Bools
    differences: Floats
    low: Floats
    high: Floats
    real: Bools


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Place one entry by one metric.

    Attributes:
        rank: 1 for the best figure; equal figures share a rank.
        best: best rank that the data allow; ``None`` for an entry that is ranked by value alone.
        worst: worst rank that they allow; likewise.
        tied_with: positions of the entries that it can't be told apart from.
    """

    rank: int
    best: int | None = None
    worst: int | None = None
    tied_with: tuple[int, ...] = ()


def compare_pairs(values: Sequence[float | None], draws: Sequence[Floats | None]) -> Pairs:
    """Compare all pairs of entries.

    Only draws count in which all entries have the metric; an entry that has it in less than half of
    its draws takes no part.

    Args:
        values: the metric of k entries; ``None`` where it is not defined.
        draws: its value in each bootstrap draw, shape (B,), the same rows of a draw for all.

    >>> rng = np.random.default_rng(0)
    >>> base = rng.normal(size=1000)
    >>> draws = [base, base + 0.1 * rng.normal(size=1000), base + 5]
    >>> compare_pairs([0.0, 0.1, 5.0], draws).real.astype(int).tolist()
    [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    """
    k = len(values)
    figures = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    rare = np.array([d is not None and 2 * int(np.isnan(d).sum()) > len(d) for d in draws], bool)
    figures[rare] = np.nan
    size = np.abs(figures)
    rounding = _EQUAL * np.fmax(np.fmax(size[:, None], size[None, :]), _EQUAL)
    differences = figures[:, None] - figures[None, :]
    differences[np.abs(differences) <= rounding] = 0.0
    low, high = np.full((k, k), np.nan), np.full((k, k), np.nan)
    real = np.zeros((k, k), dtype=bool)
    known = ~np.isnan(figures)
    part = np.flatnonzero(known & np.array([d is not None for d in draws], dtype=bool))
    table = np.stack([np.asarray(draws[int(i)]) for i in part]) if len(part) else np.empty((0, 0))
    # Contiguous rows: columns picked out lie scattered, and everything below would be slower.
    table = np.ascontiguousarray(table[:, ~np.isnan(table).any(axis=0)])
    if len(part) > 1 and table.shape[1] > 1:
        errors, largest = np.zeros((k, k)), np.zeros(table.shape[1])
        for row, i in enumerate(part[:-1]):
            others = part[row + 1 :]
            moved = table[row] - table[row + 1 :]
            low[i, others], high[i, others] = np.quantile(moved, _TAILS, axis=1)
            low[others, i], high[others, i] = -high[i, others], -low[i, others]
            moved -= moved.mean(axis=1, keepdims=True)
            error = np.sqrt(np.einsum("ij,ij->i", moved, moved) / table.shape[1])
            error[error <= rounding[i, others]] = 0.0
            errors[i, others] = errors[others, i] = error
            if (error > 0).any():
                scaled = np.abs(moved[error > 0]) / error[error > 0, None]
                np.maximum(largest, scaled.max(axis=0), out=largest)
        compared = np.ix_(part, part)
        critical = float(np.quantile(largest, LEVEL))
        real[compared] = np.abs(differences[compared]) > critical * errors[compared]
    return Pairs(known=known, differences=differences, low=low, high=high, real=real)


def ranks_of(pairs: Pairs, better: Literal["higher", "lower"]) -> list[Rank | None]:
    """Rank entries by one metric; ``None`` for an entry without the figure."""
    sign = 1 if better == "higher" else -1
    lead = np.nan_to_num(sign * pairs.differences)  # row is better than column
    k = int(pairs.known.sum())
    tied = ~pairs.real & pairs.known[None, :] & ~np.eye(len(lead), dtype=bool)
    ranks: list[Rank | None] = []
    for i, known in enumerate(pairs.known):
        behind, ahead = (lead[i] < 0) & pairs.real[i], (lead[i] > 0) & pairs.real[i]
        rank = Rank(
            rank=1 + int((lead[i] < 0).sum()),
            best=1 + int(behind.sum()),
            worst=k - int(ahead.sum()),
            tied_with=tuple(np.flatnonzero(tied[i]).tolist()),
        )
        ranks.append(rank if known else None)
    return ranks
