"""What selection reads of an archive: narrow columns, each read once, and program texts only where rows need them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.schema import TABLES
from kernel_archive.selection.edges import EDGE_COLUMNS
from kernel_archive.selection.near import Neighbours, training_programs
from kernel_archive.selection.texts import PART_ROWS, ArchiveTexts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.selection.texts import Texts

__all__ = ["ArchiveTables"]

_NARROW: Final = (
    "kernel_id", "program_id", "token_id", "problem", "family", "gpu", "speedup", "reference_id", "search_id",
    "language", "n_measurements", "speedup_min", "speedup_max", "flags",
)  # fmt: skip


class ArchiveTables:
    """Narrow columns of an archive's tables, each read once."""

    def __init__(self, archive: Archive) -> None:
        """An opened archive."""
        self.archive = archive

    def read(self, table: str, columns: Sequence[str], split: str | None = None) -> pa.Table:
        """Columns of a table (of one split); no rows where the archive has no such split."""
        if split is not None and split not in self.archive.manifest.tables[table].splits:
            schema = TABLES[table].schema
            return pa.schema([schema.field(name) for name in columns]).empty_table()
        return self.archive.arrow(table, split, columns=columns)

    @cached_property
    def test(self) -> pa.Table:
        """Split ``test`` of ``kernels`` without texts and cases."""
        return self.read("kernels", _NARROW, "test")

    @cached_property
    def train(self) -> pa.Table:
        """Split ``train`` of ``kernels`` without texts and cases."""
        return self.read("kernels", _NARROW, "train")

    @cached_property
    def kernels(self) -> pa.Table:
        """Both splits of ``kernels``, with cases."""
        return self.read("kernels", [*_NARROW, "cases"])

    @cached_property
    def failures(self) -> pa.Table:
        """Identity of the failing programs."""
        return self.read("failures", ["program_id", "token_id"])

    @cached_property
    def evaluations(self) -> pa.Table:
        """Lineage and outcome of the evaluations."""
        return self.read("evaluations", [*EDGE_COLUMNS, "program_id"])

    @cached_property
    def searches(self) -> pa.Table:
        """The searches."""
        return self.read(
            "searches", ["search_id", "builder", "role", "problem", "generation_method", "finished", "source_digest"]
        )

    @cached_property
    def references(self) -> pa.Table:
        """The reference programs."""
        return self.read("references", ["reference_id", "problem", "benchmark_cases", "rtol", "atol", "code"])

    @cached_property
    def natural(self) -> frozenset[str]:
        """Builders whose recipe says that every program was written whole, one by one."""
        return frozenset(str(b["name"]) for b in self.archive.manifest.builders if b.get("natural") is True)

    def searches_of(self, *, natural: bool, builders: Sequence[str]) -> frozenset[str]:
        """Searches of these builders, of every one where none is named; ``natural``: only of those whose recipe says so."""
        rows = zip(self.searches["search_id"].to_pylist(), self.searches["builder"].to_pylist(), strict=True)
        return frozenset(
            search
            for search, builder in rows
            if (not builders or builder in builders) and (not natural or builder in self.natural)
        )

    @cached_property
    def evaluation(self) -> dict[str, Any] | None:
        """What the archive says itself that its evaluation split asks about; ``None`` where the shipped definitions say it."""
        return self.archive.manifest.evaluation

    @cached_property
    def neighbours(self) -> Neighbours:
        """How near programs are to the training programs of their problem."""
        return Neighbours(training_programs(self))

    @cached_property
    def roles(self) -> dict[str, str]:
        """Search id -> role of the search."""
        return dict(zip(self.searches["search_id"].to_pylist(), self.searches["role"].to_pylist(), strict=True))

    @cached_property
    def tokens(self) -> dict[str, str]:
        """Program id -> token id of every program that the archive knows."""
        known: dict[str, str] = {}
        for table in (self.test, self.train, self.failures):
            known.update(zip(table["program_id"].to_pylist(), table["token_id"].to_pylist(), strict=True))
        return known

    @cached_property
    def texts(self) -> Texts:
        """Texts of kernels and references by program id."""
        return ArchiveTexts(self.archive)

    def stored(self, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of a split's table where the archive has one, a few rows at a time."""
        if table in self.archive.manifest.tables:
            yield from self.parts(table, columns)

    def parts(self, table: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of a split's table, a few rows at a time."""
        for path in self.archive.files(table):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=PART_ROWS, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns))
