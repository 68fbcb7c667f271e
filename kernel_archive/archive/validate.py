"""Checking an archive in layers: layout, schema, digests, ids, labels, cross-references, canary, natural programs.

Each layer is a function from an opened archive to findings; a layer only runs when those it builds on found no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernel_archive.archive.crosschecks import CROSS_CHECKS, unanimity_checks
from kernel_archive.archive.manifest import shard_faults
from kernel_archive.archive.natural import natural_faults
from kernel_archive.archive.shards import digest_rows
from kernel_archive.bins import assign_bins, scheme
from kernel_archive.errors import ArchiveMismatchError, Finding, KernelArchiveError, printable
from kernel_archive.ids import CANARY, kernel_id, logical_digest, program_id, token_id
from kernel_archive.schema import OUTCOMES, ROLES, TABLES
from kernel_archive.splits import SPLIT_TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kernel_archive.archive.open import Archive

#: So many rows are named per rule; the rest is counted.
NAMED: Final = 10
MEASURED_TABLES: Final = tuple(name for name, table in TABLES.items() if not table.derived)


class Layer(msgspec.Struct, kw_only=True):
    """One layer's result: ``ok``, ``warning``, ``error`` or ``skipped``, and its findings."""

    name: str
    status: str
    checked: int
    findings: list[Finding]


class Report(msgspec.Struct, kw_only=True):
    """The whole result."""

    path: str
    version: str | None
    ok: bool
    layers: list[Layer]

    @property
    def findings(self) -> list[Finding]:
        """Findings of all layers."""
        return [finding for layer in self.layers for finding in layer.findings]


def _rows(code: str, message: str, table: str, keys: Sequence[Any], fix: str | None = None) -> list[Finding]:
    """One finding that names the first rows and counts the rest."""
    if not len(keys):
        return []
    named = ", ".join(printable(str(k), 80) for k in keys[:NAMED])
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return [Finding(code=code, message=f"{message}: {len(keys)} rows", field=table, value=f"{named}{more}", fix=fix)]


def _layout(archive: Archive) -> Iterator[Finding]:
    manifest = archive.manifest
    yield from shard_faults(archive.path, manifest.shards(), content=False)
    named = {archive.path / shard.path for shard in manifest.shards()}
    for path in sorted((archive.path / "data").rglob("*.parquet")):
        if path not in named:
            yield Finding(code="stray-file", message="not named in the manifest", file=str(path), fix="Delete it")
    for table in MEASURED_TABLES:
        if table not in manifest.tables:
            yield Finding(code="missing-table", message="the manifest lacks a table", value=table)


def _schema(archive: Archive) -> Iterator[Finding]:
    for table in archive.tables:
        wanted = TABLES[table].schema
        for shard in archive.manifest.shards(table):
            path = archive.path / shard.path
            try:
                file = pq.ParquetFile(path)
            except (OSError, pa.ArrowException) as error:
                message = f"cannot be read: {printable(str(error), 200)}"
                yield Finding(code="bad-parquet", message=message, file=str(path))
                continue
            found = file.schema_arrow
            if found.names != wanted.names:
                yield Finding(
                    code="wrong-columns",
                    message=f"columns of {table} differ from the data contract",
                    file=str(path),
                    value=", ".join(sorted(set(found.names) ^ set(wanted.names))) or "their order",
                )
            else:
                for mine, theirs in zip(wanted, found, strict=True):
                    if not _same_type(theirs.type, mine.type):
                        message = f"is {theirs.type}, should be {mine.type}"
                        yield Finding(code="wrong-type", message=message, file=str(path), field=mine.name)
            if file.metadata.num_rows != shard.rows:
                message = f"{file.metadata.num_rows} rows, the manifest says {shard.rows}"
                yield Finding(code="wrong-rows", message=message, file=str(path))


def _same_type(a: pa.DataType, b: pa.DataType) -> bool:
    """Types alike but for the names and nullability of list elements, which Parquet writes its own way."""
    if pa.types.is_list(a) and pa.types.is_list(b):
        return _same_type(a.value_type, b.value_type)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return [f.name for f in a] == [f.name for f in b] and all(
            _same_type(x.type, y.type) for x, y in zip(a, b, strict=True)
        )
    return bool(a.equals(b))


def _digests(archive: Archive) -> Iterator[Finding]:
    yield from shard_faults(archive.path, archive.manifest.shards())
    yield from digest_faults(archive)
    for name, split in archive.manifest.splits.items():
        held = archive.manifest.tables.get(name)
        if held is None or held.logical_digest != split.logical_digest:
            yield Finding(
                code="wrong-digest",
                message="the split's facts name another digest than its table has",
                field=f"splits.{name}",
            )


def digest_faults(archive: Archive) -> Iterator[Finding]:
    """A finding for every table whose rows are not those of its digest, and for the archive whose digest is another."""
    for table in archive.tables:
        found, named = logical_digest(digest_rows(table, archive.arrow(table))), archive.manifest.tables[table]
        if found != named.logical_digest:
            yield Finding(
                code="wrong-digest",
                message=f"the rows' logical digest is {found[:19]}…, the manifest says {named.logical_digest[:19]}…",
                field=table,
                fix="The content was changed after it was built: build or pull again",
            )
    if archive.manifest.whole_digest != archive.manifest.logical_digest:
        yield Finding(
            code="wrong-digest",
            message="the archive's logical digest is not that of its tables and splits",
            value=archive.manifest.logical_digest,
        )


#: Id -> what it is made of.
_MADE_OF: Final = {
    "program_id": "the code",
    "token_id": "the code",
    "kernel_id": "problem, reference, GPU and program",
}


def _ids(archive: Archive) -> Iterator[Finding]:
    for table in archive.tables:
        spec = TABLES[table]
        # A derived table of several splits has one row id per split: a row can be in two evaluations.
        for split in archive.manifest.tables[table].splits if spec.derived else (None,):
            keys = archive.arrow(table, split, [spec.key, "problem"] if table == "references" else [spec.key])
            counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
            twice = counted.filter(pc.greater(counted.column("count_all"), 1)).column(spec.key).to_pylist()
            yield from _rows("duplicate-key", f"{spec.key} stands more than once", table, sorted(twice))
    for table in ("kernels", "failures"):
        names = ["kernel_id", "program_id", "token_id", "problem", "reference_id", "gpu", "code"]
        for path in archive.files(table):
            rows = pq.read_table(path, columns=names, partitioning=None).to_pylist()
            wrong: dict[str, list[str]] = {column: [] for column in _MADE_OF}
            for row in rows:
                made = {
                    "program_id": program_id(row["code"]),
                    "token_id": token_id(row["code"]),
                    "kernel_id": kernel_id(
                        problem=row["problem"],
                        reference_program_id=row["reference_id"],
                        gpu=row["gpu"],
                        program=row["program_id"],
                    ),
                }
                for column, value in made.items():
                    if value != row[column]:
                        wrong[column].append(row["kernel_id"])
            for column, of in _MADE_OF.items():
                code = f"wrong-{column.replace('_', '-')}"
                yield from _rows(code, f"{column} is not that of {of}", table, wrong[column])
    references = archive.arrow("references", columns=["reference_id", "code"]).to_pylist()
    yield from _rows(
        "wrong-program-id",
        "reference_id is not that of the code",
        "references",
        [r["reference_id"] for r in references if program_id(r["code"]) != r["reference_id"]],
    )


def _labels(archive: Archive) -> Iterator[Finding]:
    for table, value in (("kernels", "speedup"), *((name, split.value) for name, split in SPLIT_TABLES.items())):
        facts = archive.manifest.splits.get(table)
        if table not in archive.tables or (facts is not None and facts.origin != "selected"):
            # Published labels are kept as they are, withheld ones are not there: the splits layer looks at both.
            continue
        key = TABLES[table].key
        rows = archive.arrow(table, columns=[key, value, "bin", "bin_scheme"])
        speedups, keys = rows.column(value).to_numpy(), rows.column(key).to_pylist()
        bad = [k for k, s in zip(keys, speedups.tolist(), strict=True) if not 0 < s < float("inf")]
        yield from _rows("bad-speedup", f"{value} is not finite and above 0", table, bad)
        if bad:
            continue
        for name in pc.unique(rows.column("bin_scheme")).to_pylist():
            try:
                rule = scheme(name)
            except KernelArchiveError as error:
                yield Finding(code="unknown-scheme", message=str(error), field=f"{table}.bin_scheme")
                continue
            mask = pc.equal(rows.column("bin_scheme"), name).to_numpy()
            wrong = (assign_bins(speedups, rule.name) != rows.column("bin").to_numpy()) & mask
            yield from _rows(
                "wrong-label",
                f"the bin is not that of {value} under the scheme {name}",
                table,
                [keys[i] for i in wrong.nonzero()[0]],
            )


def _cross(archive: Archive) -> Iterator[Finding]:
    unanimous = [str(builder.get("name")) for builder in archive.manifest.builders if builder.get("unanimous")]
    for check in (*CROSS_CHECKS, *unanimity_checks(unanimous)):
        rows = archive.sql(check.query)
        yield from _rows(check.code, check.message, check.table, sorted(rows.column(0).to_pylist()))
    for table, column, allowed in (("evaluations", "outcome", OUTCOMES), ("searches", "role", ROLES)):
        for value in pc.unique(archive.arrow(table, columns=[column]).column(column)).to_pylist():
            if value not in allowed:
                yield Finding(
                    code="unknown-value",
                    message=f"not one of: {', '.join(allowed)}",
                    field=f"{table}.{column}",
                    value=value,
                )


def _canary(archive: Archive) -> Iterator[Finding]:
    for table in archive.tables:
        column = archive.arrow(table, columns=["canary"]).column("canary")
        if any(value != CANARY for value in pc.unique(column).to_pylist()):
            yield Finding(code="no-canary", message="a row lacks the canary text", field=table, fix="Build again")


_LAYERS: Final[tuple[tuple[str, Callable[[Archive], Iterable[Finding]]], ...]] = (
    ("layout", _layout),
    ("schema", _schema),
    ("digests", _digests),
    ("ids", _ids),
    ("labels", _labels),
    ("cross-references", _cross),
    ("canary", _canary),
    ("natural", natural_faults),
)
#: A failure here makes the later layers meaningless.
_FATAL: Final = frozenset({"layout", "schema"})


def _found(archive: Archive, check: Callable[[Archive], Iterable[Finding]]) -> Iterator[Finding]:
    """What a layer finds; a file that can't be read in the middle of it is a finding, too."""
    try:
        yield from check(archive)
    except (OSError, pa.ArrowException, duckdb.Error, ArchiveMismatchError) as error:
        message = f"a file cannot be read: {printable(str(error), 200)}"
        yield Finding(code="unreadable", message=message, file=str(archive.path), fix="Build or pull again")


def validate_measured(
    archive: Archive, extra: Sequence[tuple[str, Callable[[Archive], Iterable[Finding]]]] = ()
) -> Report:
    """Run all layers on an opened archive, then the given further ones (splits, card).

    Returns:
        A report; ``ok`` when no finding is an error.
    """
    layers: list[Layer] = []
    rows = sum(sum(facts.rows.values()) for facts in archive.manifest.tables.values())
    stopped = False
    for name, check in (*_LAYERS, *extra):
        if stopped:
            layers.append(Layer(name=name, status="skipped", checked=0, findings=[]))
            continue
        findings = list(_found(archive, check))
        severities = {finding.severity for finding in findings}
        status = next((worst for worst in ("error", "warning") if worst in severities), "ok")
        layers.append(Layer(name=name, status=status, checked=rows, findings=findings))
        unreadable = any(finding.code in {"unreadable", "bad-parquet"} for finding in findings)
        stopped = unreadable or (status == "error" and name in _FATAL)
    ok = not any(layer.status == "error" for layer in layers)
    return Report(path=str(archive.path), version=archive.manifest.version, ok=ok, layers=layers)
