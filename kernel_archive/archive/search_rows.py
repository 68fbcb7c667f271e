"""From the records of one search to rows: of its evaluations, the search, and its references.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it
gets ids and a parent. Recipe and log must not contradict each other, and what does not fit its
column is left out with a finding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernel_archive.archive import fragments
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known, same_gpu
from kernel_archive.ids import canonical_text, evaluation_id, kernel_id
from kernel_archive.problems import REFERENCE_IDS, family_of, get_problem, normalise_problem
from kernel_archive.program_text import artificial_patterns
from kernel_archive.readers import READERS
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, SearchFacts
from kernel_archive.schema import OUTCOMES, TABLES

if TYPE_CHECKING:
    from collections.abc import Container

    import pyarrow as pa

    from kernel_archive.archive.jobs import RunJob

#: Error texts are cut at this length; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
#: Columns that are as the record has them.
_OF_RECORD: Final = (
    *("node_id", "parent_node_id", "step", "is_root", "outcome", "n_logged", "gpu_seconds"),
    *("input_tokens", "output_tokens", "source_file", "source_line", "narrow_domain"),
    *("goal_bin", "aim"),
)
_LIMITS: Final = fragments.limits(fragments.FRAGMENT_SCHEMA)
_SEARCH_JSON: Final = ("hyperparameters", "measurement", "software")
_SEARCH_LIMITS: Final = fragments.limits(TABLES["searches"].schema) | dict.fromkeys(
    _SEARCH_JSON, fragments.MAX_CODE
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
        self._artificial: dict[tuple[str, str], bool] = {}  # by program id and reference
        self._renamed: set[str] = set()

    def rows(self, first: int) -> Rows:
        """Make all rows; ``first`` is the position of the first evaluation in the run."""
        main = self._main()
        self._report_gpus(main.gpu)
        excluded = self.job.excluded.get(self.search_id, {})
        shapes = {id(case.shape): case.shape for r in self.evaluations for case in r.cases}
        sizes = {key: len(str(shape)) for key, shape in shapes.items()}
        rows: dict[str, dict[str, Any]] = {}  # by node; refused records have no children
        kept: list[Evaluation] = []
        incomplete: list[tuple[str, Evaluation]] = []
        for record in self.evaluations:
            if self._is_refused(record, rows):
                continue
            problem, gpu = self._place_of(record, main)
            if problem is None or gpu is None:
                incomplete.append(("problem" if problem is None else "gpu", record))
                continue
            row = self._row(record, main)
            row |= {"gpu": fragments.encodable(gpu), "problem": fragments.encodable(problem)}
            reason = excluded.get(record.node_id, record.excluded)
            row["excluded"] = None if reason is None else fragments.encodable(reason)
            row["seq"] = first + len(kept)
            if not self._is_misfit(record, row, sizes):
                self._identify(record, row, problem, main)
                rows[record.node_id] = row
                kept.append(record)
        self._report_incomplete(incomplete, any_complete=bool(rows))
        for node in sorted(excluded.keys() - rows.keys()):
            what = f"node {printable(node)!r}, which {self.search_id} does not have"
            message = f"an exclude entry names {what}"
            raise self.job.loaded.error("bad-exclude", message, "exclude", node)
        if dropped := len(self.evaluations) - len(rows):
            counts = self.facts.counts
            counts["rows_dropped"] = counts.get("rows_dropped", 0) + dropped
        for record in kept:
            parent, distance = _parent(record, rows)
            rows[record.node_id] |= {"parent_kernel_id": parent, "parent_distance": distance}
        table = fragments.fragment_table([*rows.values()])
        search = self._search_row([*rows.values()], main)
        return Rows(table, search, list(self._references.values()))

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

    def _row(self, record: Evaluation, main: _Main) -> dict[str, Any]:
        """The columns of a row that follow from its record alone."""
        job, good = self.job, record.outcome == "success"
        row = {
            **{name: getattr(record, name) for name in _OF_RECORD},
            **self._program(record.code)._asdict(),
            "model": main.model if record.model is None else record.model,
            "error_type": record.error_type and record.error_type[:ERROR_TYPE_LIMIT],
            "error_text": record.error_text and record.error_text[:ERROR_TEXT_LIMIT],
            "evaluation_id": evaluation_id(search_id=self.search_id, node_id=record.node_id),
            "speedup": record.speedup if good else None,
            "cases": record.cases if good else (),
            "started_at": fragments.micros(record.started_at),
            "completed_at": fragments.micros(record.completed_at),
            "source_digest": self.digests.get(record.source_file, self.digest),
            "search_id": self.search_id,
            "builder": job.builder,
            "role": self.role,
            "source_key": job.source_key,
            "generation_method": job.source.generation_method,
        }
        for name in ("runtime_us", "reference_runtime_us"):
            row[name] = fragments.total_time(record, name) if good else None
        return {k: fragments.encodable(v) if isinstance(v, str) else v for k, v in row.items()}

    def _identify(self, record: Evaluation, row: dict[str, Any], problem: str, main: _Main) -> None:
        """Give a row its reference and its ids; ``problem`` is as the log spells it."""
        reference = record.reference_code
        if reference is None:
            same = problem == main.problem
            reference = main.reference if same else self.job.reference_text(problem)
        row["problem"] = self._own_name(row["problem"], reference)
        row["family"] = family_of(row["problem"])
        row["reference_id"] = self._reference(reference, row["problem"])
        row["kernel_id"] = kernel_id(
            problem=row["problem"],
            reference_program_id=row["reference_id"],
            gpu=row["gpu"],
            program=row["program_id"],
        )
        row["artificial"] = record.outcome == "success" and self._is_artificial(
            row["code"], row["program_id"], reference or ""
        )

    def _is_artificial(self, code: str, program: str, reference: str) -> bool:
        """Whether a program has an artificial pattern; no program has one without a reference."""
        if not reference:  # what only loses time can be told by what the reference does
            return False
        if (program, reference) not in self._artificial:
            self._artificial[program, reference] = bool(artificial_patterns(code, reference))
        return self._artificial[program, reference]

    def _refuse(self, record: Evaluation, code: str, message: str, **more: Any) -> bool:
        """Note why a record is left out; true."""
        more |= {"file": record.source_file, "line": record.source_line}
        self.findings.append(Finding(code=code, message=message, **more))
        return True

    def _is_refused(self, record: Evaluation, kept: Container[str]) -> bool:
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

    def _is_misfit(self, record: Evaluation, row: dict[str, Any], sizes: dict[int, int]) -> bool:
        """Whether a row holds more than a row may; if so, a finding says what."""
        cases = row["cases"]
        misfits = [n for n, most in _LIMITS.items() if fragments.is_beyond(row.get(n), most)]
        shapes = sum(sizes[id(case.shape)] for case in cases)
        if shapes > fragments.MAX_SHAPES or len(cases) > fragments.MAX_CASES:
            misfits.append("cases")
        if not misfits:
            return False
        message = "a value beyond what a row of evaluations may hold; the row is left out"
        value = printable(row[misfits[0]])
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

    def _search_row(self, rows: list[dict[str, Any]], main: _Main) -> dict[str, Any]:
        """The row of ``searches``: what recipe and log say, and counts over its evaluations."""
        facts, job, problem = self.facts, self.job, main.problem
        reference = main.reference
        if problem is not None:
            problem = self._own_name(problem, reference)

        def present(*names: str) -> list[Any]:
            return [row[name] for name in names for row in rows if row[name] is not None]

        outcomes = present("outcome")
        kernels = {row["kernel_id"] for row in rows if row["outcome"] == "success"}
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
            "n_kernels": len(kernels),
            "n_duplicates": sum(present("n_logged")) - len(outcomes),
            "n_findings": len(self.findings),
            "best_speedup": max(present("speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
        }
        for name, limit in _SEARCH_LIMITS.items():
            if fragments.is_beyond(row.get(name), limit):
                what = f"{name} of {self.search_id} is beyond what a row of searches may hold"
                self._warn("bad-value", f"{what}; left out", file=job.run_path, field=name)
                row |= {name: None, "n_findings": len(self.findings)}
        return row


def _parent(record: Evaluation, rows: dict[str, Any]) -> tuple[str | None, int | None]:
    """Kernel id and distance of the nearest ancestor that this log still has."""
    further = (a for a in record.ancestor_node_ids if a != record.parent_node_id)
    for distance, node in enumerate([record.parent_node_id, *further], start=1):
        if node is not None and node in rows and node != record.node_id:
            return rows[node]["kernel_id"], distance
    return None, None


def _total(values: list[Any]) -> Any:
    """Return the sum of the values, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)
