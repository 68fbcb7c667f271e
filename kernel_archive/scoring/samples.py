"""Rows with their forecasts, and draws of them: what every metric is a function of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.scoring import discovery, recovery, rowwise, selective
from kernel_archive.scoring.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernel_archive.bins import Scheme
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.target import Target
    from kernel_archive.splits import Kind

__all__ = ["ForecastRows", "RowSample"]


@dataclass(frozen=True, eq=False, kw_only=True)
class ForecastRows:
    """Rows of a target with their forecasts, stratum after stratum.

    Attributes:
        kind: ``eval`` or ``discovery``.
        scheme: rule of the bins.
        representatives: shape (8,), m_b in x.
        strata: stratum -> positions of its rows.
        groups: reported group -> positions of its rows.
        speedups: shape (n,), x.
        bins: shape (n,), true bins.
        probabilities: shape (R, n, 8).
        parsed: shape (R, n), where there is a distribution.
        predicted: shape (R, n), 0 where there is none.
    """

    kind: Kind
    scheme: Scheme
    representatives: Floats
    strata: Mapping[str, Ints]
    groups: Mapping[str, Ints]
    speedups: Floats
    bins: Ints
    probabilities: Floats
    parsed: Bools
    predicted: Ints
    _values: dict[str, Floats] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, target: Target, forecasts: Forecasts, predicted_bin: str = "argmax") -> ForecastRows:
        """Rows of a target and its forecasts, in canonical order: no file order matters."""
        rows, cast = target.ordered, forecasts.take(target.canonical_order)
        return cls(
            kind=rows.kind,
            scheme=rows.scheme,
            representatives=rows.representatives,
            strata=rows.task_rows,
            groups=rows.group_rows,
            speedups=rows.speedups,
            bins=rows.bins,
            probabilities=cast.probabilities,
            parsed=cast.parsed,
            predicted=cast.predicted(predicted_bin),
        )

    def __len__(self) -> int:
        return len(self.speedups)

    @property
    def n_repeats(self) -> int:
        """Number of repeats R."""
        return int(self.parsed.shape[0])

    @cached_property
    def confidence(self) -> Floats:
        """Confidence, shape (R, n); 0 where there is no distribution."""
        q = rowwise.confidence(probabilities=self.probabilities, predicted=np.maximum(self.predicted, 1))
        return np.where(self.parsed, q, 0.0)

    @cached_property
    def hits(self) -> Bools:
        """Whether the predicted bin is the true one, shape (R, n)."""
        return rowwise.correct(predicted=self.predicted, bins=self.bins)

    @cached_property
    def errors(self) -> Floats:
        """Forecast errors, x, shape (R, n)."""
        return rowwise.forecast_errors(
            predicted=self.predicted, speedups=self.speedups, representatives=self.representatives
        )

    @cached_property
    def expected(self) -> Floats:
        """Expected speedups S^, x, shape (R, n)."""
        return rowwise.expected_speedup(probabilities=self.probabilities, representatives=self.representatives)

    def exceedance(self, cutoff: float) -> Floats:
        """Pr[g >= cutoff], shape (R, n)."""
        return self._kept(
            f">={cutoff}",
            lambda: discovery.exceedance(probabilities=self.probabilities, cutoff=cutoff, scheme=self.scheme),
        )

    def values(self, metric: str, rule: Callable[[ForecastRows], Floats]) -> Floats:
        """The value of every row, shape (R, n), of a metric that is their mean: computed once for all draws."""
        return self._kept(metric, lambda: rule(self))

    def _kept(self, key: str, make: Callable[[], Floats]) -> Floats:
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]

    def repeat(self, r: int) -> ForecastRows:
        """One repeat alone."""
        return replace(
            self, probabilities=self.probabilities[r, None], parsed=self.parsed[r, None], predicted=self.predicted[r, None]
        )  # fmt: skip

    def part(self, at: Ints) -> ForecastRows:
        """Some rows alone; strata that lie in them whole are kept, groups are not."""
        inside = np.zeros(len(self), bool)
        inside[at] = True
        return replace(
            self,
            strata={name: np.searchsorted(at, rows) for name, rows in self.strata.items() if inside[rows].all()},
            groups={},
            speedups=self.speedups[at],
            bins=self.bins[at],
            probabilities=self.probabilities[:, at],
            parsed=self.parsed[:, at],
            predicted=self.predicted[:, at],
        )

    @cached_property
    def by_group(self) -> dict[str, ForecastRows]:
        """The rows of every reported group."""
        return {name: self.part(at) for name, at in self.groups.items()}


@dataclass(frozen=True, eq=False)
class RowSample:
    """D draws of rows.

    Attributes:
        rows: the rows.
        weights: shape (n, D), how often each row is in each draw.
        picks: stratum -> shape (D, m), the rows drawn from it, as positions inside the stratum.
    """

    rows: ForecastRows
    weights: Floats
    picks: Mapping[str, Ints]
    _curves: dict[str, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def once(cls, rows: ForecastRows) -> RowSample:
        """The single draw that holds every row once."""
        return cls(rows, np.ones((len(rows), 1)), {name: np.arange(len(at))[None] for name, at in rows.strata.items()})

    def of_group(self, name: str) -> RowSample:
        """The same draws of the rows of one reported group."""
        return RowSample(self.rows.by_group[name], self.weights[self.rows.groups[name]], self.picks, self._curves)

    def mean(self, value: Callable[[int], Floats]) -> Floats:
        """Mean over the repeats of the values, shape (..., D), that a formula gives for each repeat number."""
        total = value(0)
        for r in range(1, self.rows.n_repeats):
            total = total + value(r)
        return total / self.rows.n_repeats

    def mean_over_rows(self, metric: str, rule: Callable[[ForecastRows], Floats]) -> Floats:
        """A metric that is a mean over rows, shape (D,); NaN where no row was drawn."""
        values = self.rows.values(metric, rule)
        with np.errstate(invalid="ignore"):
            mean: Floats = product(values.mean(axis=0), self.weights) / self.weights.sum(axis=0)
        return mean

    @cached_property
    def risks(self) -> Floats:
        """AURC of the forecast error and of the error rate, shape (2, D)."""
        rows = self.rows
        losses = np.stack([rows.errors, 1.0 - rows.hits], axis=1)
        return self.mean(
            lambda r: selective.aurc(
                confidence=rows.confidence[r], losses=losses[r], parsed=rows.parsed[r], weights=self.weights
            )
        )

    @cached_property
    def curve(self) -> Floats:
        """Speedup recovered at budgets of 1 to 100 %, mean over strata and repeats: shape (100, D)."""
        total = np.zeros((len(recovery.CURVE), self.weights.shape[1]))
        for name in self.rows.strata:
            if name not in self._curves:
                self._curves[name] = self._curve_of(name)
            total += self._curves[name]
        return total / len(self.rows.strata)

    def _curve_of(self, stratum: str) -> Floats:
        rows, at, picks = self.rows, self.rows.strata[stratum], self.picks[stratum]
        ranks, back = np.unique(recovery.budget_ranks(picks.shape[1], recovery.CURVE), return_inverse=True)
        total = np.zeros((len(ranks), len(picks)))
        for expected in rows.expected:
            total += recovery.recovered_at(expected=expected[at], speedups=rows.speedups[at], ranks=ranks, picks=picks)
        return (total / rows.n_repeats)[back]

    @cached_property
    def pooled(self) -> Floats:
        """Speedup recovered, mean over the budgets, with all rows as one candidate set: shape (D,)."""
        rows = self.rows
        picks = np.concatenate([at[self.picks[name]] for name, at in rows.strata.items()], axis=1)
        ranks = recovery.budget_ranks(picks.shape[1])
        found = [
            recovery.recovered_at(expected=expected, speedups=rows.speedups, ranks=ranks, picks=picks).mean(axis=0)
            for expected in rows.expected
        ]
        out: Floats = np.mean(found, axis=0)
        return out
