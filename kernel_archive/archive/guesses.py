"""For ``kernel-archive init``: where the rows of a table are, and what its columns may mean.

Names are data: they are quoted. ``init.toml`` says what is guessed by.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from kernel_archive.readers.sql import QueryError, run_query
from kernel_archive.untrusted import UntrustedFileError, open_uncompressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Look at this many columns of a table.
_MAX_COLUMNS: Final = 2_000
_SPEED: Final = frozenset({"speedup", "runtime_us"})
_OBJECT: Final = '"MAP(VARCHAR, JSON)"'
KNOWN: Final = tomllib.loads(Path(__file__).with_name("init.toml").read_text(encoding="utf-8"))
UNITS: Final = KNOWN["units"]
WORDS: Final = {name: frozenset(words) for name, words in KNOWN["words"].items()}
#: Keys that number things; in a path: each value of an object with such keys, each item of a list.
_NUMBERED: Final = re.compile(r"(?:level|problem|task|sample)?_?\d+")
_EACH, _ITEM = "{}", "[]"
_Path: TypeAlias = tuple[str, ...]
#: How the rows of a table are read, and its columns: name -> SQL over the row ``t``.
Table: TypeAlias = tuple[str, dict[str, str]]


def uncompressed(name: str) -> Path:
    """The name of a file without the ending of its compression."""
    return Path(name.removesuffix(".zst").removesuffix(".gz"))


def _reader(folder: Path, name: str) -> str:
    """Write the call that reads a table; the mark between fields of CSV is the header's."""
    suffix = uncompressed(name).suffix.lower()
    header = ""
    with suppress(UntrustedFileError), open_uncompressed(folder / name) as f:
        header = f.read(1 << 16).split(b"\n", 1)[0].decode("utf-8", "replace")
    marks = "\t" if suffix == ".tsv" else ",;\t"
    mark = next((mark for mark in marks if mark in header), marks[0])
    return str(KNOWN["tables"][suffix]).format(mark)


def answer_of(folder: Path, file: str, select: str) -> pa.Table:
    """Return the answer of a query over one table; no column where DuckDB cannot read it."""
    try:
        return run_query(select, folder, {"file": file}, seconds=60)
    except (QueryError, ValueError):  # a text that is no UTF-8
        return pa.table({})


def _leaves(fields: Iterable[pa.Field], path: _Path = ()) -> Iterator[tuple[_Path, pa.DataType]]:
    """Yield the path of each column, also of those inside objects, with its type."""
    for field in fields:
        inner = (*path, field.name)
        is_object = pa.types.is_struct(field.type)
        yield from _leaves(field.type, inner) if is_object else [(inner, field.type)]


def _columns(paths: Iterable[_Path], row: str) -> dict[str, str]:
    """Map columns, by their paths with points, to the SQL that reads them from a row."""
    texts = {".".join(path): ".".join(map(quoted, path)) for path in paths if all(path)}
    is_json = "'" in row
    return {n: row.format(t.replace("'", "''") if is_json else t) for n, t in texts.items()}


def look_at(folder: Path, name: str) -> Table:
    """Look where the rows of a table are: in an object or a list of objects, or as it is."""
    read = _reader(folder, name)
    is_json = "_json" in read
    whole = read.replace("')", "'), map_inference_threshold = -1") if is_json else read
    fields = answer_of(folder, name, f"SELECT * FROM {whole} LIMIT 0").schema
    leaves = dict(islice(_leaves(fields), _MAX_COLUMNS))
    ways = []
    for above in dict.fromkeys(p[:n] for n in (0, 1) for p in leaves if is_json):
        n = len(above)
        own = [p[n:] for p in leaves if p[:n] == above and len(p) > n]
        by_key = {key: {p[1:] for p in own if p[0] == key} for key, *_ in own}
        same = set.intersection(*by_key.values()) if len(by_key) > 1 else set()
        if same and () not in set.union(*by_key.values()) and not any(map(is_reference, by_key)):
            place = "json" + "".join(f"->'$.{quoted(key)}'" for key in above)
            each = f"unnest(map_entries(from_json({place}, '{_OBJECT}'))) AS item"
            text = "json_extract_string({}, '$.{{}}')".format
            inner = _columns(dict.fromkeys(p[1:] for p in own), text('t."item"."value"'))
            outer = _columns((p for p in leaves if p[:n] != above), text("t.json"))
            objects = f"(SELECT json, {each} FROM {read.replace('(', '_objects(', 1)})"
            ways.append((objects, inner | {"name": 't."item"."key"'}, outer))
    for path, kind in leaves.items():
        is_numbered = any(map(_NUMBERED.fullmatch, path))
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and not is_numbered:
            inner = _columns((p for p, _ in _leaves(kind.value_type)), 't."item".{}')
            outer = _columns((p for p in leaves if p != path), "t.{}")
            each = f"unnest({'.'.join(map(quoted, path))}) AS item"
            ways.append((f"(SELECT *, {each} FROM {read})", inner, outer))
    for rows_of, inner, outer in ways:
        around = {*matched(outer), *times(outer)}
        is_row = "code" in around and around & _SPEED
        if _says_enough(inner) and not is_row:
            return rows_of, inner | {**outer, **inner}
    columns = _columns(leaves, "t.{}")
    deep = _at_any_depth(read, leaves) if is_json and not _says_enough(columns) else None
    return deep or (read, columns)


def _says_enough(columns: Iterable[str]) -> bool:
    """Whether columns name a program or problem, and a speed; a number is a key, no name."""
    names = [c for c in columns if not any(map(_NUMBERED.fullmatch, c.split(".")))]
    known = {*matched(names), *times(names)}
    return bool(known & {"code", "problem"} and known & _SPEED)


def _at_any_depth(read: str, leaves: dict[_Path, pa.DataType]) -> Table | None:
    """Look for the deepest objects below numbered keys that hold a program and its speed.

    The keys that lead to one name its problem; the items of a list below them are its attempts.
    """
    kinds: dict[_Path, dict[_Path, None]] = {}
    for path, kind in leaves.items():
        steps = tuple(_EACH if _NUMBERED.fullmatch(part) else part for part in path)
        n = len(steps) - steps[::-1].index(_EACH) if _EACH in steps else 0
        if n and pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            inner = kinds.setdefault((*steps, _ITEM), {})
            inner.update((p, None) for p, _ in _leaves(kind.value_type))
        elif n and path[n:]:
            kinds.setdefault(steps[:n], {})[path[n:]] = None
    for above, paths in sorted(kinds.items(), key=lambda item: -len(item[0])):
        columns = _columns(paths, "json_extract_string(t.json, '$.{}')")
        if "code" in matched(columns) and _says_enough(columns):
            rows_of = f"(SELECT json, '' AS place FROM {read.replace('(', '_objects(', 1)})"
            key: list[str] = []
            for step in above:
                value = "json" + "".join(f"->'$.{quoted(k)}'" for k in key)
                if step == _EACH:
                    each = f"unnest(map_entries(from_json({value}, '{_OBJECT}'))) AS e"
                    words = [f"'{re.sub(r'[^A-Za-z0-9]', '', k).removesuffix('s')}'" for k in key]
                    place = ", ".join(["nullif(place, '')", *words, "e.key"])
                    rows_of = f"(SELECT place, {each} FROM {rows_of})"
                    rows_of = (
                        f"(SELECT e.value AS json, concat_ws('_', {place}) AS place FROM {rows_of})"
                    )
                elif step == _ITEM:
                    each = f"unnest(from_json({value}, '[\"JSON\"]')) AS json"
                    rows_of = f"(SELECT place, {each} FROM {rows_of})"
                key = [] if step in (_EACH, _ITEM) else [*key, step]
            return rows_of, columns | {"place": "t.place"}
    return None


def words_of(name: str) -> list[str]:
    """The words of a column's name: ``kernelTime (ms)`` gives kernel, time and ms."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("\u00b5s", "us")
    return [word for word in re.split(r"[^a-z0-9]+", split) if word]


def matched(columns: Iterable[str]) -> dict[str, str]:
    """Map columns of ours to the column of theirs with the best name; each is taken once."""
    plain = {c: {"_".join(words_of(c)), "_".join(words_of(c.rpartition(".")[2]))} for c in columns}
    found: dict[str, str] = {}
    for ours, patterns in KNOWN["columns"].items():
        ends = ((p, c, end) for p in patterns for c, names in plain.items() for end in names)
        fits = (c for p, c, end in ends if re.fullmatch(p, end))
        if (theirs := next(fits, None)) is not None:
            found[ours] = theirs
            del plain[theirs]
    return found


def times(columns: Iterable[str]) -> dict[str, tuple[str, str | None]]:
    """Map our columns of times to theirs, and its unit where its name has one."""
    found: dict[str, tuple[str, str | None]] = {}
    for column in columns:
        words = words_of(column)
        unit = next((word for word in reversed(words) if word in UNITS), None)
        is_time = WORDS["time"].intersection(words) or unit not in (None, "s")
        is_time = is_time or WORDS["only_reference"].issuperset(words)
        if words and is_time and not WORDS["no_time"].intersection(words):
            name = "reference_runtime_us" if is_reference(column) else "runtime_us"
            found.setdefault(name, (column, unit))
    return found


def is_reference(column: str) -> bool:
    """Whether a name is of the reference's."""
    return bool(WORDS["reference"].intersection(words_of(column)))


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
