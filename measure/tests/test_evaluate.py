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


FLAT, NOISY = [1000.0] * 100, [800.0, 1200.0] * 50


@pytest.mark.parametrize(
    ("own", "reference", "settings", "reason"),
    [
        (FLAT[:2], FLAT[:2], Settings(), None),
        (FLAT[:3], FLAT[:3], Settings(), "precise"),
        (NOISY[:10], FLAT[:10], Settings(), None),
        (FLAT[:10], NOISY[:10], Settings(), None),
        (NOISY[:99], NOISY[:99], Settings(), None),
        (NOISY, NOISY, Settings(), "max_runs"),
        (NOISY[:4], NOISY[:4], Settings(max_case_seconds=1e-6), "time"),
        (FLAT[:2], FLAT[:2], Settings(max_case_seconds=1e-9), None),
    ],
)
def test_stop_rule(own, reference, settings, reason):
    """At least 3 and at most 100 pairs; earlier when both means are known to 0.1 %, or when the
    time is used up.
    """
    assert timing.stop_reason(own, reference, settings) == reason
