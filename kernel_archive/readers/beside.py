"""What the files beside a log say: facts of the search, and what its evaluations took, matched without guessing.

``run.json``, ``experiment.json``, ``config.json`` and ``summary.json`` hold facts of the whole search.

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

from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers.events import TimingLine
from kernel_archive.readers.reading import EVALUATION_FAILED
from kernel_archive.readers.salvage import Report, RowKind, Salvage
from kernel_archive.readers.values import finite, natural, not_negative, object_of, positive, seconds_between, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kernel_archive.readers.reading import Reading
    from kernel_archive.readers.records import Evaluation

_RUN: Final = "run.json"
TIMING_FILE: Final = "timing.jsonl"
_TIMING: Final[RowKind[TimingLine]] = RowKind(TimingLine)
#: Files around an upstream run directory (``<out>/run_NN``).
UPSTREAM_FILES: Final = ("summary.json", "../experiment.json", "../config.json")
#: Everything that :func:`add_facts` reads.
FILES_BESIDE: Final = (_RUN, TIMING_FILE, *UPSTREAM_FILES, "invocations/*.json")
#: Evaluations that may overlap at one moment; among more of them no line is looked for.
_MAX_OVERLAP: Final = 100
#: How long after its time limit a request may still be seen to end: polling and logging.
_TIMEOUT_SLACK_S: Final = 60.0
#: Faults of the timing file; all others are of one line.
_FILE_FAULTS: Final = frozenset({"unreadable", "line-too-long", "file-too-large", "bad-utf8"})
#: An invocation of a model that is a forecast: tokens, no GPU.
_FORECAST: Final = "kwm_evaluation"
_BATCH_TOTALS: Final = ("total_input_tokens", "total_output_tokens")


def add_facts(reading: Reading, *, keeps_failures: bool = True) -> None:
    """Add what the files beside a log say: facts of the search, GPU seconds and tokens of its evaluations.

    The log's own facts count where they differ; ``keeps_failures`` says that it holds failed programs, too.
    """
    _read_run_json(reading)
    read_upstream(reading)
    _drop_downtime(reading)
    _apply_invocations(reading)
    _apply_timing(reading, keeps_failures=keeps_failures)


def load_object(reading: Reading, name: str) -> dict[str, Any] | None:
    """The JSON object in a file of the run; ``None`` where there is none, with a warning where it can't be read."""
    run, report = reading.run, reading.report
    path = run.find(name)
    if path is None:
        return None
    value = run.json(path)
    if isinstance(value, Finding):
        report.warning(value.code, f"{value.message}; its facts are missing", file=value.file)
        return None
    if not isinstance(value, dict):
        report.warning("bad-facts", "not a JSON object; its facts are missing", file=run.name(path))
        return None
    return value


def _read_run_json(reading: Reading) -> None:
    """Fill in what ``run.json`` (our own runs) says."""
    data, facts = load_object(reading, _RUN), reading.facts
    if data is None:
        return
    _fill(reading, _RUN, "problem", text_of(data.get("task")))
    smi, device = object_of(data.get("nvidia_smi")), object_of(data.get("device_properties"))
    _fill(reading, _RUN, "gpu", text_of(smi.get("name")) or text_of(device.get("name")))
    facts.reference_code = facts.reference_code or text_of(data.get("reference_source"))
    tolerance = {k: v for k, v in object_of(data.get("tolerance")).items() if finite(v) is not None}
    facts.tolerance = tolerance or facts.tolerance
    for name in ("benchmark_cases", "correctness_cases"):
        cases = data.get(name)
        if isinstance(cases, list) and all(isinstance(c, dict) for c in cases):
            setattr(facts, name, cases)
    more = {k: data[k] for k in ("language", "mutator") if text_of(data.get(k))}
    search = object_of(data.get("search"))
    facts.hyperparameters = {**more, **search} or facts.hyperparameters
    facts.model = facts.model or text_of(search.get("model"))  # chains: the language model that wrote the programs
    facts.measurement = object_of(data.get("measurement")) or facts.measurement
    software = dict(object_of(data.get("software")))
    if device:
        software["device_properties"] = device
    if smi:
        software["nvidia_smi"] = smi
    facts.software = software or facts.software
    if isinstance(data.get("finished"), bool):
        facts.finished = data["finished"]
    facts.gpu_seconds = not_negative(data.get("gpu_seconds"))
    facts.wall_seconds = seconds_between(text_of(data.get("start")), text_of(data.get("end")))


def read_upstream(reading: Reading) -> None:
    """Fill in what the files around an upstream run say."""
    facts = reading.facts
    summary, experiment, config = (load_object(reading, name) for name in UPSTREAM_FILES)
    if config is not None:
        use_config(config, reading)
    if experiment is not None:
        use_experiment(experiment, reading)
    elif config is not None:
        facts.hyperparameters = facts.hyperparameters or config
    if summary is not None:
        facts.wall_seconds = facts.wall_seconds or not_negative(summary.get("wall_clock_seconds"))
        facts.model = facts.model or text_of(summary.get("model_slug"))
    if facts.finished is None and (summary is not None or experiment is not None):
        facts.finished = summary is not None  # written last: its presence says that the run came to its end


def use_config(config: dict[str, Any], reading: Reading) -> None:
    """Fill in what a ``config.json`` says."""
    facts = reading.facts
    _fill(reading, "config.json", "problem", text_of(config.get("pack")))
    _fill(reading, "config.json", "gpu", text_of(object_of(config.get("hardware")).get("gpu")))
    facts.model = facts.model or text_of(config.get("mutator_model_slug"))


def use_experiment(experiment: dict[str, Any], reading: Reading) -> None:
    """Fill in what an ``experiment.json`` says: v2 nests it under ``run``, v3 does not."""
    facts = reading.facts
    part = object_of(experiment.get("run")) or experiment
    provider = object_of(part.get("provider"))
    mutator, evaluation = object_of(part.get("mutator")), object_of(part.get("evaluation"))
    _fill(reading, "experiment.json", "gpu", text_of(provider.get("gpu")) or text_of(evaluation.get("gpu")))
    facts.model = text_of(provider.get("model_slug")) or text_of(mutator.get("model_slug")) or facts.model
    parts = {k: v for k, v in part.items() if k not in ("hardware", "num_runs")}
    facts.hyperparameters = facts.hyperparameters or parts or None
    hardware = object_of(part.get("hardware"))
    if hardware and facts.software is None:
        facts.software = {"hardware": hardware}


def _fill(reading: Reading, file: str, field: str, value: str | None) -> None:
    """Set a fact, or report that two files disagree."""
    if value is None:
        return
    before: str | None = getattr(reading.facts, field)
    if before is None:
        setattr(reading.facts, field, value)
        return
    same = normalise_problem if field == "problem" else canonical_gpu
    if same(before) != same(value):
        message = f"the log says {field} {before!r}, {file} says {value!r}; the log counts"
        reading.report.error("facts-disagree", message, file=file, field=field)


def _drop_downtime(reading: Reading) -> None:
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


def _apply_timing(reading: Reading, *, keeps_failures: bool) -> None:
    """Give evaluations the wall times of the timing file, where there is one, and count the lines that fit none.

    Whatever is wrong with this file, it costs no evaluation. Where the log holds no failures, their timing lines are all that
    says that they ran.
    """
    run = reading.run
    path = run.find(TIMING_FILE)
    if path is None:
        return
    faults = Report()
    salvage = Salvage(_TIMING, run.name(path), faults, {})
    lines = [row for _, row in salvage.rows(run.lines(path))]
    for fault in faults:
        code = fault.code if fault.code in _FILE_FAULTS else "bad-timing"
        reading.report.add(msgspec.structs.replace(fault, code=code, severity="warning"))
    if salvage.file in run.unsound:
        return
    left = _timed(reading.evaluations(), lines)
    lost = 0 if keeps_failures else sum(row.speedup is None for row in left)
    if lost:
        reading.count("evaluations_without_program", lost)
    if len(left) > lost:
        reading.count("timing_lines_unmatched", len(left) - lost)


def _timed(evaluations: list[Evaluation], lines: list[TimingLine]) -> list[TimingLine]:
    """Match lines and evaluations by speedup, then by time, then the last of each; the lines that are left."""
    measured, said = Counter(e.speedup for e in evaluations), Counter(row.speedup for row in lines)
    by_speedup: dict[float | None, TimingLine] = {
        row.speedup: row
        for row in lines
        if row.speedup is not None and measured[row.speedup] == 1 and said[row.speedup] == 1
    }
    open_: list[Evaluation] = []
    for record in evaluations:
        found = by_speedup.get(record.speedup)
        if found is not None:
            _take(record, found)
        elif record.started_at is not None and record.completed_at is not None:
            open_.append(record)
    spans = _Spans(open_)
    left: list[TimingLine] = []
    for row in lines:
        if by_speedup.get(row.speedup) is row:
            continue
        fitting = spans.around(row)
        if len(fitting) == 1:
            spans.closed.add(id(fitting[0]))
            _take(fitting[0], row)
        else:
            left.append(row)
    bare = [e for e in evaluations if e.started_at is None and e.gpu_seconds is None]
    if len(left) == 1 and len(bare) == 1 and left[0].kind == bare[0].outcome and left[0].speedup == bare[0].speedup:
        _take(bare[0], left.pop())
    return left


def _take(record: Evaluation, row: TimingLine) -> None:
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
            # An evaluation that its driver gave up may have timed anything but a success.
            given_up = record.error_type == EVALUATION_FAILED
            fits = EVALUATION_FAILED if given_up else (record.outcome, record.speedup)
            self._groups.setdefault(fits, []).append(record)
        self._starts = {key: [e.started_at or "" for e in group] for key, group in self._groups.items()}
        #: The latest end among an evaluation and all before it.
        self._ends = {key: [*accumulate((e.completed_at or "" for e in g), max)] for key, g in self._groups.items()}
        #: Ids of the evaluations that have their line.
        self.closed: set[int] = set()

    def around(self, row: TimingLine) -> list[Evaluation]:
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
                if id(group[i]) not in self.closed and (group[i].completed_at or "") >= row.completed_at:
                    found.append(group[i])
        return found


def _apply_invocations(reading: Reading) -> None:
    """Add GPU seconds and tokens from the invocation records of a run, where there are any.

    Records and evaluations of one program are joined in the order of time when there are equally many, and otherwise
    where exactly one record lies in an evaluation's time span. Tokens go to an evaluation when exactly one proposal and
    one evaluation have its program. The totals of the run count every record, joined or not.
    """
    facts = reading.facts
    seconds: list[float] = []
    tokens: list[tuple[int | None, int | None]] = []
    #: sha256 of a program -> time and GPU seconds of each call that ran it, and tokens of each that proposed it
    runs: dict[str, list[tuple[str, float]]] = {}
    proposals: dict[str, list[tuple[int | None, int | None]]] = {}
    packs: set[str | None] = {None}
    models: set[str | None] = {None}
    for record in _invocations(reading):
        kind = record["kind"]
        if "evaluation" in kind and kind != _FORECAST:
            wall, when = not_negative(record.get("wall_clock_seconds")), record.get("timestamp_utc")
            sha = text_of(record.get("code_sha256"))
            packs.add(text_of(record.get("pack_name")))
            if wall is not None:
                seconds.append(wall)
                if isinstance(when, str) and when.endswith(("Z", "+00:00")) and sha is not None:
                    # In a form that compares as text with the log's times.
                    runs.setdefault(sha, []).append((when.replace("+00:00", "Z"), wall))
        elif "mutation" in kind or kind == _FORECAST:
            models.add(text_of(record.get("model_slug")) if kind != _FORECAST else None)
            batch = any(name in record for name in _BATCH_TOTALS)
            sent, answered = _BATCH_TOTALS if batch else ("input_tokens", "output_tokens")
            tokens.append((natural(record.get(sent)), natural(record.get(answered))))
            child = text_of(record.get("child_code_sha256"))
            if not batch and child is not None:  # a batch's total can't be split over its programs
                proposals.setdefault(child, []).append(tokens[-1])
    if seconds:
        facts.gpu_seconds = math.fsum(seconds)
    for field, each in (("input_tokens", [sent for sent, _ in tokens]), ("output_tokens", [n for _, n in tokens])):
        counted = [n for n in each if n is not None]
        if counted:
            setattr(facts, field, (getattr(facts, field) or 0) + sum(counted))
    for field, names in (("problem", packs - {None}), ("model", models - {None})):
        if getattr(facts, field) is None and len(names) == 1:
            setattr(facts, field, names.pop())
    if runs or proposals:
        _join(reading.evaluations(), runs, proposals)


def _invocations(reading: Reading) -> Iterator[dict[str, Any]]:
    """The invocation records of a run, counted; one that can't be read is reported."""
    for path in reading.run.files:
        if path.parent.name == "invocations":
            record = reading.run.json(path)
            if isinstance(record, dict) and isinstance(record.get("kind"), str):
                reading.count("invocations")
                yield record
            else:
                message = "an invocation record that cannot be read is skipped"
                reading.report.warning("bad-invocation", message, file=reading.run.name(path))


def _join(
    evaluations: list[Evaluation],
    runs: dict[str, list[tuple[str, float]]],
    proposals: dict[str, list[tuple[int | None, int | None]]],
) -> None:
    groups: dict[str, list[Evaluation]] = {}
    for record in evaluations:
        groups.setdefault(hashlib.sha256(record.code.encode()).hexdigest(), []).append(record)
    for sha, group in groups.items():
        timed = sorted(runs.get(sha, []))
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
        used = proposals.get(sha, [])
        if len(used) == 1 and len(group) == 1 and group[0].input_tokens is None:
            group[0].input_tokens, group[0].output_tokens = used[0]


def _spans(record: Evaluation, when: str) -> bool:
    """Whether a time lies in the evaluation's span; one without times spans all."""
    return (record.started_at or when) <= when <= (record.completed_at or when)
