"""Ranks with what the data allow: all pairs of a board at once."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.board import ranks as module
from kernel_archive.board.ranks import pairs_of, ranks_of
from kernel_archive.scoring.uncertainty import interval


def entries(means, spread=1.0, n=200, draws=1000, seed=0):
    """Entries that are means over n rows, with paired bootstrap draws of them: values, draws."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, spread, (len(means), n)) + np.asarray(means)[:, None]
    picks = rng.integers(0, n, (draws, n))
    return rows.mean(axis=1).tolist(), [row[picks].mean(axis=1) for row in rows]


def test_pairs_are_antisymmetric_with_their_own_intervals():
    """A minus B is the negative of B minus A, and its interval that of the paired draws."""
    values, draws = entries([0.0, 0.3, 2.0])
    pairs = pairs_of(values, draws)
    upper = np.triu_indices(3, 1)
    assert pairs.low.T[upper] == pytest.approx(-pairs.high[upper])
    assert (pairs.low[0, 1], pairs.high[0, 1]) == pytest.approx(interval(draws[0] - draws[1]))
    assert (pairs.real == pairs.real.T).all()
    assert not pairs.real.diagonal().any()


def test_a_clear_order_is_real():
    """Entries ten standard errors apart each have a rank of their own."""
    values, draws = entries([0.0, 1.0, 2.0, 3.0])
    ranks = ranks_of(pairs_of(values, draws), "higher")
    assert [(r.rank, r.best, r.worst) for r in ranks] == [(4, 4, 4), (3, 3, 3), (2, 2, 2), (1, 1, 1)]
    assert [r.rank for r in ranks_of(pairs_of(values, draws), "lower")] == [1, 2, 3, 4]


def test_equal_figures_share_a_rank_and_are_tied():
    """Two names for one forecaster: same rank, tied, whatever the rest does."""
    values, draws = entries([0.0, 5.0])
    ranks = ranks_of(pairs_of([*values, values[1]], [*draws, draws[1]]), "higher")
    assert [(r.rank, r.best, r.worst) for r in ranks] == [(3, 3, 3), (1, 1, 2), (1, 1, 2)]
    assert ranks[1].tied_with == (2,)


def test_a_constant_difference_without_spread_is_real():
    """Where every draw agrees there is no doubt; where they are equal there is no difference."""
    draw = np.arange(100.0)
    assert pairs_of([1.0, 2.0], [draw, draw + 1]).real.tolist() == [[False, True], [True, False]]
    assert not pairs_of([1.0, 1.0], [draw, draw]).real.any()


def test_undefined_figures_are_left_out():
    """An entry without the figure has no rank and takes none from the others; undefined draws are dropped."""
    values, draws = entries([0.0, 3.0])
    draws[0][:10] = np.nan
    pairs = pairs_of([values[0], None, values[1]], [draws[0], None, draws[1]])
    ranks = ranks_of(pairs, "higher")
    assert ranks[1] is None
    assert [ranks[0].rank, ranks[2].rank] == [2, 1]
    assert np.isnan(pairs.low[0, 1])
    assert pairs.real[0, 2]


def test_an_entry_undefined_in_most_draws_has_no_pairs_and_leaves_the_others_as_they_are():
    """Defined in 499 of 1000 draws or in none, it is null; defined in 500, it is compared on those alone."""
    values, draws = entries([0.0, 1.0, 2.0, 0.0])
    alone = pairs_of(values[:3], draws[:3])
    for defined in (0, 499):
        draws[3][defined:] = np.nan
        pairs = pairs_of(values, draws)
        for name in ("low", "high", "real"):
            np.testing.assert_array_equal(getattr(pairs, name)[:3, :3], getattr(alone, name))
        assert np.isnan([pairs.low[3], pairs.high[3]]).all()
        assert not pairs.real[3].any()
        assert ranks_of(pairs, "higher") == [*ranks_of(alone, "higher"), None]
        draws[3] = draws[0].copy()
    draws[3][500:] = np.nan
    assert ranks_of(pairs_of(values, draws), "higher")[3] is not None


def test_one_entry_alone_is_first():
    """No pair, no doubt."""
    assert ranks_of(pairs_of([1.0], [np.arange(5.0)]), "higher")[0].rank == 1


def test_among_equals_a_false_difference_is_rare():
    """Fifteen forecasters of equal skill, 100 boards: about 5 boards call any pair different, not most of them."""
    wrong = sum(bool(pairs_of(*entries([0.0] * 15, seed=seed, draws=400)).real.any()) for seed in range(100))
    assert (
        wrong <= 14
    )  # 5 expected, plus the small sample's bias of the bootstrap; the uncorrected rule would give nearly 100


def test_real_is_what_the_definition_says():
    """Against the definition in long: the 95 % quantile of every draw's largest studentised deviation, over all pairs."""
    values, draws = entries([0.0, 0.1, 0.25, 0.3, 3.0], draws=300, seed=3)
    deviations = {}
    for i, j in combinations(range(5), 2):
        moved = draws[i] - draws[j]
        deviations[i, j] = moved.std(), np.abs(moved - moved.mean()) / moved.std()
    critical = np.quantile(np.max([largest for _, largest in deviations.values()], axis=0), 0.95)
    real = pairs_of(values, draws).real
    for (i, j), (error, _) in deviations.items():
        assert real[i, j] == (abs(values[i] - values[j]) > critical * error)
    assert 0 < real.sum() < 20


def test_beyond_the_entries_shown_in_whole_ties_are_counted():
    """Four entries of which the last three are one forecaster under three names: by hand, whatever is shown."""
    values, draws = entries([5.0, 0.0])
    values, draws = [values[0], *[values[1]] * 3], [draws[0], *[draws[1]] * 3]
    whole = ranks_of(pairs_of(values, draws), "higher")
    assert [(r.rank, r.best, r.worst, r.tied_with) for r in whole] == [
        (1, 1, 1, ()), (2, 2, 4, (2, 3)), (2, 2, 4, (1, 3)), (2, 2, 4, (1, 2)),
    ]  # fmt: skip
    pairs = pairs_of(values, draws, whole=3)
    assert pairs.real.shape == pairs.low.shape == (3, 3)
    found = ranks_of(pairs, "higher")
    assert [(r.rank, r.best, r.worst, r.tied_with) for r in found] == [
        (1, 1, 1, ()), (2, 2, 4, (2,)), (2, 2, 4, (1,)), (2, 2, 4, ()),
    ]  # fmt: skip
    assert [len(r.tied_with) for r in whole] == [r.worst - r.best for r in found]


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 9), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_blocks_and_what_is_shown_change_nothing(seed, k, whole, block):
    """Any size of blocks, any number of entries in whole: the same ranks, and the same pairs among those."""
    rng = np.random.default_rng(seed)
    values, draws = entries(rng.normal(0, rng.choice([0.0, 0.1, 1.0]), k), draws=60, n=30, seed=seed)
    values = [None if rng.random() < 0.1 else v for v in values]
    draws[0][:3] = np.nan
    one, kept = pairs_of(values, draws), module._BLOCK
    try:
        module._BLOCK = block
        cut = pairs_of(values, draws, whole=whole)
    finally:
        module._BLOCK = kept
    for name in ("low", "high", "real"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(one, name)[:whole, :whole])
    for better in ("higher", "lower"):
        for a, b in zip(ranks_of(one, better), ranks_of(cut, better), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert (a.rank, a.best, a.worst) == (b.rank, b.best, b.worst)
                assert len(a.tied_with) == a.worst - a.best
                assert set(b.tied_with) <= set(a.tied_with) & set(range(whole))
