"""From fragments to tables: identity, repeats, flags, train and test, in SQL over the fragments.

Only columns without texts and cases are held for the whole archive (:mod:`kernel_archive.archive.queries`); texts and
cases are read again, a few fragments at a time, when rows are written (:mod:`kernel_archive.archive.wide`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kernel_archive.archive.labels import FLAGS
from kernel_archive.archive.open import literal_path
from kernel_archive.archive.queries import EVALUATIONS, KERNELS, REPORT, SPLIT_ROWS
from kernel_archive.archive.shards import table_facts, write_table
from kernel_archive.archive.team import Call
from kernel_archive.archive.wide import WideSplit
from kernel_archive.bins import Scheme, assign_bins
from kernel_archive.errors import KernelArchiveError, LogError
from kernel_archive.gpus import GpuFacts, gpu_facts, is_known
from kernel_archive.ids import CANARY
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from kernel_archive.archive.manifest import TableFacts
    from kernel_archive.archive.stage import StagedRun
    from kernel_archive.archive.team import Team

__all__ = ["consolidate"]

#: DuckDB spills to disk above this.
MEMORY_LIMIT: Final = "600MB"
#: Of so many runs, the largest, it is tried whether one alone takes more.
MOST_SUSPECTS: Final = 20


@contextmanager
def _merge(
    fragments: Mapping[str, Path],
    scheme: Scheme,
    scratch: Path,
    supersedes: Iterable[tuple[str, str]],
    unanimous: Iterable[str],
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the tables of all queries; see :func:`consolidate` for the arguments."""
    import duckdb

    scratch.mkdir(parents=True, exist_ok=True)
    pairs = sorted(supersedes)
    given = {
        "succession": pa.table(
            {"newer": [n for n, _ in pairs], "older": [o for _, o in pairs]}, _texts("newer", "older")
        ),
        "unanimous": pa.table({"builder": sorted(unanimous)}, _texts("builder")),
    }
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        connection.execute("SET temp_directory = ?", [str(scratch)])
        connection.read_parquet(sorted({literal_path(p) for p in fragments.values()})).create_view("fragment")
        for name, table in given.items():
            connection.register(name, table)
        for name, query in EVALUATIONS.items():
            connection.execute(f"CREATE TABLE {name} AS {query}")
        connection.register("edge", _edges(connection, scheme))
        for name, query in KERNELS.items():
            connection.execute(f"CREATE TABLE {name} AS {query}")
        yield connection


@contextmanager
def _faults_named(fragments: Mapping[str, Path], scheme: Scheme, scratch: Path) -> Iterator[None]:
    """What the merge raises when disk or memory is full, as an error that names the run that it comes from, if it is one."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error
    except duckdb.OutOfMemoryException as error:
        largest = sorted(fragments, key=lambda name: (-fragments[name].stat().st_size, name))[:MOST_SUSPECTS]
        for name in largest:
            try:
                with _merge({name: fragments[name]}, scheme, scratch, (), ()):
                    pass
            except duckdb.OutOfMemoryException:
                raise LogError(
                    f"the measurements of {name} alone take more memory than a merge may ({MEMORY_LIMIT}). "
                    "Take the run out of its path; the others are staged and kept"
                ) from error
        raise KernelArchiveError(f"the merge could not go on: {error}. The staged fragments are kept") from error


def _texts(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


def _edges(connection: duckdb.DuckDBPyConnection, scheme: Scheme) -> pa.Table:
    """Kernels whose least and largest measurement fall into different bins."""
    rows = connection.sql(
        "SELECT kernel_id, speedup_min, speedup_max FROM measured WHERE n_measurements > 1"
    ).to_arrow_table()
    low, high = (assign_bins(rows[name].to_numpy(), scheme) for name in ("speedup_min", "speedup_max"))
    return rows.select(["kernel_id"]).filter(pa.array(low != high))


def _report(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Counts for the manifest; those of the flags stand by themselves."""
    counts = {name: connection.sql(query).fetchall()[0][0] for name, query in REPORT.items()}
    flags = {flag.name: counts.pop(flag.name) for flag in FLAGS}
    return {**counts, "flags": flags}


def _references(runs: Sequence[StagedRun]) -> list[dict[str, Any]]:
    """One row per problem and reference: of several statements the one with the most facts, then the first search's."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        for row in run.references:
            key = (row["problem"], row["reference_id"])
            if key not in best or _filled(row) > _filled(best[key]):
                best[key] = row
    return [best[key] for key in sorted(best)]


def _filled(row: dict[str, Any]) -> int:
    return sum(value is not None for value in row.values())


def _gpu_row(name: str, stated: Mapping[str, GpuFacts]) -> dict[str, Any]:
    facts = stated.get(name) or gpu_facts(name)
    known = is_known(name) or name in stated
    return {"gpu": name, "known": known, **{f: getattr(facts, f) for f in GpuFacts.__struct_fields__}}


def consolidate(
    runs: Sequence[StagedRun],
    fragments: dict[str, Path],
    directory: Path,
    *,
    scheme: Scheme,
    scratch: Path,
    supersedes: Iterable[tuple[str, str]] = (),
    unanimous: Iterable[str] = (),
    gpus: Mapping[str, GpuFacts] | None = None,
    workers: Team,
) -> tuple[dict[str, TableFacts], dict[str, Any]]:
    """Write the measured tables of an archive.

    Args:
        runs: what is kept beside the fragments, sorted by search id.
        fragments: search id -> fragment file (several may share one).
        directory: the archive directory being made.
        scheme: bin scheme of the labels.
        scratch: where DuckDB may spill.
        supersedes: pairs of builders (new, old): what the new one has judged has no label from the old one.
        unanimous: builders of which a kernel has a label only when none of its measurements failed.
        gpus: facts of GPUs that recipes state.
        workers: the processes that write large splits side by side.

    Returns:
        Facts per table, and counts for the manifest.

    Raises:
        LogError: a single run takes more memory than there is for all.
        KernelArchiveError: the disk or the memory is full.
    """
    with (
        _faults_named(fragments, scheme, scratch),
        _merge(fragments, scheme, scratch, supersedes, unanimous) as connection,
    ):
        report = _report(connection)
        names = [name for (name,) in connection.sql("SELECT DISTINCT gpu FROM evaluation ORDER BY 1").fetchall()]
        splits = [
            WideSplit(
                table=table,
                split=split,
                directory=directory,
                fragments=fragments,
                scheme=scheme,
                narrow=connection.sql(query).to_arrow_table(),
            )
            for (table, split), query in SPLIT_ROWS.items()
        ]
    small = {
        "searches": sorted((row for run in runs for row in run.searches), key=lambda row: str(row["search_id"])),
        "references": _references(runs),
        "gpus": [_gpu_row(name, gpus or {}) for name in names],
    }
    tables = {}
    for name, rows in small.items():
        table = pa.Table.from_pylist([{**row, "canary": CANARY} for row in rows], schema=TABLES[name].schema)
        tables[name] = write_table(directory, name, {"train": table})
    calls = [Call(f"the rows of {part.table}/{part.split}", part.write) for part in splits]
    written = {(splits[i].table, splits[i].split): rows for i, rows in workers.do(calls)}
    for name in dict.fromkeys(part.table for part in splits):
        tables[name] = table_facts({split: written[name, split] for split in TABLES[name].splits})
    return tables, report
