"""Run one query over a folder of strangers' files: a script, in a process of its own.

It reads a request as JSON from standard input and writes the rows as an Arrow stream to standard
output. What DuckDB refuses goes to standard error, with exit status 3; after status 0 standard
error lists the damaged lines of CSV files that were left out, and where the other rows begin. The
working directory is the folder. Nothing of the package is imported, since its process may not find
the package: so :func:`connect` locks a database down by itself, as ``Archive.connection`` does.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

REFUSED = 3  # exit status of a query that DuckDB refused; any other failure is this script's own
_BATCH = 10_000  # rows that are written at once
#: Lines of a CSV file among which its header is looked for, and bytes of its longest field.
_HEAD_LINES, FIELD_BYTES = 50, 16 << 20
_MAX_DAMAGED = 50  # damaged lines that are listed; the others are left out like them
#: Options of ``read_csv`` that say what the lines mean; where one stands, they are read as it says,
#: but for the double quote, which needs no saying.
_FIXED = frozenset({"columns", "names", "skip", "quote", "escape", "comment"})


def connect(memory: int, variables: dict[str, str], folder: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that reads the files of one folder, and nothing else."""
    settings: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": 1,  # the same rows in the same order on every machine
        "memory_limit": f"{memory} bytes",
        "temp_directory": "",
    }
    connection = duckdb.connect(":memory:", config=settings)
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = ?", [value])
    connection.execute("SET enable_progress_bar = false")  # it writes to stdout
    connection.execute("SET allowed_directories = ?", [[f"{folder.rstrip('/')}/"]])
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


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a syntax tree, outer ones first."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _without_damage(
    connection: duckdb.DuckDBPyConnection, request: dict[str, Any], report: dict[str, Any]
) -> str:
    """Write a query anew, with tables of the sound lines in the place of its ``read_csv``."""
    nodes, query = [*nodes_of(request["tree"])], str(request["query"]).encode()
    names = {str(name) for node in nodes for name in node.get("column_names") or ()}
    sound: dict[str, pa.Table] = {}
    calls = [n for n in nodes if n.get("function", {}).get("function_name") == "read_csv"]
    for call in sorted(calls, key=lambda call: -int(call["query_location"])):
        path, *options = [argument["expression"] for argument in call["function"]["arguments"]]
        stated = {o["left"]["column_names"][0]: o["right"] for o in options if "left" in o}
        said = {name: option.get("literal", {}).get("text") for name, option in stated.items()}
        if any(name in _FIXED and text != '"' for name, text in said.items()):
            continue
        if path.get("function_name") == "getvariable":
            pattern = request["variables"][path["arguments"][0]["expression"]["literal"]["text"]]
        else:
            pattern = path["literal"]["text"]
        delimiter = said.get("delim", said.get("sep")) or ","
        files = glob.glob(pattern, recursive=True, include_hidden=True)  # noqa: PTH207 - relative
        has_name = "filename" in stated
        tables = [_sound_rows(file, delimiter, names, has_name, report) for file in sorted(files)]
        table, name = pa.concat_tables(tables), f"sound_{call['query_location']}"
        sound[name] = table if "all_varchar" in stated else _typed(table)
        last = (options or [path])[-1]
        end = int(last["query_location"]) + int(last["query_location_length"])
        close = query.index(b")", end) + 1
        query = query[: int(call["query_location"])] + name.encode() + query[close:]
    for name, table in sound.items() if report["damaged"] else ():
        connection.register(name, table)
    return query.decode()


def _sound_rows(
    path: str, delimiter: str, names: set[str], has_filename: bool, report: dict[str, Any]
) -> pa.Table:
    """Read the rows of a CSV file as text; lines of another width than its header are damaged.

    The header is the line that has most of the columns that the query names. A line that opens a
    quote and does not close it is given up alone: reading goes on at the next line.
    """
    if not Path(path).resolve().is_relative_to(Path.cwd()):
        raise OSError(f"{path} leads out of the folder")
    with open(path, encoding="utf-8", errors="replace", newline="") as file:  # noqa: PTH123
        lines = file.readlines()

    def row_at(begin: int) -> tuple[list[str], int]:
        reader = csv.reader((lines[i] for i in range(begin, len(lines))), delimiter=delimiter)
        try:
            return next(reader, []), reader.line_num
        except csv.Error:
            return [""], 1

    heads = [row_at(n)[0] for n in range(min(_HEAD_LINES, len(lines)))]
    begin = max(range(len(heads)), key=lambda n: (len(names.intersection(heads[n])), -n))
    columns, damaged = heads[begin], report["damaged"]
    damaged += [[path, n + 1, "It stands above the header."] for n in range(begin)]
    rows: list[list[str]] = []
    begin += 1
    row_starts = report["row_starts"][path] = [begin]
    while begin < len(lines):
        row, n_lines = row_at(begin)
        if len(row) == len(columns):
            rows.append(row)
            row_starts.append(begin + 1)
        elif row:
            damaged.append([path, begin + 1, f"{len(row)} values for {len(columns)} columns."])
            n_lines = 1
        begin += n_lines
    cells = {name: [row[i] or None for row in rows] for i, name in enumerate(columns)}
    if has_filename:
        cells["filename"] = [path] * len(rows)
    return pa.table({name: pa.array(column, pa.string()) for name, column in cells.items()})


def _typed(table: pa.Table) -> pa.Table:
    """Make numbers of the columns that hold nothing else."""
    for i, name in enumerate(table.column_names):
        for kind in (pa.int64(), pa.float64()):
            with suppress(pa.ArrowInvalid):
                table = table.set_column(i, name, table[name].cast(kind))
                break
    return table


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    sys.path[:] = filter(os.path.isabs, sys.path)  # nothing is imported from the folder
    resource.setrlimit(resource.RLIMIT_AS, (request["address_space"],) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["result_bytes"],) * 2)
    csv.field_size_limit(FIELD_BYTES)
    report: dict[str, Any] = {"damaged": [], "row_starts": {}}
    try:
        os.chdir(request["folder"])
        connection = connect(request["memory"], request["variables"], str(Path.cwd()))
        try:
            _answer(connection, request["query"])
        except (duckdb.Error, OSError) as error:
            if "read_csv" not in request["query"]:
                raise
            try:
                query = _without_damage(connection, request, report)
                if report["damaged"]:
                    _answer(connection, query)
            except Exception:  # noqa: BLE001 - the first error is the one to report
                raise error from None
            if not report["damaged"]:
                raise
        sys.stderr.write(json.dumps(report | {"damaged": report["damaged"][:_MAX_DAMAGED]}))
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}"[:4000])
        sys.stderr.flush()
        os._exit(REFUSED)  # without the stream's own end, which may fail the same way


if __name__ == "__main__":
    main()
