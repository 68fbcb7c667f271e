"""Compute the metrics of repeats and of resampled rows, and 95 % intervals from them.

The bootstrap is paired and stratified: in every draw the rows of each task are drawn anew with
replacement, all repeats of a row together, and the value of a draw is the mean over the repeats.
Intervals are percentiles of the draws. Two submissions drawn with one seed get the same rows.

Written plainly, one draw after the other, it is this::

    rng = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        # positions of the drawn rows, as many of each task as it has
        drawn = np.concatenate([rng.choice(task, len(task)) for task in rows.strata.values()])
        repeats = [rows.repeat(r) for r in range(rows.n_repeats)]
        values.append(np.mean([metric(repeat, drawn) for repeat in repeats]))
    low, high = np.quantile(values, [0.025, 0.975])

:func:`bootstrap` is hundreds of times as fast: a draw is a column of weights, how often each row
was drawn, and a metric is computed for all columns at once. A test holds the two equal for every
metric, draw for draw, given the same drawn rows.

How well such intervals cover depends on the metric: of the score that a split of this size has on
average they hold 93 to 95 % for means over rows, 91 to 96 % for ECE, 89 to 99 % for speedup
recovered, less for D_mono and adaptive ECE (``benchmarks/coverage_of_intervals.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
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

    #: Metric -> shape (D,).
    overall: Mapping[str, Floats]
    #: Group -> metric -> shape (D,).
    groups: Mapping[str, Mapping[str, Floats]]
    #: Recovery curve, shape (100, D); ``None`` where its area was not asked for.
    curve: Floats | None


def measure(
    sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()
) -> Figures:
    """Compute the named metrics of a sample (all when ``None``), and ``groups`` of every group."""
    every = metrics_of(sample.rows.kind)
    overall = {
        name: metric.of(sample) for name, metric in every.items() if names is None or name in names
    }
    by_group: dict[str, dict[str, Floats]] = {}
    for group, at in sample.rows.groups.items() if groups else ():
        if len(at) == len(sample.rows):  # all rows: their figures are there already
            by_group[group] = {n: v for n, v in overall.items() if every[n].groups != "none"}
            continue
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
    """Draw rows by stratified bootstrap, in portions.

    The same seed and the same strata give the same rows in every draw.
    """
    rng = np.random.default_rng(seed)
    for size in chunk_sizes(len(rows), draws):
        picks: dict[str, Ints] = {}
        weights = np.empty((len(rows), size))
        for name, at in rows.strata.items():
            small = np.int16 if len(at) < 2**15 else np.int32
            picks[name] = rng.integers(0, len(at), size=(size, len(at)), dtype=small)
            cells = picks[name] * np.int64(size) + np.arange(size)[:, None]
            weights[at] = np.bincount(cells.ravel(), minlength=len(at) * size).reshape(-1, size)
        yield RowSample(rows, weights, picks)


def bootstrap(
    rows: ForecastRows,
    *,
    seed: int,
    draws: int,
    names: Collection[str] | None = None,
    groups: bool = True,
) -> Figures:
    """Compute the metrics in every bootstrap draw: all of this kind of split, or those named.

    With ``groups`` also those of single groups that have an interval.
    """
    of_groups = [name for name, metric in METRICS.items() if metric.groups == "interval" and groups]
    samples = resampled(rows, seed=seed, draws=draws)
    return joined(measure(sample, names, groups=of_groups) for sample in samples)


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
