"""``greedy-checkpoint``: the whole state of a greedy search as one JSON object, every candidate with its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.readers.checkpoints import read_whole
from kernel_archive.readers.events import Feedback
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.fold import EVALUATION_FAILED
from kernel_archive.readers.lenient import BAD_JSON, build, decode_loose, safe_text
from kernel_archive.readers.observations import Judge, Verdict
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.run_facts import UPSTREAM_FILES, object_of, read_upstream
from kernel_archive.readers.sniff import nothing_read, wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["SPEC", "read"]

_CHECKPOINT = "checkpoint.json"


class Scored(msgspec.Struct):
    """A candidate's result."""

    kind: str
    speedup: float | None = None
    reason: str | None = None
    execution_feedback: Feedback | None = None


class Candidate(msgspec.Struct):
    """One candidate; without a result its scoring raised, or never came to an end."""

    ulid: str
    code: str
    parent_ulid: str | None = None
    evaluation: Scored | None = None


class _Trace:
    """What the rounds say: the step of each candidate, the scorings that raised, the proposals that failed."""

    def __init__(self, rounds: Any) -> None:
        self.steps: dict[str, int] = {}
        self.raised: dict[str, str | None] = {}
        self.n_failed = 0
        self.n_rounds = 0
        for index, entry in enumerate(rounds if isinstance(rounds, list) else ()):
            self.n_rounds += 1
            for attempt in _dicts(object_of(entry).get("mutation_attempts")):
                if attempt.get("kind") == "failure":
                    self.n_failed += 1
                elif isinstance(attempt.get("candidate_ulid"), str):
                    self.steps[attempt["candidate_ulid"]] = index
            for attempt in _dicts(object_of(entry).get("scoring_attempts")):
                ulid = attempt.get("candidate_ulid")
                if attempt.get("kind") == "failure" and isinstance(ulid, str):
                    error = object_of(attempt.get("error"))
                    text = error.get("exception_repr") or error.get("message")
                    self.raised[ulid] = text if isinstance(text, str) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _verdict(scored: Scored, judge: Judge) -> Verdict | None:
    """The verdict: the harness's feedback, unless the search called the candidate invalid for its time."""
    feedback = scored.execution_feedback
    if feedback is None:
        if scored.kind == "valid":
            return judge.verdict(Feedback("success", speedup=scored.speedup))
        outcome = {"compile_failed": "compile_failed", "incorrect": "incorrect"}.get(scored.reason or "")
        return judge.verdict(Feedback(outcome)) if outcome else None
    verdict = judge.verdict(feedback)
    if verdict is not None and verdict.outcome == "success" and scored.kind != "valid":
        return Verdict("incorrect", error_type=scored.reason, error_text="the search called the timed result invalid")
    return verdict


def read(run: RunFiles) -> Iterator[Record]:
    """One greedy search: an evaluation per scored candidate, the facts, and what was wrong."""
    report = Report()
    path = run.path if run.path.is_file() else run.find(_CHECKPOINT)
    if path is None:
        yield wrong_format(run, SPEC)
        return
    file = run.name(path)
    data = read_whole(run, path, report)
    try:
        value = decode_loose(data) if data is not None else None
    except BAD_JSON as error:
        report.error("bad-json", f"not valid JSON: {error}; nothing of it can be used", file=file)
        value = None
    candidates = object_of(object_of(value).get("candidates")).get("candidates")
    if not isinstance(candidates, dict):
        yield from nothing_read(run, SPEC, path, report)
        return
    judge, facts = Judge(), SearchFacts()
    trace = _Trace(object_of(object_of(value).get("trace")).get("rounds") or object_of(value).get("rounds"))
    found: list[Evaluation] = []
    for name, entry in candidates.items():
        where = f"candidates.candidates.{name}"
        odd: list[tuple[str, Any]] = []
        try:
            candidate = build(Candidate, entry if isinstance(entry, dict) else {}, odd)
        except (ValueError, RecursionError) as error:
            report.error("bad-node", f"a candidate without {error}; skipped", file=file, field=where)
            continue
        for field, given in odd:
            report.warning("odd-field", "left out", file=file, field=f"{where}.{field}", value=given)
        fields = _fields(candidate, trace, judge, facts)
        if fields is None:
            if candidate.evaluation is not None:
                report.error("unknown-outcome", "a candidate without a known outcome; skipped", file=file, field=where)
            continue
        found.append(
            Evaluation(
                node_id=safe_text(candidate.ulid),
                code=candidate.code,
                source_file=file,
                parent_node_id=None if candidate.parent_ulid is None else safe_text(candidate.parent_ulid),
                step=trace.steps.get(candidate.ulid),
                is_root=candidate.parent_ulid is None,
                **fields,
            )
        )
    facts.problem = judge.problem()
    facts.n_mutations_failed = trace.n_failed
    facts.counts["steps_completed"] = trace.n_rounds
    read_upstream(run, facts, report)
    yield from found
    yield from report
    yield facts


def _fields(candidate: Candidate, trace: _Trace, judge: Judge, facts: SearchFacts) -> dict[str, Any] | None:
    """The outcome's fields; ``None`` where there is none (a candidate that was never scored is counted)."""
    if candidate.evaluation is not None:
        verdict = _verdict(candidate.evaluation, judge)
        return None if verdict is None else verdict.fields()
    if candidate.ulid not in trace.raised:
        facts.n_pending += 1
        return None
    facts.counts["evaluation_failed"] = facts.counts.get("evaluation_failed", 0) + 1
    return Verdict(
        "infrastructure_failure", error_type=EVALUATION_FAILED, error_text=trace.raised[candidate.ulid]
    ).fields()


SPEC = ReaderSpec(
    name="greedy-checkpoint",
    title="Checkpoint of a greedy search: every candidate with its result",
    expects="directories with checkpoint.json, or the checkpoint files",
    files=(_CHECKPOINT, *UPSTREAM_FILES),
    version=1,
    read=read,
)
