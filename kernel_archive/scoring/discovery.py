"""Discovery moments: how well a forecast of a child program points at the edits that bring a speedup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME, Scheme
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.scoring.arrays import Ranking, counted, group_ties, per_draw, row_sums

if TYPE_CHECKING:
    from kernel_archive.scoring.arrays import Bools, Floats


def shares_above(cutoff: float, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Share of every bin's mass that lies above a cutoff in x, log-uniform inside the bin: shape (8,).

    Raises:
        ValueError: the cutoff lies inside an open end bin.

    >>> shares_above(1.25).round(6).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.356144, 1.0, 1.0, 1.0]
    """
    rule = scheme_of(scheme)
    if not rule.edges[0] <= cutoff <= rule.edges[-1]:
        raise ValueError(f"the cutoff {cutoff} lies inside an open end bin of scheme {scheme}")
    edges = np.log2(rule.edges)
    inner = (edges[1:] - np.log2(cutoff)) / np.diff(edges)
    return np.concatenate([[0.0], np.clip(inner, 0.0, 1.0), [1.0]])


def exceedance(*, probabilities: Floats, cutoff: float, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Pr[g >= cutoff] of every forecast, shape (...,), from probabilities of shape (..., 8); the cutoff in x.

    >>> float(exceedance(probabilities=np.full(8, 1 / 8), cutoff=2.0))
    0.25
    """
    return row_sums(probabilities * shares_above(cutoff, scheme))


def precision_recall(*, scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """Precision and recall over the distinct scores, shape (n,), from the highest down; tied scores are one step.

    At least one row must be ``positive``, shape (n,).

    >>> p, r = precision_recall(scores=np.array([0.9, 0.5, 0.5]), positive=np.array([True, False, True]))
    >>> p.round(4).tolist(), r.tolist()
    ([1.0, 0.6667], [0.5, 1.0])
    """
    group = group_ties(-scores)
    hits = np.cumsum(np.bincount(group, weights=positive))
    taken = np.cumsum(np.bincount(group))
    return hits / taken, hits / hits[-1]


def average_precision(*, scores: Floats, positive: Bools, weights: Floats | None = None) -> Floats:
    """Average precision sum_n (R_n - R_{n-1}) P_n over the distinct scores.

    As ``sklearn.metrics.average_precision_score``; a constant score gives the share of positives; NaN without any. ``scores``
    and ``positive`` have shape (n,), ``weights`` (n, D) in whole numbers; the result (D,), or one value without weights.

    >>> float(average_precision(scores=np.zeros(4), positive=np.array([True, False, False, False])))
    0.25
    """
    w = counted(weights, len(scores))
    if not len(scores):
        return per_draw(np.full(w.shape[1], np.nan), weights)
    # Counts of rows: exact in 32 bits, which are half of what would be read and written.
    ranking = Ranking(w.astype(np.int32), scores)
    found = ranking.up_to(ranking.weights * positive[ranking.order][:, None])
    precision = np.zeros(found.shape)
    np.divide(found, ranking.counts, out=precision, where=ranking.counts > 0)
    hits = found.astype(np.float64)
    # sum_n (h_n - h_{n-1}) p_n, without a table of the steps
    total = np.einsum("nd,nd->d", hits, precision) - np.einsum("nd,nd->d", hits[:-1], precision[1:])
    with np.errstate(invalid="ignore", divide="ignore"):
        return per_draw(total / hits[-1], weights)
