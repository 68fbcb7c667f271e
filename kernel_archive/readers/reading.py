"""One search while it is read: what every format does the same.

The reader of a format is a :class:`Reading` that says what one row means (``take``), or how a whole file is taken apart;
:func:`log_format` makes a reader of it for a format that has one log, a row a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from kernel_archive.problems import PROBLEMS
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.records import Case, Evaluation, SearchFacts
from kernel_archive.readers.salvage import Report, Salvage
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.values import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.errors import Finding
    from kernel_archive.readers.events import Feedback, LoggedEvaluation
    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record
    from kernel_archive.readers.salvage import RowKind

#: ``error_type`` of an evaluation that its driver gave up: the log has no verdict of a harness, so its outcome is
#: ``infrastructure_failure``.
EVALUATION_FAILED: Final = "evaluation_failed"
#: Timed cases of an evaluation, fields of the shape of one, and characters of such a field.
MAX_CASES: Final = 1000
MAX_SIZES: Final = 64
MAX_SIZE: Final = 100
_US_PER_MS: Final = 1000.0
_NS_PER_US: Final = 1000.0
#: Outcome of a failure -> fields of the feedback that name it, and that describe it; the first that is set counts.
_FAILURES: Final = {
    "compile_failed": (("compilation_error_name",), ("compilation_error",)),
    "runtime_error": (("runtime_error_name",), ("runtime_error", "traceback", "runtime_error_traceback")),
    "incorrect": ((), ("error_message", "correctness_issue")),
    "infrastructure_failure": ((), ("reason",)),
}
_BY_SHAPE: Final[dict[frozenset[str], list[str]]] = {}
for _problem in PROBLEMS.values():
    _BY_SHAPE.setdefault(frozenset(_problem.shape_fields), []).append(_problem.name)


def feedback_of(evaluation: LoggedEvaluation | None) -> Feedback | None:
    """The harness's feedback in a logged evaluation; ``None`` for a forecast, and where there is none."""
    observation = evaluation.observation if evaluation is not None else None
    if observation is not None and observation.inner is not None:
        observation = observation.inner
    return observation.feedback if observation is not None else None


def _from_ms(value: object) -> float | None:
    """Microseconds of a time in milliseconds."""
    number = positive(value)
    return None if number is None else number * _US_PER_MS


def _from_ns(value: object) -> float | None:
    """Microseconds of a time in nanoseconds."""
    number = positive(value)
    return None if number is None else number / _NS_PER_US


class Reading:
    """What the log of one search says, as far as it was read; ``search`` is its name, where one file holds several."""

    #: What a line of the log may be, for formats with a row a line.
    kind: ClassVar[RowKind[Any]]

    def __init__(self, run: RunFiles, path: Path, report: Report, *, search: str | None = None) -> None:
        self.run = run
        self.file = run.name(path)  # for provenance and findings
        self.report = report
        self.facts = SearchFacts(search=search)
        self.found: dict[str, Evaluation] = {}  # by node id, in the order of the log
        self._shapes: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
        self._shape_fields: set[frozenset[str]] = set()

    def take(self, line: int, row: Any) -> None:
        """Take in one row. Formats whose files are taken apart as a whole have none, and are never asked."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the facts, after the last row."""

    def evaluations(self) -> list[Evaluation]:
        """Every evaluation, the root first where the log says which it is."""
        return list(self.found.values())

    def records(self) -> Iterator[Record]:
        """All that was read: evaluations, what was wrong, and the facts."""
        yield from self.evaluations()
        yield from self.report
        yield self.facts

    def read(self, path: Path) -> bool:
        """Take in the log; whether it is one of the format. A format that is read whole states how."""
        return self.read_lines(self.run.lines(path))

    def read_lines(self, lines: Iterable[tuple[int, bytes] | Finding]) -> bool:
        """Take in every line of a log; whether there was a row of the format in it."""
        salvage = Salvage(self.kind, self.file, self.report, self.facts.counts)
        for line, row in salvage.rows(lines):
            self.take(line, row)
        return salvage.n_seen > 0

    # -- findings and counts

    def error(self, code: str, message: str, **where: Any) -> None:
        """Report a fault in the log."""
        self.report.error(code, message, file=self.file, **where)

    def warning(self, code: str, message: str, **where: Any) -> None:
        """Report something that was salvaged or left out."""
        self.report.warning(code, message, file=self.file, **where)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a count of the search."""
        self.facts.counts[name] = self.facts.counts.get(name, 0) + n

    # -- evaluations

    def keep_last(self, record: Evaluation | None, what: str, code: str = "doubled-result", **where: Any) -> None:
        """Keep an evaluation, if it is one, in the place of an earlier one of its node, with a warning where there is one."""
        if record is None:
            return
        earlier = self.found.get(record.node_id)
        if earlier is not None:
            record.n_logged = earlier.n_logged + 1
            self.warning(code, f"{what}; the last one counts", **{"line": record.source_line, **where})
        self.found[record.node_id] = record

    def evaluation(
        self, feedback: Feedback | None, *, line: int | None = None, field: str = "feedback.kind", **identity: Any
    ) -> Evaluation | None:
        """The evaluation that a harness's feedback states; ``None``, reported, where its outcome is not known.

        A finding names ``field`` as the one that says the outcome; ``identity`` are further fields of the evaluation.
        """
        outcome: Any = feedback.kind if feedback is not None else None
        if feedback is not None and outcome == "success":
            result = self._success(feedback, line, field)
        elif feedback is not None and outcome in _FAILURES:
            name, text = (
                next((given for field in fields if (given := getattr(feedback, field))), None)
                for fields in _FAILURES[outcome]
            )
            result = {"outcome": outcome, "error_type": name, "error_text": text}
        else:
            self.count("unknown_outcomes")
            message = "the result has no outcome that these logs know; it is left out"
            self.error("unknown-outcome", message, line=line, field=field, value=outcome)
            return None
        return Evaluation(source_file=self.file, source_line=line, **identity, **result)

    def _success(self, feedback: Feedback, line: int | None, field: str) -> dict[str, Any]:
        given = feedback.aggregated_speedup if feedback.aggregated_speedup is not None else feedback.speedup
        logged = feedback.per_case_speedups or ()
        if len(logged) > MAX_CASES:
            self.warning("too-long", f"{len(logged):,} timed cases; they are left out", line=line)
            logged = ()
        cases = tuple(map(self._case, logged))
        speedup = positive(given)
        if speedup is None:
            # A program that passed but whose time the log lost (non-finite numbers are written as null): not a
            # measurement, not the program's fault, and never 0.
            self.count("successes_without_speedup")
            message = f"success without a finite speedup above 0: {given}"
            self.warning("null-score", message, line=line, field=None if line is not None else field)
            return {
                "outcome": "infrastructure_failure",
                "error_type": "missing_speedup",
                "error_text": "logged as a success without a finite speedup above 0",
                "cases": cases,
            }
        result = {"outcome": "success", "speedup": speedup, "narrow_domain": bool(feedback.narrow_domain)}
        if cases:
            return result | {"cases": cases}
        times = {"runtime_us": feedback.runtime_us, "reference_runtime_us": feedback.ref_runtime_us}
        return result | {name: _from_ms(time) for name, time in times.items()}

    def _case(self, fields: dict[str, Any]) -> Case:
        """One timed case; takes the dictionary over: what is left of it is the shape. Equal shapes share one dictionary."""
        speedup = fields.pop("speedup", None)
        runtime, reference = fields.pop("runtime_ns", None), fields.pop("ref_runtime_ns", None)
        fields.pop("seed", None)  # the random seed of the inputs is no shape
        try:
            shape = self._shapes.get(tuple(fields.items()))
        except TypeError:  # a list or an object in it
            shape = None
        if shape is None:
            shape = self._new_shape(fields)
        return Case(shape, positive(speedup), _from_ns(runtime), _from_ns(reference))

    def _new_shape(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A shape not seen before, without what can't be a size of anything."""
        sizes = {k: v for k, v in fields.items() if not isinstance(v, list | dict) and len(str(v)) <= MAX_SIZE}
        if len(sizes) > MAX_SIZES:
            sizes = {}
        if sizes:
            self._shape_fields.add(frozenset(sizes))
        return self._shapes.setdefault(tuple(sizes.items()), sizes)

    def problem(self) -> str | None:
        """The one problem whose cases have the fields seen; ``None`` where several do (the GDN tasks share theirs)."""
        names = [name for fields in self._shape_fields for name in _BY_SHAPE.get(fields, [None])]
        return names[0] if len(names) == 1 else None


def log_format(
    reading: Callable[[RunFiles, Path, Report], Reading],
    *,
    name: str,
    title: str,
    expects: str,
    log: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    version: int,
) -> ReaderSpec:
    """A format whose searches have one log each, which a ``reading`` takes in; the rest is as in :class:`ReaderSpec`.

    ``log`` are names of the log in a run directory, the first that is there counts; without one the matched path is the log.
    ``beside`` are patterns of the files beside it.
    """

    def records(run: RunFiles) -> Iterator[Record]:
        """One search: its evaluations, what was wrong, and its facts."""
        path = run.log(*log)
        if path is None:
            yield wrong_format(run, spec)
            return
        report = Report()
        search = reading(run, path, report)
        if not search.read(path):
            yield from nothing_read(run, spec, path, report)
            return
        search.finish()
        yield from search.records()

    spec = ReaderSpec(name=name, title=title, expects=expects, files=(*log, *beside), version=version, records=records)
    return spec
