"""Ranks with what the data allow: all pairs of a board at once."""

import numpy as np
import pytest

from kernel_archive.board.ranks import compare_pairs, ranks_of
from kernel_archive.scoring.figures import interval


def entries(means, draws=1000, seed=0):
    """Entries that are means over 200 rows, with paired bootstrap draws of them: values, draws."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 1, (len(means), 200)) + np.asarray(means)[:, None]
    picks = rng.integers(0, 200, (draws, 200))
    return rows.mean(axis=1).tolist(), [row[picks].mean(axis=1) for row in rows]


def test_pairs_are_antisymmetric_with_their_own_intervals():
    """A minus B is the negative of B minus A, and its interval that of the paired draws."""
    values, draws = entries([0.0, 0.3, 2.0])
    pairs = compare_pairs(values, draws)
    upper = np.triu_indices(3, 1)
    assert pairs.low.T[upper] == pytest.approx(-pairs.high[upper])
    assert (pairs.low[0, 1], pairs.high[0, 1]) == pytest.approx(interval(draws[0] - draws[1]))
    assert (pairs.real == pairs.real.T).all()
    assert not pairs.real.diagonal().any()


def test_a_clear_order_is_real():
    """Entries ten standard errors apart each have a rank of their own."""
    values, draws = entries([0.0, 1.0, 2.0, 3.0])
    ranks = ranks_of(compare_pairs(values, draws), "higher")
    assert [(r.rank, r.best, r.worst) for r in ranks] == [(n, n, n) for n in (4, 3, 2, 1)]
    assert [r.rank for r in ranks_of(compare_pairs(values, draws), "lower")] == [1, 2, 3, 4]


def test_equal_figures_share_a_rank_and_are_tied():
    """Two names for one forecaster: same rank, tied, whatever the rest does."""
    values, draws = entries([0.0, 5.0])
    ranks = ranks_of(compare_pairs([*values, values[1]], [*draws, draws[1]]), "higher")
    assert [(r.rank, r.best, r.worst) for r in ranks] == [(3, 3, 3), (1, 1, 2), (1, 1, 2)]
    assert ranks[1].tied_with == (2,)


def test_an_entry_undefined_in_most_draws_has_no_pairs():
    """Defined in 499 of 1000 draws it is null; defined in 500, it is compared on those alone."""
    values, draws = entries([0.0, 1.0, 2.0, 0.0])
    draws[3][500:] = np.nan
    assert ranks_of(compare_pairs(values, draws), "higher")[3] is not None
    draws[3][499:] = np.nan
    pairs = compare_pairs(values, draws)
    assert np.isnan([pairs.low[3], pairs.high[3]]).all()
    assert not pairs.real[3].any()
    ranks = ranks_of(pairs, "higher")
    assert [rank and rank.rank for rank in ranks] == [3, 2, 1, None]


def test_among_equals_a_false_difference_is_rare():
    """Fifteen forecasters of equal skill, 100 boards.

    About 5 boards call any pair different, not most of them.
    """
    wrong = sum(
        bool(compare_pairs(*entries([0.0] * 15, seed=seed, draws=400)).real.any())
        for seed in range(100)
    )
    # 5 expected, plus the small sample's bias of the bootstrap; uncorrected nearly 100.
    assert wrong <= 14
