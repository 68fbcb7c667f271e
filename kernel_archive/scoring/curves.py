"""Compute the parts of a score that are more than one figure: buckets, curves and deferral."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring import calibration, order
from kernel_archive.scoring.metrics import metrics_of
from kernel_archive.scoring.record import Bucket, Deferral, DiscoveryCurve, RiskCoverage
from kernel_archive.scoring.samples import RowSample
from kernel_archive.scoring.uncertainty import joined, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.scoring.arrays import Bools, Floats
    from kernel_archive.scoring.record import Metric
    from kernel_archive.scoring.samples import ForecastRows

_PERCENT: Final = np.arange(1, 101)


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
    positive = rows.split.speedups >= cutoff
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


def deferral(
    rows: ForecastRows, deferred: Bools, metric: Callable[[Floats], Metric]
) -> Deferral | None:
    """Compute what deferring (R, n) changes; ``None`` where nothing is deferred.

    ``metric`` makes a figure of the values of the repeats.
    """
    if not deferred.any():
        return None
    answered = deferred & rows.parsed
    names = [name for name, info in metrics_of(rows.split.kind).items() if info.accepted]
    kept = (rows.repeat(r).take(np.flatnonzero(~deferred[r])) for r in range(rows.n_repeats))
    accepted = joined(measure(RowSample.once(part), names) for part in kept).overall
    return Deferral(
        rate=float(deferred.mean()),
        accepted={name: metric(values) for name, values in accepted.items()},
        deferred_accuracy=float(rows.hits[answered].mean()) if answered.any() else None,
        n_deferred_parsed=int(answered.sum()),
    )
