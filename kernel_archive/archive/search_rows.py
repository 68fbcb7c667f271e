"""From the records of one search to rows: of its evaluations, of the search, and of the references it names.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it gets its ids and its
parent, recipe and log are held against each other, and what does not fit its column is left out with a finding.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.ids import canonical_json, canonical_text, evaluation_id, kernel_id, program_id, token_id
from kernel_archive.problems import family_of, normalise_problem, problem_facts
from kernel_archive.program_text import artificial_patterns, language_of
from kernel_archive.readers.records import SPEEDUP_RANGE, Case, Evaluation, SearchFacts
from kernel_archive.schema import CASE, OUTCOMES, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kernel_archive.archive.jobs import Job

__all__ = ["FRAGMENT_SCHEMA", "Rows", "SearchRows", "evaluation_table"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Error texts longer than this are cut; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
#: What one row may hold. Logs are untrusted: a row beyond these bounds is left out, so that it can't fill the memory of
#: everything behind it. Programs that searches write stay below 200,000 characters, and problems have up to 24 cases.
MAX_CODE: Final = 4_000_000
MAX_NAME: Final = 4000
MAX_CASES: Final = 1000
MAX_SHAPES: Final = 100_000
#: Other quantities (microseconds, seconds) are below this, so that their sums stay finite.
MAX_QUANTITY: Final = 1e18

#: What a table has beyond single evaluations: it is made when fragments are merged.
_MERGED: Final = frozenset(
    {"bin", "bin_scheme", "canary", "flags", "n_evaluations", "n_measurements", "speedup_max", "speedup_min"}
)
#: Columns of a staged fragment: all that the tables say of an evaluation and its program, and what only merging needs.
FRAGMENT_SCHEMA: Final = pa.schema(
    [
        *{
            field.name: field
            for table in ("failures", "kernels", "evaluations")
            for field in TABLES[table].schema
            if field.name not in _MERGED
        }.values(),
        pa.field("seq", pa.int64(), nullable=False),  # position in the run
        pa.field("role", pa.string(), nullable=False),
        pa.field("source_key", pa.string(), nullable=False),
        pa.field("artificial", pa.bool_(), nullable=False),
        pa.field("narrow_domain", pa.bool_(), nullable=False),
    ]
)
#: Columns that are taken from the record as it is (some are changed on the way).
_LOGGED: Final = tuple(name for name in Evaluation.__struct_fields__ if name in FRAGMENT_SCHEMA.names)
_logged: Final = attrgetter(*_LOGGED)
_TEXTS: Final = tuple(f.name for f in FRAGMENT_SCHEMA if f.name in _LOGGED and pa.types.is_string(f.type))


class Rows(NamedTuple):
    """Rows of one search: of ``evaluations`` (fragment columns), ``searches`` and ``references``, without canary."""

    evaluations: list[dict[str, Any]]
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


def _encodable(text: str) -> str:
    """Text that Arrow can hold: lone surrogates become replacement marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _json(value: Any) -> str | None:
    """Canonical JSON of a value, ``None`` for ``None``; lone surrogates in it become replacement marks."""
    if value is None:
        return None
    try:
        return canonical_json(value).decode()
    except UnicodeEncodeError:
        return canonical_json(json.loads(_encodable(json.dumps(value, ensure_ascii=False)))).decode()


def _whole(stated: float | None, cases: Iterable[float | None]) -> float | None:
    """The time that the log states for the whole program, else the geometric mean over its cases if all have one."""
    if stated is not None:
        return stated
    logs = []
    for value in cases:
        if value is None or not value > 0 or not math.isfinite(value):
            return None
        logs.append(math.log(value))
    # Rounded to a picosecond: logarithms may differ in the last digit between machines, digests may not.
    return round(math.exp(math.fsum(logs) / len(logs)), 6) if logs else None


class _Limit(NamedTuple):
    """What a number's size or a text's length, as the function says it, may be."""

    size: Callable[[Any], float]
    most: float


def _limits(schema: pa.Schema) -> dict[str, _Limit]:
    """The limits of every number and text of a schema."""
    limits: dict[str, _Limit] = {}
    for field in schema:
        if pa.types.is_integer(field.type):
            limits[field.name] = _Limit(abs, 2 ** (field.type.bit_width - 1) - 1)
        elif pa.types.is_floating(field.type):
            limits[field.name] = _Limit(abs, MAX_QUANTITY)
        elif pa.types.is_string(field.type):
            limits[field.name] = _Limit(len, MAX_CODE if field.name == "code" else MAX_NAME)
    return limits


_FRAGMENT_LIMITS: Final = {name: limit for name, limit in _limits(FRAGMENT_SCHEMA).items() if name in _LOGGED}
_SEARCH_JSON: Final = ("hyperparameters", "measurement", "software")
_SEARCH_LIMITS: Final = _limits(TABLES["searches"].schema) | dict.fromkeys(_SEARCH_JSON, _Limit(len, MAX_CODE))


def _beyond(row: dict[str, Any], limits: dict[str, _Limit]) -> list[str]:
    """The columns of a row whose value is beyond its limit, or no number."""
    return [
        name
        for name, (size, most) in limits.items()
        if (value := row.get(name)) is not None and not size(value) <= most
    ]


#: What follows from a program's text: it is looked at once in a process, however many searches have it. A key is the
#: program's id and its reference's. Begun again when full, so that hostile logs can't fill the memory with it.
_JUDGED: Final[dict[tuple[str, str], tuple[str, str, bool]]] = {}
_MAX_JUDGED: Final = 50_000


def _judged(code: str, known: str, reference: str, reference_id: str) -> tuple[str, str, bool]:
    """Token id, language, and whether it has an artificial pattern: of a program of this id, beside a reference."""
    verdict = _JUDGED.get((known, reference_id))
    if verdict is None:
        verdict = token_id(code), language_of(code), bool(artificial_patterns(code, reference))
        if len(_JUDGED) >= _MAX_JUDGED:
            _JUDGED.clear()
        _JUDGED[known, reference_id] = verdict
    return verdict


class _Program(NamedTuple):
    """A program's columns: text, and what follows from it."""

    code: str
    program_id: str
    token_id: str
    language: str
    artificial: bool


class SearchRows:
    """Collects the records of one search and makes its rows.

    Attributes:
        evaluations: the records, in the order of the log.
        facts: what the log says of the whole search.
        findings: faults, those of the reader first.
    """

    def __init__(self, job: Job, search_id: str, digest: str, digests: dict[str, str]) -> None:
        """The run, the search's id, the digest of the run, and the digest of each of its files."""
        self.job = job
        self.search_id = search_id
        self.digest = digest
        self.digests = digests
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []
        self._programs: dict[str, _Program] = {}  # by the text of the log
        self._reference_id: str | None = None  # of the text that the log itself has
        self._references: dict[tuple[str, str], dict[str, Any]] = {}
        self._shape_sizes: dict[int, int] = {}

    def _settled(self, field: str, logged: str | None) -> str | None:
        """A fact that recipe or log may state; both stating different things is an error."""
        normalise = {"gpu": canonical_gpu, "problem": normalise_problem}.get(field, str)
        said: str | None = getattr(self.job.source, field)
        if said is not None and field == "problem" and "{name}" in said:
            said = said.replace("{name}", self.search_id.rsplit("/", 1)[-1].split("__")[0])
        if said is not None and logged is not None and normalise(said) != normalise(logged):
            raise RecipeError.of(
                code="recipe-contradicts-log",
                message=f"the recipe says {printable(said)!r}, the log of {self.search_id} says {printable(logged)!r}",
                file=str(self.job.recipe_file),
                field=f"source[{self.job.source_index}].{field}",
                fix="Correct the recipe; a recipe only adds what the logs don't say",
            )
        value = logged if logged is not None else said
        return _encodable(normalise(value)) if value is not None else None

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
        if gpu is not None and not is_known(gpu):
            message = f"GPU {printable(gpu)} of {self.search_id} is not known; kept as it is"
            self.findings.append(Finding(code="unknown-gpu", severity="warning", message=message))
        excluded = job.excluded.get(self.search_id, {})
        # A node's row with its record: refused records have no place here, whatever node they name.
        kept: dict[str, tuple[Evaluation, dict[str, Any]]] = {}
        incomplete: list[tuple[str, Evaluation]] = []
        for record in self.evaluations:
            if self._refused(record, kept):
                continue
            row_problem = normalise_problem(record.problem) if record.problem is not None else problem
            row_gpu = canonical_gpu(record.gpu) if record.gpu is not None else gpu
            if row_problem is None or row_gpu is None:
                incomplete.append(("problem" if row_problem is None else "gpu", record))
                continue
            row = self._row(record, row_problem, row_gpu)
            reference = record.reference_code
            if reference is None:
                reference = main_reference if row_problem == problem else job.reference_text(row_problem)
            row |= {
                "model": model if row["model"] is None else row["model"],
                "excluded": excluded.get(record.node_id, record.excluded),
            }
            cases = row["cases"]
            misfits = _beyond(row, _FRAGMENT_LIMITS)
            if len(cases) > MAX_CASES or sum(self._shape_size(case.shape) for case in cases) > MAX_SHAPES:
                misfits.append("cases")
            if misfits:
                message = "a value beyond what a row of evaluations may hold; the row is left out"
                self._refuse(record, "bad-value", message, field=misfits[0], value=printable(row[misfits[0]]))
                continue
            row["reference_id"] = self._reference(reference, row["problem"])
            row["kernel_id"] = kernel_id(
                problem=row["problem"],
                reference_program_id=row["reference_id"],
                gpu=row["gpu"],
                program=row["program_id"],
            )
            row["seq"] = first + len(kept)
            kept[record.node_id] = record, row
        self._report_incomplete(incomplete, any_complete=bool(kept))
        for record, row in kept.values():
            row["parent_kernel_id"], row["parent_distance"] = _parent(record, kept)
        for node in sorted(excluded.keys() - kept.keys()):
            raise job.bad_exclude(f"node {printable(node)!r}, which {self.search_id} does not have", node)
        if len(kept) < len(self.evaluations):
            dropped = len(self.evaluations) - len(kept)
            facts.counts["rows_dropped"] = facts.counts.get("rows_dropped", 0) + dropped
        rows = [row for _, row in kept.values()]
        reference_id = self._program(main_reference).program_id if main_reference is not None else None
        search = self._search_row(rows, problem=problem, gpu=gpu, model=model, reference_id=reference_id)
        return Rows(rows, search, list(self._references.values()))

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

    def _row(self, record: Evaluation, problem: str, gpu: str) -> dict[str, Any]:
        """The row of one evaluation, all but its reference, its kernel and its parent."""
        job = self.job
        row: dict[str, Any] = dict(zip(_LOGGED, _logged(record), strict=True))
        if record.outcome == "success":
            row["runtime_us"] = _whole(record.runtime_us, (c.runtime_us for c in record.cases))
            row["reference_runtime_us"] = _whole(
                record.reference_runtime_us, (c.reference_runtime_us for c in record.cases)
            )
        else:
            row |= {"speedup": None, "runtime_us": None, "reference_runtime_us": None, "cases": ()}
        program = self._program(record.code)
        row |= {
            "code": program.code,
            "program_id": program.program_id,
            "token_id": program.token_id,
            "language": program.language,
            "artificial": program.artificial,
            "evaluation_id": evaluation_id(search_id=self.search_id, node_id=record.node_id),
            "search_id": self.search_id,
            "builder": job.builder,
            "role": job.source.role,
            "source_key": job.source_key,
            "generation_method": job.source.generation_method,
            "problem": problem,
            "family": family_of(problem),
            "gpu": gpu,
            "error_type": None if record.error_type is None else record.error_type[:ERROR_TYPE_LIMIT],
            "error_text": None if record.error_text is None else record.error_text[:ERROR_TEXT_LIMIT],
            "started_at": _micros(record.started_at),
            "completed_at": _micros(record.completed_at),
            "source_digest": self.digests.get(record.source_file, self.digest),
        }
        for name in _TEXTS:
            if (text := row[name]) is not None and not text.isascii():
                row[name] = _encodable(text)
        return row

    def _program(self, logged: str) -> _Program:
        program = self._programs.get(logged)
        if program is None:
            code = _encodable(canonical_text(logged))
            known = program_id(code)
            reference = self.facts.reference_code or ""
            if self._reference_id is None:
                self._reference_id = program_id(reference)
            program = _Program(code, known, *_judged(code, known, reference, self._reference_id))
            self._programs[logged] = program
        return program

    def _shape_size(self, shape: dict[str, Any]) -> int:
        """How long a case's shape is as a text. Most cases share the dictionary; it lives as long as its record."""
        size = self._shape_sizes.get(id(shape))
        if size is None:
            size = self._shape_sizes[id(shape)] = len(str(shape))
        return size

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
                "benchmark_cases": _json(cases),
                "correctness_cases": _json(facts.correctness_cases),
                "code": reference.code,
            }
        return reference.program_id

    def _search_row(self, rows: list[dict[str, Any]], **settled: str | None) -> dict[str, Any]:
        """The row of ``searches``: what recipe and log say of the search, and counts over its evaluations."""
        facts, job = self.facts, self.job

        def present(*names: str) -> list[Any]:
            return [row[name] for row in rows for name in names if row[name] is not None]

        outcomes = [row["outcome"] for row in rows]
        times = present("started_at", "completed_at")
        row = {name: getattr(facts, name) for name in SearchFacts.__struct_fields__ if name in _SEARCH_LIMITS}
        row |= settled
        row |= {name: _json(row[name]) for name in _SEARCH_JSON}
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
            "role": job.source.role,
            "generation_method": job.source.generation_method,
            "family": family_of(row["problem"]) if row["problem"] is not None else None,
            "finished": facts.finished,
            "n_evaluations": len(rows),
            "n_successes": outcomes.count("success"),
            "n_kernels": len({row["kernel_id"] for row in rows if row["outcome"] == "success"}),
            "n_duplicates": sum(row["n_logged"] - 1 for row in rows),
            "n_findings": len(self.findings),
            "best_speedup": max(present("speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
        }
        for name in _beyond(row, _SEARCH_LIMITS):
            message = f"{name} of {self.search_id} is beyond what a row of searches may hold; left out"
            self.findings.append(Finding(code="bad-value", message=message, file=job.run_path, field=name))
            row |= {name: None, "n_findings": len(self.findings)}
        return row


def _total(values: list[Any]) -> Any:
    """The sum of the values that are there, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


def _parent(
    record: Evaluation, kept: dict[str, tuple[Evaluation, dict[str, Any]]]
) -> tuple[str, int] | tuple[None, None]:
    """Kernel id and distance of the nearest ancestor that this log still has."""
    chain = [record.parent_node_id, *(a for a in record.ancestor_node_ids if a != record.parent_node_id)]
    for distance, node in enumerate(chain, start=1):
        if node is not None and node in kept and node != record.node_id:
            return kept[node][1]["kernel_id"], distance
    return None, None


def evaluation_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The rows as a fragment holds them."""
    arrays = [
        _case_array([row["cases"] for row in rows]) if name == "cases" else pa.array([row[name] for row in rows], kind)
        for name, kind in zip(FRAGMENT_SCHEMA.names, FRAGMENT_SCHEMA.types, strict=True)
    ]
    return pa.table(arrays, schema=FRAGMENT_SCHEMA)


def _case_array(rows: Sequence[Sequence[Case]]) -> pa.Array:
    """The nested column, put together from flat ones: making it from dictionaries takes most of the time of staging."""
    offsets = [0]
    flat: list[Case] = []
    shapes: dict[int, str | None] = {}  # most cases share the dictionary of their shape
    for row in rows:
        flat.extend(row)
        offsets.append(len(flat))
    for case in flat:
        if id(case.shape) not in shapes:
            shapes[id(case.shape)] = _json(case.shape or None)
    columns = [
        pa.array([shapes[id(c.shape)] for c in flat], pa.string()),
        *(pa.array([getattr(c, name) for c in flat], pa.float64()) for name in CASE.names[1:]),
    ]
    struct = pa.StructArray.from_arrays(columns, fields=list(CASE))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), struct)
