"""Speedup bins under both schemes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.bins import BIN_NAMES, SCHEMES, assign_bins, bin_of, representatives, scheme_of
from kernel_archive.errors import DataError, UsageError

R, H = 2.0**0.5, 2.0**-0.5


@pytest.mark.parametrize(
    ("speedup", "paper", "released"),
    [
        (0.25, 1, 1),
        (0.5, 2, 2),
        (H, 3, 3),
        (1.0, 4, 4),
        (R, 5, 5),
        (2.0, 6, 6),
        (2.0**1.5, 7, 7),
        (4.0, 7, 8),
    ],
)
def test_every_edge_of_both_schemes(speedup, paper, released):
    """An edge belongs below under the paper's table and above under the released rule."""
    assert (bin_of(speedup), bin_of(speedup, "released")) == (paper, released)


@given(st.floats(1e-6, 1e6))
def test_released_is_the_published_formula(speedup):
    """Away from the rounding of log2 at an edge it is clamp(floor(2 log2 S) + 4, 1, 8)."""
    exact = 2 * math.log2(speedup)
    if abs(exact - round(exact)) > 1e-9:
        assert bin_of(speedup, "released") == min(8, max(1, math.floor(exact) + 4))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30), st.sampled_from([*SCHEMES]))
def test_arrays_agree_with_intervals(speedups, name):
    """The bin's interval holds the speedup, whatever the array's shape."""
    rule = scheme_of(name)
    for s, b in zip(speedups, assign_bins(np.array(speedups)[:, None], name)[:, 0], strict=True):
        low, high = rule.interval(int(b))
        assert low < s <= high if rule.right_closed else low <= s < high


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_bad_speedup_is_an_error_that_names_the_row(bad):
    """Zero, negatives and non-finite values are refused, each with its row."""
    with pytest.raises(DataError) as caught:
        assign_bins([1.0, bad], row_ids=["a", "b"])
    assert caught.value.findings[0].field == "speedup[b]"


def test_representatives_are_geometric_centres_and_empirical_ends():
    """m_2 to m_7 by hand; m_1 and m_8 are means of the rows, or the fallback."""
    m = representatives([0.1, 0.2, 8.0], [1, 1, 8])
    expected = [0.15, 0.353553, 0.594604, 0.840896, 1.189207, 1.681793, 2.828427, 8.0]
    np.testing.assert_allclose(m, expected, rtol=2e-6)
    np.testing.assert_allclose(representatives([], [])[[0, 7]], [0.25 / R, 4 * R])
    np.testing.assert_allclose(representatives([], [], "released")[[0, 7]], [0.5 / R, 4 * R])


def test_unknown_scheme_is_wrong_usage():
    """The error lists the schemes."""
    with pytest.raises(UsageError, match="paper, released"):
        scheme_of("half")


def test_descriptions_and_names():
    """Eight names, and intervals as text."""
    assert len(BIN_NAMES) == 8
    assert SCHEMES["paper"].describe(2) == "0.25 < S <= 0.5"
    assert SCHEMES["released"].describe(8) == "S >= 4"
    assert SCHEMES["paper"].describe(1) == "S <= 0.25"
