"""Draw rows with their forecasts, and compute the metrics of every draw: 95 % intervals.

The bootstrap is paired: in every draw clusters (authors, problems) are drawn anew with replacement,
all their rows and all repeats of a row together. Where the data name no clusters, rows are drawn,
as many of each task as it has. The value of a draw is the mean over the repeats, and intervals are
percentiles of the draws. Two submissions drawn with one seed get the same rows.

A draw is a column of weights, how often each row was drawn, and a metric is computed for all
columns at once. :func:`plain_bootstrap` says what that means, one draw after the other. How well
intervals cover is in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import RowSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kernel_archive.scoring.arrays import Floats, Ints
    from kernel_archive.scoring.samples import ForecastRows

#: Level of the intervals.
LEVEL: Final = 0.95
#: At most this many weights (rows x draws) are in memory at once.
_MAX_WEIGHTS: Final = 1_200_000
#: A metric that is undefined in a larger share of the draws than the rest has no interval.
_DEFINED: Final = 0.95


@dataclass(frozen=True, eq=False)
class Figures:
    """Hold the metrics in every draw."""

    overall: Mapping[str, Floats]  # metric -> shape (D,)
    groups: Mapping[str, Mapping[str, Floats]]  # group -> metric -> shape (D,)
    #: Recovery curve, shape (100, D); ``None`` where its area was not asked for.
    curve: Floats | None


def measure(
    sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()
) -> Figures:
    """Compute the named metrics of a sample (all when ``None``), and ``groups`` of every group."""
    every = metrics_of(sample.rows.split.kind)
    overall = {
        name: metric.of(sample) for name, metric in every.items() if names is None or name in names
    }
    by_group: dict[str, dict[str, Floats]] = {}
    for group in sample.rows.split.group_rows if groups else ():
        part = sample.of_group(group)
        by_group[group] = {n: metric.of(part) for n, metric in every.items() if n in groups}
    return Figures(overall, by_group, sample.curve if "recovery_area" in overall else None)


def joined(parts: Iterable[Figures]) -> Figures:
    """Join portions of draws, in their order."""
    portions = list(parts)
    first = portions[0]
    curves = [p.curve for p in portions if p.curve is not None]
    return Figures(
        {name: np.concatenate([p.overall[name] for p in portions]) for name in first.overall},
        {
            group: {
                name: np.concatenate([p.groups[group][name] for p in portions]) for name in metrics
            }
            for group, metrics in first.groups.items()
        },
        np.concatenate(curves, axis=1) if curves else None,
    )


def repeats_of(
    rows: ForecastRows, names: Collection[str] | None = None, *, groups: bool = True
) -> Figures:
    """Compute the metrics of every repeat: a "draw" is one repeat with every row once."""
    of_groups = [name for name, metric in METRICS.items() if metric.groups != "none" and groups]
    return joined(
        measure(RowSample.once(rows.repeat(r)), names, groups=of_groups)
        for r in range(rows.n_repeats)
    )


def chunk_sizes(n: int, draws: int) -> Iterator[int]:
    """Sizes of the portions of draws; they depend on n only, so one seed gives the same draws."""
    size = max(1, _MAX_WEIGHTS // max(n, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)


def resampled(rows: ForecastRows, *, seed: int, draws: int) -> Iterator[RowSample]:
    """Draw clusters, or rows stratified by task where there are none, in portions."""
    rng = np.random.default_rng(seed)
    for size in chunk_sizes(len(rows), draws):
        if rows.clusters is None:
            weights = np.empty((len(rows), size))
            for places in rows.split.task_rows.values():
                weights[places] = _draw(rng, len(places), size)
            yield RowSample(rows, weights)
            continue
        names, cluster = np.unique(rows.clusters, return_inverse=True)
        drawn = _draw(rng, len(names), size)
        yield RowSample(rows, drawn[cluster], _copies(rows, cluster, drawn))


def _draw(rng: np.random.Generator, n: int, size: int) -> Floats:
    """Draw n of n things with replacement: how often each is in each draw, shape (n, size)."""
    picks = rng.integers(0, n, size=(size, n), dtype=np.int16 if n < 2**15 else np.int32)
    cells = picks * np.int64(size) + np.arange(size)[:, None]
    return np.bincount(cells.ravel(), minlength=n * size).reshape(-1, size).astype(np.float64)


def _copies(rows: ForecastRows, cluster: Ints, drawn: Floats) -> dict[str, Floats] | None:
    """How often each task was drawn, where every task lies in one cluster."""
    tasks = rows.split.task_rows
    if any(len(set(cluster[places].tolist())) > 1 for places in tasks.values()):
        return None
    return {name: drawn[cluster[places[0]]] for name, places in tasks.items()}


def plain_bootstrap(sample: RowSample) -> dict[str, Floats]:
    """Score the rows of every draw anew: the bootstrap, written plainly.

    :func:`bootstrap` gives the same, for all draws at once. A task that is drawn twice as a whole
    is two tasks.
    """
    scores = []
    for counts in sample.weights.astype(int).T:
        drawn = sample.rows.take(np.repeat(np.arange(len(counts)), counts))
        if sample.copies is not None:
            copies = np.concatenate([np.arange(count) for count in counts])
            names = zip(drawn.split.tasks, copies, strict=True)
            tasks = tuple(f"{task} {copy}" for task, copy in names)
            drawn = replace(drawn, split=replace(drawn.split, tasks=tasks))
        scores.append(repeats_of(drawn, groups=False).overall)
    return {name: np.array([score[name].mean() for score in scores]) for name in scores[0]}


def bootstrap(
    rows: ForecastRows,
    *,
    seed: int,
    draws: int,
    names: Collection[str] | None = None,
    groups: bool = True,
) -> Figures:
    """Compute the metrics in every bootstrap draw: all of this kind of split, or those named.

    With ``groups`` also those of single groups that have an interval: groups of several clusters.
    """
    of_groups = [name for name, metric in METRICS.items() if metric.groups == "interval" and groups]
    samples = resampled(rows, seed=seed, draws=draws)
    drawn = joined(
        measure(sample, names, groups=of_groups if sample.copies is None else ())
        for sample in samples
    )
    several = {g: v for g, v in drawn.groups.items() if rows.by_group[g].n_drawn > 1}
    return replace(drawn, groups=several)


def interval(values: Floats) -> tuple[float, float] | None:
    """Percentile interval of the draws of a metric; ``None`` where too few of them are defined.

    >>> [round(end, 9) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values) or not len(defined):
        return None
    low, high = np.quantile(defined, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
