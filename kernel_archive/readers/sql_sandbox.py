"""Run one query over a folder of strangers' files: a script, in a process of its own.

It reads a request as JSON from standard input and writes the rows as an Arrow stream to standard
output. What DuckDB refuses goes to standard error, with exit status 3. The working directory is the
folder: relative paths begin there.
"""

from __future__ import annotations

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


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (request["address_space"],) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (request["result_bytes"],) * 2)
    try:
        connection = connect(request["memory"], request["variables"], os.getcwd())  # noqa: PTH109
        reader = connection.sql(request["query"]).to_arrow_reader(_BATCH)
        with pa.ipc.new_stream(sys.stdout.buffer, reader.schema) as stream:
            for batch in reader:
                stream.write_batch(batch)
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}"[:4000])
        sys.stderr.flush()
        os._exit(REFUSED)  # without the stream's own end, which may fail the same way


if __name__ == "__main__":
    main()
