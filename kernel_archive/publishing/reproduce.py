"""The paper's figures, computed again from the published predictions, beside what the paper prints.

Everything goes through :mod:`kernel_archive.scoring`. Where the paper leaves a choice open, every reading is computed:
labels and centres of either bin scheme (or mixed), recovery as a mean over tasks or pooled, the most probable or the
stated bin. Which reading gives the printed figures can be seen at once.

The tables are five dataset repositories of one Hub user. They are read from a snapshot, or from a local copy of the same
layout, which is the one that the recipe ``gpu-forecasters-2026`` names: ``DIR/<repository>/<configuration>/*.parquet``.
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
from kernel_archive.scoring import Target, read_forecasts, score
from kernel_archive.splits import SPLITS

if TYPE_CHECKING:
    from kernel_archive.scoring import Forecasts, ScoreRecord

USER: Final = "codezakh"
#: The tables that are needed -> their repositories.
REPOSITORIES: Final = {
    "eval-set": "gpu-forecasters-eval-set",
    "predictions": "gpu-forecasters-eval-set-predictions",
    "discovery-pairs": "gpu-forecasters-discovery-pairs",
}
#: How the rows are labelled and a bin is turned into a speedup. ``released`` and ``paper``: labels and centres of that
#: scheme. ``mixed``: the published labels with the paper's centres, as the released code's own risk functions do.
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
    """One metric under one reading of what the paper leaves open."""

    metric: str
    labels: Labels
    choice: str  # macro or pooled for recovery, argmax or stated for the others

    @property
    def key(self) -> tuple[str, Labels, str]:
        """What tells it from other choices."""
        return self.metric, self.labels, self.choice


class Figure(Choice, frozen=True, kw_only=True):
    """The figure of one forecaster: mean and population standard deviation over the repeats, ``None`` where not defined."""

    surrogate: str
    mean: float | None
    std: float | None
    printed: Printed | None
    equal: bool | None  # both round to what is printed; None where nothing is


class Reading(Choice, frozen=True, kw_only=True):
    """How near a reading comes to the paper, over all printed forecasters that are there."""

    compared: int
    equal: int  # of those, mean and deviation equal to the printed ones after rounding
    difference: float  # mean absolute difference of the means


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
    """Everything that was computed."""

    source: str  # folder or Hub
    commits: dict[str, str]  # of the repositories, for tables from the Hub
    rows: dict[str, int]  # evaluation rows per task
    relabelled: int  # rows whose published bin is another under the paper's scheme
    mislabelled: int  # rows whose published bin is not what the released rule gives to their speedup
    forecasters: list[Forecaster]
    missing: list[str]  # configurations of predictions that are not there
    figures: list[Figure]  # under every reading
    readings: list[Reading]  # the nearest to the paper of each metric first
    deltas: list[Delta]
    base_rates: list[BaseRate]


def _local_copy(source: str | Path) -> dict[str, Path]:
    root = Path(source).expanduser()
    if not root.is_dir():
        raise ArchiveNotFoundError(f"there is no folder {root} with a copy of the published tables")
    for repository in REPOSITORIES.values():
        if not (root / repository).is_dir():
            raise ArchiveNotFoundError(f"{root} has no folder {repository}: it is not a copy of the published tables")
    return {table: root / repository for table, repository in REPOSITORIES.items()}


def _snapshots() -> tuple[dict[str, Path], dict[str, str]]:
    """The newest snapshot of each table, and the commits by repository."""
    from kernel_archive.publishing.hub import connect, hub_errors

    folders, commits = {}, {}
    for table, repository in REPOSITORIES.items():
        repo = f"{USER}/{repository}"
        with hub_errors(repo, f"fetching {repo}", state="Without a network, name a local copy of the tables"):
            api = connect()
            commits[repo] = str(api.dataset_info(repo).sha)
            folder = api.snapshot_download(repo, repo_type="dataset", revision=commits[repo], max_workers=4)
            folders[table] = Path(folder)
    return folders, commits


def _files(folder: Path, config: str) -> list[Path]:
    return sorted((folder / config).glob("*.parquet"))


def _rows(folder: Path, *columns: str) -> list[dict[str, Any]]:
    """The rows of a table's configuration ``combined``, in the order of its files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = _files(folder, "combined")
    if not files:
        there = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
        raise DataError(f"{folder} has no configuration 'combined'; it has: {', '.join(there) or 'none'}")
    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            part = pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            message = f"cannot be read: {printable(str(error), 200)}"
            raise DataError.of(code="unreadable", message=message, file=str(path)) from None
        lacking = next((name for name in columns if name not in part.column_names), None)
        if lacking is not None:
            message = "not the published layout"
            raise DataError.of(code="missing-column", message=message, file=str(path), field=lacking)
        rows += part.select(list(columns)).to_pylist()
    return rows


def _target(rows: list[dict[str, Any]], labels: Labels) -> Target:
    return Target.from_arrays(
        row_ids=[str(row["comparison_id"]) for row in rows],
        tasks=[normalise_problem(str(row["pack"])) for row in rows],
        speedups=[row["aggregated_speedup"] for row in rows],
        bins=None if labels == "paper" else [row["true_bin"] for row in rows],
        scheme="released" if labels == "released" else "paper",
    )


def _forecasts(files: list[Path], surrogate: str, target: Target, scratch: Path) -> Forecasts:
    """A forecaster's predictions; any positive sum counts, as it does in the released code."""
    path = files[0]
    if len(files) > 1:  # the scorer reads one file
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = scratch / files[0].name
        pq.write_table(pa.concat_tables([pq.read_table(f, partitioning=None) for f in files]), path)
    return read_forecasts(path, target, name=surrogate, raw_sum_bounds=(0.0, float("inf")))


def _figures(surrogate: str, labels: Labels, predicted: str, record: ScoreRecord) -> list[Figure]:
    """The figures of one forecaster with bins predicted in one way."""
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
    return figures


def _readings(figures: list[Figure]) -> list[Reading]:
    """Every reading that can be compared with the paper, the nearest of each metric first."""
    groups: dict[tuple[str, Labels, str], list[tuple[float, bool]]] = {}
    for f in figures:
        if f.printed is not None and f.mean is not None:
            groups.setdefault(f.key, []).append((abs(f.mean - f.printed.mean), bool(f.equal)))
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
    before = {f.key: f.mean for f in figures if f.surrogate == BASELINE}
    made = []
    for f in figures:
        if f.surrogate in TRAINED and f.key in before:
            untrained = before[f.key]
            delta = None if f.mean is None or untrained is None else f.mean - untrained
            made.append(Delta(surrogate=f.surrogate, metric=f.metric, labels=f.labels, choice=f.choice, delta=delta))
    return made


def _family(row: dict[str, Any]) -> str:
    said = str(row["benchmark_family"] or "").lower()
    return next(
        (name for name in ("kernelbench", "gpu_mode") if said.startswith(name)), family_of(str(row["problem_id"]))
    )


def _base_rates(folder: Path) -> list[BaseRate]:
    """Of every published discovery pair, by problem family."""
    rows = _rows(folder, "benchmark_family", "problem_id", "g_speedup")
    pairs = [(_family(row), float(row["g_speedup"])) for row in rows]
    made = []
    for family in (*sorted({family for family, _ in pairs}), "all"):
        chosen = [g for f, g in pairs if family in (f, "all")]
        for x in SPLITS["discovery"].cutoffs:
            positives = sum(1 for g in chosen if g >= x)
            made.append(
                BaseRate(family=family, cutoff=x, pairs=len(chosen), positives=positives, rate=positives / len(chosen))
            )
    return made


def reproduce(source: str | Path | None = None) -> Reproduction:
    """Compute the paper's Table 1, the effect of training and the discovery base rates, under every reading.

    The published tables are those of a local copy, one folder per repository, or of the Hub when none is given.

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
    known = {**SURROGATES, **TRAINED}
    figures: list[Figure] = []
    forecasters: list[Forecaster] = []
    with tempfile.TemporaryDirectory() as scratch:
        for surrogate, title in known.items():
            files = _files(folders["predictions"], surrogate)
            for labels, target in targets.items() if files else ():
                forecasts = _forecasts(files, surrogate, target, Path(scratch))
                for predicted in PREDICTED:
                    record = score(target, forecasts, draws=0, predicted_bin=predicted)
                    figures += _figures(surrogate, labels, predicted, record)
                    if labels == "released" and predicted == "argmax":
                        forecasters.append(_read_facts(surrogate, title, forecasts, record))
    present = {f.surrogate for f in forecasters}
    return Reproduction(
        source=endpoint() if source is None else str(Path(source).expanduser()),
        commits=commits,
        rows={task: len(at) for task, at in released.task_rows.items()},
        relabelled=int((released.bins != targets["paper"].bins).sum()),
        mislabelled=int((released.bins != assign_bins(released.speedups, "released")).sum()),
        forecasters=forecasters,
        missing=[name for name in known if name not in present],
        figures=figures,
        readings=_readings(figures),
        deltas=_deltas(figures),
        base_rates=_base_rates(folders["discovery-pairs"]),
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
