"""The registry of metrics, and what no metric depends on."""

import numpy as np
import pytest

from kernel_archive.scoring import calibration as formulas
from kernel_archive.scoring.metrics import COMPARED, HEADLINE, METRICS, metrics_of
from kernel_archive.scoring.recovery import recovered_at
from kernel_archive.scoring.rules import (
    confidence,
    expected_speedup,
    normalise,
    predicted_bins,
)


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
                recovered_at(expected=s_hat, speedups=speedups, weights=np.ones((200, 1)))
                .round(9)
                .tolist(),
                formulas.selective_risk(confidence=q, losses=speedups).round(9).tolist(),
            )
        )
    assert all(f == figures[0] for f in figures)
