"""Calibration errors and confidence monotonicity."""

import itertools

import numpy as np
import pytest

from kernel_archive.scoring.calibration import (
    aurc,
    bucket_of,
    confidence_monotonicity,
    ece,
    selective_risk,
)


@pytest.mark.parametrize(
    ("q", "bucket"),
    [
        (0.0, 0),
        (0.0999, 0),
        (0.1, 1),
        (0.3, 3),
        (0.1 + 0.2, 3),
        (0.7, 7),
        (0.7 / 1.0000000000000002, 7),
        (0.95, 9),
        (1.0, 9),
    ],
)
def test_bucket_edges(q, bucket):
    """Left-closed tenths; 0 and 1 have a bucket; a rounding below an edge counts as on it."""
    assert bucket_of(confidence=np.array([q])).tolist() == [bucket]


@pytest.mark.parametrize(
    ("q", "correct", "expected"),
    [
        ([0.5, 0.58, 0.9], [1, 0, 0], (2 * 0.04 + 0.9) / 3),  # |0.5 - 0.54| twice, a miss at 0.9
        ([1.0], [1], 0.0),
        ([1.0], [0], 1.0),
        ([0.0], [0], 0.0),
        ([0.0], [1], 1.0),
        ([0.8] * 10, [1] * 3 + [0] * 7, 0.5),
    ],
)
def test_ece_by_hand(q, correct, expected):
    """The mean distance of hits and confidence by bucket; certain hits and misses."""
    got = ece(confidence=np.array(q), correct=np.array(correct, bool), weights=np.ones((len(q), 1)))
    assert got == pytest.approx([expected], abs=1e-15)


@pytest.mark.parametrize(
    ("q", "errors", "expected"),
    [
        ([0.15, 0.55, 0.95], [3.0, 2.0, 1.0], 0.0),
        ([0.15, 0.55, 0.95], [1.0, 2.0, 3.0], 1.0),
        ([0.15, 0.55, 0.95], [2.0, 1.0, 3.0], 2 / 3),  # one down, two up
        ([0.15, 0.55, 0.95], [1.0, 1.0, 1.0], 0.0),
        ([0.15], [5.0], 0.0),
        ([0.05, 0.25], [2.0, 3.0], 1.0),  # an empty bucket between them is no error of 0
        ([], [], np.nan),
    ],
)
def test_confidence_monotonicity_by_hand(q, errors, expected):
    """0 when errors only fall, 1 when they only rise, the share of the rise between; 0 when nothing
    moves; not defined without a row.
    """
    got = confidence_monotonicity(
        confidence=np.array(q), errors=np.array(errors), weights=np.ones((len(q), 1))
    )
    assert got == pytest.approx([expected], abs=1e-15, nan_ok=True)


def test_ties_have_their_exact_expectation():
    """Against the mean over all orders of five rows; without a row AURC is not defined."""
    q, loss = [0.9, 0.5, 0.5, 0.5, 0.1], [1.0, 0.0, 3.0, 2.0, 5.0]
    curves = []
    for order in itertools.permutations(range(5)):
        ranked = sorted(order, key=lambda i: -q[i])
        curves.append(np.cumsum([loss[i] for i in ranked]) / np.arange(1, 6))
    rows = {"confidence": np.array(q), "losses": np.array(loss)}
    np.testing.assert_allclose(selective_risk(**rows), np.mean(curves, axis=0), rtol=1e-12)
    assert aurc(**rows, weights=np.ones((5, 1))) == pytest.approx([np.mean(curves)], rel=1e-12)
    assert np.isnan(aurc(**rows, weights=np.zeros((5, 1)))).all()
    assert np.isnan(aurc(confidence=np.empty(0), losses=np.empty(0), weights=np.ones((0, 1)))).all()
