"""The registry of metrics, and what no metric depends on."""

import pytest

from kernel_archive.scoring.metrics import COMPARED, HEADLINE, METRICS, metrics_of


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_metric_is_stated_in_full(metric):
    """Title, meaning and formula; a direction where it is compared."""
    assert all((metric.title, metric.meaning, metric.formula, metric.kinds))
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
