"""Opening an archive directory: its tables as Arrow, Polars or DuckDB views."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import (
    MANIFEST_NAME,
    Manifest,
    present_manifest,
    read_manifest,
    shard_faults,
)
from kernel_archive.archive.shards import keyed_digests
from kernel_archive.databases import literal_path, memory_database, sql_texts, statement_kinds
from kernel_archive.errors import ArchiveMismatchError, UsageError, printable, suggestion
from kernel_archive.gpus import Gpu, GpuFacts, gpu_facts
from kernel_archive.ids import logical_digest
from kernel_archive.schema import TABLES
from kernel_archive.toml_files import toml_beside

if TYPE_CHECKING:
    import duckdb
    import polars as pl

#: Where commands look first without a directory: the dataset's own name, as `load_dataset` does.
DEFAULT_DIRECTORY: Final = Path("gpu-forecasters/kernels")
#: Rows that :meth:`Archive.batches` gives at a time, at most.
BATCH_ROWS: Final = 8192
_QUERIES: Final = toml_beside(__file__, "info.toml")


def default_directory() -> Path:
    """Return the archive that is meant where none is named: the shipped one, else the only one.

    Raises:
        UsageError: there are several others.
    """
    if (DEFAULT_DIRECTORY / MANIFEST_NAME).is_file():
        return DEFAULT_DIRECTORY
    archives = archives_here()
    if len(archives) > 1:
        raise which_archive_error(archives)
    return archives[0] if archives else DEFAULT_DIRECTORY


def which_archive_error(archives: Sequence[Path]) -> UsageError:
    """Make the error where several archives may be meant."""
    listed = ", ".join(printable(path) for path in archives[:10])
    fix = f"Name one as DIR, or with --archive {printable(archives[0])}"
    return UsageError(f"there are several archives here: {listed}. {fix}")


def unnamed_archives() -> list[Path]:
    """List the archives here that are not meant where the shipped one is, for want of a name."""
    if not (DEFAULT_DIRECTORY / MANIFEST_NAME).is_file():
        return []
    others = [path for path in archives_here() if path != DEFAULT_DIRECTORY]
    return [path for path in others[:10] if present_manifest(path) is not None]


def archives_here() -> list[Path]:
    """List the directories two levels below this one that look like archives."""
    found = sorted(path.parent for path in Path().glob(f"[!.]*/[!.]*/{MANIFEST_NAME}"))
    return [path for path in found if not _holds_labels(present_manifest(path))]


def _holds_labels(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.kind == "labels"


class Archive:
    """An archive directory opened for reading.

    Attributes:
        path: the directory.
        manifest: its manifest.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"<Archive {self.manifest.name} {self.manifest.version} at {self.path}>"

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that this archive holds, in the order of the schema."""
        return tuple(name for name in TABLES if name in self.manifest.tables)

    def files(self, table: str, split: str | None = None) -> list[Path]:
        """List the Parquet files of a table (of one split of the Hub: train, test), in order.

        Raises:
            UsageError: this archive has no such table or split.
            ArchiveMismatchError: a file that the manifest names is missing or has another size.
        """
        facts = self.manifest.tables.get(table)
        if facts is None:
            fix = suggestion(table, self.tables)
            raise UsageError(f"the archive has no table {printable(table)!r}. {fix}")
        if split is not None and split not in facts.splits:
            fix = suggestion(split, facts.splits)
            raise UsageError(f"table {table} has no split {printable(split)!r}. {fix}")
        shards = self.manifest.shards(table, split)
        faults = list(shard_faults(self.path, shards, content=False))
        if faults:
            raise ArchiveMismatchError.from_findings(
                faults,
                f"{table} in {self.path} is not as its manifest says: damaged, or built again "
                f"since it was opened ({faults[0].render()}). Open it again, or see "
                "kernel-archive validate",
            )
        return [self.path / shard.path for shard in shards]

    def arrow(
        self, table: str, split: str | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read a table (or split) as Arrow, in the order of the files."""
        # From batches: an empty table made of a schema imports pandas.
        parts = [b for part in self.batches(table, split, columns) for b in part.to_batches()]
        return pa.Table.from_batches(parts, _schema(table, columns))

    def batches(
        self, table: str, split: str | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Read a table (or split) some thousand rows at a time, in the order of the files."""
        schema = _schema(table, columns)
        for path in self.files(table, split):
            with _opened(path) as shard:
                for batch in shard.iter_batches(BATCH_ROWS, columns=schema.names):
                    yield pa.Table.from_batches([batch]).cast(schema)

    def row_groups(
        self, table: str, columns: Sequence[str], numbers: Collection[int] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Read the row groups of a table with their numbers, counted over its files in order.

        ``numbers`` are those to read; all by default.
        """
        schema, first = _schema(table, columns), 0
        for path in self.files(table):
            with _opened(path) as shard:
                wanted = range(first, first + shard.num_row_groups)
                for number in (n for n in wanted if numbers is None or n in numbers):
                    rows = shard.read_row_group(number - first, columns=schema.names)
                    yield number, rows.cast(schema)
                first = wanted.stop

    @cached_property
    def content_digests(self) -> dict[str, str]:
        """The logical digest of every table, made of its rows; the manifest states what it was."""
        return {
            table: logical_digest(
                row for batch in self.batches(table) for row in keyed_digests(table, batch)
            )
            for table in self.tables
        }

    def polars(
        self, table: str, split: str | None = None, columns: Sequence[str] | None = None
    ) -> pl.DataFrame:
        """Read a table (or split) as a Polars data frame."""
        import polars as pl

        return pl.DataFrame(self.arrow(table, split, columns))

    @cached_property
    def measurements(self) -> dict[str, list[float]]:
        """Speedups that count for the label of each kernel, in the order of the table.

        What two searches share stands in both of their logs, and is one measurement.
        """
        if "evaluations" not in self.tables:
            return {}
        kernels, speedups = self.sql(_QUERIES["speedups"]).columns
        return dict(zip(kernels.to_pylist(), speedups.to_pylist(), strict=True))

    @cached_property
    def stated_gpus(self) -> dict[str, Gpu]:
        """Facts of GPUs from the archive's recipes: those that this package does not have."""
        names, stated = GpuFacts.__struct_fields__, dict[str, Gpu]()
        for row in self.arrow("gpus").to_pylist() if "gpus" in self.manifest.tables else ():
            gpu = Gpu(name=row["gpu"], **{name: row[name] for name in names})
            ours = gpu_facts(gpu.name)
            facts = {name: row[name] for name in names if name != "source"}
            if any(fact not in (None, getattr(ours, name)) for name, fact in facts.items()):
                stated[gpu.name] = gpu
        return stated

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection to one view per table; it reaches the files of this archive only."""
        connection = memory_database()
        # No query reads the footers of all shards again.
        connection.execute("SET parquet_metadata_cache = true")
        for name in self.tables:
            selects = []
            for split, shards in self.manifest.tables[name].splits.items():
                paths = sql_texts(literal_path(self.path / shard.path) for shard in shards)
                if shards:
                    selects.append(f"SELECT *, '{split}' AS split FROM read_parquet([{paths}])")
            if selects:
                connection.execute(f'CREATE VIEW "{name}" AS ' + " UNION ALL ".join(selects))
            else:
                empty = TABLES[name].schema.append(pa.field("split", pa.string())).empty_table()
                connection.register(name, empty)
        # A path with glob characters is checked as it is written in the query.
        folders = [f"{path}/" for path in (self.path, literal_path(self.path))]
        # The files of a Hub snapshot are links into a store beside it.
        files = [path for name in self.tables for path in self.files(name)]
        targets = [str(path.resolve()) for path in files if path.is_symlink()]
        connection.execute("SET allowed_directories = ?", [folders])
        connection.execute("SET allowed_paths = ?", [targets])
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        return connection

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Run a DuckDB query over the views, one per table, each with the column ``split``.

        Raises:
            ArchiveMismatchError: a file is damaged.
        """
        import duckdb

        damage = duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException
        try:
            return self.connection.sql(query, params=list(parameters)).to_arrow_table()
        except damage as error:
            raise _unreadable(self.path, error) from None

    def query(self, query: str) -> pa.Table:
        """Run a query that a user wrote: a single one that reads, over the views.

        Raises:
            UsageError: the query is at fault, or does more than read; the message is DuckDB's.
        """
        import duckdb

        try:
            if statement_kinds(self.connection, query) != ["SELECT"]:
                raise UsageError(
                    "one query that reads, please: SELECT, WITH, DESCRIBE, SHOW or SUMMARIZE"
                )
            # In a thread: DuckDB notices Ctrl-C only between tasks, and a query may be one task.
            with ThreadPoolExecutor(1) as pool:
                result = pool.submit(lambda: self.connection.sql(query).to_arrow_table())
                try:
                    return result.result()
                except KeyboardInterrupt:
                    self.connection.interrupt()
                    raise
        except duckdb.Error as error:
            raise UsageError(f"{error}. Tables: {', '.join(self.tables)}") from None


def _schema(table: str, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of a table, or of some of its columns."""
    schema = TABLES[table].schema
    for name in columns or ():
        if name not in schema.names:
            fix = suggestion(name, schema.names)
            raise UsageError(f"table {table} has no column {printable(name)!r}. {fix}")
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as shard:
            yield shard
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a null
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ArchiveMismatchError:
    return ArchiveMismatchError(
        f"{path} cannot be read: {printable(error, 200)}. See kernel-archive validate"
    )


def open_archive(path: str | Path | None = None) -> Archive:
    """Open an archive directory, :func:`default_directory` when none is given.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the manifest can't be read.
        UsageError: the directory holds withheld labels.
    """
    directory = Path(path) if path is not None else default_directory()
    manifest = read_manifest(directory)
    if _holds_labels(manifest):
        named = printable(directory)
        raise UsageError(f"{named} holds withheld labels, not an archive: name it with --labels")
    return Archive(directory, manifest)
