"""Scores of single forecasts: by hand, and against independent implementations."""

import math

import numpy as np
import pytest
import scoringrules
from sklearn import metrics as sk

from kernel_archive.scoring import rules
from kernel_archive.scoring.arrays import group_ties, product, row_sums

UNIFORM = np.full((1, 8), 0.125)
HAND = np.array([[0, 0, 0, 0.1, 0.2, 0.7, 0, 0]])
M = np.array([0.2, 0.35, 0.6, 0.84, 1.19, 1.68, 2.8, 5.0])


def test_entropy_by_hand():
    """Ln 8 for the uniform forecast, 0 for a certain one (0 ln 0 is 0)."""
    p = np.concatenate([UNIFORM, np.eye(8)[[3]], HAND])
    hand = -(0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.7 * math.log(0.7))
    assert rules.entropy(probabilities=p) == pytest.approx([math.log(8), 0, hand], abs=1e-15)


def test_scores_agree_with_other_libraries(rng):
    """CRPS is the ranked probability score over 7, Brier half of the multi-class one."""
    p, y = rng.dirichlet(np.full(8, 2.0), 40), np.concatenate([np.arange(1, 9)] * 5)
    crps = rules.crps(probabilities=p, bins=y)
    np.testing.assert_allclose(crps, scoringrules.rps_score(y, p) / 7, rtol=1e-12, atol=1e-15)
    brier = sk.brier_score_loss(y, p, labels=list(range(1, 9)), scale_by_half=True)
    assert rules.brier(probabilities=p, bins=y).mean() == pytest.approx(brier, abs=1e-12)


def test_normalise_divides_by_the_sum_and_drops_the_sign_of_zero():
    """2, 2 and a negative zero become 0.5, 0.5 and a plain zero."""
    out = rules.normalise(raw=np.array([2.0, 2, -0.0, 0, 0, 0, 0, 0]))
    assert out.tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    assert not np.signbit(out).any()


@pytest.mark.parametrize(
    ("probabilities", "stated", "expected"),
    [
        ([0, 0, 0, 0.1, 0.2, 0.7, 0, 0], 0, 6),
        ([0, 0, 0, 0.1, 0.2, 0.7, 0, 0], 5, 6),  # a stated bin only breaks ties
        ([0.125] * 8, 0, 4),  # mean bin 4.5: 4 and 5 are equally near, the lower one
        ([0.125] * 8, 8, 8),  # the stated bin is among the tied
        ([0, 0.4, 0, 0, 0.4, 0.2, 0, 0], 0, 5),  # mean bin 4.0: 5 is nearer than 2
        ([0.2, 0.4, 0, 0, 0.4, 0, 0, 0], 0, 2),  # mean bin 3.0: 2 is nearer than 5
        ([0, 0.4, 0, 0, 0.4, 0.2, 0, 0], 6, 5),  # stated, but not tied
        ([0, 0.4, 0, 0, 0.4, 0.2, 0, 0], 2, 2),
        ([0.5, 0, 0, 0, 0, 0, 0, 0.5], 0, 1),  # mean bin 4.5: equally near, the lower one
        ([0.46, 0.04, 0, 0.04, 0.46, 0, 0, 0], 0, 1),  # mean bin 3 but for rounding: the same
        ([0, 0, 0.1 + 0.2, 0.3, 0.2, 0.2, 0, 0], 3, 3),  # 0.1 + 0.2 and 0.3 tie
        ([0, 0, 0.1 + 0.2, 0.3, 0.2, 0.2, 0, 0], 0, 4),  # mean bin 4.3
    ],
)
def test_predicted_bin(probabilities, stated, expected):
    """The most probable bin; ties go to the stated bin."""
    got = rules.predicted_bins(probabilities=np.array(probabilities), stated_bins=np.array(stated))
    assert got.item() == expected


def test_what_a_forecast_says_by_hand():
    """Its confidence, also in a stated bin without mass; its expected speedup; its error."""
    for label, mass in ((5, 0.2), (1, 0.0)):
        q = rules.confidence(probabilities=HAND, predicted=np.array([label]))
        assert q.tolist() == [mass]
    expected = rules.expected_speedup(probabilities=HAND, representatives=M)
    assert expected[0] == pytest.approx(0.084 + 0.238 + 1.176, abs=1e-15)
    errors = rules.forecast_errors(
        predicted=np.array([6, 0]), speedups=np.array([1.5, 1.5]), representatives=M
    )
    mean = (1.3 + 1.15 + 0.9 + 0.66 + 0.31 + 0.18 + 1.3 + 3.5) / 8
    assert errors == pytest.approx([0.18, mean], abs=1e-15)


def test_ties_are_found_within_rounding_and_nothing_else():
    """A rounding apart is one group, a billionth apart is not; zeros of either sign tie."""
    assert group_ties(np.array([0.3, 0.1 + 0.2, 0.3 * (1 + 1e-9), 0.1])).tolist() == [1, 1, 2, 0]
    assert group_ties(np.array([0.0, -0.0, 1.0])).tolist() == [0, 0, 1]


def test_sums_do_not_depend_on_the_place_of_a_row(rng):
    """Equal rows have bit-equal sums wherever they stand; the product is the matrix product."""
    table = np.tile(rng.random(8), (1001, 1))
    table[::2] = rng.random((501, 8))
    assert len(set(row_sums(table)[1::2].tolist())) == 1
    for left in (rng.random(5), rng.random((3, 5))):
        right = rng.random((5, 4))
        np.testing.assert_allclose(product(left, right), left @ right, rtol=1e-14)
