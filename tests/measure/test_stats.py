"""Tests of the timing arithmetic."""

from __future__ import annotations

import math

import pytest

from kernel_archive.measure import stats
from kernel_archive.measure.settings import Settings


def test_distribution_of_known_times():
    """Mean, median, sample deviation and standard error are the textbook's."""
    d = stats.describe([1.0, 2.0, 3.0, 10.0])
    assert (d.runs, d.mean, d.median, d.best, d.worst) == (4, 4.0, 2.5, 1.0, 10.0)
    assert d.std == pytest.approx(math.sqrt(50 / 3))
    assert d.err == pytest.approx(math.sqrt(50 / 3) / 2)


def test_one_time_has_no_spread():
    """A single run has a deviation of zero, not a division by zero."""
    assert stats.describe([5.0]).std == 0.0


def test_pairs_alternate():
    """Candidate and reference take turns at being first, so that a drift cancels."""
    assert [stats.candidate_first(i) for i in range(4)] == [True, False, True, False]


def test_interleaving_cancels_a_linear_drift():
    """With alternating order a drift of the machine's speed leaves the ratio of means where it belongs."""
    clock, mine, theirs = 0.0, [], []
    for i in range(100):
        for candidate in (stats.candidate_first(i), not stats.candidate_first(i)):
            clock += 1.0
            (mine if candidate else theirs).append((100.0 if candidate else 200.0) * (1 + clock / 1000))
    assert stats.describe(theirs).mean / stats.describe(mine).mean == pytest.approx(2.0, rel=1e-5)


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
    """At least 3 and at most 100 pairs; earlier when both means are known to 0.1 %, or when the time is used up."""
    times = [1000.0 * (1 + noise * (-1) ** i) for i in range(runs)]
    assert stats.stop_reason(times, times, settings) == reason


def test_both_means_must_be_precise():
    """A precise reference does not end the loop while the candidate is noisy."""
    flat, noisy = [1000.0] * 10, [800.0, 1200.0] * 5
    assert stats.stop_reason(noisy, flat, Settings()) is None
    assert stats.stop_reason(flat, noisy, Settings()) is None
    assert stats.stop_reason(flat, flat, Settings()) == "precise"


def test_band_accepts_everything_before_it_is_settled():
    """The first measurements define what is usual."""
    band = stats.ReferenceBand(1.1, settle=3)
    assert not band.outside("a", 5000.0)
    for t in (100.0, 101.0, 99.0):
        band.learn("a", t)
    assert band.usual("a") == 100.0
    assert band.outside("a", 111.0)
    assert band.outside("a", 90.0)
    assert not band.outside("a", 109.0)
    assert not band.outside("another case", 1.0)


def test_band_follows_the_last_measurements():
    """Old measurements are forgotten, so that a lasting change of the machine becomes the usual time."""
    band = stats.ReferenceBand(1.1, settle=3)
    for _ in range(201):
        band.learn("a", 100.0)
    for _ in range(201):
        band.learn("a", 200.0)
    assert band.usual("a") == 200.0
