"""From the records of one search to rows: of its evaluations, the search, and its references.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it
gets ids and a parent. Recipe and log must not contradict each other, and what does not fit its
column is left out with a finding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kernel_archive.archive.fragments import (
    Programs,
    encodable,
    fragment_table,
    json_text,
    micros,
    too_large,
    total_time,
)
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known, same_gpu
from kernel_archive.ids import evaluation_id, kernel_id
from kernel_archive.problems import REFERENCE_IDS, family_of, get_problem, normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, SearchFacts
from kernel_archive.schema import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    import pyarrow as pa

    from kernel_archive.archive.jobs import RunDigests, RunJob

    Row = dict[str, Any]

#: Error texts are cut at this length; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
#: Columns that are as the record has them: numbers, and texts.
_NUMBERS: Final = (
    *("step", "is_root", "outcome", "n_logged", "gpu_seconds", "input_tokens", "output_tokens"),
    *("source_line", "narrow_domain", "goal_bin"),
)
_TEXTS: Final = ("node_id", "parent_node_id", "source_file", "aim")
#: Columns of searches that are as the log has them: counts and times, and settings as JSON.
_OF_SEARCH: Final = (
    *("gpu_seconds", "wall_seconds", "input_tokens", "output_tokens", "n_pending"),
    *("n_mutations_failed", "n_deferred", "n_forecasts", "finished"),
)
_SETTINGS: Final = ("hyperparameters", "measurement", "software")


class Rows(NamedTuple):
    """Rows of one search: its evaluations as a fragment, and rows of two tables without canary."""

    evaluations: pa.Table
    search: Row
    references: list[Row]


class References:
    """The reference programs that a search was timed against, each with a row of its table."""

    def __init__(self, job: RunJob, programs: Programs, findings: list[Finding]) -> None:
        self.job = job
        self.programs = programs
        self.findings = findings
        self.rows: dict[tuple[str, str], Row] = {}  # by problem and program id
        self._renamed: set[str] = set()

    def own_name(self, problem: str, reference: str | None) -> str:
        """The problem's name; one of ours in a table of others is ours only with our reference."""
        ours = REFERENCE_IDS.get(problem)
        if ours is None or not READERS[self.job.source.format].foreign:
            return problem
        if reference is not None and self.programs.text(reference).program_id in ours:
            return problem
        name = f"{self.job.builder}.{problem}"
        if name not in self._renamed:
            self._renamed.add(name)
            has = "has another" if reference is not None else "states no"
            message = (
                f"{problem} is called like a problem of this package and {has} reference: "
                f"it is kept as {name}"
            )
            place: Row = {"file": self.job.run_path, "field": "problem"}
            note = Finding(code="not-our-problem", message=message, severity="info", **place)
            self.findings.append(note)
        return name

    def add(self, code: str | None, problem: str, facts: SearchFacts) -> str:
        """Return the id of a reference program, empty where it is not known; keep its row."""
        if code is None:
            return ""
        program, known = self.programs.text(code), get_problem(problem)
        if (problem, program.program_id) not in self.rows:
            tolerance = facts.tolerance or {}
            timed = facts.benchmark_cases
            if timed is None:
                timed = list(known.benchmark_cases) or None
            self.rows[problem, program.program_id] = {
                "reference_id": program.program_id,
                "problem": problem,
                "family": known.family,
                "title": known.title,
                "rtol": tolerance.get("rtol", known.rtol),
                "atol": tolerance.get("atol", known.atol),
                "benchmark_cases": json_text(timed),
                "correctness_cases": json_text(facts.correctness_cases),
                "code": program.code,
            }
        return program.program_id


class SearchRows:
    """Collects the records of one search in the order of the log, and makes its rows."""

    def __init__(self, job: RunJob, search_id: str, digests: RunDigests) -> None:
        self.job = job
        self.role = str(job.source.role)
        self.search_id = search_id
        self.digest = digests.run
        self.digests = digests.files
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []  # those of the reader come first
        self._programs = Programs()
        self._references = References(job, self._programs, self.findings)

    def rows(self, first: int) -> Rows:
        """Make all rows; ``first`` is the position of the first evaluation in the run."""
        self.facts = _completed(self.job, self.search_id, self.facts)
        self._report_gpus()
        reasons = self.job.excluded.get(self.search_id, {})
        rows: dict[str, Row] = {}  # by node; refused records have no children
        kept: list[Evaluation] = []
        for record in self.evaluations:
            problem, gpu = self._place_of(record)
            fault = self._fault(record, problem, gpu, rows)
            if fault is None:
                row = self._row(record, str(problem), str(gpu))
                row["excluded"] = encodable(reasons.get(record.node_id, record.excluded))
                row["seq"] = first + len(kept)
                fault = _overflow(row)
            if fault is not None:
                self.findings.append(fault)
                continue
            self._identify(record, row, str(problem))
            rows[record.node_id] = row
            kept.append(record)
        self._check_kept(rows, reasons)
        for record in kept:
            rows[record.node_id] |= _parent(record, rows)
        table = fragment_table([*rows.values()])
        search = self._search_row([*rows.values()])
        return Rows(table, search, [*self._references.rows.values()])

    def _place_of(self, record: Evaluation) -> tuple[str | None, str | None]:
        """Problem and GPU of a record: its own, else those of the search."""
        problem, gpu = self.facts.problem, self.facts.gpu
        if record.problem is not None:
            problem = normalise_problem(record.problem)
        if record.gpu is not None:
            stated = self.job.source.gpu
            if stated is not None and canonical_gpu(record.gpu) != gpu:
                place = f"{self.search_id}, line {record.source_line or 0}"
                raise _contradiction(self.job, place, "gpu", stated, record.gpu)
            gpu = canonical_gpu(record.gpu)
        return problem, gpu

    def _fault(
        self, record: Evaluation, problem: str | None, gpu: str | None, nodes: Container[str]
    ) -> Finding | None:
        """Say why a record can't be a row by itself, if it can't."""
        place: Row = {"file": record.source_file, "line": record.source_line}
        low, high = SPEEDUP_RANGE
        if record.outcome == "success" and not low <= (record.speedup or 0.0) <= high:
            message = f"a success without a speedup between {low:g} and {high:g} skipped"
            place |= {"field": "speedup", "value": repr(record.speedup)}
            return Finding(code="bad-speedup", message=message, **place)
        if record.excluded is None and (not record.code or record.code.isspace()):
            message = "an evaluation of an empty program skipped"
            return Finding(code="empty-program", message=message, severity="warning", **place)
        if record.node_id in nodes:
            message = f"node {printable(record.node_id)} stands twice in {self.search_id}"
            message += "; the first is kept"
            return Finding(code="duplicate-node", message=message, severity="warning", **place)
        if problem is None or gpu is None:
            what = "problem" if problem is None else "gpu"
            message = f"neither the log nor the recipe says the {what} of {self.search_id} here"
            fix = f'Add {what} = "..." to its [[source]]'
            return Finding(code=f"no-{what}", message=f"{message}; skipped", fix=fix, **place)
        return None

    def _row(self, record: Evaluation, problem: str, gpu: str) -> Row:
        """The columns of a row that follow from its record alone."""
        job, good = self.job, record.outcome == "success"
        model = self.facts.model if record.model is None else record.model
        return {
            **{name: getattr(record, name) for name in _NUMBERS},
            **{name: encodable(getattr(record, name)) for name in _TEXTS},
            **self._programs.text(record.code)._asdict(),
            "problem": encodable(problem),
            "gpu": encodable(gpu),
            "model": encodable(model),
            "error_type": encodable(record.error_type and record.error_type[:ERROR_TYPE_LIMIT]),
            "error_text": encodable(record.error_text and record.error_text[:ERROR_TEXT_LIMIT]),
            "evaluation_id": evaluation_id(search_id=self.search_id, node_id=record.node_id),
            "speedup": record.speedup if good else None,
            "runtime_us": total_time(record, "runtime_us") if good else None,
            "reference_runtime_us": total_time(record, "reference_runtime_us") if good else None,
            "cases": record.cases if good else (),
            "started_at": micros(record.started_at),
            "completed_at": micros(record.completed_at),
            "source_digest": self.digests.get(record.source_file, self.digest),
            "search_id": self.search_id,
            "builder": job.builder,
            "role": self.role,
            "source_key": job.source_key,
            "generation_method": job.source.generation_method,
        }

    def _identify(self, record: Evaluation, row: Row, problem: str) -> None:
        """Give a row its reference and its ids; ``problem`` is as the log spells it."""
        reference = record.reference_code
        if reference is None:
            reference = self.facts.reference_code
            if problem != self.facts.problem:
                reference = self.job.reference_text(problem)
        name = self._references.own_name(row["problem"], reference)
        row["problem"], row["family"] = name, family_of(name)
        row["reference_id"] = self._references.add(reference, name, self.facts)
        row["kernel_id"] = kernel_id(
            problem=name,
            reference_program_id=row["reference_id"],
            gpu=row["gpu"],
            program=row["program_id"],
        )
        good = record.outcome == "success"
        row["artificial"] = good and self._programs.is_artificial(record.code, reference)

    def _check_kept(self, rows: dict[str, Row], reasons: dict[str, str]) -> None:
        """Count what was left out; it is an error where the recipe is to blame for it.

        Raises:
            RecipeError: no row has a problem or a GPU, or the recipe excludes a node that is none.
        """
        missing = [f for f in self.findings if f.code in ("no-problem", "no-gpu")]
        if missing and not rows:
            raise RecipeError.from_findings(missing[:1])
        for node in sorted(reasons.keys() - rows.keys()):
            what = f"node {printable(node)!r}, which {self.search_id} does not have"
            message = f"an exclude entry names {what}"
            raise self.job.loaded.error("bad-exclude", message, "exclude", node)
        if dropped := len(self.evaluations) - len(rows):
            counts = self.facts.counts
            counts["rows_dropped"] = counts.get("rows_dropped", 0) + dropped

    def _report_gpus(self) -> None:
        """Report GPUs of which nobody states facts."""
        logged = [self.facts.gpu, *(record.gpu for record in self.evaluations)]
        for name in sorted({canonical_gpu(gpu) for gpu in logged if gpu is not None}):
            stated = self.job.loaded.recipe.gpu
            if is_known(name) or any(same_gpu(name, other) for other in stated):
                continue
            shown = printable(name)
            message = f"unknown GPU {shown} in search {self.search_id}; its name is kept"
            fix = f'State what is known of it in the recipe: [gpu."{shown}"] (docs/recipes.md)'
            note = Finding(code="unknown-gpu", message=message, severity="warning", fix=fix)
            self.findings.append(note)

    def _search_row(self, rows: Sequence[Row]) -> Row:
        """The row of ``searches``: what recipe and log say, and counts over its evaluations."""
        facts, job = self.facts, self.job
        reference, problem = facts.reference_code, facts.problem
        if problem is not None:
            problem = self._references.own_name(problem, reference)
        outcomes = [row["outcome"] for row in rows]
        times = _present(rows, "started_at") + _present(rows, "completed_at")
        row = {name: getattr(facts, name) for name in _OF_SEARCH}
        for name in too_large(row):
            message = f"{name} of {self.search_id} is larger than it can be; left out"
            place: Row = {"file": job.run_path, "field": name}
            self.findings.append(Finding(code="bad-value", message=message, **place))
            row[name] = None
        for name in ("input_tokens", "output_tokens", "gpu_seconds"):
            if row[name] is None:
                row[name] = _total(_present(rows, name))
        return row | {
            **{name: json_text(getattr(facts, name)) for name in _SETTINGS},
            **{f"n_{o}": outcomes.count(o) for o in OUTCOMES if o != "success"},
            "problem": problem,
            "gpu": facts.gpu,
            "model": facts.model,
            "reference_id": reference and self._programs.text(reference).program_id,
            "search_id": self.search_id,
            "builder": job.builder,
            "format": job.source.format,
            "role": self.role,
            "generation_method": job.source.generation_method,
            "family": family_of(problem) if problem is not None else None,
            "n_evaluations": len(rows),
            "n_successes": outcomes.count("success"),
            "n_kernels": len({r["kernel_id"] for r in rows if r["outcome"] == "success"}),
            "n_duplicates": sum(_present(rows, "n_logged")) - len(rows),
            "best_speedup": max(_present(rows, "speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
            "n_findings": len(self.findings),
        }


def _completed(job: RunJob, search_id: str, facts: SearchFacts) -> SearchFacts:
    """Add to what a log states of a search what its recipe states.

    Raises:
        RecipeError: both state different things.
    """
    problem = job.source.problem
    if problem is not None:
        problem = problem.replace("{name}", search_id.rsplit("/", 1)[-1].split("__", maxsplit=1)[0])
    stated = {"problem": problem, "gpu": job.source.gpu, "model": job.source.model}
    normalise: dict[str, Callable[[str], str]] = {
        "problem": normalise_problem,
        "gpu": canonical_gpu,
        "model": str,
    }
    whole: dict[str, str | None] = {}
    for name, own in stated.items():
        logged = getattr(facts, name)
        if own and logged and normalise[name](own) != normalise[name](logged):
            raise _contradiction(job, search_id, name, own, logged)
        value = logged if logged is not None else own
        whole[name] = value and encodable(normalise[name](value))
    if facts.reference_code is None:
        whole["reference_code"] = job.reference_text(whole["problem"])
    return msgspec.structs.replace(facts, **whole)


def _contradiction(job: RunJob, place: str, field: str, stated: str, logged: str) -> RecipeError:
    message = f"the recipe says {printable(stated)!r}, the log of {place} says"
    return RecipeError.of(
        code="recipe-contradicts-log",
        message=f"{message} {printable(logged)!r}",
        file=str(job.loaded.file),
        field=f"source[{job.index}].{field}",
        fix="Correct the recipe; a recipe only adds what the logs don't say",
    )


def _overflow(row: Row) -> Finding | None:
    """Say what number of a row is larger than it may be, if one is."""
    for name in too_large(row):
        message = "a value beyond what a row of evaluations may hold; the row is left out"
        place = {"file": row["source_file"], "line": row["source_line"]}
        value = printable(row[name])
        return Finding(code="bad-value", message=message, field=name, value=value, **place)
    return None


def _parent(record: Evaluation, rows: dict[str, Row]) -> Row:
    """Kernel id and distance of the nearest ancestor that this log still has."""
    further = (a for a in record.ancestor_node_ids if a != record.parent_node_id)
    for distance, node in enumerate([record.parent_node_id, *further], start=1):
        if node is not None and node in rows and node != record.node_id:
            return {"parent_kernel_id": rows[node]["kernel_id"], "parent_distance": distance}
    return {"parent_kernel_id": None, "parent_distance": None}


def _present(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


def _total(values: list[Any]) -> Any:
    """Return the sum of the values, exact for floats; ``None`` where there are none."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)
