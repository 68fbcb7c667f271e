"""Parts of a score that are more than one figure, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_forecasts import rows_of

from kernel_archive.scoring import Forecasts, score
from kernel_archive.scoring.split import RowFacts
from kernel_archive.scoring.summary import score_remarks

SPEEDUPS = np.array([0.3, 0.8, 1.2, 3.0])


def record_of(bins, deferred, split="eval"):
    """Score of four candidates in bins 2, 4, 5 and 7; each forecast is a little less sure."""
    rows = rows_of(SPEEDUPS, split=split)
    p = [
        [q if b == k else (1 - q) / 7 for k in range(1, 9)]
        for b, q in zip(bins, (0.9, 0.8, 0.7, 0.6), strict=True)
    ]
    return score(rows, Forecasts.from_arrays(rows, p, deferred=deferred), draws=0)


def test_deferral_by_hand():
    """Two are deferred: both were right; of the two that are kept one is."""
    record = record_of([2, 4, 5, 3], [True, True, False, False])
    d = record.deferral
    assert (d.deferred_accuracy, d.n_deferred_parsed) == (1.0, 2)
    assert d.accepted["accuracy"].mean == 0.5
    errors = [2**0.25 - 1.2, 3.0 - 0.125**0.25]
    assert d.accepted["forecast_error"].mean == pytest.approx(np.mean(np.abs(errors)))
    assert "Deferred: 50.0 % of the forecasts" in " ".join(score_remarks(record))


def test_risk_and_buckets_by_hand():
    """The surest three are right: the error rate is 0 up to 75 % and a quarter at the end."""
    record = record_of([2, 4, 5, 3], None)
    assert [record.risk.error_rate[c - 1] for c in (1, 75, 76, 100)] == [0, 0, 0.25, 0.25]
    buckets = [(b.count, b.confidence, b.accuracy) for b in record.buckets]
    assert buckets[:6] == [(0, None, None)] * 6
    for tenth, hits in zip((6, 7, 8, 9), (0.0, 1.0, 1.0, 1.0), strict=True):
        assert buckets[tenth] == (1, pytest.approx(tenth / 10), hits)


def test_close_pairs_by_hand():
    """Two of four pairs have the faster program named; a tie is worth a half."""
    rows = rows_of([1.1, 0.8, 1.9, 0.9], split="eval_close")
    above = np.array([0.9, 0.2, 0.4, 0.5])
    p = np.stack([np.eye(8)[4] * a + np.eye(8)[3] * (1 - a) for a in above])
    record = score(rows, Forecasts.from_arrays(rows, p), draws=0)
    assert record.metrics["faster"].mean == (1 + 1 + 0 + 0.5) / 4
    bands = {band.title: (band.n_pairs, band.accuracy, band.ceiling) for band in record.pairs}
    assert bands == {
        "1.05x to 1.2x": (2, 0.75, None),
        "1.2x to 1.5x": (1, 1.0, None),
        "1.5x to 2x": (1, 0.0, None),
    }
    assert "pair_accuracy" not in record.metrics
    assert "faster" not in record_of([2, 4, 5, 7], None).metrics


def test_the_ceiling_of_close_pairs_is_what_one_measurement_names():
    """One of six repeated measurements has the other order than the median of the others."""
    measured = np.array([[1.1, 1.3, 0.95], [0.8, 0.7, 0.75]])
    row_facts = replace(RowFacts.plain(2), measured=measured)
    rows = rows_of([1.1, 0.75], split="eval_close", row_facts=row_facts)
    record = score(rows, Forecasts.from_arrays(rows, np.full((2, 8), 0.125)), draws=0)
    assert record.metrics["faster"].mean == 0.5
    assert [band.ceiling for band in record.pairs] == [2 / 3, 1.0]


def test_pairs_of_a_task_by_distance_by_hand():
    """Two of three orders are right; one of three repeated measurements swaps the near pair."""
    measured = np.array([[1.1, 1.1, 1.0], [1.0, 1.0, 1.05], [0.5, 0.5, 0.5]])
    rows = rows_of([1.1, 1.0, 0.5], row_facts=replace(RowFacts.plain(3), measured=measured))
    record = score(rows, Forecasts.from_arrays(rows, np.eye(8)[[4, 5, 1]]), draws=0)
    bands = {band.title: (band.n_pairs, band.accuracy, band.ceiling) for band in record.pairs}
    assert bands["1.05x to 1.2x"] == (1, 0.0, 6 / 9)
    assert bands["2x to 4x"] == (1, 1.0, 1.0)
    assert bands["1.5x to 2x"] == (1, 1.0, 1.0)
    assert bands["over 4x"] == (0, None, None)
    assert bands["close pairs"][:2] == (2, 0.5)
