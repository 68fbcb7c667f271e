"""Rows with their forecasts, and draws of them: what every metric is a function of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernel_archive.scoring import calibration, order, recovery
from kernel_archive.scoring.arrays import product
from kernel_archive.scoring.controls import best_control
from kernel_archive.scoring.forecasts import confidence, correct, expected_speedup, forecast_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from kernel_archive.bins import Scheme
    from kernel_archive.scoring.arrays import Bools, Floats, Ints
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.target import Target
    from kernel_archive.splits import Kind

#: Cues of an edit that find discoveries without reading it.
SHORTCUTS: Final = ("parent_speedup", "language_change")
#: Fields of :class:`ForecastRows` with a value for every row, and with one for every repeat and row.
_OF_ROWS: Final = ("speedups", "bins", "spreads", "control_crps")
OF_REPEATS: Final = ("probabilities", "parsed", "predicted", "stated")
#: Differences below this share are rounding.
_EQUAL: Final = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class ForecastRows:
    """Rows of a target with their forecasts, stratum after stratum.

    Attributes:
        kind: ``eval`` or ``discovery``.
        scheme: rule of the bins.
        representatives: shape (8,), m_b in x.
        strata: stratum -> positions of its rows.
        pools: task and language -> positions of its rows.
        groups: reported group -> positions of its rows.
        speedups: shape (n,), x.
        bins: shape (n,), true bins.
        probabilities: shape (R, n, 8).
        parsed: shape (R, n), where there is a distribution.
        predicted: shape (R, n), 0 where there is none.
        stated: shape (R, n), the expected speedup that was stated beside the bins, x; NaN where there is none.
        spreads: shape (n,), largest over smallest measurement.
        control_crps: shape (n,), CRPS of the best control.
        shortcuts: name -> shape (n,), scores of the known shortcuts to discoveries.
        same_language: shape (n,), whether an edit stays within one language; ``None`` where rows are no edits.
    """

    kind: Kind
    scheme: Scheme
    representatives: Floats
    strata: Mapping[str, Ints]
    pools: Mapping[str, Ints]
    groups: Mapping[str, Ints]
    speedups: Floats
    bins: Ints
    probabilities: Floats
    parsed: Bools
    predicted: Ints
    stated: Floats
    spreads: Floats
    control_crps: Floats
    shortcuts: Mapping[str, Floats]
    same_language: Bools | None

    @classmethod
    def of(cls, target: Target, forecasts: Forecasts, predicted_bin: str = "argmax") -> ForecastRows:
        """Rows of a target and its forecasts, in canonical order: no file order matters."""
        places = target.canonical_order
        rows, cast = target.ordered, forecasts.take(places)
        surface = rows.surface
        return cls(
            kind=rows.kind,
            scheme=rows.scheme,
            representatives=rows.representatives,
            strata=rows.task_rows,
            pools=rows.pool_rows,
            groups=rows.group_rows,
            speedups=rows.speedups,
            bins=rows.bins,
            probabilities=cast.probabilities,
            parsed=cast.parsed,
            predicted=cast.predicted(predicted_bin),
            stated=np.where(cast.parsed, cast.expected_speedups, np.nan),
            spreads=surface.spreads,
            control_crps=target.once(best_control)[1][places],
            shortcuts={name: surface.cues[name] for name in SHORTCUTS if name in surface.cues},
            same_language=None if surface.changed is None else ~surface.changed,
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
        q = confidence(probabilities=self.probabilities, predicted=np.maximum(self.predicted, 1))
        return np.where(self.parsed, q, 0.0)

    @cached_property
    def hits(self) -> Bools:
        """Whether the predicted bin is the true one, shape (R, n)."""
        return correct(predicted=self.predicted, bins=self.bins)

    @cached_property
    def errors(self) -> Floats:
        """Forecast errors, x, shape (R, n)."""
        return forecast_errors(predicted=self.predicted, speedups=self.speedups, representatives=self.representatives)

    @cached_property
    def expected(self) -> Floats:
        """Expected speedups S^, x, shape (R, n)."""
        return expected_speedup(probabilities=self.probabilities, representatives=self.representatives)

    @cached_property
    def keys(self) -> Ints:
        """Keys that order the candidates by S^, a stated expected speedup where S^ ties: shape (R, n)."""
        return np.stack(
            [
                order.order_keys(expected=expected, stated=None if np.isnan(stated).all() else stated)
                for expected, stated in zip(self.expected, self.stated, strict=True)
            ]
        )

    @cached_property
    def pair_tables(self) -> dict[str, order.PairTable]:
        """The pairs of every task and language."""
        return {
            name: order.PairTable(self.keys[:, at], self.speedups[at], self.spreads[at])
            for name, at in self.pools.items()
        }

    def better_shortcut(self, cutoff: float) -> Floats | None:
        """Scores of the shortcut that finds discoveries best, shape (n,); ``None`` where none is known."""
        positive = self.speedups >= cutoff
        found = {
            name: float(order.average_precision(scores=scores, positive=positive))
            for name, scores in self.shortcuts.items()
        }
        return self.shortcuts[max(found, key=found.__getitem__)] if found else None

    def exceedance(self, cutoff: float) -> Floats:
        """Pr[g >= cutoff], shape (R, n)."""
        return order.exceedance(probabilities=self.probabilities, cutoff=cutoff, scheme=self.scheme)

    def repeat(self, r: int) -> ForecastRows:
        """One repeat alone."""
        arrays: dict[str, Any] = {name: getattr(self, name)[r, None] for name in OF_REPEATS}
        return replace(self, **arrays)

    def take(self, at: Ints, *, strata: Mapping[str, Ints], pools: Mapping[str, Ints]) -> ForecastRows:
        """The rows at these positions, in this order, any of them several times, without groups."""
        arrays: dict[str, Any] = {name: getattr(self, name)[at] for name in _OF_ROWS}
        arrays |= {name: getattr(self, name)[:, at] for name in OF_REPEATS}
        shortcuts = {name: scores[at] for name, scores in self.shortcuts.items()}
        same = None if self.same_language is None else self.same_language[at]
        return replace(self, strata=strata, pools=pools, groups={}, shortcuts=shortcuts, same_language=same, **arrays)

    def part(self, at: Ints) -> ForecastRows:
        """Some rows alone, in their order; strata and pools that lie in them whole are kept."""
        inside = np.zeros(len(self), bool)
        inside[at] = True

        def whole(sets: Mapping[str, Ints]) -> dict[str, Ints]:
            return {name: np.searchsorted(at, rows) for name, rows in sets.items() if inside[rows].all()}

        return self.take(at, strata=whole(self.strata), pools=whole(self.pools))

    @cached_property
    def by_group(self) -> dict[str, ForecastRows]:
        """The rows of every reported group."""
        return {name: self.part(at) for name, at in self.groups.items()}


@lru_cache(maxsize=512)
def _kept(*_: Hashable) -> list[Floats]:
    """Where a figure of certain draws is kept."""
    return []


@dataclass(frozen=True, eq=False)
class RowSample:
    """D draws of rows.

    Attributes:
        rows: the rows.
        weights: shape (n, D), how often each row is in each draw.
        picks: stratum -> shape (D, m), the rows drawn from it, as positions inside the stratum.
        drawn: what the same draws of other forecasts' rows share; ``None`` where there are none.
    """

    rows: ForecastRows
    weights: Floats
    picks: Mapping[str, Ints]
    drawn: Hashable = None
    _curves: dict[tuple[str, str], Floats] = field(default_factory=dict, repr=False)
    _found: dict[float, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def once(cls, rows: ForecastRows) -> RowSample:
        """The single draw that holds every row once."""
        return cls(rows, np.ones((len(rows), 1)), {name: np.arange(len(at))[None] for name, at in rows.strata.items()})

    def of_group(self, name: str) -> RowSample:
        """The same draws of the rows of one reported group."""
        return RowSample(
            self.rows.by_group[name], self.weights[self.rows.groups[name]], self.picks, _curves=self._curves
        )

    def _of_all(self, make: Callable[[], Floats], *what: Hashable) -> Floats:
        """A figure of the draws that is the same whatever is forecast: computed once for all entries of a board."""
        place = [] if self.drawn is None else _kept(self.drawn, *what)
        if not place:
            place.append(make())
        return place[0]

    def mean(self, value: Callable[[int], Floats]) -> Floats:
        """Mean over the repeats of the values, shape (..., D), that a formula gives for each repeat number."""
        total = value(0)
        for r in range(1, self.rows.n_repeats):
            total = total + value(r)
        return total / self.rows.n_repeats

    def mean_over_rows(self, values: Floats) -> Floats:
        """Mean over the rows and repeats of values of shape (R, n): shape (D,); NaN where no row was drawn."""
        with np.errstate(invalid="ignore"):
            mean: Floats = product(values.mean(axis=0), self.weights) / self.weights.sum(axis=0)
        return mean

    @cached_property
    def risks(self) -> Floats:
        """AURC of the forecast error and of the error rate, shape (2, D)."""
        rows = self.rows
        losses = np.stack([rows.errors, 1.0 - rows.hits], axis=1)
        return self.mean(
            lambda r: calibration.aurc(
                confidence=rows.confidence[r], losses=losses[r], parsed=rows.parsed[r], weights=self.weights
            )
        )

    @cached_property
    def curve(self) -> Floats:
        """Speedup recovered at budgets of 1 to 100 %, mean over strata and repeats: shape (100, D); NaN without a stratum."""
        total = np.zeros((len(recovery.CURVE), self.weights.shape[1]))
        for name in self.rows.strata:
            total += self._part("curve", name, self._curve_of)
        with np.errstate(invalid="ignore"):
            return total / len(self.rows.strata)

    def _part(self, what: str, name: str, make: Callable[[str], Floats]) -> Floats:
        """What is computed of one stratum or pool, once for all groups that it lies in."""
        if (what, name) not in self._curves:
            self._curves[what, name] = make(name)
        return self._curves[what, name]

    @cached_property
    def pair_accuracies(self) -> Floats:
        """Share of pairs in the right order, mean over the repeats: all together, then by distance; shape (1 + K, D)."""
        if not self.rows.pools:
            return np.full((1 + len(order.PAIR_CLASSES), self.weights.shape[1]), np.nan)
        right, of = (
            sum(parts) for parts in zip(*(self._part("pairs", c, self._pairs_of) for c in self.rows.pools), strict=True)
        )
        return order.shares(right, of)

    def _pairs_of(self, pool: str) -> Floats:
        return np.stack(self.rows.pair_tables[pool].count(self.weights[self.rows.pools[pool]]))

    @cached_property
    def rank_correlation(self) -> Floats:
        """Rank correlation, mean over the strata in which it is defined and the repeats: shape (D,); NaN without one."""
        found = [self._part("ranks", name, self._correlation_of) for name in self.rows.strata]
        parts = np.array(found).reshape(-1, self.weights.shape[1])
        known = ~np.isnan(parts)
        with np.errstate(invalid="ignore"):
            mean: Floats = np.where(known, parts, 0.0).sum(axis=0) / known.sum(axis=0)
        return mean

    def _correlation_of(self, stratum: str) -> Floats:
        rows, at = self.rows, self.rows.strata[stratum]
        return order.rank_correlation(keys=rows.keys[:, at], speedups=rows.speedups[at], weights=self.weights[at])

    @cached_property
    def selection_skill(self) -> Floats:
        """Speedup recovered from random order (0) to the oracle (1), over budgets and strata: shape (D,)."""
        found = np.zeros(self.weights.shape[1])
        chance = np.zeros_like(found)
        for name in self.rows.strata:
            found += self._part("selected", name, self._selected_of)
            chance += self._part("random", name, self._random_of)
        best = 100.0 * len(self.rows.strata)
        gain, room = found - chance, best - chance
        gain[np.abs(gain) < _EQUAL * best] = 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            skill: Floats = np.where(room > _EQUAL * best, gain / room, np.nan)
        return skill

    def _selected_of(self, stratum: str) -> Floats:
        rows, at, picks = self.rows, self.rows.strata[stratum], self.picks[stratum]
        if np.isnan(rows.stated).all():
            curve = self._part("curve", stratum, self._curve_of)
            at_budgets: Floats = curve[[c - 1 for c in recovery.BUDGETS]].mean(axis=0)
            return at_budgets
        ranks = recovery.budget_ranks(picks.shape[1])
        found = [
            recovery.recovered_at(expected=keys[at] + 1.0, speedups=rows.speedups[at], ranks=ranks, picks=picks)
            for keys in rows.keys
        ]
        mean: Floats = np.mean(found, axis=(0, 1))
        return mean

    def _random_of(self, stratum: str) -> Floats:
        speedups, picks = self.rows.speedups[self.rows.strata[stratum]], self.picks[stratum]
        ranks = recovery.budget_ranks(picks.shape[1])
        return self._of_all(
            lambda: recovery.recovered_at_random(speedups=speedups, ranks=ranks, picks=picks).mean(axis=0),
            *("random", stratum, speedups.tobytes()),
        )

    def found(self, cutoff: float) -> Floats:
        """Average precision, mean over the repeats: shape (D,); computed once, since the lift is made of it, too."""
        if cutoff not in self._found:
            found = [self._precision(cutoff, scores) for scores in self.rows.exceedance(cutoff)]
            self._found[cutoff] = np.mean(found, axis=0)
        return self._found[cutoff]

    def lift(self, cutoff: float) -> Floats:
        """Average precision less that of the better shortcut, mean over the repeats: shape (D,)."""
        shortcut = self.rows.better_shortcut(cutoff)
        if shortcut is None:
            return np.full(self.weights.shape[1], np.nan)
        return self.found(cutoff) - self._of_all(
            lambda: self._precision(cutoff, shortcut),
            *("shortcut", cutoff, shortcut.tobytes(), self.rows.speedups.tobytes()),
        )

    @cached_property
    def within_language(self) -> RowSample:
        """The same draws of the edits within one language; of no row where the languages are not known."""
        same = self.rows.same_language
        if same is not None and same.all():
            return self
        at = np.flatnonzero(np.zeros(len(self.rows), bool) if same is None else same)
        drawn = None if self.drawn is None else (self.drawn, at.tobytes())
        return RowSample(self.rows.part(at), self.weights[at], {}, drawn)

    def _precision(self, cutoff: float, scores: Floats) -> Floats:
        """Average precision of scores of shape (n,): shape (D,)."""
        positive = self.rows.speedups >= cutoff
        return order.average_precision(scores=scores, positive=positive, weights=self.weights)

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
