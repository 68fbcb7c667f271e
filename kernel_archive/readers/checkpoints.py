"""Saved states of searches: ``puct-``, ``hill-climbing-`` and ``greedy-checkpoint``.

All are JSON: a Python pickle, as hill climbs write it, is refused, since reading one can run
anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.events import Feedback, Node
from kernel_archive.readers.log_reader import LogReader, feedback_of
from kernel_archive.readers.records import EVALUATION_FAILED
from kernel_archive.readers.values import inner_value, object_of, objects_of, text_of, whole_number
from kernel_archive.untrusted import misfit

T = TypeVar("T")
_FIX_PICKLE: Final = (
    "Where the search's own package is installed, write JSON: json.dump({'archive': "
    "[n.model_dump(mode='json') for n in c.archive], 'visited': [], "
    "'current_step': c.current_step}, open('checkpoint.json', 'w'))"
)


class Checkpoint(LogReader):
    """A search whose state is one JSON value."""

    def read_state(self, path: Path) -> dict[str, Any]:
        """Read the whole state; empty, reported, where it can't be."""
        if self.run.head(path, 1) == b"\x80":  # as every pickle of protocol 2 or later begins
            message = "a Python pickle is not read: loading one can run anything"
            self.error("python-pickle", message, fix=_FIX_PICKLE)
            return {}
        value = self.run.json(path)
        if isinstance(value, Finding):
            self.findings.add(value)
        return object_of(value)

    def decode_node(self, kind: type[T], value: Any, where: str) -> T | None:
        """Decode one node; ``None``, reported, where its fields don't fit."""
        try:
            # By way of JSON: NaN, which is no value, becomes null.
            return msgspec.json.decode(msgspec.json.encode(value), type=kind)
        except msgspec.ValidationError as error:
            self.error("bad-node", f"{misfit(error)[0]}; the node is skipped", field=where)
            return None


class ArchiveCheckpoint(Checkpoint):
    """The nodes that a search kept, with their ancestors; programs that failed are not in it."""

    def read(self, path: Path) -> bool:
        """Read the archive; parents are the nearest ancestors stated."""
        state = self.read_state(path)
        archive, seeds = state.get("archive"), state.get("seed_ids")
        if not isinstance(archive, list):
            return False
        self.facts.counts["steps_completed"] += whole_number(state.get("current_step")) or 0
        for i, entry in enumerate(archive):
            node = self.decode_node(Node, entry, f"archive[{i}]")
            if node is None:
                continue
            if node.evaluation is not None and node.evaluation.observation.kind == "forecast":
                self.facts.counts["compound_forecasts"] += 1
                continue
            is_seed = node.is_seed or (isinstance(seeds, list) and node.ulid in seeds)
            record = self.new_evaluation(
                node_id=node.ulid,
                code=node.program_code,
                parent_node_id=node.ancestors[0] if node.ancestors else None,
                ancestor_node_ids=tuple(node.ancestors[1:]),
                is_root=is_seed or not node.ancestors,
            )
            field = f"archive[{i}].evaluation"
            self.add_result(record, feedback_of(node.evaluation), field=field)
        return True


class _Scored(msgspec.Struct):
    """The result of a greedy search's candidate."""

    kind: str
    speedup: float | None = None
    reason: str | None = None
    execution_feedback: Feedback | None = None

    def verdict(self) -> Feedback:
        """Return what the harness said, unless the search called the time invalid."""
        feedback, is_valid = self.execution_feedback, self.kind == "valid"
        if feedback is None:
            kind = "success" if is_valid else self.reason or ""
            return Feedback(kind, speedup=self.speedup if is_valid else None)
        if is_valid or feedback.kind != "success":
            return feedback
        message = f"the search called the timed result invalid: {self.reason}"
        return Feedback("incorrect", error_message=message)


class _Candidate(msgspec.Struct):
    """A candidate; without a result its scoring raised, or never came to an end."""

    ulid: str
    code: str
    parent_ulid: str | None = None
    evaluation: _Scored | None = None


class GreedyCheckpoint(Checkpoint):
    """Every candidate of a greedy search with its result, and what its rounds say of them."""

    def read(self, path: Path) -> bool:
        """Read a checkpoint; return whether it has candidates."""
        state = self.read_state(path)
        candidates = inner_value(state, "candidates.candidates")
        if not isinstance(candidates, dict):
            return False
        steps: dict[str, int] = {}  # candidate -> its round
        raised: dict[str, dict[str, Any]] = {}  # candidate -> the error of its scoring
        self.facts.n_mutations_failed = 0
        rounds = inner_value(state, "trace.rounds") or state.get("rounds")
        for step, entry in enumerate(rounds if isinstance(rounds, list) else []):
            self.facts.counts["steps_completed"] += 1
            for attempt in objects_of(inner_value(entry, "mutation_attempts")) or []:
                if attempt.get("kind") == "failure":
                    self.facts.n_mutations_failed += 1
                else:
                    steps[str(attempt.get("candidate_ulid"))] = step
            for attempt in objects_of(inner_value(entry, "scoring_attempts")) or []:
                if attempt.get("kind") == "failure":
                    raised[str(attempt.get("candidate_ulid"))] = object_of(attempt.get("error"))
        for name, entry in candidates.items():
            where = f"candidates.candidates.{name}"
            candidate = self.decode_node(_Candidate, entry, where)
            if candidate is None:
                continue
            record = self.new_evaluation(
                node_id=candidate.ulid,
                code=candidate.code,
                parent_node_id=candidate.parent_ulid,
                step=steps.get(candidate.ulid),
                is_root=candidate.parent_ulid is None,
            )
            if candidate.evaluation is not None:
                self.add_result(record, candidate.evaluation.verdict(), field=where)
            elif candidate.ulid in raised:
                self.facts.counts["evaluation_failed"] += 1
                error = raised[candidate.ulid]
                record.error_type = EVALUATION_FAILED
                record.error_text = text_of(error.get("exception_repr") or error.get("message"))
                self.add(record)
            else:
                self.facts.n_pending += 1
        return True
