"""Bootstrap: the rows that are drawn, the metrics of the draws, the intervals."""

from dataclasses import replace

import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_split

from kernel_archive.scoring import Forecasts, samples, score
from kernel_archive.scoring.figures import bootstrap, interval, metrics_by_repeat
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.scoring.split import Clusters

#: Its positives are the fastest of all rows, in every draw: a draw alone does not know them.
FIXED = "average_precision_tenth"


def clustered(split, by):
    """The rows in clusters: five authors over all tasks, or the tasks themselves."""
    names = [f"a{i % 5}" for i in range(len(split))] if by == "authors" else split.tasks
    return replace(split, clusters=Clusters(unit=by, names=tuple(names)) if by else None)


def plain_bootstrap(sample):
    """The bootstrap, written plainly: the rows of every draw are scored anew, draw after draw.

    A task that is drawn twice as a whole is two tasks.
    """
    scores = []
    for counts in sample.weights.astype(int).T:
        drawn = sample.rows.take(np.repeat(np.arange(len(counts)), counts))
        if sample.whole_tasks:
            copies = np.concatenate([np.arange(count) for count in counts])
            tasks = tuple(map("{} {}".format, drawn.split.tasks, copies))
            drawn = replace(drawn, split=replace(drawn.split, tasks=tasks))
        scores.append(metrics_by_repeat(drawn, groups=False).overall)
    return {name: np.array([score[name].mean() for score in scores]) for name in scores[0]}


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
    """Every metric, with ties, missing forecasts, and problems that are drawn twice."""
    split = clustered(make_split(rng, split=kind), by)
    rows = ForecastRows.of(split, make_forecasts(rng, split, places=places, missing=0.15))
    drawn = bootstrap(rows, seed=3, draws=12)
    sample = next(RowSample.bootstrap(rows, seed=3, draws=12))
    groups = {group: (own, sample.of_group(group)) for group, own in drawn.groups.items()}
    assert bool(groups) == (by != "problems")
    for figures, rows_drawn in ((drawn.overall, sample), *groups.values()):
        plain = plain_bootstrap(rows_drawn)
        for name in figures.keys() - {FIXED}:
            np.testing.assert_allclose(
                figures[name], plain[name], rtol=1e-11, atol=1e-12, err_msg=name
            )


def test_authors_that_differ_make_intervals_wide(rng):
    """Rows of an author are right or wrong together: ten things were drawn, not 400."""
    split = make_split(rng, sizes=(400,))
    good = np.arange(400) % 10 < 5
    p = np.where(good[:, None], np.eye(8)[split.bins - 1], 0.125)
    names = tuple(f"a{i % 10}" for i in range(400))
    widths = []
    for clusters in (None, Clusters(unit="authors", names=names)):
        clustered = replace(split, clusters=clusters)
        figure = score(clustered, Forecasts.from_arrays(clustered, p), draws=400).metrics["crps"]
        widths.append(figure.high - figure.low)
    assert widths[1] > 3 * widths[0]


def test_undefined_draws_take_the_interval_away():
    """A few are left out; with more than one in twenty there is no interval."""
    values = np.arange(100.0)
    values[:4] = np.nan
    assert interval(values) is not None
    values[:6] = np.nan
    assert interval(values) is None


def test_the_interval_of_a_mean_is_the_textbook_one(rng):
    """Accuracy of 400 rows: as wide as the normal interval of a proportion."""
    split = make_split(rng, sizes=(400,))
    rows = ForecastRows.of(split, make_forecasts(rng, split, repeats=1))
    low, high = interval(bootstrap(rows, seed=0, draws=4000).overall["accuracy"])
    p = rows.hits.mean()
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(p * (1 - p) / 400), rel=0.08)


def test_draws_in_portions_are_the_same_draws(rng, monkeypatch):
    """The portions of one seed are always the same: figures agree to the last bit."""
    monkeypatch.setattr(samples, "_MAX_WEIGHTS", 400)
    split = make_split(rng)
    rows = ForecastRows.of(split, make_forecasts(rng, split))
    one, other = (bootstrap(rows, seed=5, draws=60) for _ in range(2))
    for name, values in one.overall.items():
        assert values.shape == (60,)
        assert np.array_equal(values, other.overall[name], equal_nan=True)
