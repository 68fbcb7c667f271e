"""Write ``eval.yaml``, which tells the Hub that the dataset is a benchmark.

The Hub shows one number per task, so every headline metric is a task of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kernel_archive.publishing.templates import dump_yaml
from kernel_archive.scoring.metrics import HEADLINE
from kernel_archive.splits import FORECAST_SPLITS, split_of

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive

#: Identifier of the harness that computes the scores.
FRAMEWORK: Final = "kernel-archive"


def task_id(metric: str, table: str = "eval") -> str:
    """Return a metric's task id on the Hub: lower case, digits and underscores.

    A split that is not the canonical one of its kind puts its own name in front.

    >>> task_id("average_precision_1.25"), task_id("speedup_recovered", "eval_cuda")
    ('average_precision_1_25', 'eval_cuda_speedup_recovered')
    """
    split = split_of(table)
    name = metric if split.name == split.kind else f"{split.name}_{metric}"
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def eval_yaml(archive: Archive, title: str) -> bytes:
    """Write ``eval.yaml``: one task per headline metric of each split that the archive has."""
    manifest = archive.manifest
    facts = manifest.splits["eval"]
    tasks = [
        {"id": task_id(metric, split.table), "config": split.table, "split": "test"}
        for split in FORECAST_SPLITS.values()
        if split.table in manifest.splits and manifest.splits[split.table].rows
        for metric in HEADLINE[split.kind]
    ]
    # With withheld labels the cells are unknown, and with them the number of tasks.
    cells: dict[str, list[int]] = facts.facts.get("cells", {})
    of_tasks = f" of {sum(any(counts) for counts in cells.values())} tasks" if cells else ""
    description = (
        "Forecast how much faster or slower a candidate GPU kernel runs than a reference, as "
        f"probabilities over eight speedup bins. {facts.rows} pairs{of_tasks}, version "
        f"{manifest.version}. Scores: speedup recovered in % (higher is better), expected "
        "calibration error and forecast error in x (lower is better), average precision of "
        "discoveries (higher is better)."
    )
    content = {"name": title, "description": description, "evaluation_framework": FRAMEWORK}
    return dump_yaml({**content, "tasks": tasks}).encode()
