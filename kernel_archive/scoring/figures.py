"""Compute the metrics of samples of rows, and 95 % intervals from those of many draws.

The bootstrap is paired; the value of a draw is the mean over the repeats, and intervals are
percentiles of the draws. A draw is a column of weights, how often each row was drawn, and a metric
is computed for all columns at once; tests hold that against scoring the drawn rows one draw after
the other. How well intervals cover is in docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import ForecastRows, RowSample

#: Level of the intervals.
LEVEL: Final = 0.95
#: Ends of an interval among the draws.
TAILS: Final = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
#: A metric that is undefined in a larger share of the draws than the rest has no interval.
_DEFINED: Final = 0.95


class Figures(NamedTuple):
    """The metrics in every draw."""

    overall: dict[str, Floats]  # metric -> shape (D,)
    groups: dict[str, dict[str, Floats]]  # group -> metric -> shape (D,)
    curve: dict[str, Floats]  # ``recovery`` -> shape (100, D), where its area was asked for


def measure(
    sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()
) -> Figures:
    """Compute the named metrics of a sample (all when ``None``), and ``groups`` of every group."""
    every = metrics_of(sample.rows.split.kind)
    overall = {n: metric.of(sample) for n, metric in every.items() if names is None or n in names}
    by_group: dict[str, dict[str, Floats]] = {}
    for group in sample.rows.split.group_rows if groups else ():
        part = sample.of_group(group)
        by_group[group] = {n: metric.of(part) for n, metric in every.items() if n in groups}
    curve = {"recovery": sample.curve} if "recovery_area" in overall else {}
    return Figures(overall, by_group, curve)


def joined(parts: Iterable[Figures]) -> Figures:
    """Join portions of draws, in their order."""
    overall, groups, curves = zip(*parts, strict=True)
    by_group = {group: _joined([portion[group] for portion in groups]) for group in groups[0]}
    return Figures(_joined(overall), by_group, _joined(curves))


def _joined(portions: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    names = portions[0]
    return {name: np.concatenate([part[name] for part in portions], axis=-1) for name in names}


def repeats_of(
    rows: ForecastRows, names: Collection[str] | None = None, *, groups: bool = True
) -> Figures:
    """Compute the metrics of every repeat: a "draw" is one repeat with every row once."""
    of_groups = [name for name, metric in METRICS.items() if metric.groups != "none" and groups]
    return joined(
        measure(RowSample.single(rows.repeat(r)), names, groups=of_groups)
        for r in range(rows.n_repeats)
    )


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
    drawn = joined(
        measure(sample, names, groups=() if sample.whole_tasks else of_groups)
        for sample in RowSample.bootstrap(rows, seed=seed, draws=draws)
    )
    by_group = rows.by_group if drawn.groups else {}
    several = {g: v for g, v in drawn.groups.items() if by_group[g].split.n_clusters > 1}
    return drawn._replace(groups=several)


def interval(values: Floats) -> tuple[float, float] | None:
    """Take the percentile interval of a metric's draws; ``None`` where too few are defined.

    >>> [round(end, 9) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values) or not len(defined):
        return None
    low, high = np.quantile(defined, TAILS)
    return float(low), float(high)
