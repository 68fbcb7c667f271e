"""Reading the log of one search: what every format does the same.

The reader of a format is a :class:`LogReader` that says what one row means (``add_row``), or how a
whole file is taken apart (``read``). :func:`reader_spec` makes a :class:`ReaderSpec` of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar, Final

from kernel_archive.errors import Finding, printable
from kernel_archive.problems import PROBLEMS
from kernel_archive.readers.events import Feedback, LoggedEvaluation
from kernel_archive.readers.files import ReaderSpec, RunFiles
from kernel_archive.readers.records import EVALUATION_FAILED, Case, Evaluation, Record, SearchFacts
from kernel_archive.readers.run_facts import add_durations, add_facts
from kernel_archive.readers.salvage import FindingLog, RowKind, Salvage
from kernel_archive.readers.values import positive
from kernel_archive.toml_files import toml_beside

#: Format -> what it is; ``formats.toml`` says what each field means.
FORMATS: Final[dict[str, dict[str, Any]]] = toml_beside(__file__, "formats.toml")
#: Outcome -> field of the feedback that names the error, and those that say more, the best first.
_ERROR_FIELDS: Final = {
    "success": ("", ""),
    "compile_failed": ("compilation_error_name", "compilation_error"),
    "runtime_error": ("runtime_error_name", "runtime_error traceback runtime_error_traceback"),
    "incorrect": ("", "error_message correctness_issue"),
    "infrastructure_failure": ("", "reason"),
}
#: Faults of a whole file, which say more than that it is of another format.
_FILE_FAULTS: Final = ("unreadable", "line-too-long", "file-too-large", "bad-utf8", "python-pickle")


def feedback_of(evaluation: LoggedEvaluation | None) -> Feedback | None:
    """Return the harness's feedback in a logged evaluation; ``None`` for a forecast."""
    if evaluation is None:
        return None
    return (evaluation.observation.inner or evaluation.observation).feedback


def _from_ns(time: object) -> float | None:
    """Convert a time in nanoseconds to microseconds."""
    number = positive(time)
    return None if number is None else number / 1000.0


class LogReader:
    """One search, as far as its log was read; ``search`` names it where one file holds several."""

    #: What a line of the log may be, for formats with a row a line.
    row_kind: ClassVar[RowKind[Any]]

    def __init__(
        self, run: RunFiles, path: Path, findings: FindingLog, *, search: str | None = None
    ) -> None:
        self.run = run
        self.file = run.name(path)  # for provenance and findings
        self.findings = findings
        self.facts = SearchFacts(search=search)
        self.evaluations: dict[str, Evaluation] = {}  # by node id, in the order of the log
        self._shapes: dict[str, dict[str, Any]] = {}  # the one dictionary of each shape

    def add_row(self, line: int, row: Any) -> None:
        """Add one row of the log; formats that are read whole have none."""
        raise NotImplementedError

    def complete_facts(self) -> None:
        """Complete facts and times from the files beside, after the last row."""
        facts, evaluations = self.facts, list(self.evaluations.values())
        facts.problem = facts.problem or self._problem()
        add_facts(self.run, facts, self.findings)
        add_durations(self.run, evaluations, facts, self.findings)
        facts.counts = Counter({name: n for name, n in sorted(facts.counts.items()) if n})

    def add_tokens(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """Add the tokens of one call of a model to those of the search."""
        self.facts.input_tokens = (self.facts.input_tokens or 0) + (input_tokens or 0)
        self.facts.output_tokens = (self.facts.output_tokens or 0) + (output_tokens or 0)

    def records(self) -> Iterator[Record]:
        """Yield evaluations, findings and facts."""
        yield from self.evaluations.values()
        yield from self.findings
        yield self.facts

    def read(self, path: Path) -> bool:
        """Read the log; return whether anything in it is of the format."""
        return self.read_lines(self.run.lines(path))

    def read_lines(self, lines: Iterable[tuple[int, bytes] | Finding]) -> bool:
        """Read the lines of a log; return whether a row of the format is among them."""
        any_read = False
        salvage = Salvage(self.row_kind, self.file, self.findings, self.facts.counts)
        for line, row in salvage.rows(lines):
            any_read = True
            self.add_row(line, row)
        return any_read

    def report(self, severity: Any, code: str, message: str, **where: Any) -> None:
        """Report a fault in the log, or what was salvaged or left out."""
        self.findings.report(severity, code, message, file=self.file, **where)

    error = partialmethod(report, "error")
    warning = partialmethod(report, "warning")

    def new_evaluation(self, **fields: Any) -> Evaluation:
        """Make an evaluation of this log that has no verdict yet."""
        return Evaluation(source_file=self.file, search=self.facts.search, **fields)

    def add(self, record: Evaluation) -> None:
        """Add an evaluation; of several of one node the last verdict of a harness counts."""
        node, earlier = record.node_id, self.evaluations.get(record.node_id)
        if earlier is None:
            self.evaluations[node] = record
            return
        self.facts.counts["results_doubled"] += 1
        message = f"a result of node {printable(node)} again; the last of a harness counts"
        before = earlier.source_line
        fix = None if before is None else f"the earlier one is on line {before}"
        self.warning("doubled-result", message, line=record.source_line, value=node, fix=fix)
        last = earlier if record.error_type == EVALUATION_FAILED else record
        last.n_logged = earlier.n_logged + 1
        self.evaluations[node] = last

    def add_result(
        self,
        record: Evaluation,
        feedback: Feedback | None,
        *,
        line: int | None = None,
        field: str = "feedback.kind",
    ) -> None:
        """Add an evaluation with what its harness said; without a known outcome it is left out."""
        outcome: Any = feedback.kind if feedback is not None else None
        if feedback is None or outcome not in _ERROR_FIELDS:
            self.facts.counts["unknown_outcomes"] += 1
            message = "the result has no outcome that these logs know; it is left out"
            self.error("unknown-outcome", message, line=line, field=field, value=outcome)
            return
        record.source_line, record.outcome = line, outcome
        if outcome == "success":
            self._set_success(record, feedback, field)
        else:
            record.error_type, record.error_text = (
                next(filter(None, (getattr(feedback, name) for name in names.split())), None)
                for names in _ERROR_FIELDS[outcome]
            )
        self.add(record)

    def _set_success(self, record: Evaluation, feedback: Feedback, field: str) -> None:
        """Set speedup and times of a program that passed."""
        logged = feedback.aggregated_speedup
        if logged is None:
            logged = feedback.speedup
        record.cases = tuple(map(self._case, feedback.per_case_speedups or ()))
        record.speedup = positive(logged)
        if record.speedup is None:
            # Non-finite numbers are written as null: no measurement, not the program's fault.
            self.facts.counts["successes_without_speedup"] += 1
            line = record.source_line
            message = f"success without a finite speedup above 0: {logged}"
            self.warning("null-score", message, line=line, field=field if line is None else None)
            record.outcome, record.error_type = "infrastructure_failure", "missing_speedup"
            record.error_text = "logged as a success without a finite speedup above 0"
            return
        record.narrow_domain = bool(feedback.narrow_domain)
        if not record.cases:  # KernelBench's fields, misnamed: they hold milliseconds
            runtime, reference = positive(feedback.runtime_us), positive(feedback.ref_runtime_us)
            record.runtime_us = None if runtime is None else runtime * 1000.0
            record.reference_runtime_us = None if reference is None else reference * 1000.0

    def _case(self, fields: dict[str, Any]) -> Case:
        """Make a timed case of its fields; those without a meaning of their own are the shape."""
        speedup = positive(fields.pop("speedup", None))
        runtime, reference = fields.pop("runtime_ns", None), fields.pop("ref_runtime_ns", None)
        fields.pop("seed", None)  # the random seed of the inputs is no shape
        key = str(fields)
        if key not in self._shapes:
            self._shapes[key] = {
                name: size for name, size in fields.items() if not isinstance(size, list | dict)
            }
        return Case(self._shapes[key], speedup, _from_ns(runtime), _from_ns(reference))

    def _problem(self) -> str | None:
        """Return the one problem whose cases have the shape fields read, if it is only one."""
        shapes = {frozenset(shape) for shape in self._shapes.values() if shape}
        names = [p.name for p in PROBLEMS.values() if frozenset(p.shape_fields) in shapes]
        return names[0] if len(names) == len(shapes) == 1 else None


def reader_spec(name: str, reader_class: type[LogReader]) -> ReaderSpec:
    """Make the spec of a format with one log per search, of its facts in ``formats.toml``."""
    facts = FORMATS[name]
    log_names: list[str] = facts.get("log", [])

    def records(run: RunFiles) -> Iterator[Record]:
        """Yield the evaluations of one search, what was wrong, and its facts."""
        path = run.log(*log_names)
        findings = FindingLog()
        if path is not None:
            reader = reader_class(run, path, findings)
            if reader.read(path):
                reader.complete_facts()
                yield from reader.records()
                return
        faults = [finding for finding in findings if finding.code in _FILE_FAULTS]
        if path is not None and run.head(path, 1) == b"{":  # begun as an object, and broken off
            damage = {("bad-json", None), ("truncated-line", 1)}
            faults += [finding for finding in findings if (finding.code, finding.line) in damage]
        yield from faults
        if all(finding.severity != "error" for finding in faults):
            message = f"no whole record of the format {name!r} can be read of it"
            yield Finding(
                code="no-records" if faults else "wrong-format",
                message=message if path is not None else "there is no log of the format here",
                fix=f"{name} expects {facts['expects']}",
                file=run.name(path or run.path),
            )

    stated = {key: facts[key] for key in ("title", "expects", "version")}
    files = (*log_names, *facts.get("beside", []))
    return ReaderSpec(name=name, files=files, records=records, **stated)
