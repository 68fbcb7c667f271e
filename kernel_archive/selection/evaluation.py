"""The evaluation splits: at most ``cap`` held-out kernels per task and bin, or pair of GPUs.

Of a cell with more kernels than the cap, those with the smallest hashes are taken, one of
near copies. What is near to a training program is left out: the evaluation gives way
to training, not the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from kernel_archive.bins import assign_bins
from kernel_archive.errors import UsageError, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.schema import OUTCOMES
from kernel_archive.selection.definitions import (
    HELD_OUT,
    CandidateDefinition,
    CloseDefinition,
    EvalDefinition,
    TransferDefinition,
    ValidityDefinition,
)
from kernel_archive.selection.selected import (
    ChosenRows,
    by_hash,
    cell_counts,
    count_values,
    ids_of_kinds,
    with_pair_ids,
)
from kernel_archive.selection.similarity import is_near_copy, near_copies
from kernel_archive.selection.tables import ArchiveTables, has_flag, is_listed, leave_out


class SplitNotMadeError(UsageError):
    """Raised when an archive's kernels allow no split, or several without saying which."""


def reasons_against(tables: ArchiveTables, definition: CandidateDefinition) -> dict[str, pl.Expr]:
    """List what keeps a program from being asked about, in the order in which it is counted."""
    own_archive = tables.archive.manifest.eval_rules is not None
    reference = pl.concat_str("reference_id", "problem", separator="\0")
    references = tables.references.select(reference)["reference_id"]
    return {
        "other_problem": ~pl.col("problem").is_in(definition.problems),
        "not_held_out": ~tables.of_searches(pl.col("role") == HELD_OUT),
        "other_builder": ~tables.of_searches(definition.allows_builder(tables)),
        "other_language": ~is_listed("language", definition.languages),
        "unknown_reference": ~reference.is_in(references.implode()) & (not own_archive),
        # The shipped definitions keep what they selected before this rule.
        "reference_itself": (pl.col("program_id") == pl.col("reference_id")) & own_archive,
        "flagged": has_flag(definition.exclude_flags),
        "measured_too_seldom": pl.col("n_measurements") < definition.min_measurements,
        "no_goal": pl.col("goal_bin").is_null() & isinstance(definition, CloseDefinition),
    }


class EligibleKernels(NamedTuple):
    """Kernels of one GPU that may be asked about."""

    kernels: pl.DataFrame
    excluded: Counter[str]  # reason -> programs left out
    gpu: str | None  # the chosen one; none where no kernel qualifies
    gpus: Mapping[str, int]  # kernels that qualify on each GPU


def find_eligible(
    tables: ArchiveTables,
    definition: CandidateDefinition,
    gpu: str | None,
    further: Sequence[pl.DataFrame] = (),
) -> EligibleKernels:
    """Find the kernels of one GPU that a definition's words allow.

    ``gpu`` is the GPU where the definition should not choose it; ``further`` are programs besides
    kernels.
    """
    excluded: Counter[str] = Counter()
    programs = pl.concat([tables.held_out, *further], how="diagonal")
    kernels = leave_out(programs, reasons_against(tables, definition), excluded)
    gpus = count_values(kernels["gpu"])
    chosen = choose_gpu(gpus, definition.gpu, gpu)
    return EligibleKernels(kernels.filter(pl.col("gpu") == (chosen or "")), excluded, chosen, gpus)


def choose_gpu(present: Mapping[str, int], preferred: str, asked: str | None = None) -> str | None:
    """Choose the one GPU of a split, of those that qualifying kernels were measured on.

    The one that was asked for; else the preferred one when present; else the only one; ``None``
    when no kernel qualifies.

    Raises:
        UsageError: the named GPU has no qualifying kernel.
        SplitNotMadeError: there are several, and none of them is preferred or named.

    >>> choose_gpu({"H200": 9}, "A100-80GB"), choose_gpu({"H200": 9, "A100-80GB": 1}, "A100-80GB")
    ('H200', 'A100-80GB')
    """
    gpu = preferred if asked is None else canonical_gpu(asked)
    if gpu in present:
        return gpu
    names = ", ".join(map(printable, sorted(present))) or "none"
    if asked is not None:
        message = f"no held-out kernel of these tasks was measured on GPU {printable(gpu)}"
        raise UsageError(f"{message}. GPUs with such kernels: {names}")
    if len(present) > 1:
        message = f"held-out kernels were measured on several GPUs ({names}) and none of them is"
        fix = "Choose one with build-eval --gpu"
        raise SplitNotMadeError(f"{message} {printable(preferred)}. {fix}")
    return next(iter(present), None)


def without_near_training(
    tables: ArchiveTables, kernels: pl.DataFrame, limit: float
) -> pl.DataFrame:
    """Leave out kernels that are near copies of a training program.

    A kernel with the very tokens of a training program is kept here on purpose: that is a leak,
    and the check of leaks must see and refuse it.
    """
    near: list[str] = []
    others = kernels.join(tables.training, on="token_id", how="anti", maintain_order="left")
    trained = tables.training.join(others, on="problem", how="semi")
    # The texts are read once, not problem by problem.
    grams = tables.grams(pl.concat([others["program_id"], trained["program_id"]]))
    for (problem,), group in others.group_by("problem"):
        programs = {name: grams[name] for name in group["program_id"]}
        copies = near_copies(programs, tables.training_grams(str(problem)), limit)
        near += group.filter(pl.col("program_id").is_in(list(copies)))["kernel_id"].to_list()
    return kernels.filter(~pl.col("kernel_id").is_in(near))


def _fill_cells(
    tables: ArchiveTables, definition: EvalDefinition, kernels: pl.DataFrame, excluded: Counter[str]
) -> pl.DataFrame:
    """Take the kernels of the smallest hashes of each cell, without near copies of each other."""
    grams = tables.grams(kernels["program_id"])
    cells: dict[tuple[str, int], list[str]] = {}
    chosen: list[str] = []
    columns = kernels.select("kernel_id", "program_id", "problem", "bin")
    ordered = by_hash(columns, "kernel_id", definition.selection_key)
    for name, program, problem, number in ordered.iter_rows():
        cell = cells.setdefault((problem, number), [])
        if len(cell) >= definition.cap:
            continue
        if any(is_near_copy(grams[program], grams[other], definition.near_copy) for other in cell):
            excluded["near_copy_in_cell"] += 1
        else:
            cell.append(program)
            chosen.append(name)
    return kernels.filter(pl.col("kernel_id").is_in(chosen))


def select_eval(tables: ArchiveTables, definition: EvalDefinition, gpu: str | None) -> ChosenRows:
    """Select an evaluation split (docs/splits.md).

    Kernels of the definition's problems, languages and one GPU, measured often enough in searches
    of its role and with a known reference program. Each task and bin takes the ``cap`` kernels with
    the smallest hashes, without near copies of each other. Nothing depends on the
    order of the input.
    """
    kernels, excluded, chosen_gpu, gpus = find_eligible(tables, definition, gpu)
    excluded["other_gpu"] = sum(gpus.values()) - len(kernels)
    allowed = without_near_training(tables, kernels, definition.near_copy)
    excluded["near_training"] = len(kernels) - len(allowed)
    # Speedups that are no number are named only where they matter.
    ids = allowed["kernel_id"].to_list()
    bins = assign_bins(allowed["speedup"].to_numpy(), definition.scheme, row_ids=ids)
    allowed = allowed.with_columns(pl.Series("bin", bins, pl.Int8))
    chosen = _fill_cells(tables, definition, allowed, excluded)
    facts: dict[str, Any] = {
        "cells": cell_counts(chosen.select("problem", "bin").iter_rows(), definition.problems),
        "excluded": dict(sorted(excluded.items())),
        "gpus": gpus,
    }
    return ChosenRows(with_reference(tables, chosen), facts, chosen_gpu, gpus)


def select_validity(
    tables: ArchiveTables, definition: ValidityDefinition, gpu: str | None
) -> ChosenRows:
    """Select programs that pass and programs that fail (docs/splits.md).

    All that the definition's words allow and that a measurement judged, but for near copies of
    training programs. A program passes if no measurement of it failed.
    """
    columns = ("kernel_id", "program_id", "token_id", "problem", "language", "gpu")
    failures = tables.read("failures", [*columns, "search_id", "reference_id"])
    programs, excluded, chosen_gpu, gpus = find_eligible(tables, definition, gpu, [failures])
    excluded["other_gpu"] = sum(gpus.values()) - len(programs)
    judged = tables.read("evaluations", ["kernel_id", "outcome", "excluded"]).filter(
        pl.col("excluded").is_null(), pl.col("outcome") != "infrastructure_failure"
    )
    worst = pl.col("outcome").cast(pl.Enum(OUTCOMES)).max().cast(pl.String)
    programs = programs.join(judged.group_by("kernel_id").agg(worst), on="kernel_id")
    rows = without_near_training(tables, programs, definition.near_copy)
    excluded["near_training"] = len(programs) - len(rows)
    rows = rows.with_columns(passes=(pl.col("outcome") == "success").cast(pl.Int8))
    facts = {"excluded": dict(sorted(excluded.items())), "gpus": gpus}
    return ChosenRows(with_reference(tables, rows), facts, chosen_gpu, gpus)


def with_reference(tables: ArchiveTables, kernels: pl.DataFrame) -> pl.DataFrame:
    """Turn kernels into rows, each with what its reference states of the problem."""
    names = ("reference_id", "problem", "benchmark_cases", "rtol", "atol")
    stated = tables.references.select(names)
    rows = kernels.join(stated, on=["reference_id", "problem"], how="left")
    return rows.with_columns(
        row_id="kernel_id",
        task="problem",
        anchor_program="reference_id",
        anchor_token=pl.lit(""),
        candidate_program="program_id",
        candidate_token="token_id",
    )


def select_transfer(
    tables: ArchiveTables, definition: TransferDefinition, members: Mapping[str, pl.DataFrame]
) -> ChosenRows:
    """Select the rows of transfer between GPUs (docs/splits.md).

    A program's speedup is shown on one GPU only, and every row about it asks about another: no
    label is the shown speedup of another row. ``members`` are the rows of the other splits, by
    table: what they ask about is not shown. Tokens that a trainer gets are left out.

    Example: a program measured on A100, H100 and L40S gives two rows, say H100 to A100 and H100 to
    L40S; a hash chooses the GPU that is shown.

    Raises:
        SplitNotMadeError: no program was measured on two GPUs.
    """
    kernels = tables.held_out.filter(
        tables.of_searches(pl.col("role") == HELD_OUT, definition.allows_builder(tables)),
        ~has_flag(definition.exclude_flags),
        pl.col("program_id") != pl.col("reference_id"),
        ~pl.col("token_id").is_in(tables.training["token_id"].implode()),
    )
    kernels = by_hash(kernels, "kernel_id", definition.selection_key)
    # One program of each class of near duplicates, which share their tokens.
    program = ["problem", "reference_id", "token_id"]
    first = pl.col("program_id").first().over(program)
    kernels = kernels.filter(pl.col("program_id") == first)
    # Neither a kernel that another split asks about nor the programs of a close pair are shown.
    eval_ids, pairs = ids_of_kinds(members, "eval")["row_id"], ids_of_kinds(members, "close")
    in_pairs = pl.concat([pairs["anchor_program"], pairs["candidate_program"]])
    shown = kernels.filter(
        ~pl.col("kernel_id").is_in(eval_ids.implode()),
        ~pl.col("program_id").is_in(in_pairs.implode()),
    ).unique(program, keep="first", maintain_order=True)
    known = pl.col("gpu", "speedup", "kernel_id").name.prefix("known_")
    rows = kernels.join(shown.select(*program, known), on=program, maintain_order="left")
    rows = rows.filter(pl.col("gpu") != pl.col("known_gpu"))
    if rows.is_empty():
        raise SplitNotMadeError("no held-out program was measured on two GPUs")
    rows = with_reference(tables, rows.with_columns(gpus=pl.format("{} to {}", "known_gpu", "gpu")))
    rows = with_pair_ids(rows, definition.selection_key, "known_kernel_id", "kernel_id")
    place = pl.int_range(pl.len()).over("problem", "gpus")
    return ChosenRows(rows.sort("row_id").filter(place < definition.cap), {})
