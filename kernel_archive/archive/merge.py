"""The merge: from all measurements of all programs to the rows of each split, in one DuckDB pass.

The decisions are the SQL of :mod:`kernel_archive.archive.labels`. Only narrow columns are read, and
DuckDB spills to disk
above a memory limit. A row that comes out says which evaluations it is made of, by search and
position in its fragment:
its texts are fetched when it is written (:mod:`kernel_archive.archive.consolidate`).
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from kernel_archive.archive import labels
from kernel_archive.archive.open import literal_path
from kernel_archive.errors import KernelArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import duckdb

    from kernel_archive.archive.store import Store, Stored

#: DuckDB spills to disk above this; a process stays below 2 GB.
MEMORY_LIMIT: Final = "800MB"
#: Each thread holds blocks of its own: more of them than this need more than the limit.
MAX_THREADS: Final = 4
#: Columns of fragments that are long and that no decision needs.
_TEXTS: Final = ("code", "error_text")


@contextmanager
def merge_database(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that spills into a folder.

    Raises:
        KernelArchiveError: the disk is full, or something needs more memory than the limit and
        can't be spilled.
    """
    import duckdb

    settings: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(scratch),
        "threads": min(MAX_THREADS, os.cpu_count() or 1),
        "preserve_insertion_order": False,
    }
    try:
        with duckdb.connect(":memory:", config=settings) as connection:
            connection.execute("SET parquet_metadata_cache = true")
            yield connection
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        raise KernelArchiveError(
            f"the merge could not go on: {str(error).splitlines()[0]}. The staged fragments are "
            "kept"
        ) from error


def merge_fragments(
    connection: duckdb.DuckDBPyConnection,
    fragments: Sequence[Path],
    rules: labels.LabelRules,
) -> tuple[dict[str, int], list[str]]:
    """Decide what becomes of every evaluation.

    Returns:
        Counts for the manifest, and the names of all GPUs.
    """
    paths = sorted({literal_path(path) for path in fragments})
    connection.read_parquet(paths).create_view("fragment")
    labels.decide(connection, rules)
    return labels.count_rows(connection)


@contextmanager
def local_fragments(store: Store, stored: Sequence[Stored], scratch: Path) -> Iterator[list[Path]]:
    """Paths of fragments on this machine; of those behind a URL, copies without texts."""
    if not store.remote:
        yield [store.path(fragment.name) for fragment in stored]
        return
    with ExitStack() as stack:
        paths = []
        for number, fragment in enumerate(stored):
            path = scratch / f"{number}.parquet"
            stack.callback(path.unlink, missing_ok=True)
            with store.reading(fragment) as whole:
                file = pq.ParquetFile(whole)
                names = [name for name in file.schema_arrow.names if name not in _TEXTS]
                pq.write_table(file.read(names), path, compression="lz4", write_statistics=False)
            paths.append(path)
        yield paths
