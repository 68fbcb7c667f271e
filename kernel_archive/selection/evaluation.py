"""An evaluation split: at most ``cap`` kernels per task and bin, of one GPU, from held-out searches."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.selection.definitions import EvalDefinition, load_definition, variant_name
from kernel_archive.selection.edges import kernels_by_id
from kernel_archive.selection.selected import Row, Selection, Side, by_program, cell_counts, select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernel_archive.selection.edges import Kernel
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import Split

__all__ = ["AmbiguousGpuError", "choose_gpu", "select_eval", "selection_hash"]


class AmbiguousGpuError(UsageError):
    """Raised when held-out kernels exist on several GPUs, none is the preferred one, and none was named."""


def selection_hash(key: str, kernel_id: str) -> str:
    """What orders the kernels of a cell: sha256 of the definition's key and the kernel id, as hex.

    >>> selection_hash("eval:", "00")[:8]
    '87ce2183'
    """
    return sha256_hex(f"{key}{kernel_id}".encode())


def choose_gpu(present: Iterable[str], preferred: str, asked: str | None = None) -> str | None:
    """The one GPU of a split.

    Args:
        present: GPUs that qualifying kernels were measured on.
        preferred: the definition's GPU.
        asked: the GPU that the user named, in any spelling.

    Returns:
        The named one; else the preferred one when present; else the only one; ``None`` when there is none at all.

    Raises:
        UsageError: the named GPU has no qualifying kernel.
        AmbiguousGpuError: several GPUs, none preferred or named.

    >>> choose_gpu(["H200"], "A100-80GB"), choose_gpu(["H200", "A100-80GB"], "A100-80GB")
    ('H200', 'A100-80GB')
    """
    names = sorted(set(present))
    listed = ", ".join(printable(n) for n in names) or "none"
    if asked is not None:
        wanted = canonical_gpu(asked)
        if wanted not in names:
            raise UsageError(
                f"no held-out kernel of these tasks was measured on GPU {printable(wanted)}; there are: {listed}"
            )
        return wanted
    if preferred in names:
        return preferred
    if len(names) > 1:
        raise AmbiguousGpuError(
            f"held-out kernels were measured on several GPUs ({listed}) and none of them is {preferred}. "
            "Choose one with --gpu"
        )
    return names[0] if names else None


def _gpu_told(rule: EvalDefinition, gpu: str | None, standard: EvalDefinition, per_gpu: Iterable[str]) -> str:
    """What the name of a variant says of its GPU; nothing where the choice is the canonical one."""

    def short(name: str) -> str:
        return re.sub(r"[^a-z0-9]+", "", name.lower())

    try:
        canonical = choose_gpu(per_gpu, standard.gpu)
    except AmbiguousGpuError:
        canonical = None
    if gpu != canonical:
        return short(gpu or "none")
    # The same rows here, but other ones as soon as the archive has kernels on the preferred GPU.
    return "" if rule.gpu == standard.gpu else f"prefers{short(rule.gpu)}"


def select_eval(
    split: Split, tables: ArchiveTables, rule: EvalDefinition | None = None, *, gpu: str | None = None
) -> Selection:
    """Select an evaluation split (docs/splits.md).

    Kernels of the definition's tasks and one GPU, measured in searches of its role and with a known reference program,
    at most ``cap`` per task and bin: those with the smallest :func:`selection_hash`. Rows are sorted by task, bin and
    that hash, then by kernel id. Nothing depends on the order of the input.

    Args:
        split: the split.
        tables: the archive's tables.
        rule: the canonical definition when not given.
        gpu: the GPU, when the definition's rule should not choose.

    Raises:
        UsageError: the GPU asked for has no kernel here.
        AmbiguousGpuError: the GPU must be named.
        DataError: a speedup is not finite and above 0.
    """
    standard = cast("EvalDefinition", load_definition(split.name))
    rule = standard if rule is None else rule
    references = tables.references.select(["reference_id", "problem"])
    known = set(zip(*(column.to_pylist() for column in references.columns), strict=True))
    flags = set(rule.exclude_flags)
    dropped: Counter[str] = Counter()
    eligible: list[Kernel] = []
    for kernel in kernels_by_id(tables.test).values():
        if kernel.problem not in rule.tasks:
            dropped["other_problem"] += 1
        elif tables.roles.get(kernel.search_id) != rule.role:
            dropped["not_held_out"] += 1
        elif (kernel.reference_id, kernel.problem) not in known:
            dropped["unknown_reference"] += 1
        elif flags.intersection(kernel.flags):
            dropped["flagged"] += 1
        else:
            eligible.append(kernel)
    per_gpu = dict(sorted(Counter(kernel.gpu for kernel in eligible).items()))
    chosen_gpu = choose_gpu(per_gpu, rule.gpu, gpu)
    dropped["other_gpu"] = sum(n for name, n in per_gpu.items() if name != chosen_gpu)
    candidates = [kernel for kernel in eligible if kernel.gpu == chosen_gpu]
    bins = assign_bins([k.speedup for k in candidates], rule.scheme, row_ids=[k.kernel_id for k in candidates])
    ordered = sorted(
        (
            (k.problem, bin_, selection_hash(rule.selection_key, k.kernel_id), k.kernel_id, k)
            for k, bin_ in zip(candidates, bins.tolist(), strict=True)
        ),
        key=lambda item: item[:4],
    )
    filled: Counter[tuple[str, int]] = Counter()
    taken: list[Kernel] = []
    for problem, bin_, _, _, kernel in ordered:
        if filled[problem, bin_] < rule.cap:
            filled[problem, bin_] += 1
            taken.append(kernel)
    rows = [
        Row(
            row_id=k.kernel_id,
            problem=k.problem,
            family=k.family,
            gpu=k.gpu,
            search_id=k.search_id,
            value=k.speedup,
            anchor=Side(k.reference_id, "", None),
            candidate=k.side,
        )
        for k in taken
    ]
    tokens = Counter(k.token_id for k in taken)
    # Tasks without any kernel stand in the cells too: a gap must show.
    cells = cell_counts(filled.elements(), rule.tasks)
    facts: dict[str, Any] = {
        "cells": cells,
        "available": cell_counts(((problem, bin_) for problem, bin_, *_ in ordered), rule.tasks),
        "short_cells": sum(n < rule.cap for counts in cells.values() for n in counts),
        "excluded": dict(sorted(dropped.items())),
        "gpus": per_gpu,
        "references": len({(k.problem, k.reference_id) for k in taken}),
        "near_duplicates": sum(n for n in tokens.values() if n > 1),
    }
    return select(
        split,
        rows,
        texts=by_program(split, rows, tables.texts),
        scheme=rule.scheme,
        variant=variant_name(split, rule, standard, gpu=_gpu_told(rule, chosen_gpu, standard, per_gpu)),
        parameters={**msgspec.to_builtins(rule), "preferred_gpu": rule.gpu, "gpu": chosen_gpu},
        counts=facts,
    )
