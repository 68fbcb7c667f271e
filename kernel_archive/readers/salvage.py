"""Rows from the lines of a log, whatever happened to the log.

A line is decoded by a typed decoder; where that fails, as what Python writes, with ``NaN`` and lone
surrogates. A line that isn't JSON is searched for a whole row: a writer that goes on after a crash
glues its first row to the broken line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partialmethod
from typing import Any, Final, Generic, TypeVar

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.values import BAD_JSON, any_json
from kernel_archive.untrusted import misfit

T = TypeVar("T")

MAX_FINDINGS: Final = 50  # findings of one code that are kept in full; the rest are counted
#: Places in a broken line that are tried as the start of a whole row, the last ones.
_MAX_TRIES: Final = 20
#: Give up after this many lines that are no rows; each is about 100 times slower to handle.
_MAX_BAD_LINES: Final = 100_000


class RowKind(Generic[T]):
    """What a line of a format may be: a struct, a dictionary, or a union of events by kind."""

    def __init__(self, row: Any, events: Collection[str] = ()) -> None:
        self.events = events
        self.decode: Callable[[bytes], T] = msgspec.json.Decoder(row).decode
        names = ("kind",) if events else getattr(row, "__struct_fields__", ("",))
        #: How a row begins, at least where it is a struct.
        self._start = re.compile(rb'\{\s?"(?:%s)"\s?:' % "|".join(names).encode())

    def glued_row(self, line: bytes) -> T | None:
        """Find the row that a writer glued to a broken line, as it went on after a crash."""
        starts = [match.start() for match in self._start.finditer(line)]
        for start in starts[-_MAX_TRIES:]:
            with suppress(*BAD_JSON):
                return self.decode(line[start:])
        return None


class Salvage(Generic[T]):
    """The rows of one file; ``counts`` takes how many lines were skipped, salvaged or unknown."""

    def __init__(
        self, kind: RowKind[T], file: str, findings: FindingLog, counts: Counter[str]
    ) -> None:
        self.kind, self.file, self.findings, self.counts = kind, file, findings, counts
        self._unknown: set[str] = set()  # kinds of events that were reported
        #: Number and fault of a line that isn't JSON; the next line shows that it isn't the last.
        self._broken: tuple[int, str] | None = None

    def rows(self, lines: Iterable[tuple[int, bytes] | Finding]) -> Iterator[tuple[int, T]]:
        """Yield every row with its line, as far as it can be read."""
        for item in lines:
            if isinstance(item, Finding):
                self.findings.add(item)
                continue
            number, line = item
            if self._broken is not None:
                broken, fault = self._broken
                self._report("error", "bad-json", f"{fault}; the line is skipped", broken)
                self._broken = None
            try:
                row: T | None = self.kind.decode(line)
            except BAD_JSON:
                row = self._recovered(number, line)
            if row is not None:
                yield number, row
            elif self.counts["lines_skipped"] >= _MAX_BAD_LINES:
                message = f"reading stopped here: {_MAX_BAD_LINES:,} lines are no rows"
                self._report("error", "file-too-large", message, number)
                break
        if self._broken is not None:
            message = "the last line is broken off, as after a crash of the writer; it is skipped"
            self._report("warning", "truncated-line", message, self._broken[0])

    def _recovered(self, number: int, line: bytes) -> T | None:
        """Make a row of a line that isn't decoded as it is; ``None``, reported, if that fails."""
        try:
            value = any_json(line)
        except BAD_JSON as error:
            row = self.kind.glued_row(line)
            if row is None:
                self.counts["lines_skipped"] += 1
                self._broken = number, f"not valid JSON: {error}"
                return None
            self.counts["lines_salvaged"] += 1
            message = "a piece of a row stands before a whole one; the whole one is kept"
            self._report("warning", "glued-line", message, number)
            return row
        events = self.kind.events
        event = value.get("kind") if events and isinstance(value, dict) else None
        if isinstance(event, str) and event not in events:
            self.counts["events_unknown"] += 1
            if event not in self._unknown:
                self._unknown.add(event)
                message = "a kind of event that is not known; such events are skipped"
                self._report("info", "unknown-event", message, number, value=event)
            return None
        try:
            return self.kind.decode(msgspec.json.encode(value))  # NaN, which is no value: null
        except msgspec.ValidationError as error:
            fault, field = misfit(error)
            self.counts["lines_skipped"] += 1
            code = "bad-event" if events else "bad-row"
            self._report("error", code, f"{fault}; the line is skipped", number, field=field)
            return None

    def _report(self, severity: Any, code: str, message: str, line: int, **where: Any) -> None:
        self.findings.report(severity, code, message, file=self.file, line=line, **where)


class FindingLog:
    """Findings in order: of each code the first ``MAX_FINDINGS``, and a count of the others."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Add a finding."""
        if self._is_kept(finding.code):
            self._kept.append(finding)

    def report(self, severity: Any, code: str, message: str, **where: Any) -> None:
        """Add a finding of these fields; ``value`` and ``field`` are made printable."""
        if self._is_kept(code):  # making one takes 40 times as long as counting it
            for name in {"value", "field"} & where.keys():
                where[name] = None if where[name] is None else printable(where[name])
            self._kept.append(Finding(code=code, message=message, severity=severity, **where))

    def _is_kept(self, code: str) -> bool:
        self._counts[code] += 1
        return self._counts[code] <= MAX_FINDINGS

    error = partialmethod(report, "error")
    warning = partialmethod(report, "warning")

    def __iter__(self) -> Iterator[Finding]:
        """Yield the kept findings, then one per code for those that were only counted."""
        yield from self._kept
        for code, n in self._counts.items():
            if n > MAX_FINDINGS:
                first = next(finding for finding in self._kept if finding.code == code)
                message = f"{n - MAX_FINDINGS} more of this kind"
                yield Finding(code=code, message=message, severity=first.severity, file=first.file)
