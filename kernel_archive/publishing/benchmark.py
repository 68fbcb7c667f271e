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
    # Where the labels, and with them the cells, are withheld, nobody says of how many tasks the rows are.
    cells: dict[str, list[int]] = facts.facts.get("cells", {})
    of_tasks = f" of {sum(any(counts) for counts in cells.values())} tasks" if cells else ""
    made = {
        "name": title,
        "description": (
            "Forecast how much faster or slower a candidate GPU kernel runs than a reference, as probabilities over "
            f"eight speedup bins. {facts.rows} pairs{of_tasks}, "
            f"version {manifest.version}. Scores: speedup recovered in % (higher is better), expected calibration "
            "error and forecast error in x (lower is better), average precision of discoveries (higher is better)."
        ),
        "evaluation_framework": FRAMEWORK,
        "tasks": tasks,
    }
    return dump_yaml(made).encode()


def eval_results(
    record: ScoreRecord,
    *,
    dataset: str,
    revision: str | None = None,
    source_url: str | None = None,
    notes: str | None = None,
) -> bytes:
    """A score as the YAML that goes into a model repository under ``.eval_results/``: the mean of each headline metric that is defined.

    ``revision`` is the commit or tag of the dataset, ``source_url`` where the forecasts or their description are; notes are
    details of the set-up, for example ``3 repeats``, and made from the score when not given.

    Raises:
        DataError: no headline metric of the score is defined.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    facts = record.forecasts
    if not notes:
        repeats = f"{facts.n_repeats} repeat{'s' if facts.n_repeats != 1 else ''}"
        digest = record.target.split_digest[:19]
        notes = f"{repeats}, coverage {facts.coverage:.3f}, bins {record.scheme}, digest {digest}, metrics v{record.metric_version}"
    entries = [
        EvalResultEntry(
            dataset_id=dataset,
            task_id=task_id(metric, record.target.table),
            value=round(figure.mean, 6),
            dataset_revision=revision,
            notes=notes,
            source_url=source_url,
        )
        for metric, figure in record.headline.items()
        if figure.mean is not None
    ]
    if not entries:
        raise DataError("no headline metric of this score is defined, so there is nothing to publish")
    return dump_yaml(eval_result_entries_to_yaml(entries)).encode()
