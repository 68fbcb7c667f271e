"""Ties and sums."""

import numpy as np
import pytest

from kernel_archive.scoring.arrays import group_ties, product, row_sums


def test_ties_are_found_within_rounding_and_nothing_else():
    """Scores a rounding apart share a group, scores a billionth apart don't."""
    scores = np.array([0.3, 0.1 + 0.2, 0.3 * (1 + 1e-9), 0.1])
    assert group_ties(scores).tolist() == [1, 1, 2, 0]


def test_zero_scores_tie():
    """Zeros of either sign are one group."""
    assert group_ties(np.array([0.0, -0.0, 1.0])).tolist() == [0, 0, 1]


def test_sums_do_not_depend_on_the_place_of_a_row(rng):
    """Equal rows have bit-equal sums wherever they stand, so that they tie."""
    row = rng.random(8)
    table = np.tile(row, (1001, 1))
    table[::2] = rng.random((501, 8))
    assert len(set(row_sums(table)[1::2].tolist())) == 1


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_the_product_is_the_matrix_product(rng, shape):
    """For a vector and for a matrix on the left."""
    left, right = rng.random(shape), rng.random((5, 4))
    np.testing.assert_allclose(product(left, right), left @ right, rtol=1e-14)
