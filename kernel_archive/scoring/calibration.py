"""Measure what a confidence is worth: calibration, monotonicity, and risk in the surest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.arrays import (
    EDGE,
    TIE,
    counted,
    group_ties,
    per_draw,
    product,
    running,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernel_archive.scoring.arrays import Bools, Floats, Ints

#: Confidence buckets of ECE, the reliability diagram and confidence monotonicity.
N_BUCKETS: Final = 10


def bucket_of(*, confidence: Floats) -> NDArray[np.intp]:
    """Confidence bucket, 0 to 9: min(floor(10 q), 9); 0.7 is in bucket 7 however it was rounded."""
    return np.clip(np.floor(confidence * N_BUCKETS + EDGE), 0, N_BUCKETS - 1).astype(np.intp)


def _bucket_sums(weights: Floats, buckets: Ints, parsed: Bools, values: Floats) -> Floats:
    """Sums of the values of the drawn, parsed rows of every bucket: shape (10, D)."""
    inside = (np.flatnonzero(parsed & (buckets == bucket)) for bucket in range(N_BUCKETS))
    return np.stack([product(values[rows], weights[rows]) for rows in inside])


def _all(parsed: Bools | None, n: int) -> Bools:
    return np.ones(n, bool) if parsed is None else parsed


def ece(
    *,
    confidence: Floats,
    correct: Bools,
    parsed: Bools | None = None,
    weights: Floats | None = None,
) -> Floats:
    """Expected calibration error over ten equal-width confidence buckets, 0 (best) to 1.

    Of n rows, those ``parsed`` alone; ``weights``, shape (n, D), say how often each counts in each
    draw. Returns shape (D,), or one value without weights; NaN where no row counts.
    """
    w, kept = counted(weights, len(confidence)), _all(parsed, len(confidence))
    gaps = _bucket_sums(w, bucket_of(confidence=confidence), kept, correct - confidence)
    with np.errstate(invalid="ignore"):
        return per_draw(np.abs(gaps).sum(axis=0) / product(kept.astype(float), w), weights)


def confidence_monotonicity(
    *,
    confidence: Floats,
    errors: Floats,
    parsed: Bools | None = None,
    weights: Floats | None = None,
) -> Floats:
    """D_mono in [0, 1]: how far the mean error rises with confidence; 0 when it only falls.

    0 also when all buckets agree or only one is filled. ``errors`` has shape (n,), in x; the rest
    as in :func:`ece`.
    """
    w, kept = counted(weights, len(confidence)), _all(parsed, len(confidence))
    buckets = bucket_of(confidence=confidence)
    sums = _bucket_sums(w, buckets, kept, errors)
    counts = _bucket_sums(w, buckets, kept, np.ones(len(confidence)))
    up, total = np.zeros(w.shape[1]), np.zeros(w.shape[1])
    last = np.full(w.shape[1], np.nan)
    for m in range(N_BUCKETS):
        full = counts[m] > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums[m] / counts[m]
        step = np.where(full & ~np.isnan(last), mean - last, 0.0)
        step = np.where(np.abs(step) <= TIE * np.abs(np.where(full, mean, 0.0)), 0.0, step)
        up += np.maximum(step, 0.0)
        total += np.abs(step)
        last = np.where(full, mean, last)
    share = np.divide(up, total, out=np.zeros_like(up), where=total > 0)
    return per_draw(np.where(np.isnan(last), np.nan, share), weights)


def selective_risk(*, confidence: Floats, losses: Floats) -> Floats:
    """Mean loss of the k most confident rows, for k = 1..n: shape (n,).

    Rows of equal confidence are accepted in random order; the value is the exact expectation.

    >>> q, losses = np.array([0.5, 0.9, 0.5]), np.array([2.0, 0.0, 1.0])
    >>> selective_risk(confidence=q, losses=losses).tolist()
    [0.0, 0.75, 1.0]
    """
    group = group_ties(-confidence)
    mean = np.bincount(group, weights=losses) / np.bincount(group)
    accepted: Floats = np.cumsum(mean[np.sort(group)]) / np.arange(1, len(group) + 1)
    return accepted


def aurc(
    *,
    confidence: Floats,
    losses: Floats,
    parsed: Bools | None = None,
    weights: Floats | None = None,
) -> Floats:
    """Area under the risk-coverage curve: mean of :func:`selective_risk` over the coverages k/n.

    A tie group at the places a+1..b of the order adds its mean loss times the sum over its places m
    of (H_n - H_{m-1}) / n, where H are the harmonic numbers. Arguments as of :func:`ece`.
    """
    w, kept = counted(weights, len(confidence)), np.flatnonzero(_all(parsed, len(confidence)))
    if not len(kept):
        return per_draw(np.full(w.shape[1], np.nan), weights)
    group = group_ties(-confidence[kept])
    order, last = kept[np.argsort(group, kind="stable")], np.cumsum(np.bincount(group)) - 1
    drawn = w[order]
    lost = running(np.add, drawn * losses[order][:, None])[last]
    counts = running(np.add, drawn)[last]
    ends = np.concatenate([np.zeros((1, w.shape[1])), counts]).astype(np.int32)
    size, n = np.diff(ends, axis=0), ends[-1]
    mean = np.diff(lost, axis=0, prepend=0.0) / np.maximum(size, 1)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n.max() + 1))])
    before = np.concatenate([[0.0], np.cumsum(harmonic[:-1])])  # sum of H_0 .. H_{x-1}
    share = size * harmonic[n] - np.diff(before[ends], axis=0)
    with np.errstate(invalid="ignore"):
        return per_draw(np.einsum("gd,gd->d", mean, share) / n, weights)
