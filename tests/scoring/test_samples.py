"""Rows with their forecasts, and the metrics of draws of them."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.scoring.uncertainty import measure, repeats_of


@pytest.fixture(params=["eval", "discovery"])
def rows(request, rng):
    """Rows of either kind of split, two repeats, some without a distribution."""
    target = make_target(rng, split=request.param)
    return ForecastRows.of(target, make_forecasts(rng, target, missing=0.1))


def test_every_row_once_is_the_score_of_the_repeats(rows):
    """A single draw of all rows gives the mean over the repeats of what each repeat gives alone."""
    once, each = measure(RowSample.once(rows)), repeats_of(rows, groups=False)
    assert list(once.overall) == list(metrics_of(rows.kind))
    for name, values in once.overall.items():
        assert values.shape == (1,)
        assert values[0] == pytest.approx(each.overall[name].mean(), rel=1e-12, nan_ok=True), name


def test_a_group_is_scored_as_if_it_were_alone(rows):
    """The figures of a group are those of its rows taken out."""
    names = [name for name, metric in METRICS.items() if metric.groups != "none"]
    got = measure(RowSample.once(rows), groups=names)
    for group, at in rows.groups.items():
        alone = measure(RowSample.once(rows.part(at)), names).overall
        assert got.groups[group].keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_allclose(
                got.groups[group][name], values, rtol=1e-12, err_msg=f"{group} {name}"
            )
