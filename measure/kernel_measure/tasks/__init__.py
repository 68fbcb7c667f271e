"""The tasks, by name: ``tasks.toml`` beside the problems' data."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from kernel_archive.errors import UsageError, suggestion
from kernel_archive.problems import GPU_MODE_TASKS, OWN_PROBLEMS, PROBLEMS, normalise_problem
from kernel_archive.toml_files import toml_beside
from kernel_measure.tasks.base import Task

#: Names of the tasks that can be measured on a GPU.
TASK_NAMES: Final[tuple[str, ...]] = (*GPU_MODE_TASKS, *OWN_PROBLEMS)
#: The task that needs neither GPU nor torch.
REHEARSAL: Final = "rehearsal"


def get_task(name: str) -> Task:
    """Return the task of that name or alias.

    Raises:
        UsageError: there is none.

    >>> get_task("fp8_quant").outputs
    ('x_q', 'x_s')
    """
    names = (*TASK_NAMES, REHEARSAL)
    canonical = normalise_problem(name)
    if canonical not in names:
        raise UsageError(f"no task {name!r} to measure. {suggestion(canonical, names)}")
    return _task(canonical)


@cache
def _task(name: str) -> Task:
    stated = toml_beside(__file__, "tasks.toml")[name]
    if name in PROBLEMS:
        fields = ("benchmark_cases", "rtol", "atol", "tolerance_note", "reference")
        stated |= {field: getattr(PROBLEMS[name], field) for field in fields}
    return msgspec.convert({"name": name, **stated}, Task)
