"""``greedy-checkpoint``: the whole state of a greedy search as one JSON object, every candidate with its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.beside import UPSTREAM_FILES, read_upstream
from kernel_archive.readers.checkpoints import build_node
from kernel_archive.readers.events import Feedback
from kernel_archive.readers.reading import EVALUATION_FAILED, Reading, log_format
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.values import object_of, text_of

if TYPE_CHECKING:
    from pathlib import Path


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


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


class _Greedy(Reading):
    """The candidates, and what the rounds say of them."""

    _steps: dict[str, int]
    _raised: dict[str, str | None]

    def read(self, path: Path) -> bool:
        """Take in a checkpoint."""
        value = self.run.json(path)
        if isinstance(value, Finding):
            self.report.add(value)
        candidates = object_of(object_of(value).get("candidates")).get("candidates")
        if not isinstance(candidates, dict):
            return False
        self.take_rounds(object_of(value.get("trace")).get("rounds") or value.get("rounds"))
        for name, candidate in candidates.items():
            self.take_candidate(name, candidate)
        self.facts.problem = self.problem()
        return True

    def finish(self) -> None:
        """The facts of the files beside."""
        read_upstream(self.run, self.facts, self.report)

    def take_rounds(self, rounds: Any) -> None:
        """Take in the step of each candidate, the scorings that raised and the proposals that failed."""
        self._steps, self._raised = {}, {}
        failed = 0
        rounds = rounds if isinstance(rounds, list) else []
        for index, entry in enumerate(rounds):
            for attempt in _dicts(object_of(entry).get("mutation_attempts")):
                failed += attempt.get("kind") == "failure"
                if isinstance(attempt.get("candidate_ulid"), str) and attempt.get("kind") != "failure":
                    self._steps[attempt["candidate_ulid"]] = index
            for attempt in _dicts(object_of(entry).get("scoring_attempts")):
                if attempt.get("kind") == "failure" and isinstance(attempt.get("candidate_ulid"), str):
                    error = object_of(attempt.get("error"))
                    text = text_of(error.get("exception_repr")) or text_of(error.get("message"))
                    self._raised[attempt["candidate_ulid"]] = text
        self.facts.n_mutations_failed = failed
        self.count("steps_completed", len(rounds))

    def take_candidate(self, name: str, value: Any) -> None:
        """Take in one candidate."""
        where = f"candidates.candidates.{name}"
        candidate: Candidate | None = build_node(Candidate, value, where, self)
        if candidate is None:
            return
        identity: dict[str, Any] = {
            "node_id": candidate.ulid,
            "code": candidate.code,
            "parent_node_id": candidate.parent_ulid,
            "step": self._steps.get(candidate.ulid),
            "is_root": candidate.parent_ulid is None,
        }
        record: Evaluation | None = None
        if candidate.evaluation is not None:
            record = self._scored(candidate.evaluation, where, identity)
        elif candidate.ulid in self._raised:
            self.count("evaluation_failed")
            identity |= {"error_type": EVALUATION_FAILED, "error_text": self._raised[candidate.ulid]}
            record = Evaluation(source_file=self.file, outcome="infrastructure_failure", **identity)
        else:
            self.facts.n_pending += 1
        if record is not None:
            self.keep_last(record, "a candidate stands twice", "duplicate-node", field=where)

    def _scored(self, scored: Scored, where: str, identity: dict[str, Any]) -> Evaluation | None:
        """The harness's verdict, unless the search called the candidate invalid for its time."""
        feedback = scored.execution_feedback
        if feedback is None:
            valid = scored.kind == "valid"
            feedback = Feedback("success" if valid else scored.reason or "", speedup=scored.speedup if valid else None)
        elif feedback.kind == "success" and scored.kind != "valid":
            text = "the search called the timed result invalid"
            identity |= {"outcome": "incorrect", "error_type": scored.reason, "error_text": text}
            return Evaluation(source_file=self.file, **identity)
        return self.evaluation(feedback, field=where, **identity)


GREEDY: Final = log_format(
    _Greedy,
    name="greedy-checkpoint",
    title="Checkpoint of a greedy search: every candidate with its result",
    expects="directories with checkpoint.json, or the checkpoint files",
    log=("checkpoint.json",),
    beside=UPSTREAM_FILES,
    version=2,
)
