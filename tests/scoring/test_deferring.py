"""Predict or defer: what is saved, by hand and by invariances."""

import numpy as np
import pytest

from kernel_archive.scoring import Forecasts, Target, score
from kernel_archive.scoring.curves import measured, searched
from kernel_archive.scoring.summary import score_remarks

SPEEDUPS = np.array([0.3, 0.8, 1.2, 3.0])


@pytest.fixture
def target():
    """One task with four candidates in bins 2, 4, 5 and 7."""
    return Target.from_arrays(row_ids=list("abcd"), tasks=["t"] * 4, speedups=SPEEDUPS)


def certain(target, bins, deferred, sure=(0.9, 0.8, 0.7, 0.6)):
    """Forecasts that name these bins, each a little less surely."""
    p = [[q if b == k else (1 - q) / 7 for k in range(1, 9)] for b, q in zip(bins, sure, strict=True)]
    return Forecasts.from_arrays(target, p, deferred=deferred)


def test_a_search_that_defers_by_hand(target):
    """Two are deferred, and of the others the likelier one is measured: three of four, with 1.2 of 3.0 found."""
    record = score(target, certain(target, [2, 4, 5, 3], [True, True, False, False]), draws=0)
    d = record.deferral
    assert (d.rate, d.measured) == (0.5, 0.75)
    assert d.found == pytest.approx(100 * 1.2 / 3.0)
    # By expected speedup alone c, b and d come before a (bins 5, 4 and 3); by chance the best is among three of four,
    # else the best is 1.2.
    assert d.found_by_chance == pytest.approx(100 * (0.75 + 0.25 * 1.2 / 3.0))
    # Kept were c and d; by confidence a and b are kept, which are right; by chance any two.
    m = {2: 0.125**0.5, 3: 0.125**0.25, 4: 0.5**0.25, 5: 2**0.25}
    errors = [abs(m[b] - s) for b, s in zip([2, 4, 5, 3], SPEEDUPS, strict=True)]
    assert d.error_by_confidence == pytest.approx(np.mean(errors[:2]))
    assert d.error_by_chance == pytest.approx(np.mean(errors))
    assert d.accepted["forecast_error"].mean == pytest.approx(np.mean(errors[2:]))
    said = " ".join(score_remarks(record))
    assert "As many rows kept by its own confidence" in said
    assert "measures 75.0 % of the candidates and finds 40.0 % of the best speedup" in said


def test_who_defers_all_finds_all_and_saves_nothing(target):
    """And who defers none states nothing."""
    d = score(target, certain(target, [2, 4, 5, 7], [True] * 4), draws=0).deferral
    assert (d.measured, d.found, d.found_by_expected, d.found_by_chance) == (1, 100, 100, 100)
    assert d.error_by_confidence is None
    assert score(target, certain(target, [2, 4, 5, 7], [False] * 4), draws=0).deferral is None


def test_ties_count_with_their_expectation():
    """Three kept candidates tie: each is the one that is measured as often."""
    left = np.array([True, False, False, False])
    assert searched(expected=np.ones(4), speedups=np.array([2.0, 1.0, 3.0, 4.0]), deferred=left) == pytest.approx(75.0)
    assert [measured(np.arange(4) < k) for k in range(5)] == [1, 2, 3, 4, 4]


def test_pairs_are_no_candidates_for_one_place(target):
    """Discovery pairs state errors, and no search."""
    pairs = Target.from_arrays(row_ids=list("abcd"), tasks=["t"] * 4, speedups=SPEEDUPS, split="discovery")
    d = score(pairs, certain(pairs, [2, 4, 5, 7], [True, False, False, False]), draws=0).deferral
    assert d.measured is None
    assert d.error_by_chance is not None
