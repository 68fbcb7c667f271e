"""Selective forecasting."""

import itertools

import numpy as np
import pytest

from kernel_archive.scoring.calibration import accuracy_at, aurc, coverage_at, selective_risk


def test_selective_risk_by_hand():
    """The most confident row has loss 0, the next two tie with losses 2 and 1: 0, 1.5 / 2, 3 / 3."""
    got = selective_risk(confidence=np.array([0.5, 0.9, 0.5]), losses=np.array([2.0, 0.0, 1.0]))
    assert got.tolist() == [0.0, 0.75, 1.0]


def test_ties_have_their_exact_expectation():
    """Against the mean over all orders of five rows."""
    q, loss = [0.9, 0.5, 0.5, 0.5, 0.1], [1.0, 0.0, 3.0, 2.0, 5.0]
    curves = []
    for order in itertools.permutations(range(5)):
        ranked = sorted(order, key=lambda i: -q[i])
        curves.append(np.cumsum([loss[i] for i in ranked]) / np.arange(1, 6))
    got = selective_risk(confidence=np.array(q), losses=np.array(loss))
    np.testing.assert_allclose(got, np.mean(curves, axis=0), rtol=1e-12)
    assert aurc(confidence=np.array(q), losses=np.array(loss)) == pytest.approx(np.mean(curves), rel=1e-12)


def test_a_constant_confidence_has_the_mean_loss_at_every_coverage():
    """Nothing is learnt from a confidence that never changes."""
    losses = np.array([1.0, 0.0, 0.5])
    assert selective_risk(confidence=np.full(3, 0.125), losses=losses).tolist() == [0.5] * 3


def test_aurc_without_a_row_is_not_defined():
    """It is NaN, not 0."""
    assert np.isnan(aurc(confidence=np.empty(0), losses=np.empty(0)))


def test_coverage_at_a_limit_is_the_largest_one():
    """A curve that falls below the limit again counts to its last point below."""
    risk = np.array([0.3, 0.1, 0.2, 0.4])
    assert coverage_at(risk=risk, limit=0.2) == 0.75
    assert coverage_at(risk=risk, limit=0.05) == 0.0
    assert coverage_at(risk=risk, limit=1.0) == 1.0


def test_accuracy_at_a_threshold():
    """Rows at or above it; NaN without one. A confidence a rounding below the threshold counts."""
    q, hit = np.array([0.9, 0.7 - 1e-16, 0.2]), np.array([True, False, True])
    assert accuracy_at(confidence=q, correct=hit, threshold=0.7) == (0.5, 2)
    value, count = accuracy_at(confidence=q, correct=hit, threshold=0.95)
    assert np.isnan(value)
    assert count == 0
