"""The splits of an archive of one's own: what its recipe says (``[eval]``), and everything that it may ask about else.

An archive with a name of its own has other problems than the shipped one, so that the shipped definitions would select
nothing of it. Its canonical splits follow from the shipped rules with the problems, languages, methods and GPU that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.selection.definitions import (
    Definition,
    EvalDefinition,
    OwnEvalDefinition,
    load_definition,
    with_changes,
)

if TYPE_CHECKING:
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Split

#: A problem with kernels in fewer bins says too little about telling them apart.
LEAST_BINS: Final = 3


def canonical_definition(split: Split, tables: ArchiveTables) -> Definition:
    """The definition that is the canonical one for an archive: the shipped one, or that of an archive of one's own."""
    shipped = load_definition(split.name)
    stated = tables.evaluation
    if stated is None:
        return shipped
    if split.kind == "discovery":
        methods = sorted(set(tables.searches["generation_method"].to_pylist())) or ["none"]
        return with_changes(shipped, natural=False, methods=methods)
    if split.name != "eval":
        return shipped
    present = set(tables.read("kernels", ["problem"])["problem"].unique().to_pylist())
    wanted = {key: value for key, value in stated.items() if key in ("cap", "languages", "gpu", "tasks", "bins")}
    if "gpu" in wanted:
        wanted["gpu"] = canonical_gpu(wanted["gpu"])
    if "tasks" in wanted:
        wanted["tasks"] = [_present(normalise_problem(task), present) for task in wanted["tasks"]]
    plain: dict[str, Any] = msgspec.to_builtins(cast("EvalDefinition", shipped))
    own = {
        **plain,
        "natural": False,
        "languages": [],
        "tasks": "every",
        "bins": 0,
        "exclude_flags": ["unfit"],  # which only readings of its own recipes give
        "level": None,
        "gpu": "",
        **wanted,
    }
    return with_changes(msgspec.convert(own, OwnEvalDefinition))


def _present(task: str, present: set[str]) -> str:
    """The problem that a recipe means: also one that was renamed because it is called like one of ours."""
    renamed = sorted(name for name in present if name.endswith(f".{task}"))
    return renamed[0] if task not in present and len(renamed) == 1 else task
