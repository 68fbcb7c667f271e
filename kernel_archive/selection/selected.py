"""Rows chosen for a split, and what follows from them: the table with its labels, its facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.shards import keyed_digests
from kernel_archive.bins import (
    N_BINS,
    SCHEMES,
    assign_bins,
    checked_scheme,
    outcome_speedups,
    representatives,
)
from kernel_archive.errors import printable
from kernel_archive.ids import CANARY, ID_LENGTH, logical_digest, program_id, sha256_hex, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.tables import ArchiveTables, pair_key
from kernel_archive.splits import SPLIT_TABLES, Kind, SplitSpec

#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"
#: Rows that are written with their texts at a time.
PART_ROWS: Final = 4_000
#: Name this many rows in a message; the rest is counted.
NAMED: Final = 10
_LEAK_ID_COLUMNS: Final = (
    *("row_id", "problem", "search_id", "pair_type"),
    *("anchor_program", "anchor_token", "candidate_program", "candidate_token"),
)
#: Columns by which the check of leaks knows a row: ids of both programs and of their near-duplicate
#: classes; ``pair_type`` is null but in training pairs, ``search_id`` empty where unknown.
LEAK_IDS: Final = pl.Schema(dict.fromkeys(_LEAK_ID_COLUMNS, pl.String))


class ChosenRows(NamedTuple):
    """What a definition selects of an archive, without labels."""

    rows: pl.DataFrame  # with ``row_id``, the value of the split and the ids of LEAK_IDS
    facts: Mapping[str, Any]  # facts of the choice
    gpu: str | None = None  # GPU of the rows, where there is one only
    gpus: Mapping[str, int] = {}  # kernels that qualify on each GPU, where one of them was chosen


@dataclass(kw_only=True)
class Selection:
    """Rows chosen for a split, in their defined order."""

    split: SplitSpec
    #: Every column but the canary, and the ids of LEAK_IDS; texts only where no source has them.
    rows: pl.DataFrame
    source: ArchiveTables | None = None  # has the texts of the programs, by their ids
    base_facts: SplitFacts  # facts of the rows, but for their digest

    def parts(self) -> Iterator[pa.Table]:
        """Yield the table in parts, exactly in the schema of its name."""
        if "table" in vars(self):  # cached there once the check of leaks has read it
            yield self.table
            return
        schema = TABLES[self.split.table].schema
        yield pa.Table.from_batches([], schema)  # an empty table of it imports pandas
        for part in self.rows.iter_slices(PART_ROWS):
            rows = part if self.source is None else self._with_texts(part, self.source)
            missing = dict.fromkeys(set(schema.names) - set(rows.columns))
            rows = rows.with_columns(**{**missing, "canary": pl.lit(CANARY)})
            yield rows.select(schema.names).to_arrow().cast(schema)

    def _with_texts(self, rows: pl.DataFrame, source: ArchiveTables) -> pl.DataFrame:
        """Add both texts; an unknown reference has an empty one."""
        texts = source.texts(pl.concat([rows["anchor_program"], rows["candidate_program"]]))
        for side, column in (("anchor", self.split.anchor), ("candidate", self.split.candidate)):
            own = texts.rename({"program_id": f"{side}_program", "code": column})
            rows = rows.join(own, on=f"{side}_program", how="left", maintain_order="left")
        return rows.with_columns(pl.col(self.split.anchor, self.split.candidate).fill_null(""))

    @cached_property
    def table(self) -> pa.Table:
        """The whole table in memory, exactly in the schema of its name."""
        return pa.concat_tables(self.parts())

    @cached_property
    def facts(self) -> SplitFacts:
        """What the manifest keeps of the split, with the logical digest over the rows."""
        name = self.split.table
        digests = [row for part in self.parts() for row in keyed_digests(name, part)]
        return msgspec.structs.replace(self.base_facts, logical_digest=logical_digest(digests))


def label_rows(
    split: SplitSpec,
    rows: pl.DataFrame,
    base_facts: SplitFacts,
    source: ArchiveTables | None = None,
) -> Selection:
    """Label rows, put them in the order of their table, and add facts of the labels.

    ``base_facts`` are the other facts. The labels are made from the values, unless the rows have
    them as ``bin``.

    Raises:
        DataError: a value is not finite and above 0.
    """
    scheme = checked_scheme(base_facts.scheme)
    values, row_ids = rows[split.value].to_numpy(), rows["row_id"].to_list()
    values = outcome_speedups(values) if split.asks_outcome else values
    labels = {each: assign_bins(values, each, row_ids=row_ids) for each in SCHEMES}
    if "bin" not in rows.columns:
        rows = rows.with_columns(pl.Series("bin", labels[scheme], pl.Int8))
    rows = rows.with_columns(bin_scheme=pl.lit(scheme))
    bin_representatives = representatives(values, rows["bin"].to_numpy(), scheme)
    facts = {
        "m_1": float(bin_representatives[0]),
        "m_8": float(bin_representatives[-1]),
        "label_differences": int(np.count_nonzero(labels["paper"] != labels["released"])),
        "cells": cell_counts(rows.select(split.task, "bin").iter_rows()),
        "gpus": count_values(rows["gpu"]),
    }
    rows = rows if split.kind == "train" else by_hash(rows)
    base_facts = msgspec.structs.replace(base_facts, facts={**facts, **base_facts.facts})
    return Selection(split=split, rows=rows, source=source, base_facts=base_facts)


def by_hash(rows: pl.DataFrame, id_column: str = "row_id", key: str = "order:") -> pl.DataFrame:
    """Sort rows by sha256 of a key and their id, which tells no label.

    >>> by_hash(pl.DataFrame({"row_id": ["a", "b", "c"]}))["row_id"].to_list()
    ['b', 'c', 'a']
    """
    hashes = [sha256_hex(f"{key}{row_id}".encode()) for row_id in rows[id_column]]
    return rows[sorted(range(len(rows)), key=hashes.__getitem__)]


def with_ids(split: SplitSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Add the ids of the rows' own texts (:data:`LEAK_IDS`), whatever ids the table states."""
    for column, side in ((split.anchor, "anchor"), (split.candidate, "candidate")):
        texts = rows.select(pl.col(column).unique())  # each text is read once, however many pairs
        for name, make_id in (("program", program_id), ("token", token_id)):
            ids = [None if code is None else make_id(code) for code in texts[column]]
            texts = texts.with_columns(pl.Series(f"{side}_{name}", ids, pl.String))
        rows = rows.join(texts, on=column, how="left", maintain_order="left")
    return rows


def leak_ids(split: SplitSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """Select the columns of rows that the check of leaks needs: :data:`LEAK_IDS`."""
    kind = pl.col("pair_type") if split.kind == "train" else None
    rows = rows.with_columns(problem=split.problem, pair_type=kind)
    return rows.select(LEAK_IDS.names()).cast(LEAK_IDS)


def ids_of_kinds(members: Mapping[str, pl.DataFrame], *kinds: Kind) -> pl.DataFrame:
    """Concatenate the ids of the rows of splits of these kinds; ``members`` are by table."""
    chosen = (rows for name, rows in members.items() if SPLIT_TABLES[name].kind in kinds)
    return pl.concat([LEAK_IDS.to_frame(), *chosen])


def pair_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Write both programs of a row as one ``key``, and their near-duplicate classes as another."""
    keys = (pair_key(f"anchor_{kind}", f"candidate_{kind}") for kind in ("program", "token"))
    return pl.concat(rows.select("row_id", key=key) for key in keys)


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


def with_pair_ids(rows: pl.DataFrame, prefix: str, first: str, second: str) -> pl.DataFrame:
    """Add ``row_id`` of ordered pairs, whose ids are in two columns.

    32 hex digits of sha256 over a prefix and the two ids, separated by NUL.
    """
    pairs = rows.select(first, second).iter_rows()
    ids = [sha256_hex(f"{prefix}\0{a}\0{b}".encode())[:ID_LENGTH] for a, b in pairs]
    return rows.with_columns(pl.Series("row_id", ids, pl.String))
