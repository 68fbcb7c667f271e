"""Draw rows with their forecasts, and compute the metrics of every draw: 95 % intervals.

The bootstrap is paired: in every draw clusters (authors, problems) are drawn anew with replacement,
all their rows and all repeats of a row together. Where the data name no clusters, rows are drawn,
as many of each task as it has. The value of a draw is the mean over the repeats, and intervals are
percentiles of the draws. Two submissions drawn with one seed get the same rows.

A draw is a column of weights, how often each row was drawn, and a metric is computed for all
columns at once; tests hold that against scoring the drawn rows one draw after the other. How well
intervals cover is in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import RowSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from kernel_archive.scoring.arrays import Floats, Ints
    from kernel_archive.scoring.samples import ForecastRows

#: Level of the intervals.
LEVEL: Final = 0.95
#: Ends of an interval among the draws.
TAILS: Final = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
#: At most this many weights (rows x draws) are in memory at once.
_MAX_WEIGHTS: Final = 1_200_000
#: A metric that is undefined in a larger share of the draws than the rest has no interval.
_DEFINED: Final = 0.95


@dataclass(frozen=True, eq=False)
class Figures:
    """Hold the metrics in every draw."""

    overall: dict[str, Floats]  # metric -> shape (D,)
    groups: dict[tuple[str, str], Floats]  # group and metric -> shape (D,)
    curve: dict[str, Floats]  # ``recovery`` -> shape (100, D), where its area was asked for


def measure(
    sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()
) -> Figures:
    """Compute the named metrics of a sample (all when ``None``), and ``groups`` of every group."""
    every = metrics_of(sample.rows.split.kind)
    overall = {n: metric.of(sample) for n, metric in every.items() if names is None or n in names}
    by_group: dict[tuple[str, str], Floats] = {}
    for group in sample.rows.split.group_rows if groups else ():
        part = sample.of_group(group)
        by_group |= {(group, n): metric.of(part) for n, metric in every.items() if n in groups}
    curve = {"recovery": sample.curve} if "recovery_area" in overall else {}
    return Figures(overall, by_group, curve)


def joined(parts: Iterable[Figures]) -> Figures:
    """Join portions of draws, in their order."""
    portions = list(parts)
    return Figures(
        _concatenated([portion.overall for portion in portions]),
        _concatenated([portion.groups for portion in portions]),
        _concatenated([portion.curve for portion in portions]),
    )


def _concatenated(tables: list[dict[Any, Floats]]) -> dict[Any, Floats]:
    return {key: np.concatenate([table[key] for table in tables], axis=-1) for key in tables[0]}


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
    cluster = rows.split.cluster_numbers
    for size in chunk_sizes(len(rows), draws):
        if cluster is None:
            weights = np.empty((len(rows), size))
            for positions in rows.split.task_rows.values():
                weights[positions] = _draw(rng, len(positions), size)
            yield RowSample(rows, weights)
        else:
            drawn = _draw(rng, rows.split.n_clusters, size)
            yield RowSample(rows, drawn[cluster], _copies(rows, cluster, drawn))


def _draw(rng: np.random.Generator, n: int, size: int) -> Floats:
    """Draw n of n things with replacement: how often each is in each draw, shape (n, size)."""
    picks = rng.integers(0, n, size=(size, n), dtype=np.int16 if n < 2**15 else np.int32)
    cells = picks * np.int64(size) + np.arange(size)[:, None]
    return np.bincount(cells.ravel(), minlength=n * size).reshape(-1, size).astype(np.float64)


def _copies(rows: ForecastRows, cluster: Ints, drawn: Floats) -> dict[str, Floats] | None:
    """How often each task was drawn, where every task lies in one cluster."""
    tasks = rows.split.task_rows
    if any(len(np.unique(cluster[positions])) > 1 for positions in tasks.values()):
        return None
    return {task: drawn[cluster[positions[0]]] for task, positions in tasks.items()}


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
        measure(sample, names, groups=of_groups if sample.copies is None else ())
        for sample in resampled(rows, seed=seed, draws=draws)
    )
    several = {
        (group, name): values
        for (group, name), values in drawn.groups.items()
        if rows.by_group[group].split.n_clusters > 1
    }
    return replace(drawn, groups=several)


def interval(values: Floats) -> tuple[float, float] | None:
    """Percentile interval of the draws of a metric; ``None`` where too few of them are defined.

    >>> [round(end, 9) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values) or not len(defined):
        return None
    low, high = np.quantile(defined, TAILS)
    return float(low), float(high)
