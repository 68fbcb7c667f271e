"""Compute the metrics of samples of rows, and 95 % intervals from those of many draws.

The bootstrap is paired; the value of a draw is the mean over the repeats, and intervals are
percentiles of the draws. A draw is a column of weights, how often each row was drawn, and a metric
is computed for all columns at once; tests hold that against scoring the drawn rows one draw after
the other. How well intervals cover is in docs/metrics.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    recovery: Floats | None  # curve, shape (100, D), where its area was asked for


def compute_metrics(
    samples: Iterable[RowSample],
    names: Collection[str] | None = None,
    *,
    groups: Collection[str] = (),
) -> Figures:
    """Compute the named metrics (all when ``None``) in the draws of samples, one after the other.

    ``groups`` are the metrics that are computed for every group as well; not where the rows of a
    task are drawn together.
    """
    overall, curves = defaultdict[str, list[Floats]](list), list[Floats]()
    by_group: dict[str, defaultdict[str, list[Floats]]] = {}
    for sample in samples:
        every = metrics_of(sample.rows.split.kind).items()
        for name, metric in every:
            if names is None or name in names:
                overall[name].append(metric.compute(sample))
        if "recovery_area" in overall:
            curves.append(sample.curve)
        for group in sample.rows.split.group_rows if groups and not sample.whole_tasks else ():
            part, figures = sample.of_group(group), by_group.setdefault(group, defaultdict(list))
            for name, metric in every:
                if name in groups:
                    figures[name].append(metric.compute(part))
    joined_groups = {group: _joined(figures) for group, figures in by_group.items()}
    recovery = np.concatenate(curves, axis=-1) if curves else None
    return Figures(_joined(overall), joined_groups, recovery)


def _joined(parts: Mapping[str, Sequence[Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate(values, axis=-1) for name, values in parts.items()}


def metrics_by_repeat(
    rows: ForecastRows, names: Collection[str] | None = None, *, groups: bool = True
) -> Figures:
    """Compute the metrics of every repeat: a "draw" is one repeat with every row once."""
    of_groups = [name for name, metric in METRICS.items() if metric.groups != "none" and groups]
    samples = (RowSample.single(rows.repeat(r)) for r in range(rows.n_repeats))
    return compute_metrics(samples, names, groups=of_groups)


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
    samples = RowSample.bootstrap(rows, seed=seed, draws=draws)
    drawn = compute_metrics(samples, names, groups=of_groups)
    several = {g: v for g, v in drawn.groups.items() if rows.by_group[g].split.n_clusters > 1}
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
