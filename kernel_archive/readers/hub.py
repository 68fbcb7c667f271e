"""Tables on the Hub: published splits, and the events of published searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive.bins import N_BINS, bin_of
from kernel_archive.errors import Finding, printable
from kernel_archive.readers import values
from kernel_archive.readers.files import MAX_FILE_BYTES, MAX_LINE_BYTES
from kernel_archive.readers.log_reader import FORMATS, LogReader
from kernel_archive.readers.puct import EventLog
from kernel_archive.readers.records import SPEEDUP_RANGE, PublishedRow, Record, SearchFacts
from kernel_archive.readers.run_facts import add_file_facts
from kernel_archive.untrusted import decompressed_limit
from kernel_archive.untrusted_tables import parquet_rows

_MAX_ROWS: Final = 1_000_000  # rows of a Parquet table; larger ones are refused
#: Fields of a published row that a table may lack.
_OPTIONAL: Final = ("pair_type", "parent_node_id", "child_node_id", "source_search")


class HubTable(LogReader):
    """A file whose rows are of several searches."""

    def rows(self, path: Path, columns: set[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows of a Parquet table with their numbers from 1.

        Nothing is yielded of a table whose first row lacks one of ``columns``.
        """
        name = self.run.name(path)
        limit = decompressed_limit(path, MAX_FILE_BYTES)
        options = {"max_rows": _MAX_ROWS, "max_bytes": limit, "max_row": MAX_LINE_BYTES}
        is_first = True
        for item in parquet_rows(path, name=name, wanted=None, **options):
            if isinstance(item, Finding):
                self.findings.add(item)
                if item.code == "unreadable":  # pages are compressed
                    self.run.unsound.add(name)
            elif is_first and not item[1].keys() >= columns:
                return
            else:
                is_first = False
                yield item


class PublishedSplit(HubTable):
    """A published split: each row keeps its id, place and label.

    A row of the evaluation set is also a measurement of a candidate against its reference.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        facts = FORMATS[self.run.format]
        self.split = facts["split"]
        self.columns: dict[str, str] = facts["columns"]  # field of the row -> column of the table
        self.published: dict[str, PublishedRow] = {}

    def read(self, path: Path) -> bool:
        """Read the table; return whether a row of it is of the format."""
        columns = {self.columns[field] for field in ("row_id", "anchor_code", "candidate_code")}
        for line, row in self.rows(path, columns):
            self.add_row(line, row)
        return bool(self.published or self.facts.counts)

    def add_row(self, line: int, row: dict[str, Any]) -> None:
        """Add one published row."""
        columns, (low, high) = self.columns, SPEEDUP_RANGE
        fields: dict[str, Any] = {k: values.text_of(row.get(name)) for k, name in columns.items()}
        speedup = values.positive(row.get(columns["speedup"]))
        fields["speedup"] = speedup if speedup is not None and low <= speedup <= high else None
        fields["label"] = values.whole_number(row.get(columns["label"]), N_BINS) or None
        device = values.inner_value(row, f"{columns['gpu']}.device_name")
        fields["gpu"] = fields["gpu"] or values.text_of(device)
        missing = next((columns[k] for k, value in fields.items() if value is None), None)
        name = fields["row_id"]
        if missing is not None or name in self.published:
            code, column = ("bad-row", missing) if missing else ("duplicate-row", columns["row_id"])
            message = "the row lacks a value, has a wrong one, or an id that stood before; skipped"
            self.error(code, message, line=line, field=column, value=repr(row.get(column)))
            self.facts.counts["rows_skipped"] += 1
            return
        if bin_of(fields["speedup"], "released") != fields["label"]:
            message = f"not the released rule's label of {speedup:.6g}; kept as published"
            where = {"field": columns["label"], "value": str(fields["label"])}
            self.warning("label-differs", message, line=line, **where)
        fields |= {field: values.text_of(row.get(field)) for field in _OPTIONAL}
        fields |= {"split": self.split, "source_file": self.file, "source_line": line}
        self.published[name] = PublishedRow(order=len(self.published), **fields)

    def records(self) -> Iterator[Record]:
        """Yield the rows, those of the evaluation set also as evaluations of their searches."""
        searches: Counter[str | None] = Counter()
        for row in self.published.values():
            yield row
            searches[row.source_search if self.split == "eval" else None] += 1
            if self.split == "eval":
                record = self.new_evaluation(
                    node_id=row.row_id,
                    code=row.candidate_code,
                    outcome="success",
                    source_line=row.source_line,
                    speedup=row.speedup,
                    problem=row.problem,
                    gpu=row.gpu,
                    reference_code=row.anchor_code,
                )
                record.search = row.source_search
                yield record
        yield from self.findings
        counts = self.facts.counts
        for search, n in (searches or {None: 0}).items():
            yield SearchFacts(search=search, counts=Counter({"published_rows": n, **counts}))
            counts = Counter()  # those of the file stand with the first search alone


def _object(value: Any) -> dict[str, Any]:
    """Return an object, also of its JSON text; a table's struct has nulls for all other kinds."""
    if isinstance(value, str):
        value = values.any_json(value.encode("utf-8", "surrogatepass"))
    return values.object_of(_without_nulls(values.storable(value)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


class HubEvents(HubTable):
    """Events of PUCT, of every search of one table."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._searches: list[EventLog] = []

    def read(self, path: Path) -> bool:
        """Read every search of the table; return whether there was an event."""
        #: Search -> place in it, row number and line of each of its events.
        lines: dict[str | None, list[tuple[int, int, bytes]]] = {}
        for number, row in self.rows(path, {"payload", "event_kind"}):
            try:
                payload = _object(row["payload"])
                kind = row["event_kind"] or payload.get("kind")
                if not payload or not isinstance(kind, str):
                    raise ValueError("no event_kind, or no payload that is an object")
                line = msgspec.json.encode({**payload, "kind": kind})
            except (*values.BAD_JSON, KeyError, TypeError, OverflowError) as error:
                fault = printable(error)
                self.error("bad-row", f"{fault}; the row is skipped", line=number, field="payload")
                continue
            index = values.whole_number(row.get("event_index"))
            event = (number if index is None else index, number, line)
            lines.setdefault(values.text_of(row.get("source_search")), []).append(event)
        settings = self._settings() if lines else {}
        any_read = False
        for name, events in lines.items():
            search = EventLog(self.run, path, self.findings, search=name)
            any_read |= search.read_lines((number, line) for _, number, line in sorted(events))
            events.clear()
            search.complete_facts()
            if name in settings:
                search.facts.finished = True  # summaries are made of runs that came to their end
                add_file_facts("config.json", settings[name], search.facts)
            self._searches.append(search)
        return any_read

    def _settings(self) -> dict[str | None, dict[str, Any]]:
        """Return the settings of each search from the table of summaries that lies beside."""
        settings: dict[str | None, dict[str, Any]] = {}
        for path in (path for path in self.run.files if path != self.run.path):
            for number, row in self.rows(path, {"source_search", "config_snapshot"}):
                try:
                    settings[values.text_of(row.get("source_search"))] = _object(
                        row["config_snapshot"]
                    )
                except (*values.BAD_JSON, KeyError):
                    file, message = self.run.name(path), "no settings that can be read"
                    self.findings.warning("bad-row", message, file=file, line=number)
        return settings

    def complete_facts(self) -> None:
        """Leave the facts as they are: each search has its own."""

    def records(self) -> Iterator[Record]:
        """Yield the evaluations of all searches, the findings, and the facts of each search."""
        for search in self._searches:
            yield from search.evaluations.values()
        yield from self.findings
        for search in self._searches:
            yield search.facts
