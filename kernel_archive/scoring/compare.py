"""Two submissions against each other: paired differences, their intervals, and permutation tests.

The interval of a difference comes from the paired bootstrap (both are drawn the same rows). The p-value is two-sided:
under the hypothesis that the two don't differ, which forecast of a row came from whom is a coin's toss, so the two
are swapped row by row, all repeats of a row together, and the difference is computed anew.

Repeats that are swapped with each other form a pair: a swapped repeat holds rows of one repeat of A and of one of B. Which
repeats are paired must not hang on how a file numbers them, so each submission's repeats are put in the order of a digest
of what they forecast, which is as good as chance and the same for every numbering. Where the numbers of repeats differ,
both sides are repeated up to the least common multiple when that is small or no larger than one of them, so that every
repeat counts alike. Otherwise (7 against 8 would be 56) there are as many pairs as the larger number; the smaller side's
repeats are dealt out at random, from the seed and anew for every portion of draws, each as often as the others or once
more. The observed difference is that of all repeats in either case.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from kernel_archive.errors import UsageError, suggestion
from kernel_archive.scoring.load import target_of
from kernel_archive.scoring.metrics import COMPARED, CUTOFFS, METRICS, metrics_of
from kernel_archive.scoring.reader import forecasts_of
from kernel_archive.scoring.record import ForecastFacts, Terms
from kernel_archive.scoring.samples import OF_REPEATS, ForecastRows, RowSample
from kernel_archive.scoring.scorer import PredictedBin, forecast_facts, means
from kernel_archive.scoring.uncertainty import bootstrap, chunk_sizes, interval, measure, repeats_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Floats, Ints
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.reader import ForecastSource
    from kernel_archive.scoring.target import Target

#: Two submissions differ in a metric when the corrected p-value is below this.
SIGNIFICANCE: Final = 0.05
#: Up to so many pairs of repeats every repeat of either side counts alike; the time grows with the pairs.
_MAX_PAIRS: Final = 12
#: Row-wise figures that order the repeats. A fixed list, so that a further metric changes no p-value.
_ORDERED_BY: Final = ("forecast_error", "brier", "crps", "nll", "accuracy", "within_one", "entropy")


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two submissions, A and B.

    Attributes:
        a: mean over the repeats of A; ``None`` where it is not defined.
        b: of B.
        difference: a - b.
        low: lower end of its 95 % interval.
        high: upper end.
        p: two-sided permutation p-value.
        p_holm: the same after Holm's correction over the metrics of its family in the table.
        better: which one is better, ``neither`` when they can't be told apart.
        other_scheme: the difference under the other bin scheme; ``None`` when it was not looked at.
        other_better: which one is better under the other scheme, tested in the same way.
        depends_on_scheme: the two schemes disagree on that.
    """

    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    better: Literal["a", "b", "neither"]
    other_scheme: float | None = None
    other_better: Literal["a", "b", "neither"] | None = None
    depends_on_scheme: bool = False


class Comparison(Terms, frozen=True, kw_only=True):
    """Two submissions against each other.

    Attributes:
        a: what was scored of the one.
        b: of the other.
        differences: metric -> the two figures and their difference.
    """

    a: ForecastFacts
    b: ForecastFacts
    differences: dict[str, MetricDifference]


def compare(
    target: Target,
    a: Forecasts,
    b: Forecasts,
    *,
    seed: int = 0,
    draws: int = 10_000,
    metrics: Sequence[str] | None = None,
    predicted_bin: PredictedBin = "argmax",
    both_schemes: bool = True,
) -> Comparison:
    """Compare two submissions on the same rows.

    Args:
        target: the rows.
        a: forecasts of those rows.
        b: others.
        seed: of the bootstrap and of the swaps.
        draws: of each.
        metrics: the table; :data:`COMPARED` when not given.
        predicted_bin: whether the most probable or the stated bin is scored.
        both_schemes: also test under the other bin scheme, which takes as long again.

    Raises:
        UsageError: a metric is not known, or there are no draws.

    >>> from kernel_archive.scoring import Forecasts, Target
    >>> t = Target.from_arrays(row_ids=list("abcd"), tasks=["t"] * 4, speedups=[0.6, 0.9, 1.3, 1.9])
    >>> good = Forecasts.from_arrays(t, [[float(i == b) for i in range(8)] for b in (2, 3, 4, 5)])
    >>> poor = Forecasts.from_arrays(t, [[0, 0, 0, 0.5, 0.5, 0, 0, 0]] * 4)
    >>> comparison = compare(t, good, poor, draws=200, metrics=["brier"])
    >>> comparison.differences["brier"].difference
    -0.5
    """
    names = tuple(metrics) if metrics is not None else COMPARED[target.kind]
    if draws < 1:
        raise UsageError("a comparison needs draws")
    known = metrics_of(target.kind)
    for name in names:
        if name not in known:
            raise UsageError(f"unknown metric {name!r}. {suggestion(name, known)}")
    table = _table(target, a, b, names, seed=seed, draws=draws, predicted_bin=predicted_bin)
    if both_schemes:
        there = _table(target.other, a, b, names, seed=seed, draws=draws, predicted_bin=predicted_bin)
        table = {
            name: msgspec.structs.replace(
                here,
                other_scheme=there[name].difference,
                other_better=there[name].better,
                depends_on_scheme=here.better != there[name].better,
            )
            for name, here in table.items()
        }
    return Comparison(
        kind=target.kind,
        target=target.facts,
        scheme=target.scheme,
        predicted_bin=predicted_bin,
        seed=seed,
        draws=draws,
        a=forecast_facts(a),
        b=forecast_facts(b),
        differences=table,
    )


def compare_files(
    a: ForecastSource,
    b: ForecastSource,
    archive: Archive | Target | str | Path | None = None,
    split: str = "eval",
    *,
    bins: str | None = None,
    names: tuple[str | None, str | None] = (None, None),
    seed: int = 0,
    draws: int = 10_000,
    predicted_bin: PredictedBin = "argmax",
) -> Comparison:
    """Compare two forecasters, wherever their forecasts are, on the rows of a split.

    ``names`` are those of the two forecasters, ``a`` and ``b`` what
    :func:`~kernel_archive.scoring.scorer.score_file` takes as forecasts; other arguments and errors as there.
    """
    target = target_of(archive, split, bins)
    one, other = (forecasts_of(source, target, name=name) for source, name in zip((a, b), names, strict=True))
    return compare(target, one, other, seed=seed, draws=draws, predicted_bin=predicted_bin)


def _table(
    target: Target,
    a: Forecasts,
    b: Forecasts,
    names: tuple[str, ...],
    *,
    seed: int,
    draws: int,
    predicted_bin: PredictedBin,
) -> dict[str, MetricDifference]:
    """Every difference under one scheme."""
    rows_a, rows_b = (ForecastRows.of(target, cast, predicted_bin) for cast in (a, b))
    values_a, values_b = (means(repeats_of(rows, names, groups=False).overall) for rows in (rows_a, rows_b))
    drawn_a, drawn_b = (
        bootstrap(rows, seed=seed, draws=draws, names=names, groups=False).overall for rows in (rows_a, rows_b)
    )
    observed: dict[str, float | None] = dict.fromkeys(names)
    for name in names:
        one, other = values_a[name], values_b[name]
        if one is not None and other is not None:
            observed[name] = one - other
    p = permutation_p(rows_a, rows_b, observed, seed=seed, draws=draws)
    corrected: dict[str, float | None] = {}
    for family in {METRICS[name].family for name in names}:
        inside = [name for name in names if METRICS[name].family == family]
        corrected |= dict(zip(inside, holm([p[name] for name in inside]), strict=True))
    out: dict[str, MetricDifference] = {}
    for name in names:
        seen = observed[name]
        ends = interval(drawn_a[name] - drawn_b[name]) if seen is not None else None
        low, high = ends if ends is not None else (None, None)
        out[name] = MetricDifference(
            a=values_a[name],
            b=values_b[name],
            difference=seen,
            low=low,
            high=high,
            p=p[name],
            p_holm=corrected[name],
            better=_better(name, seen, corrected[name]),
        )
    return out


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction over a table; ``None`` stays out of it.

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for step, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - step)))
        out[i] = largest
    return out


def _better(name: str, difference: float | None, p: float | None) -> Literal["a", "b", "neither"]:
    if difference is None or p is None or p >= SIGNIFICANCE or difference == 0 or METRICS[name].better == "neither":
        return "neither"
    return "a" if (difference > 0) == (METRICS[name].better == "higher") else "b"


def permutation_p(
    a: ForecastRows, b: ForecastRows, observed: Mapping[str, float | None], *, seed: int, draws: int
) -> dict[str, float | None]:
    """Two-sided permutation p-values of observed differences A - B: (1 + number as large) / (1 + draws), or ``None``.

    ``a`` and ``b`` are the same rows with the forecasts of either; seed and draws are those of the swaps.
    """
    pairings = _pairings(a, b, seed=seed)
    found: dict[str, list[Floats]] = {name: [] for name, value in observed.items() if value is not None}
    last: tuple[Ints, Ints] | None = None
    for sides, pairs in zip(_swaps(a, seed=seed, draws=draws), pairings, strict=False):
        if pairs is not last:
            both, last = _side_by_side(a, b, *pairs), pairs
        first, second = (measure(RowSample(both, *side), found).overall for side in sides)
        for name, parts in found.items():
            parts.append(first[name] - second[name])
    out: dict[str, float | None] = dict.fromkeys(observed)
    for name, parts in found.items():
        seen = observed[name]
        if parts and seen is not None:
            swapped = np.abs(np.concatenate(parts))
            slack = 1e-9 * max(abs(seen), 1e-6)
            out[name] = float(1 + np.sum(swapped >= abs(seen) - slack)) / (1 + draws)
    return out


_Side = tuple["Floats", dict[str, "Ints"]]


def _swaps(rows: ForecastRows, *, seed: int, draws: int) -> Iterator[tuple[_Side, _Side]]:
    """Random swaps of the two sides of every row, and the rows that are left over: weights and picks of either."""
    rng = np.random.default_rng([seed, 1])
    n = len(rows)
    for size in chunk_sizes(2 * n, draws):
        weights = [np.empty((2 * n, size)) for _ in range(2)]
        picks: list[dict[str, Ints]] = [{}, {}]
        start = 0
        for name, at in rows.strata.items():
            m = len(at)
            swapped = rng.integers(0, 2, size=(size, m), dtype=np.int8).astype(bool)
            for side, taken in enumerate((swapped, ~swapped)):
                picks[side][name] = np.arange(m) + m * taken
                weights[side][start : start + m] = ~taken.T
                weights[side][start + m : start + 2 * m] = taken.T
            start += 2 * m
        yield (weights[0], picks[0]), (weights[1], picks[1])


def repeat_order(rows: ForecastRows) -> Ints:
    """The repeats in an order that depends on what they forecast and not on their numbers: shape (R,).

    Figures are rounded to nine decimals first, so that forecasts that were renormalised keep their order.
    """
    figures = [rows.predicted, rows.parsed, rows.confidence, rows.expected]
    figures += (rule(rows) for name in _ORDERED_BY if (rule := METRICS[name].rows) is not None)
    figures += map(rows.exceedance, CUTOFFS if rows.kind == "discovery" else ())
    figures += [] if np.isnan(rows.stated).all() else [rows.keys]
    keys = []
    for r in range(rows.n_repeats):
        digest = hashlib.sha256()
        for values in figures:
            digest.update((np.round(values[r].astype(np.float64), 9) + 0.0).tobytes())
        keys.append(digest.digest())
    return np.array(sorted(range(rows.n_repeats), key=keys.__getitem__), dtype=np.intp)


def _pairings(a: ForecastRows, b: ForecastRows, *, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """For every portion of draws, which repeat of A is paired with which of B; without end."""
    first, second = repeat_order(a), repeat_order(b)
    common, most = math.lcm(len(first), len(second)), max(len(first), len(second))
    if common <= max(_MAX_PAIRS, most):
        pairs = np.resize(first, common), np.resize(second, common)
        while True:
            yield pairs
    rng = np.random.default_rng([seed, 2])
    while True:
        # One order for the k-th repeats of both, so that A against B and B against A deal out alike.
        dealt = rng.permutation(min(len(first), len(second)))
        yield tuple(  # type: ignore[misc]  # two of them
            np.resize(side[dealt], most) if len(side) < most else side for side in (first, second)
        )


def _side_by_side(a: ForecastRows, b: ForecastRows, repeats_a: Ints, repeats_b: Ints) -> ForecastRows:
    """Rows with the paired forecasts of A and then those of B in every stratum."""
    n = len(a)
    order = np.concatenate([np.concatenate([at, at + n]) for at in a.strata.values()])
    place = np.argsort(order)

    def doubled(sets: Mapping[str, Ints]) -> dict[str, Ints]:
        return {name: np.sort(place[np.concatenate([at, at + n])]) for name, at in sets.items()}

    cast: dict[str, Any] = {
        name: np.concatenate([getattr(a, name)[repeats_a], getattr(b, name)[repeats_b]], axis=1)[:, order]
        for name in OF_REPEATS
    }
    return replace(a.take(order % n, strata=doubled(a.strata), pools=doubled(a.pools)), **cast)
