"""What the evaluations of a search took, from files beside its log: matched without guessing.

``timing.jsonl`` of our own runs has one line per evaluation with its wall time. A line belongs to an evaluation when its speedup
is the very same number and no other evaluation or line has it, when it lies inside the time span of exactly one evaluation of the
same outcome, or when it is the only line left and one evaluation of its outcome is. Everything else stays unmatched.

Other searches keep a folder ``invocations/`` with one JSON file per call to a GPU or a model, with its time and tokens. A file
names no evaluation: it belongs to the one with the same program text.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.readers.events import TimingLine
from kernel_archive.readers.reading import EVALUATION_FAILED
from kernel_archive.readers.salvage import Report, RowKind, Salvage
from kernel_archive.readers.values import natural, not_negative, object_of, positive, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_archive.readers.reading import Reading
    from kernel_archive.readers.records import Evaluation

TIMING_FILE: Final = "timing.jsonl"
#: Evaluations that may overlap at one moment; among more of them no line is looked for.
_MAX_OVERLAP: Final = 100
#: How long after its time limit a request may still be seen to end: polling and logging.
_TIMEOUT_SLACK_S: Final = 60.0


class _Line(TimingLine):
    """A line, and whether an evaluation has it already."""

    taken: bool = False


_KIND: Final[RowKind[TimingLine]] = RowKind(TimingLine)
#: Faults of the file; all others are of one line.
_FILE_FAULTS: Final = frozenset({"unreadable", "line-too-long", "file-too-large", "bad-utf8"})


def drop_downtime(reading: Reading) -> None:
    """A span longer than the search's own time limit holds a crash and the time until the resume: no GPU time."""
    settings = reading.facts.hyperparameters or {}
    search = object_of(settings.get("search"))
    limit = positive(search.get("per_request_timeout_s", settings.get("per_request_timeout_s")))
    if limit is None:
        return
    for record in reading.evaluations():
        if record.gpu_seconds is not None and record.gpu_seconds > limit + _TIMEOUT_SLACK_S:
            record.gpu_seconds = None
            reading.count("durations_with_downtime")


def apply_timing(reading: Reading, *, keeps_failures: bool) -> None:
    """Give evaluations the wall times of the timing file, where there is one, and count the lines that fit none.

    Whatever is wrong with this file, it costs no evaluation.

    Args:
        reading: the log as read.
        keeps_failures: the log holds failed programs too; else their timing lines are all that says that they ran.
    """
    run = reading.run
    path = run.find(TIMING_FILE)
    if path is None:
        return
    faults = Report()
    salvage = Salvage(_KIND, run.name(path), faults, {})
    lines = [_Line(**msgspec.structs.asdict(row)) for _, row in salvage.rows(run.lines(path))]
    for fault in faults:
        code = fault.code if fault.code in _FILE_FAULTS else "bad-timing"
        reading.report.add(msgspec.structs.replace(fault, code=code, severity="warning"))
    if salvage.file in run.unsound:
        return
    _attach(reading.evaluations(), lines)
    left = [row for row in lines if not row.taken]
    lost = 0 if keeps_failures else sum(row.speedup is None for row in left)
    if lost:
        reading.count("evaluations_without_program", lost)
    if len(left) > lost:
        reading.count("timing_lines_unmatched", len(left) - lost)


def _attach(evaluations: Sequence[Evaluation], lines: Sequence[_Line]) -> None:
    """Match lines and evaluations by speedup, then by time, then the last of each."""
    speedups = Counter(e.speedup for e in evaluations)
    by_speedup: dict[float | None, list[_Line]] = {}
    for row in lines:
        by_speedup.setdefault(row.speedup, []).append(row)
    open_: list[Evaluation] = []
    for record in evaluations:
        found = by_speedup.get(record.speedup, [])
        if record.speedup is not None and speedups[record.speedup] == 1 and len(found) == 1:
            _take(record, found[0])
        elif record.started_at is not None and record.completed_at is not None:
            open_.append(record)
    spans = _Spans(open_)
    for row in lines:
        fitting = [] if row.taken else spans.around(row)
        if len(fitting) == 1:
            spans.close(fitting[0])
            _take(fitting[0], row)
    left = [row for row in lines if not row.taken]
    bare = [e for e in evaluations if e.started_at is None and e.gpu_seconds is None]
    if len(left) == 1 and len(bare) == 1 and left[0].kind == bare[0].outcome and left[0].speedup == bare[0].speedup:
        _take(bare[0], left[0])


def _take(record: Evaluation, row: _Line) -> None:
    row.taken = True
    wall = not_negative(row.wall_s)
    if wall is not None:
        record.gpu_seconds = wall
    if record.started_at is None and record.completed_at is None:
        record.started_at, record.completed_at = row.started_at, row.completed_at


class _Spans:
    """Time spans of evaluations, by outcome and speedup, each group in the order of their beginnings.

    Times are ISO 8601 texts of one zone. A search of this kind takes no longer for the last line than for the first.
    """

    def __init__(self, evaluations: Iterable[Evaluation]) -> None:
        self._groups: dict[Any, list[Evaluation]] = {}
        for record in sorted(evaluations, key=lambda e: e.started_at or ""):
            self._groups.setdefault(_group(record), []).append(record)
        self._starts = {key: [e.started_at or "" for e in group] for key, group in self._groups.items()}
        #: The latest end among an evaluation and all before it.
        self._ends = {key: [*accumulate((e.completed_at or "" for e in g), max)] for key, g in self._groups.items()}
        self._closed: set[int] = set()

    def close(self, record: Evaluation) -> None:
        """Leave an evaluation out from now on."""
        self._closed.add(id(record))

    def around(self, row: _Line) -> list[Evaluation]:
        """The open evaluations that a line fits and lies inside of; none where too many overlap to tell."""
        found: list[Evaluation] = []
        for key in ((row.kind, row.speedup), EVALUATION_FAILED) if row.speedup is None else ((row.kind, row.speedup),):
            group = self._groups.get(key)
            if group is None or row.started_at is None or row.completed_at is None:
                continue
            at = bisect_right(self._starts[key], row.started_at)
            for i in range(at - 1, -1, -1):
                if self._ends[key][i] < row.completed_at:
                    break
                if at - i > _MAX_OVERLAP:
                    return []
                if id(group[i]) not in self._closed and (group[i].completed_at or "") >= row.completed_at:
                    found.append(group[i])
        return found


def _group(record: Evaluation) -> Any:
    """What a line must have to fit: an evaluation that its driver gave up may have timed anything but a success."""
    return EVALUATION_FAILED if record.error_type == EVALUATION_FAILED else (record.outcome, record.speedup)


INVOCATION_FILES = ("invocations/*.json",)
#: A model's forecast: tokens, no GPU.
_FORECAST = "kwm_evaluation"
_MUTATION_TOTALS = ("total_input_tokens", "total_output_tokens")


class _Calls(msgspec.Struct):
    """All records of a run.

    Attributes:
        n: how many there are.
        seconds: GPU seconds of every call.
        timed: sha256 of a program -> time and GPU seconds of each call that ran it.
        sent: tokens sent, of every call.
        answered: tokens answered.
        tokens: sha256 of a program -> tokens of each call that proposed it.
        packs: problems named.
        models: models that proposed programs.
    """

    n: int = 0
    seconds: list[float] = []
    timed: dict[str, list[tuple[str, float]]] = {}
    sent: list[int] = []
    answered: list[int] = []
    tokens: dict[str, list[tuple[int | None, int | None]]] = {}
    packs: set[str] = set()
    models: set[str] = set()

    def add_evaluation(self, record: dict[str, Any]) -> None:
        """Take in a call to a GPU."""
        wall, when = not_negative(record.get("wall_clock_seconds")), record.get("timestamp_utc")
        sha = text_of(record.get("code_sha256"))
        if wall is not None:
            self.seconds.append(wall)
            if isinstance(when, str) and when.endswith(("Z", "+00:00")) and sha is not None:
                # In a form that compares as text with the log's times.
                self.timed.setdefault(sha, []).append((when.replace("+00:00", "Z"), wall))
        pack = text_of(record.get("pack_name"))
        if pack is not None:
            self.packs.add(pack)

    def add_model_call(self, record: dict[str, Any]) -> None:
        """Take in a call to a model."""
        model = text_of(record.get("model_slug"))
        if model is not None and record["kind"] != _FORECAST:
            self.models.add(model)
        batch = any(name in record for name in _MUTATION_TOTALS)
        names = _MUTATION_TOTALS if batch else ("input_tokens", "output_tokens")
        sent, answered = (natural(record.get(name)) for name in names)
        self.sent += () if sent is None else (sent,)
        self.answered += () if answered is None else (answered,)
        child = text_of(record.get("child_code_sha256"))
        if not batch and child is not None:  # a batch's total can't be split over its programs
            self.tokens.setdefault(child, []).append((sent, answered))


def apply_invocations(reading: Reading) -> None:
    """Add GPU seconds and tokens from the invocation records of a run, where there are any.

    Records and evaluations of one program are joined in the order of time when there are equally many, and otherwise
    where exactly one record lies in an evaluation's time span. Tokens go to an evaluation when exactly one proposal and
    one evaluation have its program. The totals of the run count every record, joined or not.
    """
    run, facts, calls = reading.run, reading.facts, _Calls()
    for path in run.files:
        if path.parent.name != "invocations":
            continue
        record = run.json(path)
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            reading.report.warning(
                "bad-invocation", "an invocation record that cannot be read is skipped", file=run.name(path)
            )
            continue
        calls.n += 1
        if "evaluation" in record["kind"] and record["kind"] != _FORECAST:
            calls.add_evaluation(record)
        elif "mutation" in record["kind"] or record["kind"] == _FORECAST:
            calls.add_model_call(record)
    if calls.n == 0:
        return
    reading.count("invocations", calls.n)
    if calls.seconds:
        facts.gpu_seconds = math.fsum(calls.seconds)
    if calls.sent:
        facts.input_tokens = (facts.input_tokens or 0) + sum(calls.sent)
    if calls.answered:
        facts.output_tokens = (facts.output_tokens or 0) + sum(calls.answered)
    if facts.problem is None and len(calls.packs) == 1:
        facts.problem = calls.packs.pop()
    if facts.model is None and len(calls.models) == 1:
        facts.model = calls.models.pop()
    if calls.timed or calls.tokens:
        _join(reading.evaluations(), calls)


def _join(evaluations: list[Evaluation], calls: _Calls) -> None:
    groups: dict[str, list[Evaluation]] = {}
    for record in evaluations:
        groups.setdefault(hashlib.sha256(record.code.encode()).hexdigest(), []).append(record)
    for sha, group in groups.items():
        timed = sorted(calls.timed.get(sha, []))
        times = [when for when, _ in timed]
        ordered = sorted(group, key=lambda e: e.completed_at or "")  # the root has no time and came first
        if len(timed) == len(ordered) and all(_spans(e, t) for e, t in zip(ordered, times, strict=True)):
            for record, (_, wall) in zip(ordered, timed, strict=True):
                record.gpu_seconds = wall
        else:
            for record in ordered:
                if record.completed_at is None:
                    continue
                first = bisect_left(times, record.started_at or "")
                if bisect_right(times, record.completed_at) - first == 1:
                    record.gpu_seconds = timed[first][1]
        used = calls.tokens.get(sha, [])
        if len(used) == 1 and len(group) == 1 and group[0].input_tokens is None:
            group[0].input_tokens, group[0].output_tokens = used[0]


def _spans(record: Evaluation, when: str) -> bool:
    """Whether a time lies in the evaluation's span; one without times spans all."""
    return (record.started_at or when) <= when <= (record.completed_at or when)
