"""``timing.jsonl`` of our own runs: one line per evaluation with its wall time, matched without guessing.

A line belongs to an evaluation when its speedup is the very same number and no other evaluation or line has it, when it
lies inside the time span of exactly one evaluation of the same outcome, or when it is the only line left and one evaluation
of its outcome is. Everything else stays unmatched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.readers.events import TimingLine
from kernel_archive.readers.reading import EVALUATION_FAILED
from kernel_archive.readers.report import Report
from kernel_archive.readers.salvage import RowKind, Salvage
from kernel_archive.readers.values import not_negative

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation, SearchFacts

TIMING_FILE: Final = "timing.jsonl"
#: Evaluations that may overlap at one moment; among more of them no line is looked for.
_MAX_OVERLAP: Final = 100


class _Line(TimingLine):
    """A line, and whether an evaluation has it already."""

    taken: bool = False


_KIND: Final[RowKind[TimingLine]] = RowKind(TimingLine)
#: Faults of the file; all others are of one line.
_FILE_FAULTS: Final = frozenset({"unreadable", "line-too-long", "file-too-large", "bad-utf8"})


def apply_timing(
    run: RunFiles, evaluations: list[Evaluation], facts: SearchFacts, report: Report, *, keeps_failures: bool
) -> None:
    """Give evaluations the wall times of the timing file, where there is one, and count the lines that fit none.

    Args:
        run: the run.
        evaluations: those of the log.
        facts: get the counts.
        report: takes the findings; whatever is wrong with this file, it costs no evaluation.
        keeps_failures: the log holds failed programs too; else their timing lines are all that says that they ran.
    """
    path = run.find(TIMING_FILE)
    if path is None:
        return
    faults = Report()
    salvage = Salvage(_KIND, run.name(path), faults, {})
    lines = [_Line(**msgspec.structs.asdict(row)) for _, row in salvage.rows(run.lines(path))]
    for fault in faults:
        code = fault.code if fault.code in _FILE_FAULTS else "bad-timing"
        report.add(msgspec.structs.replace(fault, code=code, severity="warning"))
    if salvage.file in run.unsound:
        return
    _attach(evaluations, lines)
    left = [row for row in lines if not row.taken]
    lost = 0 if keeps_failures else sum(row.speedup is None for row in left)
    if lost:
        facts.counts["evaluations_without_program"] = lost
    if len(left) > lost:
        facts.counts["timing_lines_unmatched"] = len(left) - lost


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
