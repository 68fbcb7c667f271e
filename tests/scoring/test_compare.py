"""Comparisons: paired differences, permutation tests, Holm's correction."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split

from kernel_archive.errors import UsageError
from kernel_archive.scoring import Forecasts, compare, score
from kernel_archive.scoring.compare import holm, permutation_p
from kernel_archive.scoring.figures import metrics_by_repeat
from kernel_archive.scoring.metrics import COMPARED, METRICS
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.scorer import means
from kernel_archive.scoring.split import Clusters


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.5, 0.9], [1.0, 1.0]),
        ([], []),
    ],
)
def test_holm_by_hand(p, expected):
    """The k-th smallest times the number of those not smaller, never falling, at most 1; metrics of
    another family stay out.
    """
    names = [name for name in METRICS if METRICS[name].family == "paper"]
    corrected = holm({"pair_accuracy": 0.9, **dict(zip(names, p, strict=False))})
    assert corrected.pop("pair_accuracy") == 0.9
    assert list(corrected.values()) == [pytest.approx(e) for e in sorted(expected)]
    assert [corrected[name] for name in names[: len(p)]] == [pytest.approx(e) for e in expected]


def test_differences_are_those_of_the_scores(rng, split):
    """Means and their difference as the score records have them; the other way round with the sign
    turned.
    """
    a, b = make_forecasts(rng, split, noise=0.4), make_forecasts(rng, split, noise=1.2)
    there = compare(a, b, split, draws=200)
    back = compare(b, a, split, draws=200)
    score_a, score_b = score(split, a, draws=0), score(split, b, draws=0)
    for name, d in there.differences.items():
        assert d.a == score_a.metrics[name].mean
        assert d.difference == pytest.approx(d.a - score_b.metrics[name].mean)
        assert back.differences[name].difference == pytest.approx(-d.difference)
        assert back.differences[name].low == pytest.approx(-d.high)
        assert back.differences[name].p == pytest.approx(d.p, abs=0.1)


def test_a_submission_can_not_be_told_from_itself(rng, split):
    """No difference, p = 1, neither is better, whatever the numbers of repeats."""
    a = make_forecasts(rng, split, repeats=1)
    twice = Forecasts.from_arrays(
        split,
        np.repeat(a.probabilities, 2, axis=0),
        stated_bins=np.repeat(a.stated_bins, 2, axis=0),
    )
    for other in (a, twice):
        for d in compare(a, other, split, draws=50).differences.values():
            assert d.difference == pytest.approx(0, abs=1e-12)
            assert d.p == 1.0
            assert d.better == "neither"


def test_wrong_calls_are_refused(rng, split, forecasts):
    """No draws."""
    with pytest.raises(UsageError, match="needs draws"):
        compare(forecasts, forecasts, split, draws=0)


@pytest.mark.parametrize(
    ("kind", "authors"), [("eval", None), ("discovery", None), ("eval", "aabbcc")]
)
def test_permutations_are_those_of_swapped_forecasts(rng, kind, authors):
    """Against all swaps of six rows or three authors, scored by the plain path: the p-value of
    every metric of the table.
    """
    split = make_split(rng, sizes=(4, 2), split=kind)
    if authors:
        split = replace(split, clusters=Clusters(unit="authors", names=tuple(authors)))
    a, b = (make_forecasts(rng, split, repeats=2, noise=noise, places=1) for noise in (0.5, 1.5))
    rows_a, rows_b = ForecastRows.of(split, a), ForecastRows.of(split, b)
    names = COMPARED[kind]

    def differences(swap):
        one, two = (
            Forecasts.from_arrays(
                split,
                np.where(swap[:, None], x.probabilities, y.probabilities),
                stated_bins=np.where(swap, x.stated_bins, y.stated_bins),
            )
            for x, y in ((b, a), (a, b))
        )
        one, two = (means(metrics_by_repeat(ForecastRows.of(split, f)).overall) for f in (one, two))
        return [np.nan if one[n] is None or two[n] is None else one[n] - two[n] for n in names]

    swaps = [np.array(swap, bool) for swap in itertools.product([0, 1], repeat=6)]
    everything = np.array(
        [differences(s) for s in swaps if not authors or (s[::2] == s[1::2]).all()]
    )
    defined = [name for i, name in enumerate(names) if not np.isnan(everything[0, i])]
    got = permutation_p(rows_a, rows_b, defined, seed=0, draws=4000)
    for name in defined:
        column = np.abs(everything[:, names.index(name)])
        exact = np.mean(column >= column[0] - 1e-9)
        slack = 4 * np.sqrt(exact * (1 - exact) / 4000) + 1e-3
        assert got[name] == pytest.approx(exact, abs=slack), name
