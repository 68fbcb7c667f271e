"""Staging: one run in, one Parquet fragment out, named by the digest of all that it depends on.

A fragment holds every evaluation of the run with ids, parents and code; a record beside it holds
the rest. So a build reads only what is new, and goes on after a kill.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.jobs import RunJob, fragment_key, run_digest
from kernel_archive.archive.search_rows import SearchRows
from kernel_archive.archive.store import Store, Stored
from kernel_archive.errors import Finding, LogError
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.files import MISTAKES
from kernel_archive.readers.records import Evaluation, PublishedRow, SearchFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernel_archive.readers.records import Record

#: Findings kept in full per run; the rest is counted.
FINDINGS_KEPT: Final = 200
#: Rows of a fragment in one block of its file: a reader holds one at a time.
_GROUP_ROWS: Final = 2000

_PUBLISHED_TEXTS: Final = (
    *("split", "row_id", "problem", "gpu", "pair_type", "source_file", "source_search"),
    *("search_id", "parent_node_id", "child_node_id"),
)
#: Columns of the split rows that others published.
PUBLISHED_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in _PUBLISHED_TEXTS),
        *((name, pa.large_string()) for name in ("anchor_code", "candidate_code")),
        *((name, pa.int64()) for name in ("order", "source_line")),
        ("speedup", pa.float64()),
        ("label", pa.int8()),
    ]
)


class StagedRun(msgspec.Struct, kw_only=True):
    """A run that has been read: what is kept beside its fragment."""

    key: str  # what its content depends on; this record is in <key>.run
    search_id: str
    builder: str
    role: str  # of its source
    path: str  # relative to its base
    digest: str  # over its input files
    bytes: int  # of its input files on disk
    rows: int = 0  # evaluations
    searches: list[dict[str, Any]] = []  # rows of searches: several where one file holds several
    references: list[dict[str, Any]] = []  # rows of references
    counts: dict[str, int] = {}  # further ones of the format
    n_findings: int = 0
    findings: list[Finding] = []  # the first ones
    fragment: Stored = Stored("", 0, "")  # the file with its evaluations
    published_rows: Stored | None = None  # the file with its published split rows, if any

    def add(self, search: SearchRows) -> pa.Table:
        """Take in one search of the run; return its evaluations."""
        rows = search.rows(self.rows)
        self.rows += rows.evaluations.num_rows
        self.searches.append(rows.search)
        self.references += rows.references
        self.n_findings += len(search.findings)
        self.findings += search.findings[: FINDINGS_KEPT - len(self.findings)]
        for name, count in search.facts.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        return rows.evaluations


def _collect(
    job: RunJob, records: Iterable[Record], digest: str, digests: dict[str, str]
) -> tuple[list[SearchRows], list[PublishedRow]]:
    """Sort records into searches and published rows; findings go to the run's first search.

    A search has one role: where the recipe gives problems roles of their own, a table of several
    problems is several searches.
    """
    whole = SearchRows(job, job.search_id, digest, digests)
    searches: dict[tuple[str | None, str], SearchRows] = {(None, job.source.role): whole}

    def search(name: str | None, role: str) -> SearchRows:
        if (name, role) not in searches:
            own_role = role == job.source.role
            path = "/".join(part for part in (name, None if own_role else role) if part)
            # One log can't be held out and training at once: its parts have their own digests.
            part = digest if own_role else sha256_hex(f"{digest} {role}".encode())
            searches[name, role] = SearchRows(job, f"{job.search_id}/{path}", part, digests)
            searches[name, role].role = role
        return searches[name, role]

    published: list[PublishedRow] = []
    for record in records:
        if isinstance(record, Evaluation):
            problem = normalise_problem(record.problem or job.source.problem or "") or None
            search(record.search, job.role_of(problem)).evaluations.append(record)
        elif isinstance(record, SearchFacts):
            problem = normalise_problem(job.source.problem or "") or None
            search(record.search, job.role_of(problem)).facts = record
        elif isinstance(record, PublishedRow):
            published.append(record)
        else:
            whole.findings.append(record)
    for (name, role), part in searches.items():
        if role != job.source.role:  # what the log says of the whole is true of every part
            other = searches.get((name, job.source.role), whole)
            counts = {} if other.evaluations else other.facts.counts
            part.facts = msgspec.structs.replace(other.facts, counts=counts)
    ordered = list(searches.values())
    if len(ordered) > 1 and not whole.evaluations:
        ordered[1].findings = whole.findings
        ordered = ordered[1:]
    return ordered, published


def _write_table(store: Store, stem: str, suffix: str, table: pa.Table) -> Stored:
    settings = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    settings |= {"row_group_size": _GROUP_ROWS, "write_page_checksum": True}
    write = partial(pq.write_table, table, **settings)
    return store.write(stem, suffix, write)


def _read_facts(store: Store, key: str) -> StagedRun | None:
    """Read what stands beside a fragment; ``None`` unless it and all its files are as written."""
    digest, _, facts = (store.get(f"{key}.run") or b"").partition(b"\n")
    if digest != sha256_hex(facts).encode():
        return None
    staged = msgspec.json.decode(facts, type=StagedRun)
    files = [file for file in (staged.fragment, staged.published_rows) if file is not None]
    return staged if all(map(store.holds, files)) else None


def stage_run(job: RunJob, store: Store, *, strict: bool = False) -> tuple[StagedRun, bool]:
    """Read one run and write its fragment, unless a whole one is there already.

    Returns:
        What was read, and whether it was read now.

    Raises:
        LogError: ``strict`` and the log is damaged; or nothing at all could be read of it.
        RecipeError: the recipe contradicts the log or leaves out what the log doesn't say.
    """
    digest, digests, size = run_digest(job.run_files)
    key = fragment_key(job, digest)
    staged = _read_facts(store, key)
    anew = staged is None
    if staged is None:
        staged = StagedRun(
            key=key,
            search_id=job.search_id,
            builder=job.builder,
            role=job.source.role,
            path=job.run_path,
            digest=digest,
            bytes=size,
        )
        try:
            _read_run(job, store, staged, digests)
        except MemoryError as error:
            raise LogError(
                f"{job.search_id} takes more memory than there is. Take the run out of its path"
            ) from error
        facts = msgspec.json.encode(staged)
        store.put(f"{key}.run", f"{sha256_hex(facts)}\n".encode() + facts)
    _judge(job, staged, strict=strict)
    return staged, anew


def _read_run(job: RunJob, store: Store, staged: StagedRun, digests: dict[str, str]) -> None:
    """Read a run, and write its fragment."""
    records = READERS[job.source.format].read(job.run_files)
    searches, published = _collect(job, records, staged.digest, digests)
    for name in sorted(job.excluded.keys() - {search.search_id for search in searches}):
        message = f"an exclude entry names search {name!r}, which is not in {job.search_id}"
        raise job.loaded.error("bad-exclude", message, "exclude", name)
    rows = pa.concat_tables([staged.add(search) for search in searches])
    stem = staged.key[:32]
    staged.fragment = _write_table(store, stem, ".parquet", rows)
    if published:
        values = [
            {
                **msgspec.structs.asdict(row),
                "search_id": job.search_id,
                "problem": normalise_problem(row.problem),
                "gpu": canonical_gpu(row.gpu),
            }
            for row in published
        ]
        rows = pa.Table.from_pylist(values, schema=PUBLISHED_SCHEMA)
        staged.published_rows = _write_table(store, stem, ".published.parquet", rows)


def _judge(job: RunJob, staged: StagedRun, *, strict: bool) -> None:
    """Decide whether a run's findings end the build."""
    errors = [f for f in staged.findings if f.severity == "error"]
    damage = [f for f in staged.findings if f.severity == "warning" and f.line is not None]
    if strict and (errors or damage):
        message = f"{job.search_id}: {staged.n_findings} faults, and --strict was given"
        in_order = [f for f in staged.findings if f in errors or f in damage]
        raise LogError(message, findings=in_order)
    # A damaged run fails alone; a run of another format is a mistake of the recipe.
    errors = [f for f in errors if f.code in MISTAKES]
    if errors and not staged.rows and staged.published_rows is None:
        raise LogError(
            f"nothing could be read of {job.search_id} as {job.source.format}. "
            "Name the right format in the recipe, or take the run out of its path",
            findings=errors,
        )
