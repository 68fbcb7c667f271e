"""From the records of one search to rows: of its evaluations, the search, and its references.

A reader yields an :class:`~kernel_archive.readers.records.Evaluation` as the log has it. Here it
gets ids and a parent. Recipe and log must not contradict each other, and what does not fit its
column is left out with a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

from msgspec.structs import asdict

from kernel_archive.archive.fragments import (
    epoch_us,
    json_text,
    overall_us,
    program_columns,
    unfit_numbers,
)
from kernel_archive.archive.jobs import RunJob
from kernel_archive.errors import Finding, RecipeError, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.ids import evaluation_id, kernel_id
from kernel_archive.problems import REFERENCE_IDS, family_of, get_problem, normalise_problem
from kernel_archive.program_text import artificial_patterns
from kernel_archive.readers import READERS
from kernel_archive.readers.records import SPEEDUP_RANGE, Evaluation, SearchFacts
from kernel_archive.schema import OUTCOMES, TABLES

Row = dict[str, Any]

#: Error texts are cut at this length; a compiler can print megabytes.
ERROR_TEXT_LIMIT: Final = 4000
ERROR_TYPE_LIMIT: Final = 200
#: Columns of searches that are settings, as JSON.
_SETTINGS: Final = ("hyperparameters", "measurement", "software")
_SEARCH_COLUMNS: Final = frozenset(TABLES["searches"].schema.names)


class SearchRows:
    """Collects the records of one search in the order of the log, and makes its rows.

    Attributes:
        findings: those of the reader, then our own.
        references: rows of the reference programs, by problem and program id.
    """

    def __init__(self, job: RunJob, search_id: str) -> None:
        self.job = job
        self.search_id = search_id
        self.role = str(job.source.role)
        self.digest = job.digest
        self.evaluations: list[Evaluation] = []
        self.facts = SearchFacts()
        self.findings: list[Finding] = []
        self.references: dict[tuple[str, str], Row] = {}
        self._renamed: set[str] = set()
        self._log_spellings: dict[str, str] = {}  # canonical id of a problem -> that of the log

    def rows(self, first_seq: int) -> list[Row]:
        """Make rows of the evaluations; the first has the position ``first_seq`` in the run."""
        self._complete_facts()
        self._report_gpus()
        reasons = self.job.excluded.get(self.search_id, {})
        rows: dict[str, Row] = {}  # by node; refused records have no children
        for record in self.evaluations:
            self._complete(record)
            fault = self._fault(record, rows)
            if fault is None:
                rows[record.node_id] = self._row(record)
            else:
                self.findings.append(fault)
        self._refuse_missing_facts(rows)
        self._refuse_unmatched_excludes(rows, reasons)
        if dropped := len(self.evaluations) - len(rows):
            self.facts.counts["rows_dropped"] += dropped
        for seq, (node, row) in enumerate(rows.items(), first_seq):
            excluded = reasons.get(node, row["excluded"])
            row.update(_parent_columns(row, rows), seq=seq, excluded=excluded)
        return [*rows.values()]

    def _complete_facts(self) -> None:
        """Add to what the log states of the search what its recipe states, unless they differ."""
        source, facts = self.job.source, self.facts
        problem = self.job.problem
        if problem is not None:
            name = self.search_id.rsplit("/", 1)[-1].split("__", maxsplit=1)[0]
            problem = problem.replace("{name}", name)
        problem = self._agreed("problem", problem, facts.problem, normalise_problem)
        facts.problem = problem and self._canonical_problem(problem)
        gpu = self._agreed("gpu", source.gpu, facts.gpu, canonical_gpu)
        facts.gpu = gpu and canonical_gpu(gpu)
        facts.model = self._agreed("model", source.model, facts.model, str)
        if facts.reference_code is None:
            facts.reference_code = self._reference_text(facts.problem)

    def _agreed(
        self, field: str, stated: str | None, logged: str | None, normalise: Callable[[str], str]
    ) -> str | None:
        """Return what the log says of a field, else the recipe; refuse a contradiction."""
        if stated and logged and normalise(stated) != normalise(logged):
            raise self._contradiction(self.search_id, field, stated, logged)
        return logged if logged is not None else stated

    def _canonical_problem(self, problem: str) -> str:
        """Return the canonical id of a problem; remember how the log spells it, for files."""
        canonical, spelling = normalise_problem(problem), problem.strip()
        if canonical != spelling:
            self._log_spellings.setdefault(canonical, spelling)
        return canonical

    def _reference_text(self, problem: str | None) -> str | None:
        return self.job.reference_text(problem, self._log_spellings.get(problem or ""))

    def _contradiction(self, log_part: str, field: str, stated: str, logged: str) -> RecipeError:
        return self.job.loaded.error(
            "recipe-contradicts-log",
            f"the recipe says {printable(stated)!r}, "
            f"the log of {log_part} says {printable(logged)!r}",
            f"source[{self.job.index}].{field}",
            fix="Correct the recipe; a recipe only adds what the logs don't say",
        )

    def _complete(self, record: Evaluation) -> None:
        """Give a record what its search states; take from a failure what only a success has."""
        facts, recipe_gpu = self.facts, self.job.source.gpu
        problem, gpu = facts.problem, facts.gpu
        if record.problem is not None:
            problem = self._canonical_problem(record.problem)
        if record.gpu is not None:
            gpu = canonical_gpu(record.gpu)
            if recipe_gpu is not None and gpu != facts.gpu:
                line = f"{self.search_id}, line {record.source_line or 0}"
                raise self._contradiction(line, "gpu", recipe_gpu, record.gpu)
        record.problem, record.gpu = problem, gpu
        record.model = facts.model if record.model is None else record.model
        good = record.outcome == "success"
        for name in ("runtime_us", "reference_runtime_us"):
            setattr(record, name, overall_us(record, name) if good else None)
        if not good:
            record.speedup, record.cases = None, ()

    def _fault(self, record: Evaluation, nodes: Container[str]) -> Finding | None:
        """Say why a completed record can't be a row by itself, if it can't."""
        where: dict[str, Any] = {"file": record.source_file, "line": record.source_line}
        low, high = SPEEDUP_RANGE
        if record.outcome == "success" and not low <= (record.speedup or 0.0) <= high:
            message = f"a success without a speedup between {low:g} and {high:g} skipped"
            where |= {"field": "speedup", "value": repr(record.speedup)}
            return Finding(code="bad-speedup", message=message, **where)
        if record.excluded is None and (not record.code or record.code.isspace()):
            message = "an evaluation of an empty program skipped"
            return Finding(code="empty-program", message=message, severity="warning", **where)
        if record.node_id in nodes:
            message = f"node {printable(record.node_id)} stands twice in {self.search_id}"
            message += "; the first is kept"
            return Finding(code="duplicate-node", message=message, severity="warning", **where)
        for name in ("problem", "gpu"):
            if getattr(record, name) is None:
                message = f"neither the log nor the recipe says the {name} of {self.search_id} here"
                fix = f'Add {name} = "..." to its [[source]]'
                return Finding(code=f"no-{name}", message=f"{message}; skipped", fix=fix, **where)
        for name in unfit_numbers(record):
            message = "a value beyond what a row of evaluations may hold; the row is left out"
            where |= {"field": name, "value": printable(getattr(record, name))}
            return Finding(code="bad-value", message=message, **where)
        return None

    def _row(self, record: Evaluation) -> Row:
        """Make the row of a completed record, as far as it follows from record and search."""
        job, facts, reference = self.job, self.facts, record.reference_code
        if reference is None:
            is_own = record.problem == facts.problem
            reference = facts.reference_code if is_own else self._reference_text(record.problem)
        program = program_columns(record.code)
        problem = self._problem_in_archive(record.problem or "", reference)
        row = asdict(record) | program._asdict()
        row |= {
            "problem": problem,
            "family": family_of(problem),
            "reference_id": self._add_reference(reference, problem),
            "evaluation_id": evaluation_id(search_id=self.search_id, node_id=record.node_id),
            "artificial": False,
            "error_type": record.error_type and record.error_type[:ERROR_TYPE_LIMIT],
            "error_text": record.error_text and record.error_text[:ERROR_TEXT_LIMIT],
            "started_at": epoch_us(record.started_at),
            "completed_at": epoch_us(record.completed_at),
            "source_digest": job.source_digests.get(record.source_file, self.digest),
            "search_id": self.search_id,
            "builder": job.builder,
            "role": self.role,
            "source_key": job.source_key,
            "generation_method": job.source.generation_method,
        }
        row["kernel_id"] = kernel_id(
            problem=problem,
            reference_program_id=row["reference_id"],
            gpu=row["gpu"],
            program=program.program_id,
        )
        if record.outcome == "success" and reference:  # patterns are judged against it
            row["artificial"] = bool(artificial_patterns(program.code, reference))
        return row

    def _problem_in_archive(self, problem: str, reference: str | None) -> str:
        """Name a problem in the archive, with the builder's name before it where it isn't ours.

        A problem of a table of others that is called like one of ours is ours only with our
        reference. Reports the first renaming of each.
        """
        ours = REFERENCE_IDS.get(problem)
        if ours is None or not READERS[self.job.source.format].has_foreign_problems:
            return problem
        if reference is not None and program_columns(reference).program_id in ours:
            return problem
        name = f"{self.job.builder}.{problem}"
        if name not in self._renamed:
            self._renamed.add(name)
            has = "has another" if reference is not None else "states no"
            like = f"{problem} is called like a problem of this package"
            message = f"{like} and {has} reference: it is kept as {name}"
            where = {"file": self.job.run_path, "field": "problem"}
            self._note(code="not-our-problem", message=message, **where)
        return name

    def _add_reference(self, code: str | None, problem: str) -> str:
        """Return the id of a reference program, empty where it is not known; keep its row."""
        if code is None:
            return ""
        program, facts, problem_facts = program_columns(code), self.facts, get_problem(problem)
        if (problem, program.program_id) not in self.references:
            tolerance = facts.tolerance or {}
            timed = facts.benchmark_cases
            if timed is None:
                timed = list(problem_facts.benchmark_cases) or None
            self.references[problem, program.program_id] = {
                "reference_id": program.program_id,
                "problem": problem,
                "family": problem_facts.family,
                "title": problem_facts.title,
                "rtol": tolerance.get("rtol", problem_facts.rtol),
                "atol": tolerance.get("atol", problem_facts.atol),
                "benchmark_cases": json_text(timed),
                "correctness_cases": json_text(facts.correctness_cases),
                "code": program.code,
            }
        return program.program_id

    def _refuse_missing_facts(self, rows: dict[str, Row]) -> None:
        """Refuse a recipe without the problem or GPU that no row has, as the log doesn't say it."""
        missing = [f for f in self.findings if f.code in ("no-problem", "no-gpu")]
        if missing and not rows:
            raise RecipeError.from_findings(missing[:1])

    def _refuse_unmatched_excludes(self, rows: dict[str, Row], reasons: dict[str, str]) -> None:
        """Refuse exclude entries of nodes that have no row."""
        for node in sorted(reasons.keys() - rows.keys()):
            missing_node = f"node {printable(node)!r}, which {self.search_id} does not have"
            message = f"an exclude entry names {missing_node}"
            raise self.job.loaded.error("bad-exclude", message, "exclude", value=node)

    def _note(self, code: str, message: str, *, severity: Any = "info", **where: Any) -> None:
        self.findings.append(Finding(code=code, message=message, severity=severity, **where))

    def _report_gpus(self) -> None:
        """Report GPUs of which nobody states facts."""
        logged = [self.facts.gpu, *(record.gpu for record in self.evaluations)]
        for name in sorted({canonical_gpu(gpu) for gpu in logged if gpu is not None}):
            if is_known(name, self.job.loaded.recipe.gpu):
                continue
            shown = printable(name)
            message = f"unknown GPU {shown} in search {self.search_id}; its name is kept"
            fix = f'State what is known of it in the recipe: [gpu."{shown}"] (docs/recipes.md)'
            self._note(code="unknown-gpu", message=message, severity="warning", fix=fix)

    def search_row(self, rows: Sequence[Row]) -> Row:
        """Make the row of ``searches``: what recipe and log say, and counts over its rows."""
        facts, job = self.facts, self.job
        reference, problem = facts.reference_code, facts.problem
        if problem is not None:
            problem = self._problem_in_archive(problem, reference)
        outcomes = [row["outcome"] for row in rows]
        times = _known(rows, "started_at") + _known(rows, "completed_at")
        row = {k: v for k, v in asdict(facts).items() if k in _SEARCH_COLUMNS}
        for name in unfit_numbers(facts):
            message = f"{name} of {self.search_id} is larger than it can be; left out"
            self._note("bad-value", message, severity="error", file=job.run_path, field=name)
            row[name] = None
        for name in ("input_tokens", "output_tokens", "gpu_seconds"):
            if row[name] is None:
                row[name] = _total(_known(rows, name))
        return row | {
            **{name: json_text(getattr(facts, name)) for name in _SETTINGS},
            **{f"n_{o}": outcomes.count(o) for o in OUTCOMES if o != "success"},
            "problem": problem,
            "gpu": facts.gpu,
            "model": facts.model,
            "reference_id": reference and program_columns(reference).program_id,
            "search_id": self.search_id,
            "builder": job.builder,
            "format": job.source.format,
            "role": self.role,
            "generation_method": job.source.generation_method,
            "family": family_of(problem) if problem is not None else None,
            "n_evaluations": len(rows),
            "n_successes": outcomes.count("success"),
            "n_kernels": len({r["kernel_id"] for r in rows if r["outcome"] == "success"}),
            "n_duplicates": sum(_known(rows, "n_logged")) - len(rows),
            "best_speedup": max(_known(rows, "speedup"), default=None),
            "started_at": min(times, default=None),
            "completed_at": max(times, default=None),
            "source_path": job.run_path,
            "source_digest": self.digest,
            "n_findings": len(self.findings),
        }


def _parent_columns(row: Row, rows: dict[str, Row]) -> Row:
    """Find kernel id and distance of the nearest ancestor that this log still has."""
    further = (node for node in row["ancestor_node_ids"] if node != row["parent_node_id"])
    for distance, node in enumerate([row["parent_node_id"], *further], start=1):
        if node in rows and node != row["node_id"]:
            return {"parent_kernel_id": rows[node]["kernel_id"], "parent_distance": distance}
    return {"parent_kernel_id": None, "parent_distance": None}


def _known(rows: Sequence[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def _total(values: list[Any]) -> Any:
    """Return the sum of the values, exact for floats; ``None`` without a value."""
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)
