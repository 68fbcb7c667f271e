"""Tables on the Hub: published splits, and the events of published searches.

``hub-eval-set``, ``hub-discovery-pairs`` and ``hub-training-pool`` keep id, place and label of each
row. A row of the evaluation set is also a measurement of a candidate against its reference.
``hub-events`` holds events of PUCT, of several searches in one file.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import Finding, printable
from kernel_archive.readers.beside import add_stated
from kernel_archive.readers.files import MAX_FILE_BYTES, MAX_LINE_BYTES
from kernel_archive.readers.log_reader import LogReader, log_format
from kernel_archive.readers.puct import EventLog
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.salvage import RowKind, Salvage
from kernel_archive.readers.values import (
    BAD_JSON,
    any_json,
    inner_value,
    natural,
    object_of,
    positive,
    storable,
    text_of,
)
from kernel_archive.untrusted import allowance, is_parquet
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
    if is_parquet(path):
        limit = allowance(path, MAX_FILE_BYTES)
        options = {"max_rows": _MAX_ROWS, "max_bytes": limit, "max_row": MAX_LINE_BYTES}
        items = parquet_rows(path, name=name, wanted=None, **options)
    else:
        items = Salvage(_OBJECTS, name, findings, Counter()).rows(run.lines(path))
    is_first = True
    for item in items:
        if isinstance(item, Finding):
            findings.add(item)
            if item.code == "unreadable":  # pages are compressed
                run.unsound.add(name)
        elif is_first and not item[1].keys() >= columns:
            return
        else:
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
            self.facts.counts["rows_skipped"] += 1
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
            yield SearchFacts(search=search, counts=Counter({"published_rows": n, **counts}))
            counts = Counter()


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


def _object(value: Any) -> dict[str, Any]:
    """Return an object, also of its JSON text; a table's struct has nulls for all other kinds."""
    if isinstance(value, str):
        value = any_json(value.encode("utf-8", "surrogatepass"))
    return object_of(_without_nulls(storable(value)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


class _HubEvents(LogReader):
    """Every search of one table of events."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._searches: list[EventLog] = []

    def read(self, path: Path) -> bool:
        """Read every search of the table; return whether there was an event."""
        #: Search -> place in it, row number and line of each of its events.
        lines: dict[str | None, list[tuple[int, int, bytes]]] = {}
        for number, row in table_rows(self.run, path, self.findings, {"payload", "event_kind"}):
            try:
                payload = _object(row["payload"])
                kind = row["event_kind"] or payload.get("kind")
                if not payload or not isinstance(kind, str):
                    raise ValueError("no event_kind, or no payload that is an object")
                line = msgspec.json.encode({**payload, "kind": kind})
            except (*BAD_JSON, KeyError, TypeError, OverflowError) as error:
                message = f"{printable(str(error))}; skipped"
                self.error("bad-row", message, line=number, field="payload")
                continue
            index = natural(row.get("event_index"))
            event = (number if index is None else index, number, line)
            lines.setdefault(text_of(row.get("source_search")), []).append(event)
        settings = self._settings() if lines else {}
        any_read = False
        for name, events in lines.items():
            search = EventLog(self.run, path, self.findings, search=name)
            any_read |= search.read_lines((number, line) for _, number, line in sorted(events))
            events.clear()
            search.complete_facts()
            if name in settings:
                search.facts.finished = True  # summaries are made of runs that came to their end
                add_stated("config.json", settings[name], search.facts, self.findings, self.file)
            self._searches.append(search)
        return any_read

    def _settings(self) -> dict[str | None, dict[str, Any]]:
        """Return the settings of each search from the table of summaries that lies beside."""
        settings: dict[str | None, dict[str, Any]] = {}
        for path in self.run.files:
            columns = {"source_search", "config_snapshot"}
            rows = table_rows(self.run, path, self.findings, columns)
            for number, row in rows if path != self.run.path else ():
                try:
                    settings[text_of(row.get("source_search"))] = _object(row["config_snapshot"])
                except (*BAD_JSON, KeyError):
                    file, message = self.run.name(path), "no settings that can be read"
                    self.findings.warning("bad-row", message, file=file, line=number)
        return settings

    def complete_facts(self) -> None:
        """Leave the facts as they are: each search has its own."""

    def records(self) -> Iterator[Record]:
        """Yield the evaluations of all searches, the findings, and the facts of each search."""
        for search in self._searches:
            yield from search.nodes.values()
        yield from self.findings
        for search in self._searches:
            yield search.facts


HUB_EVENTS: Final = log_format("hub-events", _HubEvents)
