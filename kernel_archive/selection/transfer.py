"""Transfer between GPUs: the same program measured on two, its speedup on one of them shown.

Asked is the speedup on the other GPU. A program is shown on one GPU only, and every row about it
asks about another: no label is the shown speedup of another row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kernel_archive.selection.definitions import SplitNotMadeError
from kernel_archive.selection.evaluation import by_hash, with_reference
from kernel_archive.selection.selected import Choice, rows_of, with_pair_ids
from kernel_archive.selection.tables import has_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernel_archive.selection.definitions import TransferDefinition
    from kernel_archive.selection.tables import ArchiveTables


def _asked(members: Mapping[str, pl.DataFrame]) -> pl.Expr:
    """Whether a kernel is asked about in another split; a close pair is named by its programs."""
    kernels, pairs = rows_of(members, "eval")["row_id"], rows_of(members, "close")
    programs = pl.concat([pairs["anchor_program"], pairs["candidate_program"]])
    asked = {"kernel_id": kernels, "program_id": programs}
    return pl.any_horizontal(pl.col(name).is_in(ids.implode()) for name, ids in asked.items())


def select_transfer(
    tables: ArchiveTables, rule: TransferDefinition, members: Mapping[str, pl.DataFrame]
) -> Choice:
    """Select the rows of transfer between GPUs (docs/splits.md).

    ``members`` are the rows of the other splits, by table: what they ask about is not shown, and
    tokens that a trainer gets are left out.

    Example: a program measured on A100, H100 and L40S gives two rows, say H100 to A100 and H100 to
    L40S; a hash chooses the GPU that is shown.

    Raises:
        SplitNotMadeError: no program was measured on two GPUs.
    """
    searches = tables.searches_with(rule.role, natural=rule.natural, builders=rule.builders)
    kernels = tables.kernels("test").filter(
        pl.col("search_id").is_in(searches["search_id"].implode()),
        ~has_flag(rule.exclude_flags),
        pl.col("program_id") != pl.col("reference_id"),
        ~pl.col("token_id").is_in(tables.training["token_id"].implode()),
    )
    kernels = by_hash(kernels, rule.selection_key)
    # One program of each class of near duplicates, which share their tokens.
    program = ["problem", "reference_id", "token_id"]
    first = pl.col("program_id").first().over(program)
    kernels = kernels.filter(pl.col("program_id") == first)
    shown = kernels.filter(~_asked(members)).unique(program, keep="first", maintain_order=True)
    known = pl.col("gpu", "speedup", "kernel_id").name.prefix("known_")
    rows = kernels.join(shown.select(*program, known), on=program, maintain_order="left")
    rows = rows.filter(pl.col("gpu") != pl.col("known_gpu"))
    if rows.is_empty():
        raise SplitNotMadeError("no held-out program was measured on two GPUs")
    rows = with_reference(tables, rows.with_columns(gpus=pl.format("{} to {}", "known_gpu", "gpu")))
    rows = with_pair_ids(rows, rule.selection_key, "known_kernel_id", "kernel_id").sort("row_id")
    return Choice(rows.filter(pl.int_range(pl.len()).over("problem", "gpus") < rule.cap), {})
