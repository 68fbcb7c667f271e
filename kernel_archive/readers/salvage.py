"""Rows from the lines of a log, whatever happened to the log.

A line is decoded once, by a typed decoder that skips what nobody reads; where that fails, as what
Python writes, with ``NaN`` and lone surrogates. A line that is no JSON is searched for whole rows:
a writer that goes on after a crash glues its first row to the broken line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from functools import partialmethod
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.values import BAD_JSON, any_json
from kernel_archive.untrusted import has_few_values, misfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

T = TypeVar("T")

#: Findings of one code that are kept in full; the rest are counted.
MAX_FINDINGS: Final = 50
#: Places in a broken line that are tried as the start of a whole row, the last ones.
_MAX_TRIES: Final = 20
#: Give up after this many lines that are no rows; each is about 100 times slower to handle.
_MAX_BAD_LINES: Final = 100_000


class BadRow(Exception):  # noqa: N818 - no error of a user: caught in this module and its callers
    """Raised for a value that is no row; ``args``: what is wrong, and the field if known."""


class RowKind(Generic[T]):
    """What a line of a format may be: one struct, a dictionary, or a union of event structs.

    ``events`` maps the ``kind`` of each event of a union to its struct.
    """

    def __init__(self, row: Any, events: Mapping[str, type[Any]] | None = None) -> None:
        self.decode = msgspec.json.Decoder(row).decode
        self.events = events
        names = ("kind",) if events is not None else getattr(row, "__struct_fields__", ())
        self._start = re.compile(r'\{\s?"(?:' + "|".join(names) + r')"\s?:') if names else None

    def convert(self, value: Any) -> T | None:
        """Make a row of decoded JSON, or ``None`` of an event of an unknown kind.

        Raises:
            BadRow: it is no row.
        """
        if not isinstance(value, dict):
            raise BadRow("no JSON object", None)
        kind = value.get("kind") if self.events is not None else None
        if self.events is not None and isinstance(kind, str) and kind not in self.events:
            return None
        try:
            return self.decode(msgspec.json.encode(value))  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise BadRow(*misfit(error)) from None

    def glued_rows(self, line: bytes) -> list[T]:
        """Find the whole rows in a broken line."""
        rows: list[T] = []
        if self._start is None or not has_few_values(line):
            return rows
        text, decoder, end = line.decode("utf-8", "surrogateescape"), json.JSONDecoder(), 0
        for match in [*self._start.finditer(text)][-_MAX_TRIES:]:
            if match.start() < end:  # inside of the row before
                continue
            with suppress(BadRow, *BAD_JSON):
                value, after = decoder.raw_decode(text, match.start())
                row = self.convert(value)
                if row is not None:
                    rows.append(row)
                    end = after
        return rows


class Salvage(Generic[T]):
    """The rows of one file; ``counts`` takes how many lines were skipped, salvaged or unknown."""

    def __init__(
        self, kind: RowKind[T], file: str, findings: FindingLog, counts: dict[str, int]
    ) -> None:
        self.kind, self.file, self.findings, self.counts = kind, file, findings, counts
        self._unknown: set[str] = set()  # kinds of events that were reported
        self._broken: Finding | None = None  # whether it is the last line shows at the next one

    def rows(self, lines: Iterable[tuple[int, bytes] | Finding]) -> Iterator[tuple[int, T]]:
        """Yield every row with its line, as far as it can be read."""
        decode = self.kind.decode
        for item in lines:
            if isinstance(item, Finding):
                self.findings.add(item)
                continue
            number, line = item
            if self._broken is not None:
                self.findings.add(self._broken)
                self._broken = None
            try:
                row = decode(line)
            except BAD_JSON:
                for whole in self._recover(number, line):
                    yield number, whole
                if self.counts.get("lines_skipped", 0) >= _MAX_BAD_LINES:
                    message = f"reading stopped here: {_MAX_BAD_LINES:,} lines are no rows"
                    self.findings.error("file-too-large", message, file=self.file, line=number)
                    break
            else:
                yield number, row
        if self._broken is not None:
            message = "the last line is broken off, as after a crash of the writer; it is skipped"
            place: Any = {"file": self.file, "line": self._broken.line}
            self.findings.warning("truncated-line", message, **place)

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _recover(self, number: int, line: bytes) -> list[T]:
        """Make rows of a line that is none as it stands, or report it."""
        try:
            value = any_json(line)
        except BAD_JSON as error:
            rows = self.kind.glued_rows(line)
            place: Any = {"file": self.file, "line": number}
            if rows:
                self._count("lines_salvaged")
                message = f"pieces of several rows on one line; {len(rows)} whole kept"
                self.findings.warning("glued-line", message, **place)
            else:
                self._count("lines_skipped")
                message = f"not valid JSON: {error}; the line is skipped"
                self._broken = Finding(code="bad-json", message=message, **place)
            return rows
        try:
            row = self.kind.convert(value)
        except BadRow as error:
            fault, field = error.args
            self._count("lines_skipped")
            code = "bad-row" if self.kind.events is None else "bad-event"
            message = f"{fault}; the line is skipped"
            self.findings.error(code, message, field=field, file=self.file, line=number)
            return []
        if row is not None:
            return [row]
        kind = value["kind"]
        self._count("events_unknown")
        if kind not in self._unknown:
            self._unknown.add(kind)
            message = "a kind of event that is not known; such events are skipped"
            place = {"value": kind, "file": self.file, "line": number}
            self.findings.info("unknown-event", message, **place)
        return []


class FindingLog:
    """Findings in order: of each code the first ``MAX_FINDINGS``, and a count of the others."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        self._counts[finding.code] += 1
        if self._counts[finding.code] <= MAX_FINDINGS:
            self._kept.append(finding)

    def report(self, severity: Any, code: str, message: str, **where: Any) -> None:
        """Add a finding of these fields; ``value`` and ``field`` are made printable."""
        if self._counts[code] >= MAX_FINDINGS:  # making one takes 40 times as long as counting it
            self._counts[code] += 1
            return
        for name in ("value", "field"):
            if where.get(name) is not None:
                where[name] = printable(where[name])
        self.add(Finding(code=code, message=message, severity=severity, **where))

    error = partialmethod(report, "error")
    warning = partialmethod(report, "warning")
    info = partialmethod(report, "info")

    def __iter__(self) -> Iterator[Finding]:
        """Yield the kept findings, then one per code for those that were only counted."""
        yield from self._kept
        for code, n in self._counts.items():
            if n > MAX_FINDINGS:
                first = next(finding for finding in self._kept if finding.code == code)
                message = f"{n - MAX_FINDINGS} more of this kind"
                yield msgspec.structs.replace(
                    first, message=message, line=None, field=None, value=None, fix=None
                )
