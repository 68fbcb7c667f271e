"""Compute the paper's figures again from the published predictions, beside the printed ones.

Where the paper leaves a choice open, every reading is computed: labels and centres of either bin
scheme (or mixed), recovery per task or pooled, the most probable or the stated bin.

The tables are dataset repositories of one Hub user, read from a snapshot or from a local copy of
the same layout: ``DIR/<repository>/<configuration>/*.parquet``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kernel_archive.bins import assign_bins
from kernel_archive.errors import ArchiveNotFoundError, DataError, printable
from kernel_archive.problems import family_of, normalise_problem
from kernel_archive.scoring import Split, read_forecasts, score
from kernel_archive.splits import SPLITS

if TYPE_CHECKING:
    from kernel_archive.scoring import Forecasts, Score

USER: Final = "codezakh"
#: The tables that are needed -> their repositories.
REPOSITORIES: Final = {
    "eval-set": "gpu-forecasters-eval-set",
    "predictions": "gpu-forecasters-eval-set-predictions",
    "discovery-pairs": "gpu-forecasters-discovery-pairs",
}
#: How rows are labelled and a bin becomes a speedup. ``released`` and ``paper``: labels and centres
#: of that scheme. ``mixed``: the published labels with the paper's centres, as the released code's
#: own risk functions do.
Labels = Literal["released", "paper", "mixed"]
LABELS: Final[tuple[Labels, ...]] = ("released", "paper", "mixed")
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
    """A figure of the paper's Table 1: mean, standard deviation, and decimals in print."""

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


class PaperFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one forecaster under one reading of what the paper leaves open.

    Mean and population standard deviation are over the repeats, ``None`` where not defined.
    """

    surrogate: str
    metric: str
    labels: Labels
    choice: str  # macro or pooled for recovery, argmax or stated for the others
    mean: float | None
    std: float | None
    printed: Printed | None
    equal: bool | None  # both round to what is printed; None where nothing is
    delta: float | None = None  # of a trained forecaster: its mean less the untrained one's

    @property
    def reading(self) -> tuple[str, Labels, str]:
        """What tells one reading from another."""
        return self.metric, self.labels, self.choice


class PaperReading(msgspec.Struct, frozen=True, kw_only=True):
    """How near a reading comes to the paper, over all printed forecasters that are there."""

    metric: str
    labels: Labels
    choice: str
    compared: int
    equal: int  # of those, mean and deviation equal to the printed ones after rounding
    difference: float  # mean absolute difference of the means


class BaseRate(msgspec.Struct, frozen=True, kw_only=True):
    """Discoveries among the pairs of a family (``all``: every pair) at a cutoff."""

    family: str
    cutoff: float
    pairs: int
    positives: int
    rate: float


class PublishedForecaster(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one forecaster's predictions."""

    surrogate: str
    title: str
    n_repeats: int
    coverage: float
    parse_rate: float | None
    n_stated_differs: int  # stated bins that are not the most probable one
    n_raw_sum_outside: int


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was computed."""

    source: str  # folder or Hub
    commits: dict[str, str]  # of the repositories, for tables from the Hub
    rows: dict[str, int]  # evaluation rows per task
    relabelled: int  # rows whose published bin is another under the paper's scheme
    mislabelled: int  # rows whose published bin is not what the released rule gives
    forecasters: list[PublishedForecaster]
    missing: list[str]  # configurations of predictions that are not there
    figures: list[PaperFigure]  # under every reading
    readings: list[PaperReading]  # the nearest to the paper of each metric first
    base_rates: list[BaseRate]


def _local_copy(source: str | Path) -> dict[str, Path]:
    root = Path(source).expanduser()
    if not root.is_dir():
        raise ArchiveNotFoundError(f"there is no folder {root} with a copy of the published tables")
    for repository in REPOSITORIES.values():
        if not (root / repository).is_dir():
            raise ArchiveNotFoundError(
                f"{root} has no folder {repository}: it is not a copy of the published tables"
            )
    return {table: root / repository for table, repository in REPOSITORIES.items()}


def _snapshots() -> tuple[dict[str, Path], dict[str, str]]:
    """Fetch the newest snapshot of each table; folders by table, commits by repository."""
    from kernel_archive.publishing.hub import connect, hub_errors

    folders, commits = {}, {}
    for table, repository in REPOSITORIES.items():
        repo = f"{USER}/{repository}"
        state = "Without a network, name a local copy of the tables"
        with hub_errors(repo, f"fetching {repo}", state=state):
            api = connect()
            commits[repo] = str(api.dataset_info(repo).sha)
            folder = api.snapshot_download(
                repo, repo_type="dataset", revision=commits[repo], max_workers=4
            )
            folders[table] = Path(folder)
    return folders, commits


def _files(folder: Path, config: str) -> list[Path]:
    return sorted((folder / config).glob("*.parquet"))


def _rows(folder: Path, *columns: str) -> list[dict[str, Any]]:
    """Read columns of a table's configuration ``combined``, in the order of its files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = _files(folder, "combined")
    if not files:
        configurations = sorted(p.name for p in folder.iterdir() if p.is_dir())
        listed = ", ".join(name for name in configurations if name[0] != ".") or "none"
        raise DataError(f"{folder} has no configuration 'combined'; it has: {listed}")
    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            part = pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            message = f"cannot be read: {printable(str(error), 200)}"
            raise DataError.of(code="unreadable", message=message, file=str(path)) from None
        missing = [name for name in columns if name not in part.column_names]
        if missing:
            message = "not the published layout"
            raise DataError.of(
                code="missing-column", message=message, file=str(path), field=missing[0]
            )
        rows += part.select(list(columns)).to_pylist()
    return rows


def _target(rows: list[dict[str, Any]], labels: Labels) -> Split:
    return Split.from_arrays(
        row_ids=[str(row["comparison_id"]) for row in rows],
        tasks=[normalise_problem(str(row["pack"])) for row in rows],
        speedups=[row["aggregated_speedup"] for row in rows],
        bins=None if labels == "paper" else [row["true_bin"] for row in rows],
        scheme="released" if labels == "released" else "paper",
    )


def _forecasts(files: list[Path], surrogate: str, target: Split, scratch: Path) -> Forecasts:
    """Read a forecaster's predictions; as in the released code any positive sum counts."""
    path = files[0]
    if len(files) > 1:  # the scorer reads one file
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = scratch / files[0].name
        pq.write_table(pa.concat_tables([pq.read_table(f, partitioning=None) for f in files]), path)
    return read_forecasts(path, target, name=surrogate, raw_sum_bounds=(0.0, float("inf")))


def _equals_print(figure: Any, printed: Printed | None) -> bool | None:
    if printed is None:
        return None
    if figure.mean is None or figure.std is None:
        return False
    rounded = round(figure.mean, printed.decimals), round(figure.std, printed.decimals)
    return rounded == (printed.mean, printed.std)


def _figures(surrogate: str, labels: Labels, predicted: str, record: Score) -> list[PaperFigure]:
    """Take the paper's metrics from a score with bins predicted in one way."""
    wanted = [("ece", predicted, "ece"), ("forecast_error", predicted, "forecast_error")]
    if predicted == "argmax":
        wanted.append(("speedup_recovered", "macro", "speedup_recovered"))
        wanted.append(("speedup_recovered", "pooled", "speedup_recovered_pooled"))
    figures = []
    for metric, choice, name in wanted:
        figure, printed = record.metrics[name], PRINTED.get(surrogate, {}).get(metric)
        figures.append(
            PaperFigure(
                surrogate=surrogate,
                metric=metric,
                labels=labels,
                choice=choice,
                mean=figure.mean,
                std=figure.std,
                printed=printed,
                equal=_equals_print(figure, printed),
            )
        )
    return figures


def _with_deltas(figures: list[PaperFigure]) -> list[PaperFigure]:
    """Fill in what training changed, for the trained forecasters."""
    untrained = {f.reading: f.mean for f in figures if f.surrogate == BASELINE}

    def delta(figure: PaperFigure) -> float | None:
        before = untrained.get(figure.reading)
        if figure.surrogate not in TRAINED or figure.mean is None or before is None:
            return None
        return figure.mean - before

    return [msgspec.structs.replace(figure, delta=delta(figure)) for figure in figures]


def _readings(figures: list[PaperFigure]) -> list[PaperReading]:
    """List every reading that can be compared with the paper, each metric's nearest first."""
    groups: dict[tuple[str, Labels, str], list[tuple[float, bool]]] = {}
    for figure in figures:
        if figure.printed is not None and figure.mean is not None:
            distance = abs(figure.mean - figure.printed.mean)
            groups.setdefault(figure.reading, []).append((distance, bool(figure.equal)))
    readings = [
        PaperReading(
            metric=metric,
            labels=labels,
            choice=choice,
            compared=len(group),
            equal=sum(equal for _, equal in group),
            difference=fmean(distance for distance, _ in group),
        )
        for (metric, labels, choice), group in groups.items()
    ]
    return sorted(
        readings,
        key=lambda r: (METRICS.index(r.metric), r.difference, -r.equal, LABELS.index(r.labels)),
    )


def _family(row: dict[str, Any]) -> str:
    stated = str(row["benchmark_family"] or "").lower()
    for name in ("kernelbench", "gpu_mode"):
        if stated.startswith(name):
            return name
    return family_of(str(row["problem_id"]))


def _base_rates(folder: Path) -> list[BaseRate]:
    """Count discoveries among the published pairs, by problem family."""
    rows = _rows(folder, "benchmark_family", "problem_id", "g_speedup")
    speedups: dict[str, list[float]] = {}
    for row in rows:
        speedups.setdefault(_family(row), []).append(float(row["g_speedup"]))
    families = {name: speedups[name] for name in sorted(speedups)}
    families["all"] = [g for group in speedups.values() for g in group]
    rates = []
    for family, group in families.items():
        for cutoff in SPLITS["discovery"].cutoffs:
            positives = sum(g >= cutoff for g in group)
            rates.append(
                BaseRate(
                    family=family,
                    cutoff=cutoff,
                    pairs=len(group),
                    positives=positives,
                    rate=positives / len(group),
                )
            )
    return rates


def reproduce(source: str | Path | None = None) -> Reproduction:
    """Compute the paper's Table 1, the effect of training and base rates, under every reading.

    ``source`` is a local copy of the published tables, one folder per repository; without one they
    come from the Hub.

    Raises:
        ArchiveNotFoundError: the folder has no such tables.
        DataError: a table is not in the published layout.
        HubError: the Hub can't be reached.
    """
    from kernel_archive.connections import endpoint

    folders, commits = _snapshots() if source is None else (_local_copy(source), {})
    rows = _rows(folders["eval-set"], "comparison_id", "pack", "aggregated_speedup", "true_bin")
    targets = {labels: _target(rows, labels) for labels in LABELS}
    released = targets["released"]
    titles = {**SURROGATES, **TRAINED}
    figures: list[PaperFigure] = []
    forecasters: list[PublishedForecaster] = []
    with tempfile.TemporaryDirectory() as scratch:
        for surrogate, title in titles.items():
            files = _files(folders["predictions"], surrogate)
            for labels, target in targets.items() if files else ():
                forecasts = _forecasts(files, surrogate, target, Path(scratch))
                for predicted in PREDICTED:
                    record = score(target, forecasts, draws=0, predicted_bin=predicted)
                    figures += _figures(surrogate, labels, predicted, record)
                    if labels == "released" and predicted == "argmax":
                        forecasters.append(_facts(surrogate, title, forecasts, record))
    present = {f.surrogate for f in forecasters}
    return Reproduction(
        source=endpoint() if source is None else str(Path(source).expanduser()),
        commits=commits,
        rows={task: len(rows_of) for task, rows_of in released.task_rows.items()},
        relabelled=int((released.bins != targets["paper"].bins).sum()),
        mislabelled=int((released.bins != assign_bins(released.speedups, "released")).sum()),
        forecasters=forecasters,
        missing=[name for name in titles if name not in present],
        figures=_with_deltas(figures),
        readings=_readings(figures),
        base_rates=_base_rates(folders["discovery-pairs"]),
    )


def _facts(surrogate: str, title: str, forecasts: Forecasts, record: Score) -> PublishedForecaster:
    sums = forecasts.raw_sums[forecasts.parsed]
    return PublishedForecaster(
        surrogate=surrogate,
        title=title,
        n_repeats=forecasts.n_repeats,
        coverage=record.forecasts.coverage,
        parse_rate=record.forecasts.parse_rate,
        n_stated_differs=record.forecasts.n_stated_differs,
        n_raw_sum_outside=int(((sums < 0.5) | (sums > 1.5)).sum()),
    )
