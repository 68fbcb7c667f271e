"""``attempts``: one row per attempt of an agent; a node's id is the number of its attempt."""

from __future__ import annotations

from typing import Final

from kernel_archive.readers.events import Attempt
from kernel_archive.readers.log_reader import LogReader, feedback_of, log_format
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import seconds_between, step_number


class _Attempts(LogReader):
    """An agent's run."""

    kind = RowKind(Attempt)

    def add_row(self, line: int, row: Attempt) -> None:
        """Add one attempt; without a result it is pending."""
        if row.evaluation is None:
            self.facts.n_pending += 1
            return
        node = str(row.attempt)
        earlier = self.nodes.get(node)
        is_first = not self.nodes or node == next(iter(self.nodes))
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
        field = "evaluation.observation.feedback.kind"
        self.add_result(record, feedback_of(row.evaluation), line=line, field=field)


ATTEMPTS: Final = log_format("attempts", _Attempts)
