"""The published tables that are splits: ``hub-eval-set``, ``hub-discovery-pairs`` and ``hub-training-pool``.

Each row is kept as it was published, with its id, its place and its label. A row of the evaluation set is a measurement
of a candidate against its reference besides, so that reader yields it as an evaluation too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import Finding
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.tables import rows_with
from kernel_archive.readers.values import from_text, natural, object_of, positive, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["DISCOVERY_PAIRS", "EVAL_SET", "TRAINING_POOL"]

Split = Literal["eval", "discovery_pairs", "train_pairs"]


class _Columns(msgspec.Struct, frozen=True):
    """What one table calls the parts of a row."""

    split: Split
    row_id: str
    problem: str
    anchor: str
    candidate: str
    speedup: str
    label: str

    def required(self) -> tuple[str, ...]:
        return (self.row_id, self.problem, self.anchor, self.candidate, self.speedup, self.label, "hardware")


_EVAL: Final = _Columns(
    "eval", "comparison_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "true_bin"
)
_PAIRS: Final = _Columns(
    "discovery_pairs", "pair_id", "problem_id", "parent_code", "child_code", "g_speedup", "true_bin"
)
_POOL: Final = _Columns(
    "train_pairs", "row_id", "pack", "anchor_code", "candidate_code", "aggregated_speedup", "relative_bin"
)
_PAIR_TYPES: Final = ("seed", "parent_edit", "pair")


def _gpu(value: Any) -> str | None:
    return text_of(value) or text_of(object_of(value).get("device_name"))


def _row(
    columns: _Columns, file: str, number: int, order: int, row: dict[str, Any], report: Report
) -> PublishedRow | None:
    """A published row; ``None`` with a finding where it lacks something."""
    row_id, problem, gpu = (
        text_of(row.get(columns.row_id)),
        text_of(row.get(columns.problem)),
        _gpu(row.get("hardware")),
    )
    anchor, candidate = text_of(row.get(columns.anchor)), text_of(row.get(columns.candidate))
    speedup = positive(from_text(row.get(columns.speedup)))
    low, high = SPEEDUP_RANGE
    speedup = speedup if speedup is not None and low <= speedup <= high else None
    label = natural(from_text(row.get(columns.label)), N_BINS)
    if not (row_id and problem and gpu and anchor and candidate and speedup and label):
        found = (row_id, problem, anchor, candidate, speedup, label, gpu)
        field = next(name for name, value in zip(columns.required(), found, strict=True) if not value)
        message = "the row lacks a value or has a wrong one; skipped"
        report.error("bad-row", message, file=file, line=number, field=field, value=row.get(field))
        return None
    if bin_of(speedup, "released") != label:
        message = f"not the label that the released rule gives to {speedup:.6g}; kept as published"
        report.warning("label-differs", message, file=file, line=number, field=columns.label, value=label)
    pair_type = text_of(row.get("pair_type"))
    if columns.split == "train_pairs" and pair_type not in _PAIR_TYPES:
        where = {"file": file, "line": number, "field": "pair_type"}
        report.warning("unknown-pair-type", "kept as published", value=pair_type, **where)
    return PublishedRow(
        split=columns.split,
        row_id=row_id,
        problem=problem,
        gpu=gpu,
        anchor_code=anchor,
        candidate_code=candidate,
        speedup=speedup,
        label=label,
        order=order,
        source_file=file,
        source_line=number,
        pair_type=pair_type,
        parent_node_id=text_of(row.get("parent_node_id")),
        child_node_id=text_of(row.get("child_node_id")),
        source_search=text_of(row.get("source_search")),
    )


def _read(run: RunFiles, columns: _Columns, spec: ReaderSpec) -> Iterator[Record]:
    report = Report()
    file = run.name(run.path)
    seen: set[str] = set()
    searches: dict[str | None, int] = {}
    n_rows = 0
    for item in rows_with(run, spec, {columns.row_id, columns.anchor, columns.candidate}, report):
        if isinstance(item, Finding):
            yield item
            continue
        n_rows += 1
        number, row = item
        published = _row(columns, file, number, len(seen), row, report)
        if published is None:
            continue
        if published.row_id in seen:
            message = "a row id stands twice; the first is kept"
            report.error("duplicate-row", message, file=file, line=number, value=published.row_id)
            continue
        seen.add(published.row_id)
        yield published
        if columns.split == "eval":
            searches[published.source_search] = searches.get(published.source_search, 0) + 1
            yield _evaluation(published)
    if n_rows == 0:
        return
    yield from report
    counts = {"rows_skipped": n_rows - len(seen)} if n_rows > len(seen) else {}
    for search, n in (searches or {None: len(seen)}).items():
        yield SearchFacts(search=search, counts={"published_rows": n, **counts})
        counts = {}


def _evaluation(row: PublishedRow) -> Evaluation:
    """The measurement in a row of the evaluation set."""
    return Evaluation(
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


def _spec(name: str, title: str, columns: _Columns) -> ReaderSpec:
    """The reader of one table."""

    def records(run: RunFiles) -> Iterator[Record]:
        """The table's rows, and what was wrong."""
        return _read(run, columns, spec)

    expects = f"files (Parquet, JSON lines or CSV) with the columns {', '.join(columns.required())}"
    spec = ReaderSpec(name=name, title=title, expects=expects, files=(), version=2, records=records)
    return spec


EVAL_SET: Final = _spec("hub-eval-set", "The published evaluation set, one row per comparison", _EVAL)
DISCOVERY_PAIRS: Final = _spec("hub-discovery-pairs", "The published discovery pairs, one row per edge", _PAIRS)
TRAINING_POOL: Final = _spec("hub-training-pool", "The published training pool, one row per pair", _POOL)
