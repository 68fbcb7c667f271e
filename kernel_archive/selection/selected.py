"""Rows chosen for a split, and what follows from them.

The table with its labels, its digest, its facts, its members.
"""

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
from kernel_archive.selection.tables import PART_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kernel_archive.selection.tables import ArchiveTexts
    from kernel_archive.splits import SplitSpec

#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"
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
        source: texts of programs by their ids.
        variant: ``canonical``, or the name of a variant.
        origin: selected here, or published by others and kept.
        scheme: bin scheme of the labels.
        parameters: everything that the choice depended on.
        counts: facts of the choice.
    """

    split: SplitSpec
    rows: pl.DataFrame
    source: ArchiveTexts | None = None
    variant: str = CANONICAL
    origin: Literal["selected", "published"] = "selected"
    scheme: Scheme
    parameters: dict[str, Any]
    counts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def members(self) -> pl.DataFrame:
        """The rows as the check of leaks sees them."""
        return members_of(self.split, self.rows)

    def parts(self) -> Iterator[pa.Table]:
        """Yield the table in parts, exactly in the schema of its name."""
        schema = TABLES[self.split.table].schema
        for block in self.rows.iter_slices(self.source.block_rows if self.source else PART_ROWS):
            rows = block.to_arrow()
            if self.source is not None:
                anchor, candidate = (block[f"{side}_program"] for side in ("anchor", "candidate"))
                texts = self.source.fetch(anchor.to_list())
                rows = rows.append_column(self.split.anchor, texts)
                texts = self.source.fetch(candidate.to_list())
                rows = rows.append_column(self.split.candidate, texts)
            for start in range(0, rows.num_rows, PART_ROWS):
                part = rows.slice(start, PART_ROWS)
                part = part.append_column("canary", pa.array([CANARY] * part.num_rows, pa.string()))
                for column in set(schema.names).difference(part.column_names):
                    part = part.append_column(column, pa.nulls(part.num_rows))
                yield part.select(schema.names).cast(schema)

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
            rows=len(self),
            parameters=self.parameters,
            facts=self.counts,
        )


def label_rows(
    split: SplitSpec, rows: pl.DataFrame, scheme: Scheme, bins: NDArray[np.int8] | None = None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Add labels to rows (columns of the split's table, and :data:`IDS`).

    Return the rows, in the order of the table, and facts of both.

    ``bins`` are the labels, where they are not made from the values.

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
        "searches": len({*rows["search_id"]} - {""}),
    }
    if split.kind == "eval":
        facts |= _several_references(rows, split)
    return rows if split.kind == "train" else rows[asked_order(rows["row_id"].to_list())], facts


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


def with_ids(split: SplitSpec, rows: pl.DataFrame, tokens: dict[str, str]) -> pl.DataFrame:
    """Add the ids of the rows' own texts (:data:`IDS`): what a table holds, whatever ids it states.

    ``tokens`` are token ids by program id, where known already; what is computed is added.
    """
    for column, side in ((split.anchor, "anchor"), (split.candidate, "candidate")):
        ids: dict[str, str] = {}
        for code in rows[column].unique():
            ids[code] = program_id(code)
            if ids[code] not in tokens:
                tokens[ids[code]] = token_id(code)
        programs = [ids[code] for code in rows[column]]
        rows = rows.with_columns(
            pl.Series(f"{side}_program", programs, pl.String),
            pl.Series(f"{side}_token", [tokens[name] for name in programs], pl.String),
        )
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
    cells: Iterable[tuple[Any, ...]], always: Iterable[str] = ()
) -> dict[str, list[int]]:
    """Count rows per task and bin, eight counts each, from the task and bin of every row.

    Tasks of ``always`` are in it even without a row: a gap must show.
    """
    found = Counter(cells)
    names = sorted({*always, *(task for task, _ in found)})
    return {task: [found[task, b] for b in range(1, N_BINS + 1)] for task in names}


def name_rows(rows: Sequence[str], length: int = 200) -> str:
    """Name the first rows for a message, each up to a length, and count the others."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(printable(row, length) for row in rows[:NAMED]) + more


def pair_id(prefix: str, first: str, second: str) -> str:
    """Make the id of an ordered pair.

    32 hex digits of sha256 over a prefix and the two ids, separated by NUL.
    """
    return sha256_hex(f"{prefix}\0{first}\0{second}".encode())[:ID_LENGTH]


def label_facts(
    speedups: NDArray[np.float64], bins: NDArray[np.int8], scheme: Scheme
) -> dict[str, Any]:
    """Return representatives of the end bins, rows per bin.

    And how many rows the two schemes label differently.
    """
    m = representatives(speedups, bins, scheme)
    paper, released = (assign_bins(speedups, name) for name in SCHEMES)
    return {
        "m_1": float(m[0]),
        "m_8": float(m[-1]),
        "bins": np.bincount(bins, minlength=N_BINS + 1)[1:].tolist(),
        "label_differences": int(np.count_nonzero(paper != released)),
    }
