"""``ttt-rollouts``: one row per answer of a model that is trained while it searches.

Its reward is a ratio of microseconds, not a speedup, and is not read. An answer without a program
was never run.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec reads the annotations
from kernel_archive.readers.log_reader import LogReader, log_format
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import natural, not_negative, step_number


class _Rollout(msgspec.Struct):
    """One row."""

    candidate_id: str
    outcome: Feedback
    parsed_code: str | None = None
    parent_id: str | None = None
    step: int | None = None
    group_index: int | None = None
    rollout_index: int | None = None
    timestamp_utc: str | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    eval_time_s: float | None = None


class _Rollouts(LogReader):
    """A training run."""

    kind = RowKind(_Rollout)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: Step, group and rollout index of each row.
        self._places: set[tuple[int | None, int | None, int | None]] = set()
        self.facts.input_tokens = self.facts.output_tokens = self.facts.n_mutations_failed = 0

    def add_row(self, line: int, row: _Rollout) -> None:
        """Add one rollout."""
        self.facts.counts["rollouts"] += 1
        self._places.add((row.step, row.group_index, row.rollout_index))
        facts, sent, answered = self.facts, natural(row.prompt_tokens), natural(row.response_tokens)
        facts.input_tokens = (facts.input_tokens or 0) + (sent or 0)
        facts.output_tokens = (facts.output_tokens or 0) + (answered or 0)
        if row.outcome.kind == "parse_failure" or row.parsed_code is None:
            facts.n_mutations_failed = (facts.n_mutations_failed or 0) + 1
            return
        record = self.new_evaluation(
            node_id=row.candidate_id,
            code=row.parsed_code,
            parent_node_id=row.parent_id,
            step=step_number(row.step),
            completed_at=row.timestamp_utc,
            gpu_seconds=not_negative(row.eval_time_s),
            input_tokens=sent,
            output_tokens=answered,
        )
        self.add_result(record, row.outcome, line=line, field="outcome.kind")

    def complete_facts(self) -> None:
        """Add the facts of the run. The real trainer logs step 0 throughout: no step at all."""
        n_rollouts = self.facts.counts["rollouts"]
        if len(self._places) < n_rollouts and len({step for step, _, _ in self._places}) == 1:
            self.facts.counts["constant_steps"] += n_rollouts
            for record in self.nodes.values():
                record.step = None
        super().complete_facts()


TTT_ROLLOUTS: Final = log_format("ttt-rollouts", _Rollouts)
