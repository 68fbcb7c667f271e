"""Predict or defer: what a search saves that measures what the forecaster defers, and the one that it likes best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.scoring import recovery, selective

if TYPE_CHECKING:
    from kernel_archive.scoring.arrays import Bools, Floats
    from kernel_archive.scoring.samples import ForecastRows


def measured(deferred: Bools) -> int:
    """How many candidates of a task such a search measures: those deferred, and of the kept the likeliest best."""
    return min(int(deferred.sum()) + 1, len(deferred))


def searched(*, expected: Floats, speedups: Floats, deferred: Bools) -> float:
    """The best speedup that is measured over the best there is, in percent.

    Measured are the deferred candidates and, of the kept ones, the one with the largest expected speedup; of several that
    tie each is as likely, and the value is the expectation.

    Args:
        expected: shape (n,), S^ in x.
        speedups: shape (n,), x.
        deferred: shape (n,).

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

    The ways measure the same number of candidates: by deferring, by expected speedup alone, in random order.

    Args:
        rows: the rows.
        deferred: shape (R, n).
    """
    tasks = list(rows.strata.values())
    shape = (rows.n_repeats, len(tasks))
    share, found, ordered, random = (np.empty(shape) for _ in range(4))
    for r in range(rows.n_repeats):
        for t, at in enumerate(tasks):
            expected, speedups, left = rows.expected[r, at], rows.speedups[at], deferred[r, at]
            k = np.array([measured(left)], dtype=np.intp)
            share[r, t] = k[0] / len(at)
            found[r, t] = searched(expected=expected, speedups=speedups, deferred=left)
            ordered[r, t] = recovery.recovered_at(expected=expected, speedups=speedups, ranks=k)[0]
            random[r, t] = recovery.recovered_at_random(speedups=speedups, ranks=k)[0]
    return share.mean(axis=1), found.mean(axis=1), ordered.mean(axis=1), random.mean(axis=1)


def kept_errors(rows: ForecastRows, deferred: Bools) -> tuple[Floats, Floats]:
    """Forecast error when the forecaster's own confidence, or chance, keeps as many rows as it kept: x, each shape (R,).

    NaN in a repeat of which nothing is kept with a distribution.

    Args:
        rows: the rows.
        deferred: shape (R, n).
    """
    confident, random = np.full(rows.n_repeats, np.nan), np.full(rows.n_repeats, np.nan)
    for r in range(rows.n_repeats):
        use = rows.parsed[r]
        kept = int((use & ~deferred[r]).sum())
        if kept:
            losses = rows.errors[r, use]
            confident[r] = selective.selective_risk(confidence=rows.confidence[r, use], losses=losses)[kept - 1]
            random[r] = losses.mean()
    return confident, random
