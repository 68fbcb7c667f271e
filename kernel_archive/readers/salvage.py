"""Rows out of the lines of a log, whatever happened to the log: the one loop of all formats that are read line by line.

A line is decoded once, by a typed decoder that skips every field which nobody reads. A line that fails goes a forgiving
way, field by field, which takes six times as long (5.7 times over 63 MB of events). What that can't read either is searched for whole rows: a writer that went on after a crash
glues its first row to the broken line. Every fault is a finding with its line; a
:class:`Report` keeps so many of a kind, since a file of junk must not become a million messages. Whether a compressed
file was sound is known only at its end: :func:`sound_records` decides then what stays of what came of it.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.records import Evaluation, PublishedRow, SearchFacts
from kernel_archive.readers.values import BAD_JSON, any_json, build
from kernel_archive.untrusted import lacks_checksum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from kernel_archive.readers.records import Record

T = TypeVar("T")

#: Places in a broken line that are tried as the start of a whole row, and rows that are looked for before the last one.
_TRIES: Final = 20
_GLUED: Final = 4
#: So many lines that are none end the reading: this is no log, and each of them costs as much as a hundred good ones.
_MAX_BAD: Final = 100_000


class BadRow(Exception):  # noqa: N818 - not an error of a user: caught where it is raised
    """Raised inside this module for a value that is no row: what is wrong, the finding's code, and the field at fault or ``None``."""


class RowKind(Generic[T]):
    """What a line of a format may be: a struct; a union of structs that their ``kind`` tells apart (``events``); or any object, ``dict``."""

    def __init__(self, row: Any, events: Mapping[str, type[Any]] | None = None) -> None:
        self.decode = msgspec.json.Decoder(row).decode
        self._row, self._events = row, events
        self.word = "row" if events is None else "event"
        struct = isinstance(row, type) and issubclass(row, msgspec.Struct)
        first = ("kind",) if events is not None else row.__struct_fields__ if struct else ()
        names = "|".join(map(re.escape, first)).encode()
        self._start = re.compile(rb'\{\s?"(?:' + names + rb')"\s?:') if first else None

    def build(self, value: Any, odd: list[tuple[str, Any]]) -> T | None:
        """A row from a decoded value; ``None`` for an event of an unknown kind.

        Raises:
            BadRow: it is none.
        """
        struct, what = self._row, "the row"
        if self._events is not None:
            if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
                raise BadRow("not an event: no JSON object with a kind", "not-an-event", None)
            struct, what = self._events.get(value["kind"]), value["kind"]
        elif not isinstance(value, dict):
            raise BadRow("no JSON object", "not-a-row", None)
        if struct is None or not issubclass(struct, msgspec.Struct):
            return None if struct is None else cast("T", value)  # a value that fits is one of type dict
        try:
            return cast("T", build(struct, value, odd))
        except RecursionError:
            raise BadRow("nested too deeply", f"bad-{self.word}", None) from None
        except ValueError as error:
            field = str(error)
            raise BadRow(f"{what} lacks {field}, or has it in a wrong form", f"bad-{self.word}", field) from None

    def glued(self, line: bytes, depth: int = 0) -> list[T]:
        """The whole rows in a line that is none: the last one, from which the rest of the line decodes, and those before."""
        if self._start is None:
            return []
        starts = [match.start() for match in self._start.finditer(line)]
        for start in reversed(starts[-_TRIES:]):
            last = self._whole(line[start:])
            if last is None:
                continue
            before = line[:start]
            if start == 0 or depth >= _GLUED:
                return [last]
            first = self._whole(before)
            return [*([first] if first is not None else self.glued(before, depth + 1)), last]
        return []

    def _whole(self, part: bytes) -> T | None:
        """The row that a part of a line is, or ``None``."""
        with suppress(*BAD_JSON):
            return cast("T", self.decode(part))
        with suppress(BadRow, *BAD_JSON):
            return self.build(any_json(part), [])
        return None


class Salvage(Generic[T]):
    """The rows of one file.

    ``counts`` takes how many lines were skipped or salvaged, and how many events of unknown kinds there were; ``n_seen`` are the rows
    of the format so far, those included that lack something.
    """

    def __init__(self, kind: RowKind[T], file: str, report: Report, counts: dict[str, int]) -> None:
        self.kind, self.file, self.report, self.counts = kind, file, report, counts
        self.n_seen = 0
        self._unknown: set[str] = set()

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def rows(self, lines: Iterable[tuple[int, bytes] | Finding]) -> Iterator[tuple[int, T]]:
        """Every row with its line, as far as it can be read."""
        decode = self.kind.decode
        broken: tuple[int, str] | None = None  # whether it is the last line is seen at the next one
        for item in lines:
            if isinstance(item, Finding):
                self.report.add(item)
                continue
            number, line = item
            if broken is not None:
                self.report.error("bad-json", f"{broken[1]}; the line is skipped", file=self.file, line=broken[0])
                broken = None
            try:
                rows: list[T] = [decode(line)]
            except BAD_JSON:
                try:
                    rows = self._forgiven(number, any_json(line))
                except BAD_JSON as error:
                    rows = self._glued(number, line)
                    if not rows:
                        broken = number, f"not valid JSON: {error}"
                        self._count("lines_skipped")
                        if self.counts["lines_skipped"] >= _MAX_BAD:
                            message = f"reading stopped here: {_MAX_BAD:,} lines are no JSON"
                            self.report.error("file-too-large", message, file=self.file, line=number)
                            break
            for row in rows:
                self.n_seen += 1
                yield number, row
        if broken is not None:
            message = "the last line is broken off, as after a crash of the writer; it is skipped"
            self.report.warning("truncated-line", message, file=self.file, line=broken[0])

    def _glued(self, number: int, line: bytes) -> list[T]:
        rows = self.kind.glued(line)
        if rows:
            self._count("lines_salvaged")
            message = f"pieces of several {self.kind.word}s on one line; {len(rows)} whole of them kept"
            self.report.warning("glued-line", message, file=self.file, line=number)
        return rows

    def _forgiven(self, number: int, value: Any) -> list[T]:
        """The row in a decoded value, field by field; nothing, reported, where it is none."""
        odd: list[tuple[str, Any]] = []
        try:
            row = self.kind.build(value, odd)
        except BadRow as error:
            fault, code, field = error.args
            self._count("lines_skipped")
            self.n_seen += code == "bad-event"
            message = f"{fault}; the {self.kind.word} is skipped"
            self.report.error(code, message, file=self.file, line=number, field=field)
            return []
        for field, given in odd:
            message = "a value of the wrong type is left out"
            self.report.warning("odd-field", message, file=self.file, line=number, field=field, value=given)
        if row is None:
            self._count("events_unknown")
            kind = value["kind"]
            if kind not in self._unknown and len(self._unknown) < 20:
                self._unknown.add(kind)
                message = "a kind of event that is not known; such events are skipped"
                self.report.info("unknown-event", message, file=self.file, line=number, value=kind)
            return []
        return [row]


#: Findings of one code that are kept in full.
KEPT: Final = 50


class Report:
    """Collects findings; of each code the first ones in full, the rest as one count."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Take a finding in."""
        self._counts[finding.code] += 1
        if self._counts[finding.code] <= KEPT:
            self._kept.append(finding)

    def error(self, code: str, message: str, **where: Any) -> None:
        """Take in a fault; ``value`` and ``field`` are made printable."""
        self._new(code, message, "error", where)

    def warning(self, code: str, message: str, **where: Any) -> None:
        """Take in something that was salvaged or left out."""
        self._new(code, message, "warning", where)

    def info(self, code: str, message: str, **where: Any) -> None:
        """Take in a remark."""
        self._new(code, message, "info", where)

    def _new(self, code: str, message: str, severity: Any, where: dict[str, Any]) -> None:
        if self._counts[code] >= KEPT:  # a file may have millions: making one takes forty times as long as counting it
            self._counts[code] += 1
            return
        for name in ("value", "field"):
            if where.get(name) is not None:
                where[name] = printable(where[name])
        self.add(Finding(code=code, message=message, severity=severity, **where))

    def of(self, *codes: str) -> Iterator[Finding]:
        """The findings of these codes that were kept."""
        return (f for f in self._kept if f.code in codes)

    def __iter__(self) -> Iterator[Finding]:
        """The findings kept, then one line per code for those that were not."""
        yield from self._kept
        for code, n in self._counts.items():
            if n > KEPT:
                first = next(self.of(code))
                message = f"{n - KEPT} more of this kind"
                yield Finding(code=code, message=message, severity=first.severity, file=first.file)


def sound_records(records: Iterable[Record], unsound: Collection[str], files: Iterable[Path]) -> Iterator[Record]:
    """The records of a run: rows first, then findings, then facts.

    What came of a compressed file whose checksum does not hold stays as salvage: an evaluation of which only the program,
    its place and its lineage are left, excluded from every other table. Published rows of such a file are left out. Files
    without a checksum are believed, and counted. The names of damaged files, ``unsound``, are complete when all records were read.
    """
    everything = list(records)
    findings = [record for record in everything if isinstance(record, Finding)]
    facts = [record for record in everything if isinstance(record, SearchFacts)]
    rows = [record for record in everything if isinstance(record, Evaluation | PublishedRow)]
    n_unsound = 0
    for record in rows:
        if record.source_file not in unsound:
            yield record
            continue
        n_unsound += 1
        if isinstance(record, Evaluation):
            yield msgspec.structs.replace(
                record, outcome="infrastructure_failure", error_type="unsound_file", error_text=None, speedup=None,
                excluded="the compressed file that it comes from is damaged, so what came of it may be anything",
                runtime_us=None, reference_runtime_us=None, cases=(), narrow_domain=False, gpu_seconds=None,
            )  # fmt: skip
    if n_unsound:
        message = f"a damaged compressed file: {n_unsound} rows that came of it before the damage get no label"
        yield Finding(code="unsound-file", message=message, file=min(unsound), fix="Get the file again, whole")
    yield from findings
    if facts and (n_unchecked := sum(map(lacks_checksum, files))):
        facts[0].counts["files_without_checksum"] = n_unchecked
    yield from facts
