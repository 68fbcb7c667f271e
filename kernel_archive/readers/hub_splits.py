"""``hub-eval-set``, ``hub-discovery-pairs`` and ``hub-training-pool``: published splits.

Each row keeps the id, place and label it was published with. A row of the evaluation set is also a
measurement of a candidate against its reference, so that reader yields an evaluation, too.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import Finding
from kernel_archive.readers.files import MAX_FILE_BYTES, MAX_LINE_BYTES
from kernel_archive.readers.reading import LogReader, log_format
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.salvage import RowKind, Salvage
from kernel_archive.readers.values import inner_value, natural, positive, text_of
from kernel_archive.untrusted import allowance
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.files import ReaderSpec, RunFiles
    from kernel_archive.readers.records import Record
    from kernel_archive.readers.salvage import FindingLog

Split: TypeAlias = Literal["eval", "discovery_pairs", "train_pairs"]
#: Rows of a Parquet table; larger ones are refused.
_MAX_ROWS: Final = 1_000_000
_OBJECTS: Final = RowKind[dict[str, Any]](dict[str, Any])
#: Fields that every published row must have; each table has names of its own for them.
_REQUIRED: Final = ("row_id", "problem", "anchor_code", "candidate_code", "speedup", "label", "gpu")
_OPTIONAL: Final = ("pair_type", "parent_node_id", "child_node_id", "source_search")


def table_rows(
    run: RunFiles, path: Path, findings: FindingLog, columns: set[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a Parquet or JSON lines table with their numbers from 1.

    Nothing is yielded of a table whose first row lacks one of ``columns``.
    """
    name = run.name(path)
    if run.head(path, 4) == b"PAR1":
        items = parquet_rows(
            path,
            name=name,
            wanted=None,
            max_rows=_MAX_ROWS,
            max_bytes=allowance(path, MAX_FILE_BYTES),
            max_row=MAX_LINE_BYTES,
        )
    else:
        items = Salvage(_OBJECTS, name, findings, {}).rows(run.lines(path))
    is_first = True
    for item in items:
        if isinstance(item, Finding):
            findings.add(item)
            if item.code == "unreadable":  # pages are compressed
                run.unsound.add(name)
            continue
        if is_first and not item[1].keys() >= columns:
            return
        is_first = False
        yield item


class _Published(LogReader):
    """One published table; ``names`` are its columns for the required fields."""

    def __init__(self, *arguments: Any, split: Split, names: dict[str, str]) -> None:
        super().__init__(*arguments)
        self.split: Split = split
        self.names = names
        self.rows: dict[str, PublishedRow] = {}

    def read(self, path: Path) -> bool:
        """Read the table; return whether a row of it is of the format."""
        columns = {self.names[field] for field in ("row_id", "anchor_code", "candidate_code")}
        for line, row in table_rows(self.run, path, self.findings, columns):
            self.add_row(line, row)
        return bool(self.rows or self.facts.counts)

    def add_row(self, line: int, row: dict[str, Any]) -> None:
        """Add one published row."""
        names, (low, high) = self.names, SPEEDUP_RANGE
        values: dict[str, Any] = {ours: text_of(row.get(theirs)) for ours, theirs in names.items()}
        speedup = positive(row.get(names["speedup"]))
        values["speedup"] = speedup if speedup is not None and low <= speedup <= high else None
        values["label"] = natural(row.get(names["label"]), N_BINS) or None
        values["gpu"] = values["gpu"] or text_of(inner_value(row, f"{names['gpu']}.device_name"))
        lacking = next((names[ours] for ours, value in values.items() if value is None), None)
        name = values["row_id"]
        if lacking is not None or name in self.rows:
            lacking, code = lacking or names["row_id"], "bad-row" if lacking else "duplicate-row"
            message = "the row lacks a value, has a wrong one, or an id that stood before; skipped"
            self.error(code, message, line=line, field=lacking, value=repr(row.get(lacking)))
            self.count("rows_skipped")
            return
        if bin_of(values["speedup"], "released") != values["label"]:
            message = f"not the released rule's label of {speedup:.6g}; kept as published"
            where = {"field": names["label"], "value": str(values["label"])}
            self.warning("label-differs", message, line=line, **where)
        more: dict[str, Any] = {field: text_of(row.get(field)) for field in _OPTIONAL}
        self.rows[name] = PublishedRow(
            split=self.split,
            order=len(self.rows),
            source_file=self.file,
            source_line=line,
            **values,
            **more,
        )

    def records(self) -> Iterator[Record]:
        """Yield the rows, those of the evaluation set also as evaluations of their searches."""
        searches: Counter[str | None] = Counter()
        for row in self.rows.values():
            yield row
            searches[row.source_search if self.split == "eval" else None] += 1
            if self.split == "eval":
                yield Evaluation(
                    node_id=row.row_id,
                    code=row.candidate_code,
                    outcome="success",
                    source_file=row.source_file,
                    source_line=row.source_line,
                    speedup=row.speedup,
                    problem=row.problem,
                    gpu=row.gpu,
                    reference_code=row.anchor_code,
                    search=row.source_search,
                )
        yield from self.findings
        counts = self.facts.counts
        for search, n in (searches or {None: 0}).items():
            yield SearchFacts(search=search, counts={"published_rows": n, **counts})
            counts = {}


def _published(name: str, split: Split, columns: str) -> ReaderSpec:
    """Make the spec of one table; ``columns`` are its names for the required fields."""
    names = dict(zip(_REQUIRED, columns.split(), strict=True))
    return log_format(name, partial(_Published, split=split, names=names))


EVAL_SET: Final = _published(
    "hub-eval-set",
    "eval",
    "comparison_id pack anchor_code candidate_code aggregated_speedup true_bin hardware",
)
DISCOVERY_PAIRS: Final = _published(
    "hub-discovery-pairs",
    "discovery_pairs",
    "pair_id problem_id parent_code child_code g_speedup true_bin hardware",
)
TRAINING_POOL: Final = _published(
    "hub-training-pool",
    "train_pairs",
    "row_id pack anchor_code candidate_code aggregated_speedup relative_bin hardware",
)
