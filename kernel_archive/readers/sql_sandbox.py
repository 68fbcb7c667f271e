"""Run one query over a folder of strangers' files: a script, in a process of its own.

It reads a request as JSON from standard input and writes the rows as an Arrow stream to standard
output. What DuckDB refuses goes to standard error as JSON, with exit status 3, and beside it the
first damaged line of its CSV files. The working directory is the folder.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

REFUSED = 3  # exit status of a query that DuckDB refused; any other failure is this script's own
_BATCH = 10_000  # rows that are written at once
_FIELD_BYTES = 16 << 20  # of the longest field of a CSV file


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
    quoted = folder.rstrip("/").replace("'", "''")
    for name, value in variables.items():
        connection.execute(f"SET VARIABLE {name} = ?", [value])
    connection.execute(f"SET allowed_directories = ['{quoted}/']")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    return connection


def _answer(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Write the rows of a query to standard output."""
    reader = connection.sql(query).to_arrow_reader(_BATCH)
    with os.fdopen(os.dup(1), "wb") as file, pa.ipc.new_stream(file, reader.schema) as stream:
        for batch in reader:
            stream.write_batch(batch)


def _damaged_line(patterns: list[str]) -> tuple[str, int, str] | None:
    """Find the first line of CSV files, in order, that has another width than its header."""
    paths = {path for p in patterns for path in glob.glob(p, recursive=True)}  # noqa: PTH207 - relative
    for path in sorted(paths):
        if not Path(path).resolve().is_relative_to(Path.cwd()):
            continue
        with open(path, encoding="utf-8", errors="replace", newline="") as file:  # noqa: PTH123
            header = file.readline()
            file.seek(0)
            rows = csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
            width, line = 0, 1
            try:
                for row in rows:
                    width = width or len(row)
                    if row and len(row) != width:
                        return path, line, f"{len(row)} values for {width} columns of its header"
                    line = rows.line_num + 1
            except csv.Error as error:
                return path, line, str(error)
    return None


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (request["address_space"],) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["result_bytes"],) * 2)
    csv.field_size_limit(_FIELD_BYTES)
    try:
        connection = connect(request["memory"], request["variables"], str(Path.cwd()))
        _answer(connection, request["query"])
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        refusal: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"[:4000]}
        with suppress(OSError, MemoryError):
            refusal["damage"] = _damaged_line(request["csv_files"])
        sys.stderr.write(json.dumps(refusal))
        sys.stderr.flush()
        os._exit(REFUSED)  # without the stream's own end, which may fail the same way


if __name__ == "__main__":
    main()
