"""Opening an archive directory: its tables as Arrow, Polars, DuckDB views or ``datasets``."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.manifest import MANIFEST_NAME, Manifest, read_manifest, shard_faults
from kernel_archive.errors import ArchiveMismatchError, UsageError, printable, suggestion
from kernel_archive.gpus import Gpu, GpuFacts, is_known
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import datasets
    import duckdb
    import polars as pl

#: Where commands look first when they are given no archive: the dataset's own name, so that ``load_dataset`` finds it too.
DEFAULT_DIRECTORY: Final = Path("gpu-forecasters/kernels")


def default_directory() -> Path:
    """The archive that is meant where none is named: the shipped one, else the only one here (``owner/dataset``).

    Raises:
        UsageError: there are several others.
    """
    if (DEFAULT_DIRECTORY / MANIFEST_NAME).is_file():
        return DEFAULT_DIRECTORY
    found = sorted(path.parent for path in Path().glob(f"*/*/{MANIFEST_NAME}") if not path.parent.name.startswith("."))
    if len(found) > 1:
        listed = ", ".join(printable(str(path)) for path in found[:10])
        raise UsageError(f"there are several archives here: {listed}. Name the directory of one")
    return found[0] if found else DEFAULT_DIRECTORY


def literal_path(path: Path | str) -> str:
    """A path as DuckDB takes it: it reads every path as a glob, so that glob characters stand in brackets.

    >>> literal_path("runs[1]/a*.parquet")
    'runs[[]1]/a[*].parquet'
    """
    return re.sub(r"[\[*?]", lambda mark: f"[{mark[0]}]", str(path))


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
        """Parquet files of a table (of one split), in order.

        Raises:
            UsageError: this archive has no such table or split.
            ArchiveMismatchError: the manifest names a file that is not there.
        """
        facts = self.manifest.tables.get(table)
        if facts is None:
            raise UsageError(f"the archive has no table {printable(table)!r}. {suggestion(table, self.tables)}")
        if split is not None and split not in facts.splits:
            raise UsageError(f"table {table} has no split {printable(split)!r}. {suggestion(split, facts.splits)}")
        shards = self.manifest.shards(table, split)
        faults = list(shard_faults(self.path, shards, content=False))
        if faults:
            raise ArchiveMismatchError.from_findings(
                faults,
                f"{table} in {self.path} is not as its manifest says: damaged, or built again since it was opened "
                f"({faults[0].render()}). Open it again, or see kernel-archive validate",
            )
        return [self.path / shard.path for shard in shards]

    def arrow(
        self,
        table: str,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        problems: Collection[str] | None = None,
    ) -> pa.Table:
        """A table (or split) as Arrow, in the order of the files; with ``problems`` only their rows."""
        files = self.files(table, split)
        schema = TABLES[table].schema
        for name in columns or ():
            if name not in schema.names:
                raise UsageError(f"table {table} has no column {printable(name)!r}. {suggestion(name, schema.names)}")
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        parts = [_read(path, list(schema.names), problems) for path in files]
        return pa.concat_tables([part.cast(schema) for part in parts]) if parts else schema.empty_table()

    def polars(self, table: str, split: str | None = None, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """A table (or split) as a Polars data frame."""
        import polars as pl

        frame = pl.from_arrow(self.arrow(table, split, columns))
        assert isinstance(frame, pl.DataFrame)  # noqa: S101 - a table gives a frame, only an array gives a series
        return frame

    def datasets(self, table: str, split: str | None = None, columns: Sequence[str] | None = None) -> datasets.Dataset:
        """A table (or split) as a ``datasets.Dataset``, in memory."""
        import datasets

        return datasets.Dataset(self.arrow(table, split, columns))

    @cached_property
    def stated_gpus(self) -> dict[str, Gpu]:
        """Facts of the GPUs that this package does not know, as the archive's recipes state them."""
        rows = self.arrow("gpus").to_pylist() if "gpus" in self.manifest.tables else []
        return {
            row["gpu"]: Gpu(name=row["gpu"], **{name: row[name] for name in GpuFacts.__struct_fields__})
            for row in rows
            if row["known"] and not is_known(row["gpu"])
        }

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with one view per table (with the column ``split``); it reaches this directory only."""
        import duckdb

        connection = duckdb.connect(":memory:")
        connection.execute("SET parquet_metadata_cache = true")  # no query reads the footers of all shards anew
        for name in self.tables:
            selects = []
            for split, shards in self.manifest.tables[name].splits.items():
                if shards:
                    files = ", ".join("'" + literal_path(self.path / s.path).replace("'", "''") + "'" for s in shards)
                    selects.append(f"SELECT *, '{split}' AS split FROM read_parquet([{files}])")
            if selects:
                connection.execute(f'CREATE VIEW "{name}" AS ' + " UNION ALL ".join(selects))
        # A path with glob characters is checked as it is written in the query.
        spelled = (str(self.path), literal_path(self.path))
        directories = ", ".join("'" + path.replace("'", "''") + "/'" for path in spelled)
        connection.execute(f"SET allowed_directories = [{directories}]")
        # The files of a Hub snapshot are links into a store beside it.
        links = [p.resolve() for name in self.tables for p in self.files(name) if p.is_symlink()]
        paths = ", ".join("'" + str(path).replace("'", "''") + "'" for path in links)
        connection.execute(f"SET allowed_paths = [{paths}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        return connection

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """The result of a DuckDB query over the views, one per table, each with the column ``split``."""
        import duckdb

        try:
            return self.connection.sql(query, params=list(parameters)).to_arrow_table()
        except (duckdb.IOException, duckdb.InvalidInputException, duckdb.SerializationException) as error:
            raise ArchiveMismatchError(
                f"{self.path} cannot be read: {printable(str(error), 200)}. See kernel-archive validate"
            ) from None

    def query(self, query: str) -> pa.Table:
        """The result of a query that a user wrote: one that reads, over the views.

        Raises:
            UsageError: the query is at fault, or does more than read; the message is DuckDB's.
        """
        import duckdb

        try:
            statements = duckdb.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("one query that reads, please: SELECT, WITH, DESCRIBE, SHOW or SUMMARIZE")
            # In a thread of its own: DuckDB looks for Ctrl-C only between tasks, and one task may be all of a query.
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(lambda: self.connection.sql(statements[0].query).to_arrow_table())
                try:
                    return running.result()
                except KeyboardInterrupt:
                    self.connection.interrupt()
                    raise
        except duckdb.Error as error:
            raise UsageError(f"{error}. Tables: {', '.join(self.tables)}") from None


def _read(path: Path, columns: list[str], problems: Collection[str] | None = None) -> pa.Table:
    """Columns of a shard. Not by ``read_table``: that imports pandas where it is installed, a third of a second."""
    try:
        if problems is None:
            with pq.ParquetFile(path) as shard:
                return shard.read(columns=columns)
        import pyarrow.dataset as ds

        # Row groups of other problems, by the least and largest one that their footers name, are not read.
        return ds.dataset(path).to_table(
            columns, filter=ds.field("problem").isin(pa.array(sorted(problems), pa.string()))
        )
    except (OSError, pa.ArrowException) as error:
        raise ArchiveMismatchError(
            f"{path} cannot be read: {printable(str(error), 200)}. See kernel-archive validate"
        ) from None


def open_archive(path: str | Path | None = None) -> Archive:
    """Open an archive directory.

    Args:
        path: the directory; :func:`default_directory` when not given.

    Raises:
        ArchiveNotFoundError: there is no archive.
        ArchiveMismatchError: the manifest can't be read.
    """
    directory = Path(path) if path is not None else default_directory()
    return Archive(directory, read_manifest(directory))
