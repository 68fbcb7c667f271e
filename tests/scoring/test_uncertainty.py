"""Bootstrap: the rows that are drawn, the metrics of the draws, the intervals."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.scoring import Forecasts, Split, score, uncertainty
from kernel_archive.scoring.metrics import METRICS
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.split import Clusters
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


def clustered(target, by):
    """The rows in clusters: five authors over all tasks, or the tasks themselves."""
    names = [f"a{i % 5}" for i in range(len(target))] if by == "authors" else target.tasks
    return replace(target, clusters=Clusters(unit=by, names=tuple(names)) if by else None)


@pytest.mark.parametrize(
    ("kind", "places", "by"),
    [
        ("eval", None, ""),
        ("discovery", 1, ""),
        ("eval", 1, "authors"),
        ("discovery", None, "authors"),
        ("eval", 1, "problems"),
    ],
)
def test_the_weighted_bootstrap_is_the_plain_one_draw_for_draw(rng, kind, places, by):
    """Written plainly, a draw scores the drawn rows anew::

        drawn = rng.choice(clusters, len(clusters))  # or, task by task, its rows
        values.append(np.mean([metric(repeat, rows_of(drawn)) for repeat in repeats]))

    A problem that is drawn twice is two tasks.
    """
    target = clustered(make_target(rng, split=kind), by)
    forecasts = make_forecasts(rng, target, places=places, missing=0.15)
    rows = ForecastRows.of(target, forecasts)
    drawn = bootstrap(rows, seed=3, draws=12)
    sample = next(resampled(rows, seed=3, draws=12))
    # What is relative to the best control, or needs parents, has tests of its own.
    own = {"crps_skill", "crps_skill_cue", *(name for name in METRICS if name.startswith("lift"))}
    for d in range(12):
        counts = sample.weights[:, d].astype(int)
        places_drawn = np.repeat(np.arange(len(rows)), counts)
        chosen = target.canonical_order[places_drawn]
        again, cast = drawn_again(target, forecasts, chosen)
        if by == "problems":
            copy = np.concatenate([np.arange(count) for count in counts])
            tasks = tuple(f"{t}.{c}" for t, c in zip(again.tasks, copy, strict=True))
            again = replace(again, tasks=tasks)
        plain = repeats_of(ForecastRows.of(again, cast))
        for name, values in ((n, v) for n, v in drawn.overall.items() if n not in own):
            np.testing.assert_allclose(
                values[d], plain.overall[name].mean(), rtol=1e-11, atol=1e-12, err_msg=name
            )
        for group, metrics in drawn.groups.items():
            for name, values in ((n, v) for n, v in metrics.items() if n not in own):
                expected = plain.groups[group][name].mean() if group in plain.groups else np.nan
                np.testing.assert_allclose(
                    values[d], expected, rtol=1e-11, atol=1e-12, err_msg=name
                )
    assert bool(drawn.groups) == (by != "problems")


def test_authors_that_differ_make_intervals_wide(rng):
    """Rows of an author are right or wrong together: ten things were drawn, not 400."""
    target = make_target(rng, sizes=(400,))
    good = np.arange(400) % 10 < 5
    p = np.where(good[:, None], np.eye(8)[target.bins - 1], 0.125)
    names = tuple(f"a{i % 10}" for i in range(400))
    widths = []
    for clusters in (None, Clusters(unit="authors", names=names)):
        split = replace(target, clusters=clusters)
        figure = score(split, Forecasts.from_arrays(split, p), draws=400).metrics["crps"]
        widths.append(figure.high - figure.low)
    assert widths[1] > 3 * widths[0]


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
