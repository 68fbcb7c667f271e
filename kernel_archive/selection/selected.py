"""Rows chosen for a split, and what follows from them: the table with its labels, its facts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl
import pyarrow as pa

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.shards import digest_rows
from kernel_archive.bins import N_BINS, SCHEMES, Scheme, assign_bins, representatives
from kernel_archive.errors import printable
from kernel_archive.ids import CANARY, ID_LENGTH, logical_digest, program_id, sha256_hex, token_id
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kernel_archive.selection.tables import ArchiveTables
    from kernel_archive.splits import SplitSpec

#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"
#: Rows that are written with their texts at a time.
PART_ROWS: Final = 20_000
#: Name this many rows in a message; the rest is counted.
NAMED: Final = 10
#: Columns with the ids of both programs of a row, and of their near-duplicate classes.
IDS: Final = ("anchor_program", "anchor_token", "candidate_program", "candidate_token")
#: What the check of leaks knows of a row; ``pair_type`` is null but in training pairs,
#: ``search_id`` empty where unknown.
MEMBER_COLUMNS: Final = ("row_id", "problem", "search_id", "pair_type", *IDS)
MEMBER: Final = pl.Schema(dict.fromkeys(MEMBER_COLUMNS, pl.String))


@dataclass(kw_only=True)
class Selection:
    """Rows chosen for a split, in their defined order.

    Attributes:
        split: the split.
        rows: every column but the canary, and the columns of :data:`IDS`; texts only where no
            source has them.
        source: the tables with the texts of the programs, by their ids.
        variant: ``canonical``, or the name of a variant.
        origin: selected here, or published by others and kept.
        scheme: bin scheme of the labels.
        parameters: everything that the choice depended on.
        counts: facts of the choice.
    """

    split: SplitSpec
    rows: pl.DataFrame
    source: ArchiveTables | None = None
    variant: str = CANONICAL
    origin: Literal["selected", "published"] = "selected"
    scheme: Scheme
    parameters: dict[str, Any]
    counts: dict[str, Any]

    @property
    def members(self) -> pl.DataFrame:
        """The rows as the check of leaks sees them."""
        return members_of(self.split, self.rows)

    def parts(self) -> Iterator[pa.Table]:
        """Yield the table in parts, exactly in the schema of its name."""
        schema = TABLES[self.split.table].schema
        for part in self.rows.iter_slices(PART_ROWS):
            rows = part if self.source is None else self._with_texts(part, self.source)
            missing = set(schema.names) - {*rows.columns, "canary"}
            rows = rows.with_columns(
                pl.lit(CANARY).alias("canary"), *(pl.lit(None).alias(name) for name in missing)
            )
            yield rows.select(schema.names).to_arrow().cast(schema)

    def _with_texts(self, rows: pl.DataFrame, source: ArchiveTables) -> pl.DataFrame:
        """Add both texts; an unknown reference has an empty one."""
        texts = source.texts(pl.concat([rows["anchor_program"], rows["candidate_program"]]))
        for side, column in (("anchor", self.split.anchor), ("candidate", self.split.candidate)):
            named = texts.select(pl.col("program_id").alias(f"{side}_program"), code="code")
            rows = rows.join(named, on=f"{side}_program", how="left", maintain_order="left")
            rows = rows.with_columns(pl.col("code").fill_null("").alias(column)).drop("code")
        return rows

    @cached_property
    def table(self) -> pa.Table:
        """The whole table in memory, exactly in the schema of its name."""
        return pa.concat_tables([TABLES[self.split.table].schema.empty_table(), *self.parts()])

    @cached_property
    def digest(self) -> str:
        """Logical digest over the rows."""
        name = self.split.table
        return logical_digest([row for part in self.parts() for row in digest_rows(name, part)])

    @property
    def facts(self) -> SplitFacts:
        """What the manifest keeps of the split."""
        return SplitFacts(
            name=self.variant,
            origin=self.origin,
            scheme=self.scheme,
            logical_digest=self.digest,
            rows=len(self.rows),
            parameters=self.parameters,
            facts=self.counts,
        )


def label_rows(
    split: SplitSpec, rows: pl.DataFrame, scheme: Scheme, bins: NDArray[np.int8] | None = None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Add labels to rows (columns of the split's table, and :data:`IDS`).

    Return the rows, in the order of the table, and facts of both. ``bins`` are the labels, where
    they are not made from the values.

    Raises:
        DataError: a value is not finite and above 0.
    """
    values = rows[split.value].to_numpy()
    if bins is None:
        bins = assign_bins(values, scheme, row_ids=rows["row_id"].to_list())
    rows = rows.with_columns(pl.Series("bin", bins, pl.Int8), pl.lit(scheme).alias("bin_scheme"))
    facts = {
        **label_facts(values, bins, scheme),
        "cells": cell_counts(rows.select(split.task, "bin").iter_rows()),
        "gpus": count_values(rows["gpu"]),
    }
    if split.kind == "eval":
        facts |= _several_references(rows, split)
    return rows if split.kind == "train" else rows[asked_order(rows["row_id"].to_list())], facts


def label_facts(
    speedups: NDArray[np.float64], bins: NDArray[np.int8], scheme: Scheme
) -> dict[str, Any]:
    """State the representatives of the end bins, and how many rows the two schemes tell apart."""
    m = representatives(speedups, bins, scheme)
    paper, released = (assign_bins(speedups, name) for name in SCHEMES)
    return {
        "m_1": float(m[0]),
        "m_8": float(m[-1]),
        "label_differences": int(np.count_nonzero(paper != released)),
    }


def asked_order(row_ids: Sequence[str]) -> list[int]:
    """Order rows that are asked about: their positions by a hash of the id, which tells no label.

    >>> asked_order(["a", "b", "c"])
    [1, 2, 0]
    """
    hashes = [sha256_hex(f"order:{row_id}".encode()) for row_id in row_ids]
    return sorted(range(len(row_ids)), key=hashes.__getitem__)


def _several_references(rows: pl.DataFrame, split: SplitSpec) -> dict[str, Any]:
    """Count rows per reference of the tasks that have several.

    ``{"several_references": {task: {reference program id: rows}}}``, or nothing.
    """
    counts: dict[str, dict[str, int]] = {}
    pairs = rows.group_by(split.task, "anchor_program").len().sort(split.task, "anchor_program")
    for task, reference, n in pairs.iter_rows():
        counts.setdefault(task, {})[reference] = n
    several = {task: references for task, references in counts.items() if len(references) > 1}
    return {"several_references": several} if several else {}


def with_ids(split: SplitSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the ids of the rows' own texts (:data:`IDS`), whatever ids the table states."""
    for column, side in ((split.anchor, "anchor"), (split.candidate, "candidate")):
        codes = rows[column].unique().to_list()
        ids = {
            column: codes,
            f"{side}_program": [program_id(code) for code in codes],
            f"{side}_token": [token_id(code) for code in codes],
        }
        texts = pl.DataFrame(ids, schema=dict.fromkeys(ids, pl.String))
        rows = rows.join(texts, on=column, how="left", maintain_order="left")
    return rows


def members_of(split: SplitSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Select what the check of leaks needs of rows with ids: :data:`MEMBER`."""
    kind = pl.col("pair_type") if split.kind == "train" else pl.lit(None, pl.String)
    columns = rows.with_columns(problem=split.task, pair_type=kind).select(MEMBER_COLUMNS)
    return columns.cast(MEMBER)


def count_values(values: pl.Series) -> dict[str, int]:
    """Count the values of a column, sorted by value."""
    return dict(sorted(Counter(values.to_list()).items()))


def cell_counts(
    cells: Iterable[tuple[str, int]], always: Iterable[str] = ()
) -> dict[str, list[int]]:
    """Count rows per task and bin, eight counts each, from the task and bin of every row.

    Tasks of ``always`` are in it even without a row: a gap must show.
    """
    counts = Counter(cells)
    names = sorted({*always, *(task for task, _ in counts)})
    return {task: [counts[task, b] for b in range(1, N_BINS + 1)] for task in names}


def name_rows(rows: Sequence[str], length: int = 200) -> str:
    """Name the first rows for a message, each up to a length, and count the others."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(printable(row, length) for row in rows[:NAMED]) + more


def pair_id(prefix: str, first: str, second: str) -> str:
    """Make the id of an ordered pair.

    32 hex digits of sha256 over a prefix and the two ids, separated by NUL.
    """
    return sha256_hex(f"{prefix}\0{first}\0{second}".encode())[:ID_LENGTH]
