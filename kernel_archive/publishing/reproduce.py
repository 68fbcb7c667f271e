"""The paper's figures, computed again from the published predictions, beside what the paper prints.

Everything goes through :mod:`kernel_archive.scoring`. Where the paper leaves a choice open, every reading is computed:
labels and centres of either bin scheme (or mixed), recovery as a mean over tasks or pooled, the most probable or the
stated bin. Which reading gives the printed figures can be seen at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.bins import assign_bins
from kernel_archive.publishing.published import LABELS, Labels, open_published
from kernel_archive.scoring import read_forecasts, score
from kernel_archive.splits import SPLITS

if TYPE_CHECKING:
    from kernel_archive.publishing.published import PublishedTables
    from kernel_archive.scoring import Forecasts, ScoreRecord, Target

PREDICTED: Final[tuple[Literal["argmax", "stated"], ...]] = ("argmax", "stated")
#: Configuration of the published predictions -> the name that the paper prints.
SURROGATES: Final = {
    "gemini3_flash": "Gemini-3 Flash",
    "gpt_oss_120b": "GPT-OSS-120B",
    "gpt_oss_20b_untrained": "GPT-OSS-20B",
    "deepseek_v4": "DeepSeek-V4",
}
BASELINE: Final = "gpt_oss_20b_untrained"
TRAINED: Final = {
    "trained_correctness": "RL, correctness",
    "trained_correctness_brier": "RL, + Brier",
    "trained_correctness_crps": "RL, + CRPS",
}
METRICS: Final = ("speedup_recovered", "ece", "forecast_error")


class Printed(msgspec.Struct, frozen=True):
    """A figure of the paper's Table 1: mean, standard deviation, and the decimals it is printed with."""

    mean: float
    std: float
    decimals: int


#: Surrogate -> metric -> the figure in the paper's Table 1 (arXiv 2605.31464).
PRINTED: Final[dict[str, dict[str, Printed]]] = {
    name: {
        metric: Printed(mean, std, 2 if metric == "speedup_recovered" else 3)
        for metric, (mean, std) in zip(METRICS, figures, strict=True)
    }
    for name, figures in {
        "gemini3_flash": ((93.12, 0.97), (0.624, 0.002), (0.421, 0.021)),
        "gpt_oss_120b": ((86.85, 2.51), (0.479, 0.005), (0.632, 0.029)),
        "gpt_oss_20b_untrained": ((82.88, 3.85), (0.441, 0.011), (0.643, 0.011)),
        "deepseek_v4": ((79.86, 3.98), (0.401, 0.009), (0.805, 0.023)),
    }.items()
}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One metric under one reading of what the paper leaves open.

    Attributes:
        metric: ``speedup_recovered``, ``ece`` or ``forecast_error``.
        labels: ``released``, ``paper`` or ``mixed``.
        choice: ``macro`` or ``pooled`` for recovery, ``argmax`` or ``stated`` for the others.
    """

    metric: str
    labels: Labels
    choice: str


class Figure(Choice, frozen=True, kw_only=True):
    """The figure of one forecaster.

    Attributes:
        surrogate: configuration of the predictions.
        mean: over the repeats; ``None`` where it is not defined.
        std: population standard deviation over the repeats.
        printed: what the paper prints, if it does.
        equal: both mean and deviation round to what is printed; ``None`` where nothing is printed.
    """

    surrogate: str
    mean: float | None
    std: float | None
    printed: Printed | None
    equal: bool | None


class Reading(Choice, frozen=True, kw_only=True):
    """How near a reading comes to the paper, over all printed forecasters that are there.

    Attributes:
        compared: forecasters compared.
        equal: of those, mean and deviation equal to the printed ones after rounding.
        difference: mean absolute difference of the means.
    """

    compared: int
    equal: int
    difference: float


class Delta(Choice, frozen=True, kw_only=True):
    """A trained forecaster's mean less the untrained one's; ``None`` where either is not defined."""

    surrogate: str
    delta: float | None


class BaseRate(msgspec.Struct, frozen=True, kw_only=True):
    """Discoveries among the pairs of a family (``all``: every pair) at a cutoff."""

    family: str
    cutoff: float
    pairs: int
    positives: int
    rate: float


class Forecaster(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one forecaster: repeats, share parsed, stated bins that are not the most probable one."""

    surrogate: str
    title: str
    n_repeats: int
    coverage: float
    parse_rate: float | None
    n_stated_differs: int
    n_raw_sum_outside: int


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was computed.

    Attributes:
        source: folder or Hub.
        commits: repository -> commit, for tables from the Hub.
        rows: evaluation rows per task.
        relabelled: rows whose published bin is another under the paper's scheme.
        mislabelled: rows whose published bin is not what the released rule gives to their speedup.
        forecasters: what was read.
        missing: configurations that are not there.
        figures: every figure under every reading.
        readings: every reading against the paper, the nearest of each metric first.
        deltas: effect of training.
        base_rates: discoveries.
    """

    source: str
    commits: dict[str, str]
    rows: dict[str, int]
    relabelled: int
    mislabelled: int
    forecasters: list[Forecaster]
    missing: list[str]
    figures: list[Figure]
    readings: list[Reading]
    deltas: list[Delta]
    base_rates: list[BaseRate]

    def nearest(self, metric: str) -> Reading | None:
        """The reading of a metric that comes nearest to the paper."""
        return next((r for r in self.readings if r.metric == metric and r.compared), None)


def _merged(files: list[Path], folder: Path) -> Path:
    """One file of all shards, since the scorer reads one."""
    if len(files) == 1:
        return files[0]
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = folder / files[0].name
    pq.write_table(pa.concat_tables([pq.read_table(f, partitioning=None) for f in files]), out)
    return out


def _forecasts(tables: PublishedTables, surrogate: str, target: Target, scratch: Path) -> Forecasts:
    """A forecaster's predictions; any positive sum counts, as it does in the released code."""
    path = _merged(tables.files("predictions", surrogate), scratch)
    return read_forecasts(path, target, name=surrogate, raw_sum_bounds=(0.0, float("inf")))


def _figures(
    surrogate: str, target: Target, labels: Labels, forecasts: Forecasts, predicted: str
) -> tuple[list[Figure], ScoreRecord]:
    """The figures of one forecaster with bins predicted in one way, and the score that they are of."""
    record = score(target, forecasts, draws=0, predicted_bin=predicted)  # type: ignore[arg-type]
    found = [(metric, predicted, record.metrics[metric]) for metric in ("ece", "forecast_error")]
    if predicted == "argmax":
        found.append(("speedup_recovered", "macro", record.metrics["speedup_recovered"]))
        found.append(("speedup_recovered", "pooled", record.metrics["speedup_recovered_pooled"]))
    figures = []
    for metric, choice, value in found:
        printed = PRINTED.get(surrogate, {}).get(metric)
        equal = None
        if printed is not None:
            pairs = ((value.mean, printed.mean), (value.std, printed.std))
            equal = all(ours is not None and round(ours, printed.decimals) == theirs for ours, theirs in pairs)
        figures.append(
            Figure(
                surrogate=surrogate,
                metric=metric,
                labels=labels,
                choice=choice,
                mean=value.mean,
                std=value.std,
                printed=printed,
                equal=equal,
            )
        )
    return figures, record


def _readings(figures: list[Figure]) -> list[Reading]:
    """Every reading that can be compared with the paper, the nearest of each metric first."""
    groups: dict[tuple[str, Labels, str], list[tuple[float, bool]]] = {}
    for f in figures:
        if f.printed is not None and f.mean is not None:
            apart = abs(f.mean - f.printed.mean), bool(f.equal)
            groups.setdefault((f.metric, f.labels, f.choice), []).append(apart)
    made = [
        Reading(
            metric=metric,
            labels=labels,
            choice=choice,
            compared=len(found),
            equal=sum(equal for _, equal in found),
            difference=fmean(distance for distance, _ in found),
        )
        for (metric, labels, choice), found in groups.items()
    ]
    return sorted(made, key=lambda r: (METRICS.index(r.metric), r.difference, -r.equal, LABELS.index(r.labels)))


def _deltas(figures: list[Figure]) -> list[Delta]:
    before = {(f.metric, f.labels, f.choice): f.mean for f in figures if f.surrogate == BASELINE}
    made = []
    for f in figures:
        key = f.metric, f.labels, f.choice
        if f.surrogate in TRAINED and key in before:
            untrained = before[key]
            delta = None if f.mean is None or untrained is None else f.mean - untrained
            made.append(Delta(surrogate=f.surrogate, metric=f.metric, labels=f.labels, choice=f.choice, delta=delta))
    return made


def _base_rates(pairs: list[tuple[str, float]]) -> list[BaseRate]:
    families = sorted({family for family, _ in pairs})
    made = []
    for family in (*families, "all"):
        chosen = [g for f, g in pairs if family in (f, "all")]
        for x in SPLITS["discovery"].cutoffs:
            positives = sum(1 for g in chosen if g >= x)
            made.append(
                BaseRate(family=family, cutoff=x, pairs=len(chosen), positives=positives, rate=positives / len(chosen))
            )
    return made


def reproduce(source: str | Path | None = None) -> Reproduction:
    """Compute the paper's Table 1, the effect of training and the discovery base rates from the published tables.

    Args:
        source: a local copy of the tables, one folder per repository; the Hub when not given.

    Returns:
        Every figure under every reading, beside the printed ones.

    Raises:
        ArchiveNotFoundError: the folder has no such tables.
        DataError: a table is not in the published layout.
        HubError: the Hub can't be reached.
    """
    tables = open_published(source, ("eval-set", "predictions", "discovery-pairs"))
    targets = {labels: tables.eval_target(labels) for labels in LABELS}
    released = targets["released"]
    known = {**SURROGATES, **TRAINED}
    figures: list[Figure] = []
    forecasters: list[Forecaster] = []
    with tempfile.TemporaryDirectory() as scratch:
        for surrogate, title in known.items():
            if not tables.has("predictions", surrogate):
                continue
            for labels, target in targets.items():
                forecasts = _forecasts(tables, surrogate, target, Path(scratch))
                for predicted in PREDICTED:
                    found, record = _figures(surrogate, target, labels, forecasts, predicted)
                    figures += found
                    if labels == "released" and predicted == "argmax":
                        forecasters.append(_read_facts(surrogate, title, forecasts, record))
    present = {f.surrogate for f in forecasters}
    pairs = tables.discovery_pairs()
    return Reproduction(
        source=str(tables.root),
        commits=tables.commits,
        rows={task: len(at) for task, at in released.task_rows.items()},
        relabelled=int((released.bins != targets["paper"].bins).sum()),
        mislabelled=int((released.bins != assign_bins(released.speedups, "released")).sum()),
        forecasters=forecasters,
        missing=[name for name in known if name not in present],
        figures=figures,
        readings=_readings(figures),
        deltas=_deltas(figures),
        base_rates=_base_rates(pairs),
    )


def _read_facts(surrogate: str, title: str, forecasts: Forecasts, record: ScoreRecord) -> Forecaster:
    sums = forecasts.raw_sums[forecasts.parsed]
    return Forecaster(
        surrogate=surrogate,
        title=title,
        n_repeats=forecasts.n_repeats,
        coverage=record.forecasts.coverage,
        parse_rate=record.forecasts.parse_rate,
        n_stated_differs=record.forecasts.n_stated_differs,
        n_raw_sum_outside=int(((sums < 0.5) | (sums > 1.5)).sum()),
    )
