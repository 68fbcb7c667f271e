"""Rules that turn bin forecasts into an order."""

import numpy as np
import pytest

from kernel_archive.scoring.choosing import chance_of_beating, entropy, expected_speedups, rank_scores

CERTAIN = np.eye(8)


def test_expected_speedup_of_certain_forecasts_is_the_centre_of_the_bin():
    """Half octaves inside; the open ends are as wide as the representatives without rows say."""
    assert expected_speedups(CERTAIN)[[0, 5, 7]] == pytest.approx([0.25 / 2**0.5, 2**0.75, 4 * 2**0.5])


def test_chance_of_beating_follows_the_octaves():
    """All above the lower edge, none above the upper one, half in the middle; the last bin ends an octave above its edge."""
    for best, chances in ((2.0, [0, 0, 0, 0, 0, 0, 1, 1]), (2**0.75, [0, 0, 0, 0, 0, 0.5, 1, 1])):
        assert chance_of_beating(CERTAIN, best) == pytest.approx(chances, abs=1e-12)
    assert chance_of_beating(CERTAIN, 8.0) == pytest.approx([0.0] * 8)
    assert chance_of_beating(np.full((1, 8), 0.125), 4.0) == pytest.approx([0.125])


def test_a_chance_that_all_share_leaves_the_expected_speedup():
    """Where nothing beats the end of the scale the order is that of the expected speedup; with nothing to beat, too."""
    assert np.argsort(rank_scores(CERTAIN, "beat", 20.0)).tolist() == list(range(8))
    assert rank_scores(CERTAIN, "beat", None) == pytest.approx(expected_speedups(CERTAIN))


def test_entropy_in_bits():
    """Three bits of eight equal bins, none of a certain one."""
    assert entropy(np.array([[0.125] * 8, [1.0, *[0.0] * 7], [0.5, 0.5, *[0.0] * 6]])) == pytest.approx([3.0, 0.0, 1.0])
