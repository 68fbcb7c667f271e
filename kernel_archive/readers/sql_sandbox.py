"""Run one query over a folder of strangers' files: a script, in a process of its own.

It reads a request as JSON from standard input and writes the rows as an Arrow stream to standard
output. What DuckDB refuses goes to standard error, with exit status 3; after status 0 standard
error lists the damaged lines of CSV files that were left out. The working directory is the folder.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import sys
from typing import Any

import duckdb
import pyarrow as pa

#: Exit status of a query that DuckDB refused; any other failure is this script's own.
REFUSED = 3
#: Rows that are written at once.
_BATCH = 10_000
#: Lines of a CSV file among which its header is looked for, and bytes of each.
_HEAD_LINES, _LINE_BYTES = 50, 1 << 16
#: Damaged lines that are listed; the others are left out like them.
_MAX_DAMAGED = 50


def connect(memory: int, variables: dict[str, str], folder: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that reads the files of one folder, and nothing else."""
    extensions: dict[str, Any] = dict.fromkeys(
        ("autoinstall_known_extensions", "autoload_known_extensions"), False
    )
    connection = duckdb.connect(":memory:", config=extensions)
    quoted = folder.rstrip("/").replace("'", "''")
    # One thread: the same rows in the same order on every machine.
    connection.execute(f"SET threads = 1; SET memory_limit = '{memory} bytes'")
    connection.execute("SET temp_directory = ''")
    for name, value in variables.items():
        identifier = name.replace('"', '""')
        connection.execute(f'SET VARIABLE "{identifier}" = ?', [value])
    connection.execute(f"SET allowed_directories = ['{quoted}/']")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    return connection


def _answer(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Write the rows of a query to standard output, from its beginning."""
    reader = connection.sql(query).to_arrow_reader(_BATCH)
    os.lseek(1, 0, os.SEEK_SET)
    os.ftruncate(1, 0)
    with os.fdopen(os.dup(1), "wb") as file, pa.ipc.new_stream(file, reader.schema) as stream:
        for batch in reader:
            stream.write_batch(batch)


def _calls(tree: Any) -> list[dict[str, Any]]:
    """List the calls of table functions in a syntax tree."""
    inner = list(tree.values()) if isinstance(tree, dict) else tree
    if not isinstance(inner, list):
        return []
    own = [tree] if isinstance(tree, dict) and tree.get("type") == "TABLE_FUNCTION" else []
    return own + [call for value in inner for call in _calls(value)]


def _columns_of(tree: Any) -> set[str]:
    """List the names of columns in a syntax tree."""
    if isinstance(tree, list):
        return set().union(*map(_columns_of, tree))
    if not isinstance(tree, dict):
        return set()
    own = {str(name) for name in tree.get("column_names") or ()}
    return own.union(*map(_columns_of, tree.values()))


def _passing_over(
    connection: duckdb.DuckDBPyConnection, request: dict[str, Any], damaged: list[Any]
) -> str:
    """Write a query anew, so that its ``read_csv`` pass over damaged lines.

    The header is the line that has most of the columns that the query names; every column is text.
    Where lines stand above it, they are listed as damaged and a table of the lines below takes
    the place of the call: DuckDB's ``skip`` would read on to the end of a quote that is torn there.
    """
    names, text = _columns_of(request["tree"]), str(request["query"]).encode()
    calls = [c for c in _calls(request["tree"]) if c["function"]["function_name"] == "read_csv"]
    for call in sorted(calls, key=lambda call: -int(call["query_location"])):
        first, *options = [a["expression"] for a in call["function"]["arguments"]]
        stated = {o["left"]["column_names"][0]: o["right"] for o in options if "left" in o}
        path = first.get("literal", {}).get("text")
        if first.get("function_name") == "getvariable":
            variable = first["arguments"][0]["expression"]["literal"]["text"]
            path = request["variables"].get(variable)
        last = (options or [first])[-1]
        end = int(last["query_location"]) + int(last["query_location_length"])
        more = {"store_rejects": "true"}
        if _is_inside(path) and not stated.keys() & {"columns", "skip"}:
            mark = stated.get("delim", {}).get("literal", {}).get("text", ",")
            number, header = _header(path, mark, names)
            if number:
                table = f"below_{call['query_location']}"
                connection.register(table, _below(path, mark, (number, header), damaged))
                start, close = int(call["query_location"]), text.index(b")", end) + 1
                text = text[:start] + table.encode() + text[close:]
                continue
            listed = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in header)
            more |= {"auto_detect": "false", "header": "true", "delim": _text(mark)}
            more |= {"quote": "'\"'", "escape": "'\"'", "columns": f"{{{listed}}}"}
        added = "".join(f", {k} = {v}" for k, v in more.items() if k not in stated)
        text = text[:end] + added.encode() + text[end:]
    return text.decode()


def _is_inside(path: str | None) -> bool:
    """Whether a name is that of one file inside the working directory."""
    if path is None or not os.path.isfile(path):  # noqa: PTH113 - relative to the folder
        return False
    folder = os.path.realpath(".")
    return os.path.commonpath([folder, os.path.realpath(path)]) == folder


def _header(path: str, mark: str, names: set[str]) -> tuple[int, list[str]]:
    """Find the header of a CSV file: how many lines stand before it, and its columns."""
    with open(path, "rb") as file:  # noqa: PTH123 - relative to the folder
        lines = [file.readline(_LINE_BYTES).decode("utf-8", "replace") for _ in range(_HEAD_LINES)]
    rows = [next(csv.reader([line], delimiter=mark), []) for line in lines]
    number = max(range(len(rows)), key=lambda n: (len(names.intersection(rows[n])), -n))
    return number, list(dict.fromkeys(rows[number]))


def _below(path: str, mark: str, header: tuple[int, list[str]], damaged: list[Any]) -> pa.Table:
    """Read the rows below a header as text; lines above it and of another width are damaged."""
    number, columns = header
    damaged += [[path, n + 1, "It stands above the header."] for n in range(number)]
    rows: list[list[str]] = []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:  # noqa: PTH123
        for _ in range(number + 1):
            file.readline()
        lines = csv.reader(file, delimiter=mark)
        first = number + 2
        for row in lines:
            if len(row) == len(columns):
                rows.append(row)
            elif row:
                damaged.append([path, first, f"{len(row)} values for {len(columns)} columns."])
            first = number + 2 + lines.line_num
    texts = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.table(texts or [pa.array([], pa.string())] * len(columns), names=columns)


def _damaged_lines(connection: duckdb.DuckDBPyConnection) -> list[list[Any]]:
    """List file, line and message of the rows that ``read_csv`` passed over."""
    if not connection.execute("FROM duckdb_tables() WHERE table_name = 'reject_errors'").fetchall():
        return []  # no call of the query has stored any
    rows = connection.execute(
        "SELECT file_path, line_byte_position, max(error_message) FROM reject_errors "
        f"JOIN reject_scans USING (scan_id, file_id) GROUP BY ALL ORDER BY ALL LIMIT {_MAX_DAMAGED}"
    ).fetchall()
    damaged: list[list[Any]] = []
    for path in {row[0]: None for row in rows}:
        line = 1
        with open(path, "rb") as file:  # noqa: PTH123 - relative to the folder
            for position, message in [row[1:] for row in rows if row[0] == path]:
                while rest := max(0, position - 1 - file.tell()):
                    line += file.read(min(rest, 1 << 20)).count(b"\n")
                damaged.append([path, line, message])
    return damaged


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (request["address_space"],) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["result_bytes"],) * 2)
    query, variables = request["query"], request["variables"]
    damaged: list[Any] = []
    try:
        connection = connect(request["memory"], variables, os.getcwd())  # noqa: PTH109
        try:
            _answer(connection, query)
        except (duckdb.Error, OSError) as error:
            if "CSV" not in str(error) and "read_csv" not in query:
                raise
            try:
                _answer(connection, _passing_over(connection, request, damaged))
            except Exception:  # noqa: BLE001 - the first error is the one to report
                raise error from None
            damaged += _damaged_lines(connection)
            if not damaged:
                raise
        sys.stderr.write(json.dumps(damaged))
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}"[:4000])
        sys.stderr.flush()
        os._exit(REFUSED)  # without the stream's own end, which may fail the same way


if __name__ == "__main__":
    main()
