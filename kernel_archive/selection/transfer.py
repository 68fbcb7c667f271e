"""Transfer between GPUs: the same program measured on two, its speedup on one of them shown.

Asked is the speedup on the other GPU. A program is shown on one GPU only, and every row about it
asks about another: no label is the shown speedup of another row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kernel_archive.ids import sha256_hex
from kernel_archive.selection.selected import pair_id

if TYPE_CHECKING:
    from collections.abc import Collection

    from kernel_archive.selection.definitions import TransferDefinition


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
