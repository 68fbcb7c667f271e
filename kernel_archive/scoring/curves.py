"""The parts of a score record that are more than one figure: buckets, confusion, curves, and what deferring changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring import calibration, order, recovery
from kernel_archive.scoring.metrics import metrics_of
from kernel_archive.scoring.record import Bucket, Deferral, DiscoveryCurve, Metric, RiskCoverage
from kernel_archive.scoring.samples import RowSample
from kernel_archive.scoring.uncertainty import joined, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.scoring.arrays import Bools, Floats
    from kernel_archive.scoring.samples import ForecastRows


def measured(deferred: Bools) -> int:
    """How many candidates of a task such a search measures: those deferred, and of the kept the likeliest best."""
    return min(int(deferred.sum()) + 1, len(deferred))


def searched(*, expected: Floats, speedups: Floats, deferred: Bools) -> float:
    """The best speedup that is measured over the best there is, in percent; all have shape (n,), speedups in x.

    Measured are the deferred candidates and, of the kept ones, the one with the largest expected speedup; of several that
    tie each is as likely, and the value is the expectation.

    >>> both = np.array([True, False, False, False])
    >>> searched(expected=np.array([9.0, 1.0, 3.0, 2.0]), speedups=np.array([1.0, 4.0, 2.0, 1.0]), deferred=both)
    50.0
    """
    floor = float(speedups[deferred].max(initial=0.0))
    kept = ~deferred
    if not kept.any():
        return 100.0
    likely = speedups[kept][expected[kept] == expected[kept].max()]
    return float(100.0 * np.maximum(likely, floor).mean() / speedups.max())


def searches(rows: ForecastRows, deferred: Bools) -> tuple[Floats, Floats, Floats, Floats]:
    """Of every repeat, as means over tasks: share measured, and percent of the best found three ways, each shape (R,).

    The ways measure the same number of candidates: by deferring (shape (R, n)), by expected speedup alone, in random order.
    """
    found = np.empty((4, rows.n_repeats, len(rows.strata)))
    for r in range(rows.n_repeats):
        for t, at in enumerate(rows.strata.values()):
            expected, speedups, left = rows.expected[r, at], rows.speedups[at], deferred[r, at]
            k = np.array([measured(left)], dtype=np.intp)
            found[:, r, t] = (
                k[0] / len(at),
                searched(expected=expected, speedups=speedups, deferred=left),
                recovery.recovered_at(expected=expected, speedups=speedups, ranks=k)[0],
                recovery.recovered_at_random(speedups=speedups, ranks=k)[0],
            )
    share, by_deferring, by_expected, by_chance = found.mean(axis=2)
    return share, by_deferring, by_expected, by_chance


def kept_errors(rows: ForecastRows, deferred: Bools) -> tuple[Floats, Floats]:
    """Forecast error when the forecaster's own confidence, or chance, keeps as many rows as it kept: x, each shape (R,).

    NaN in a repeat of which nothing is kept with a distribution; ``deferred`` has shape (R, n).
    """
    confident, random = np.full(rows.n_repeats, np.nan), np.full(rows.n_repeats, np.nan)
    for r in range(rows.n_repeats):
        use = rows.parsed[r]
        kept = int((use & ~deferred[r]).sum())
        if kept:
            losses = rows.errors[r, use]
            confident[r] = calibration.selective_risk(confidence=rows.confidence[r, use], losses=losses)[kept - 1]
            random[r] = losses.mean()
    return confident, random


#: Limits at which the coverage is stated: forecast error in x, and error rate.
ERROR_LIMITS: Final = (0.1, 0.25, 0.5, 1.0)
ERROR_RATE_LIMITS: Final = (0.1, 0.2, 0.3, 0.5)
#: Confidence thresholds at which the accuracy is stated.
THRESHOLDS: Final = (0.5, 0.6, 0.7, 0.8, 0.9)
_PERCENT: Final = np.arange(1, 101)


def buckets(rows: ForecastRows) -> tuple[Bucket, ...]:
    """The ten confidence buckets, all repeats together, parsed rows only."""
    q, hit, error = rows.confidence[rows.parsed], rows.hits[rows.parsed], rows.errors[rows.parsed]
    at = calibration.bucket_of(confidence=q)
    out: list[Bucket] = []
    for m in range(calibration.N_BUCKETS):
        inside = at == m
        count = int(inside.sum())
        q_mean, hit_mean, error_mean = (float(v[inside].mean()) if count else None for v in (q, hit, error))
        out.append(Bucket(m / 10, (m + 1) / 10, count, q_mean, hit_mean, error_mean))
    return tuple(out)


def _at_percent(values: Floats) -> Floats:
    """A curve over k = 1..n at 1 to 100 % of n: the value at k = ceil(c n / 100)."""
    k = -(-_PERCENT * len(values) // 100)
    out: Floats = values[np.maximum(k, 1) - 1]
    return out


def risk_coverage(rows: ForecastRows) -> RiskCoverage | None:
    """Selective forecasting, mean over the repeats; ``None`` where a repeat has no parsed row."""
    if not rows.parsed.any(axis=1).all():
        return None
    errors, rates, at_error, at_rate, accuracy = [], [], [], [], []
    for q, loss, hit, parsed in zip(rows.confidence, rows.errors, rows.hits, rows.parsed, strict=True):
        error = calibration.selective_risk(confidence=q[parsed], losses=loss[parsed])
        rate = calibration.selective_risk(confidence=q[parsed], losses=1.0 - hit[parsed])
        errors.append(_at_percent(error))
        rates.append(_at_percent(rate))
        at_error.append([calibration.coverage_at(risk=error, limit=limit) for limit in ERROR_LIMITS])
        at_rate.append([calibration.coverage_at(risk=rate, limit=limit) for limit in ERROR_RATE_LIMITS])
        sure = partial(calibration.accuracy_at, confidence=q[parsed], correct=hit[parsed])
        accuracy.append([sure(threshold=limit) for limit in THRESHOLDS])
    hits = np.array(accuracy)[:, :, 0]
    shares = (np.array(accuracy)[:, :, 1] / rows.parsed.sum(axis=1)[:, None]).mean(axis=0)
    return RiskCoverage(
        coverage=tuple((_PERCENT / 100).tolist()),
        error=tuple(np.mean(errors, axis=0).tolist()),
        error_rate=tuple(np.mean(rates, axis=0).tolist()),
        coverage_at_error=_named(ERROR_LIMITS, np.mean(at_error, axis=0)),
        coverage_at_error_rate=_named(ERROR_RATE_LIMITS, np.mean(at_rate, axis=0)),
        accuracy_at={
            f"{limit:g}": (None if np.isnan(hits[:, i]).any() else float(hits[:, i].mean()), float(shares[i]))
            for i, limit in enumerate(THRESHOLDS)
        },
    )


def _named(limits: tuple[float, ...], values: Floats) -> dict[str, float]:
    return {f"{limit:g}": float(value) for limit, value in zip(limits, values, strict=True)}


def deferral(rows: ForecastRows, deferred: Bools, metric: Callable[[Floats], Metric]) -> Deferral | None:
    """What deferring, shape (R, n), changes; ``None`` where nothing is deferred. ``metric`` makes a figure of the repeats."""
    if not deferred.any():
        return None
    known = deferred & rows.parsed
    of_rows = [name for name, info in metrics_of(rows.kind).items() if info.accepted]
    kept = (rows.repeat(r).part(np.flatnonzero(~deferred[r])) for r in range(rows.n_repeats))
    accepted = joined(measure(RowSample.once(part), of_rows) for part in kept).overall
    confident, random = (None if np.isnan(e).any() else float(e.mean()) for e in kept_errors(rows, deferred))
    search: dict[str, float] = {}
    if rows.kind == "eval":
        names = ("measured", "found", "found_by_expected", "found_by_chance")
        search = {name: float(v.mean()) for name, v in zip(names, searches(rows, deferred), strict=True)}
    return Deferral(
        rate=float(deferred.mean()),
        accepted={name: metric(values) for name, values in accepted.items()},
        deferred_accuracy=float(rows.hits[known].mean()) if known.any() else None,
        n_deferred_parsed=int(known.sum()),
        error_by_confidence=confident,
        error_by_chance=random,
        **search,
    )


def discovery_curve(rows: ForecastRows, cutoff: float) -> DiscoveryCurve:
    """Precision and recall at one cutoff."""
    positive = rows.speedups >= cutoff
    recall = _PERCENT / 100
    values, found = [], []
    for scores in rows.exceedance(cutoff) if positive.any() else ():
        precision, reached = order.precision_recall(scores=scores, positive=positive)
        found.append(precision[np.searchsorted(reached, recall - 1e-12)])
        values.append(float(order.average_precision(scores=scores, positive=positive)))
    curves = np.array(found)
    return DiscoveryCurve(
        cutoff=cutoff,
        n_positive=int(positive.sum()),
        base_rate=float(positive.mean()),
        low=min(values, default=None),
        high=max(values, default=None),
        recall=tuple(recall.tolist()) if values else (),
        precision=tuple(curves.mean(axis=0).tolist()) if values else (),
        precision_low=tuple(curves.min(axis=0).tolist()) if values else (),
        precision_high=tuple(curves.max(axis=0).tolist()) if values else (),
        shortcuts={
            name: float(order.average_precision(scores=scores, positive=positive))
            for name, scores in (rows.shortcuts.items() if values else ())
        },
    )
