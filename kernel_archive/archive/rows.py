"""One search's evaluations on their way to rows: ids, lineage, bounded texts, and the facts of the search.

What a reader yields is a record as the log has it; here it gets its identity, and recipe and log are held against each
other.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.ids import canonical_json, canonical_text, evaluation_id, kernel_id, program_id, token_id
from kernel_archive.problems import family_of, normalise_problem, problem_facts
from kernel_archive.readers.records import Case, Evaluation, SearchFacts
from kernel_archive.schema import CASE, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_archive.archive.jobs import Job

__all__ = ["FRAGMENT_SCHEMA", "SearchRows", "bad_exclude", "case_array", "language_of", "run_path"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Error texts longer than this are cut; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000

_EVALUATION_FIELDS = [f for f in TABLES["evaluations"].schema if f.name != "canary"]
FRAGMENT_SCHEMA: Final = pa.schema(
    [
        *_EVALUATION_FIELDS,
        pa.field("seq", pa.int64(), nullable=False),  # position in the run
        pa.field("role", pa.string(), nullable=False),
        pa.field("source_key", pa.string(), nullable=False),
        pa.field("generation_method", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("family", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("token_id", pa.string(), nullable=False),
        pa.field("error_text", pa.string()),
        pa.field("code", pa.large_string(), nullable=False),
    ]
)


def language_of(code: str) -> str:
    """The language of a program, from its text: ``triton``, ``cuda``, ``pytorch`` or ``other``."""
    if "@triton.jit" in code or "triton.language" in code:
        return "triton"
    if "__global__" in code or "load_inline" in code or "CUDAExtension" in code:
        return "cuda"
    return "pytorch" if "torch" in code else "other"


def _micros(text: str | None) -> int | None:
    """ISO 8601 to microseconds since the epoch, ``None`` where it is none."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - _EPOCH
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def _encodable(code: str) -> str:
    """Text that Arrow can hold: lone surrogates become replacement marks."""
    if code.isascii():
        return code
    try:
        code.encode()
    except UnicodeEncodeError:
        return code.encode("utf-8", "replace").decode()
    return code


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of positive values; ``None`` where one is missing or there are none."""
    logs = []
    for value in values:
        if value is None or not value > 0 or not math.isfinite(value):
            return None
        logs.append(math.log(value))
    # Rounded to a picosecond: logarithms may differ in the last digit between machines, digests may not.
    return round(math.exp(math.fsum(logs) / len(logs)), 6) if logs else None


def _whole(stated: float | None, cases: Iterable[float | None]) -> float | None:
    """The time that the log states for the whole program, else the geometric mean over its cases."""
    return stated if stated is not None else _geometric_mean(cases)


class _Program(NamedTuple):
    """A program text and what follows from it."""

    text: str
    program: str
    tokens: str
    language: str


class _Identity(NamedTuple):
    """What an evaluation measured."""

    program: _Program
    kernel: str
    problem: str
    gpu: str
    reference: str


class SearchRows:
    """Evaluations of one search on their way to columns."""

    def __init__(self, job: Job, search_id: str, digest: str, digests: dict[str, str]) -> None:
        self.job = job
        self.search_id = search_id
        self.digest = digest
        self.digests = digests
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []

    def _contradiction(self, field: str, said: str, logged: str) -> RecipeError:
        finding = Finding(
            code="recipe-contradicts-log",
            message=f"the recipe says {said!r}, the log of {self.search_id} says {logged!r}",
            file=str(self.job.recipe_directory / "builder.toml"),
            field=f"source[{self.job.source_index}].{field}",
            fix="Correct the recipe; a recipe only adds what the logs don't say",
        )
        return RecipeError(finding.render(), findings=[finding])

    def settled(self, field: str, logged: str | None) -> str | None:
        """A fact that recipe or log may state; both stating different things is an error."""
        normalise = {"gpu": canonical_gpu, "problem": normalise_problem}.get(field, str)
        said: str | None = getattr(self.job.source, field)
        if said is not None and field == "problem" and "{name}" in said:
            said = said.replace("{name}", self.search_id.rsplit("/", 1)[-1].split("__")[0])
        if said is not None and logged is not None and normalise(said) != normalise(logged):
            raise self._contradiction(field, said, logged)
        value = logged if logged is not None else said
        return normalise(value) if value is not None else None

    def columns(self, offset: int) -> tuple[dict[str, list[Any]], dict[str, Any], list[dict[str, Any]]]:
        """Fragment columns, the search's row, and its reference rows."""
        job, facts = self.job, self.facts
        problem = self.settled("problem", facts.problem)
        gpu = self.settled("gpu", facts.gpu)
        model = self.settled("model", facts.model)
        references: dict[tuple[str, str], dict[str, Any]] = {}
        reference_ids: dict[str, str] = {}

        def reference(code: str | None, of: str) -> str:
            if code is None:
                return ""
            rid = reference_ids.get(code) or reference_ids.setdefault(code, program_id(code))
            if (of, rid) not in references:
                references[of, rid] = self.reference_row(rid, of, code)
            return rid

        main_reference = facts.reference_code
        if main_reference is None and problem is not None:
            main_reference = job.reference_text(problem)
        if gpu is not None and not is_known(gpu):
            self.findings.append(
                Finding(
                    code="unknown-gpu",
                    severity="warning",
                    message=f"GPU {printable(gpu)} of {self.search_id} is not known; kept as it is",
                )
            )
        by_node: dict[str, int] = {}
        excluded = job.excluded.get(self.search_id, {})
        kept: list[Evaluation] = []
        identities: list[_Identity] = []
        programs: dict[str, _Program] = {}
        for record in self.evaluations:
            fault = self._refused(record, by_node)
            if fault is not None:
                self.findings.append(fault)
                continue
            row_problem = normalise_problem(record.problem) if record.problem is not None else problem
            row_gpu = canonical_gpu(record.gpu) if record.gpu is not None else gpu
            if row_problem is None or row_gpu is None:
                raise self._missing("problem" if row_problem is None else "gpu", record)
            text = _encodable(canonical_text(record.code))
            pid = program_id(text)
            known = programs.get(pid)
            if known is None:
                known = programs[pid] = _Program(text, pid, token_id(text), language_of(text))
            if not known.text:
                continue
            if record.reference_code is not None:
                rid = reference(record.reference_code, row_problem)
            elif row_problem == problem:
                rid = reference(main_reference, row_problem)
            else:
                rid = reference(job.reference_text(row_problem), row_problem)
            kid = kernel_id(problem=row_problem, reference_program_id=rid, gpu=row_gpu, program=known.program)
            by_node[record.node_id] = len(kept)
            kept.append(record)
            identities.append(_Identity(known, kid, row_problem, row_gpu, rid))
        dropped = len(self.evaluations) - len(kept)
        out = self._columns(kept, identities, offset, excluded, model)
        ids = out["kernel_id"]
        self.lineage(out, by_node, ids)
        for node in sorted(excluded.keys() - by_node.keys()):
            raise bad_exclude(job, f"node {node!r}, which {self.search_id} does not have", node)
        if dropped:
            facts.counts["rows_dropped"] = facts.counts.get("rows_dropped", 0) + dropped
        rid_main = program_id(main_reference) if main_reference is not None else None
        return out, self.search_row(out, problem, gpu, model, rid_main), list(references.values())

    def _missing(self, what: str, record: Evaluation) -> RecipeError:
        finding = Finding(
            code=f"no-{what}",
            message=f"neither the log nor the recipe says the {what} of {self.search_id}",
            file=record.source_file,
            fix=f'Add {what} = "..." to its [[source]]',
        )
        return RecipeError(finding.render(), findings=[finding])

    def _refused(self, record: Evaluation, by_node: dict[str, int]) -> Finding | None:
        """Why a record can't be a row, if it can't."""
        speedup = record.speedup
        if record.outcome == "success" and not (speedup is not None and math.isfinite(speedup) and speedup > 0):
            return Finding(
                code="bad-speedup",
                message="a success without a finite speedup above 0 skipped",
                file=record.source_file,
                line=record.source_line,
                field="speedup",
                value=repr(speedup),
            )
        if record.node_id in by_node:
            return Finding(
                code="duplicate-node",
                severity="warning",
                message=f"node {printable(record.node_id)} stands twice in {self.search_id}; the first is kept",
                file=record.source_file,
                line=record.source_line,
            )
        return None

    def _columns(
        self,
        kept: list[Evaluation],
        identities: list[_Identity],
        offset: int,
        excluded: dict[str, str],
        model: str | None,
    ) -> dict[str, list[Any]]:
        """Columns of the kept records, all but those of :meth:`lineage`. Columns, not rows: that is much faster."""
        job, n = self.job, len(kept)
        passed = [record.outcome == "success" for record in kept]
        families = {problem: family_of(problem) for problem in {i.problem for i in identities}}
        return {
            "evaluation_id": [evaluation_id(search_id=self.search_id, node_id=r.node_id) for r in kept],
            "kernel_id": [i.kernel for i in identities],
            "program_id": [i.program.program for i in identities],
            "problem": [i.problem for i in identities],
            "gpu": [i.gpu for i in identities],
            "reference_id": [i.reference for i in identities],
            "search_id": [self.search_id] * n,
            "node_id": [_encodable(r.node_id) for r in kept],
            "parent_node_id": [r.parent_node_id for r in kept],
            "parent_kernel_id": [],
            "parent_distance": [],
            "step": [r.step for r in kept],
            "is_root": [r.is_root for r in kept],
            "outcome": [r.outcome for r in kept],
            "error_type": [None if r.error_type is None else _encodable(r.error_type)[:200] for r in kept],
            "speedup": [r.speedup if ok else None for r, ok in zip(kept, passed, strict=True)],
            "runtime_us": [
                _whole(r.runtime_us, (c.runtime_us for c in r.cases)) if ok else None
                for r, ok in zip(kept, passed, strict=True)
            ],
            "reference_runtime_us": [
                _whole(r.reference_runtime_us, (c.reference_runtime_us for c in r.cases)) if ok else None
                for r, ok in zip(kept, passed, strict=True)
            ],
            "cases": [r.cases if ok else () for r, ok in zip(kept, passed, strict=True)],
            "n_logged": [r.n_logged for r in kept],
            "started_at": [_micros(r.started_at) for r in kept],
            "completed_at": [_micros(r.completed_at) for r in kept],
            "gpu_seconds": [r.gpu_seconds for r in kept],
            "input_tokens": [r.input_tokens for r in kept],
            "output_tokens": [r.output_tokens for r in kept],
            "excluded": [excluded.get(r.node_id) for r in kept],
            "builder": [job.builder] * n,
            "source_file": [r.source_file for r in kept],
            "source_line": [r.source_line for r in kept],
            "source_digest": [self.digests.get(r.source_file, self.digest) for r in kept],
            "seq": list(range(offset, offset + n)),
            "role": [job.source.role] * n,
            "source_key": [job.source_key] * n,
            "generation_method": [job.source.generation_method] * n,
            "model": [r.model if r.model is not None else model for r in kept],
            "family": [families[i.problem] for i in identities],
            "language": [i.program.language for i in identities],
            "token_id": [i.program.tokens for i in identities],
            "error_text": [None if r.error_text is None else _encodable(r.error_text[:ERROR_TEXT_LIMIT]) for r in kept],
            "code": [i.program.text for i in identities],
        }

    def lineage(self, out: dict[str, list[Any]], by_node: dict[str, int], ids: list[str]) -> None:
        """Fill ``parent_kernel_id`` and ``parent_distance``: the nearest ancestor that this log still has."""
        kept = [r for r in self.evaluations if r.node_id in by_node]
        seen: set[str] = set()
        for record in kept:
            if record.node_id in seen:
                continue
            seen.add(record.node_id)
            chain = [record.parent_node_id, *(a for a in record.ancestor_node_ids if a != record.parent_node_id)]
            parent, distance = None, None
            for i, node in enumerate(chain, start=1):
                if node is not None and node in by_node and node != record.node_id:
                    parent, distance = ids[by_node[node]], i
                    break
            out["parent_kernel_id"].append(parent)
            out["parent_distance"].append(distance)

    def reference_row(self, rid: str, problem: str, code: str) -> dict[str, Any]:
        """A row of ``references`` (without canary)."""
        facts, known = self.facts, problem_facts(problem)
        tolerance = facts.tolerance or {}
        cases = facts.benchmark_cases if facts.benchmark_cases is not None else list(known.benchmark_cases) or None
        return {
            "reference_id": rid,
            "problem": problem,
            "family": known.family,
            "title": known.title,
            "rtol": tolerance.get("rtol", known.rtol),
            "atol": tolerance.get("atol", known.atol),
            "benchmark_cases": None if cases is None else canonical_json(cases).decode(),
            "correctness_cases": None
            if facts.correctness_cases is None
            else canonical_json(facts.correctness_cases).decode(),
            "code": _encodable(canonical_text(code)),
        }

    def search_row(
        self, out: dict[str, list[Any]], problem: str | None, gpu: str | None, model: str | None, rid: str | None
    ) -> dict[str, Any]:
        """The row of ``searches`` (without canary)."""
        facts, job = self.facts, self.job

        def total(name: str) -> Any:
            present = [v for v in out[name] if v is not None]
            if not present:
                return None
            return math.fsum(present) if name == "gpu_seconds" else sum(present)

        outcomes = out["outcome"]
        speedups = [s for s in out["speedup"] if s is not None]
        times = [t for t in (*out["started_at"], *out["completed_at"]) if t is not None]
        passed = {k for k, o in zip(out["kernel_id"], outcomes, strict=True) if o == "success"}
        texts = {
            name: None if value is None else canonical_json(value).decode()
            for name, value in (
                ("hyperparameters", facts.hyperparameters), ("measurement", facts.measurement), ("software", facts.software)
            )
        }  # fmt: skip
        return {
            "search_id": self.search_id,
            "builder": job.builder,
            "format": job.source.format,
            "role": job.source.role,
            "generation_method": job.source.generation_method,
            "problem": problem,
            "family": family_of(problem) if problem is not None else None,
            "gpu": gpu,
            "model": model,
            "reference_id": rid,
            "finished": facts.finished,
            "n_evaluations": len(outcomes),
            "n_successes": outcomes.count("success"),
            "n_kernels": len(passed),
            "n_compile_failed": outcomes.count("compile_failed"),
            "n_runtime_error": outcomes.count("runtime_error"),
            "n_incorrect": outcomes.count("incorrect"),
            "n_infrastructure_failure": outcomes.count("infrastructure_failure"),
            "n_duplicates": sum(n - 1 for n in out["n_logged"]),
            "n_pending": facts.n_pending,
            "n_mutations_failed": facts.n_mutations_failed,
            "n_deferred": facts.n_deferred,
            "n_forecasts": facts.n_forecasts,
            "n_findings": len(self.findings),
            "best_speedup": max(speedups, default=None),
            "input_tokens": facts.input_tokens if facts.input_tokens is not None else total("input_tokens"),
            "output_tokens": facts.output_tokens if facts.output_tokens is not None else total("output_tokens"),
            "gpu_seconds": facts.gpu_seconds if facts.gpu_seconds is not None else total("gpu_seconds"),
            "wall_seconds": facts.wall_seconds,
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": run_path(job),
            "source_digest": self.digest,
            **texts,
        }


def bad_exclude(job: Job, what: str, value: str) -> RecipeError:
    """The error of an ``[[exclude]]`` entry that names what is not there."""
    finding = Finding(
        code="bad-exclude",
        message=f"an exclude entry names {what}",
        file=str(job.recipe_directory / "builder.toml"),
        field="exclude",
        value=value,
    )
    return RecipeError(finding.render(), findings=[finding])


def run_path(job: Job) -> str:
    """The run's place, relative to its builder."""
    return job.path.relative_to(job.base).as_posix() if job.path != job.base else job.path.name


def case_array(rows: Sequence[Sequence[Case]]) -> pa.Array:
    """The nested column from flat ones: building it from dictionaries takes most of the time of staging."""
    offsets = [0]
    shapes: list[str | None] = []
    known: dict[tuple[tuple[str, Any], ...], str] = {}
    flat: list[Case] = []
    for row in rows:
        flat.extend(row)
        offsets.append(len(flat))
    for case in flat:
        if not case.shape:
            shapes.append(None)
            continue
        try:
            key = tuple(case.shape.items())
            text = known.get(key)
        except TypeError:  # a shape with a nested value can't be a key
            shapes.append(canonical_json(case.shape).decode())
            continue
        if text is None:
            text = known[key] = canonical_json(case.shape).decode()
        shapes.append(text)
    columns = [
        pa.array(shapes, pa.string()),
        pa.array([c.speedup for c in flat], pa.float64()),
        pa.array([c.runtime_us for c in flat], pa.float64()),
        pa.array([c.reference_runtime_us for c in flat], pa.float64()),
    ]
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(columns, fields=list(CASE))
    )
