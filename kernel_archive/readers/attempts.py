"""``attempts``: one row per attempt of an agent, written one after another by hand or by a model."""

from __future__ import annotations

from typing import Final

from kernel_archive.readers.beside import FILES_BESIDE, add_facts
from kernel_archive.readers.events import Attempt
from kernel_archive.readers.reading import Reading, feedback_of, log_format
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import seconds_between, step_number


class _Attempts(Reading):
    """An agent's run; a node's id is the number of its attempt."""

    kind = RowKind(Attempt)

    def take(self, line: int, row: Attempt) -> None:
        """Take in one attempt; without a result it is pending."""
        feedback = feedback_of(row.evaluation)
        if feedback is None:
            self.facts.n_pending += 1
            return
        node = str(row.attempt)
        earlier = self.found.get(node)
        if earlier is not None and earlier.code != row.code:
            node = f"{node}@{line}"
            self.warning("duplicate-node", f"the attempt's number is used again; kept as {node}", line=line)
        record = self.evaluation(
            feedback,
            line=line,
            field="evaluation.observation.feedback.kind",
            node_id=node,
            code=row.code,
            parent_node_id=None if row.parent_attempt is None else str(row.parent_attempt),
            step=step_number(row.attempt),
            is_root=row.parent_attempt is None and (not self.found or node == next(iter(self.found))),
            started_at=row.started_at,
            completed_at=row.completed_at,
            gpu_seconds=seconds_between(row.started_at, row.completed_at),
        )
        if record is not None:
            self.keep_last(record, "the attempt is logged again")

    def finish(self) -> None:
        """The problem, and the files beside the log."""
        self.facts.problem = self.problem()
        add_facts(self)


ATTEMPTS: Final = log_format(
    _Attempts,
    name="attempts",
    title="Attempts of an agent, one row each with program, parent attempt and measurement",
    expects="run directories with attempts.jsonl (and run.json, timing.jsonl where there are), or the log files",
    log=("attempts.jsonl",),
    beside=FILES_BESIDE,
    version=2,
)
