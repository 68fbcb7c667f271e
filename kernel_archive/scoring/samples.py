"""Sample rows with their forecasts: what every metric is a function of.

A sample is rows and how often each counts, in one draw or many: every row once, or the draws of the
bootstrap. It draws clusters (authors, problems) with replacement, with all their rows and all
repeats of a row. Where the data name no clusters it draws rows, as many of each task as it has.
Two submissions drawn with one seed get the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from kernel_archive.scoring import order, recovery
from kernel_archive.scoring.arrays import Bools, Floats, Ints, product, row_sums
from kernel_archive.scoring.controls import zero_of
from kernel_archive.scoring.forecasts import Forecasts, PredictedBinRule
from kernel_archive.scoring.rules import confidence, expected_speedup, forecast_errors
from kernel_archive.scoring.split import Split

#: At most this many weights (rows x draws) are in memory at once.
_MAX_WEIGHTS: Final = 1_200_000
#: Fields of :class:`ForecastRows` with a value for every repeat and row.
REPEAT_FIELDS: Final = ("probabilities", "parsed", "predicted", "stated_speedups")


@dataclass(frozen=True, eq=False, kw_only=True)
class ForecastRows:
    """n rows of a split with their forecasts."""

    split: Split
    probabilities: Floats  # shape (R, n, 8)
    parsed: Bools  # shape (R, n): whether there is a distribution
    predicted: Ints  # shape (R, n): the predicted bin, 0 without a distribution
    stated_speedups: Floats  # shape (R, n): stated beside the bins, x; NaN for none
    zero_crps: Floats  # shape (n,), of what a skill of 0 stands for

    @classmethod
    def of(
        cls, split: Split, forecasts: Forecasts, rule: PredictedBinRule = "argmax"
    ) -> ForecastRows:
        """Put the rows of a split and their forecasts in canonical order: no file order matters."""
        rows = split.canonical_order
        _, zero_crps = split.cached(zero_of)
        forecasts = forecasts.take(rows)
        return cls(
            split=split.ordered,
            probabilities=forecasts.probabilities,
            parsed=forecasts.parsed,
            predicted=forecasts.predicted(rule),
            stated_speedups=np.where(forecasts.parsed, forecasts.expected_speedups, np.nan),
            zero_crps=zero_crps[rows],
        )

    def __len__(self) -> int:
        return len(self.split)

    @property
    def n_repeats(self) -> int:
        """Number of repeats R."""
        return int(self.parsed.shape[0])

    def repeat(self, r: int) -> ForecastRows:
        """Select one repeat alone."""
        arrays: dict[str, Any] = {name: getattr(self, name)[r, None] for name in REPEAT_FIELDS}
        return replace(self, **arrays)

    def take(self, positions: Ints) -> ForecastRows:
        """Select rows, in this order, any of them several times."""
        arrays: dict[str, Any] = {name: getattr(self, name)[:, positions] for name in REPEAT_FIELDS}
        zero_crps = self.zero_crps[positions]
        return replace(self, split=self.split.take(positions), zero_crps=zero_crps, **arrays)

    @cached_property
    def by_group(self) -> dict[str, ForecastRows]:
        """The rows of every reported group."""
        return {name: self.take(positions) for name, positions in self.split.group_rows.items()}

    @cached_property
    def confidence(self) -> Floats:
        """Confidence, shape (R, n); 0 where there is no distribution."""
        q = confidence(probabilities=self.probabilities, predicted=np.maximum(self.predicted, 1))
        return np.where(self.parsed, q, 0.0)

    @cached_property
    def hits(self) -> Bools:
        """Whether the predicted bin is the true one, shape (R, n); 0, no forecast, never is."""
        return np.asarray(self.predicted == self.split.bins)

    @cached_property
    def errors(self) -> Floats:
        """Forecast errors, x, shape (R, n)."""
        m, speedups = self.split.representatives, self.split.speedups
        return forecast_errors(predicted=self.predicted, speedups=speedups, representatives=m)

    @cached_property
    def expected(self) -> Floats:
        """Expected speedups S^, x, shape (R, n)."""
        m = self.split.representatives
        return expected_speedup(probabilities=self.probabilities, representatives=m)

    @cached_property
    def order_keys(self) -> Ints:
        """Ranks by S^, and where S^ ties by a stated expected speedup: shape (R, n)."""
        pairs = zip(self.expected, self.stated_speedups, strict=True)
        return np.stack([order.order_keys(expected=s, stated=t) for s, t in pairs])

    @cached_property
    def pair_tables(self) -> dict[str, order.PairTable]:
        """The pairs of every task and language."""
        goals, spreads = self.split.row_facts.goals, self.split.row_facts.spreads
        return {
            name: order.PairTable(
                self.order_keys[:, rows],
                self.split.speedups[rows],
                spreads[rows],
                None if goals is None else goals[rows],
            )
            for name, rows in self.split.pool_rows.items()
        }

    def exceedance(self, cutoff: float) -> Floats:
        """Compute Pr[g >= cutoff], shape (R, n); cutoff in x."""
        return row_sums(self.probabilities * order.shares_above(cutoff, self.split.scheme))


def chunk_sizes(n: int, draws: int) -> Iterator[int]:
    """Portion the draws; sizes depend on n only, so that one seed gives the same draws."""
    size = max(1, _MAX_WEIGHTS // max(n, 1))
    for start in range(0, draws, size):
        yield min(size, draws - start)


def _draw(rng: np.random.Generator, n: int, size: int) -> Floats:
    """Draw n of n things with replacement: how often each is in each draw, shape (n, size)."""
    picks = rng.integers(0, n, size=(size, n), dtype=np.int16 if n < 2**15 else np.int32)
    cells = picks * np.int64(size) + np.arange(size)[:, None]
    return np.bincount(cells.ravel(), minlength=n * size).reshape(-1, size).astype(np.float64)


@dataclass(frozen=True, eq=False)
class RowSample:
    """D draws of rows."""

    rows: ForecastRows
    weights: Floats  # shape (n, D), how often each row is in each draw
    whole_tasks: bool = False  # all rows of a task are drawn together: drawn twice, it is two tasks
    #: Formula, task or pool, and the number of its rows -> recovery curve, or counts of its pairs.
    cache: dict[tuple[str, str, int], Floats] = field(default_factory=dict)
    figures: dict[str, Floats] = field(default_factory=dict)  # metrics that were computed of these

    @classmethod
    def single(cls, rows: ForecastRows) -> RowSample:
        """Make the single draw that holds every row once."""
        return cls(rows, np.ones((len(rows), 1)))

    @classmethod
    def bootstrap(cls, rows: ForecastRows, *, seed: int, draws: int) -> Iterator[RowSample]:
        """Draw clusters, or rows stratified by task without clusters, in portions."""
        rng, tasks = np.random.default_rng(seed), rows.split.task_rows.values()
        cluster = rows.split.cluster_numbers
        for size in chunk_sizes(len(rows), draws):
            if cluster is None:
                weights = np.empty((len(rows), size))
                for positions in tasks:
                    weights[positions] = _draw(rng, len(positions), size)
                yield cls(rows, weights)
            else:
                weights = _draw(rng, rows.split.n_clusters, size)[cluster]
                yield cls(rows, weights, all(len(set(cluster[task])) == 1 for task in tasks))

    def of_group(self, name: str) -> RowSample:
        """Select the rows of one reported group in the same draws.

        What is known of a task stays known where the group holds all rows of it.
        """
        weights = self.weights[self.rows.split.group_rows[name]]
        return RowSample(self.rows.by_group[name], weights, self.whole_tasks, dict(self.cache))

    def inside(self, positions: Ints) -> Floats:
        """Weigh the rows of one task: how often each is in each draw of that task."""
        return np.ones((len(positions), 1)) if self.whole_tasks else self.weights[positions]

    def mean(self, value: Callable[[int], Floats]) -> Floats:
        """Average over the repeats what a formula gives for a repeat number: shape (..., D)."""
        return np.asarray(sum(map(value, range(self.rows.n_repeats))) / self.rows.n_repeats)

    def mean_over_rows(self, values: Floats | Bools) -> Floats:
        """Average values of shape (R, n): shape (D,); NaN where no row was drawn."""
        with np.errstate(invalid="ignore"):
            return np.asarray(product(values.mean(axis=0), self.weights) / self.weights.sum(axis=0))

    def recovered(self, positions: Ints, weights: Floats, budgets: tuple[int, ...]) -> Floats:
        """Compute the speedup recovered at K budgets, mean over the repeats: shape (K, D)."""
        return self.mean(
            lambda r: recovery.recovered_at(
                expected=self.rows.expected[r, positions],
                speedups=self.rows.split.speedups[positions],
                budgets=budgets,
                weights=weights,
            )
        )

    def over_tasks(self, value: Callable[[str, Ints], Floats]) -> Floats:
        """Average over the tasks what a function gives for a task and its rows: shape (..., D).

        A task that is drawn twice counts twice, one that has no value in a draw not at all.
        """
        total, count = np.zeros((2, self.weights.shape[1]))
        for task, positions in self.rows.split.task_rows.items():
            figure = value(task, positions)
            # Of several budgets all are NaN or none: the first one tells.
            known = ~np.isnan(figure.reshape(-1, figure.shape[-1])[0])
            copies = known * (self.weights[positions[0]] if self.whole_tasks else 1.0)
            total = total + np.where(copies > 0, copies * figure, 0.0)
            count += copies
        with np.errstate(invalid="ignore"):
            return np.asarray(total / count)

    @cached_property
    def curve(self) -> Floats:
        """Recovery curve, mean over tasks and repeats: shape (100, D)."""

        def curve_of(task: str, positions: Ints) -> Floats:
            key = "curve", task, len(positions)
            if key not in self.cache:
                self.cache[key] = self.recovered(positions, self.inside(positions), recovery.CURVE)
            return self.cache[key]

        return self.over_tasks(curve_of)

    def pair_accuracy(self, *, close: bool) -> Floats:
        """Compute the share of (close) pairs in the right order: (D,); NaN without a pair."""
        counts = np.zeros((4, self.weights.shape[1]))  # right and all, then of close pairs
        for pool, positions in self.rows.split.pool_rows.items():
            key = "pairs", pool, len(positions)
            if key not in self.cache:
                copies = self.weights[positions[0]] if self.whole_tasks else 1.0
                inside = self.inside(positions)
                self.cache[key] = self.rows.pair_tables[pool].count(inside) * copies
            counts += self.cache[key]
        right, countable = counts[2:] if close else counts[:2]
        with np.errstate(invalid="ignore"):
            return np.asarray(right / countable)
