"""Compute the parts of a score that are more than one figure: buckets, curves and deferral."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring import calibration, order
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.record import Bucket, Deferral, DiscoveryCurve, PairBand, RiskCoverage
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.scoring.uncertainty import joined, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.scoring.record import Metric
    from kernel_archive.scoring.split import Split

_PERCENT: Final = np.arange(1, 101)
#: Distances of two speedups, in x.
_BANDS: Final = ((order.MIN_RATIO, 1.2), (1.2, 1.5), (1.5, 2.0), (2.0, 4.0), (4.0, np.inf))
_TITLES: Final = (
    *(f"{low:g}x to {high:g}x" if high < np.inf else f"over {low:g}x" for low, high in _BANDS),
    "close pairs",
)


def buckets(rows: ForecastRows) -> tuple[Bucket, ...]:
    """Compute the ten confidence buckets, all repeats together, parsed rows only."""
    parsed = rows.parsed
    values = (rows.confidence[parsed], rows.hits[parsed], rows.errors[parsed])
    place = calibration.bucket_of(confidence=values[0])
    out: list[Bucket] = []
    for m in range(calibration.N_BUCKETS):
        inside = place == m
        count = int(inside.sum())
        q, hit, error = (float(v[inside].mean()) if count else None for v in values)
        out.append(Bucket(m / 10, (m + 1) / 10, count, q, hit, error))
    return tuple(out)


def risk_coverage(rows: ForecastRows) -> RiskCoverage | None:
    """Compute selective forecasting, mean over repeats; ``None`` where one has no parsed row."""
    if not rows.parsed.any(axis=1).all():
        return None
    curves = []
    for r, parsed in enumerate(rows.parsed):
        # At a coverage of c % the k = ceil(c n / 100) most confident of n rows are accepted.
        k = -(-_PERCENT * int(parsed.sum()) // 100)
        risks = [
            calibration.selective_risk(confidence=rows.confidence[r, parsed], losses=losses)
            for losses in (rows.errors[r, parsed], 1.0 - rows.hits[r, parsed])
        ]
        curves.append([risk[np.maximum(k, 1) - 1] for risk in risks])
    error, error_rate = np.mean(curves, axis=0).tolist()
    return RiskCoverage(
        coverage=tuple((_PERCENT / 100).tolist()), error=tuple(error), error_rate=tuple(error_rate)
    )


def discovery_curve(rows: ForecastRows, cutoff: float) -> DiscoveryCurve:
    """Compute precision and recall at one cutoff."""
    positive = rows.speedups >= cutoff
    n, base_rate = int(positive.sum()), float(positive.mean())
    if not n:
        return DiscoveryCurve(cutoff=cutoff, n_positive=n, base_rate=base_rate)
    recall, precisions, averages = _PERCENT / 100, [], []
    for scores in rows.exceedance(cutoff):
        precision, reached = order.precision_recall(scores=scores, positive=positive)
        precisions.append(precision[np.searchsorted(reached, recall - 1e-12)])
        averages.append(float(order.average_precision(scores=scores, positive=positive)))
    return DiscoveryCurve(
        cutoff=cutoff,
        n_positive=n,
        base_rate=base_rate,
        low=min(averages),
        high=max(averages),
        recall=tuple(recall.tolist()),
        precision=tuple(np.mean(precisions, axis=0).tolist()),
    )


def bands_of(split: Split, rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count pairs in the right order by their distance, where the split has pairs to order."""
    if split.kind == "close":
        return _close_bands(split, rows)
    return pair_bands(split, rows) if split.kind == "eval" else ()


def _close_bands(split: Split, rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count the close pairs whose faster program is named; ceiling: what one measurement names."""
    right = METRICS["faster"].of_rows(rows).mean(axis=0)
    ratio = np.maximum(rows.speedups, 1.0 / rows.speedups)
    measured = split.ordered.surface.measured
    out = []
    for (low, high), title in zip(_BANDS, _TITLES, strict=False):
        inside = (ratio > low) & (ratio <= high)
        if not inside.any():
            continue
        ceiling = None if measured is None else _one_measurement(measured[inside])
        band = PairBand(
            title=title,
            n_pairs=int(inside.sum()),
            accuracy=float(right[inside].mean()),
            ceiling=ceiling,
        )
        out.append(band)
    return tuple(out)


def _one_measurement(ratios: Floats) -> float | None:
    """Share of measured ratios, shape (n, k), on the side of 1 of the median of the others."""
    sides = []
    for k in range(ratios.shape[1]):
        others = np.delete(ratios, k, axis=1)
        known = ~np.isnan(ratios[:, k]) & ~np.isnan(others).all(axis=1)
        truth = np.log(np.nanmedian(others[known], axis=1))
        sides.append(np.sign(np.log(ratios[known, k])) == np.sign(truth))
    agree = np.concatenate(sides)
    return float(agree.mean()) if len(agree) else None


def pair_bands(split: Split, rows: ForecastRows) -> tuple[PairBand, ...]:
    """Count pairs in the right order by the distance of their speedups, with their ceilings."""
    ceilings = split.once(_ceilings)
    counts = np.zeros((len(_BANDS) + 1, 2))
    for name, at in rows.pools.items():
        table = rows.pair_tables[name]
        for number, within in enumerate(_bands(rows, at[table.rows])):
            counts[number] += table.share_right(within)
    return tuple(
        PairBand(title=title, n_pairs=int(n), accuracy=right / n if n else None, ceiling=ceiling)
        for title, (right, n), ceiling in zip(_TITLES, counts.tolist(), ceilings, strict=True)
    )


def _bands(rows: ForecastRows, at: Ints) -> Iterator[Bools]:
    """Give the pairs of every band among rows from the fastest to the slowest, then close ones."""
    speedups = rows.speedups[at]
    ratio = np.divide.outer(speedups, speedups)
    for low, high in _BANDS:
        yield (ratio > low) & (ratio <= high)
    yield order.close_pairs(speedups, None if rows.goals is None else rows.goals[at])


def _ceilings(split: Split) -> tuple[float | None, ...]:
    """Find how often one measurement orders a pair as the median of the others does, by band."""
    even = Forecasts.from_arrays(split, np.full((len(split), 8), 0.125))
    rows, measured = ForecastRows.of(split, even), split.ordered.surface.measured
    if measured is None:
        return (None,) * len(_TITLES)
    others = np.full(measured.shape, np.nan)
    for k in range(measured.shape[1]):
        left = np.delete(measured, k, axis=1)
        known = ~np.isnan(measured[:, k]) & ~np.isnan(left).all(axis=1)
        others[known, k] = np.nanmedian(left[known], axis=1)
    counts = np.zeros((len(_TITLES), 2))
    for pool in rows.pools.values():
        at = pool[np.argsort(-rows.speedups[pool], kind="stable")][: order.MAX_ROWS]
        countable = order.countable_pairs(rows.speedups[at], rows.spreads[at])
        bands = [countable & band for band in _bands(rows, at)]
        for a, b in np.ndindex(measured.shape[1], measured.shape[1]):
            one = np.sign(np.subtract.outer(measured[at, a], measured[at, b]))
            truth = np.sign(np.subtract.outer(others[at, a], others[at, b]))
            known = ~np.isnan(one) & ~np.isnan(truth)
            for number, band in enumerate(bands):
                chosen = band & known
                counts[number] += ((one == truth)[chosen].sum(), chosen.sum())
    return tuple(right / n if n else None for right, n in counts.tolist())


def deferral(
    rows: ForecastRows, deferred: Bools, metric: Callable[[Floats], Metric]
) -> Deferral | None:
    """Compute what deferring (R, n) changes; ``None`` where nothing is deferred.

    ``metric`` makes a figure of the values of the repeats.
    """
    if not deferred.any():
        return None
    answered = deferred & rows.parsed
    names = [name for name, info in metrics_of(rows.kind).items() if info.accepted]
    kept = (rows.repeat(r).part(np.flatnonzero(~deferred[r])) for r in range(rows.n_repeats))
    accepted = joined(measure(RowSample.once(part), names) for part in kept).overall
    return Deferral(
        rate=float(deferred.mean()),
        accepted={name: metric(values) for name, values in accepted.items()},
        deferred_accuracy=float(rows.hits[answered].mean()) if answered.any() else None,
        n_deferred_parsed=int(answered.sum()),
    )
