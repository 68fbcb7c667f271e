"""Checking an archive in layers: each layer is a list of checks, a check yields findings.

Layout and schema come first; where they have an error, or a file can't be read, the later layers
are skipped, since they would only repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from string import Template
from typing import Final, Literal

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.labels import SQL_NAMES
from kernel_archive.archive.manifest import shard_faults
from kernel_archive.archive.open import Archive
from kernel_archive.bins import SCHEMES, assign_bins, checked_scheme, outcome_speedups
from kernel_archive.databases import sql_texts
from kernel_archive.errors import ArchiveMismatchError, Finding, counted, printable
from kernel_archive.ids import CANARY, token_id
from kernel_archive.schema import OUTCOMES, ROLES, TABLES
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.toml_files import toml_beside

Check = Callable[[Archive], Iterable[Finding]]

#: Rows that a finding names; the rest is counted.
NAMED_ROWS: Final = 10
Status = Literal["ok", "warning", "error", "skipped"]


class Layer(msgspec.Struct, kw_only=True):
    """The result of one layer."""

    name: str
    status: Status
    findings: list[Finding]


class ValidationReport(msgspec.Struct, kw_only=True):
    """The result of all layers; ``ok`` when no finding is an error."""

    path: str
    version: str
    ok: bool
    layers: list[Layer]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all layers."""
        return [finding for layer in self.layers for finding in layer.findings]


def _rows_finding(code: str, message: str, table: str, keys: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding that names the first rows and counts the rest; nothing without rows."""
    if keys:
        named = ", ".join(printable(str(key), 80) for key in keys[:NAMED_ROWS])
        more = f" and {len(keys) - NAMED_ROWS} more" if len(keys) > NAMED_ROWS else ""
        message = f"{message}: {counted(len(keys), 'row')}"
        yield Finding(code=code, message=message, field=table, value=f"{named}{more}")


def _check_layout(archive: Archive) -> Iterator[Finding]:
    """Yield a finding for every file or table that is not as the manifest names it."""
    shards = archive.manifest.shards()
    yield from shard_faults(archive.path, shards, content=False)
    named = {archive.path / shard.path for shard in shards}
    for path in sorted({*(archive.path / "data").rglob("*.parquet")} - named):
        message = "not named in the manifest"
        yield Finding(code="stray-file", message=message, file=str(path), fix="Delete it")
    for name, table in TABLES.items():
        if not table.derived and name not in archive.manifest.tables:
            yield Finding(code="missing-table", message="the manifest lacks a table", value=name)


def _typed_columns(schema: pa.Schema) -> list[str]:
    """Write columns with their types; Parquet has names and nullability of its own for lists."""
    plain = [str(f.type).replace("<item: ", "<element: ").replace(" not null", "") for f in schema]
    return [f"{name} {kind}" for name, kind in zip(schema.names, plain, strict=True)]


def _check_schema(archive: Archive) -> Iterator[Finding]:
    """Yield a finding for every file with other columns or another number of rows."""
    for table in archive.tables:
        expected = _typed_columns(TABLES[table].schema)
        for shard in archive.manifest.shards(table):
            file = str(archive.path / shard.path)
            try:
                with pq.ParquetFile(file) as parquet:
                    columns, rows = _typed_columns(parquet.schema_arrow), parquet.metadata.num_rows
            except (OSError, pa.ArrowException) as error:
                message = f"cannot be read: {printable(error, 200)}"
                yield Finding(code="bad-parquet", message=message, file=file)
                continue
            if columns != expected:
                message = f"columns of {table} differ from the data contract"
                different = ", ".join(sorted({*columns} ^ {*expected})) or "their order"
                yield Finding(code="wrong-columns", message=message, file=file, value=different)
            if rows != shard.rows:
                message = f"the file has {counted(rows, 'row')}, the manifest says {shard.rows:,}"
                yield Finding(code="wrong-rows", message=message, file=file)


def digest_faults(archive: Archive) -> Iterator[Finding]:
    """Compare the logical digests of all tables, and of the archive, with those of the manifest."""
    manifest = archive.manifest
    fix = "The content was changed after it was built: build or pull again"
    digests = {"": (manifest.whole_digest, manifest.logical_digest)}
    for table, digest in archive.content_digests.items():
        digests[table] = digest, manifest.tables[table].logical_digest
    for name, split in manifest.splits.items():
        facts = manifest.tables.get(name)
        digests[f"splits.{name}"] = split.logical_digest, facts.logical_digest if facts else ""
    for field, (actual, stated) in digests.items():
        if actual != stated:
            message = f"the digest is {actual[:19]}…, the manifest says {stated[:19]}…"
            yield Finding(code="wrong-digest", message=message, field=field or None, fix=fix)


def _check_digests(archive: Archive) -> Iterator[Finding]:
    yield from shard_faults(archive.path, archive.manifest.shards())
    yield from digest_faults(archive)


def _check_ids(archive: Archive) -> Iterator[Finding]:
    """Yield a finding for each table with an id twice, or one that is not that of the code."""
    for table in archive.tables:
        spec = TABLES[table]
        # A row can be in two evaluations: a derived table has one row id per split.
        scope = "split" if spec.derived else "problem" if table == "references" else "1"
        query = f'SELECT {spec.key} FROM "{table}" GROUP BY {spec.key}, {scope} HAVING count(*) > 1'
        message = f"{spec.key} stands more than once"
        yield from _rows_finding("duplicate-key", message, table, _sorted_column(archive, query))
    for table in ("kernels", "failures"):
        wrong = [
            row["kernel_id"]
            for batch in archive.batches(table, columns=["kernel_id", "token_id", "code"])
            for row in batch.to_pylist()
            if token_id(row["code"]) != row["token_id"]
        ]
        yield from _rows_finding("wrong-token-id", "token_id is not that of the code", table, wrong)


def _sorted_column(archive: Archive, query: str) -> list[str]:
    return sorted(archive.sql(query).column(0).to_pylist())


def _check_labels(archive: Archive) -> Iterator[Finding]:
    """Yield a finding for each table with a bad speedup, or a bin that is not its label."""
    values = {"kernels": "speedup", **{name: split.value for name, split in SPLIT_TABLES.items()}}
    for table, value in values.items():
        facts = archive.manifest.splits.get(table)
        # Labels of published splits are kept, those of withheld ones are gone: the layer of the
        # splits looks at both.
        if table not in archive.tables or (facts is not None and facts.origin != "selected"):
            continue
        rows = archive.polars(table, columns=[TABLES[table].key, value, "bin", "bin_scheme"])
        if (split := SPLIT_TABLES.get(table)) and split.asks_outcome:
            ends = dict(enumerate(outcome_speedups([0, 1]).tolist()))
            rows = rows.with_columns(rows[value].replace_strict(ends, default=None))
        is_good = (rows[value].is_finite() & (rows[value] > 0)).fill_null(value=False)
        bad = rows.filter(~is_good).to_series(0).to_list()
        yield from _rows_finding("bad-speedup", f"{value} is not finite and above 0", table, bad)
        for (name,), part in rows.filter(is_good).group_by("bin_scheme", maintain_order=True):
            if name not in SCHEMES:
                message, field = f"there is no scheme {printable(name)}", f"{table}.bin_scheme"
                yield Finding(code="unknown-scheme", message=message, field=field)
                continue
            labels = assign_bins(part[value].to_numpy(), checked_scheme(str(name)))
            wrong = part.filter(part["bin"].to_numpy() != labels).to_series(0).to_list()
            message = f"the bin is not that of {value} under the scheme {name}"
            yield from _rows_finding("wrong-label", message, table, wrong)


def _check_cross_references(archive: Archive) -> Iterator[Finding]:
    """Ask the queries of ``crosschecks.toml``; each returns the keys of the rows at fault."""
    content = toml_beside(__file__, "crosschecks.toml")
    builders = archive.manifest.builders
    names = {
        **SQL_NAMES,
        "outcomes": sql_texts(OUTCOMES),
        "roles": sql_texts(ROLES),
        "unanimous": sql_texts(str(b.get("name")) for b in builders if b.get("unanimous")),
    }
    names["refused"] = Template(content["refused"]).substitute(names)
    for check in content["check"]:
        message = Template(check["message"]).substitute(names)
        for table in check["tables"]:
            query = Template(check["query"]).substitute(names, table=table, key=TABLES[table].key)
            field = f"{table}.{check['column']}" if "column" in check else table
            yield from _rows_finding(check["code"], message, field, _sorted_column(archive, query))


def _check_canary(archive: Archive) -> Iterator[Finding]:
    for table in archive.tables:
        query = f'SELECT 1 FROM "{table}" WHERE canary IS DISTINCT FROM ? LIMIT 1'
        if archive.sql(query, [CANARY]).num_rows:
            message = "a row lacks the canary text"
            yield Finding(code="no-canary", message=message, field=table, fix="Build again")


_LAYERS: Final[dict[str, Check]] = {
    "layout": _check_layout,
    "schema": _check_schema,
    "digests": _check_digests,
    "ids": _check_ids,
    "labels": _check_labels,
    "cross-references": _check_cross_references,
    "canary": _check_canary,
}
#: An error in one of these layers ends the validation.
_BASIC_LAYERS: Final = frozenset({"layout", "schema"})


def _run_check(archive: Archive, check: Check) -> Iterator[Finding]:
    """Run a check; a file that can't be read in the middle of it is a finding, and ends it."""
    try:
        yield from check(archive)
    except (OSError, pa.ArrowException, duckdb.Error, ArchiveMismatchError) as error:
        message = f"a file cannot be read: {printable(error, 200)}"
        fix = "Build or pull again"
        yield Finding(code="unreadable", message=message, file=str(archive.path), fix=fix)


def validate_measured(
    archive: Archive, extra: Sequence[tuple[str, Check]] = ()
) -> ValidationReport:
    """Run all layers on an opened archive, then the given further ones (splits, card)."""
    layers: list[Layer] = []
    stopped = False
    for name, check in (*_LAYERS.items(), *extra):
        findings = [] if stopped else list(_run_check(archive, check))
        severities = {finding.severity for finding in findings}
        status: Status = "ok"
        if stopped:
            status = "skipped"
        elif "error" in severities:
            status = "error"
        elif "warning" in severities:
            status = "warning"
        layers.append(Layer(name=name, status=status, findings=findings))
        unreadable = any(finding.code == "unreadable" for finding in findings)
        stopped = stopped or unreadable or (status == "error" and name in _BASIC_LAYERS)
    return ValidationReport(
        path=str(archive.path),
        version=archive.manifest.version,
        ok=not any(layer.status == "error" for layer in layers),
        layers=layers,
    )
