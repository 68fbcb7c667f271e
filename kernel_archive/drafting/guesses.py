"""For ``kernel-archive init``: where the rows of a table are, and what its columns may mean.

Names are data: they are quoted. ``guesses.toml`` says what is guessed by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from kernel_archive.databases import literal_path, sql_name, sql_texts
from kernel_archive.errors import printable
from kernel_archive.readers.sql import QueryError, csv_delimiter, run_query
from kernel_archive.toml_files import toml_beside

#: Look at this many columns of a table.
_MAX_COLUMNS: Final = 2_000
_SPEED: Final = frozenset({"speedup", "runtime_us"})
_RESULTS: Final = _SPEED | {"correct", "compiled", "outcome"}
#: The name of an object in an object of objects, and of one below numbered keys.
OBJECT_KEY_SQL, PLACE_SQL = 't."item"."key"', "t.place"
_OBJECT: Final = '"MAP(VARCHAR, JSON)"'
KNOWN: Final = toml_beside(__file__)
UNITS: Final = KNOWN["units"]
WORDS: Final = {name: frozenset(words) for name, words in KNOWN["words"].items()}
ERRORS: Final = [(error["failure"], error["words"]) for error in KNOWN["error"]]
#: The failure that a word seems to say, the plainest first; ``None`` for words of success.
_FAILURES: Final = (
    (None, r"(?<![a-z])(ok|pass(ed)?|success(ful)?|correct|valid|good|no_?error)(?![a-z])"),
    ("compile_failed", r"compil|build|syntax|nvcc|^ce$"),
    ("infrastructure_failure", r"infra|cancel|preempt|lost"),
    ("incorrect", r"wrong|incorrect|mismatch|assert|numeric|verif|accura|toleran"),
    ("runtime_error", r"crash|^tle$|time_?out|timed|oom|memory|exception|runtime"),
    ("runtime_error", r"launch|hang|illegal|error"),
    ("incorrect", r"fail|invalid"),
)  # fmt: skip
#: Endings of files with programs, the likeliest last: a log may be a .txt, too.
PROGRAMS: Final = (".txt", ".py", ".cu", ".cuh", ".cpp", ".hip")
#: Keys that number things; in a path: each value of an object with such keys, each item of a list.
_NUMBERED: Final = re.compile(r"(?:level|problem|task|sample)?_?\d+")
_EACH, _ITEM = "{}", "[]"
_Path: TypeAlias = tuple[str, ...]
#: Objects inside documents, read as rows: source, their columns, those of the document around.
_Way: TypeAlias = tuple[str, dict[str, str], dict[str, str]]


class TableQuery(NamedTuple):
    """How the rows of a table are read, and its columns."""

    source: str  # what stands behind FROM, as SQL
    columns: dict[str, str]  # name -> SQL over the row ``t``


def _known(columns: Iterable[str]) -> dict[str, str]:
    """Map columns of ours, but those of errors, to theirs."""
    listed = [*columns]
    known = matched_columns(listed) | {o: theirs for o, (theirs, _) in time_columns(listed).items()}
    return {ours: theirs for ours, theirs in known.items() if not ours.startswith("error")}


def united(best: TableQuery, others: dict[str, TableQuery]) -> tuple[TableQuery, list[str]]:
    """Read plain JSON tables as one with the best of them, and list their names.

    A table may lack optional columns of the best one or have more. Each column of it that is known
    must lie where the best one has it, and one of them must say how the program did.
    """
    known = _known(best.columns)
    same = [
        name
        for name, (source, columns) in others.items()
        if source == best.source
        and (columns == best.columns or _RESULTS & _known(columns).keys())
        and _known(columns).items() <= known.items()
    ]
    return TableQuery(best.source, {c: q for n in same for c, q in others[n].columns.items()}), same


def _pointer(keys: Iterable[str]) -> str:
    """Write a path of keys as a JSON pointer in SQL.

    >>> _pointer(["a/b", "it's"])
    "'/a~1b/it''s'"
    """
    return sql_texts(["".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)])


def _below(keys: Sequence[str]) -> str:
    """Write the value below some keys of a document as SQL."""
    return f"json->{_pointer(keys)}" if keys else "json"


def uncompressed(name: str) -> Path:
    """Name a file without the ending of its compression."""
    return Path(name.removesuffix(".zst").removesuffix(".gz"))


def _reader(folder: Path, name: str) -> str:
    """Write the call that reads a table; the mark between fields of CSV is the header's."""
    call = str(KNOWN["tables"][uncompressed(name).suffix.lower()])
    return call.format(csv_delimiter(folder / name)) if "{}" in call else call


def query_result(folder: Path, file: str, select: str) -> pa.Table:
    """Return the rows of a query over one table; no column where DuckDB cannot read it."""
    try:
        return run_query(select, folder, {"file": file}, seconds=60)
    except (QueryError, ValueError):  # a text that isn't UTF-8
        return pa.table({})


def why_unreadable(folder: Path, name: str) -> str:
    """Say why no column of a table can be read."""
    try:
        run_query(
            f"SELECT * FROM {_reader(folder, name)} LIMIT 1", folder, {"file": name}, seconds=60
        )
    except (QueryError, ValueError) as error:
        return printable(str(error).splitlines()[0], 120)
    return "it has no column"


def _leaves(fields: Iterable[pa.Field], path: _Path = ()) -> Iterator[tuple[_Path, pa.DataType]]:
    """Yield the path of each column, also of those inside objects, with its type."""
    for field in fields:
        inner = (*path, field.name)
        is_object = pa.types.is_struct(field.type)
        yield from _leaves(field.type, inner) if is_object else [(inner, field.type)]


def _columns(paths: Iterable[_Path], row: str, *, is_json: bool = False) -> dict[str, str]:
    """Map columns, by their paths with points, to the SQL that reads them from ``row``."""
    texts = {".".join(path): ".".join(map(sql_name, path)) for path in paths if all(path)}
    if not is_json:
        return {name: f"{row}.{text}" for name, text in texts.items()}
    quoted = {name: text.replace("'", "''") for name, text in texts.items()}
    return {name: f"json_extract_string({row}, '$.{text}')" for name, text in quoted.items()}


def _objects_in_objects(leaves: Mapping[_Path, pa.DataType], source: str) -> Iterator[_Way]:
    """Yield the objects that differ in their keys alone, each of which is the name of a row."""
    # The document itself, then each of its top-level keys.
    for above in dict.fromkeys(p[:n] for n in (0, 1) for p in leaves):
        n = len(above)
        paths = [p[n:] for p in leaves if p[:n] == above and len(p) > n]
        by_key = {key: {p[1:] for p in paths if p[0] == key} for key, *_ in paths}
        same = set.intersection(*by_key.values()) if len(by_key) > 1 else set()
        if same and () not in set.union(*by_key.values()) and not any(map(is_reference, by_key)):
            each = f"unnest(map_entries(from_json({_below(above)}, '{_OBJECT}'))) AS item"
            inner = _columns(dict.fromkeys(p[1:] for p in paths), 't."item"."value"', is_json=True)
            outer = _columns((p for p in leaves if p[:n] != above), "t.json", is_json=True)
            yield f"(SELECT *, {each} FROM {source})", inner | {"name": OBJECT_KEY_SQL}, outer


def _lists_of_objects(leaves: Mapping[_Path, pa.DataType], source: str) -> Iterator[_Way]:
    """Yield the items of each list of objects that stands below no numbered key."""
    for path, kind in leaves.items():
        is_numbered = any(map(_NUMBERED.fullmatch, path))
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and not is_numbered:
            inner = _columns((p for p, _ in _leaves(kind.value_type)), 't."item"')
            outer = _columns((p for p in leaves if p != path), "t")
            each = f"unnest({'.'.join(map(sql_name, path))}) AS item"
            yield f"(SELECT *, {each} FROM {source})", inner, outer


def look_at(folder: Path, name: str) -> TableQuery:
    """Look where the rows of a table are: in an object or a list of objects, or as it is."""
    read = _reader(folder, name)
    is_json = "_json" in read
    whole = read.replace("')", "'), map_inference_threshold = -1") if is_json else read
    fields = query_result(folder, name, f"SELECT * FROM {whole} LIMIT 0").schema
    leaves = dict(islice(_leaves(fields), _MAX_COLUMNS))
    rows, objects = read, read.replace("(", "_objects(", 1)
    if uncompressed(name).suffix.lower() in (".jsonl", ".ndjson"):
        numbered = "(SELECT *, row_number() OVER () AS source_line FROM {})"
        rows, objects = numbered.format(rows), numbered.format(objects)
    ways = list(_objects_in_objects(leaves, objects)) if is_json else []
    for source, inner, outer in [*ways, *_lists_of_objects(leaves, rows)]:
        around = {*matched_columns(outer), *time_columns(outer)}
        is_row = "code" in around and around & _SPEED
        if _says_enough(inner) and not is_row:
            return TableQuery(source, inner | {**outer, **inner})
    columns = _columns(leaves, "t")
    deep = _at_any_depth(objects, leaves) if is_json and not _says_enough(columns) else None
    if is_json:
        # As text, whatever types DuckDB gives a column: a later row may have another.
        read = read.replace("(", "_objects(", 1)
        columns = {
            ".".join(path): f"json_extract_string(t.json, {_pointer(path)})"
            for path in leaves
            if all(path)
        }
    return deep or TableQuery(read, columns)


def _says_enough(columns: Iterable[str]) -> bool:
    """Tell whether columns name a program or problem, and a speed; a number is no name."""
    names = [c for c in columns if not any(map(_NUMBERED.fullmatch, c.split(".")))]
    known = {*matched_columns(names), *time_columns(names)}
    return bool(known & {"code", "problem"} and known & _SPEED)


def _at_any_depth(objects: str, leaves: dict[_Path, pa.DataType]) -> TableQuery | None:
    """Look for the deepest objects below numbered keys that hold a program and its speed.

    The keys that lead to one name its problem; the items of a list below them are its attempts.
    """
    columns_below: dict[_Path, dict[_Path, None]] = {}
    for path, kind in leaves.items():
        steps = tuple(_EACH if _NUMBERED.fullmatch(part) else part for part in path)
        n = len(steps) - steps[::-1].index(_EACH) if _EACH in steps else 0
        if n and pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            inner = columns_below.setdefault((*steps, _ITEM), {})
            inner.update((p, None) for p, _ in _leaves(kind.value_type))
        elif n and path[n:]:
            columns_below.setdefault(steps[:n], {})[path[n:]] = None
    for above, paths in sorted(columns_below.items(), key=lambda item: -len(item[0])):
        columns = _columns(paths, "t.json", is_json=True)
        if "code" in matched_columns(columns) and _says_enough(columns):
            rows_of = f"(SELECT *, '' AS place FROM {objects})"
            key: list[str] = []
            for step in above:
                value = _below(key)
                if step == _EACH:
                    each = f"unnest(map_entries(from_json({value}, '{_OBJECT}'))) AS e"
                    words = [f"'{re.sub(r'[^A-Za-z0-9]', '', k).removesuffix('s')}'" for k in key]
                    place = ", ".join(["nullif(place, '')", *words, "e.key"])
                    item = f"e.value AS json, concat_ws('_', {place}) AS place"
                    rows_of = f"(SELECT * EXCLUDE (json), {each} FROM {rows_of})"
                    rows_of = f"(SELECT * EXCLUDE (e, place), {item} FROM {rows_of})"
                elif step == _ITEM:
                    each = f"unnest(from_json({value}, '[\"JSON\"]')) AS json"
                    rows_of = f"(SELECT * EXCLUDE (json), {each} FROM {rows_of})"
                key = [] if step in (_EACH, _ITEM) else [*key, step]
            return TableQuery(rows_of, columns | {"place": PLACE_SQL})
    return None


def words_of(name: str) -> list[str]:
    """Split a column's name into words: ``kernelTime (ms)`` gives kernel, time and ms."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("\u00b5s", "us")
    return [word for word in re.split(r"[^a-z0-9]+", split) if word]


def matched_columns(columns: Iterable[str]) -> dict[str, str]:
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


def time_columns(columns: Iterable[str]) -> dict[str, tuple[str, str | None]]:
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
    """Tell whether a column's name says that it is of the reference."""
    return bool(WORDS["reference"].intersection(words_of(column)))


def error_columns(columns: dict[str, str], values: dict[str, list[str]]) -> dict[str, str]:
    """Map the columns that may hold the texts of errors to their SQL."""
    no_text = re.compile(r"[-+.\deE]+|(?i:true|false|nan|inf)")
    return {
        column: f"{sql}::VARCHAR"
        for column, sql in columns.items()
        if not WORDS["error"].isdisjoint(words_of(column))
        and WORDS["no_text"].isdisjoint(words_of(column))
        and not any(map(no_text.fullmatch, values.get(column, ())))
    }


def by_error(failed: str, texts: dict[str, str]) -> Iterator[str]:
    """Write which failure a failed row's error says: by the column's name, else by its words."""
    for column, text in texts.items():
        name = column.rpartition(".")[2].lower()
        said = f"regexp_matches(lower({text}), '{{}}')"
        rules = [(failure, said.format(words)) for failure, words in ERRORS]
        named = [failure for failure, words in ERRORS if re.search(words, name)]
        if named or "exception" in name:  # of an exception the words count first
            rules = [] if named else rules
            rules.append((named[0] if named else "runtime_error", f"{text} <> ''"))
        for failure, rule in rules:
            yield f"{failed} AND {rule} THEN '{failure}'  -- LOOK: by its error"


def failure_of(word: str) -> str | None:
    """Guess the failure that a word says; ``None`` where it says none.

    >>> failure_of("FAIL_NUMERIC"), failure_of("FAIL_BUILD"), failure_of("build ok")
    ('incorrect', 'compile_failed', None)
    """
    lower = word.strip().casefold()
    return next((outcome for outcome, words in _FAILURES if re.search(words, lower)), None)


class FileColumn(NamedTuple):
    """A column that names the file of a program."""

    name: str
    files: str  # which hold the programs, as SQL
    ending: str  # that is missing in its cells
    found: str | None  # the first of the files, if most are there
    is_windows: bool = False  # its paths have backslashes
    before: str = ""  # what its cells lack at the beginning


def file_columns(
    values: dict[str, list[str]], matched: dict[str, str], programs: Iterable[str]
) -> dict[str, FileColumn]:
    """Map code and reference_code to columns that name files: the most varied is the program.

    Files that are not there are looked for only where nothing else is the program.
    """
    known = {p: n for n in programs if n.endswith(PROGRAMS) for p in _endings(n)}
    code, naming = matched.get("code"), list[FileColumn]()
    for column, cells in values.items():
        names = [c.strip() for c in cells if "\n" not in c and len(c) < 300]
        is_windows = any("\\" in name for name in names)
        names = [name.replace("\\", "/").removeprefix("./") for name in names]
        endings = {Path(name).suffix for name in names} & {*PROGRAMS}
        there = [known[name] for name in names if name in known]
        found = there[0] if len(there) > len(cells) / 2 else None
        endings = endings or {Path(name).suffix for name in there[:1] if found}
        n_paths = sum(name.endswith(PROGRAMS[1:]) for name in names)
        may_miss = n_paths > len(cells) / 2 and (code in (None, column) or is_reference(column))
        if found or may_miss:
            patterns = [f"**/*{ending}" for ending in sorted(endings)]
            files = repr(patterns if len(patterns) > 1 else patterns[0])
            bare = "" if names[0].endswith(tuple(endings)) else min(endings)
            naming.append(FileColumn(column, files, bare, found, is_windows))
    n_values = {column.name: len(set(values[column.name])) for column in naming}
    naming.sort(key=lambda c: (c.found is None, -n_values[c.name], c.ending, is_reference(c.name)))
    # Where a column holds the texts themselves, files can only be the reference's.
    is_text = code is not None and any("\n" in text for text in values[code])
    columns = {"code": naming[0]} if naming and not is_text else {}
    references = [c for c in naming if is_reference(c.name) and c not in columns.values()]
    return columns | ({"reference_code": references[0]} if references else {})


def numbered_files(
    values: dict[str, list[str]], programs: Iterable[str], beside: Path
) -> FileColumn | None:
    """Find the column whose numbers are in the names of programs beside the table: sample_0.py.

    No number stands twice in it, or another column's would have to be in the names, too.
    """
    inside = (Path(n) for n in programs if n.endswith(PROGRAMS[1:]))
    below = dict.fromkeys(
        p.relative_to(beside).as_posix() for p in inside if p.is_relative_to(beside)
    )
    for column, cells in values.items():
        is_unique = len({*cells}) == len(cells) > 0
        if not is_unique or WORDS["sample"].isdisjoint(words_of(column)):
            continue
        number = re.compile(rf"(?<![A-Za-z0-9]){re.escape(cells[0])}(?![A-Za-z0-9])")
        for name in below:
            for match in reversed([*number.finditer(name, name.rfind("/") + 1)]):
                before, ending = name[: match.start()], name[match.end() :]
                if sum(f"{before}{c}{ending}" in below for c in cells) > len(cells) / 2:
                    place = f"{literal_path(name[: name.rfind('/') + 1])}*{Path(name).suffix}"
                    files, found = sql_texts([place]), str(beside / name)
                    return FileColumn(column, files, ending, found, before=before)
    return None


def _endings(name: str) -> set[str]:
    """List the parts of a path that a cell may name it by: a/b.py, b.py, a/b and b."""
    parts = Path(name).parts[-4:]
    tails = {"/".join(parts[i:]) for i in range(len(parts))}
    return tails | {tail.removesuffix(Path(name).suffix) for tail in tails}
