"""Measure what a confidence is worth: calibration, monotonicity, and risk in the surest rows.

Rows without a distribution have the weight 0. Every value is NaN in a draw without a row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernel_archive.scoring.arrays import EDGE, TIE, Bools, Floats, group_ties, product, running

#: Confidence buckets of ECE, the reliability diagram and confidence monotonicity.
N_BUCKETS: Final = 10


def bucket_of(*, confidence: Floats) -> NDArray[np.intp]:
    """Find the confidence bucket, min(floor(10 q), 9); 0.7 is in bucket 7 however it is rounded."""
    return np.clip(np.floor(confidence * N_BUCKETS + EDGE), 0, N_BUCKETS - 1).astype(np.intp)


def _bucket_sums(values: Floats, confidence: Floats, weights: Floats) -> Floats:
    """Sum the values of the drawn rows of every bucket: shape (10, D)."""
    bucket = bucket_of(confidence=confidence)
    inside = [np.flatnonzero(bucket == b) for b in range(N_BUCKETS)]
    return np.stack([product(values[rows], weights[rows]) for rows in inside])


def ece(*, confidence: Floats, correct: Bools, weights: Floats) -> Floats:
    """Compute the expected calibration error over ten equal buckets, 0 (best) to 1: shape (D,)."""
    gaps = _bucket_sums(correct - confidence, confidence, weights)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(gaps).sum(axis=0) / weights.sum(axis=0))


def confidence_monotonicity(*, confidence: Floats, errors: Floats, weights: Floats) -> Floats:
    """Compute D_mono, 0 to 1, how far the mean error rises with confidence: shape (D,).

    0 when it only falls, when all buckets agree, or when only one is filled. ``errors`` are in x.
    """
    counts = _bucket_sums(np.ones(len(confidence)), confidence, weights)
    with np.errstate(invalid="ignore"):
        means = _bucket_sums(errors, confidence, weights) / counts
    rise, change = np.zeros((2, weights.shape[1]))
    last = np.full(weights.shape[1], np.nan)
    for mean in means:  # NaN where the bucket is empty
        step = np.nan_to_num(mean - last)
        step[np.abs(step) <= TIE * np.abs(np.nan_to_num(mean))] = 0.0
        rise += np.maximum(step, 0.0)
        change += np.abs(step)
        last = np.where(np.isnan(mean), last, mean)
    share = np.divide(rise, change, out=np.zeros_like(rise), where=change > 0)
    return np.where(np.isnan(last), np.nan, share)


def selective_risk(*, confidence: Floats, losses: Floats) -> Floats:
    """Average the losses of the k most confident rows, for k = 1..n: shape (n,).

    Rows of equal confidence are accepted in random order; the value is the exact expectation.

    >>> q, losses = np.array([0.5, 0.9, 0.5]), np.array([2.0, 0.0, 1.0])
    >>> selective_risk(confidence=q, losses=losses).tolist()
    [0.0, 0.75, 1.0]
    """
    group = group_ties(-confidence)
    mean = np.bincount(group, weights=losses) / np.bincount(group)
    accepted: Floats = np.cumsum(mean[np.sort(group)]) / np.arange(1, len(group) + 1)
    return accepted


def aurc(*, confidence: Floats, losses: Floats, weights: Floats) -> Floats:
    """Compute the area under the risk-coverage curve, the mean :func:`selective_risk`: (D,).

    A tie group at the places a+1..b of the order adds its mean loss times the sum over its places m
    of (H_n - H_{m-1}) / n, where H are the harmonic numbers.
    """
    group = group_ties(-confidence)
    order, last = np.argsort(group, kind="stable"), np.cumsum(np.bincount(group)) - 1
    drawn = weights[order]
    lost = running(np.add, drawn * losses[order][:, None])[last]
    counts = running(np.add, drawn)[last]
    ends = np.concatenate([np.zeros((1, weights.shape[1])), counts]).astype(np.int32)
    size, n = np.diff(ends, axis=0), ends[-1]
    mean = np.diff(lost, axis=0, prepend=0.0) / np.maximum(size, 1)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n.max() + 1))])
    before = np.concatenate([[0.0], np.cumsum(harmonic[:-1])])  # sum of H_0 .. H_{x-1}
    share = size * harmonic[n] - np.diff(before[ends], axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.einsum("gd,gd->d", mean, share) / n)
