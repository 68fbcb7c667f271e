"""For ``kernel-archive init``: where the rows of a table are, and what its columns may mean.

Names are data: they are quoted. ``init.toml`` says what is guessed by.
"""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from kernel_archive.readers.sql import QueryError, run_query
from kernel_archive.untrusted import UntrustedFileError, open_uncompressed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Look at this many columns of a table.
_MAX_COLUMNS: Final = 2_000
#: Look at this many kinds of objects in nested results.
_MAX_KINDS: Final = 200
_SPEED: Final = frozenset({"speedup", "runtime_us"})
_OBJECT: Final = '"MAP(VARCHAR, JSON)"'
KNOWN: Final = tomllib.loads(Path(__file__).with_name("init.toml").read_text(encoding="utf-8"))
UNITS: Final = KNOWN["units"]
WORDS: Final = {name: frozenset(words) for name, words in KNOWN["words"].items()}
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
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
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
    deep = _at_any_depth(folder, name, read) if is_json and not _says_enough(columns) else None
    return deep or (read, columns)


def _says_enough(columns: Iterable[str]) -> bool:
    """Whether columns name a program or problem, and a speed; a number is a key, no name."""
    names = [c for c in columns if not any(part.isdigit() for part in c.split("."))]
    known = {*matched(names), *times(names)}
    return bool(known & {"code", "problem"} and known & _SPEED)


def _at_any_depth(folder: Path, name: str, read: str) -> Table | None:
    """Look for the most frequent objects, however deep, that hold a program and its speed.

    The keys that lead to one are its problem, but for its place in a list of attempts.
    """
    objects = (
        "SELECT o.value AS json, regexp_replace(o.fullkey, '\\.?[^.]*\\[\\d+\\]$', '') AS place "
        f"FROM {read.replace('(', '_objects(', 1)} f, json_tree(f.json) o WHERE o.type = 'OBJECT'"
    )
    kinds = f"SELECT json_structure(json)::VARCHAR AS kind FROM ({objects}) GROUP BY kind"
    answer = answer_of(folder, name, f"{kinds} ORDER BY count(*) DESC, kind LIMIT {_MAX_KINDS}")
    for kind in answer.to_pydict().get("kind", []):
        columns = _columns(_keys(json.loads(kind)), "json_extract_string(t.json, '$.{}')")
        used = {**matched(columns), **{ours: c for ours, (c, _) in times(columns).items()}}
        speed = next((used[name] for name in sorted(_SPEED & {*used}, reverse=True)), None)
        if speed is not None and "." not in used.get("code", "."):
            wanted = (columns[c].replace("t.json", "json") for c in (used["code"], speed))
            where = " AND ".join(f"{c} IS NOT NULL" for c in wanted)
            problem = "trim(regexp_replace(t.place, '\\W+', '/', 'g'), '/')"
            places = {} if "problem" in used else {"place.problem": problem}
            known = {c: sql for c, sql in columns.items() if c in used.values()}
            return f"(SELECT * FROM ({objects}) WHERE {where})", known | places
    return None


def _keys(value: Any, path: _Path = ()) -> Iterator[_Path]:
    """Yield the path of each leaf in an object."""
    for key, inner in value.items():
        yield from _keys(inner, (*path, key)) if isinstance(inner, dict) else [(*path, key)]


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
