"""Transfer between GPUs: the same program measured on two, its speedup on one of them shown.

Asked is the speedup on the other GPU. A program is shown on one GPU only, and every row about it
asks about another: no label is the shown speedup of another row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import polars as pl

from kernel_archive.ids import sha256_hex
from kernel_archive.selection.definitions import (
    SplitNotMadeError,
    TransferDefinition,
    canonical_definition,
    make_selection,
    variant_name,
)
from kernel_archive.selection.evaluation import with_reference
from kernel_archive.selection.selected import pair_id
from kernel_archive.selection.tables import has_flag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kernel_archive.selection.selected import Selection
    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec


def find_transfers(
    kernels: pl.DataFrame, rule: TransferDefinition, asked: Collection[str] = ()
) -> pl.DataFrame:
    """Find the rows that a definition allows, ordered by row id.

    Args:
        kernels: ``kernel_id``, ``program_id``, ``token_id``, ``problem``, ``reference_id``,
            ``gpu`` and ``speedup`` of kernels that may be asked about.
        rule: the definition.
        asked: ids of kernels that another split asks about; their speedups are not shown.

    Returns:
        The columns of the kernel that is asked about, and ``row_id``, ``known_gpu``,
        ``known_speedup`` and ``known_kernel_id``.

    Example: a program measured on A100, H100 and L40S gives two rows, say H100 to A100 and H100 to
    L40S; a hash chooses the GPU that is shown.
    """
    hashes = {
        name: sha256_hex(f"{rule.selection_key}{name}".encode()) for name in kernels["kernel_id"]
    }
    order = pl.col("kernel_id").replace_strict(hashes, return_dtype=pl.String)
    kernels = kernels.with_columns(order=order).sort("order")
    # One program of each class of near duplicates, which share their tokens.
    program = ["problem", "reference_id", "token_id"]
    first = kernels.group_by(program, maintain_order=True).agg(pl.col("program_id").first())
    kernels = kernels.join(first, on=[*program, "program_id"], maintain_order="left")
    shown = (
        kernels.filter(~pl.col("kernel_id").is_in(list(asked)))
        .group_by(program, maintain_order=True)
        .agg(pl.col("gpu", "speedup", "kernel_id").first().name.prefix("known_"))
    )
    pairs = kernels.join(shown, on=program, maintain_order="left").filter(
        pl.col("gpu") != pl.col("known_gpu")
    )
    ids = [
        pair_id(rule.selection_key, known, kernel)
        for known, kernel in pairs.select("known_kernel_id", "kernel_id").iter_rows()
    ]
    pairs = pairs.with_columns(pl.Series("row_id", ids, pl.String)).sort("row_id")
    cell = ["problem", "known_gpu", "gpu"]
    return pairs.filter(pl.int_range(pl.len()).over(cell) < rule.cap).drop("order")


def select_transfer(
    split: SplitSpec,
    tables: ArchiveTables,
    rule: TransferDefinition,
    members: Mapping[str, pl.DataFrame],
) -> Selection:
    """Select the rows of transfer between GPUs (docs/splits.md).

    ``members`` are the rows of the other splits, by table: what they ask about is not shown, and
    tokens that a trainer gets are left out.

    Raises:
        SplitNotMadeError: no program was measured on two GPUs.
    """
    kernels = tables.kernels("test")
    searches = tables.searches_with(rule.role, natural=rule.natural, builders=rule.builders)
    kernels = kernels.filter(
        pl.col("search_id").is_in(searches["search_id"].implode()),
        ~has_flag(rule.exclude_flags),
        pl.col("program_id") != pl.col("reference_id"),
        ~pl.col("token_id").is_in(tables.training["token_id"].implode()),
    )
    other_splits = [rows for name, rows in members.items() if name.startswith("eval")]
    asked = {name for rows in other_splits for name in rows["row_id"]}
    # A close pair is named by both programs.
    pairs = [members["eval_close"]] if "eval_close" in members else []
    sides = [rows[f"{side}_program"] for rows in pairs for side in ("anchor", "candidate")]
    programs = {name for side in sides for name in side}
    asked |= {*kernels.filter(pl.col("program_id").is_in(list(programs)))["kernel_id"]}
    found = find_transfers(kernels, rule, asked)
    if found.is_empty():
        raise SplitNotMadeError("no held-out program was measured on two GPUs")
    gpus = pl.format("{} to {}", "known_gpu", "gpu")
    rows = with_reference(tables, found.with_columns(bin=None, gpus=gpus)).with_columns(
        row_id=pl.Series(found["row_id"])
    )
    standard = cast("TransferDefinition", canonical_definition(split, tables))
    variant = variant_name(split, rule, standard)
    return make_selection(split, tables, rows, rule, variant, {})
