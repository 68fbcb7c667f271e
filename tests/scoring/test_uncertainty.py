"""Bootstrap: the rows that are drawn, the metrics of the draws, the intervals."""

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import Forecasts, Target, samples, uncertainty
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.uncertainty import bootstrap, interval, repeats_of, resampled


def drawn_again(target, forecasts, chosen):
    """Target and forecasts with the chosen rows under new ids; labels and representatives of the whole split."""
    ids = [f"{n:05d}" for n in range(len(chosen))]
    again = Target.from_arrays(
        row_ids=ids,
        tasks=[target.tasks[i] for i in chosen],
        groups=[target.groups[i] for i in chosen],
        speedups=target.speedups[chosen],
        bins=target.bins[chosen],
        ends=(target.representatives[0], target.representatives[7]),
        split=target.split.name,
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
def test_every_draw_is_the_score_of_the_drawn_rows(rng, kind, places):
    """Rows drawn by hand and scored by the plain formulas give what the vectorised bootstrap gives, for every metric."""
    target = make_target(rng, split=kind)
    forecasts = make_forecasts(rng, target, places=places, missing=0.15)
    rows = ForecastRows.of(target, forecasts)
    drawn = bootstrap(rows, seed=3, draws=12)
    resample = next(resampled(rows, seed=3, draws=12))
    assert set(drawn.overall) == set(repeats_of(rows).overall)
    # What is relative to the best control, or needs parents, has tests of its own.
    own = {"crps_skill", *(name for name in METRICS if name.startswith("lift"))}
    for d in range(12):
        positions = np.concatenate([at[resample.picks[name][d]] for name, at in rows.strata.items()])
        again = repeats_of(ForecastRows.of(*drawn_again(target, forecasts, target.canonical_order[positions])))
        for name, values in ((n, v) for n, v in drawn.overall.items() if n not in own):
            np.testing.assert_allclose(values[d], again.overall[name].mean(), rtol=1e-11, atol=1e-12, err_msg=name)
        for group, metrics in drawn.groups.items():
            for name, values in ((n, v) for n, v in metrics.items() if n not in own):
                np.testing.assert_allclose(
                    values[d], again.groups[group][name].mean(), rtol=1e-11, atol=1e-12, err_msg=name
                )
        if kind == "eval":
            np.testing.assert_allclose(drawn.curve[:, d], again.curve.mean(axis=1), rtol=1e-11)


def test_rows_are_drawn_within_their_task(rng):
    """Every task keeps its number of rows in every draw; every row can be drawn."""
    target = make_target(rng, sizes=(5, 1, 9))
    resample = next(resampled(ForecastRows.of(target, make_forecasts(rng, target)), seed=0, draws=400))
    for rows, size in zip(target.ordered.task_rows.values(), (5, 1, 9), strict=True):
        np.testing.assert_array_equal(resample.weights[rows].sum(axis=0), size)
    assert (resample.weights.sum(axis=1) > 0).all()
    assert abs(resample.weights[:5].mean() - 1) < 0.05


def test_the_seed_decides_the_draws(rng, target, forecasts):
    """Same seed, same draws; another seed, others."""
    rows = ForecastRows.of(target, forecasts)
    one, two, other = (bootstrap(rows, seed=s, draws=30).overall["brier"] for s in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_draws_in_portions_are_all_there(rng, target, forecasts, monkeypatch):
    """A large split is drawn in portions: as many draws, as many different ones."""
    rows = ForecastRows.of(target, forecasts)
    monkeypatch.setattr(uncertainty, "_CELLS", 28 * 7)
    drawn = bootstrap(rows, seed=0, draws=50)
    assert drawn.overall["brier"].shape == (50,)
    assert drawn.curve.shape == (100, 50)
    assert len(np.unique(drawn.overall["nll"])) == 50


def test_only_wanted_metrics_are_computed(target, forecasts):
    """Without groups and curve when they are not asked for."""
    drawn = bootstrap(ForecastRows.of(target, forecasts), seed=0, draws=5, names={"brier", "ece"}, groups=False)
    assert set(drawn.overall) == {"brier", "ece"}
    assert drawn.groups == {}
    assert drawn.curve is None


@pytest.mark.parametrize("name", metrics_of("eval"))
def test_every_metric_can_be_wanted_alone(target, forecasts, name):
    """Asking for one of them gives it."""
    assert name in bootstrap(ForecastRows.of(target, forecasts), seed=0, draws=3, names={name}).overall


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
    """Whoever computes which draws, alone or with others, the figures are the same to the last bit."""
    monkeypatch.setattr(uncertainty, "_CELLS", 400)
    target = make_target(rng, split=kind)
    rows = ForecastRows.of(target, make_forecasts(rng, target))
    alone = bootstrap(rows, seed=5, draws=60)
    calls = []

    class Team:
        def do(self, asked):
            calls.extend(asked)
            yield from reversed([(i, call.function()) for i, call in enumerate(asked)])

    together = bootstrap(rows, seed=5, draws=60, workers=Team())
    assert len(calls) > 2
    assert all(np.array_equal(alone.overall[name], found, equal_nan=True) for name, found in together.overall.items())
    for group, found in together.groups.items():
        assert all(np.array_equal(alone.groups[group][name], found[name], equal_nan=True) for name in found)


@pytest.mark.parametrize("kind", ["eval", "discovery"])
def test_what_forecasts_share_is_the_same_alone(rng, kind):
    """What the draws say whatever is forecast is kept between entries; other rows, seeds and portions have their own."""
    targets = [make_target(rng, split=kind) for _ in range(2)]
    rows = [ForecastRows.of(target, make_forecasts(rng, target)) for target in (*targets, targets[0])]
    asked = [(of, seed, draws) for of in rows for seed in (0, 1) for draws in (20, 21)]
    kept = [bootstrap(of, seed=seed, draws=draws).overall for of, seed, draws in asked]
    for (of, seed, draws), before in zip(asked, kept, strict=True):
        samples._kept.cache_clear()
        for name, values in bootstrap(of, seed=seed, draws=draws).overall.items():
            np.testing.assert_array_equal(values, before[name], err_msg=name)
