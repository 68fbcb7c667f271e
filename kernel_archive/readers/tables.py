"""Rows of a table that somebody else wrote: Parquet, CSV or JSON (lines, or one list), plain or compressed."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.gpus import GPU_KEYS, gpu_in
from kernel_archive.readers.files import MAX_FILE_BYTES, MAX_LINE_BYTES
from kernel_archive.readers.salvage import RowKind, Salvage
from kernel_archive.readers.values import BAD_JSON, any_json
from kernel_archive.untrusted import allowance
from kernel_archive.untrusted_tables import parquet_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.salvage import Report

#: Rows of a Parquet table.
_MAX_ROWS: Final = 1_000_000
#: Fields of a row of a CSV file that are told apart.
_MAX_FIELDS: Final = 10_000
#: Plain values that rows take over from each place on the way to them.
_MOST_PLAIN: Final = 50
#: What is said of all rows together is no row's own.
_SUMMARY: Final = re.compile(r"speed_?up|correct|pass|valid|success|outcome|status|score", re.IGNORECASE)
_REFERENCE: Final = re.compile(r"ref|base|eager|torch|native|orig", re.IGNORECASE)
_OBJECTS: Final = RowKind[dict[str, Any]](dict[str, Any])

Row = tuple[int, dict[str, Any]]


def table_rows(run: RunFiles, path: Path, report: Report, *, at: str | None = None) -> Iterator[Row]:
    """Every row with its number from 1 (for text files: its line); faults go to the report.

    ``at`` is where the rows of a JSON document, or of every line, are: keys with dots between them, and ``{name}`` for every key
    or number at a place, which becomes a column of that name; so do plain values on the way, but no verdicts and speedups: these are of
    all rows together. Without it, a document that is one object is one row, or a row for each of its values (column ``key``) where all are objects.
    """
    name = path.name.removesuffix(".zst").removesuffix(".gz").lower()
    file = run.name(path)
    if name.endswith((".csv", ".tsv")):
        yield from _csv_rows(run, path, report, "\t" if name.endswith(".tsv") else _delimiter(run, path))
        return
    head = run.head(path, 4)
    if head.startswith(b"PAR1"):
        yield from _parquet_rows(run, path, report)
    elif at is not None and name.endswith((".jsonl", ".ndjson")):
        for line, value in Salvage(_OBJECTS, file, report, {}).rows(run.lines(path)):
            yield from ((line, row) for row in _down(value, at.split("."), {}) if isinstance(row, dict))
    elif at is not None or head.lstrip()[:1] == b"[" or (head.lstrip()[:1] == b"{" and _is_document(run, path, name)):
        yield from _document_rows(run, path, report, at)
    else:
        yield from Salvage(_OBJECTS, file, report, {}).rows(run.lines(path))


def _delimiter(run: RunFiles, path: Path) -> str:
    """What stands between the fields of a CSV file: a comma, or a semicolon or tab where the header has these and no comma."""
    header = run.head(path, 1 << 16).split(b"\n", 1)[0]
    return "," if b"," in header else ";" if b";" in header else "\t" if b"\t" in header else ","


def rows_with(run: RunFiles, path: Path, columns: set[str], report: Report) -> Iterator[Row]:
    """Every row of a table whose first row has the columns; none of another table."""
    recognised = False
    for row in table_rows(run, path, report):
        recognised = recognised or row[1].keys() >= columns
        if not recognised:
            break
        yield row


def _parquet_rows(run: RunFiles, path: Path, report: Report) -> Iterator[Row]:
    name = run.name(path)
    limit = allowance(path, MAX_FILE_BYTES)
    for item in parquet_rows(path, name=name, wanted=None, max_rows=_MAX_ROWS, max_bytes=limit, max_row=MAX_LINE_BYTES):
        if isinstance(item, Finding):
            report.add(item)
            if item.code == "unreadable":  # pages are compressed
                run.unsound.add(name)
        else:
            yield item


def _is_document(run: RunFiles, path: Path, name: str) -> bool:
    """Whether a file is one JSON value that begins with an object, and not a row a line."""
    if not name.endswith(".json"):
        return False
    data = run.whole(path)
    try:
        msgspec.json.decode(b"" if isinstance(data, Finding) else data, type=dict[str, msgspec.Raw])
    except BAD_JSON:
        return False
    return True


def _document_rows(run: RunFiles, path: Path, report: Report, at: str | None) -> Iterator[Row]:
    """The rows in a JSON file that is one value."""
    data = run.whole(path)
    if isinstance(data, Finding):
        report.add(data)
        return
    try:
        value = any_json(data.removeprefix(b"\xef\xbb\xbf"))
    except BAD_JSON as error:
        report.error("bad-json", f"not valid: {printable(str(error))}", file=run.name(path))
        return
    keyed = at is None and isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values())
    steps = at.split(".") if at else ["{key}"] if keyed else []
    number = 0
    for number, row in enumerate(_down(value, steps, {}), start=1):
        if isinstance(row, dict):
            yield number, row
        else:
            report.error("not-a-row", "no JSON object; skipped", file=run.name(path), field=f"[{number - 1}]")
    if not number:
        where = f"at {at}" if at else "in it"
        fix = "rows = keys with dots between them, and {name} for every key at a place" if at else None
        report.error("wrong-format", f"there are no rows {where}", file=run.name(path), field="rows", fix=fix)


def _down(value: Any, steps: list[str], keys: dict[str, Any]) -> Iterator[Any]:
    """The rows below a value: along the steps, then the items of a list, or the value itself."""
    if steps:
        step, rest = steps[0], steps[1:]
        if isinstance(value, dict):
            plain = (
                (k, v) for k, v in value.items() if isinstance(v, str | int | float | bool) and not _SUMMARY.search(k)
            )
            keys = {**keys, **dict(islice(plain, _MOST_PLAIN))}
            keys |= {} if step[:1] == "{" else _gpu_beside(value, step)
        items: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            items = value.items() if step[:1] == "{" else [(step, value[step])] if step in value else ()
        elif isinstance(value, list):
            items = [(i, v) for i, v in enumerate(value) if step[:1] == "{" or step == str(i)]
        for key, inner in items:
            yield from _down(inner, rest, {**keys, step[1:-1]: key} if step[:1] == "{" else keys)
    elif isinstance(value, list):
        for inner in value:
            yield {**keys, **inner} if isinstance(inner, dict) else {**keys, "value": inner} if keys else inner
    elif isinstance(value, dict):
        yield {**keys, **value}
    else:
        yield {**keys, "value": value}


def _gpu_beside(value: dict[str, Any], step: str) -> dict[str, str]:
    """The GPU that a document names beside its rows (``meta.gpu``), but not that of a reference."""
    return {
        f"{name}.{key}": text
        for name, inner in value.items()
        if name != step and isinstance(inner, dict) and not _REFERENCE.search(name)
        for key, text in inner.items()
        if key.casefold() in GPU_KEYS and isinstance(text, str) and gpu_in(text) is not None
    }


def _csv_rows(run: RunFiles, path: Path, report: Report, delimiter: str) -> Iterator[Row]:
    """Rows of a CSV file that is written strictly: quotes around a whole field or nowhere, a quote in a field doubled.

    One damaged byte can join two rows, or give the number of one row to the program of another. So from the first row that
    is off on, rows are held until the end of the file has shown that all quotes pair up; then a row counts when the rows
    beside it are whole, too. Where quotes don't pair up, nobody knows where rows begin: all that are held are left out.
    """
    file = run.name(path)
    header: list[str] = []
    held: list[tuple[int, list[str]]] = []
    off = False
    try:
        for number, fields in _csv_records(run.lines(path, raw=True), delimiter, file, report):
            if not header:
                header = fields
                twice = next((name for name in header if name and header.count(name) > 1), None)
                if twice is not None:
                    message = "the table has two columns of this name"
                    report.error("repeated-field", message, file=file, line=number, field=twice)
                    return
                continue
            held.append((number, fields))
            off = off or len(fields) != len(header)
            if not off and len(held) > 1:
                before, whole_row = held.pop(0)
                yield before, dict(zip(header, whole_row, strict=True))
    except _QuotesError as error:
        message = (
            f"quotes don't pair up: rows can't be told apart from here on, {len(held)} before it are left out, too"
        )
        report.error("bad-quotes", message, file=file, line=error.line, fix="Write the table again, or as JSON lines")
        return
    whole = [True, *(len(fields) == len(header) for _, fields in held), True]
    for i, (number, fields) in enumerate(held):
        if not whole[i + 1]:
            message = f"{len(fields)} fields where the header has {len(header)}; skipped"
            report.error("bad-row", message, file=file, line=number)
        elif not (whole[i] and whole[i + 2]):
            message = "a row beside one that is off; it may be part of it, and is skipped"
            report.error("bad-row", message, file=file, line=number)
        else:
            yield number, dict(zip(header, fields, strict=True))


class _QuotesError(Exception):
    """Raised where the quotes of a CSV file don't pair up."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def _csv_records(
    lines: Iterable[tuple[int, bytes] | Finding], delimiter: str, file: str, report: Report
) -> Iterator[tuple[int, list[str]]]:
    """The fields of every record with its first line; no fields for one that is not UTF-8, which is reported.

    A record ends with the first line at which the number of its quotes is even.

    Raises:
        _QuotesError: quotes don't pair up.
    """
    field = re.compile(rf'(?:"([^"]*(?:""[^"]*)*)"|([^"{delimiter}]*))({delimiter}|\Z)')
    parts: list[bytes] = []
    first = size = n_quotes = 0
    for item in lines:
        if isinstance(item, Finding):
            report.add(item)
            raise _QuotesError(item.line or first)
        number, line = item
        if not parts:
            if line.isspace():
                continue
            first = number
        parts.append(line)
        size += len(line)
        n_quotes += line.count(b'"')
        if size > MAX_LINE_BYTES:
            break
        if n_quotes % 2 == 0:
            yield first, _fields(b"".join(parts), field, first, file, report)
            parts, size, n_quotes = [], 0, 0
    if parts:
        raise _QuotesError(first)


def _fields(record: bytes, field: re.Pattern[str], line: int, file: str, report: Report) -> list[str]:
    """The fields of a record."""
    try:
        text = record.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        report.error("bad-utf8", "the row is not UTF-8; skipped", file=file, line=line)
        return []
    fields: list[str] = []
    at = 0
    while len(fields) <= _MAX_FIELDS:
        match = field.match(text, at)
        if match is None:
            raise _QuotesError(line)
        fields.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        at = match.end()
        if not match[3]:
            break
    return fields
