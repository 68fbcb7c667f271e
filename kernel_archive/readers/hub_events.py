"""``hub-events``: the published table of search events, one row each, several searches in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.beside import use_config, use_experiment
from kernel_archive.readers.event_log import EventLog
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.report import Report
from kernel_archive.readers.sniff import nothing_read
from kernel_archive.readers.tables import rows_with, table_rows
from kernel_archive.readers.values import BAD_JSON, any_json, from_text, natural, object_of, storable, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record, SearchFacts

_SUMMARIES: Final = ("../*_summaries/*.parquet", "../*_summaries/*.jsonl", "*_summaries.parquet", "*_summaries.jsonl")


class _Row(msgspec.Struct, order=True):
    """One event: its place in the search, its row in the table, and itself as a line of a log."""

    index: int
    number: int
    line: bytes


def _object(value: Any) -> dict[str, Any]:
    """An object, also from its JSON text, without nulls: a table's struct has every field of every kind of event."""
    if isinstance(value, str):
        value = any_json(value.encode("utf-8", "surrogatepass"))
    return object_of(_without_nulls(storable(value)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _event_row(row: dict[str, Any], number: int) -> _Row:
    """One row as the line of a log.

    Raises:
        ValueError: it has no payload or kind that can be read.
    """
    payload = _object(row.get("payload"))
    kind = row.get("event_kind") or payload.get("kind")
    if not payload or not isinstance(kind, str):
        raise ValueError("no event_kind, or no payload that is an object")
    index = natural(from_text(row.get("event_index")))
    line = msgspec.json.encode({**payload, "kind": kind})
    return _Row(number if index is None else index, number, line)


def _records(run: RunFiles) -> Iterator[Record]:
    """Every search of the table: its evaluations and facts, and what was wrong."""
    report = Report()
    searches: dict[str | None, list[_Row]] = {}
    recognised = False
    for item in rows_with(run, HUB_EVENTS, {"payload", "event_kind"}, report):
        if isinstance(item, Finding):
            yield item
            continue
        recognised = True
        number, row = item
        try:
            event = _event_row(row, number)
        except (*BAD_JSON, TypeError, OverflowError) as error:
            message = f"{printable(str(error))}; skipped"
            report.error("bad-row", message, file=run.name(run.path), line=number, field="payload")
            continue
        searches.setdefault(text_of(row.get("source_search")), []).append(event)
    summaries = _summaries(run, report) if searches else {}
    facts: list[SearchFacts] = []
    any_seen = False
    for name, rows in searches.items():
        search = EventLog(run, run.path, report, search=name)
        any_seen |= search.read_lines((row.number, row.line) for row in sorted(rows))
        rows.clear()
        search.finish()
        yield from search.evaluations()
        facts.append(search.facts)
        if name in summaries:
            _use_summary(search.facts, summaries[name], report)
    if recognised and not any_seen:
        yield from nothing_read(run, HUB_EVENTS, run.path, report)
    elif any_seen:
        yield from report
        yield from facts


def _summaries(run: RunFiles, report: Report) -> dict[str | None, Any]:
    """The settings in the published summary of each search, where the table of summaries lies beside."""
    out: dict[str | None, Any] = {}
    for path in run.files:
        for _, row in table_rows(run, path, report) if path != run.path else ():
            if text_of(row.get("source_search")) and "config_snapshot" in row:
                out[row["source_search"]] = row["config_snapshot"]
    return out


def _use_summary(facts: SearchFacts, snapshot: Any, report: Report) -> None:
    facts.finished = True  # summaries are made of runs that came to their end
    try:
        config = _object(snapshot)
    except BAD_JSON:
        return
    if config:
        use_config(config, facts, report)
        use_experiment(config, facts, report)


HUB_EVENTS: Final = ReaderSpec(
    name="hub-events",
    title="The published table of search events; one file may hold several searches",
    expects="files (Parquet or JSON lines) with the columns event_index, event_kind, payload, source_search",
    files=_SUMMARIES,
    version=2,
    records=_records,
)
