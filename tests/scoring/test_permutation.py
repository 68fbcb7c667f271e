"""Permutation tests: swaps of forecasts, and repeats in pairs."""

import itertools

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import Forecasts, compare
from kernel_archive.scoring.metrics import COMPARED
from kernel_archive.scoring.permutation import _pairings, permutation_p, repeat_order
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.scorer import means
from kernel_archive.scoring.uncertainty import repeats_of


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_permutations_are_those_of_swapped_forecasts(rng, kind):
    """Against all 64 swaps of six rows, scored by the plain path: the p-value of every metric of the table."""
    target = make_target(rng, sizes=(4, 2), split=kind)
    a, b = (make_forecasts(rng, target, repeats=2, noise=noise, places=1) for noise in (0.5, 1.5))
    rows_a, rows_b = ForecastRows.of(target, a), ForecastRows.of(target, b)
    names = COMPARED[kind]
    (pa, sa), (pb, sb) = (
        (f.probabilities[repeat_order(rows)], f.stated[repeat_order(rows)]) for f, rows in ((a, rows_a), (b, rows_b))
    )

    def differences(swap):
        first = np.where(swap[None, :, None], pb, pa)
        second = np.where(swap[None, :, None], pa, pb)
        stated = [np.where(swap, x, y) for x, y in ((sb, sa), (sa, sb))]
        one, two = (
            means(repeats_of(ForecastRows.of(target, Forecasts.from_arrays(target, p, stated=s))).overall)
            for p, s in ((first, stated[0]), (second, stated[1]))
        )
        return [np.nan if one[n] is None or two[n] is None else one[n] - two[n] for n in names]

    everything = np.array([differences(np.array(s, bool)) for s in itertools.product([0, 1], repeat=6)])
    observed = dict(zip(names, everything[0].tolist(), strict=True))
    observed = {n: None if np.isnan(v) else v for n, v in observed.items()}
    got = permutation_p(rows_a, rows_b, observed, seed=0, draws=4000)
    for i, name in enumerate(names):
        if observed[name] is None:
            assert got[name] is None
            continue
        exact = np.mean(np.abs(everything[:, i]) >= abs(everything[0, i]) - 1e-9)
        assert got[name] == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 4000) + 1e-3), name


@pytest.mark.parametrize("repeats", [(3, 3), (3, 2), (4, 5)])
def test_how_repeats_are_numbered_changes_nothing(rng, target, repeats):
    """The same repeats in another order, or scaled before they are renormalised: every p-value stays."""
    a, b = (make_forecasts(rng, target, repeats=r, noise=0.8 + 0.2 * r) for r in repeats)

    def table(p, q, stated):
        one = Forecasts.from_arrays(target, p, stated=stated, name="a")
        two = Forecasts.from_arrays(target, q, stated=b.stated[: len(q)], name="b")
        result = compare(target, one, two, draws=150, both_schemes=False)
        return {name: (d.p, d.p_holm, d.better) for name, d in result.differences.items()}

    expected = table(a.probabilities, b.probabilities, a.stated)
    turned = np.roll(np.arange(repeats[0]), 1)
    assert table(a.probabilities[turned], b.probabilities, a.stated[turned]) == expected
    assert table(a.probabilities[::-1], b.probabilities, a.stated[::-1]) == expected
    assert table(a.probabilities * 0.7, b.probabilities, a.stated) == expected


def test_repeats_without_a_small_common_multiple_take_no_longer_than_the_larger_number(rng):
    """Seven against eight: eight pairs at a time and not 56; every repeat of the smaller side takes part, all alike."""
    target = make_target(rng, sizes=(4, 3))
    a, b = (ForecastRows.of(target, make_forecasts(rng, target, repeats=r)) for r in (7, 8))
    pairs = list(itertools.islice(_pairings(a, b, seed=0), 400))
    assert all(len(first) == len(second) == 8 for first, second in pairs)
    counts = np.bincount(np.concatenate([first for first, _ in pairs]), minlength=7)
    assert counts.sum() == 3200
    assert (abs(counts - 3200 / 7) < 30).all()
    assert all(sorted(second.tolist()) == list(range(8)) for _, second in pairs)
    assert [len(x) for x in next(_pairings(b, a, seed=0))] == [8, 8]
