"""``hub-events``: the published table of search events, one row each, several searches in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.readers import salvage as ev
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.fold import SearchFold
from kernel_archive.readers.lenient import BAD_JSON, decode_loose, from_text, natural, safe_text
from kernel_archive.readers.report import Report
from kernel_archive.readers.run_facts import object_of, use_config, use_experiment
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.tables import table_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record, SearchFacts

__all__ = ["SPEC", "read"]

_SUMMARIES: Final = ("../*_summaries/*.parquet", "../*_summaries/*.jsonl", "*_summaries.parquet", "*_summaries.jsonl")


class _Row(msgspec.Struct):
    index: int
    number: int
    kind: str
    payload: bytes


def _without_nulls(value: Any) -> Any:
    """A table's struct has every field of every kind of event: those that an event hasn't are null."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value


def _event_row(row: dict[str, Any], number: int) -> _Row:
    """One row, its payload as the JSON of an event.

    Raises:
        ValueError: it has no payload or kind that can be read.
    """
    payload = row.get("payload")
    if isinstance(payload, str):
        payload = decode_loose(payload.encode("utf-8", "surrogatepass"))
    if not isinstance(payload, dict):
        raise ValueError("no payload that is an object")  # noqa: TRY004 - reported like the rest
    kind = row.get("event_kind") or payload.get("kind")
    if not isinstance(kind, str):
        raise ValueError("no event_kind")  # noqa: TRY004 - reported like the rest
    index = natural(from_text(row.get("event_index")))
    body = {"kind": kind, **{k: v for k, v in _without_nulls(payload).items() if k != "kind"}}
    return _Row(number if index is None else index, number, kind, msgspec.json.encode(body))


def _feed(fold: SearchFold, row: _Row, file: str, report: Report, unknown: set[str]) -> None:
    try:
        event = ev.decode_typed(row.payload)
    except BAD_JSON:
        pass
    else:
        fold.feed(row.number, event)
        return
    try:
        decoded = ev.decode_event(row.payload)
    except ev.BadLine as error:
        report.error(error.code, f"{error}; the row is skipped", file=file, line=row.number, field=error.field)
        fold.count("lines_skipped")
        fold.n_events += error.known
        return
    for field, value in decoded.odd:
        report.warning("odd-field", "left out", file=file, line=row.number, field=f"payload.{field}", value=value)
    if decoded.event is not None:
        fold.feed(row.number, decoded.event)
        return
    fold.count("events_unknown")
    if decoded.kind not in unknown and len(unknown) < 20:
        unknown.add(decoded.kind)
        report.info("unknown-event", "such events are skipped", file=file, line=row.number, value=decoded.kind)


def read(run: RunFiles) -> Iterator[Record]:
    """Every search of the table: its evaluations and facts, and what was wrong."""
    report = Report()
    path = run.path
    if not path.is_file():
        yield wrong_format(run, SPEC)
        return
    file = run.name(path)
    searches: dict[str | None, list[_Row]] = {}
    recognised = False
    for number, row in table_rows(run, path, report):
        if not recognised:
            if not row.keys() >= {"payload", "event_kind"}:
                break
            recognised = True
        try:
            event = _event_row(row, number)
        except (*BAD_JSON, TypeError, OverflowError) as error:
            report.error("bad-row", f"{printable(str(error))}; skipped", file=file, line=number, field="payload")
            continue
        name = row.get("source_search")
        searches.setdefault(safe_text(name) if isinstance(name, str) and name else None, []).append(event)
    if not recognised:
        yield from nothing_read(run, SPEC, path, report)
        return
    snapshots = _snapshots(run, report)
    unknown: set[str] = set()
    facts: list[SearchFacts] = []
    n_events = 0
    for name, rows in searches.items():
        fold = SearchFold(file, report, search=name)
        for entry in sorted(rows, key=lambda r: (r.index, r.number)):
            _feed(fold, entry, file, report, unknown)
        rows.clear()
        n_events += fold.n_events
        yield from fold.evaluations()
        facts.append(fold.close())
        _use_snapshot(facts[-1], snapshots.get(name), report)
    if n_events == 0:
        yield from nothing_read(run, SPEC, path, report)
        return
    yield from report
    yield from facts


def _snapshots(run: RunFiles, report: Report) -> dict[str | None, dict[str, Any]]:
    """The published summary of each search, where the table of summaries lies beside."""
    out: dict[str | None, dict[str, Any]] = {}
    for path in run.files:
        if path == run.path:
            continue
        for _, row in table_rows(run, path, report):
            name = row.get("source_search")
            if isinstance(name, str) and "config_snapshot" in row:
                out[safe_text(name)] = row
    return out


def _use_snapshot(facts: SearchFacts, row: dict[str, Any] | None, report: Report) -> None:
    if row is None:
        return
    facts.finished = True  # summaries are made of runs that came to their end
    snapshot = row.get("config_snapshot")
    if isinstance(snapshot, str):
        try:
            snapshot = decode_loose(snapshot.encode("utf-8", "surrogatepass"))
        except BAD_JSON:
            return
    config = object_of(_without_nulls(snapshot))
    if not config:
        return
    use_config(config, facts, report)
    use_experiment(config, facts, report)


SPEC = ReaderSpec(
    name="hub-events",
    title="The published table of search events; one file may hold several searches",
    expects="files (Parquet or JSON lines) with the columns event_index, event_kind, payload, source_search",
    files=_SUMMARIES,
    version=1,
    read=read,
)
