"""Bootstrap: the rows that are drawn, the metrics of the draws, the intervals."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import Forecasts, Split, uncertainty
from kernel_archive.scoring.metrics import METRICS
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.uncertainty import bootstrap, interval, repeats_of, resampled


def drawn_again(target, forecasts, chosen):
    """Split and forecasts with the chosen rows under new ids; labels and representatives of the
    whole split.
    """
    ids = [f"{n:05d}" for n in range(len(chosen))]
    again = Split.from_arrays(
        row_ids=ids,
        tasks=[target.tasks[i] for i in chosen],
        groups=[target.groups[i] for i in chosen],
        speedups=target.speedups[chosen],
        bins=target.bins[chosen],
        ends=(target.representatives[0], target.representatives[7]),
        split=target.spec.name,
    )
    cast = Forecasts.from_arrays(
        again,
        forecasts.probabilities[:, chosen],
        parsed=forecasts.parsed[:, chosen],
        stated=forecasts.stated[:, chosen],
    )
    return again, cast


@pytest.mark.parametrize("kind", ["eval", "discovery"])
@pytest.mark.parametrize("places", [None, 1])
def test_the_weighted_bootstrap_is_the_plain_one_draw_for_draw(rng, kind, places):
    """Rows drawn by hand and scored by the plain formulas give what the vectorised bootstrap gives,
    for every metric.
    """
    target = make_target(rng, split=kind)
    forecasts = make_forecasts(rng, target, places=places, missing=0.15)
    rows = ForecastRows.of(target, forecasts)
    drawn = bootstrap(rows, seed=3, draws=12)
    resample = next(resampled(rows, seed=3, draws=12))
    assert set(drawn.overall) == set(repeats_of(rows).overall)
    # What is relative to the best control, or needs parents, has tests of its own.
    own = {"crps_skill", *(name for name in METRICS if name.startswith("lift"))}
    for d in range(12):
        positions = np.concatenate(
            [at[resample.picks[name][d]] for name, at in rows.strata.items()]
        )
        again = repeats_of(
            ForecastRows.of(*drawn_again(target, forecasts, target.canonical_order[positions]))
        )
        for name, values in ((n, v) for n, v in drawn.overall.items() if n not in own):
            np.testing.assert_allclose(
                values[d], again.overall[name].mean(), rtol=1e-11, atol=1e-12, err_msg=name
            )
        for group, metrics in drawn.groups.items():
            for name, values in ((n, v) for n, v in metrics.items() if n not in own):
                np.testing.assert_allclose(
                    values[d],
                    again.groups[group][name].mean(),
                    rtol=1e-11,
                    atol=1e-12,
                    err_msg=name,
                )
        if kind == "eval":
            np.testing.assert_allclose(drawn.curve[:, d], again.curve.mean(axis=1), rtol=1e-11)


def test_intervals_are_percentiles():
    """2.5 % and 97.5 % of the draws."""
    assert interval(np.arange(1001.0)) == pytest.approx((25.0, 975.0))


def test_undefined_draws_take_the_interval_away():
    """A few are left out; with more than one in twenty there is no interval."""
    values = np.arange(100.0)
    values[:4] = np.nan
    assert interval(values) is not None
    values[:6] = np.nan
    assert interval(values) is None


def test_the_interval_of_a_mean_is_the_textbook_one(rng):
    """Accuracy of 400 rows: as wide as the normal interval of a proportion."""
    target = make_target(rng, sizes=(400,))
    rows = ForecastRows.of(target, make_forecasts(rng, target, repeats=1))
    low, high = interval(bootstrap(rows, seed=0, draws=4000).overall["accuracy"])
    p = rows.hits.mean()
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(p * (1 - p) / 400), rel=0.08)


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_draws_in_portions_are_the_same_draws(rng, monkeypatch, kind):
    """The portions of one seed are always the same: figures agree to the last bit."""
    monkeypatch.setattr(uncertainty, "_MAX_WEIGHTS", 400)
    target = make_target(rng, split=kind)
    rows = ForecastRows.of(target, make_forecasts(rng, target))
    alone = bootstrap(rows, seed=5, draws=60)
    together = bootstrap(rows, seed=5, draws=60)
    assert all(
        np.array_equal(alone.overall[name], found, equal_nan=True)
        for name, found in together.overall.items()
    )
    for group, found in together.groups.items():
        assert all(
            np.array_equal(alone.groups[group][name], found[name], equal_nan=True) for name in found
        )
