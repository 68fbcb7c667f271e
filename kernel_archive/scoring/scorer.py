"""Score forecasts of a split: the one path from a split and forecasts to a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import msgspec
import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.bins import N_BINS
from kernel_archive.errors import UsageError, printable
from kernel_archive.scoring import record as records
from kernel_archive.scoring.arrays import Bools, Floats
from kernel_archive.scoring.calibration import N_BUCKETS, bucket_of, selective_risk
from kernel_archive.scoring.controls import Control, controls_of
from kernel_archive.scoring.figures import (
    TAILS,
    Figures,
    bootstrap,
    compute_metrics,
    interval,
    metrics_by_repeat,
)
from kernel_archive.scoring.forecasts import Forecasts, PredictedBinRule
from kernel_archive.scoring.load import load_split
from kernel_archive.scoring.metrics import METRICS, metrics_of
from kernel_archive.scoring.order import CUTOFFS, precision_recall
from kernel_archive.scoring.pairs import pair_bands
from kernel_archive.scoring.reader import ForecastSource, read_forecasts
from kernel_archive.scoring.record import ControlFigures, ForecastFacts, Metric, Score
from kernel_archive.scoring.recovery import CURVE, budget_ranks
from kernel_archive.scoring.rules import confusion
from kernel_archive.scoring.samples import ForecastRows, RowSample
from kernel_archive.scoring.split import Split


class ScoreOptions(TypedDict, total=False):
    """How forecasts are scored; every option may be left out."""

    seed: int  # of the bootstrap; 0 when not given
    draws: int  # bootstrap draws, 10,000 when not given; 0 for no intervals
    predicted_bin: PredictedBinRule  # whether the most probable bin is scored, or the stated one


def score(split: Split, forecasts: Forecasts, **options: Unpack[ScoreOptions]) -> Score:
    """Score forecasts against the rows of a split; options: :class:`ScoreOptions`.

    Raises:
        UsageError: an option has no such value, or the forecasts are of another split.
    """
    return score_with_draws(split, forecasts, **options)[0]


def score_with_draws(
    split: Split,
    forecasts: Forecasts,
    *,
    seed: int = 0,
    draws: int = 10_000,
    predicted_bin: PredictedBinRule = "argmax",
) -> tuple[Score, dict[str, Floats]]:
    """Score forecasts, and return the draws of the intervals, which a board pairs with others."""
    if draws < 0 or seed < 0:
        raise UsageError("draws and seed must not be negative")
    if predicted_bin not in get_args(PredictedBinRule):
        raise UsageError(f"unknown predicted bin rule {predicted_bin!r}; choose argmax or stated")
    if forecasts.parsed.shape[1] != len(split):
        n = forecasts.parsed.shape[1]
        raise UsageError(f"rows of the forecasts: {n:,}, of the split: {len(split):,}")
    rows = ForecastRows.of(split, forecasts, predicted_bin)
    figures = metrics_by_repeat(rows)
    drawn = bootstrap(rows, seed=seed, draws=draws)
    controls = split.cached(control_figures)
    scored = Score(
        **terms_of(split, predicted_bin, seed=seed, draws=draws),
        relabelled=split.relabelled,
        forecasts=forecast_facts(forecasts),
        metrics=_metrics(figures.overall, drawn.overall),
        groups={g: _metrics(own, drawn.groups.get(g, {})) for g, own in figures.groups.items()},
        group_rows={name: len(positions) for name, positions in split.group_rows.items()},
        confusion=confusion(predicted=rows.predicted, bins=rows.split.bins),
        buckets=buckets(rows),
        recovery=_recovery(rows, figures, drawn),
        pairs=pair_bands(rows),
        risk=risk_coverage(rows),
        deferral=deferral_of(rows, forecasts.deferred[:, split.canonical_order]),
        discovery=tuple(discovery_curve(rows, x) for x in CUTOFFS if split.kind == "discovery"),
        controls=controls,
        best_controls=best_controls(controls),
    )
    return msgspec.structs.replace(scored, beats_control=_beats_control(scored)), drawn.overall


def score_file(
    forecasts: ForecastSource,
    archive: Archive | Split | str | Path | None = None,
    split: str = "eval",
    *,
    bins: str | None = None,
    name: str | None = None,
    **options: Unpack[ScoreOptions],
) -> Score:
    """Score forecasts, wherever they are, against a split of an archive.

    ``forecasts`` are a file, a data frame, objects, or :class:`Forecasts`; ``archive`` is one, its
    directory (default: ``gpu-forecasters/kernels``), or a split. ``bins`` is the scheme to score
    under, ``name`` that of the forecaster; options: :class:`ScoreOptions`.

    Raises:
        ForecastError: the forecasts have a fault; it carries every one.
        ArchiveNotFoundError: there is no archive.
        UsageError: the archive has no such split, or an argument is not known.

    >>> from kernel_archive.scoring import Split
    >>> split = Split.from_arrays(row_ids=["a", "b"], tasks=["t", "t"], speedups=[0.9, 1.71])
    >>> rows = [{"row_id": row, "probabilities": [0, 0, 0, 0, 0, 1, 0, 0]} for row in "ab"]
    >>> score_file(rows, split, draws=100).metrics["accuracy"].mean
    0.5
    """
    loaded = load_split(archive, split, bins)
    return score(loaded, read_forecasts(forecasts, loaded, name=name), **options)


def means(values: Mapping[str, Floats]) -> dict[str, float | None]:
    """Average every metric over the repeats; ``None`` where a repeat has none."""
    return {name: metric.mean for name, metric in _metrics(values, {}).items()}


def control_figures(split: Split) -> tuple[ControlFigures, ...]:
    """Compute what controls and bounds reach on a split's rows."""

    def of(control: Control) -> ControlFigures:
        figures = metrics_by_repeat(ForecastRows.of(split, control.forecasts), groups=False).overall
        return ControlFigures(control.name, control.title, control.bound, means(figures))

    return tuple(map(of, split.cached(controls_of)))


def best_controls(controls: Sequence[ControlFigures]) -> dict[str, str]:
    """Map each metric to the control with the best figure; of equally good ones the first."""
    best: dict[str, str] = {}
    for name, info in METRICS.items():
        pairs = [(c.name, c.metrics.get(name)) for c in controls if not c.bound]
        signed = {control: info.sign * value for control, value in pairs if value is not None}
        if signed and info.better != "neither":
            best[name] = min(signed, key=signed.__getitem__)
    return best


def _beats_control(scored: Score) -> dict[str, bool]:
    """Map each metric to whether its whole interval is better than the best control's figure."""
    beats: dict[str, bool] = {}
    for name in scored.best_controls:
        metric, bar = scored.metrics.get(name), scored.control(name)
        if metric and metric.low is not None and metric.high is not None and bar is not None:
            slack = 1e-9 * max(abs(bar), 1e-3)
            higher = METRICS[name].better == "higher"
            beats[name] = metric.low > bar + slack if higher else metric.high < bar - slack
    return beats


def _metrics(values: Mapping[str, Floats], drawn: Mapping[str, Floats]) -> dict[str, Metric]:
    return {name: _metric(repeats, drawn.get(name)) for name, repeats in values.items()}


def _metric(values: Floats, drawn: Floats | None) -> Metric:
    """Make a figure of its values in every repeat and in every draw."""
    repeats = tuple(None if np.isnan(v) else float(v) for v in values)
    if None in repeats:
        return Metric(mean=None, std=None, repeats=repeats)
    ends = None if drawn is None else interval(drawn)
    low, high = ends or (None, None)
    mean, std = float(values.mean()), float(values.std())
    return Metric(mean=mean, std=std, repeats=repeats, low=low, high=high)


def _recovery(rows: ForecastRows, figures: Figures, drawn: Figures) -> records.Recovery | None:
    if figures.recovery is None:
        return None
    low, high = (), ()
    if drawn.recovery is not None:
        low, high = np.quantile(drawn.recovery, TAILS, axis=1).tolist()
    tied = replace(rows.repeat(0), probabilities=np.full((1, len(rows), N_BINS), 1 / N_BINS))
    return records.Recovery(
        mean=tuple(figures.recovery.mean(axis=1).tolist()),
        low=tuple(low),
        high=tuple(high),
        random=tuple(RowSample.single(tied).curve[:, 0].tolist()),
    )


def buckets(rows: ForecastRows) -> tuple[records.Bucket, ...]:
    """Compute the ten confidence buckets, all repeats together, parsed rows only."""
    parsed = rows.parsed
    values = (rows.confidence[parsed], rows.hits[parsed], rows.errors[parsed])
    bucket = bucket_of(confidence=values[0])
    counted = []
    for b in range(N_BUCKETS):
        inside = bucket == b
        means = (float(v[inside].mean()) if inside.any() else None for v in values)
        counted.append(records.Bucket(int(inside.sum()), *means))
    return tuple(counted)


def risk_coverage(rows: ForecastRows) -> records.RiskCoverage | None:
    """Compute selective forecasting, mean over repeats; ``None`` where one has no parsed row."""
    if not rows.parsed.any(axis=1).all():
        return None
    curves = []
    for q, missed, parsed in zip(rows.confidence, ~rows.hits, rows.parsed, strict=True):
        risk = selective_risk(confidence=q[parsed], losses=missed[parsed])
        curves.append(risk[budget_ranks(len(risk), CURVE) - 1])
    return records.RiskCoverage(error_rate=tuple(np.mean(curves, axis=0).tolist()))


def discovery_curve(rows: ForecastRows, cutoff: float) -> records.DiscoveryCurve:
    """Compute precision and recall at one cutoff."""
    positive = rows.split.speedups >= cutoff
    n, base_rate = int(positive.sum()), float(positive.mean())
    if not n:
        return records.DiscoveryCurve(cutoff=cutoff, n_positive=n, base_rate=base_rate)
    recall, precisions = np.array(CURVE) / 100, []
    for scores in rows.exceedance(cutoff):
        precision, reached = precision_recall(scores=scores, positive=positive)
        precisions.append(precision[np.searchsorted(reached, recall - 1e-12)])
    return records.DiscoveryCurve(
        cutoff=cutoff,
        n_positive=n,
        base_rate=base_rate,
        recall=tuple(recall.tolist()),
        precision=tuple(np.mean(precisions, axis=0).tolist()),
    )


def deferral_of(rows: ForecastRows, deferred: Bools) -> records.Deferral | None:
    """Compute what deferring (R, n) changes; ``None`` where nothing is deferred."""
    if not deferred.any():
        return None
    answered = deferred & rows.parsed
    names = [name for name, info in metrics_of(rows.split.kind).items() if info.per_row]
    remaining = (rows.repeat(r).take(np.flatnonzero(~own)) for r, own in enumerate(deferred))
    accepted = compute_metrics(map(RowSample.single, remaining), names)
    return records.Deferral(
        accepted=_metrics(accepted.overall, {}),
        deferred_accuracy=float(rows.hits[answered].mean()) if answered.any() else None,
        n_deferred_parsed=int(answered.sum()),
    )


def terms_of(split: Split, predicted_bin: str, *, seed: int, draws: int) -> dict[str, Any]:
    """State what figures are computed under: the fields of :class:`Terms`."""
    unit = split.clusters.unit if split.clusters else "rows"
    facts = {"kind": split.kind, "split": split.identity, "scheme": split.scheme}
    drawn = records.DrawnUnits(unit=unit, n=split.n_clusters)
    return {**facts, "predicted_bin": predicted_bin, "seed": seed, "draws": draws, "drawn": drawn}


def forecast_facts(forecasts: Forecasts) -> ForecastFacts:
    """State what was scored, in numbers."""
    f = forecasts
    names_bin = f.parsed & (f.stated_bins > 0)
    amounts = (f.input_tokens, f.output_tokens, f.latency_s)
    stated_amounts = [values[~np.isnan(values)] for values in amounts]
    tokens_in, tokens_out = (float(n.sum()) if len(n) else None for n in stated_amounts[:2])
    return ForecastFacts(
        # A file's name can hold bytes that are no text: JSON takes none of them.
        name=printable(f.name, 1000),
        source=printable(f.source, 5000),
        digest=f.digest,
        n_cells=f.parsed.size,
        **f.counts(),
        n_stated=int(names_bin.sum()),
        n_stated_differs=int((names_bin & (f.stated_bins != f.predicted())).sum()),
        n_raw_sum_rejected=int((~np.isnan(f.raw_sums) & ~f.parsed).sum()),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        latency_s=float(stated_amounts[2].mean()) if len(stated_amounts[2]) else None,
    )
