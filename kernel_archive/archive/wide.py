"""Rows with their texts and cases, taken out of the staged fragments by position and written, split by split.

Which row stands where was decided before (:mod:`kernel_archive.archive.consolidate`), over columns without texts. Only a
few thousand rows are held with their texts at a time, so that memory does not grow with the archive.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.shards import SplitRows, write_split
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["WideSplit"]

#: So many rows of one table are held with their texts at a time.
CHUNK_ROWS: Final = 4000
#: Columns of the evaluation that the label or the refusal comes from; all others are of the one that found the program.
_LABEL_COLUMNS: Final = {
    "kernels": ("runtime_us", "reference_runtime_us", "cases"),
    "failures": ("outcome", "error_type", "error_text"),
}


@dataclass(frozen=True, kw_only=True)
class WideSplit:
    """One split of ``kernels``, ``failures`` or ``evaluations`` to write, by whichever process.

    Attributes:
        table: its table.
        split: its name.
        directory: the archive directory.
        fragments: search id -> staged fragment.
        scheme: bin scheme of the labels.
        narrow: for ``evaluations`` the reasons of those that do not count (``evaluation_id``, ``reason``); for the others
            the rows to write, without texts, with the search and the position in its fragment (``search_id``, ``seq``) of
            the evaluation that found the program, and of the one for the label (``label_search``, ``label_seq``).
    """

    table: str
    split: str
    directory: Path
    fragments: dict[str, Path]
    scheme: Scheme
    narrow: pa.Table

    def write(self) -> SplitRows:
        """Write the split's shards."""
        rows = self._evaluations() if self.table == "evaluations" else map(self._joined, _chunks(self.narrow))
        metadata = {"bin_scheme": self.scheme} if self.table == "kernels" else None
        return write_split(self.directory, self.table, self.split, map(self._shaped, rows), metadata=metadata)

    def _evaluations(self) -> Iterator[pa.Table]:
        """Rows of ``evaluations``, all of them, by search."""
        columns = [c.name for c in TABLES["evaluations"].columns if c.name != "canary"]
        reasons = dict(zip(*(column.to_pylist() for column in self.narrow.columns), strict=True))
        for path, names in itertools.groupby(sorted(self.fragments), key=self.fragments.__getitem__):
            rows = pq.ParquetFile(path).read(columns)
            # A file of several searches comes again for each that stands apart in the order.
            rows = rows.filter(pc.is_in(rows["search_id"], pa.array([*names], pa.string())))
            rows = rows.take(pc.sort_indices(rows["search_id"])) if len(pc.unique(rows["search_id"])) > 1 else rows
            reason = pa.array([reasons.get(key) for key in rows["evaluation_id"].to_pylist()], pa.string())
            at = rows.schema.get_field_index("excluded")
            yield rows.set_column(at, "excluded", pc.coalesce(rows["excluded"], reason))

    def _joined(self, chunk: pa.Table) -> pa.Table:
        """Narrow rows with the columns of the two evaluations that each names."""
        known = {*chunk.column_names, "bin", "bin_scheme", "canary", *_LABEL_COLUMNS[self.table]}
        columns = [name for name in TABLES[self.table].schema.names if name not in known]
        found = self._take(chunk["search_id"].to_pylist(), chunk["seq"].to_pylist(), columns)
        label = self._take(
            chunk["label_search"].to_pylist(), chunk["label_seq"].to_pylist(), list(_LABEL_COLUMNS[self.table])
        )
        for part in (found, label):
            for name in part.column_names:
                chunk = chunk.append_column(name, part[name])
        if self.table == "kernels":
            chunk = chunk.append_column("bin", pa.array(assign_bins(chunk["speedup"].to_numpy(), self.scheme)))
            chunk = chunk.append_column("bin_scheme", pa.repeat(self.scheme, chunk.num_rows))
        return chunk

    def _take(self, searches: list[str], positions: list[int], columns: list[str]) -> pa.Table:
        """Rows of fragments by search and position, in the order asked for; each fragment is read once."""
        wanted: dict[Path, list[int]] = {}
        for i, name in enumerate(searches):
            wanted.setdefault(self.fragments[name], []).append(i)
        parts = [
            pq.ParquetFile(path).read(columns).take(pa.array([positions[i] for i in rows], pa.int64()))
            for path, rows in wanted.items()
        ]
        order = [i for rows in wanted.values() for i in rows]
        rows = pa.concat_tables(parts)
        return rows if order == sorted(order) else rows.take(pc.sort_indices(pa.array(order, pa.int64())))

    def _shaped(self, rows: pa.Table) -> pa.Table:
        """Columns as the schema orders them, with the canary."""
        schema = TABLES[self.table].schema
        return rows.append_column("canary", pa.repeat(CANARY, rows.num_rows)).select(schema.names).cast(schema)


def _chunks(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of narrow rows that end where searches end, of about ``CHUNK_ROWS`` rows."""
    searches = rows["search_id"].to_pylist()
    start = 0
    for end in range(1, len(searches) + 1):
        if end == len(searches) or (end - start >= CHUNK_ROWS and searches[end] != searches[end - 1]):
            yield rows.slice(start, end - start)
            start = end
