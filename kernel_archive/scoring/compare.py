"""Compare two submissions: paired differences, their intervals, and permutation tests.

The interval of a difference comes from the paired bootstrap (both are drawn the same rows). The
p-value is two-sided: if the two don't differ, which forecast of a row came from whom is a coin's
toss. So the two are swapped row by row, or author by author where the data name authors, all
repeats of a row together, and the difference is computed anew.

Repeats that are swapped with each other form a pair, by their numbers. A side with fewer repeats
starts again from its first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import msgspec
import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.errors import UsageError
from kernel_archive.scoring.arrays import Bools, Floats
from kernel_archive.scoring.figures import bootstrap, compute_metrics, interval, metrics_by_repeat
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.metrics import COMPARED, METRICS
from kernel_archive.scoring.reader import ForecastSource, read_forecasts
from kernel_archive.scoring.record import ForecastFacts, Terms
from kernel_archive.scoring.samples import REPEAT_FIELDS, ForecastRows, RowSample, chunk_sizes
from kernel_archive.scoring.scorer import ScoreOptions, forecast_facts, means, terms_of
from kernel_archive.scoring.split import Split

#: Two submissions differ in a metric when the corrected p-value is below this.
SIGNIFICANCE: Final = 0.05
Side = Literal["a", "b", "neither"]


class MetricDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of two submissions, A and B; ``None`` where it is not defined."""

    a: float | None  # mean over the repeats of A
    b: float | None  # and of B
    difference: float | None  # a - b
    low: float | None  # ends of its 95 % interval
    high: float | None
    p: float | None  # two-sided permutation p-value
    #: The same after Holm's correction over the metrics of its family in the table.
    p_holm: float | None
    better: Side  # which one is better, ``neither`` when they can't be told apart


class Comparison(Terms, frozen=True, kw_only=True):
    """Two submissions held against each other."""

    a: ForecastFacts
    b: ForecastFacts
    differences: dict[str, MetricDifference]  # metric -> the two figures and their difference


def compare(
    a: ForecastSource,
    b: ForecastSource,
    archive: Archive | Split | str | Path | None = None,
    split: str = "eval",
    *,
    bins: str | None = None,
    **options: Unpack[ScoreOptions],
) -> Comparison:
    """Compare two forecasters on the rows of a split, by the metrics :data:`COMPARED` of its kind.

    Seed and draws are those of the bootstrap and of the swaps; arguments and errors else are those
    of :func:`~kernel_archive.scoring.scorer.score_file`.

    Raises:
        UsageError: there are no draws.
    """
    seed, draws = options.get("seed", 0), options.get("draws", 10_000)
    if draws < 1:
        raise UsageError("a comparison needs draws")
    loaded, rule = load_split(archive, split, bins), options.get("predicted_bin", "argmax")
    forecasts = [read_forecasts(source, loaded) for source in (a, b)]
    names = COMPARED[loaded.kind]
    sides = [ForecastRows.of(loaded, each, rule) for each in forecasts]
    values = [means(metrics_by_repeat(side, names, groups=False).overall) for side in sides]
    drawn = [
        bootstrap(side, seed=seed, draws=draws, names=names, groups=False).overall for side in sides
    ]
    defined = [name for name in names if None not in (values[0][name], values[1][name])]
    p = permutation_p(sides[0], sides[1], defined, seed=seed, draws=draws)
    corrected = holm(p)
    table: dict[str, MetricDifference] = {}
    for name in names:
        value_a, value_b = values[0][name], values[1][name]
        difference = None if value_a is None or value_b is None else value_a - value_b
        ends = None if difference is None else interval(drawn[0][name] - drawn[1][name])
        low, high = ends or (None, None)
        table[name] = MetricDifference(
            a=value_a,
            b=value_b,
            difference=difference,
            low=low,
            high=high,
            p=p.get(name),
            p_holm=corrected.get(name),
            better=_better(name, difference, corrected.get(name)),
        )
    return Comparison(
        **terms_of(loaded, rule, seed=seed, draws=draws),
        a=forecast_facts(forecasts[0]),
        b=forecast_facts(forecasts[1]),
        differences=table,
    )


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct the p-values of metrics by Holm's step-down rule, family by family."""
    corrected: dict[str, float] = {}
    for family in {METRICS[name].family for name in p_values}:
        ranked = sorted((p, n) for n, p in p_values.items() if METRICS[n].family == family)
        largest = 0.0
        for step, (p, name) in enumerate(ranked):
            largest = max(largest, min(1.0, p * (len(ranked) - step)))
            corrected[name] = largest
    return corrected


def _better(name: str, difference: float | None, p: float | None) -> Side:
    """Say which one is better by a metric, when the corrected p-value tells them apart."""
    direction = METRICS[name].better
    if not difference or p is None or p >= SIGNIFICANCE or direction == "neither":
        return "neither"
    return "a" if (difference > 0) == (direction == "higher") else "b"


def permutation_p(
    a: ForecastRows, b: ForecastRows, names: Sequence[str], *, seed: int, draws: int
) -> dict[str, float]:
    """Test differences A - B by swaps: (1 + number as large) / (1 + draws), two-sided.

    ``a`` and ``b`` are the same rows with the forecasts of either; seed and draws are those of the
    swaps. The differences must be defined.
    """
    side_by_side = _side_by_side(a, b)
    n, k, rng = len(a), a.split.n_clusters, np.random.default_rng([seed, 1])
    clusters = a.split.cluster_numbers
    clusters = np.arange(n) if clusters is None else clusters
    observed = _swapped_differences(side_by_side, np.zeros((n, 1), bool), names)
    larger = dict.fromkeys(names, 0)
    for size in chunk_sizes(2 * n, draws):
        flips = rng.integers(0, 2, size=(size, k), dtype=np.int8)
        swapped = flips[:, clusters].astype(bool).T
        differences = _swapped_differences(side_by_side, swapped, names)
        for name in names:
            distance = abs(float(observed[name][0]))
            slack = 1e-9 * max(distance, 1e-6)
            larger[name] += int(np.sum(np.abs(differences[name]) >= distance - slack))
    return {name: (1 + count) / (1 + draws) for name, count in larger.items()}


def _swapped_differences(
    both: ForecastRows, swapped: Bools, names: Collection[str]
) -> dict[str, Floats]:
    """Compute the differences when ``swapped`` rows, shape (n, D), are swapped: shape (D,) each."""
    # Lifts differ as average precisions do: the shortcut that both are over is the same.
    computed = {name: METRICS[name].excess_of or name for name in names}
    sides = []
    for from_b in (swapped, ~swapped):
        weights = np.concatenate([~from_b, from_b]).astype(np.float64)
        sides.append(compute_metrics([RowSample(both, weights)], set(computed.values())).overall)
    return {name: sides[0][own] - sides[1][own] for name, own in computed.items()}


def _side_by_side(a: ForecastRows, b: ForecastRows) -> ForecastRows:
    """Put rows with the forecasts of A before the same rows with those of B, in equal repeats."""
    n, n_repeats = len(a), max(a.n_repeats, b.n_repeats)
    first, second = (np.arange(n_repeats) % side.n_repeats for side in (a, b))
    both: dict[str, Any] = {
        name: np.concatenate([getattr(a, name)[first], getattr(b, name)[second]], axis=1)
        for name in REPEAT_FIELDS
    }
    return replace(a.take(np.tile(np.arange(n), 2)), **both)
