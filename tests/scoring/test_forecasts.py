"""Forecasts in normal form, made from arrays."""

import numpy as np
import pytest
from support.made_forecasts import rows_of

from kernel_archive.errors import DataError
from kernel_archive.scoring import Forecasts


@pytest.fixture
def two():
    """A split of two rows."""
    return rows_of([1.0, 2.0])


CERTAIN = np.eye(8)[[3, 5]]


def test_probabilities_are_renormalised_and_their_sum_is_kept(two):
    """A sum of 0.8 is a forecast; a raw sum outside 0.5 to 1.5 counts as none."""
    made = Forecasts.from_arrays(two, CERTAIN * np.array([[0.8], [1.6]]))
    assert made.parsed.tolist() == [[True, False]]
    assert made.probabilities[0, 0, 3] == 1.0
    assert made.probabilities[0, 1].tolist() == [0.125] * 8
    assert made.raw_sums.tolist() == [[0.8, 1.6]]
    assert Forecasts.from_arrays(two, CERTAIN * np.array([[0.5], [1.5]])).parsed.all()


@pytest.mark.parametrize(
    ("probabilities", "options", "message"),
    [
        (np.ones((2, 7)), {}, "shape"),
        (np.ones((3, 8)), {}, "shape"),
        (np.ones((0, 2, 8)), {}, "shape"),
        (CERTAIN * np.nan, {}, "finite"),
        (-CERTAIN, {}, "at least 0"),
        (CERTAIN * 0, {}, "not all be 0"),
        (CERTAIN, {"stated_bins": [9, 0]}, "stated bins"),
        (CERTAIN, {"parsed": [True] * 3}, "parsed has shape"),
    ],
)
def test_what_is_no_forecast_is_refused(two, probabilities, options, message):
    """An error that says which array is at fault."""
    with pytest.raises(DataError, match=message):
        Forecasts.from_arrays(two, probabilities, **options)


def test_deferring_without_a_distribution_is_no_parse_failure(two):
    """It is left out of the parse rate; deferring every row leaves none to state."""
    made = Forecasts.from_arrays(two, CERTAIN, parsed=[True, False], deferred=[False, True])
    assert made.parse_rate == 1.0
    made = Forecasts.from_arrays(two, CERTAIN, parsed=[False, False], deferred=[True, True])
    assert made.parse_rate is None
