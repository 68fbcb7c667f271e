"""Compute the paper's Table 1 from its published predictions, beside the printed figures.

Where the paper leaves a choice open, every reading is computed. The tables are dataset
repositories of one Hub user, or a local copy: ``DIR/<repository>/<configuration>/*.parquet``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.errors import ArchiveNotFoundError, DataError, printable
from kernel_archive.problems import normalise_problem
from kernel_archive.publishing.hub import connect, hub_errors
from kernel_archive.scoring import Score, Split, read_forecasts, score
from kernel_archive.scoring.cues import program_cues
from kernel_archive.scoring.split import RowFacts
from kernel_archive.toml_files import toml_beside

USER: Final = "codezakh"
EVAL_SET: Final = "gpu-forecasters-eval-set"
PREDICTIONS: Final = "gpu-forecasters-eval-set-predictions"
#: Metric of Table 1 -> its readings: recovery per task or pooled, most probable or stated bin.
READINGS: Final = {
    "speedup_recovered": ("macro", "pooled"),
    "ece": ("argmax", "stated"),
    "forecast_error": ("argmax", "stated"),
}
#: Configuration of the predictions -> title in the paper, and mean and deviation of each metric.
FORECASTERS: Final = toml_beside(__file__, "paper.toml")


class Figure(NamedTuple):
    """Mean and population standard deviation over the repeats, ``None`` where not defined."""

    mean: float | None
    std: float | None = None


class PaperReading(msgspec.Struct, frozen=True):
    """A metric under one reading of what the paper leaves open."""

    metric: str
    labels: str
    choice: str  # macro or pooled for recovery, argmax or stated for the others
    figures: dict[str, Figure]  # of forecasters, a random order, the best count
    distance: float | None  # mean absolute difference from the printed means


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was computed; ``readings`` has each metric's nearest to the paper first."""

    rows: dict[str, int]  # evaluation rows per task
    missing: list[str]  # forecasters whose predictions are not there
    readings: list[PaperReading]


def printed(forecaster: str, metric: str) -> Figure:
    """Look up a figure of the paper; both numbers are ``None`` where none is printed."""
    return Figure(*FORECASTERS[forecaster].get(metric, (None, None)))


def reproduce(source: str | Path | None = None) -> Reproduction:
    """Compute the paper's Table 1 under every reading.

    ``source`` is a local copy of the published tables; without one they come from the Hub.

    Raises:
        ArchiveNotFoundError: the folder has no such tables.
        DataError: a table is not in the published layout.
        HubError: the Hub can't be reached.
    """
    splits, folder = _splits(_folder(source, EVAL_SET)), _folder(source, PREDICTIONS)
    tables = {name: _read(folder, name) for name in FORECASTERS}
    readings = []
    for labels, split in splits.items():
        forecasts = {
            # As in the released code, any positive sum counts.
            name: read_forecasts(table, split, name=name, raw_sum_bounds=(0.0, float("inf")))
            for name, table in tables.items()
            if table is not None
        }
        scores = {
            (name, rule): score(split, own, draws=0, predicted_bin=rule)
            for name, own in forecasts.items()
            for rule in ("argmax", "stated")
        }
        for metric, choices in READINGS.items():
            readings += [_reading(scores, metric, labels, choice) for choice in choices]
    order = list(READINGS)
    return Reproduction(
        rows={task: len(places) for task, places in splits["paper"].task_rows.items()},
        missing=[name for name, table in tables.items() if table is None],
        readings=sorted(readings, key=lambda r: (order.index(r.metric), r.distance or 0.0)),
    )


def _reading(
    scores: dict[tuple[str, str], Score], metric: str, labels: str, choice: str
) -> PaperReading:
    """Take one metric from the scores of all forecasters; the controls are the same in each."""
    predicted_bin = "stated" if choice == "stated" else "argmax"
    field = f"{metric}_pooled" if choice == "pooled" else metric
    figures, distances = {}, []
    for (name, rule), record in scores.items():
        if rule == predicted_bin:
            figures["random order"] = Figure(record.uniform[field])
            figures["best control"] = Figure(record.control(field))
            figures[name] = Figure(record.metrics[field].mean, record.metrics[field].std)
            mean, paper_mean = figures[name].mean, printed(name, metric).mean
            if mean is not None and paper_mean is not None:
                distances.append(abs(mean - paper_mean))
    distance = sum(distances) / len(distances) if distances else None
    return PaperReading(metric, labels, choice, figures, distance)


def _folder(source: str | Path | None, repository: str) -> Path:
    """Find a table in a local copy, or fetch its newest snapshot from the Hub."""
    if source is None:
        repo = f"{USER}/{repository}"
        with hub_errors(f"fetching {repo}", state="Without a network, name a local copy"):
            return Path(connect().snapshot_download(repo, repo_type="dataset", max_workers=4))
    folder = Path(source).expanduser() / repository
    if not folder.is_dir():
        raise ArchiveNotFoundError(f"no folder {folder}: name a copy of the published tables")
    return folder


def _read(folder: Path, configuration: str) -> pa.Table | None:
    """Read a configuration of a table, ``None`` where it is not there."""
    files = sorted((folder / configuration).glob("*.parquet"))
    try:
        parts = [pq.read_table(path, partitioning=None) for path in files]
        return pa.concat_tables(parts) if parts else None
    except (pa.ArrowException, OSError) as error:
        message = f"cannot be read: {printable(error, 200)}"
        raise DataError.of(code="unreadable", message=message, file=str(folder)) from None


def _splits(folder: Path) -> dict[str, Split]:
    """Read the evaluation rows under each kind of labels.

    ``mixed``: the published labels with the paper's centres, as in the released risk functions.
    """
    table = _read(folder, "combined")
    columns = ["comparison_id", "pack", "aggregated_speedup", "true_bin", "candidate_code"]
    lacking = columns if table is None else [c for c in columns if c not in table.column_names]
    if table is None or lacking:
        message = "not the published layout: configuration 'combined' lacks a column"
        raise DataError.of(
            code="missing-column", message=message, file=str(folder), field=lacking[0]
        )
    ids, packs, speedups, bins, codes = (table[name].to_pylist() for name in columns)
    row_facts = replace(RowFacts.plain(len(ids)), cues=program_cues(codes))
    tasks = [normalise_problem(pack) for pack in packs]

    split = partial(
        Split.from_arrays, row_ids=ids, tasks=tasks, speedups=speedups, row_facts=row_facts
    )
    return {
        "released": split(scheme="released", bins=bins),
        "paper": split(scheme="paper"),
        "mixed": split(scheme="paper", bins=bins),
    }
