"""Why an evaluation split has no more rows: of every kernel that is not in it the reason, by problem and bin, and the way out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

from kernel_archive.bins import assign_bins
from kernel_archive.selection.definitions import recorded_definition
from kernel_archive.selection.edges import kernels_by_id
from kernel_archive.selection.evaluation import refusals
from kernel_archive.selection.selected import cell_counts
from kernel_archive.selection.tables import ArchiveTables

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.selection.definitions import EvalDefinition
    from kernel_archive.splits import Split

#: Why a kernel is not asked about, and what to change.
WAYS_OUT: Final = {
    "not_held_out": (
        "its search is not held out",
        'role = "held_out" in its [[source]], or [eval] roles = { held_out = ["PROBLEM"] }',
    ),
    "other_problem": ("[eval] tasks does not name its problem", "add the problem to tasks, or leave tasks out"),
    "other_builder": ("the split asks about other builders", "an [eval] of your own in the recipe"),
    "other_language": ("[eval] languages does not name its language", "add the language, or leave languages out"),
    "unknown_reference": (
        "no text of its reference program is known",
        'reference = "references/{problem}.py" in its [[source]], or map reference_code',
    ),
    "reference_itself": ("it is the reference itself", "nothing: its speedup is that of two runs of one program"),
    "flagged": ("an audit flag keeps it out", "see kernel-archive audit"),
    "other_gpu": ("it was measured on another GPU than the split's", 'gpu = "NAME" in [eval], or build-eval --gpu NAME'),
    "few_bins": ("its problem has kernels in too few bins", "bins = 1 in [eval], or name the problem in tasks"),
    "near_training": ("a training program is nearly the same", "hold the training program out, too"),
    "not_taken": ("the cell is full, or it is nearly the same as a row", "cap in [eval], or build-eval --cap"),
}  # fmt: skip


def left_out(archive: Archive, split: Split) -> dict[tuple[str, str], list[int]]:
    """Problem and reason (a key of :data:`WAYS_OUT`) -> kernels in each of the eight bins that the split does not ask about."""
    tables, facts = ArchiveTables(archive), archive.manifest.splits[split.table]
    rule = cast("EvalDefinition", recorded_definition(split, facts.parameters))
    train = kernels_by_id(tables.train)
    kernels = {**train, **{kernel.kernel_id: kernel for kernel in tables.tested}}
    reasons = {**dict.fromkeys(train, "not_held_out"), **refusals(tables, rule, tables.tested)}
    taken = set(archive.arrow(split.table, columns=["row_id"])["row_id"].to_pylist())
    few = facts.facts.get("few_bins", ())
    bins = assign_bins([k.speedup for k in kernels.values()], rule.scheme).tolist() if kernels else []
    found: Counter[tuple[tuple[str, str], int]] = Counter()
    for kernel, bin_ in zip(kernels.values(), bins, strict=True):
        if kernel.kernel_id not in taken:
            other = "other_gpu" if kernel.gpu != facts.parameters.get("gpu") else None
            reason = reasons.get(kernel.kernel_id) or other or ("few_bins" if kernel.problem in few else "not_taken")
            found[(kernel.problem, reason), bin_] += 1
    return cell_counts(cast("Any", found.elements()))  # type: ignore[return-value]
