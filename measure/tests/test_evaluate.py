"""Tests of an evaluation: the arithmetic of its times."""

from __future__ import annotations

import math

import pytest

from kernel_measure import timing
from kernel_measure.settings import Settings


def test_distribution_of_known_times():
    """Mean, median, sample deviation and standard error are the textbook's."""
    d = timing.describe([1.0, 2.0, 3.0, 10.0])
    assert (d.runs, d.mean, d.median, d.best, d.worst) == (4, 4.0, 2.5, 1.0, 10.0)
    assert d.std == pytest.approx(math.sqrt(50 / 3))
    assert d.err == pytest.approx(math.sqrt(50 / 3) / 2)
    assert timing.describe([5.0]).std == 0.0


@pytest.mark.parametrize(
    ("runs", "noise", "settings", "reason"),
    [
        (2, 0.0, Settings(), None),
        (3, 0.0, Settings(), "precise"),
        (99, 0.2, Settings(), None),
        (100, 0.2, Settings(), "max_runs"),
        (4, 0.2, Settings(max_case_seconds=1e-6), "time"),
        (2, 0.2, Settings(max_case_seconds=1e-9), None),
    ],
)
def test_stop_rule(runs, noise, settings, reason):
    """At least 3 and at most 100 pairs; earlier when both means are known to 0.1 %, or when the
    time is used up.
    """
    times = [1000.0 * (1 + noise * (-1) ** i) for i in range(runs)]
    assert timing.stop_reason(times, times, settings) == reason


def test_both_means_must_be_precise():
    """A precise reference does not end the loop while the candidate is noisy."""
    flat, noisy = [1000.0] * 10, [800.0, 1200.0] * 5
    assert timing.stop_reason(noisy, flat, Settings()) is None
    assert timing.stop_reason(flat, noisy, Settings()) is None
    assert timing.stop_reason(flat, flat, Settings()) == "precise"
