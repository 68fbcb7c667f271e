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

All pairs of all entries decide what is real, and every rank. What is kept and shown of single pairs (their differences with
intervals, who is tied with whom) is that of the first :data:`WHOLE` entries: it grows with the square of their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

#: Level of the intervals, and of the whole table of differences.
LEVEL: Final = 0.95
_TAILS: Final = ((1.0 - LEVEL) / 2.0, 1.0 - (1.0 - LEVEL) / 2.0)
#: So many entries of a board, the best ones, are shown with everything; further ones with figures and ranks.
WHOLE: Final = 200
#: Differences below this share of the figures are rounding.
_EQUAL: Final = 1e-9
#: Numbers in a block of draws: as many as stay in a core's own memory while they are worked on.
_BLOCK: Final = 65_536


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of every pair of k entries, the first m of them in whole; row minus column.

    Attributes:
        known: shape (k,), which entries take part: those with the figure, defined in at least half of the draws.
        low: lower end of the pair's own 95 % interval (paired bootstrap), shape (m, m); NaN where a metric is not defined.
        high: upper end.
        real: shape (m, m), whether the difference is real with all pairs of the k entries considered together.
        smaller: shape (k,), number of entries with a smaller figure.
        larger: shape (k,), with a larger one.
        really_smaller: shape (k,), with a figure that is really smaller.
        really_larger: shape (k,), likewise.
    """

    known: Bools
    low: Floats
    high: Floats
    real: Bools
    smaller: Ints
    larger: Ints
    really_smaller: Ints
    really_larger: Ints


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one entry by one metric. It can't be told apart from ``worst - best`` others.

    Attributes:
        rank: 1 for the best figure; equal figures share a rank.
        best: best rank that the data allow: 1 + the number of entries that are really better.
        worst: worst rank that they allow.
        tied_with: positions of the entries that it can't be told apart from, among the first that are kept in whole.
    """

    rank: int
    best: int
    worst: int
    tied_with: tuple[int, ...]


def pairs_of(values: Sequence[float | None], draws: Sequence[Floats | None], *, whole: int = WHOLE) -> Pairs:
    """Differences of every pair with their intervals, and which of them are real.

    Only draws count in which every entry has the metric, so one that has it in less than half of them takes no part.

    Args:
        values: the metric of k entries; ``None`` where it is not defined.
        draws: its value in every bootstrap draw, shape (B,) each, the same rows of a draw for every entry.
        whole: of so many entries, the first ones, every pair is kept.

    >>> rng = np.random.default_rng(0)
    >>> common = rng.normal(size=1000)
    >>> pairs = pairs_of([0.0, 0.1, 5.0], [common, common + 0.1 * rng.normal(size=1000), common + 5])
    >>> pairs.real.astype(int).tolist()
    [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    """
    k, m = len(values), min(len(values), whole)
    low, high, real = np.full((m, m), np.nan), np.full((m, m), np.nan), np.zeros((m, m), dtype=bool)
    counts = np.zeros((4, k), dtype=np.int64)
    smaller, larger, really_smaller, really_larger = counts
    known = [i for i, (v, d) in enumerate(zip(values, draws, strict=True)) if v is not None and not _undefined(d)]
    out = Pairs(
        known=np.isin(np.arange(k), known), low=low, high=high, real=real, smaller=smaller, larger=larger,
        really_smaller=really_smaller, really_larger=really_larger,
    )  # fmt: skip
    known = [i for i in known if draws[i] is not None]
    if len(known) < 2:
        return out
    at = np.asarray(known)
    v = np.asarray([values[i] for i in known], dtype=np.float64)
    table = np.stack([d for i in known if (d := draws[i]) is not None])
    # By rows in memory: what is taken of columns alone lies by columns, and is up to eight times as slow below.
    table = np.ascontiguousarray(table[:, ~np.isnan(table).any(axis=0)])
    if table.shape[1] < 2:
        return out
    shown = int((at < m).sum())  # positions rise, so these are the first
    centred = table - table.mean(axis=1, keepdims=True)
    largest = np.zeros(table.shape[1])
    errors = []  # of every entry, the standard errors of its differences from those behind it
    for a in range(len(known) - 1):
        if a < shown - 1:
            others = at[a + 1 : shown]
            low[at[a], others], high[at[a], others] = np.quantile(table[a] - table[a + 1 : shown], _TAILS, axis=1)
            low[others, at[a]], high[others, at[a]] = -high[at[a], others], -low[at[a], others]
        scale = np.maximum(np.abs(v[a]), np.abs(v[a + 1 :]))
        errors.append(_errors(centred[a], centred[a + 1 :], _EQUAL * np.maximum(scale, _EQUAL), largest))
    critical = float(np.quantile(largest, LEVEL))
    for a, error in enumerate(errors):
        others = at[a + 1 :]
        d = v[a] - v[a + 1 :]
        d = np.where(np.abs(d) > _EQUAL * np.maximum(np.abs(v[a]), np.abs(v[a + 1 :])), d, 0.0)
        sure = np.abs(d) > critical * error
        for below, above, counted in ((smaller, larger, True), (really_smaller, really_larger, sure)):
            more, less = (d > 0) & counted, (d < 0) & counted
            below[at[a]] += more.sum()
            above[at[a]] += less.sum()
            above[others] += more
            below[others] += less
        if a < shown - 1:
            others, sure = others[: shown - a - 1], sure[: shown - a - 1]
            real[at[a], others] = real[others, at[a]] = sure
    return out


def _undefined(draws: Floats | None) -> bool:
    """Whether a metric is undefined in more than half of the draws; where none were made nothing says so."""
    return draws is not None and 2 * int(np.isnan(draws).sum()) > len(draws)


def _blocks(table: Floats) -> Iterator[slice]:
    """A table's rows, so many at a time as make a block."""
    step = max(1, _BLOCK // table.shape[1])
    return (slice(i, i + step) for i in range(0, len(table), step))


def _errors(own: Floats, others: Floats, least: Floats, largest: Floats) -> Floats:
    """The standard errors of the differences from each of the others, from draws less their mean; 0 for those up to ``least``.

    Every draw's largest deviation, in units of its pair's standard error, is put into ``largest``. In blocks and in place: the
    sums are those of each pair's own draws, so the blocks change nothing.
    """
    out = np.empty(len(others))
    for rows in _blocks(others):
        moved = own - others[rows]
        error = np.sqrt(np.einsum("ij,ij->i", moved, moved) / len(own))
        out[rows] = error = np.where(error > least[rows], error, 0.0)
        moves = error > 0
        if not moves.all():
            moved, error = moved[moves], error[moves]
        if len(moved):
            np.abs(moved, out=moved)
            moved *= (1.0 / error)[:, None]
            np.maximum(largest, moved.max(axis=0), out=largest)
    return out


def ranks_of(pairs: Pairs, better: Literal["higher", "lower"]) -> list[Rank | None]:
    """Ranks by one metric; ``None`` for an entry that takes no part (:attr:`Pairs.known`).

    Args:
        pairs: the differences of k entries.
        better: which way is better.
    """
    ahead, really_ahead, really_behind = (
        (pairs.larger, pairs.really_larger, pairs.really_smaller)
        if better == "higher"
        else (pairs.smaller, pairs.really_smaller, pairs.really_larger)
    )
    known = pairs.known
    tied = ~pairs.real & known[: len(pairs.real)]
    np.fill_diagonal(tied, val=False)
    return [
        Rank(
            rank=1 + int(ahead[i]),
            best=1 + int(really_ahead[i]),
            worst=int(known.sum()) - int(really_behind[i]),
            tied_with=tuple(np.flatnonzero(tied[i]).tolist()) if i < len(tied) else (),
        )
        if known[i]
        else None
        for i in range(len(known))
    ]
