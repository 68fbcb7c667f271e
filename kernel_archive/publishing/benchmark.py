"""The Hub's benchmark files: ``eval.yaml`` of the dataset, and a score as ``.eval_results`` YAML of a model.

The Hub shows one number per task, so that every headline metric is a task of its own. Our own score records stay the
source; these files are made from them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kernel_archive.errors import DataError
from kernel_archive.publishing.templates import dump_yaml
from kernel_archive.scoring.metrics import HEADLINE
from kernel_archive.splits import FORECAST_SPLITS, split_of

if TYPE_CHECKING:
    from kernel_archive.archive.manifest import SplitFacts
    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.record import ScoreRecord

#: Identifier of the harness that computes the scores.
FRAMEWORK: Final = "kernel-archive"


def task_id(metric: str, table: str = "eval") -> str:
    """A metric's task id on the Hub: lower case, digits and underscores.

    The canonical split of a kind has the plain names; another one of the same kind has its own name in front.

    >>> task_id("average_precision_1.25"), task_id("speedup_recovered", "eval_cuda")
    ('average_precision_1_25', 'eval_cuda_speedup_recovered')
    """
    split = split_of(table)
    name = metric if split.name == split.kind else f"{split.name}_{metric}"
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def eval_yaml(archive: Archive, title: str) -> bytes:
    """``eval.yaml``: what the dataset is as a benchmark, one task per headline metric of each split that it has."""
    manifest = archive.manifest
    facts = manifest.splits["eval"]
    tasks = [
        {"id": task_id(metric, split.table), "config": split.table, "split": "test"}
        for split in FORECAST_SPLITS.values()
        if split.table in manifest.splits and manifest.splits[split.table].rows
        for metric in HEADLINE[split.kind]
    ]
    made = {
        "name": title,
        "description": (
            "Forecast how much faster or slower a candidate GPU kernel runs than a reference, as probabilities over "
            f"eight speedup bins. {facts.rows} pairs{_tasks(facts)}, "
            f"version {manifest.version}. Scores: speedup recovered in % (higher is better), expected calibration "
            "error and forecast error in x (lower is better), average precision of discoveries (higher is better)."
        ),
        "evaluation_framework": FRAMEWORK,
        "tasks": tasks,
    }
    return dump_yaml(made).encode()


def _tasks(facts: SplitFacts) -> str:
    """How many tasks the rows are of; nothing where the labels, and with them the cells, are withheld."""
    cells: dict[str, list[int]] = facts.facts.get("cells", {})
    return f" of {sum(1 for counts in cells.values() if any(counts))} tasks" if cells else ""


def eval_results(
    record: ScoreRecord,
    *,
    dataset: str,
    revision: str | None = None,
    source_url: str | None = None,
    notes: str | None = None,
) -> bytes:
    """A score as the YAML that goes into a model repository under ``.eval_results/``.

    Args:
        record: the score.
        dataset: name of the benchmark dataset on the Hub.
        revision: its commit or tag; the version of the scored archive when not given.
        source_url: where the forecasts or their description are.
        notes: details of the set-up, for example ``3 repeats``.

    Returns:
        YAML, one entry per headline metric that is defined, its mean over the repeats.

    Raises:
        DataError: no headline metric of the score is defined.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries = []
    for metric, figure in record.headline.items():
        if figure.mean is None:
            continue
        entries.append(
            EvalResultEntry(
                dataset_id=dataset,
                task_id=task_id(metric, record.target.table),
                value=round(figure.mean, 6),
                dataset_revision=revision,
                notes=notes or _notes(record),
                source_url=source_url,
            )
        )
    if not entries:
        raise DataError("no headline metric of this score is defined, so there is nothing to publish")
    made = eval_result_entries_to_yaml(entries)
    return dump_yaml(made).encode()


def _notes(record: ScoreRecord) -> str:
    facts = record.forecasts
    repeats = f"{facts.n_repeats} repeat{'s' if facts.n_repeats != 1 else ''}"
    digest = record.target.split_digest[:19]
    shown = f"{repeats}, coverage {facts.coverage:.3f}, bins {record.scheme}"
    return f"{shown}, digest {digest}, metrics v{record.metric_version}"
