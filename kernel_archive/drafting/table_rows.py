"""For ``kernel-archive init``: where the rows of a table are, and its columns, as SQL.

A CSV or flat Parquet file is read as it is. The rows of anything nested are JSON objects: the
documents of the file, or the objects in a list or in an object of alike objects below them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from kernel_archive.databases import sql_name, sql_texts
from kernel_archive.drafting import guesses
from kernel_archive.errors import printable
from kernel_archive.readers.sql import QueryError, csv_mark, run_query
from kernel_archive.readers.values import BAD_JSON, any_json

#: Look at this many columns of a table, and into this many documents and places of rows.
_MAX_COLUMNS: Final = 2_000
_MAX_DOCUMENTS: Final = 1_000
_MAX_PLACES: Final = 200
#: Characters of all these documents.
_MAX_CHARACTERS: Final = 32 << 20
#: A column that the keys above a row make.
PLACE: Final = "place"
#: Ending of a table -> how DuckDB reads it.
_READ: Final[dict[str, str]] = guesses.KNOWN["tables"]
_OBJECT: Final = '"MAP(VARCHAR, JSON)"'
#: Keys that number things.
_NUMBERED: Final = re.compile(r"(?:level|problem|task|sample)?_?\d+")
_LINES: Final = (".jsonl", ".ndjson")

_Path: TypeAlias = tuple[str, ...]
#: How objects lie below others: in a list, or as the values of an object of named or numbered ones.
_Kind: TypeAlias = Literal["list", "named", "numbered"]


class TableRows(msgspec.Struct, kw_only=True):
    """How the rows of a table are read, and its columns; none where DuckDB cannot read it."""

    read: str  # what stands behind FROM
    columns: dict[str, str] = {}  # name -> SQL over the row ``t``
    is_json: bool = False  # a file may lack a column, or have more
    line: str | None = None  # column of the line that a row lies in, where that is not its number
    fault: str = "it has no column"  # why it has none


class _Step(NamedTuple):
    """A way from the objects above to rows: each item of a list, or each value of an object."""

    path: _Path
    kind: _Kind


def uncompressed(name: str) -> Path:
    """Name a file without the ending of its compression."""
    return Path(name.removesuffix(".zst").removesuffix(".gz"))


def is_table(name: str, *, is_text: bool = False) -> bool:
    """Tell whether a file is a table by its name, or one of text."""
    ending = uncompressed(name).suffix.lower()
    return ending in _READ and not (is_text and ending == ".parquet")


def look_at(folder: Path, name: str) -> TableRows:
    """Look where the rows of a table are, and which columns they have."""
    ending = uncompressed(name).suffix.lower()
    read = _READ[ending]
    read = read.replace("{}", csv_mark(folder / name)) if "{}" in read else read
    try:
        if "_json" not in read:
            fields = answer_of(folder, name, f"SELECT * FROM {read} LIMIT 0").schema
            if not any(pa.types.is_nested(field.type) for field in fields):
                names = islice(filter(None, fields.names), _MAX_COLUMNS)
                return TableRows(read=read, columns={name: f"t.{sql_name(name)}" for name in names})
            read = f"(SELECT to_json(p) AS json FROM {read} p)"
        first = f"SELECT json::VARCHAR AS text FROM {read} LIMIT {_MAX_DOCUMENTS}"
        length = "sum(length(text)) OVER (ROWS UNBOUNDED PRECEDING)"
        query = f"SELECT text FROM ({first}) QUALIFY {length} <= {_MAX_CHARACTERS}"
        texts = answer_of(folder, name, query)["text"].to_pylist()
        documents = [any_json(text.encode()) for text in texts if text is not None]
    except (QueryError, *BAD_JSON) as error:
        return TableRows(read=read, fault=printable(str(error).splitlines()[0], 120))
    if ending in _LINES:
        read = f"(SELECT json, row_number() OVER () AS source_line FROM {read})"
    return _json_table(read, documents, line="source_line" if ending in _LINES else None)


def answer_of(folder: Path, file: str, select: str) -> pa.Table:
    """Return the answer of a query over one table."""
    return run_query(select, folder, {"file": file}, seconds=60)


def _json_table(read: str, documents: list[Any], *, line: str | None) -> TableRows:
    """Write how the rows below documents are read, with the columns of the objects above them."""
    steps, levels = _steps_to_rows(documents)
    row = "json"
    columns = {".".join(path): f"(t.{row}->>{_pointer(path)})" for path in levels[0]}
    keys: list[str] = []
    for number, (step, paths) in enumerate(zip(steps, levels[1:], strict=True), 1):
        name = f"item{number}"
        below = f"{row}->{_pointer(step.path)}" if step.path else row
        if step.kind == "list":
            row, unnested = name, f"from_json({below}, '[\"JSON\"]')"
        else:
            row, unnested = f"{name}.value", f"map_entries(from_json({below}, '{_OBJECT}'))"
            if step.kind == "numbered" and step.path:  # the first of levels is level_1
                keys.append(sql_texts([step.path[-1].removesuffix("s")]))
            keys.append(f"t.{name}.key")
        read = f"(SELECT *, unnest({unnested}) AS {name} FROM {read})"
        own = {".".join(path): f"(t.{row}->>{_pointer(path)})" for path in paths}
        columns = own | {**columns, **own}  # what a row says itself comes first
    if keys:
        columns = {PLACE: f"concat_ws('_', {', '.join(keys)})", **columns}
    return TableRows(read=read, columns=columns, is_json=True, line=line if steps else None)


def _steps_to_rows(documents: list[Any]) -> tuple[list[_Step], list[list[_Path]]]:
    """Find the objects that are rows: the steps to them, and the paths of the values at each step.

    The uppermost that hold a program and its speed; else those below the documents that name a
    problem and a speed; else the documents.
    """
    fallback: tuple[list[_Step], list[list[_Path]]] | None = None
    waiting = deque[tuple[list[_Step], list[list[_Path]], list[Any]]]([([], [], documents)])
    for _ in range(_MAX_PLACES):
        if not waiting:
            break
        steps, above, objects = waiting.popleft()
        paths, below = _split(objects)
        levels = [*above, paths]
        columns = [PLACE] if any(step.kind != "list" for step in steps) else []
        known = guesses.known([*columns, *map(".".join, paths)])
        if not guesses.SPEED.isdisjoint(known):
            if "code" in known:
                return steps, levels
            if "problem" in known and steps:
                fallback = fallback or (steps, levels)
        waiting.extend(([*steps, step], levels, inner) for step, inner in below.items())
    return fallback or ([], [_split(documents)[0]])


def _split(objects: Iterable[Any]) -> tuple[list[_Path], dict[_Step, list[Any]]]:
    """Part objects into the paths of their plain values, and the objects one step below them."""
    paths: dict[_Path, None] = {}
    below: dict[_Step, list[Any]] = {}
    for value in objects:
        for path, kind, inner in _parts(value):
            if kind is not None:
                below.setdefault(_Step(path, kind), []).extend(inner)
            elif path and all(path):
                paths[path] = None
    return list(islice(paths, _MAX_COLUMNS)), below


def _parts(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, _Kind | None, Iterable[Any]]]:
    """Yield what an object holds: plain values, and lists and objects of objects with these."""
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict)]
        if objects:
            yield path, "list", objects
    elif not isinstance(value, dict):
        yield path, None, ()
    elif kind := _kind_of_objects(value):
        yield path, kind, value.values()
    else:
        for key, inner in value.items():
            yield from _parts(inner, (*path, key))


def _kind_of_objects(value: dict[str, Any]) -> _Kind | None:
    """Tell what the keys of an object of alike objects do; ``None`` where it is one object."""
    inner = list(value.values())
    if inner and all(map(_NUMBERED.fullmatch, value)):
        return "numbered" if all(isinstance(entry, dict | list) for entry in inner) else None
    if len(inner) < 2 or not all(isinstance(entry, dict) for entry in inner):
        return None
    is_alike = set.intersection(*map(set, inner)) and not any(map(guesses.is_reference, value))
    return "named" if is_alike else None


def _pointer(path: _Path) -> str:
    """Write a path of keys as a JSON pointer in SQL.

    >>> _pointer(("a/b", "c~d"))
    "'/a~1b/c~0d'"
    """
    return sql_texts(["".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)])
