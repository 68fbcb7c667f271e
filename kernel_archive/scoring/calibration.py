"""Measure what a confidence is worth: calibration, monotonicity, and risk in the surest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.arrays import EDGE, TIE, Ranking, counted, group_ties, per_draw, product

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

    Args:
        confidence: shape (n,).
        correct: shape (n,).
        parsed: shape (n,), rows that count; all when not given.
        weights: shape (n, D), how often each row counts in each draw; once when not given.

    Returns:
        shape (D,), or one value without weights; NaN where no row counts.

    >>> float(ece(confidence=np.array([1.0, 1.0, 0.0]), correct=np.array([True, False, False])))
    0.3333333333333333
    """
    w, kept = counted(weights, len(confidence)), _all(parsed, len(confidence))
    gaps = _bucket_sums(w, bucket_of(confidence=confidence), kept, correct - confidence)
    with np.errstate(invalid="ignore"):
        return per_draw(np.abs(gaps).sum(axis=0) / product(kept.astype(float), w), weights)


def adaptive_ece(
    *,
    confidence: Floats,
    correct: Bools,
    parsed: Bools | None = None,
    weights: Floats | None = None,
) -> Floats:
    """Calibration error over ten buckets of equal count, cut in order of confidence.

    Every bucket holds exactly a tenth of the rows: a row, or a group of rows of equal confidence,
    that lies on a cut is shared between the two sides in proportion, so that neither file order nor
    n matters. Arguments and result as in :func:`ece`.
    """
    w = counted(weights, len(confidence))
    ranking = Ranking(w, confidence, _all(parsed, len(confidence)))
    if not len(ranking.order):
        return per_draw(np.full(w.shape[1], np.nan), weights)
    signed = ranking.up_to(ranking.weights * (correct - confidence)[ranking.order][:, None])
    counts, n, column = ranking.counts, ranking.counts[-1], np.arange(w.shape[1])
    edges = np.zeros((N_BUCKETS + 1, w.shape[1]))
    edges[-1] = signed[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        for m in range(1, N_BUCKETS):
            cut = n * m / N_BUCKETS
            place = np.count_nonzero(counts < np.ceil(cut), axis=0)
            low = np.maximum(place - 1, 0)
            count_low = np.where(place > 0, counts[low, column], 0.0)
            sum_low = np.where(place > 0, signed[low, column], 0.0)
            share = (cut - count_low) / (counts[place, column] - count_low)
            edges[m] = sum_low + share * (signed[place, column] - sum_low)
        return per_draw(np.abs(np.diff(edges, axis=0)).sum(axis=0) / n, weights)


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

    Args:
        confidence: shape (n,), of the rows with a forecast.
        losses: shape (n,), for example forecast errors in x, or 1 for a wrong bin.

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

    A row at places s+1..s+w of the order adds loss * sum over its places m of (H_n - H_{m-1}) / n,
    where H are the harmonic numbers: only the counts have to be summed along the order, once for
    all losses.

    Args:
        confidence: shape (n,).
        losses: shape (n,), or (L, n) for several losses of the same rows.
        parsed: shape (n,), rows that count; all when not given.
        weights: shape (n, D), how often each row counts in each draw, in whole numbers; once when
            not given.

    Returns:
        shape (D,) or (L, D), without its last axis where there are no weights; NaN where no row
        counts.
    """
    w = counted(weights, len(confidence))
    several = np.atleast_2d(losses)
    ranking = Ranking(w, confidence, parsed)
    if not len(ranking.order):
        return per_draw(np.full((*losses.shape[:-1], w.shape[1]), np.nan), weights)
    counts = ranking.counts.astype(np.int32)
    n = counts[-1]
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n.max() + 1))])
    before = np.concatenate([[0.0], np.cumsum(harmonic[:-1])])  # sum of H_0 .. H_{x-1}
    at = before[counts]
    ordered = several[:, ranking.order]
    total = product(ordered, ranking.weights) * harmonic[n]
    # The mean loss of a tie group holds for each of its places; a group of one row has the same
    # loss in every draw.
    fixed = np.zeros((len(several), len(ranking.ends)))
    fixed[:, ranking.single] = ordered[:, ranking.ends[ranking.single] - 1]
    total += product(np.diff(fixed, axis=1, append=0.0), at)
    for g in np.flatnonzero(~ranking.single):
        start, end = (int(ranking.ends[g - 1]) if g else 0), int(ranking.ends[g])
        step = at[g] - (at[g - 1] if g else 0.0)
        size = ranking.counts[g] - (ranking.counts[g - 1] if g else 0.0)
        total -= product(ordered[:, start:end], ranking.weights[start:end]) * (
            step / np.maximum(size, 1.0)
        )
    with np.errstate(invalid="ignore"):
        area: Floats = (total / n).reshape(*losses.shape[:-1], -1)
    return per_draw(area, weights)
