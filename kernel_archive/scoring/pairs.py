"""Count pairs in the right order by their distance, beside what one more measurement reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.order import (
    MIN_RATIO,
    close_pairs,
    countable_pairs,
    named_faster,
    pair_rows,
)
from kernel_archive.scoring.record import PairBand

if TYPE_CHECKING:
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.scoring.samples import ForecastRows
    from kernel_archive.scoring.split import Split

#: Title -> distance of two speedups, in x: over the first number, at most the second.
_DISTANCES: Final = {
    "1.05x to 1.2x": (MIN_RATIO, 1.2),
    "1.2x to 1.5x": (1.2, 1.5),
    "1.5x to 2x": (1.5, 2.0),
    "2x to 4x": (2.0, 4.0),
    "over 4x": (4.0, np.inf),
}


def pair_bands(rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count pairs in the right order by their distance, where the split has pairs to order."""
    if rows.split.kind == "close":
        return _bands_of_close(rows)
    return _bands_of_tasks(rows) if rows.split.kind == "eval" else ()


def _bands_of_close(rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count the rows, which are pairs of programs, by whether the faster one is named."""
    split, measured = rows.split, rows.split.surface.measured
    right = named_faster(above=rows.exceedance(1.0), speedups=split.speedups).mean(axis=0)
    ratio = np.maximum(split.speedups, 1.0 / split.speedups)
    bands = []
    for title, (low, high) in _DISTANCES.items():
        within = (ratio > low) & (ratio <= high)
        n = int(within.sum())
        if not n:
            continue
        ceiling = None
        if measured is not None:
            one, others = np.log(measured[within]), np.log(_of_others(measured[within]))
            known = ~np.isnan(one) & ~np.isnan(others)
            same_side = np.sign(one[known]) == np.sign(others[known])
            ceiling = float(same_side.mean()) if known.any() else None
        accuracy = float(right[within].mean())
        bands.append(PairBand(title=title, n_pairs=n, accuracy=accuracy, ceiling=ceiling))
    return tuple(bands)


def _bands_of_tasks(rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count the pairs inside every task and language."""
    counts: dict[str, Floats] = {}
    for pool, places in rows.split.pool_rows.items():
        table = rows.pair_tables[pool]
        for title, within in _by_distance(rows.split, places[table.rows]).items():
            counts[title] = counts.get(title, np.zeros(2)) + table.share_right(within)
    ceilings = rows.split.once(_ceilings)
    return tuple(
        PairBand(
            title=title,
            n_pairs=int(n),
            accuracy=float(right / n) if n else None,
            ceiling=ceilings[title],
        )
        for title, (right, n) in counts.items()
    )


def _by_distance(split: Split, places: Ints) -> dict[str, Bools]:
    """Title -> pairs of that distance, (n, n), of rows from the fastest to the slowest."""
    speedups, goals = split.speedups[places], split.surface.goals
    ratio = np.divide.outer(speedups, speedups)
    bands = {title: (ratio > low) & (ratio <= high) for title, (low, high) in _DISTANCES.items()}
    close = close_pairs(speedups, None if goals is None else goals[places])
    return {**bands, "close pairs": close}


def _of_others(measured: Floats) -> Floats:
    """Median of the other measurements of the row, for every measurement; NaN without any."""
    out = np.full(measured.shape, np.nan)
    for k in range(measured.shape[1]):
        others = np.delete(measured, k, axis=1)
        known = ~np.isnan(others).all(axis=1)
        out[known, k] = np.nanmedian(others[known], axis=1)
    return out


def _ceilings(split: Split) -> dict[str, float | None]:
    """Find how often one measurement orders a pair as the median of the others does."""
    counts: dict[str, Floats] = {}
    for places in split.pool_rows.values():
        rows = places[pair_rows(split.speedups[places])]
        countable = countable_pairs(split.speedups[rows], split.surface.spreads[rows])
        agreed, asked = np.zeros((2, len(rows), len(rows)))
        if split.surface.measured is not None:
            agreed, asked = _agreement(split.surface.measured[rows])
        for title, within in _by_distance(split, rows).items():
            pairs = countable & within
            count = np.array([agreed[pairs].sum(), asked[pairs].sum()])
            counts[title] = counts.get(title, np.zeros(2)) + count
    return {title: float(right / n) if n else None for title, (right, n) in counts.items()}


def _agreement(measured: Floats) -> tuple[Floats, Floats]:
    """Of every pair of rows, how often one measurement orders it as the others do, of how many."""
    n, repeats = measured.shape
    others = np.where(np.isnan(measured), np.nan, _of_others(measured))
    agreed, asked = np.zeros((2, n, n))
    for a, b in np.ndindex(repeats, repeats):
        one = np.subtract.outer(measured[:, a], measured[:, b])
        true = np.subtract.outer(others[:, a], others[:, b])
        asked += ~np.isnan(true)
        agreed += np.sign(one) == np.sign(true)  # never of NaN
    return agreed, asked
