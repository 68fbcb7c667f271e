"""Facts of a search, and times of its programs, from the files beside its log.

``run_facts.toml`` says where each file states which fact. ``timing.jsonl`` has a line with the wall
time of each evaluation, ``invocations/`` a file per call to a GPU; neither names the
evaluation, so they count only where nothing else fits.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers import values
from kernel_archive.readers.events import TimingLine
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import EVALUATION_FAILED, Evaluation, SearchFacts
from kernel_archive.readers.salvage import FindingLog, RowKind, Salvage
from kernel_archive.readers.values import not_negative, object_of, text_of
from kernel_archive.toml_files import toml_beside

#: File -> column of the facts -> places in the file; ``run_facts.toml`` says how to read it.
_FACTS: Final[dict[str, dict[str, str]]] = toml_beside(__file__, "run_facts.toml")
#: Files that a run writes last: one of them says that it came to its own end.
_END_FILES: Final = frozenset({"summary.json", "result.json", "eval_dataset_manifest.json", "DONE"})
#: Column -> what makes a sound value of a stated one, or ``None``; all others are objects.
_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("problem", "gpu", "reference_code", "model"), text_of),
    **dict.fromkeys(("gpu_seconds", "wall_seconds"), not_negative),
    **dict.fromkeys(("benchmark_cases", "correctness_cases"), values.objects_of),
    "tolerance": lambda value: (
        {k: x for k, x in object_of(value).items() if values.finite(x) is not None} or None
    ),
    "finished": lambda value: value if isinstance(value, bool) else None,
}
_TIMING: Final[RowKind[TimingLine]] = RowKind(TimingLine)
#: Evaluations of one speedup begun before a timing line that may still be running in it.
_MAX_OVERLAP: Final = 100
#: Seconds after its time limit in which a request may still be seen to end.
_TIMEOUT_SLACK_S: Final = 60.0


def add_facts(run: RunFiles, facts: SearchFacts, findings: FindingLog) -> None:
    """Add what the files beside a log state. Where they differ, the log counts."""
    paths = {path.name.removesuffix(".zst").removesuffix(".gz"): path for path in run.files}
    for file, path in paths.items():
        if file not in _FACTS or path == run.path:
            continue
        value = run.json(path)
        if isinstance(value, dict):
            add_file_facts(file, value, facts)
        else:
            fault = value.message if isinstance(value, Finding) else "not a JSON object"
            findings.warning("bad-facts", f"{fault}; its facts are missing", file=run.name(path))
    if facts.finished is None and not paths.keys().isdisjoint(_FACTS.keys() | _END_FILES):
        facts.finished = not paths.keys().isdisjoint(_END_FILES)


def add_file_facts(file: str, data: dict[str, Any], facts: SearchFacts) -> None:
    """Add what a file of the table states, where neither the log nor an earlier file says it."""
    for column, fields in _FACTS[file].items():
        if getattr(facts, column) is None:
            setattr(facts, column, _value(data, column, fields.split()))
    if file == "run.json" and facts.wall_seconds is None:
        start, end = text_of(data.get("start")), text_of(data.get("end"))
        facts.wall_seconds = values.seconds_between(start, end)


def _value(data: dict[str, Any], column: str, fields: list[str]) -> Any:
    """Return what a file states of one column: ``fields`` are those of ``run_facts.toml``."""
    merged: dict[str, Any] = {}
    for field in fields:
        value = data if field == "*" else values.inner_value(data, field.lstrip("="))
        if column in _CONVERTERS:
            value = _CONVERTERS[column](value)
            if value is not None:
                return value
        elif field.startswith("="):
            merged |= {field[1:]: value} if value else {}
        else:
            merged |= object_of(value)
    return merged or None


def add_durations(
    run: RunFiles, evaluations: list[Evaluation], facts: SearchFacts, findings: FindingLog
) -> None:
    """Add GPU seconds of evaluations from the files of the run."""
    settings = facts.hyperparameters or {}
    search = object_of(settings.get("search"))
    limit = values.positive({**settings, **search}.get("per_request_timeout_s"))
    for record in evaluations:
        # A longer span holds a crash, and the time until the search was resumed.
        if limit is not None and (record.gpu_seconds or 0.0) > limit + _TIMEOUT_SLACK_S:
            record.gpu_seconds = None
            facts.counts["durations_with_downtime"] += 1
    _add_invocations(run, evaluations, findings)
    path = run.find("timing.jsonl")
    if path is None or path not in run.files or path == run.path:
        return
    log, name = FindingLog(), run.name(path)
    lines = [row for _, row in Salvage(_TIMING, name, log, Counter()).rows(run.lines(path))]
    for finding in log:
        findings.add(msgspec.structs.replace(finding, code="bad-timing", severity="warning"))
    if name not in run.unsound:
        _add_timing(lines, evaluations, facts)


def _add_timing(lines: list[TimingLine], evaluations: list[Evaluation], facts: SearchFacts) -> None:
    """Give evaluations the wall times of timing lines, and count the lines that fit none.

    A line fits the only evaluation of its speedup, or the only one in whose span it lies, or is
    itself the only one without a time.
    """
    groups: dict[float | None, list[Evaluation]] = defaultdict(list)
    for record in sorted(evaluations, key=_start):
        groups[record.speedup].append(record)
    n_lines = Counter(line.speedup for line in lines)
    unmatched: list[TimingLine] = []
    timed: set[str] = set()
    for line in lines:
        fitting = groups[line.speedup]
        if line.speedup is None or not len(fitting) == n_lines[line.speedup] == 1:
            fitting = [r for r in _spanning(line, fitting) if r.node_id not in timed]
        if len(fitting) == 1:
            _set_time(fitting[0], line)
            timed.add(fitting[0].node_id)
        else:
            unmatched.append(line)
    bare = [r for r in evaluations if r.started_at is None and r.gpu_seconds is None]
    if len(bare) == len(unmatched) == 1 and unmatched[0].speedup == bare[0].speedup:
        _set_time(bare[0], unmatched.pop())
    # Where the log holds no failures, only their timing lines tell that they ran.
    has_failures = any(record.outcome != "success" for record in evaluations)
    n_lost = 0 if has_failures else sum(line.speedup is None for line in unmatched)
    facts.counts["evaluations_without_program"] = n_lost
    facts.counts["timing_lines_unmatched"] = len(unmatched) - n_lost


def _set_time(record: Evaluation, line: TimingLine) -> None:
    """Give an evaluation the times of its timing line."""
    wall = not_negative(line.wall_s)
    record.gpu_seconds = record.gpu_seconds if wall is None else wall
    if record.started_at is None and record.completed_at is None:
        record.started_at, record.completed_at = line.started_at, line.completed_at


def _start(record: Evaluation) -> str:
    """Return when an evaluation began; ISO 8601 texts of one zone compare as times."""
    return record.started_at or ""


def _spanning(line: TimingLine, group: list[Evaluation]) -> list[Evaluation]:
    """Return the evaluations of a group, sorted by start, in whose time span a line lies."""
    if line.started_at is None or line.completed_at is None:
        return []
    last = bisect_right(group, line.started_at, key=_start)
    return [
        record
        for record in group[max(0, last - _MAX_OVERLAP) : last]
        if record.started_at and (record.completed_at or "") >= line.completed_at
        # What its driver gave up may have timed anything but a success.
        if line.kind == record.outcome or record.error_type == EVALUATION_FAILED
    ]


def _add_invocations(run: RunFiles, evaluations: list[Evaluation], findings: FindingLog) -> None:
    """Add GPU seconds from the records of calls, where each program has its own."""
    seconds: dict[str, list[tuple[str, float]]] = defaultdict(list)  # by program: time, seconds
    for path in (path for path in run.files if path.parent.name == "invocations"):
        value = run.json(path)
        if not isinstance(value, dict):
            message = "an invocation record that cannot be read is skipped"
            findings.warning("bad-invocation", message, file=run.name(path))
            continue
        wall = not_negative(value.get("wall_clock_seconds"))
        program = text_of(value.get("code_sha256"))
        if program is not None and wall is not None:
            seconds[program].append((str(value.get("timestamp_utc")), wall))
    groups: dict[str, list[Evaluation]] = defaultdict(list)
    for record in evaluations if seconds else ():
        groups[hashlib.sha256(record.code.encode()).hexdigest()].append(record)
    for sha, group in groups.items():
        group.sort(key=lambda record: record.completed_at or "")  # the root has no time: first
        if len(seconds[sha]) == len(group):
            for record, (_, wall) in zip(group, sorted(seconds[sha]), strict=True):
                record.gpu_seconds = wall
