"""Count pairs in the right order by their distance, beside what one more measurement reaches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from kernel_archive.scoring.arrays import Bools, Floats
from kernel_archive.scoring.order import MIN_RATIO, close_pairs, named_faster
from kernel_archive.scoring.record import PairBand
from kernel_archive.scoring.samples import ForecastRows

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
    if rows.split.kind not in ("close", "eval"):
        return ()
    totals: dict[str, Floats] = {}
    counts = _rows_in_bands(rows) if rows.split.kind == "close" else _pairs_in_bands(rows)
    for title, numbers in counts:
        totals[title] = totals.get(title, np.zeros(4)) + numbers
    return tuple(
        PairBand(
            title=title,
            n_pairs=int(n),
            accuracy=float(right / n) if n else None,
            ceiling=float(agreed / compared) if compared else None,
        )
        for title, (right, n, agreed, compared) in totals.items()
        if n or rows.split.kind == "eval"
    )


def _bands(ratio: Floats) -> dict[str, Bools]:
    """Map each distance's title to the ratios of speedups that lie in it."""
    return {title: (ratio > low) & (ratio <= high) for title, (low, high) in _DISTANCES.items()}


def _rows_in_bands(rows: ForecastRows) -> Iterator[tuple[str, Floats]]:
    """Yield title and counts, shape (4,): right rows, all, measurements that agree, and all."""
    speedups, measured = rows.split.speedups, rows.split.row_facts.measured
    right = named_faster(above=rows.exceedance(1.0), speedups=speedups).mean(axis=0)
    single, others = np.full((2, len(rows), 1), np.nan)
    if measured is not None:
        single, others = np.log(measured), np.log(_of_others(measured))
    known = ~np.isnan(single) & ~np.isnan(others)
    agreed = known & (np.sign(single) == np.sign(others))
    for title, within in _bands(np.maximum(speedups, 1.0 / speedups)).items():
        parts = (right[within], within, agreed[within], known[within])
        yield title, np.array([part.sum() for part in parts], np.float64)


def _pairs_in_bands(rows: ForecastRows) -> Iterator[tuple[str, Floats]]:
    """Yield title and counts of every pool: right pairs, all, measurements that agree, and all.

    Rows of a pool stand from the fastest to the slowest.
    """
    row_facts = rows.split.row_facts
    for pool, positions in rows.split.pool_rows.items():
        table = rows.pair_tables[pool]
        rows_of_pool = positions[table.rows]
        speedups = rows.split.speedups[rows_of_pool]
        goals = None if row_facts.goals is None else row_facts.goals[rows_of_pool]
        agreed, compared = np.zeros((2, len(rows_of_pool), len(rows_of_pool)))
        if row_facts.measured is not None:
            agreed, compared = _agreement(row_facts.measured[rows_of_pool])
        bands = _bands(np.divide.outer(speedups, speedups))
        bands["close pairs"] = close_pairs(speedups, goals)
        for title, within in bands.items():
            pairs = table.countable & within
            right, n = table.count_right(within)
            yield title, np.array([right, n, agreed[pairs].sum(), compared[pairs].sum()])


def _of_others(measured: Floats) -> Floats:
    """Take the median of the row's other measurements, for every measurement; NaN without any."""
    medians = np.full(measured.shape, np.nan)
    for k in range(measured.shape[1]):
        others = np.delete(measured, k, axis=1)
        has_others = ~np.isnan(others).all(axis=1)
        medians[has_others, k] = np.nanmedian(others[has_others], axis=1)
    return medians


def _agreement(measured: Floats) -> tuple[Floats, Floats]:
    """Count for every pair of rows how often one measurement orders it as the others do."""
    n, repeats = measured.shape
    others = np.where(np.isnan(measured), np.nan, _of_others(measured))
    agreed, compared = np.zeros((2, n, n))
    for a, b in np.ndindex(repeats, repeats):
        by_one = np.subtract.outer(measured[:, a], measured[:, b])
        by_others = np.subtract.outer(others[:, a], others[:, b])
        compared += ~np.isnan(by_others)
        agreed += np.sign(by_one) == np.sign(by_others)  # never of NaN
    return agreed, compared
