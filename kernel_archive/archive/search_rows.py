"""From the records of one search to rows: of its evaluations, the search, and its references.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it
gets ids and a parent. Recipe and log must not contradict each other, and what does not fit its
column is left out with a finding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kernel_archive.archive import fragments
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known, same_gpu
from kernel_archive.ids import canonical_text, evaluation_id, kernel_id
from kernel_archive.problems import REFERENCE_IDS, family_of, get_problem, normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, SearchFacts
from kernel_archive.schema import OUTCOMES, TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from kernel_archive.archive.jobs import RunJob

#: Error texts are cut at this length; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
# Columns by where their values come from: the record, the row, the row's program.
# fmt: off
_OF_RECORD: Final = (
    "node_id", "parent_node_id", "step", "is_root", "outcome", "n_logged", "gpu_seconds",
    "input_tokens", "output_tokens", "source_file", "source_line", "narrow_domain",
    "goal_bin", "aim",
)
_OF_ROW: Final = (
    "problem", "gpu", "model", "excluded", "runtime_us", "reference_runtime_us", "reference_id",
    "kernel_id",
)
_OF_PROGRAM: Final = ("program_id", "token_id", "language", "code")
# fmt: on
_LIMITS: Final = fragments.limits(fragments.FRAGMENT_SCHEMA)
_SEARCH_JSON: Final = ("hyperparameters", "measurement", "software")
_SEARCH_LIMITS: Final = fragments.limits(TABLES["searches"].schema) | dict.fromkeys(
    _SEARCH_JSON, fragments.Limit(len, fragments.MAX_CODE)
)


class Rows(NamedTuple):
    """Rows of one search: its evaluations as a fragment, and rows of two tables without canary."""

    evaluations: pa.Table
    search: dict[str, Any]
    references: list[dict[str, Any]]


class _Main(NamedTuple):
    """What recipe and log say of the whole search."""

    problem: str | None
    gpu: str | None
    model: str | None
    reference: str | None  # text


class _Row(msgspec.Struct):
    """A record on its way to a row, with the columns that take more than a field of it."""

    record: Evaluation
    program: fragments.ProgramText
    problem: str
    gpu: str
    model: str | None
    excluded: str | None
    runtime_us: float | None = None
    reference_runtime_us: float | None = None
    reference: str = ""
    reference_id: str = ""
    kernel_id: str = ""


class SearchRows:
    """Collects the records of one search in the order of the log, and makes its rows."""

    def __init__(self, job: RunJob, search_id: str, digest: str, digests: dict[str, str]) -> None:
        self.job = job
        self.role = str(job.source.role)
        self.search_id = search_id
        self.digest = digest
        self.digests = digests
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []  # those of the reader come first
        self._programs: dict[str, fragments.ProgramText] = {}  # by the text of the log
        self._references: dict[tuple[str, str], dict[str, Any]] = {}
        self._renamed: set[str] = set()

    def rows(self, first: int) -> Rows:
        """Make all rows; ``first`` is the position of the first evaluation in the run.

        Raises:
            RecipeError: the recipe contradicts the log, leaves out what the log doesn't say, or
                excludes what is not there.
        """
        main = self._main()
        self._report_gpus(main.gpu)
        excluded = self.job.excluded.get(self.search_id, {})
        shapes = {id(case.shape): case.shape for r in self.evaluations for case in r.cases}
        largest_shape = max((len(str(shape)) for shape in shapes.values()), default=0)
        kept: dict[str, _Row] = {}  # by node; refused records give nothing to their children
        incomplete: list[tuple[str, Evaluation]] = []
        for record in self.evaluations:
            if self._is_refused(record, kept):
                continue
            problem, gpu = self._place_of(record, main)
            if problem is None or gpu is None:
                incomplete.append(("problem" if problem is None else "gpu", record))
                continue
            row = _Row(
                record=record,
                program=self._program(record.code),
                problem=fragments.encodable(problem),
                gpu=fragments.encodable(gpu),
                model=main.model if record.model is None else record.model,
                excluded=excluded.get(record.node_id, record.excluded),
            )
            if record.outcome == "success":
                row.runtime_us = fragments.total_time(record, "runtime_us")
                row.reference_runtime_us = fragments.total_time(record, "reference_runtime_us")
            if self._is_misfit(row, largest_shape):
                continue
            self._identify(row, problem, main)
            kept[record.node_id] = row
        self._report_incomplete(incomplete, any_complete=bool(kept))
        for node in sorted(excluded.keys() - kept.keys()):
            what = f"node {printable(node)!r}, which {self.search_id} does not have"
            message = f"an exclude entry names {what}"
            raise self.job.loaded.error("bad-exclude", message, "exclude", node)
        if dropped := len(self.evaluations) - len(kept):
            counts = self.facts.counts
            counts["rows_dropped"] = counts.get("rows_dropped", 0) + dropped
        columns = self._columns(kept, first)
        search = self._search_row(columns, main)
        return Rows(fragments.fragment_table(columns), search, list(self._references.values()))

    def _main(self) -> _Main:
        problem = self._stated("problem", self.facts.problem)
        reference = self.facts.reference_code
        if reference is None and problem is not None:
            reference = self.job.reference_text(problem)
        gpu = self._stated("gpu", self.facts.gpu)
        return _Main(problem, gpu, self._stated("model", self.facts.model), reference)

    def _stated(self, field: str, logged: str | None) -> str | None:
        """Return a fact that recipe or log may state; both stating different things is an error."""
        normalise = {"gpu": canonical_gpu, "problem": normalise_problem}.get(field, str)
        stated: str | None = getattr(self.job.source, field)
        if stated is not None and field == "problem":
            name = self.search_id.rsplit("/", 1)[-1].split("__")[0]
            stated = stated.replace("{name}", name)
        if stated is not None and logged is not None and normalise(stated) != normalise(logged):
            raise self._contradiction(field, stated, logged)
        value = logged if logged is not None else stated
        return fragments.encodable(normalise(value)) if value is not None else None

    def _contradiction(self, field: str, stated: str, logged: str, line: int = 0) -> RecipeError:
        where = f"{self.search_id}, line {line}" if line else self.search_id
        said = f"the log of {where} says {printable(logged)!r}"
        return RecipeError.of(
            code="recipe-contradicts-log",
            message=f"the recipe says {printable(stated)!r}, {said}",
            file=str(self.job.loaded.file),
            field=f"source[{self.job.index}].{field}",
            fix="Correct the recipe; a recipe only adds what the logs don't say",
        )

    def _place_of(self, record: Evaluation, main: _Main) -> tuple[str | None, str | None]:
        """Problem and GPU of a record: its own, else those of the search."""
        problem, gpu = main.problem, main.gpu
        if record.problem is not None:
            problem = normalise_problem(record.problem)
        if record.gpu is not None:
            gpu = canonical_gpu(record.gpu)
            if None not in (main.gpu, self.job.source.gpu) and gpu != main.gpu:
                stated = str(self.job.source.gpu)
                raise self._contradiction("gpu", stated, record.gpu, record.source_line or 0)
        return problem, gpu

    def _identify(self, row: _Row, problem: str, main: _Main) -> None:
        """Give a row its reference and its ids; ``problem`` is as the log spells it."""
        reference = row.record.reference_code
        if reference is None:
            same = problem == main.problem
            reference = main.reference if same else self.job.reference_text(problem)
        row.reference = reference or ""
        row.problem = self._own_name(row.problem, reference)
        row.reference_id = self._reference(reference, row.problem)
        row.kernel_id = kernel_id(
            problem=row.problem,
            reference_program_id=row.reference_id,
            gpu=row.gpu,
            program=row.program.program_id,
        )

    def _refuse(self, record: Evaluation, code: str, message: str, **more: Any) -> bool:
        """Note why a record is left out; true."""
        more |= {"file": record.source_file, "line": record.source_line}
        self.findings.append(Finding(code=code, message=message, **more))
        return True

    def _is_refused(self, record: Evaluation, kept: dict[str, _Row]) -> bool:
        """Whether a record can't be a row by itself; if so, a finding says why."""
        low, high = SPEEDUP_RANGE
        if record.outcome == "success" and not low <= (record.speedup or 0.0) <= high:
            message = f"a success without a speedup between {low:g} and {high:g} skipped"
            place = {"field": "speedup", "value": repr(record.speedup)}
            return self._refuse(record, "bad-speedup", message, **place)
        if record.excluded is None and (not record.code or record.code.isspace()):
            message = "an evaluation of an empty program skipped"
            return self._refuse(record, "empty-program", message, severity="warning")
        if record.node_id in kept:
            node = printable(record.node_id)
            message = f"node {node} stands twice in {self.search_id}; the first is kept"
            return self._refuse(record, "duplicate-node", message, severity="warning")
        return False

    def _is_misfit(self, row: _Row, largest_shape: int) -> bool:
        """Whether a row holds more than a row may; if so, a finding says what."""
        record, cases = row.record, row.record.cases
        values: dict[str, Any] = {n: getattr(record, n) for n in _OF_RECORD if n in _LIMITS}
        values |= {name: getattr(row, name) for name in _OF_ROW} | {"code": row.program.code}
        misfits: list[str] = [
            name for name, value in values.items() if _LIMITS[name].exceeded_by(value)
        ]
        if record.outcome == "success" and not misfits:
            # Nearly always the bound is enough; only then every shape is measured.
            large = len(cases) * largest_shape > fragments.MAX_SHAPES
            large = large and sum(len(str(c.shape)) for c in cases) > fragments.MAX_SHAPES
            if large or len(cases) > fragments.MAX_CASES:
                misfits, values["cases"] = ["cases"], cases
        if not misfits:
            return False
        message = "a value beyond what a row of evaluations may hold; the row is left out"
        value = printable(values[misfits[0]])
        return self._refuse(record, "bad-value", message, field=misfits[0], value=value)

    def _report_incomplete(
        self, incomplete: list[tuple[str, Evaluation]], *, any_complete: bool
    ) -> None:
        """Report rows without problem or GPU; it is an error where no row has them."""
        for what, record in incomplete:
            code, fix = f"no-{what}", f'Add {what} = "..." to its [[source]]'
            message = f"neither the log nor the recipe says the {what} of {self.search_id}"
            if not any_complete:
                file = record.source_file
                raise RecipeError.of(code=code, message=message, file=file, fix=fix)
            self._refuse(record, code, f"{message} here; the row is left out", fix=fix)

    def _report_gpus(self, main_gpu: str | None) -> None:
        """Report GPUs of which nobody states facts."""
        named = {canonical_gpu(r.gpu) for r in self.evaluations if r.gpu is not None}
        named |= {main_gpu} if main_gpu is not None else set()
        for name in sorted(named):
            if not is_known(name) and not any(
                same_gpu(name, stated) for stated in self.job.loaded.recipe.gpu
            ):
                shown = printable(name)
                message = f"unknown GPU {shown} in search {self.search_id}; its name is kept"
                fix = f'State what is known of it in the recipe: [gpu."{shown}"] (docs/recipes.md)'
                self._warn("unknown-gpu", message, severity="warning", fix=fix)

    def _warn(self, code: str, message: str, **more: Any) -> None:
        self.findings.append(Finding(code=code, message=message, **more))

    def _own_name(self, problem: str, reference: str | None) -> str:
        """The problem's name; one of ours in a table of others is ours only with our reference."""
        ours = REFERENCE_IDS.get(problem)
        if ours is None or not READERS[self.job.source.format].foreign:
            return problem
        if reference is not None and self._program(reference).program_id in ours:
            return problem
        name = f"{self.job.builder}.{problem}"
        if name not in self._renamed:
            self._renamed.add(name)
            has = "has another" if reference is not None else "states no"
            message = f"{problem} is called like a problem of this package and {has} reference: "
            place = {"file": self.job.run_path, "field": "problem"}
            self._warn(
                "not-our-problem", f"{message}it is kept as {name}", severity="info", **place
            )
        return name

    def _program(self, logged: str) -> fragments.ProgramText:
        program = self._programs.get(logged)
        if program is None:
            text = fragments.encodable(canonical_text(logged))
            program = self._programs[logged] = fragments.program_of(text)
        return program

    def _reference(self, code: str | None, problem: str) -> str:
        """The id of a reference program, empty where it is not known; its row is kept."""
        if code is None:
            return ""
        reference = self._program(code)
        if (problem, reference.program_id) not in self._references:
            facts, known = self.facts, get_problem(problem)
            tolerance = facts.tolerance or {}
            cases = facts.benchmark_cases
            self._references[problem, reference.program_id] = {
                "reference_id": reference.program_id,
                "problem": problem,
                "family": known.family,
                "title": known.title,
                "rtol": tolerance.get("rtol", known.rtol),
                "atol": tolerance.get("atol", known.atol),
                "benchmark_cases": fragments.json_text(
                    (list(known.benchmark_cases) or None) if cases is None else cases
                ),
                "correctness_cases": fragments.json_text(facts.correctness_cases),
                "code": reference.code,
            }
        return reference.program_id

    def _columns(self, kept: dict[str, _Row], first: int) -> dict[str, Any]:
        """The columns of the kept rows; a dictionary for each row would take twice the time."""
        job, rows, n = self.job, list(kept.values()), len(kept)
        records = [row.record for row in rows]
        parents = [_parent(record, kept) for record in records]
        families = {problem: family_of(problem) for problem in {row.problem for row in rows}}
        values: dict[str, Any] = {
            **{name: [getattr(record, name) for record in records] for name in _OF_RECORD},
            **{name: [getattr(row, name) for row in rows] for name in _OF_ROW},
            "error_type": [r.error_type and r.error_type[:ERROR_TYPE_LIMIT] for r in records],
            "error_text": [r.error_text and r.error_text[:ERROR_TEXT_LIMIT] for r in records],
        }
        passed = [record.outcome == "success" for record in records]
        by_success = list(zip(rows, passed, strict=True))
        return {
            **{name: _storable(column) for name, column in values.items()},
            **{name: [getattr(row.program, name) for row in rows] for name in _OF_PROGRAM},
            "evaluation_id": [
                evaluation_id(search_id=self.search_id, node_id=record.node_id)
                for record in records
            ],
            "family": [families[row.problem] for row in rows],
            "parent_kernel_id": [kernel for kernel, _ in parents],
            "parent_distance": [distance for _, distance in parents],
            "speedup": [row.record.speedup if good else None for row, good in by_success],
            "cases": [row.record.cases if good else () for row, good in by_success],
            "started_at": [fragments.micros(record.started_at) for record in records],
            "completed_at": [fragments.micros(record.completed_at) for record in records],
            "artificial": [
                good and fragments.is_artificial(row.program, row.reference)
                for row, good in by_success
            ],
            "source_digest": [
                self.digests.get(record.source_file, self.digest) for record in records
            ],
            "search_id": [self.search_id] * n,
            "builder": [job.builder] * n,
            "role": [self.role] * n,
            "source_key": [job.source_key] * n,
            "generation_method": [job.source.generation_method] * n,
            "seq": range(first, first + n),
        }

    def _search_row(self, columns: dict[str, Any], main: _Main) -> dict[str, Any]:
        """The row of ``searches``: what recipe and log say, and counts over its evaluations."""
        facts, job, problem = self.facts, self.job, main.problem
        reference = main.reference
        if problem is not None:
            problem = self._own_name(problem, reference)

        def present(*names: str) -> list[Any]:
            return [value for name in names for value in columns[name] if value is not None]

        outcomes = columns["outcome"]
        kernels = zip(columns["kernel_id"], outcomes, strict=True)
        times = present("started_at", "completed_at")
        stated = {
            n: getattr(facts, n) for n in SearchFacts.__struct_fields__ if n in _SEARCH_LIMITS
        }
        row = stated | {
            **{name: fragments.json_text(stated[name]) for name in _SEARCH_JSON},
            **{
                name: _total(present(name))
                for name in ("input_tokens", "output_tokens", "gpu_seconds")
                if stated[name] is None
            },
            **{f"n_{o}": outcomes.count(o) for o in OUTCOMES if o != "success"},
            "problem": problem,
            "gpu": main.gpu,
            "model": main.model,
            "reference_id": reference and self._program(reference).program_id,
            "search_id": self.search_id,
            "builder": job.builder,
            "format": job.source.format,
            "role": self.role,
            "generation_method": job.source.generation_method,
            "family": family_of(problem) if problem is not None else None,
            "finished": facts.finished,
            "n_evaluations": len(outcomes),
            "n_successes": outcomes.count("success"),
            "n_kernels": len({kernel for kernel, outcome in kernels if outcome == "success"}),
            "n_duplicates": sum(columns["n_logged"]) - len(outcomes),
            "n_findings": len(self.findings),
            "best_speedup": max(present("speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
        }
        for name, limit in _SEARCH_LIMITS.items():
            if limit.exceeded_by(row.get(name)):
                what = f"{name} of {self.search_id} is beyond what a row of searches may hold"
                self._warn("bad-value", f"{what}; left out", file=job.run_path, field=name)
                row |= {name: None, "n_findings": len(self.findings)}
        return row


def _parent(record: Evaluation, kept: dict[str, _Row]) -> tuple[str, int] | tuple[None, None]:
    """Kernel id and distance of the nearest ancestor that this log still has."""
    further = (a for a in record.ancestor_node_ids if a != record.parent_node_id)
    for distance, node in enumerate([record.parent_node_id, *further], start=1):
        if node is not None and node in kept and node != record.node_id:
            return kept[node].kernel_id, distance
    return None, None


def _storable(values: list[Any]) -> list[Any]:
    """A column with texts that can be stored; nearly always all are ASCII already."""
    return [
        fragments.encodable(value) if isinstance(value, str) and not value.isascii() else value
        for value in values
    ]


def _total(values: list[Any]) -> Any:
    """Return the sum of the values, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)
