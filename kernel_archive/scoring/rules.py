"""Score single forecasts, and say what one says: formulas, which check nothing.

Shapes: n rows in the order of the split; ``...`` stands for any leading axes, such as repeats.
Probabilities have shape (..., n, 8), and each row's sum to 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernel_archive.bins import N_BINS
from kernel_archive.scoring.arrays import EDGE, TIE, Bools, Floats, Ints, row_sums

#: A probability below this counts as this in the log likelihood.
MIN_PROBABILITY: Final = 1e-12


def normalise(*, raw: Floats) -> Floats:
    """Divide raw probabilities, shape (..., 8), by their sum, which must be above 0."""
    return raw / row_sums(raw)[..., None] + 0.0  # which turns a negative zero into a plain one


def predicted_bins(*, probabilities: Floats, stated_bins: Ints | None = None) -> NDArray[np.int8]:
    """Predict the bin of every forecast, 1 to 8, shape (...,): the most probable one.

    Ties go to the stated bin (0: none) if it is among the tied ones, else to the tied bin nearest
    to the mean bin, the lower of two equally near.

    >>> tied = np.array([0, 0.4, 0, 0, 0.4, 0.2, 0, 0])
    >>> int(predicted_bins(probabilities=tied))
    5
    >>> int(predicted_bins(probabilities=tied, stated_bins=np.array(2)))
    2
    """
    best = probabilities.max(axis=-1, keepdims=True)
    tied = probabilities >= best - TIE * best
    labels = np.arange(1, N_BINS + 1)
    mean_bin = row_sums(probabilities * labels)[..., None]
    distance = np.where(tied, np.abs(labels - mean_bin), np.inf)
    nearest = distance <= distance.min(axis=-1, keepdims=True) + EDGE
    chosen = np.argmax(nearest, axis=-1) + 1
    if stated_bins is not None:
        index = np.clip(stated_bins, 1, N_BINS).astype(np.intp) - 1
        is_tied = np.take_along_axis(tied, index[..., None], axis=-1)[..., 0]
        chosen = np.where((stated_bins > 0) & is_tied, stated_bins, chosen)
    return np.asarray(chosen, dtype=np.int8)


def confidence(*, probabilities: Floats, predicted: Ints) -> Floats:
    """Look up the confidence q = p[predicted bin], shape (...,); ``predicted`` is 1 to 8."""
    index = predicted.astype(np.intp)[..., None] - 1
    return np.take_along_axis(probabilities, index, axis=-1)[..., 0]


def expected_speedup(*, probabilities: Floats, representatives: Floats) -> Floats:
    """Compute the expected speedup S^ = sum_b p_b m_b, in x, equal for equal forecasts: (...,)."""
    return row_sums(probabilities * representatives)


def brier(*, probabilities: Floats, bins: Ints) -> Floats:
    """Compute the Brier score of rows: (..., n), of ``probabilities`` (..., n, 8), ``bins`` (n,).

    Half the squared distance to the true bin's indicator, 0 (best) to 1.
    """
    hit = np.arange(1, N_BINS + 1) == bins[:, None]
    return 0.5 * row_sums((probabilities - hit) ** 2)


def crps(*, probabilities: Floats, bins: Ints) -> Floats:
    """Compute the ranked probability score of rows: mean over edges of (F_k - 1[y <= k])^2.

    Shapes as in :func:`brier`. It is ``scoringrules.rps_score`` over 7.
    """
    at_most = np.arange(1, N_BINS) >= bins[:, None]
    cumulative = np.cumsum(probabilities, axis=-1)[..., :-1]
    return row_sums((cumulative - at_most) ** 2) / (N_BINS - 1)


def nll(*, probabilities: Floats, bins: Ints) -> Floats:
    """Compute the negative log likelihood of the true bin, nats; shapes as in :func:`brier`."""
    p = confidence(
        probabilities=probabilities, predicted=np.broadcast_to(bins, probabilities.shape[:-1])
    )
    return -np.log(np.maximum(p, MIN_PROBABILITY))


def entropy(*, probabilities: Floats) -> Floats:
    """Compute the entropy of every forecast in nats, shape (...,); 0 ln 0 is 0."""
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return -row_sums(safe * np.log(safe))


def within_one(*, predicted: Ints, bins: Ints) -> Bools:
    """Tell whether the predicted bin is the true one or next to it; 0 (no forecast) never is."""
    return np.asarray((np.abs(predicted - bins) <= 1) & (predicted > 0))


def forecast_errors(*, predicted: Ints, speedups: Floats, representatives: Floats) -> Floats:
    """Compute the forecast error of rows, in x, shape (..., n): abs(m_{predicted bin} - S).

    Where ``predicted`` is 0 there is no forecast: the error is then the mean over the bins.
    """
    distance = np.abs(representatives - speedups[:, None])
    table: Floats = np.concatenate([row_sums(distance)[:, None] / N_BINS, distance], axis=1)
    return table[np.arange(len(table)), predicted]


def confusion(*, predicted: Ints, bins: Ints) -> tuple[tuple[int, ...], ...]:
    """Count rows by measured bin (row) and predicted bin (column): shape (8, 8); 0 is left out."""
    counts = np.zeros((N_BINS + 1, N_BINS + 1), np.int64)
    np.add.at(counts, (np.broadcast_to(bins, predicted.shape), predicted), 1)
    return tuple(tuple(row) for row in counts[1:, 1:].tolist())
