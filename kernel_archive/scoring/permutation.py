"""Permutation tests: the forecasts of two submissions swapped row by row, and the metrics computed anew.

All repeats of a row are swapped together, and repeats that are swapped with each other form a pair: a swapped repeat
holds rows of one repeat of A and of one of B. Which repeats are paired must not hang on how a file numbers them, so each
submission's repeats are put in the order of a digest of what they forecast, which is as good as chance and the same for
every numbering.

Where the numbers of repeats differ, both sides are repeated up to the least common multiple when that is small or no
larger than one of them, so that every repeat counts alike. Otherwise (7 against 8 would be 56) there are as many pairs
as the larger number; the smaller side's repeats are dealt out at random, from the seed and anew for every portion of
draws, each as often as the others or once more. The observed difference is that of all repeats in either case.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from kernel_archive.scoring.metrics import CUTOFFS, METRICS
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.scoring.uncertainty import chunk_sizes, measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from kernel_archive.scoring.arrays import Floats, Ints

S = TypeVar("S", bound=np.generic)

#: Up to so many pairs of repeats every repeat of either side counts alike; the time grows with the pairs.
_MAX_PAIRS: Final = 12
#: Row-wise figures that order the repeats. A fixed list, so that a further metric changes no p-value.
_ORDERED_BY: Final = ("forecast_error", "brier", "crps", "nll", "accuracy", "within_one", "entropy")


def permutation_p(
    a: ForecastRows, b: ForecastRows, observed: Mapping[str, float | None], *, seed: int, draws: int
) -> dict[str, float | None]:
    """Two-sided permutation p-values of differences A - B: (1 + number as large) / (1 + draws).

    Args:
        a: rows of one submission.
        b: the same rows with the forecasts of the other.
        observed: metric -> difference; ``None`` where it is not defined, which gives no p-value.
        seed: of the swaps.
        draws: number of swaps.
    """
    pairings = _pairings(a, b, seed=seed)
    found: dict[str, list[Floats]] = {name: [] for name, value in observed.items() if value is not None}
    last: tuple[Ints, Ints] | None = None
    for sides, pairs in zip(_swaps(a, seed=seed, draws=draws), pairings, strict=False):
        if pairs is not last:
            both, last = _side_by_side(a, b, *pairs), pairs
        first, second = (measure(RowSample(both, *side), found).overall for side in sides)
        for name, parts in found.items():
            parts.append(first[name] - second[name])
    out: dict[str, float | None] = dict.fromkeys(observed)
    for name, parts in found.items():
        seen = observed[name]
        if parts and seen is not None:
            swapped = np.abs(np.concatenate(parts))
            slack = 1e-9 * max(abs(seen), 1e-6)
            out[name] = float(1 + np.sum(swapped >= abs(seen) - slack)) / (1 + draws)
    return out


_Side = tuple["Floats", dict[str, "Ints"]]


def _swaps(rows: ForecastRows, *, seed: int, draws: int) -> Iterator[tuple[_Side, _Side]]:
    """Random swaps of the two sides of every row, and the rows that are left over: weights and picks of either."""
    rng = np.random.default_rng([seed, 1])
    n = len(rows)
    for size in chunk_sizes(2 * n, draws):
        weights = [np.empty((2 * n, size)) for _ in range(2)]
        picks: list[dict[str, Ints]] = [{}, {}]
        start = 0
        for name, at in rows.strata.items():
            m = len(at)
            swapped = rng.integers(0, 2, size=(size, m), dtype=np.int8).astype(bool)
            for side, taken in enumerate((swapped, ~swapped)):
                picks[side][name] = np.arange(m) + m * taken
                weights[side][start : start + m] = ~taken.T
                weights[side][start + m : start + 2 * m] = taken.T
            start += 2 * m
        yield (weights[0], picks[0]), (weights[1], picks[1])


def repeat_order(rows: ForecastRows) -> Ints:
    """The repeats in an order that depends on what they forecast and not on their numbers: shape (R,).

    Figures are rounded to nine decimals first, so that forecasts that were renormalised keep their order.
    """
    figures = [rows.predicted, rows.parsed, rows.confidence, rows.expected]
    figures += (rows.values(name, rule) for name in _ORDERED_BY if (rule := METRICS[name].rows) is not None)
    figures += map(rows.exceedance, CUTOFFS if rows.kind == "discovery" else ())
    figures += [] if np.isnan(rows.stated).all() else [rows.keys]
    keys = []
    for r in range(rows.n_repeats):
        digest = hashlib.sha256()
        for values in figures:
            digest.update((np.round(values[r].astype(np.float64), 9) + 0.0).tobytes())
        keys.append(digest.digest())
    return np.array(sorted(range(rows.n_repeats), key=keys.__getitem__), dtype=np.intp)


def _pairings(a: ForecastRows, b: ForecastRows, *, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """For every portion of draws, which repeat of A is paired with which of B; without end."""
    first, second = repeat_order(a), repeat_order(b)
    common, most = math.lcm(len(first), len(second)), max(len(first), len(second))
    if common <= max(_MAX_PAIRS, most):
        pairs = np.resize(first, common), np.resize(second, common)
        while True:
            yield pairs
    rng = np.random.default_rng([seed, 2])
    while True:
        # One order for the k-th repeats of both, so that A against B and B against A deal out alike.
        dealt = rng.permutation(min(len(first), len(second)))
        yield tuple(  # type: ignore[misc]  # two of them
            np.resize(side[dealt], most) if len(side) < most else side for side in (first, second)
        )


def _side_by_side(a: ForecastRows, b: ForecastRows, repeats_a: Ints, repeats_b: Ints) -> ForecastRows:
    """Rows with the paired forecasts of A and then those of B in every stratum."""
    n = len(a)
    order = np.concatenate([np.concatenate([at, at + n]) for at in a.strata.values()])
    ends = np.cumsum([2 * len(at) for at in a.strata.values()]).tolist()

    def both(x: NDArray[S], y: NDArray[S]) -> NDArray[S]:
        out: NDArray[S] = np.concatenate([x[repeats_a], y[repeats_b]], axis=1)[:, order]
        return out

    def twice(x: NDArray[S]) -> NDArray[S]:
        out: NDArray[S] = np.concatenate([x, x])[order]
        return out

    return replace(
        a,
        strata={
            name: np.arange(end - 2 * len(at), end) for (name, at), end in zip(a.strata.items(), ends, strict=True)
        },
        pools=_doubled(a, order),
        groups={},
        speedups=twice(a.speedups),
        bins=twice(a.bins),
        spreads=twice(a.spreads),
        control_crps=twice(a.control_crps),
        shortcuts={name: twice(scores) for name, scores in a.shortcuts.items()},
        same_language=None if a.same_language is None else twice(a.same_language),
        probabilities=both(a.probabilities, b.probabilities),
        parsed=both(a.parsed, b.parsed),
        predicted=both(a.predicted, b.predicted),
        stated=both(a.stated, b.stated),
    )


def _doubled(rows: ForecastRows, order: Ints) -> dict[str, Ints]:
    """The pools of rows that stand twice, in this order."""
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    return {name: np.sort(place[np.concatenate([at, at + len(rows)])]) for name, at in rows.pools.items()}
