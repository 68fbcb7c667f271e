"""The registry of metrics, and the formulas: their signatures, and their weighted form against
repeated rows.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_archive.scoring import metrics
from kernel_archive.scoring.metrics import COMPARED, HEADLINE, METRICS, metrics_of


def same(got, expected):
    """Equal to 1e-12, NaN where NaN is due."""
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_the_public_names_are_the_functions_and_tables_of_the_module():
    """Every name of ``__all__`` exists once, and no formula that the module knows is left out of
    it.
    """
    assert len(set(metrics.__all__)) == len(metrics.__all__)
    public = {
        name
        for name, value in vars(metrics).items()
        if not name.startswith("_") and callable(value)
    }
    formulas = {
        name
        for name in public
        if getattr(metrics, name).__module__.startswith("kernel_archive.scoring")
    }
    assert formulas <= set(metrics.__all__)
    assert all(getattr(metrics, name) is not None for name in metrics.__all__)
    assert metrics.crps(probabilities=np.eye(8)[[0]], bins=np.array([8])).tolist() == [1.0]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_is_stated_in_full(metric):
    """Name, title, meaning and formula; one way to compute it; a direction unless it has none."""
    assert METRICS[metric.name] is metric
    assert metric.title
    assert metric.meaning
    assert metric.formula
    assert (metric.rows is None) != (metric.draws is None)
    assert metric.kinds
    assert metric.sign == {"higher": -1, "lower": 1, "neither": 1}[metric.better]
    assert metric.better != "neither" or not metric.compared


def test_the_tables_are_made_from_the_registry():
    """Headline metrics come first in a comparison, and no table names a metric that its kind of
    split lacks.
    """
    assert HEADLINE["eval"] == ("speedup_recovered", "ece", "forecast_error")
    assert HEADLINE["discovery"] == (
        "average_precision_1.25",
        "average_precision_1.5",
        "average_precision_2",
    )
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
        normal = metrics.normalise(raw=p * scale)
        predicted = metrics.predicted_bins(probabilities=normal)
        q = metrics.confidence(probabilities=normal, predicted=predicted)
        s_hat = metrics.expected_speedup(probabilities=normal, representatives=m)
        ranks = np.arange(1, 201)
        figures.append(
            (
                predicted.tolist(),
                metrics.bucket_of(confidence=q).tolist(),
                metrics.recovered_at(expected=s_hat, speedups=speedups, ranks=ranks)
                .round(9)
                .tolist(),
                metrics.selective_risk(confidence=q, losses=speedups).round(9).tolist(),
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
    ranks = np.arange(1, n + 1)

    recovered = metrics.recovered_at(picks=picks, expected=expected, speedups=speedups, ranks=ranks)
    calibration = metrics.ece(weights=w, confidence=q, correct=hit, parsed=parsed)
    adaptive = metrics.adaptive_ece(weights=w, confidence=q, correct=hit, parsed=parsed)
    monotone = metrics.confidence_monotonicity(
        weights=w, confidence=q, errors=errors, parsed=parsed
    )
    risk = metrics.aurc(weights=w, confidence=q, losses=np.stack([errors, misses]), parsed=parsed)
    found = metrics.average_precision(weights=w, scores=q, positive=positive)
    for d, i in enumerate(picks):
        j = i[parsed[i]]
        same(
            recovered[:, d],
            metrics.recovered_at(expected=expected[i], speedups=speedups[i], ranks=ranks),
        )
        same(calibration[d], metrics.ece(confidence=q[i], correct=hit[i], parsed=parsed[i]))
        same(adaptive[d], metrics.adaptive_ece(confidence=q[i], correct=hit[i], parsed=parsed[i]))
        same(
            monotone[d],
            metrics.confidence_monotonicity(confidence=q[i], errors=errors[i], parsed=parsed[i]),
        )
        for row, losses in zip(risk, (errors, misses), strict=True):
            same(row[d], metrics.aurc(confidence=q[j], losses=losses[j]))
            same(
                row[d],
                metrics.selective_risk(confidence=q[j], losses=losses[j]).mean()
                if len(j)
                else np.nan,
            )
        same(found[d], metrics.average_precision(scores=q[i], positive=positive[i]))
