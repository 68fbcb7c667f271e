"""The one scoring path: a target and forecasts in, a score record out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from kernel_archive.errors import UsageError, printable
from kernel_archive.scoring import curves, recovery, uncertainty
from kernel_archive.scoring.controls import controls_of
from kernel_archive.scoring.forecasts import Forecasts, confusion
from kernel_archive.scoring.load import target_of
from kernel_archive.scoring.metrics import CUTOFFS, HEADLINE, METRICS
from kernel_archive.scoring.reader import forecasts_of
from kernel_archive.scoring.record import ControlFigures, ForecastFacts, Metric, OtherScheme, Recovery, ScoreRecord
from kernel_archive.scoring.samples import ForecastRows
from kernel_archive.scoring.uncertainty import repeats_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kernel_archive.archive.open import Archive
    from kernel_archive.archive.team import Team
    from kernel_archive.scoring.arrays import Floats
    from kernel_archive.scoring.reader import ForecastSource
    from kernel_archive.scoring.target import Target
    from kernel_archive.scoring.uncertainty import Figures

PredictedBin = Literal["argmax", "stated"]


def score(
    target: Target,
    forecasts: Forecasts,
    *,
    seed: int = 0,
    draws: int = 10_000,
    predicted_bin: PredictedBin = "argmax",
    workers: Team | None = None,
) -> ScoreRecord:
    """Score forecasts against the rows of a split.

    Args:
        target: the rows.
        forecasts: forecasts of those rows.
        seed: of the bootstrap.
        draws: bootstrap draws; 0 for no intervals.
        predicted_bin: whether the most probable or the stated bin is scored.
        workers: who computes the draws (:func:`~kernel_archive.archive.team.team`); this process alone when not given.

    Raises:
        UsageError: ``draws`` is negative or ``predicted_bin`` unknown, or the forecasts are of another target.

    >>> from kernel_archive.scoring import Forecasts, Target
    >>> t = Target.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
    >>> f = Forecasts.from_arrays(t, [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
    >>> record = score(t, f, draws=100)
    >>> record.metrics["accuracy"].mean, record.metrics["speedup_recovered"].mean
    (1.0, 100.0)
    """
    return score_with_draws(target, forecasts, seed=seed, draws=draws, predicted_bin=predicted_bin, workers=workers)[0]


def score_with_draws(
    target: Target,
    forecasts: Forecasts,
    *,
    seed: int = 0,
    draws: int = 10_000,
    predicted_bin: PredictedBin = "argmax",
    workers: Team | None = None,
) -> tuple[ScoreRecord, Figures | None]:
    """A score as :func:`score` gives it, and the draws of its intervals: what a board pairs with those of other entries."""
    if draws < 0 or seed < 0:
        raise UsageError("draws and seed must not be negative")
    if predicted_bin not in get_args(PredictedBin):
        raise UsageError(f"unknown predicted bin rule {predicted_bin!r}; choose argmax or stated")
    if forecasts.parsed.shape[1] != len(target):
        raise UsageError(f"these are forecasts of {forecasts.parsed.shape[1]} rows, the split has {len(target)}")
    rows = ForecastRows.of(target, forecasts, predicted_bin)
    figures = repeats_of(rows)
    drawn = uncertainty.bootstrap(rows, seed=seed, draws=draws, workers=workers) if draws else None
    even = target.once(even_figures)
    controls = target.once(control_figures)
    uniform = means(even.overall)
    metrics = _metrics(figures.overall, drawn.overall if drawn else None)
    best = best_controls(controls)
    record = ScoreRecord(
        kind=target.kind,
        target=target.facts,
        scheme=target.scheme,
        relabelled=target.relabelled,
        predicted_bin=predicted_bin,
        seed=seed,
        draws=draws,
        forecasts=forecast_facts(forecasts),
        metrics=metrics,
        groups={
            name: _metrics(values, drawn.groups[name] if drawn else None) for name, values in figures.groups.items()
        },
        group_rows={name: len(at) for name, at in target.group_rows.items()},
        uniform=uniform,
        confusion=tuple(map(tuple, confusion(predicted=rows.predicted, bins=rows.bins).tolist())),
        buckets=curves.buckets(rows),
        recovery=_recovery(figures, even, drawn),
        risk=curves.risk_coverage(rows),
        deferral=curves.deferral(rows, forecasts.deferred[:, target.canonical_order], _metric),
        discovery=tuple(curves.discovery_curve(rows, x) for x in CUTOFFS if target.kind == "discovery"),
        other_scheme=_other_scheme(target, forecasts, predicted_bin, metrics, uniform),
        controls=controls,
        best_controls=best,
        beats_control=_beats(metrics, best, controls),
    )
    return record, drawn


def control_figures(target: Target) -> tuple[ControlFigures, ...]:
    """What controls and bounds reach on a split's rows."""

    def figures(cast: Forecasts) -> dict[str, float | None]:
        return means(repeats_of(ForecastRows.of(target, cast), groups=False).overall)

    return tuple(
        ControlFigures(name=c.name, title=c.title, bound=c.bound, metrics=figures(c.forecasts))
        for c in target.once(controls_of)
    )


def best_controls(controls: Sequence[ControlFigures]) -> dict[str, str]:
    """Metric -> the control with the best figure; the first one of equally good ones."""
    out: dict[str, str] = {}
    for name, info in METRICS.items():
        known = {c.name: value for c in controls if not c.bound and (value := c.metrics.get(name)) is not None}
        if known and info.better != "neither":
            out[name] = min(known, key=lambda control: info.sign * known[control])
    return out


def _beats(
    metrics: Mapping[str, Metric], best: Mapping[str, str], controls: Sequence[ControlFigures]
) -> dict[str, bool]:
    """Metric -> whether the interval lies wholly on the better side of the best control's figure."""
    figures = {c.name: c.metrics for c in controls}
    out: dict[str, bool] = {}
    for name, control in best.items():
        metric, bar = metrics.get(name), figures[control][name]
        if metric is not None and metric.low is not None and metric.high is not None and bar is not None:
            slack = 1e-9 * max(abs(bar), 1e-3)
            higher = METRICS[name].better == "higher"
            out[name] = metric.low > bar + slack if higher else metric.high < bar - slack
    return out


def score_file(
    forecasts: ForecastSource,
    archive: Archive | Target | str | Path | None = None,
    split: str = "eval",
    *,
    bins: str | None = None,
    name: str | None = None,
    surrogate: str | None = None,
    seed: int = 0,
    draws: int = 10_000,
    predicted_bin: PredictedBin = "argmax",
) -> ScoreRecord:
    """Score forecasts, wherever they are, against a split of an archive.

    Args:
        forecasts: a file (JSON lines, plain, gzip or zstd, or Parquet), a data frame (Polars, Arrow, or anything else
            that gives an Arrow stream), a list of objects with the fields of a line, or :class:`Forecasts`.
        archive: an opened archive or its directory, ``gpu-forecasters/kernels`` here when not given; or a target.
        split: name of a split, for example ``eval`` or ``discovery``.
        bins: bin scheme to score under, ``paper`` or ``released``; the split's own when not given.
        name: name of the forecaster; the file's name without its endings when not given.
        surrogate: take only the lines with this ``surrogate_label``.
        seed: of the bootstrap.
        draws: bootstrap draws; 0 for no intervals.
        predicted_bin: whether the most probable or the stated bin is scored.

    Raises:
        ForecastError: the forecasts have a fault; it carries every one.
        ArchiveNotFoundError: there is no archive.
        UsageError: the archive has no such split, or an argument is not known.

    >>> from kernel_archive.scoring import Target
    >>> target = Target.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
    >>> rows = [{"row_id": row, "probabilities": [0, 0, 0, 0, 0, 1, 0, 0]} for row in target.row_ids]
    >>> score_file(rows, target, draws=100).metrics["accuracy"].mean
    0.5
    """
    target = target_of(archive, split, bins)
    cast = forecasts_of(forecasts, target, name=name, surrogate=surrogate)
    return score(target, cast, seed=seed, draws=draws, predicted_bin=predicted_bin)


def _metrics(values: Mapping[str, Floats], drawn: Mapping[str, Floats] | None) -> dict[str, Metric]:
    return {name: _metric(found, drawn.get(name) if drawn else None) for name, found in values.items()}


def _metric(values: Floats, drawn: Floats | None = None) -> Metric:
    kept = tuple(None if np.isnan(v) else float(v) for v in values)
    if None in kept:
        return Metric(mean=None, std=None, repeats=kept)
    ends = None if drawn is None else uncertainty.interval(drawn)
    low, high = ends if ends is not None else (None, None)
    return Metric(mean=float(values.mean()), std=float(values.std()), repeats=kept, low=low, high=high)


def means(values: Mapping[str, Floats]) -> dict[str, float | None]:
    """Mean over the repeats of every metric."""
    return {name: None if np.isnan(found).any() else float(found.mean()) for name, found in values.items()}


def even_figures(target: Target) -> Figures:
    """The figures of the uniform forecast on a split's rows: the scale on which the others stand."""
    even = Forecasts.from_arrays(target, np.full((len(target), 8), 0.125), name="uniform")
    return repeats_of(ForecastRows.of(target, even), groups=False)


def _recovery(figures: Figures, even: Figures, drawn: Figures | None) -> Recovery | None:
    if figures.curve is None or even.curve is None:
        return None
    tail = (1 - uncertainty.LEVEL) / 2
    ends: list[list[float]] = [[], []]
    if drawn is not None and drawn.curve is not None:
        ends = np.quantile(drawn.curve, (tail, 1 - tail), axis=1).tolist()
    return Recovery(
        budgets=recovery.CURVE,
        mean=tuple(figures.curve.mean(axis=1).tolist()),
        low=tuple(ends[0]),
        high=tuple(ends[1]),
        random=tuple(even.curve[:, 0].tolist()),
    )


def _other_scheme(
    target: Target,
    forecasts: Forecasts,
    predicted_bin: PredictedBin,
    here: Mapping[str, Metric],
    uniform_here: Mapping[str, float | None],
) -> OtherScheme:
    """The same forecasts under the other scheme, and what of the conclusions that turns."""
    other = target.other
    there = means(repeats_of(ForecastRows.of(other, forecasts, predicted_bin), groups=False).overall)
    uniform_there = means(other.once(even_figures).overall)

    def outside(name: str) -> bool:
        m, value = here[name], there[name]
        if METRICS[name].better == "neither" or value is None or m.low is None or m.high is None:
            return False
        slack = 1e-9 * abs(value)
        return not m.low - slack <= value <= m.high + slack

    def turned(name: str) -> bool:
        m, value, even_here, even_there = here[name].mean, there[name], uniform_here[name], uniform_there[name]
        if m is None or value is None or even_here is None or even_there is None:
            return False
        sign = METRICS[name].sign
        return (sign * (m - even_here) < 0) != (sign * (value - even_there) < 0)

    return OtherScheme(
        scheme=other.scheme,
        n_differ=int((other.bins != target.bins).sum()),
        metrics=there,
        uniform=uniform_there,
        outside=tuple(name for name in here if outside(name)),
        turned=tuple(name for name in HEADLINE[target.kind] if turned(name)),
    )


def forecast_facts(forecasts: Forecasts) -> ForecastFacts:
    """What was scored, in numbers."""
    f = forecasts
    stated = f.parsed & (f.stated > 0)
    numbers = (f.raw_sums, f.input_tokens, f.output_tokens, f.latency_s)
    sums, tokens_in, tokens_out, seconds = (values[~np.isnan(values)] for values in numbers)
    return ForecastFacts(
        # A file's name can hold bytes that are no text: JSON takes none of them.
        name=printable(f.name, 1000),
        source=printable(f.source, 5000),
        digest=f.digest,
        n_repeats=f.n_repeats,
        n_cells=f.parsed.size,
        n_present=int(f.present.sum()),
        n_parsed=int(f.parsed.sum()),
        n_deferred=int(f.deferred.sum()),
        coverage=f.coverage,
        parse_rate=f.parse_rate,
        n_stated=int(stated.sum()),
        n_stated_differs=int((stated & (f.stated != f.predicted())).sum()),
        n_raw_sum_rejected=int((~np.isnan(f.raw_sums) & ~f.parsed).sum()),
        raw_sum=(float(sums.min()), float(sums.mean()), float(sums.max())) if len(sums) else None,
        input_tokens=float(tokens_in.sum()) if len(tokens_in) else None,
        output_tokens=float(tokens_out.sum()) if len(tokens_out) else None,
        latency_s=float(seconds.mean()) if len(seconds) else None,
    )
