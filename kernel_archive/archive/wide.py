"""Rows with their texts and cases, taken out of the staged fragments by position, and written, table by table.

What row stands where was decided before (:mod:`kernel_archive.archive.consolidate`), which hands it on as narrow tables.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.reasons import WITHHELD
from kernel_archive.archive.shards import SplitRows, write_split
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["WideRows", "WritePart", "narrow_file"]

#: So many rows of one table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: Columns of the evaluation that the label or the refusal comes from; all others are of the one that found the program.
_LABEL_COLUMNS: Final = {
    "kernels": ("runtime_us", "reference_runtime_us", "cases"),
    "failures": ("outcome", "error_type", "error_text"),
}


def narrow_file(scratch: Path, name: str) -> Path:
    """Where the consolidation leaves a narrow table for the writers."""
    return scratch / f"{name}.narrow.parquet"


class WideRows:
    """Rows of one table with their texts, taken out of the fragments by position, a few searches at a time."""

    def __init__(self, fragments: Mapping[str, Path], scheme: Scheme, scratch: Path) -> None:
        """The same arguments as :class:`Consolidation`, which must have been made before."""
        self.fragments = fragments
        self.scheme = scheme
        self.scratch = scratch

    def narrow(self, name: str) -> pa.Table:
        """A table that the consolidation handed on."""
        return pq.read_table(narrow_file(self.scratch, name))

    def rows(self, table: str, split: str) -> Iterator[pa.Table]:
        """Rows of one split of ``kernels``, ``failures`` or ``evaluations``."""
        if table == "kernels":
            return self.kernels(split)
        return self.failures() if table == "failures" else self.evaluations()

    def take(self, searches: list[str], positions: list[int], columns: list[str]) -> pa.Table:
        """Rows of fragments by search and position in the fragment; neighbours of one fragment are read together."""
        parts: list[pa.Table] = []
        places = enumerate(self.fragments[name] for name in searches)
        for path, group in itertools.groupby(places, key=lambda place: place[1]):
            at = [positions[i] for i, _ in group]
            parts.append(pq.ParquetFile(path).read(columns).take(pa.array(at, pa.int64())))
        return pa.concat_tables(parts)

    def kernels(self, split: str) -> Iterator[pa.Table]:
        """Rows of ``kernels`` for ``train`` or ``test``, by search and position in it."""
        kernel = self.narrow("kernel")
        kernel = kernel.filter(kernel["held_out"] if split == "test" else pc.invert(kernel["held_out"]))
        for chunk in _chunks(kernel.drop_columns(["held_out"])):
            rows = self.joined(chunk, "kernels")
            rows = rows.append_column("bin", pa.array(assign_bins(rows["speedup"].to_numpy(), self.scheme)))
            yield _shaped(rows.append_column("bin_scheme", pa.repeat(self.scheme, rows.num_rows)), "kernels")

    def joined(self, chunk: pa.Table, table: str) -> pa.Table:
        """Narrow rows with the columns of the evaluations that they name."""
        rows = chunk.drop_columns(["seq", "label_search", "label_seq"])
        found = self.found(chunk, table)
        label = self.labels(chunk, found, _LABEL_COLUMNS[table])
        for name in found.column_names:
            rows = rows.append_column(name, (label if name in _LABEL_COLUMNS[table] else found)[name])
        return rows

    def found(self, chunk: pa.Table, table: str) -> pa.Table:
        """The columns of a table that its narrow rows do not have, from the evaluations that they name."""
        known = {*chunk.column_names, "bin", "bin_scheme", "canary"}
        columns = [name for name in TABLES[table].schema.names if name not in known]
        return self.take(chunk["search_id"].to_pylist(), chunk["seq"].to_pylist(), columns)

    def labels(self, chunk: pa.Table, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Columns of the evaluations nearest to the medians, or of the refusals; mostly those that found the programs."""
        own = zip(chunk["search_id"].to_pylist(), chunk["seq"].to_pylist(), strict=True)
        nearest = zip(chunk["label_search"].to_pylist(), chunk["label_seq"].to_pylist(), strict=True)
        elsewhere = sorted(
            (place, i) for i, (mine, place) in enumerate(zip(own, nearest, strict=True)) if mine != place
        )
        label = found.select(columns)
        if not elsewhere:
            return label
        searches, positions = zip(*(place for place, _ in elsewhere), strict=True)
        others = self.take([*searches], [*positions], [*columns])
        at = list(range(chunk.num_rows))
        for j, (_, i) in enumerate(elsewhere):
            at[i] = chunk.num_rows + j
        return pa.concat_tables([label, others]).take(pa.array(at, pa.int64()))

    def failures(self) -> Iterator[pa.Table]:
        """Rows of ``failures``."""
        for chunk in _chunks(self.narrow("failure")):
            yield _shaped(self.joined(chunk, "failures"), "failures")

    def evaluations(self) -> Iterator[pa.Table]:
        """Rows of ``evaluations``, all of them."""
        columns = [c.name for c in TABLES["evaluations"].columns if c.name != "canary"]
        overruled = dict(zip(*(column.to_pylist() for column in self.narrow("overruled").columns), strict=True))
        withheld = frozenset(self.narrow("withheld")["kernel_id"].to_pylist())
        for path, names in itertools.groupby(sorted(self.fragments), key=self.fragments.__getitem__):
            rows = pq.ParquetFile(path).read(columns)
            # A file of several searches comes again for each that stands apart in the order.
            mine = rows.filter(pc.is_in(rows["search_id"], pa.array([*names], pa.string())))
            mine = mine.take(pc.sort_indices(mine["search_id"])) if len(pc.unique(mine["search_id"])) > 1 else mine
            reason = pa.array(
                [
                    overruled.get(evaluation) or (WITHHELD if kernel in withheld else None)
                    for evaluation, kernel in zip(
                        mine["evaluation_id"].to_pylist(), mine["kernel_id"].to_pylist(), strict=True
                    )
                ],
                pa.string(),
            )
            at = mine.schema.get_field_index("excluded")
            yield _shaped(mine.set_column(at, "excluded", pc.coalesce(mine["excluded"], reason)), "evaluations")


def _chunks(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of narrow rows that end where searches end, of about ``CHUNK_ROWS`` rows."""
    searches = rows["search_id"].to_pylist()
    start = 0
    for end in range(1, len(searches) + 1):
        if end == len(searches) or (end - start >= CHUNK_ROWS and searches[end] != searches[end - 1]):
            yield rows.slice(start, end - start)
            start = end


class WritePart(msgspec.Struct, frozen=True, kw_only=True):
    """One wide split to write, by whichever process: ``run`` does it."""

    table: str
    split: str
    directory: Path
    fragments: dict[str, Path]
    scheme: Scheme
    scratch: Path

    def run(self) -> SplitRows:
        """Write the split's shards."""
        wide = WideRows(self.fragments, self.scheme, self.scratch)
        metadata = {"bin_scheme": self.scheme} if self.table == "kernels" else None
        return write_split(self.directory, self.table, self.split, wide.rows(self.table, self.split), metadata=metadata)


def _shaped(rows: pa.Table, table: str) -> pa.Table:
    """Columns as the schema orders them, with the canary."""
    schema = TABLES[table].schema
    if "canary" not in rows.column_names:
        rows = rows.append_column("canary", pa.array([CANARY] * rows.num_rows, pa.string()))
    return rows.select(schema.names).cast(schema)
