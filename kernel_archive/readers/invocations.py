"""What each call to a GPU or a model took, in time and tokens, added to the evaluations of a search.

Some searches keep a folder ``invocations/`` beside their log with one JSON file per call. A file names no evaluation: it belongs
to the one with the same program text.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.readers.values import natural, not_negative, text_of

if TYPE_CHECKING:
    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Evaluation, SearchFacts
    from kernel_archive.readers.report import Report

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


def apply_invocations(run: RunFiles, evaluations: list[Evaluation], facts: SearchFacts, report: Report) -> None:
    """Add GPU seconds and tokens from the invocation records of a run, where there are any.

    Records and evaluations of one program are joined in the order of time when there are equally many, and otherwise
    where exactly one record lies in an evaluation's time span. Tokens go to an evaluation when exactly one proposal and
    one evaluation have its program. The totals of the run count every record, joined or not.
    """
    calls = _Calls()
    for path in run.files:
        if path.parent.name != "invocations":
            continue
        record = run.json(path)
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            report.warning("bad-invocation", "an invocation record that cannot be read is skipped", file=run.name(path))
            continue
        calls.n += 1
        if "evaluation" in record["kind"] and record["kind"] != _FORECAST:
            calls.add_evaluation(record)
        elif "mutation" in record["kind"] or record["kind"] == _FORECAST:
            calls.add_model_call(record)
    if calls.n == 0:
        return
    facts.counts["invocations"] = calls.n
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
        _join(evaluations, calls)


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
