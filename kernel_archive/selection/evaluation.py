"""An evaluation split: at most ``cap`` held-out kernels per task and bin, of one GPU.

Of a cell with more kernels than the cap, those with the smallest hashes are taken, one of
near copies. What is near to a training program is left out: the evaluation gives way
to training, not the other way round.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from kernel_archive.bins import assign_bins
from kernel_archive.ids import sha256_hex
from kernel_archive.selection.definitions import (
    EvalDefinition,
    KernelDefinition,
    SplitNotMadeError,
    canonical_definition,
    choose_gpu,
    make_selection,
    variant_name,
)
from kernel_archive.selection.selected import Selection, cell_counts, count_values
from kernel_archive.selection.similarity import near_copies, overlap
from kernel_archive.selection.tables import has_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec


def selection_hash(key: str, kernel_id: str) -> str:
    """Return what orders the kernels of a cell.

    >>> selection_hash("eval:", "00")[:8]
    '87ce2183'
    """
    return sha256_hex(f"{key}{kernel_id}".encode())


def gpu_part(gpu: str | None, standard: KernelDefinition, per_gpu: Mapping[str, int]) -> str:
    """Say the GPU for the name of a variant; nothing where the choice is the canonical one."""
    try:
        canonical = choose_gpu(per_gpu, standard.gpu)
    except SplitNotMadeError:
        canonical = None
    return "" if gpu == canonical else re.sub(r"[^a-z0-9]+", "", (gpu or "none").lower())


def with_reasons(
    tables: ArchiveTables, rule: KernelDefinition, kernels: pl.DataFrame
) -> pl.DataFrame:
    """Add ``bin``, and ``reason``: why the definition's words don't allow a kernel, or null."""
    own = tables.archive.manifest.evaluation is not None
    searches = tables.searches_with(natural=rule.natural, builders=rule.builders)
    held_out = tables.searches_with(rule.role)
    reference = pl.concat_str("reference_id", "problem", separator="\0")
    references = tables.references.select(reference)["reference_id"]
    reasons = {
        "other_problem": ~pl.col("problem").is_in(rule.problems),
        "not_held_out": ~pl.col("search_id").is_in(held_out["search_id"].implode()),
        "other_builder": ~pl.col("search_id").is_in(searches["search_id"].implode()),
        "other_language": ~pl.col("language").is_in(rule.languages) & bool(rule.languages),
        "unknown_reference": ~reference.is_in(references.implode()) & (not own),
        # The shipped definitions keep what they selected before this rule.
        "reference_itself": (pl.col("program_id") == pl.col("reference_id")) & own,
        "flagged": has_flag(rule.exclude_flags),
        "measured_too_seldom": pl.col("n_measurements") < rule.measured,
    }
    first = pl.coalesce(pl.when(when).then(pl.lit(name)) for name, when in reasons.items())
    rows = kernels.with_columns(reason=first)
    # Speedups that are no number are named only where they matter.
    allowed = rows.filter(pl.col("reason").is_null())
    ids = allowed["kernel_id"]
    bins = assign_bins(allowed["speedup"].to_numpy(), rule.scheme, row_ids=ids.to_list())
    labels = pl.DataFrame({"kernel_id": ids, "bin": bins}, schema_overrides={"bin": pl.Int8})
    return rows.join(labels, on="kernel_id", how="left", maintain_order="left")


def near_training(tables: ArchiveTables, kernels: pl.DataFrame, limit: float) -> list[str]:
    """Find kernels that are near copies of a training program, but not its very tokens.

    What has the very tokens should not be there at all: it is kept, so that the check of leaks
    refuses it.
    """
    near: list[str] = []
    others = kernels.join(tables.training, on="token_id", how="anti", maintain_order="left")
    trained = tables.training.join(others, on="problem", how="semi")
    # The texts are read once, not problem by problem.
    grams = tables.grams(pl.concat([others["program_id"], trained["program_id"]]))
    for (problem,), group in others.group_by("problem", maintain_order=True):
        programs = {name: grams[name] for name in group["program_id"]}
        copies = near_copies(programs, tables.training_grams(str(problem)), limit)
        near += group.filter(pl.col("program_id").is_in(list(copies)))["kernel_id"].to_list()
    return near


def _fill_cells(
    tables: ArchiveTables, rule: EvalDefinition, kernels: pl.DataFrame, dropped: Counter[str]
) -> list[str]:
    """Take the kernels of the smallest hashes of each cell, without near copies of each other."""
    hashes = [selection_hash(rule.selection_key, name) for name in kernels["kernel_id"]]
    kernels = kernels.with_columns(hash=pl.Series(hashes, dtype=pl.String)).sort("hash")
    grams = tables.grams(kernels["program_id"])
    cells: dict[tuple[str, int], list[str]] = {}
    chosen: list[str] = []
    columns = kernels.select("kernel_id", "program_id", "problem", "bin")
    for name, program, problem, number in columns.iter_rows():
        cell = cells.setdefault((problem, number), [])
        if len(cell) >= rule.cap:
            continue
        if any(overlap(grams[program], grams[other]) >= rule.near_copy for other in cell):
            dropped["near_copy_in_cell"] += 1
        else:
            cell.append(program)
            chosen.append(name)
    return chosen


def select_eval(
    split: SplitSpec, tables: ArchiveTables, rule: EvalDefinition, *, gpu: str | None = None
) -> Selection:
    """Select an evaluation split (docs/splits.md).

    Kernels of the definition's problems, languages and one GPU, measured often enough in searches
    of its role and with a known reference program. Each task and bin takes the ``cap`` kernels with
    the smallest :func:`selection_hash`, without near copies of each other. Rows stand in the order
    of a hash of their ids. Nothing depends on the order of the input.

    ``gpu`` is the GPU, where the definition's rule should not choose.
    """
    standard = cast("EvalDefinition", canonical_definition(split, tables))
    kernels = with_reasons(tables, rule, tables.kernels("test"))
    dropped = Counter(kernels["reason"].drop_nulls().to_list())
    allowed = kernels.filter(pl.col("reason").is_null())
    per_gpu = count_values(allowed["gpu"])
    chosen_gpu = choose_gpu(per_gpu, rule.gpu, gpu)
    allowed = allowed.filter(pl.col("gpu") == (chosen_gpu or ""))
    dropped["other_gpu"] = sum(per_gpu.values()) - len(allowed)
    near = near_training(tables, allowed, rule.near_copy)
    dropped["near_training"] = len(near)
    allowed = allowed.filter(~pl.col("kernel_id").is_in(near))
    chosen = allowed.filter(pl.col("kernel_id").is_in(_fill_cells(tables, rule, allowed, dropped)))
    facts: dict[str, Any] = {
        "cells": cell_counts(chosen.select("problem", "bin").iter_rows(), rule.problems),
        "excluded": dict(sorted(dropped.items())),
        "gpus": per_gpu,
    }
    references = chosen.group_by("problem").agg(pl.col("reference_id").unique().sort())
    several = references.filter(pl.col("reference_id").list.len() > 1).sort("problem")
    if len(several):
        facts["several_references"] = dict(several.rows())
    variant = variant_name(split, rule, standard, gpu=gpu_part(chosen_gpu, standard, per_gpu))
    gpus = {"preferred_gpu": rule.gpu, "gpu": chosen_gpu}
    rows = with_reference(tables, chosen)
    return make_selection(split, tables, rows, rule, variant, facts, **gpus)


def with_reference(tables: ArchiveTables, kernels: pl.DataFrame) -> pl.DataFrame:
    """Turn kernels into rows, each with what its reference states of the problem."""
    names = ("reference_id", "problem", "benchmark_cases", "rtol", "atol")
    stated = tables.references.select(names)
    rows = kernels.drop("bin").join(stated, on=["reference_id", "problem"], how="left")
    return rows.with_columns(
        row_id="kernel_id",
        task="problem",
        anchor_program="reference_id",
        anchor_token=pl.lit(""),
        candidate_program="program_id",
        candidate_token="token_id",
    )
