"""DuckDB databases in memory, and names, texts and paths as its SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


def memory_database(**settings: Any) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB database in memory; ``settings`` are DuckDB's."""
    import duckdb

    connection = duckdb.connect(":memory:", config=settings)
    connection.execute("SET enable_progress_bar = false")  # it writes to stdout
    return connection


def statement_kinds(connection: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    """List the kinds of the statements in a text: ``["SELECT"]`` for one query that only reads."""
    return [statement.type.name for statement in connection.extract_statements(text)]


def sql_name(name: str) -> str:
    """Write a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_texts(values: Iterable[str]) -> str:
    """Write texts as SQL literals, separated by commas; NULL without a text."""
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values) or "NULL"


def literal_path(path: Path | str) -> str:
    """Write a path for DuckDB, which reads every path as a glob: glob characters go in brackets.

    >>> literal_path("runs[1]/a*.parquet")
    'runs[[]1]/a[*].parquet'
    """
    return re.sub(r"[\[*?]", lambda mark: f"[{mark[0]}]", str(path))
