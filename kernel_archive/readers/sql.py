"""``sql``: anybody's tables and programs, read by one query that returns an evaluation a row.

The query runs in a process of its own (:mod:`kernel_archive.readers.sql_sandbox`), in the folder of
its source and with no file outside of it. :mod:`kernel_archive.readers.sql_doubts` judges its rows.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from kernel_archive.databases import memory_database, statement_kinds
from kernel_archive.errors import Finding, printable, suggestion
from kernel_archive.readers import sql_doubts, sql_sandbox
from kernel_archive.readers.files import ReaderSpec, RunFiles, is_file
from kernel_archive.readers.records import Evaluation, Record, SearchFacts
from kernel_archive.readers.sql_doubts import COLUMNS
from kernel_archive.readers.sql_sandbox import FIELD_BYTES, nodes_of
from kernel_archive.readers.values import object_of
from kernel_archive.untrusted import UntrustedFileError, open_uncompressed

# Beyond these bounds a query is refused.
MEMORY_BYTES: Final = 2 << 30  # in DuckDB
ADDRESS_SPACE_BYTES: Final = 8 << 30  # of its process
RESULT_BYTES: Final = 8 << 30
SECONDS: Final = 600.0
MAX_FILES: Final = 500_000  # that it may read
#: Functions that may be in the arguments of a function that reads files without hiding a path,
#: and other expressions that may: constants, lists of them, named options.
_PLAIN: Final = frozenset({"list_value", "struct_pack", "getvariable", "row"})
_PLAIN_CLASSES: Final = frozenset({None, "CONSTANT", "COLUMN_REF", "COMPARISON"})
#: Table functions that read no file, and those that run a text as a query.
_NO_FILES: Final = frozenset({"unnest", "json_each", "json_tree", "range", "generate_series"})
_RUN_A_TEXT: Final = ("query", "json_execute")
#: Characters of a text that may be a pattern of files; a longer one isn't one.
MAX_PATTERN: Final = 1000
_OUTSIDE: Final = "a query reads only files in the folder of its source"


class QueryError(Exception):
    """Raised when a query is refused or fails; ``fix`` is the way out."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message)
        self.fix = fix


@lru_cache(maxsize=64)
def parse_query(text: str) -> dict[str, Any]:
    """Parse a query that must be exactly one SELECT to DuckDB's syntax tree.

    Raises:
        QueryError: it isn't SQL, or isn't exactly one statement that only reads.
    """
    with memory_database() as connection:
        try:
            kinds = statement_kinds(connection, text)
        except (duckdb.Error, RuntimeError, ValueError) as error:
            raise QueryError(f"not DuckDB's SQL: {printable(error, 500)}") from None
        if kinds != ["SELECT"]:
            shown = printable(", ".join(kinds) or "nothing", 100)
            fix = "WITH ... SELECT is one; COPY, ATTACH, SET and several statements are not"
            raise QueryError(f"the query must be exactly one SELECT, and is {shown}", fix)
        ((tree,),) = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    return object_of(json.loads(tree))


def patterns_of(tree: dict[str, Any], variables: Iterable[str]) -> list[str]:
    """List the patterns that may name files in a query; ``**`` where it computes one.

    >>> patterns_of(parse_query("SELECT a FROM 'x.csv', read_text('k/*.py')"), [])
    ['k/*.py', 'x.csv']
    """
    found = set(variables)
    for node in nodes_of(tree):
        if node.get("kind") == "STRING":
            found.add(str(node.get("text")))
        elif node.get("type") == "BASE_TABLE":
            # Without quotes a file is a table of a schema, perhaps of a catalog: FROM results.csv
            parts = [node.get(f"{part}_name") for part in ("catalog", "schema", "table")]
            found.add(".".join(str(part) for part in parts if part))
        elif node.get("type") == "TABLE_FUNCTION":
            call = node.get("function") or {}
            name, arguments = str(call.get("function_name")), nodes_of(call.get("arguments"))
            is_plain = all(
                a.get("class") in _PLAIN_CLASSES or a.get("function_name") in _PLAIN
                for a in arguments
            )
            if name not in _NO_FILES and (not is_plain or name.startswith(_RUN_A_TEXT)):
                found.add("**")
    return sorted(found)


def files_below(folder: Path) -> Iterator[str]:
    """Yield the names of all files below a folder, however deep; links to folders are not followed.

    What can't be opened is left out: a path that is too long, a link that leads to itself.
    """
    waiting = [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif is_file(entry.path):
                    yield entry.path


def _matches(folder: Path, pattern: str) -> Iterable[str]:
    """List the files that a pattern may name, perhaps too many; none if its name leads out."""
    name = os.path.normpath(folder / pattern)
    if len(pattern) > MAX_PATTERN or "\0" in pattern or not name.startswith(f"{folder}{os.sep}"):
        return ()
    if "**" in pattern:
        end = pattern.rpartition("/")[2].replace("**", "*")
        return (path for path in files_below(folder) if fnmatchcase(Path(path).name, end))
    path = f"{glob.escape(str(folder))}/{os.path.relpath(name, folder)}"
    # Also files whose names begin with a dot: DuckDB reads them.
    return filter(os.path.isfile, glob.iglob(path, include_hidden=True))  # noqa: PTH207


class _Query:
    """The query of a run, the folder that it may read, and its variable ``file``."""

    def __init__(self, run: RunFiles) -> None:
        self.text = run.query
        self.folder = run.root.resolve()
        self.variables = {"file": run.path.name} if run.path.is_file() else {}

    @cached_property
    def inputs(self) -> dict[str, bool]:
        """The files that it may read, relative to its folder, and whether each lies in it."""
        paths: set[str] = set()
        for pattern in patterns_of(parse_query(self.text), self.variables.values()):
            paths.update(islice(_matches(self.folder, pattern), MAX_FILES + 1))
            if len(paths) > MAX_FILES:
                message = f"more than {MAX_FILES:,} files match {printable(pattern, 60)}"
                fix = "Name fewer files, or give every run a source of its own"
                raise QueryError(message, fix)
        return {
            os.path.relpath(path, self.folder): Path(path).resolve().is_relative_to(self.folder)
            for path in sorted(paths)
        }

    def answer(self) -> tuple[pa.Table, list[Any]]:
        """Run the query, unless a file is or is behind a link that leads out of the folder.

        Return the rows, and the damaged lines of CSV files.
        """
        for name, is_inside in self.inputs.items():
            if not is_inside:
                message = f"the link {printable(name)} leads out of the folder: nothing is read"
                fix = f"{_OUTSIDE}: copy the file into it, or take the link away"
                raise QueryError(message, fix)
        table = run_query(self.text, self.folder, self.variables)
        _check_columns(table.column_names)
        report = json.loads(table.schema.metadata[b"report"])
        return self._with_lines(table, report["row_starts"]), report["damaged"]

    def _with_lines(self, table: pa.Table, row_starts: dict[str, list[int]]) -> pa.Table:
        """Replace the number of a CSV file's row, whose header is 1, by the line where it begins.

        ``row_starts`` are those of damaged files.
        """
        names = table.column_names
        if "source_row" not in names or not pa.types.is_integer(table["source_row"].type):
            return table
        rows = table["source_row"].to_pylist()
        files = table["source_file"].to_pylist() if "source_file" in names else [None] * len(rows)
        starts: dict[str, list[int]] = {}
        for i, file in enumerate(files):
            name = str(file or self.variables.get("file"))
            if name not in starts:
                starts[name] = row_starts.get(name) or self._row_starts(name)
            if rows[i] is not None and 0 < rows[i] <= len(starts[name]):
                rows[i] = starts[name][rows[i] - 1]
        return table.set_column(names.index("source_row"), "source_row", pa.array(rows, pa.int64()))

    def _row_starts(self, name: str) -> list[int]:
        """List the lines where the rows of a CSV file begin, which the query read."""
        starts, begin = list[int](), 1
        if not name.removesuffix(".gz").removesuffix(".zst").endswith((".csv", ".tsv")):
            return starts
        path = self.folder / name
        if not self.inputs.get(os.path.relpath(path, self.folder)):
            return starts
        csv.field_size_limit(FIELD_BYTES)
        with suppress(csv.Error, UntrustedFileError), open_uncompressed(path) as stream:
            text = io.TextIOWrapper(stream, "utf-8", errors="replace", newline="")
            reader = csv.reader(text, delimiter=csv_delimiter(path))
            for row in reader:
                starts += [begin] if row else []
                begin = reader.line_num + 1
        return starts


def csv_delimiter(path: Path) -> str:
    """Return the delimiter of a CSV file: the likeliest that its header has."""
    header = ""
    with suppress(UntrustedFileError), open_uncompressed(path) as stream:
        header = stream.read(1 << 16).split(b"\n", 1)[0].decode("utf-8", "replace")
    delimiters = "\t" if ".tsv" in path.suffixes else ",;\t"
    return next((mark for mark in delimiters if mark in header), delimiters[0])


def _query_files(run: RunFiles) -> Iterator[Path]:
    """Yield the files whose digests name what was read, below the run's own folder."""
    with suppress(QueryError):
        yield from (run.root / name for name, is_inside in _Query(run).inputs.items() if is_inside)


def run_query(
    query: str, folder: Path, variables: dict[str, str], *, seconds: float = SECONDS
) -> pa.Table:
    """Run a query in the sandbox.

    Raises:
        QueryError: DuckDB refused it, or it took too much time or memory.
    """
    request = {
        "folder": str(folder),
        "query": query,
        "tree": parse_query(query),  # where its calls of read_csv stand, should one fail
        "variables": variables,
        "memory": MEMORY_BYTES,
        "address_space": ADDRESS_SPACE_BYTES,
        "result_bytes": RESULT_BYTES,
    }
    fix: str | None = None
    with tempfile.TemporaryFile() as answer:
        try:
            child = subprocess.run(
                [sys.executable, "-P", str(Path(sql_sandbox.__file__))],
                input=json.dumps(request).encode(),
                stdout=answer,
                stderr=subprocess.PIPE,  # not started in the folder: it would import from there
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"the query took more than {seconds:.0f} s and was ended"
            fix = "See whether a join lacks its condition, or read fewer files at once"
            raise QueryError(message, fix) from None
        if child.returncode == 0:
            answer.seek(0)
            table = pa.ipc.open_stream(answer).read_all()
            return table.replace_schema_metadata({"report": child.stderr})
    is_refused = child.returncode == sql_sandbox.REFUSED
    message = child.stderr.decode("utf-8", "replace") if is_refused else "its process was ended"
    if "Permission" in message or "disabled" in message:
        fix = _OUTSIDE
    elif not is_refused or "Memory" in message:
        fix = f"It may take {MEMORY_BYTES >> 30} GiB: read fewer files or columns at once"
    raise QueryError(printable(" ".join(message.split()), 600), fix)


def _check_columns(names: list[str]) -> None:
    """Refuse an answer with a column that is unknown, missing or there twice."""
    listed = "kernel-archive readers --columns lists all"
    for name in names:
        if name not in COLUMNS:
            message = f"{printable(name)} is no column of an evaluation"
            raise QueryError(message, f"{suggestion(name, COLUMNS)} ({listed})")
        if names.count(name) > 1:
            raise QueryError(f"two columns are called {name}", "Give one of them another name")
    if "code" not in names:
        raise QueryError("the query returns no code", listed)
    times = {"runtime_us", "reference_runtime_us"}
    if not ({"speedup", "outcome"} & {*names} or times <= {*names}):
        raise QueryError("the query returns no speedup, its two times, or an outcome", listed)


def _records(run: RunFiles) -> Iterator[Record]:
    """Yield an evaluation for each row that counts, the doubts, and how many rows were left out."""
    query = _Query(run)
    try:
        table, damaged = query.answer()
    except QueryError as error:
        where: dict[str, Any] = {"file": run.name(run.path), "field": "query", "fix": error.fix}
        yield Finding(code="wrong-format", message=str(error), **where)
        return
    names = {run.name(path) for path in run.files}

    @cache
    def name_of(file: str | None) -> str:
        """Name the file of a row as tables state it: the run, where the query did not read it."""
        below = os.path.relpath(query.folder / file, query.folder) if file else None
        name = run.name(run.root / below if below else run.path)
        return name if name in names else run.name(run.path)

    for file, line, fault in damaged:
        message = f"no row of a CSV file; left out: {printable(fault, 200)}"
        yield Finding(code="bad-row", message=message, file=name_of(file), line=line)
    judge = sql_doubts.Judge(table, name_of)
    if not judge.refused:
        for row in judge.rows():
            yield Evaluation(**{**row, "source_file": name_of(row["source_file"])})
    yield from judge.findings
    if not judge.refused:
        yield SearchFacts(counts=judge.counts())


SQL: Final = ReaderSpec(
    name="sql",
    title="Anybody's tables and programs: a DuckDB query that returns an evaluation a row",
    expects='files or folders; query = "import.sql" or the text of one SELECT (docs/own-data.md)',
    files=(),
    version=4,
    records=_records,
    further_files=_query_files,
    has_foreign_problems=True,
)
