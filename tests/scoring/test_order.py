"""Pairs, ranks and discoveries in order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_curve
from support.made_forecasts import make_split, rows_of

from kernel_archive.scoring import Forecasts, Split, score
from kernel_archive.scoring.order import (
    MAX_ROWS,
    PairTable,
    average_precision,
    order_keys,
    precision_recall,
    shares_above,
)
from kernel_archive.scoring.split import RowFacts


def pair_accuracy(*, keys, speedups, spreads=None, weights=None):
    """Share of the pairs of one candidate set in the right order, ties half, in every draw."""
    n = len(speedups)
    table = PairTable(keys, speedups, np.ones(n) if spreads is None else spreads, None)
    drawn = np.ones((n, 1)) if weights is None else weights
    right, countable = table.count(drawn)[:2]
    with np.errstate(invalid="ignore"):
        shares = right / countable
    return shares[0] if weights is None else shares


def counted_pairs(keys, speedups, spreads):
    """Points and number of the pairs that count, pair by pair."""
    points, count = 0.0, 0
    for i, j in itertools.combinations(range(len(speedups)), 2):
        ratio = max(speedups[i], speedups[j]) / min(speedups[i], speedups[j])
        if ratio <= max(1.05, spreads[i], spreads[j]):
            continue
        count += len(keys)
        for key in keys:
            right = float((key[i] > key[j]) == (speedups[i] > speedups[j]))
            points += 0.5 if key[i] == key[j] else right
    return points, count


def drawn(rng, n, d=5):
    """Draws of n rows with replacement: positions, and weights of shape (n, D)."""
    picks = rng.integers(0, n, (d, n))
    return picks, np.stack([np.bincount(row, minlength=n) for row in picks], axis=1).astype(float)


def test_keys_by_hand():
    """Ranks by expected speedup; a stated speedup orders what ties, and only that."""
    expected = np.array([2.0, 1.0, 2.0, 2.0])
    assert order_keys(expected=expected, stated=np.full(4, np.nan)).tolist() == [1, 0, 1, 1]
    stated = np.array([1.5, 9.0, 3.0, np.nan])
    assert order_keys(expected=expected, stated=stated).tolist() == [1, 0, 3, 2]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 25), st.integers(1, 3), st.integers(0, 2**31))
def test_pairs_in_draws_are_the_pairs_of_the_drawn_rows(n, repeats, seed):
    """With ties, spreads and repeats."""
    rng = np.random.default_rng(seed)
    speedups = np.round(np.exp(rng.normal(0, 1, n)), 1) + 0.1
    spreads = 1 + 0.3 * rng.random(n)
    keys = rng.integers(0, max(2, n // 2), (repeats, n))
    picks, weights = drawn(rng, n, 45)
    found = pair_accuracy(keys=keys, speedups=speedups, spreads=spreads, weights=weights)
    for d, rows in enumerate(picks):
        points, count = counted_pairs(keys[:, rows], speedups[rows], spreads[rows])
        expected = points / count if count else np.nan
        assert found[d] == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_close_pairs_by_hand():
    """At most 2x apart and of one goal: 1 and 1.5 in the wrong order, 1.5 and 2.9 in the right."""
    row_facts = replace(RowFacts.plain(4), goals=np.array([5.0, 5.0, 5.0, 7.0]))
    split = rows_of([1.0, 1.5, 2.9, 2.2], row_facts=row_facts)
    forecasts = Forecasts.from_arrays(split, np.full((4, 8), 0.125), expected_speedups=[2, 1, 3, 4])
    record = score(split, forecasts, draws=0)
    assert record.metrics["close_pairs"].mean == 0.5


def test_a_large_set_is_thinned_and_stays_in_memory(rng):
    """Of 20,000 rows 1,000 enter pairs: a share near that of others."""
    speedups = np.exp2(rng.normal(0, 1.3, 20_000))
    expected = speedups * np.exp2(rng.normal(0, 1.0, 20_000))
    keys = order_keys(expected=expected, stated=np.full(20_000, np.nan))
    found = pair_accuracy(keys=keys[None], speedups=speedups)
    other = np.arange(7, 20_000, 20_000 // MAX_ROWS)
    again = pair_accuracy(keys=keys[None, other], speedups=speedups[other])
    assert found == pytest.approx(again, abs=0.03)


def test_pairs_are_of_one_task_and_language(rng):
    """Two languages of a task are two sets: an order that is wrong across them costs nothing."""
    languages = ("triton", "cuda") * 6
    speedups = np.exp2(np.arange(12) / 2.0)
    plain = RowFacts.plain(12)
    row_facts = RowFacts(languages=languages, spreads=plain.spreads)
    ids = [f"r{i:02d}" for i in range(12)]
    expected = np.where(np.array(languages) == "cuda", 0.01, 1.0) * speedups
    for known, accuracy in ((row_facts, 1.0), (plain, (66 - 21) / 66)):
        split = Split.from_arrays(row_ids=ids, tasks=["t"] * 12, speedups=speedups, row_facts=known)
        forecasts = Forecasts.from_arrays(
            split, np.full((12, 8), 0.125), expected_speedups=expected
        )
        assert score(split, forecasts, draws=0).metrics["pair_accuracy"].mean == pytest.approx(
            accuracy
        )


def test_stated_speedups_order_ties_and_touch_no_figure_of_the_paper(rng):
    """With the true speedups stated beside a uniform forecast the order is perfect."""
    split = make_split(rng, sizes=(30, 30))
    p = np.full((60, 8), 0.125)
    plain = score(split, Forecasts.from_arrays(split, p), draws=50)
    told = score(split, Forecasts.from_arrays(split, p, expected_speedups=split.speedups), draws=50)
    for name in plain.metrics:
        if name in ("pair_accuracy", "close_pairs"):
            figure = told.metrics[name]
            assert figure.mean == figure.low == figure.high == 1.0
            assert plain.metrics[name].mean == pytest.approx(0.5)
        else:
            assert plain.metrics[name] == told.metrics[name], name


@pytest.mark.parametrize(
    ("cutoff", "scheme", "expected"),
    [
        (1.25, "paper", [0, 0, 0, 0, 0.356144, 1, 1, 1]),
        (1.5, "paper", [0, 0, 0, 0, 0, 0.830075, 1, 1]),
        (2.0, "paper", [0, 0, 0, 0, 0, 0, 1, 1]),
        (1.25, "released", [0, 0, 0, 0.356144, 1, 1, 1, 1]),
        (1.5, "released", [0, 0, 0, 0, 0.830075, 1, 1, 1]),
        (2.0, "released", [0, 0, 0, 0, 0, 1, 1, 1]),
    ],
)
def test_shares_above_the_cutoffs(cutoff, scheme, expected):
    """Full bins above the cutoff, a log-uniform share of the bin that contains it."""
    np.testing.assert_allclose(shares_above(cutoff, scheme), expected, atol=5e-7)


def test_average_precision_agrees_with_scikit_learn(rng):
    """Also with ties, which are one step; the curve without the end point that it appends."""
    for places in (1, 2, 6):
        scores = np.round(rng.random(200), places)
        positive = rng.random(200) < scores
        got = average_precision(scores=scores, positive=positive, weights=np.ones((len(scores), 1)))
        assert got == pytest.approx(average_precision_score(positive, scores), abs=1e-12)
        curve = precision_recall(scores=scores, positive=positive)
        others = precision_recall_curve(positive, scores, drop_intermediate=False)[:2]
        for values, other in zip(curve, others, strict=True):
            np.testing.assert_allclose(values, other[:-1][::-1], rtol=1e-12)


def test_average_precision_by_hand():
    """Hits at places 1 and 3 of 4: 1/2 * 1 + 1/2 * 2/3; a constant gives the share of positives;
    without a positive it is not defined.
    """
    scores, positive = np.array([4.0, 3, 2, 1]), np.array([True, False, True, False])
    cases = [(scores, positive, 0.5 + 1 / 3), (scores, positive & False, np.nan)]
    cases += [(np.full(4, 0.3), order, 0.5) for order in (positive, positive[::-1])]
    for own, hits, expected in cases:
        found = average_precision(scores=own, positive=hits, weights=np.ones((4, 1)))
        assert found == pytest.approx([expected], abs=1e-15, nan_ok=True)
