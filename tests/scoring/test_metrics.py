"""The registry of metrics, and the formulas: their signatures, and their weighted form against
repeated rows.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.scoring import calibration as formulas
from kernel_archive.scoring.metrics import COMPARED, HEADLINE, METRICS, metrics_of
from kernel_archive.scoring.order import average_precision
from kernel_archive.scoring.recovery import recovered_at
from kernel_archive.scoring.rules import (
    confidence,
    expected_speedup,
    normalise,
    predicted_bins,
)


def same(got, expected):
    """Equal to 1e-12, NaN where NaN is due."""
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_is_stated_in_full(metric):
    """Name, title, meaning and formula; one way to compute it; a direction unless it has none."""
    assert METRICS[metric.name] is metric
    assert all((metric.title, metric.meaning, metric.formula, metric.kinds))
    assert metric.sign == {"higher": -1, "lower": 1, "neither": 1}[metric.better]
    assert metric.better != "neither" or not metric.compared


def test_the_tables_are_made_from_the_registry():
    """Headline metrics come first in a comparison, and no table names a metric that its kind of
    split lacks.
    """
    assert HEADLINE["eval"] == ("speedup_recovered", "ece", "forecast_error")
    assert HEADLINE["discovery"][0] == "average_precision_1.25"
    assert HEADLINE["train"] == ()
    for kind, names in COMPARED.items():
        assert names[: len(HEADLINE[kind])] == HEADLINE[kind]
        assert len(set(names)) == len(names)
        assert set(names) <= set(metrics_of(kind))


def test_renormalisation_changes_no_metric(rng):
    """Forecasts scaled by any factor give the same bins, buckets and ranks, ties included."""
    p = np.round(rng.dirichlet(np.ones(8), 200), 1) + 0.05
    m = np.array([0.2, 0.35, 0.6, 0.84, 1.19, 1.68, 2.83, 6.0])
    speedups = rng.random(200) + 0.2
    figures = []
    for scale in (1.0, 0.9, 1 / 3, 1.1):
        normal = normalise(raw=p * scale)
        predicted = predicted_bins(probabilities=normal)
        q = confidence(probabilities=normal, predicted=predicted)
        s_hat = expected_speedup(probabilities=normal, representatives=m)
        figures.append(
            (
                predicted.tolist(),
                formulas.bucket_of(confidence=q).tolist(),
                recovered_at(expected=s_hat, speedups=speedups).round(9).tolist(),
                formulas.selective_risk(confidence=q, losses=speedups).round(9).tolist(),
            )
        )
    assert all(f == figures[0] for f in figures)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 22), st.integers(0, 3), st.integers(0, 2**31))
def test_a_weighted_metric_is_the_plain_one_on_repeated_rows(n, places, seed):
    """For random rows with many ties and random resamples, one of which is every row once."""
    rng = np.random.default_rng(seed)
    speedups = np.round(np.exp(rng.normal(0, 1, n)), 1) + 0.05
    expected = np.round(np.exp(rng.normal(0, 1, n)), places)
    q = np.round(rng.random(n), 1 + places % 2)
    hit, positive, parsed = rng.random(n) < q, rng.random(n) < 0.4, rng.random(n) < 0.8
    errors, misses = rng.random(n), 1.0 - hit
    picks = np.sort(rng.integers(0, n, (6, n)), axis=1)
    picks[0] = np.arange(n)
    w = np.stack([np.bincount(row, minlength=n) for row in picks], axis=1).astype(float)
    recovered = recovered_at(weights=w, expected=expected, speedups=speedups)
    calibration = formulas.ece(weights=w, confidence=q, correct=hit, parsed=parsed)
    monotone = formulas.confidence_monotonicity(
        weights=w, confidence=q, errors=errors, parsed=parsed
    )
    risks = [
        formulas.aurc(weights=w, confidence=q, losses=losses, parsed=parsed)
        for losses in (errors, misses)
    ]
    found = average_precision(weights=w, scores=q, positive=positive)
    for d, i in enumerate(picks):
        j = i[parsed[i]]
        same(
            recovered[:, d],
            recovered_at(expected=expected[i], speedups=speedups[i]),
        )
        same(calibration[d], formulas.ece(confidence=q[i], correct=hit[i], parsed=parsed[i]))
        same(
            monotone[d],
            formulas.confidence_monotonicity(confidence=q[i], errors=errors[i], parsed=parsed[i]),
        )
        for row, losses in zip(risks, (errors, misses), strict=True):
            same(row[d], formulas.aurc(confidence=q[j], losses=losses[j]))
            same(
                row[d],
                formulas.selective_risk(confidence=q[j], losses=losses[j]).mean()
                if len(j)
                else np.nan,
            )
        same(found[d], average_precision(scores=q[i], positive=positive[i]))
