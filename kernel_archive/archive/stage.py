"""Staging: one run in, one Parquet fragment out, named by the digest of all that it depends on.

A fragment holds every evaluation of the run with ids, parents and code; a record beside it holds
the rest. So a build reads only what is new, and goes on after a kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.archive.fragment_store import Store, Stored
from kernel_archive.archive.fragments import fragment_table
from kernel_archive.archive.jobs import RunJob
from kernel_archive.archive.manifest import InputFacts
from kernel_archive.archive.search_rows import Row, SearchRows
from kernel_archive.errors import Finding, LogError
from kernel_archive.gpus import canonical_gpu
from kernel_archive.ids import sha256_hex
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RECIPE_FAULTS
from kernel_archive.readers.records import Evaluation, PublishedRow, Record, SearchFacts

#: Findings kept in full per run; the rest is counted.
FINDINGS_KEPT: Final = 200
#: Rows of a fragment in one block of its file: a reader holds one at a time.
GROUP_ROWS: Final = 2000

_PUBLISHED_NUMBERS: Final = {
    **dict.fromkeys(("label", "order", "source_line"), pa.int64()),
    "speedup": pa.float64(),
}
#: Columns of the split rows that others published; all but the numbers are texts.
PUBLISHED_SCHEMA: Final = pa.schema(
    [
        (name, _PUBLISHED_NUMBERS.get(name, pa.large_string()))
        for name in ("search_id", *PublishedRow.__struct_fields__)
    ]
)


class StagedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has been read: what is kept beside its fragment."""

    key: str  # what its content depends on; this record is in <key>.run
    role: str  # of its source
    facts: InputFacts  # as the manifest has them
    searches: list[dict[str, Any]]  # rows of searches: several where one file holds several
    references: list[dict[str, Any]]  # rows of references
    problems: list[str]  # of the rows: their ids, and their names in the log
    counts: dict[str, int]  # further ones of the format
    findings: list[Finding]  # the first ones
    fragment: Stored  # the file with its evaluations
    published_rows: Stored | None  # the file with its published split rows, if any


def _sort(job: RunJob, records: Iterable[Record]) -> tuple[list[SearchRows], list[PublishedRow]]:
    """Sort records into searches and published rows; findings go to the run's first search.

    A search has one role: where the recipe gives problems roles of their own, a table of several
    problems is several searches.
    """
    whole = SearchRows(job, job.run_id)
    searches: dict[tuple[str | None, str], SearchRows] = {(None, job.source.role): whole}

    def search_of(name: str | None, problem: str | None) -> SearchRows:
        role = job.role_of((problem or job.problem or "").strip())
        if (name, role) not in searches:
            has_role_of_source = role == job.source.role
            steps = (job.run_id, name, None if has_role_of_source else role)
            search = SearchRows(job, "/".join(step for step in steps if step))
            if not has_role_of_source:
                # One log can't be held out and training at once: its parts have own digests.
                search.digest, search.role = sha256_hex(f"{job.digest} {role}".encode()), role
            searches[name, role] = search
        return searches[name, role]

    published: list[PublishedRow] = []
    for record in records:
        if isinstance(record, Evaluation):
            search_of(record.search, record.problem).evaluations.append(record)
        elif isinstance(record, SearchFacts):
            search_of(record.search, None).facts = record
        elif isinstance(record, PublishedRow):
            published.append(record)
        else:
            whole.findings.append(record)
    for (name, role), search in searches.items():
        if role != job.source.role:  # what the log says of the whole is true of every part
            stated_of = searches.get((name, job.source.role), whole)
            counts = Counter[str]() if stated_of.evaluations else stated_of.facts.counts
            search.facts = msgspec.structs.replace(stated_of.facts, counts=counts)
    ordered = list(searches.values())
    # Without evaluations the run itself is no search: its findings go to the first one.
    if len(ordered) > 1 and not whole.evaluations:
        ordered[1].findings += whole.findings
        ordered = ordered[1:]
    return ordered, published


def _stored_run(store: Store, key: str) -> StagedRun | None:
    """Read the record of a staged run; ``None`` unless it and all its files are as written."""
    digest, _, record = (store.get(f"{key}.run") or b"").partition(b"\n")
    if digest != sha256_hex(record).encode():
        return None
    staged = msgspec.json.decode(record, type=StagedRun)
    files = [file for file in (staged.fragment, staged.published_rows) if file is not None]
    return staged if all(map(store.holds, files)) else None


def stage_run(job: RunJob, store: Store, *, strict: bool = False) -> tuple[StagedRun, bool]:
    """Read one run and write its fragment, unless a whole one is there; tell whether it was read.

    A LogError ends the build where nothing could be read, or with ``strict`` at any damage.
    """
    key = job.fragment_key
    staged = _stored_run(store, key)
    was_read = staged is None
    if staged is None:
        try:
            staged = _read_run(job, store)
        except MemoryError as error:
            raise LogError(
                f"{job.run_id} takes more memory than there is. Type --jobs 1, or take the "
                "run out of the path of its [[source]]"
            ) from error
        record = msgspec.json.encode(staged)
        store.put(f"{key}.run", f"{sha256_hex(record)}\n".encode() + record)
    _refuse_damaged(job, staged, strict=strict)
    return staged, was_read


def _read_run(job: RunJob, store: Store) -> StagedRun:
    """Read a run, and write its fragment."""
    searches, published = _sort(job, READERS[job.source.format].read(job.run_files))
    for name in sorted(job.excluded.keys() - {search.search_id for search in searches}):
        message = f"an exclude entry names search {name!r}, which is not in {job.run_id}"
        raise job.loaded.error("bad-exclude", message, "exclude", value=name)
    named = {r.problem or job.problem for s in searches for r in s.evaluations}
    problems = {name.strip() for name in named if name}
    evaluations: list[Row] = []
    search_rows: list[Row] = []
    counts = Counter[str]()
    for search in searches:
        rows = search.rows(len(evaluations))
        search_rows.append(search.search_row(rows))
        evaluations += rows
        counts.update(search.facts.counts)
    findings = [finding for search in searches for finding in search.findings]
    stem = job.fragment_key[:32]
    stored = _write_table(store, stem, ".parquet", fragment_table(evaluations))
    split_rows = _published_table(job, published) if published else None
    return StagedRun(
        key=job.fragment_key,
        role=job.source.role,
        facts=InputFacts(
            search_id=job.run_id,
            builder=job.builder,
            path=job.run_path,
            digest=f"sha256:{job.digest}",
            bytes=job.bytes,
            evaluations=len(evaluations),
            findings=len(findings),
        ),
        searches=search_rows,
        references=[row for search in searches for row in search.references.values()],
        problems=sorted(problems | {row["problem"] for row in evaluations}),
        counts=counts,
        findings=findings[:FINDINGS_KEPT],
        fragment=stored,
        published_rows=split_rows and _write_table(store, stem, ".published.parquet", split_rows),
    )


def _published_table(job: RunJob, published: Sequence[PublishedRow]) -> pa.Table:
    own = {"search_id": job.run_id}
    rows = [
        msgspec.structs.asdict(row)
        | {"problem": normalise_problem(row.problem), "gpu": canonical_gpu(row.gpu), **own}
        for row in published
    ]
    return pa.Table.from_pylist(rows, schema=PUBLISHED_SCHEMA)


def _write_table(store: Store, stem: str, suffix: str, table: pa.Table) -> Stored:
    settings = {"compression": "lz4", "use_dictionary": False, "write_statistics": ["search_id"]}
    settings |= {"row_group_size": GROUP_ROWS, "write_page_checksum": True, "store_schema": False}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **settings)
    return store.write(stem, suffix, sink.getvalue().to_pybytes())


def _refuse_damaged(job: RunJob, staged: StagedRun, *, strict: bool) -> None:
    """Raise LogError where a run's findings end the build."""
    damage = [
        finding
        for finding in staged.findings
        if finding.severity == "error" or (finding.severity == "warning" and finding.line)
    ]
    if strict and damage:
        message = f"{job.run_id}: --strict was given; faults: {staged.facts.findings:,}"
        raise LogError(message, findings=damage)
    # A damaged run fails alone; a run of another format is a mistake of the recipe.
    errors = [f for f in staged.findings if f.severity == "error" and f.code in RECIPE_FAULTS]
    if errors and not staged.facts.evaluations and staged.published_rows is None:
        if job.source.format == "sql":  # the query is at fault, not the name of the format
            raise LogError.from_findings(errors)
        raise LogError(
            f"nothing could be read of {job.run_id} as {job.source.format}. "
            "Name its format in the recipe (kernel-archive readers lists them), or a narrower path",
            findings=errors,
        )
