"""Selective forecasting: the error that remains when only the most confident rows are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.scoring.arrays import EDGE, Ranking, counted, group_ties, per_draw, product

if TYPE_CHECKING:
    from kernel_archive.scoring.arrays import Bools, Floats


def selective_risk(*, confidence: Floats, losses: Floats) -> Floats:
    """Mean loss of the k most confident rows, for k = 1..n: shape (n,).

    Rows of equal confidence are accepted in random order; the value is the exact expectation.

    Args:
        confidence: shape (n,), of the rows with a forecast.
        losses: shape (n,), for example forecast errors in x, or 1 for a wrong bin.

    >>> selective_risk(confidence=np.array([0.5, 0.9, 0.5]), losses=np.array([2.0, 0.0, 1.0])).tolist()
    [0.0, 0.75, 1.0]
    """
    n = len(confidence)
    group = group_ties(-confidence)
    mean = np.bincount(group, weights=losses) / np.bincount(group)
    accepted: Floats = np.cumsum(mean[np.sort(group)]) / np.arange(1, n + 1)
    return accepted


def aurc(*, confidence: Floats, losses: Floats, parsed: Bools | None = None, weights: Floats | None = None) -> Floats:
    """Area under the risk-coverage curve: mean of :func:`selective_risk` over the coverages k/n.

    A row at places s+1..s+w of the order adds loss * sum over its places m of (H_n - H_{m-1}) / n, where H are the
    harmonic numbers: only the counts have to be summed along the order, once for all losses.

    Args:
        confidence: shape (n,).
        losses: shape (n,), or (L, n) for several losses of the same rows.
        parsed: shape (n,), rows that count; all when not given.
        weights: shape (n, D), how often each row counts in each draw, in whole numbers; once when not given.

    Returns:
        shape (D,) or (L, D), without its last axis where there are no weights; NaN where no row counts.
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
    # The mean loss of a tie group holds for each of its places; a group of one row has the same loss in every draw.
    fixed = np.zeros((len(several), len(ranking.ends)))
    fixed[:, ranking.single] = ordered[:, ranking.ends[ranking.single] - 1]
    total += product(np.diff(fixed, axis=1, append=0.0), at)
    for g in np.flatnonzero(~ranking.single):
        start, end = (int(ranking.ends[g - 1]) if g else 0), int(ranking.ends[g])
        step = at[g] - (at[g - 1] if g else 0.0)
        size = ranking.counts[g] - (ranking.counts[g - 1] if g else 0.0)
        total -= product(ordered[:, start:end], ranking.weights[start:end]) * (step / np.maximum(size, 1.0))
    with np.errstate(invalid="ignore"):
        area: Floats = (total / n).reshape(*losses.shape[:-1], -1)
    return per_draw(area, weights)


def coverage_at(*, risk: Floats, limit: float) -> float:
    """Largest coverage k/n whose selective risk is at most the limit; 0 where there is none.

    Args:
        risk: shape (n,), from :func:`selective_risk`.
        limit: in the unit of the loss.
    """
    within = np.flatnonzero(risk <= limit)
    return float(within[-1] + 1) / len(risk) if len(within) else 0.0


def accuracy_at(*, confidence: Floats, correct: Bools, threshold: float) -> tuple[float, int]:
    """Accuracy over the rows whose confidence is at least the threshold (NaN where there is none), and their number."""
    chosen = confidence >= threshold - EDGE
    return (float(correct[chosen].mean()) if chosen.any() else float("nan")), int(chosen.sum())
