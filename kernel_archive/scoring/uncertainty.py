"""From draws of rows to figures: the metrics of every repeat, those of resampled rows, and 95 % intervals from them.

Paired bootstrap: in every draw the rows of each task are drawn anew with replacement, all repeats of a row together;
the value of a draw is the mean over the repeats. Intervals are percentiles of the draws. Two submissions drawn with
the same seed get the same rows in every draw.

How well such intervals cover depends on the metric; ``benchmarks/coverage_of_intervals.py`` measures it on simulated
forecasters (6 tasks x 80 rows x 3 repeats). Of the score that a split of this size has on average they hold

* 93 to 95 %: forecast error, Brier, CRPS, NLL, accuracy, within one bin, entropy, AURC of the error rate;
* 91 to 96 %: ECE. Its mean is above the calibration error of the population in samples of this size, and a resample
  adds to that: of a well calibrated forecaster the interval lies above the population value and hardly ever holds it;
* 89 to 99 %: speedup recovered. It rests on the best few candidates of a task: a resample that misses the best one
  changes its own yardstick, too. Single budgets reach from 80 to 100 %, and one at which almost every split recovers
  everything has no useful interval;
* 83 to 89 %: confidence monotonicity, for which the intervals are too narrow; 78 to 95 %: adaptive ECE.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.archive.team import Call, Team, results
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.samples import RowSample

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kernel_archive.scoring.arrays import Floats, Ints
    from kernel_archive.scoring.samples import ForecastRows


@dataclass(frozen=True, eq=False)
class Figures:
    """The metrics in every draw.

    Attributes:
        overall: metric -> shape (D,).
        groups: group -> metric -> shape (D,).
        curve: recovery curve, shape (100, D); ``None`` where its area was not asked for.
    """

    overall: Mapping[str, Floats]
    groups: Mapping[str, Mapping[str, Floats]]
    curve: Floats | None


def measure(sample: RowSample, names: Collection[str] | None = None, *, groups: Collection[str] = ()) -> Figures:
    """Metrics of a sample, all of this kind of split when none are named, those in ``groups`` also for every reported group."""
    every = metrics_of(sample.rows.kind)
    overall = {name: metric.of(sample) for name, metric in every.items() if names is None or name in names}
    by_group: dict[str, dict[str, Floats]] = {}
    for group, at in sample.rows.groups.items() if groups else ():
        if len(at) == len(sample.rows):  # all rows: what is known of them need not be computed again
            by_group[group] = {name: found for name, found in overall.items() if every[name].groups != "none"}
            continue
        part = sample.of_group(group)
        by_group[group] = {name: metric.of(part) for name, metric in every.items() if name in groups}
    return Figures(overall, by_group, sample.curve if "recovery_area" in overall else None)


def joined(parts: Iterable[Figures]) -> Figures:
    """Several portions of draws as one."""
    found = list(parts)
    first = found[0]
    return Figures(
        {name: np.concatenate([p.overall[name] for p in found]) for name in first.overall},
        {
            group: {name: np.concatenate([p.groups[group][name] for p in found]) for name in metrics}
            for group, metrics in first.groups.items()
        },
        None if first.curve is None else np.concatenate([p.curve for p in found if p.curve is not None], axis=1),
    )


def repeats_of(rows: ForecastRows, names: Collection[str] | None = None, *, groups: bool = True) -> Figures:
    """Metrics of every repeat, where a "draw" is one repeat with every row once; arguments as in :func:`measure`."""
    of_groups = [name for name, metric in METRICS.items() if metric.groups != "none"] if groups else ()
    return joined(measure(RowSample.once(rows.repeat(r)), names, groups=of_groups) for r in range(rows.n_repeats))


#: Level of the intervals.
LEVEL: Final = 0.95
#: Weights of at most so many row-draws are in memory at once.
_CELLS: Final = 1_200_000
#: Portions are handed out in about so many calls.
_SHARES: Final = 16
#: An interval needs the metric to be defined in so large a share of the draws.
_DEFINED: Final = 0.95


def chunk_sizes(n: int, draws: int) -> Iterator[int]:
    """Sizes of the portions in which the draws are made: they depend on n only, so the same seed gives the same draws."""
    size = max(1, _CELLS // max(n, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)


def resampled(
    rows: ForecastRows, *, seed: int, draws: int, wanted: Collection[int] | None = None
) -> Iterator[RowSample]:
    """Stratified bootstrap draws of rows, in portions: those whose number, from 0, is wanted, or all of them.

    The same seed and the same strata give the same rows in every draw.
    """
    rng = np.random.default_rng(seed)
    strata = tuple((name, at.tobytes()) for name, at in rows.strata.items())
    sizes = list(chunk_sizes(len(rows), draws))
    for number, size in enumerate(sizes):
        picks: dict[str, Ints] = {
            name: rng.integers(0, len(at), size=(size, len(at)), dtype=np.int16 if len(at) < 2**15 else np.int32)
            for name, at in rows.strata.items()
        }
        if wanted is not None and number not in wanted:
            continue  # what is left out uses up its random numbers all the same
        weights = np.empty((len(rows), size))
        for name, at in rows.strata.items():
            cells = picks[name] * np.int64(size) + np.arange(size)[:, None]
            weights[at] = np.bincount(cells.ravel(), minlength=len(at) * size).reshape(-1, size)
        yield RowSample(rows, weights, picks, (seed, strata, *sizes[: number + 1]))


def _portions(
    rows: ForecastRows, seed: int, draws: int, names: Collection[str] | None, groups: Collection[str], wanted: range
) -> Figures:
    """The metrics in some portions of the draws."""
    samples = resampled(rows, seed=seed, draws=draws, wanted=wanted)
    return joined(measure(sample, names, groups=groups) for sample in samples)


def bootstrap(
    rows: ForecastRows,
    *,
    seed: int,
    draws: int,
    names: Collection[str] | None = None,
    groups: bool = True,
    workers: Team | None = None,
) -> Figures:
    """The metrics in every bootstrap draw: all of this kind of split, or those named; submissions of one seed are paired.

    With ``groups`` also those of single groups that have an interval. Workers, where there are some, compute a few portions
    each; the figures are the same.
    """
    of_groups = [name for name, metric in METRICS.items() if metric.groups == "interval"] if groups else []
    n = len(list(chunk_sizes(len(rows), draws)))
    portions = partial(_portions, rows, seed, draws, names, of_groups)
    if workers is None or n < 2:
        return portions(range(n))
    # Neighbours go together: whoever has later ones draws the random numbers of the earlier ones without their metrics.
    each = max(1, n // _SHARES)
    calls = [
        Call(f"bootstrap draws, portion {i + 1}", partial(portions, range(i, min(n, i + each))))
        for i in range(0, n, each)
    ]
    return joined(results(workers, calls))


def interval(values: Floats) -> tuple[float, float] | None:
    """Percentile interval of the draws of one metric; ``None`` where it is undefined in more than a few of them.

    >>> [round(end, 9) for end in interval(np.arange(1001.0))]
    [25.0, 975.0]
    """
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED * len(values) or not len(defined):
        return None
    low, high = np.quantile(defined, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
