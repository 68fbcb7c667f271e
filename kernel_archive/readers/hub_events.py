"""``hub-events``: the published tables of PUCT events; one file may hold several searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.readers.beside import add_stated
from kernel_archive.readers.hub_splits import table_rows
from kernel_archive.readers.puct import EventLog
from kernel_archive.readers.reading import LogReader, log_format
from kernel_archive.readers.values import BAD_JSON, any_json, natural, object_of, storable, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kernel_archive.readers.records import Record


def _object(value: Any) -> dict[str, Any]:
    """Return an object, also of its JSON text, without nulls.

    A table's struct has every field of every kind of event.
    """
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
