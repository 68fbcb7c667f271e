"""Levelling: what it exchanges, what it leaves, and when it stops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.selection.level import level


def anything(_comes, _beside):
    """No two programs are too near."""
    return True


def test_one_exchange_by_hand():
    """Four rows whose length goes with the speedup (0.943 by the ranks of all five kernels, 0.983
    with the speedup as it is).

    The fifth brings it to 0.748 and 0.639 in the place of the third, to 0.4 and 0.423 in the place
    of the fourth.
    """
    lengths = np.array([[10.0], [20.0], [30.0], [40.0], [15.0]])
    speedups = np.array([1.0, 2.0, 3.0, 4.0, 3.9])
    cells = np.array([0, 0, 1, 1, 1])
    taken = np.array([True, True, True, True, False])
    assert level(lengths, speedups, cells, taken, limit=0.5, fits=anything).tolist() == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert level(lengths, speedups, cells, taken, limit=0.9, fits=anything).tolist() == [
        True,
        True,
        False,
        True,
        True,
    ]
    assert (
        level(lengths, speedups, cells, taken, limit=0.984, fits=anything).tolist()
        == taken.tolist()
    )
    # By the ranks alone there would be nothing to do at this limit.
    assert (
        level(lengths, speedups, cells, taken, limit=0.944, fits=anything).tolist()
        != taken.tolist()
    )


def test_a_program_that_does_not_fit_is_passed_over():
    """A near copy of what stays is not exchanged in."""
    lengths = np.array([[10.0], [20.0], [30.0], [40.0], [15.0]])
    speedups = np.array([1.0, 2.0, 3.0, 4.0, 3.9])
    cells, taken = np.array([0, 0, 1, 1, 1]), np.array([True, True, True, True, False])
    asked = []

    def fits(comes, beside):
        asked.append((comes, tuple(beside)))
        return {comes, *beside} != {2, 4}

    chosen = level(lengths, speedups, cells, taken, limit=0.5, fits=fits)
    assert chosen.tolist() == [True, True, False, True, True]
    assert asked[:2] == [(4, (2,)), (4, (3,))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.15, 0.3]))
def test_cells_keep_their_sizes_and_correlations_fall(seed, limit):
    """Of every cell as many as before.

    The penalty is not larger, by scipy's correlations among all kernels' ranks.
    """
    rng = np.random.default_rng(seed)
    n = 40
    speedups = rng.lognormal(size=n)
    cells = np.digitize(speedups, [0.5, 1.0, 2.0])
    quantities = np.column_stack(
        [
            np.log(speedups) + rng.normal(size=n),
            rng.integers(0, 4, n).astype(float),
            np.full(n, 7.0),
        ]
    )
    taken = np.zeros(n, dtype=bool)
    for cell in np.unique(cells):
        members = np.flatnonzero(cells == cell)
        taken[members[: max(1, len(members) // 2)]] = True
    chosen = level(quantities, speedups, cells, taken, limit=limit, fits=anything)
    assert (
        np.bincount(cells[chosen], minlength=4).tolist()
        == np.bincount(cells[taken], minlength=4).tolist()
    )
    assert (
        chosen.tolist()
        == level(quantities, speedups, cells, taken, limit=limit, fits=anything).tolist()
    )

    def penalty(rows):
        found = []
        # Among all kernels, so that the oracle's ranks are the ones that levelling uses.
        for values in quantities.T[:2]:
            for target in (spearmanr_ranks(speedups), speedups):
                r = np.corrcoef(spearmanr_ranks(values)[rows], target[rows])[0, 1]
                found.append(max(abs(0.0 if np.isnan(r) else r) - limit, 0.0) ** 2)
        return sum(found)

    assert penalty(chosen) <= penalty(taken) + 1e-9


def spearmanr_ranks(values):
    """Ranks with ties by their mean, from an independent library."""
    from scipy.stats import rankdata

    return rankdata(values)


@pytest.mark.parametrize("speedups", [[0.1] * 6, [0.1] * 5 + [1e-9], [1e9] * 3 + [1e-9] * 3])
@pytest.mark.filterwarnings("error")
def test_speedups_without_a_spread_are_no_fault(speedups):
    """Nothing overflows, whatever the speedups are, and every cell keeps its size."""
    taken = np.array([True, False, True, False, True, False])
    lengths = np.arange(6.0)[:, None]
    chosen = level(lengths, np.array(speedups), np.zeros(6, int), taken, limit=0.0, fits=anything)
    assert chosen.sum() == 3
