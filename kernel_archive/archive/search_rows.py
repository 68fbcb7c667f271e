"""From the records of one search to rows: of its evaluations, of the search, and of the references it names.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it gets its ids and its
parent, recipe and log are held against each other, and what does not fit its column is left out with a finding.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kernel_archive.archive import fragments
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known, same_gpu
from kernel_archive.ids import canonical_text, evaluation_id, kernel_id
from kernel_archive.problems import REFERENCE_IDS, family_of, normalise_problem, problem_facts
from kernel_archive.readers import READERS
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, SearchFacts
from kernel_archive.schema import OUTCOMES, TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kernel_archive.archive.jobs import Job

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Error texts longer than this are cut; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
#: Columns that hold a field of the record as it is, but for what in a text can't be stored.
_PLAIN: Final = (
    "node_id", "parent_node_id", "step", "is_root", "outcome", "n_logged", "gpu_seconds", "input_tokens", "output_tokens",
    "source_file", "source_line", "narrow_domain",
)  # fmt: skip
_LIMITS: Final = fragments.limits(fragments.FRAGMENT_SCHEMA)
_LIMITED: Final = tuple(name for name in _PLAIN if name in _LIMITS)
#: Columns that hold a field of :class:`_Row` or of its program.
_SETTLED: Final = (
    "problem",
    "gpu",
    "model",
    "excluded",
    "runtime_us",
    "reference_runtime_us",
    "reference_id",
    "kernel_id",
)
_OF_PROGRAM: Final = ("program_id", "token_id", "language", "code")
_SEARCH_JSON: Final = ("hyperparameters", "measurement", "software")
_SEARCH_LIMITS: Final = fragments.limits(TABLES["searches"].schema) | dict.fromkeys(
    _SEARCH_JSON, fragments.Limit(len, fragments.MAX_CODE)
)


class Rows(NamedTuple):
    """Rows of one search: of ``evaluations`` (a fragment), ``searches`` and ``references``, the latter without canary."""

    evaluations: pa.Table
    search: dict[str, Any]
    references: list[dict[str, Any]]


def _micros(text: str | None) -> int | None:
    """ISO 8601 to microseconds since the epoch, ``None`` where it is none."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        delta = moment - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def _whole(stated: float | None, cases: Sequence[float | None]) -> float | None:
    """The time that the log states for the whole program, else the geometric mean over its cases if all have one."""
    if stated is not None or not cases:
        return stated
    logs = []
    for value in cases:
        if value is None or not 0 < value < math.inf:
            return None
        logs.append(math.log(value))
    # Rounded to a picosecond: logarithms may differ in the last digit between machines, digests may not.
    return round(math.exp(math.fsum(logs) / len(logs)), 6)


class _Row(msgspec.Struct):
    """A record on its way to a row, with the columns that take more than a field of it."""

    record: Evaluation
    program: fragments.Program
    problem: str
    gpu: str
    model: str | None
    excluded: str | None
    runtime_us: float | None = None
    reference_runtime_us: float | None = None
    reference: str = ""
    reference_id: str = ""
    kernel_id: str = ""

    def misfit(self) -> tuple[str, Any] | None:
        """The first column whose value is beyond its limit, with the value."""
        given: dict[str, Any] = {name: getattr(self.record, name) for name in _LIMITED}
        given |= {name: getattr(self, name) for name in _SETTLED}
        given["code"] = self.program.code
        return next(((name, value) for name, value in given.items() if _LIMITS[name].exceeded_by(value)), None)


class SearchRows:
    """Collects the records of one search, in the order of the log, and makes its rows; findings of the reader come first."""

    def __init__(self, job: Job, search_id: str, digest: str, digests: dict[str, str]) -> None:
        """The run, the search's id, the digest of the run, and the digest of each of its files."""
        self.job = job
        self.role = str(job.source.role)
        self.search_id = search_id
        self.digest = digest
        self.digests = digests
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []
        self._programs: dict[str, fragments.Program] = {}  # by the text of the log
        self._references: dict[tuple[str, str], dict[str, Any]] = {}
        self._renamed: set[str] = set()

    def _settled(self, field: str, logged: str | None) -> str | None:
        """A fact that recipe or log may state; both stating different things is an error."""
        normalise = {"gpu": canonical_gpu, "problem": normalise_problem}.get(field, str)
        said: str | None = getattr(self.job.source, field)
        if said is not None and field == "problem" and "{name}" in said:
            said = said.replace("{name}", self.search_id.rsplit("/", 1)[-1].split("__")[0])
        if said is not None and logged is not None and normalise(said) != normalise(logged):
            raise self._contradiction(field, said, logged)
        value = logged if logged is not None else said
        return fragments.encodable(normalise(value)) if value is not None else None

    def _contradiction(self, field: str, said: str, logged: str, line: int | None = None) -> RecipeError:
        where = "" if line is None else f", line {line}"
        return RecipeError.of(
            code="recipe-contradicts-log",
            message=f"the recipe says {printable(said)!r}, the log of {self.search_id}{where} says {printable(logged)!r}",
            file=str(self.job.recipe_file),
            field=f"source[{self.job.source_index}].{field}",
            fix="Correct the recipe; a recipe only adds what the logs don't say",
        )

    def _refuse(self, record: Evaluation, code: str, message: str, **more: Any) -> None:
        self.findings.append(
            Finding(code=code, message=message, file=record.source_file, line=record.source_line, **more)
        )

    def rows(self, first: int) -> Rows:
        """Make all rows; ``first`` is the position of the first evaluation in the run.

        Raises:
            RecipeError: the recipe contradicts the log, leaves out what the log doesn't say, or excludes what is not there.
        """
        job, facts = self.job, self.facts
        problem = self._settled("problem", facts.problem)
        gpu = self._settled("gpu", facts.gpu)
        model = self._settled("model", facts.model)
        main_reference = facts.reference_code
        if main_reference is None and problem is not None:
            main_reference = job.reference_text(problem)
        self._report_gpus(gpu)
        excluded = job.excluded.get(self.search_id, {})
        shapes = {id(case.shape): case.shape for record in self.evaluations for case in record.cases}
        largest_shape = max((len(str(shape)) for shape in shapes.values()), default=0)
        kept: dict[str, _Row] = {}  # by node: refused records have no place here, whatever node they name
        incomplete: list[tuple[str, Evaluation]] = []
        for record in self.evaluations:
            if self._refused(record, kept):
                continue
            row_problem = normalise_problem(record.problem) if record.problem is not None else problem
            row_gpu = canonical_gpu(record.gpu) if record.gpu is not None else gpu
            if None not in (record.gpu, gpu, job.source.gpu) and row_gpu != gpu:
                raise self._contradiction("gpu", str(job.source.gpu), str(record.gpu), record.source_line)
            if row_problem is None or row_gpu is None:
                incomplete.append(("problem" if row_problem is None else "gpu", record))
                continue
            row = _Row(
                record=record,
                program=self._program(record.code),
                problem=fragments.encodable(row_problem),
                gpu=fragments.encodable(row_gpu),
                model=record.model if record.model is not None else model,
                excluded=excluded.get(record.node_id, record.excluded),
            )
            if record.outcome == "success":
                row.runtime_us = _whole(record.runtime_us, [c.runtime_us for c in record.cases])
                references = [c.reference_runtime_us for c in record.cases]
                row.reference_runtime_us = _whole(record.reference_runtime_us, references)
            if self._is_misfit(row, largest_shape):
                continue
            reference = record.reference_code
            if reference is None:
                reference = main_reference if row_problem == problem else job.reference_text(row_problem)
            row.reference = reference or ""
            row.problem = self._own_name(row.problem, reference)
            row.reference_id = self._reference(reference, row.problem)
            row.kernel_id = kernel_id(
                problem=row.problem, reference_program_id=row.reference_id, gpu=row.gpu, program=row.program.program_id
            )
            kept[record.node_id] = row
        self._report_incomplete(incomplete, any_complete=bool(kept))
        for node in sorted(excluded.keys() - kept.keys()):
            raise job.bad_exclude(f"node {printable(node)!r}, which {self.search_id} does not have", node)
        if len(kept) < len(self.evaluations):
            dropped = len(self.evaluations) - len(kept)
            facts.counts["rows_dropped"] = facts.counts.get("rows_dropped", 0) + dropped
        columns = self._columns(kept, first)
        main = self._program(main_reference).program_id if main_reference is not None else None
        named = problem if problem is None else self._own_name(problem, main_reference)
        search = self._search_row(columns, problem=named, gpu=gpu, model=model, reference_id=main)
        return Rows(fragments.fragment_table(columns), search, list(self._references.values()))

    def _report_gpus(self, gpu: str | None) -> None:
        """Say which GPUs nobody states facts of."""
        named = {canonical_gpu(record.gpu) for record in self.evaluations if record.gpu is not None} | {gpu}
        for name in sorted(name for name in named if name is not None):
            if not is_known(name) and not any(same_gpu(name, stated) for stated in self.job.gpus):
                shown = printable(name)
                message = f"GPU {shown} of {self.search_id} is not known; kept as it is"
                fix = f'State what is known of it in the recipe: [gpu."{shown}"] (docs/recipes.md)'
                self.findings.append(Finding(code="unknown-gpu", severity="warning", message=message, fix=fix))

    def _own_name(self, problem: str, reference: str | None) -> str:
        """The problem's name; one that a table of others calls like one of ours is ours only with our reference."""
        ours = REFERENCE_IDS.get(problem)
        if ours is None or not READERS[self.job.source.format].foreign:
            return problem
        if reference is not None and self._program(reference).program_id in ours:
            return problem
        name = f"{self.job.builder}.{problem}"
        if name not in self._renamed:
            self._renamed.add(name)
            has = "has another" if reference is not None else "states no"
            message = f"{problem} is called like a problem of this package and {has} reference: it is kept as {name}"
            self.findings.append(
                Finding(
                    code="not-our-problem", severity="info", message=message, file=self.job.run_path, field="problem"
                )
            )
        return name

    def _refused(self, record: Evaluation, kept: dict[str, Any]) -> bool:
        """Whether a record can't be a row by itself; if so, a finding says why."""
        speedup = record.speedup
        low, high = SPEEDUP_RANGE
        if record.outcome == "success" and not (speedup is not None and low <= speedup <= high):
            message = f"a success without a speedup between {low:g} and {high:g} skipped"
            self._refuse(record, "bad-speedup", message, field="speedup", value=repr(speedup))
        elif not record.code or record.code.isspace():
            self._refuse(record, "empty-program", "an evaluation of an empty program skipped", severity="warning")
        elif record.node_id in kept:
            message = f"node {printable(record.node_id)} stands twice in {self.search_id}; the first is kept"
            self._refuse(record, "duplicate-node", message, severity="warning")
        else:
            return False
        return True

    def _report_incomplete(self, incomplete: list[tuple[str, Evaluation]], *, any_complete: bool) -> None:
        """Rows of which neither log nor recipe says problem or GPU: findings, or an error where no row has them."""
        for what, record in incomplete:
            message = f"neither the log nor the recipe says the {what}"
            fix = f'Add {what} = "..." to its [[source]]'
            if not any_complete:
                raise RecipeError.of(
                    code=f"no-{what}", message=f"{message} of {self.search_id}", file=record.source_file, fix=fix
                )
            self._refuse(record, f"no-{what}", f"{message} of this row; it is left out", fix=fix)

    def _is_misfit(self, row: _Row, largest_shape: int) -> bool:
        """Whether a row holds more than a row may; if so, a finding says what."""
        found = row.misfit()
        if found is None and row.record.outcome == "success":
            cases = row.record.cases
            # Nearly always the bound is enough; only then every shape is looked at.
            large = (
                len(cases) * largest_shape > fragments.MAX_SHAPES
                and sum(len(str(c.shape)) for c in cases) > fragments.MAX_SHAPES
            )
            found = ("cases", cases) if large or len(cases) > fragments.MAX_CASES else None
        if found is None:
            return False
        message = "a value beyond what a row of evaluations may hold; the row is left out"
        self._refuse(row.record, "bad-value", message, field=found[0], value=printable(found[1]))
        return True

    def _columns(self, kept: dict[str, _Row], first: int) -> dict[str, Any]:
        """The columns of the kept rows. Columns, not rows: a dictionary for each takes twice the time."""
        job, rows, n = self.job, list(kept.values()), len(kept)
        records = [row.record for row in rows]
        programs = [row.program for row in rows]
        passed = [record.outcome == "success" for record in records]
        parents = [_parent(record, kept) for record in records]
        families = {problem: family_of(problem) for problem in {row.problem for row in rows}}
        return {
            **{name: _storable([getattr(record, name) for record in records]) for name in _PLAIN},
            **{name: _storable([getattr(row, name) for row in rows]) for name in _SETTLED},
            **{name: [getattr(program, name) for program in programs] for name in _OF_PROGRAM},
            "evaluation_id": [evaluation_id(search_id=self.search_id, node_id=record.node_id) for record in records],
            "family": [families[row.problem] for row in rows],
            "parent_kernel_id": [kernel for kernel, _ in parents],
            "parent_distance": [distance for _, distance in parents],
            "speedup": [record.speedup if good else None for record, good in zip(records, passed, strict=True)],
            "cases": [record.cases if good else () for record, good in zip(records, passed, strict=True)],
            "error_type": _storable([record.error_type and record.error_type[:ERROR_TYPE_LIMIT] for record in records]),
            "error_text": _storable([record.error_text and record.error_text[:ERROR_TEXT_LIMIT] for record in records]),
            "started_at": [_micros(record.started_at) for record in records],
            "completed_at": [_micros(record.completed_at) for record in records],
            "artificial": [
                good and fragments.is_artificial(row.program, row.reference)
                for row, good in zip(rows, passed, strict=True)
            ],
            "source_digest": [self.digests.get(record.source_file, self.digest) for record in records],
            "search_id": [self.search_id] * n,
            "builder": [job.builder] * n,
            "role": [self.role] * n,
            "source_key": [job.source_key] * n,
            "generation_method": [job.source.generation_method] * n,
            "seq": range(first, first + n),
        }

    def _program(self, logged: str) -> fragments.Program:
        program = self._programs.get(logged)
        if program is None:
            program = self._programs[logged] = fragments.program_of(fragments.encodable(canonical_text(logged)))
        return program

    def _reference(self, code: str | None, problem: str) -> str:
        """The id of a reference program, empty where it is not known; its row is kept."""
        if code is None:
            return ""
        reference = self._program(code)
        if (problem, reference.program_id) not in self._references:
            facts, known = self.facts, problem_facts(problem)
            tolerance = facts.tolerance or {}
            cases = facts.benchmark_cases if facts.benchmark_cases is not None else list(known.benchmark_cases) or None
            self._references[problem, reference.program_id] = {
                "reference_id": reference.program_id,
                "problem": problem,
                "family": known.family,
                "title": known.title,
                "rtol": tolerance.get("rtol", known.rtol),
                "atol": tolerance.get("atol", known.atol),
                "benchmark_cases": fragments.json_text(cases),
                "correctness_cases": fragments.json_text(facts.correctness_cases),
                "code": reference.code,
            }
        return reference.program_id

    def _search_row(self, columns: dict[str, Any], **settled: str | None) -> dict[str, Any]:
        """The row of ``searches``: what recipe and log say of the search, and counts over its evaluations."""
        facts, job = self.facts, self.job

        def present(*names: str) -> list[Any]:
            return [value for name in names for value in columns[name] if value is not None]

        outcomes = columns["outcome"]
        times = present("started_at", "completed_at")
        row = {name: getattr(facts, name) for name in SearchFacts.__struct_fields__ if name in _SEARCH_LIMITS}
        row |= settled
        row |= {name: fragments.json_text(row[name]) for name in _SEARCH_JSON}
        row |= {
            name: _total(present(name))
            for name in ("input_tokens", "output_tokens", "gpu_seconds")
            if row[name] is None
        }
        row |= {f"n_{outcome}": outcomes.count(outcome) for outcome in OUTCOMES if outcome != "success"}
        row |= {
            "search_id": self.search_id,
            "builder": job.builder,
            "format": job.source.format,
            "role": self.role,
            "generation_method": job.source.generation_method,
            "family": family_of(row["problem"]) if row["problem"] is not None else None,
            "finished": facts.finished,
            "n_evaluations": len(outcomes),
            "n_successes": outcomes.count("success"),
            "n_kernels": len(
                {key for key, outcome in zip(columns["kernel_id"], outcomes, strict=True) if outcome == "success"}
            ),
            "n_duplicates": sum(columns["n_logged"]) - len(outcomes),
            "n_findings": len(self.findings),
            "best_speedup": max(present("speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
        }
        for name in [name for name, limit in _SEARCH_LIMITS.items() if limit.exceeded_by(row.get(name))]:
            message = f"{name} of {self.search_id} is beyond what a row of searches may hold; left out"
            self.findings.append(Finding(code="bad-value", message=message, file=job.run_path, field=name))
            row |= {name: None, "n_findings": len(self.findings)}
        return row


def _total(values: list[Any]) -> Any:
    """The sum of the values that are there, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


def _parent(record: Evaluation, kept: dict[str, _Row]) -> tuple[str, int] | tuple[None, None]:
    """Kernel id and distance of the nearest ancestor that this log still has."""
    chain = [record.parent_node_id, *(a for a in record.ancestor_node_ids if a != record.parent_node_id)]
    for distance, node in enumerate(chain, start=1):
        if node is not None and node in kept and node != record.node_id:
            return kept[node].kernel_id, distance
    return None, None


def _storable(values: list[Any]) -> list[Any]:
    """A column with texts that can be stored; nearly always all are ASCII already."""
    return [fragments.encodable(value) if isinstance(value, str) and not value.isascii() else value for value in values]
