"""Splits that others published: kept with their ids and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.errors import DataError
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import kernel_id
from kernel_archive.problems import family_of, normalise_problem
from kernel_archive.program_text import language_of
from kernel_archive.selection.discovery import cutoff_counts
from kernel_archive.selection.selected import (
    CANONICAL,
    Selection,
    count_values,
    label_rows,
    name_rows,
    with_ids,
)
from kernel_archive.splits import SPLIT_TABLES, SplitSpec


def read_published(staged: Sequence[Path | IO[bytes]]) -> list[Selection]:
    """Read the published rows of staged files; return a split for each table that has some.

    Raises:
        DataError: a row id stands twice.
    """
    if not staged:
        return []
    rows = pl.concat([pl.DataFrame(pq.read_table(path)).sort("order") for path in staged])
    parts = {str(name): part for (name,), part in rows.partition_by("split", as_dict=True).items()}
    return [
        published_split(split, parts[name]) for name, split in SPLIT_TABLES.items() if name in parts
    ]


def published_split(split: SplitSpec, rows: pl.DataFrame) -> Selection:
    """Make a split of its published rows; ids, texts and labels stay as they were published.

    ``rows`` have the fields of :class:`~kernel_archive.readers.records.PublishedRow`.
    """
    repeated = rows.filter(pl.col("row_id").is_duplicated())["row_id"].unique().sort().to_list()
    if repeated:
        message = f"row ids stand twice in the published {split.table}: {name_rows(repeated)}"
        raise DataError.of(code="duplicate-row", message=message)
    problems = [normalise_problem(problem) for problem in rows["problem"]]
    languages = [language_of(code) for code in rows["candidate_code"]]
    values: dict[str, Any] = {
        "row_id": rows["row_id"],
        "problem": problems,
        split.task: problems,
        "family": [family_of(problem) for problem in problems],
        "gpu": [canonical_gpu(gpu) for gpu in rows["gpu"]],
        "search_id": rows["source_search"].fill_null(""),
        "pair_type": rows["pair_type"].fill_null("pair"),
        "language": languages,
        "child_language": languages,
        "parent_language": [language_of(code) for code in rows["anchor_code"]],
        split.anchor: rows["anchor_code"],
        split.candidate: rows["candidate_code"],
    }
    table = pl.DataFrame(values, schema=dict.fromkeys(values, pl.String))
    table = with_ids(split, table.with_columns(rows["speedup"].alias(split.value)))
    # The candidate was timed against the anchor where the anchor is a reference.
    timed = pl.lit(split.kind == "eval") | (pl.col("pair_type") == "seed")
    reference = pl.when(timed).then("anchor_program").otherwise(pl.lit(""))
    table = table.with_columns(
        _kernel_ids(table, "candidate", reference).alias(split.kernel),
        _kernel_ids(table, "anchor", pl.lit("")).alias("parent_kernel_id"),
        anchor_program_id="anchor_program",
        bin=rows["label"].cast(pl.Int8),
    )
    facts: dict[str, Any] = {}
    if split.cutoffs:
        facts["cutoffs"] = cutoff_counts(table, split.value, split.cutoffs)
    if split.kind == "train":
        facts["kinds"] = count_values(table["pair_type"])
    gpus, files = table["gpu"].unique(), sorted(rows["source_file"].unique())
    base_facts = SplitFacts(
        name=CANONICAL,
        origin="published",
        scheme="released",  # the rule that the published labels follow
        logical_digest="",
        rows=len(table),
        parameters={"files": files, "gpu": gpus.item() if len(gpus) == 1 else None},
        facts=facts,
    )
    return label_rows(split, table, base_facts)


def _kernel_ids(rows: pl.DataFrame, side: str, reference: pl.Expr) -> pl.Series:
    """Name the kernels of one side by their problem, reference, GPU and program."""
    columns = ("problem", reference.alias("reference"), "gpu", f"{side}_program")
    ids = [
        kernel_id(problem=problem, reference_program_id=reference_id, gpu=gpu, program=program)
        for problem, reference_id, gpu, program in rows.select(columns).iter_rows()
    ]
    return pl.Series(ids, dtype=pl.String)
