"""Two submissions against each other: paired differences, their intervals, and permutation tests.

The interval of a difference comes from the paired bootstrap (both are drawn the same rows). The p-value is two-sided:
under the hypothesis that the two don't differ, which forecast of a row came from whom is a coin's toss, so the two
are swapped row by row, all repeats of a row together, and the difference is computed anew. How a file numbers its
repeats changes nothing; :mod:`kernel_archive.scoring.permutation` says how they are paired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.bins import SCHEMES
from kernel_archive.errors import UsageError, suggestion
from kernel_archive.scoring.load import target_of
from kernel_archive.scoring.metrics import COMPARED, METRICS, metrics_of
from kernel_archive.scoring.permutation import permutation_p
from kernel_archive.scoring.reader import forecasts_of
from kernel_archive.scoring.record import ForecastFacts, Terms
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.scorer import PredictedBin, forecast_facts, means
from kernel_archive.scoring.uncertainty import bootstrap, interval, repeats_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.forecasts import Forecasts
    from kernel_archive.scoring.reader import ForecastSource
    from kernel_archive.scoring.target import Target

#: Two submissions differ in a metric when the corrected p-value is below this.
SIGNIFICANCE: Final = 0.05


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
    other_scheme: float | None
    other_better: Literal["a", "b", "neither"] | None
    depends_on_scheme: bool


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
        other = target.under(next(name for name in SCHEMES if name != target.scheme))
        there = _table(other, a, b, names, seed=seed, draws=draws, predicted_bin=predicted_bin)
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
    observed = {name: _minus(values_a[name], values_b[name]) for name in names}
    p = permutation_p(rows_a, rows_b, observed, seed=seed, draws=draws)
    out: dict[str, MetricDifference] = {}
    corrected = _corrected(names, p)
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
            other_scheme=None,
            other_better=None,
            depends_on_scheme=False,
        )
    return out


def _corrected(names: Sequence[str], p: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's correction within each family of metrics: the paper's, and those that this project adds."""
    out: dict[str, float | None] = {}
    for family in dict.fromkeys(METRICS[name].family for name in names):
        inside = [name for name in names if METRICS[name].family == family]
        out |= dict(zip(inside, holm([p[name] for name in inside]), strict=True))
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


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _better(name: str, difference: float | None, p: float | None) -> Literal["a", "b", "neither"]:
    if difference is None or p is None or p >= SIGNIFICANCE or difference == 0 or METRICS[name].better == "neither":
        return "neither"
    return "a" if (difference > 0) == (METRICS[name].better == "higher") else "b"
