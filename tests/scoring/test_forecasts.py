"""Forecasts in normal form, made from arrays; what a single one says and scores.

Held against values worked out by hand and against independent implementations.
"""

import math

import numpy as np
import pytest
import scoringrules
from sklearn import metrics as sk

from kernel_archive.errors import DataError
from kernel_archive.scoring import Forecasts, Split, rules


@pytest.fixture
def two():
    """A target of two rows."""
    return Split.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[1.0, 2.0])


CERTAIN = np.eye(8)[[3, 5]]


def test_probabilities_are_renormalised_and_their_sum_is_kept(two):
    """A sum of 0.8 is a forecast; a raw sum outside 0.5 to 1.5 counts as none."""
    made = Forecasts.from_arrays(two, CERTAIN * np.array([[0.8], [1.6]]))
    assert made.parsed.tolist() == [[True, False]]
    assert made.probabilities[0, 0, 3] == 1.0
    assert made.probabilities[0, 1].tolist() == [0.125] * 8
    assert made.raw_sums.tolist() == [[0.8, 1.6]]
    assert Forecasts.from_arrays(two, CERTAIN * np.array([[0.5], [1.5]])).parsed.all()


def test_rows_without_forecast_are_uniform_and_have_no_predicted_bin(two):
    """They count in S^, Brier, CRPS, NLL and entropy, and are never right."""
    made = Forecasts.from_arrays(two, CERTAIN, parsed=[True, False])
    assert made.predicted().tolist() == [[4, 0]]
    assert made.parse_rate == 0.5
    assert made.coverage == 1.0


def test_the_stated_bin_is_scored_only_when_asked_for(two):
    """It breaks ties under argmax; under ``stated`` it counts where one is given."""
    made = Forecasts.from_arrays(two, CERTAIN, stated=[1, 0])
    assert made.predicted().tolist() == [[4, 6]]
    assert made.predicted("stated").tolist() == [[1, 6]]


@pytest.mark.parametrize(
    ("probabilities", "options", "message"),
    [
        (np.ones((2, 7)), {}, "shape"),
        (np.ones((3, 8)), {}, "shape"),
        (np.ones((0, 2, 8)), {}, "shape"),
        (CERTAIN * np.nan, {}, "finite"),
        (-CERTAIN, {}, "at least 0"),
        (CERTAIN * 0, {}, "not all be 0"),
        (CERTAIN, {"stated": [9, 0]}, "stated bins"),
        (CERTAIN, {"parsed": [True] * 3}, "parsed has shape"),
    ],
)
def test_what_is_no_forecast_is_refused(two, probabilities, options, message):
    """An error that says which array is at fault."""
    with pytest.raises(DataError, match=message):
        Forecasts.from_arrays(two, probabilities, **options)


def test_the_digest_names_the_content(two):
    """Equal arrays share it, others don't."""
    digests = [
        Forecasts.from_arrays(two, p).digest for p in (CERTAIN, CERTAIN.copy(), CERTAIN[::-1])
    ]
    assert digests[0] == digests[1] != digests[2]


def test_deferring_without_a_distribution_is_no_parse_failure(two):
    """It is left out of the parse rate; deferring every row leaves none to state."""
    made = Forecasts.from_arrays(two, CERTAIN, parsed=[True, False], deferred=[False, True])
    assert made.parse_rate == 1.0
    made = Forecasts.from_arrays(two, CERTAIN, parsed=[False, False], deferred=[True, True])
    assert made.parse_rate is None


UNIFORM = np.full((1, 8), 0.125)
#: One forecast whose scores are worked out by hand below: 0.1, 0.2, 0.7 on bins 4, 5, 6.
HAND = np.array([[0, 0, 0, 0.1, 0.2, 0.7, 0, 0]])


@pytest.fixture
def p(rng):
    """Forty forecasts with every probability well above the floor of the log."""
    return rng.dirichlet(np.full(8, 2.0), 40)


@pytest.fixture
def y(rng):
    """Their true bins; every bin occurs."""
    return np.concatenate([np.arange(1, 9), rng.integers(1, 9, 32)])


def test_brier_by_hand():
    """True bin 5: half of (0.1^2 + 0.8^2 + 0.7^2) = 0.57; true bin 6."""
    assert rules.brier(probabilities=HAND, bins=np.array([5]))[0] == pytest.approx(0.57, abs=1e-15)
    assert rules.brier(probabilities=HAND, bins=np.array([6]))[0] == pytest.approx(0.07, abs=1e-15)


def test_crps_by_hand():
    """True bin 5: F = 0,0,0,.1,.3,1,1 against 0,0,0,0,1,1,1 gives (0.01 + 0.49) / 7."""
    assert rules.crps(probabilities=HAND, bins=np.array([5]))[0] == pytest.approx(
        0.5 / 7, abs=1e-15
    )


def test_crps_of_the_uniform_forecast():
    """True bin 1: (7^2 + 6^2 + ... + 1) / 64 / 7 = 140 / 448 = 0.3125."""
    assert rules.crps(probabilities=UNIFORM, bins=np.array([1]))[0] == pytest.approx(
        0.3125, abs=1e-15
    )


def test_nll_by_hand_and_its_floor():
    """-ln 0.7, and -ln 1e-12 where the true bin has no mass."""
    assert rules.nll(probabilities=HAND, bins=np.array([6]))[0] == pytest.approx(
        0.35667494393873245, abs=1e-15
    )
    assert rules.nll(probabilities=HAND, bins=np.array([1]))[0] == pytest.approx(
        12 * math.log(10), abs=1e-12
    )


def test_entropy_by_hand():
    """Ln 8 for the uniform forecast, 0 for a certain one (0 ln 0 is 0)."""
    assert rules.entropy(probabilities=UNIFORM)[0] == pytest.approx(math.log(8), abs=1e-15)
    assert rules.entropy(probabilities=np.eye(8)[[3]])[0] == 0.0
    expected = -(0.1 * math.log(0.1) + 0.2 * math.log(0.2) + 0.7 * math.log(0.7))
    assert rules.entropy(probabilities=HAND)[0] == pytest.approx(expected, abs=1e-15)


def test_crps_agrees_with_scoringrules(p, y):
    """Ours is the ranked probability score over 7."""
    other = scoringrules.rps_score(y, p)
    np.testing.assert_allclose(
        rules.crps(probabilities=p, bins=y), other / 7, rtol=1e-12, atol=1e-15
    )


def test_brier_agrees_with_scikit_learn(p, y):
    """Ours is half of the multi-class Brier score."""
    other = sk.brier_score_loss(y, p, labels=list(range(1, 9)), scale_by_half=True)
    assert rules.brier(probabilities=p, bins=y).mean() == pytest.approx(other, abs=1e-12)


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
        (
            [0.46, 0.04, 0, 0.04, 0.46, 0, 0, 0],
            0,
            1,
        ),  # mean bin 3 but for rounding: equally near, the lower one
        (
            [0, 0, 0.1 + 0.2, 0.3, 0.2, 0.2, 0, 0],
            3,
            3,
        ),  # 0.1 + 0.2 and 0.3 tie, whatever rounding says
        ([0, 0, 0.1 + 0.2, 0.3, 0.2, 0.2, 0, 0], 0, 4),  # mean bin 4.3
    ],
)
def test_predicted_bin(probabilities, stated, expected):
    """The most probable bin; ties go to the stated bin."""
    got = rules.predicted_bins(probabilities=np.array(probabilities), stated=np.array(stated))
    assert got.item() == expected


def test_confidence_is_the_mass_of_the_predicted_bin():
    """Also when the predicted bin is a stated one without any."""
    assert rules.confidence(probabilities=HAND, predicted=np.array([5])).tolist() == [0.2]
    assert rules.confidence(probabilities=HAND, predicted=np.array([1])).tolist() == [0.0]


def test_expected_speedup_by_hand():
    """0.1 * 0.84 + 0.2 * 1.19 + 0.7 * 1.68."""
    m = np.array([0.2, 0.35, 0.6, 0.84, 1.19, 1.68, 2.8, 5.0])
    got = rules.expected_speedup(probabilities=HAND, representatives=m)
    assert got[0] == pytest.approx(0.084 + 0.238 + 1.176, abs=1e-15)


def test_forecast_error_by_hand():
    """abs(1.68 - 1.5) where bin 6 is predicted."""
    m = np.array([0.2, 0.35, 0.6, 0.84, 1.19, 1.68, 2.8, 5.0])
    got = rules.forecast_errors(
        predicted=np.array([6, 0]), speedups=np.array([1.5, 1.5]), representatives=m
    )
    assert got[0] == pytest.approx(0.18, abs=1e-15)
    assert got[1] == pytest.approx(
        (1.3 + 1.15 + 0.9 + 0.66 + 0.31 + 0.18 + 1.3 + 3.5) / 8, abs=1e-15
    )
