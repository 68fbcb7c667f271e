"""``attempts``: one row per attempt of an agent; a node's id is the number of its attempt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

from kernel_archive.bins import N_BINS
from kernel_archive.readers.events import Attempt
from kernel_archive.readers.log_reader import LogReader, feedback_of
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import (
    object_of,
    seconds_between,
    step_number,
    text_of,
    whole_number,
)

#: A program that was started later than this after the one before it begins a new batch.
BATCH_SECONDS: Final = 1200
MAX_ROUNDS: Final = 8  # a brief with more goals, or a log with more batches, is no chain of rounds


class Attempts(LogReader):
    """An agent's run."""

    row_kind = RowKind(Attempt)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._expected: dict[str, int | None] = {}  # likeliest bin by node, as the author stated it

    def add_row(self, line: int, row: Attempt) -> None:
        """Add one attempt; without a result it is pending."""
        if row.evaluation is None:
            self.facts.n_pending += 1
            return
        node = str(row.attempt)
        earlier = self.evaluations.get(node)
        is_first = not self.evaluations or node == next(iter(self.evaluations))
        if earlier is not None and earlier.code != row.code:
            node, is_first = f"{node}@{line}", False
            message = f"an earlier attempt has this number; this one is kept as {node}"
            self.warning("duplicate-node", message, line=line)
        record = self.new_evaluation(
            node_id=node,
            code=row.code,
            parent_node_id=None if row.parent_attempt is None else str(row.parent_attempt),
            step=step_number(row.attempt),
            is_root=row.parent_attempt is None and is_first,
            started_at=row.started_at,
            completed_at=row.completed_at,
            gpu_seconds=seconds_between(row.started_at, row.completed_at),
        )
        self._expected[node] = _likeliest_bin(row.forecast)
        field = "evaluation.observation.feedback.kind"
        self.add_result(record, feedback_of(row.evaluation), line=line, field=field)

    def complete_facts(self) -> None:
        """Complete the facts, and add to every program what its author was told."""
        super().complete_facts()
        brief = object_of(object_of(self.facts.hyperparameters).get("brief"))
        batches: list[list[Evaluation]] = []
        started_at = None
        for record in self.evaluations.values():
            record.aim = text_of(brief.get("aim"))
            gap = seconds_between(started_at, record.started_at)
            if not batches or (gap is not None and gap > BATCH_SECONDS):
                batches.append([])
            batches[-1].append(record)
            started_at = record.started_at
        later = brief.get("later_goals")
        goals = [brief.get("goal_bin"), *(later if isinstance(later, list) else [])]
        expected = [[self._expected[record.node_id] for record in batch] for batch in batches]
        for batch, goal in zip(batches, batch_goals(goals, expected), strict=True):
            for record in batch:
                record.goal_bin = goal


def _likeliest_bin(forecast: dict[str, Any] | None) -> int | None:
    """Return the likeliest bin of an author's forecast; ``None`` where it has none."""
    p = object_of(forecast).get("probabilities")
    if not isinstance(p, list) or not p or not all(isinstance(x, int | float) for x in p):
        return None
    return p.index(max(p)) + 1


def batch_goals(goals: Sequence[Any], expected: Sequence[Sequence[int | None]]) -> list[int | None]:
    """Find the goal of every batch of a chain, from the likeliest bin of each of its programs.

    A brief lists the goals of the rounds in their order, and the log does not say which round a
    batch is of. So this tries every non-decreasing assignment of rounds to batches, and keeps the
    one whose goals are nearest to the bins that the authors expect.

    >>> batch_goals([1, 6], [[1, 1], [2, 1], [6, 5]])
    [1, 1, 6]
    """
    goals_are_bins = all(whole_number(goal, N_BINS) for goal in goals)
    is_decidable = len(goals) == 1 or not any(None in batch for batch in expected)
    if not goals_are_bins or not is_decidable or max(len(goals), len(expected)) > MAX_ROUNDS:
        return [None] * len(expected)

    def distance(assignment: Any) -> int:
        pairs = zip(assignment, expected, strict=True)
        return sum(abs(b - int(goal)) for goal, batch in pairs for b in batch if b is not None)

    assignments: list[Any] = list(combinations_with_replacement(goals, len(expected)))
    return list(min(assignments, key=distance))
