"""``timing.jsonl`` of our own runs: one line per evaluation with its wall time, matched without guessing.

The lines carry no id. A line belongs to an evaluation when its speedup is the very same number and no other
evaluation or line has it, when it lies inside the time span of exactly one evaluation of the same outcome, or when it is
the only line left and one evaluation of its outcome is. Everything else stays unmatched.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from kernel_archive.readers.events import TimingLine
from kernel_archive.readers.lenient import BAD_JSON, not_negative

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation
    from kernel_archive.readers.report import Report

__all__ = ["TIMING_FILE", "attach", "read_timing"]

TIMING_FILE = "timing.jsonl"


class _Line(TimingLine):
    """A line, and whether an evaluation has it already."""

    taken: bool = False


_decode = msgspec.json.Decoder(_Line).decode


def read_timing(run: RunFiles, path: Path, report: Report) -> list[_Line]:
    """The lines that can be read; the others as findings."""
    out: list[_Line] = []
    for item in run.lines(path):
        if not isinstance(item, tuple):
            report.add(item)
            continue
        number, line = item
        try:
            row = _decode(line)
        except BAD_JSON as error:
            report.warning("bad-timing", f"timing line skipped: {error}", file=run.name(path), line=number)
            continue
        row.taken = False
        out.append(row)
    return out


def attach(evaluations: Sequence[Evaluation], timing: list[_Line]) -> int:
    """Give evaluations the wall time of their timing line, and its times where they have none.

    Returns:
        Timing lines that no evaluation was found for.
    """
    speedups = Counter(e.speedup for e in evaluations if e.speedup is not None)
    lines: dict[float, list[_Line]] = {}
    for row in timing:
        if row.speedup is not None:
            lines.setdefault(row.speedup, []).append(row)
    open_ = {i: e for i, e in enumerate(evaluations) if e.started_at is not None and e.completed_at is not None}
    for i, record in enumerate(evaluations):
        if record.speedup is not None and speedups[record.speedup] == 1:
            found = lines.get(record.speedup, [])
            if len(found) == 1:
                _take(record, found[0])
                open_.pop(i, None)
    for row in timing:
        if row.taken or row.started_at is None or row.completed_at is None:
            continue
        inside = [i for i, e in open_.items() if _inside(e, row)]
        if len(inside) == 1:
            _take(open_.pop(inside[0]), row)
    left = [row for row in timing if not row.taken]
    bare = [e for e in evaluations if e.started_at is None and e.gpu_seconds is None]
    if len(left) == 1 and len(bare) == 1 and left[0].kind == bare[0].outcome and left[0].speedup == bare[0].speedup:
        _take(bare[0], left[0])
    return sum(not row.taken for row in timing)


def _inside(record: Evaluation, row: _Line) -> bool:
    """Whether the row fits the evaluation: speedup, outcome, and its time span (ISO 8601 text of one zone)."""
    lost = record.error_type == "evaluation_failed" and row.speedup is None
    if not lost and (row.kind != record.outcome or row.speedup != record.speedup):
        return False
    start, end = record.started_at, record.completed_at
    if start is None or end is None or row.started_at is None or row.completed_at is None:
        return False
    return start <= row.started_at and row.completed_at <= end


def _take(record: Evaluation, row: _Line) -> None:
    row.taken = True
    wall = not_negative(row.wall_s)
    if wall is not None:
        record.gpu_seconds = wall
    if record.started_at is None and record.completed_at is None:
        record.started_at, record.completed_at = row.started_at, row.completed_at
