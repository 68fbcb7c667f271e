"""A user's own archive: what its splits ask about, and why nothing is asked about a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import polars as pl

from kernel_archive.archive.open import Archive
from kernel_archive.bins import assign_bins
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.selection.definitions import (
    HELD_OUT,
    Definition,
    EvalDefinition,
    load_definition,
    recorded_definition,
    with_changes,
)
from kernel_archive.selection.evaluation import reasons_against
from kernel_archive.selection.selected import count_values
from kernel_archive.selection.tables import ArchiveTables, has_flag, is_listed, with_reason
from kernel_archive.splits import SPLITS, SplitSpec

#: A problem with kernels in fewer bins says too little about telling them apart.
LEAST_BINS: Final = 3
_UNNAMED: Final = "[eval] tasks does not name it"


def canonical_definition(split: SplitSpec, tables: ArchiveTables) -> Definition:
    """Make the canonical definition of an archive.

    A user's own archive has other problems than the shipped one, so that the shipped
    definitions would select nothing of it. Its splits follow from them with the problems,
    languages, methods and GPU that it has, and from what its recipe says (``[eval]``).
    """
    shipped, eval_rules = load_definition(split.name), tables.archive.manifest.eval_rules
    if eval_rules is not None and split.name == "discovery":
        methods = sorted(set(tables.searches["generation_method"])) or ["none"]
        return with_changes(shipped, natural=False, methods=methods)
    if eval_rules is None or split.name != "eval":
        return shipped
    languages = eval_rules.get("languages") or []
    kernels = tables.held_out.filter(
        tables.of_searches(pl.col("role") == HELD_OUT),
        is_listed("language", languages),
        ~has_flag(["unfit"]),
    )
    gpu = canonical_gpu(eval_rules.get("gpu") or "")
    per_gpu = count_values(kernels["gpu"])
    if gpu not in per_gpu:
        gpu = max(per_gpu, key=lambda name: per_gpu[name], default=gpu)
    if "tasks" in eval_rules:
        tasks = _named(eval_rules["tasks"], tables)
    else:
        tasks = _in_enough_bins(kernels.filter(pl.col("gpu") == gpu), eval_rules)
    return with_changes(
        shipped,
        natural=False,
        languages=languages,
        tasks=tasks,
        exclude_flags=["unfit"],  # which only readings of its own recipes give
        measured=1,
        gpu=gpu,
        cap=eval_rules.get("cap"),
    )


def _in_enough_bins(kernels: pl.DataFrame, eval_rules: Mapping[str, Any]) -> list[str]:
    """List the problems with kernels in enough bins.

    All where the recipe does not say how many are enough, and none has :data:`LEAST_BINS`.
    """
    counts = _with_bins(kernels).group_by("problem").agg(pl.col("bin").n_unique()).sort("problem")
    enough = counts.filter(pl.col("bin") >= (eval_rules.get("bins") or LEAST_BINS))
    if enough.is_empty() and not eval_rules.get("bins"):
        enough = counts
    return enough["problem"].to_list()


def _with_bins(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the bins of speedups, whatever scheme the archive is labelled by."""
    return kernels.with_columns(bin=pl.Series(assign_bins(kernels["speedup"].to_numpy())))


def _named(tasks: Sequence[str], tables: ArchiveTables) -> list[str]:
    """Find the problems that a recipe names; one of our names may be kept as ``BUILDER.NAME``."""
    present = set(tables.read("kernels", ["problem"])["problem"])
    names: list[str] = []
    for task in map(normalise_problem, tasks):
        kept = [name for name in present if name.endswith(f".{task}")]
        names += kept if task not in present and len(kept) == 1 else [task]
    return names


def problems_left_out(archive: Archive) -> list[dict[str, Any]]:
    """List the problems of a user's own archive of which nothing is asked, each with a reason.

    ``rows`` are kernels, or evaluations where no program passed.
    """
    facts, eval_rules = archive.manifest.splits.get("eval"), archive.manifest.eval_rules
    if facts is None or facts.origin != "selected" or eval_rules is None:
        return []
    asked = [problem for problem, cells in facts.facts["cells"].items() if sum(cells)]
    definition = cast("EvalDefinition", recorded_definition(SPLITS["eval"], facts.parameters))
    gpu, tables = facts.parameters["gpu"] or definition.gpu, ArchiveTables(archive)
    against = reasons_against(tables, definition)
    reasons = {
        "its searches are not held out": against["not_held_out"],
        f"none is written in {', '.join(definition.languages)}": against["other_language"],
        f"none was measured on {gpu}": pl.col("gpu") != gpu,
        _UNNAMED: against["other_problem"],
        "all are flagged, or near copies of training programs": pl.lit(value=True),
    }
    columns = ["kernel_id", "problem", "language", "gpu", "speedup", "search_id"]
    kernels = tables.kernels(columns=columns).filter(~pl.col("problem").is_in(asked))
    rows = with_reason(_with_bins(kernels), reasons)
    # The later its reason, the further a kernel got; a problem has that of its furthest kernel.
    reason = pl.col("reason").cast(pl.Enum([*reasons]))
    bins = pl.col("bin").filter(reason >= _UNNAMED).n_unique()
    problems = rows.group_by("problem").agg(reason.max().cast(pl.String), bins=bins, rows=pl.len())
    if "tasks" not in eval_rules:
        least = pl.lit(eval_rules.get("bins") or LEAST_BINS)
        few = "its speedups fall in {} of 8 bins, and {} are needed ([eval] bins)"
        too_few_bins = pl.when(pl.col("reason") == _UNNAMED).then(pl.format(few, "bins", least))
        problems = problems.with_columns(reason=too_few_bins.otherwise("reason"))
    failed = tables.read("evaluations", ["problem"])
    failed = failed.filter(~pl.col("problem").is_in([*asked, *problems["problem"]]))
    failed = failed.group_by("problem").agg(reason=pl.lit("no program counts"), rows=pl.len())
    left_out = pl.concat([problems.drop("bins"), failed])
    return left_out.sort("rows", "problem", descending=[True, False]).to_dicts()
