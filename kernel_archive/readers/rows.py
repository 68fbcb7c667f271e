"""Logs with a row per program: ``agentic-run``, ``ttt-rollouts`` and ``eval-set-jsonl``."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import msgspec

from kernel_archive.bins import bin_of
from kernel_archive.readers.events import Feedback, Hardware
from kernel_archive.readers.log_reader import LogReader
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import not_negative, step_number, whole_number


class _Call(msgspec.Struct):
    """A measurement that a coding agent in a terminal asked for."""

    kernel_source: str
    feedback: Feedback
    timestamp_utc: str | None = None


class AgenticRun(LogReader):
    """A run of an agent in a terminal; it names no parents, and a call's number is its line's.

    Calls that the infrastructure lost are missing; the seed's is there only when it was not cached.
    """

    row_kind = RowKind(_Call)

    @cached_property
    def _seed(self) -> str | None:
        """The sha256 of the starting program."""
        path = self.run.find("seed_kernel.py")
        data = self.run.whole(path) if path is not None else None
        return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else None

    def add_row(self, line: int, row: _Call) -> None:
        """Add one call."""
        number = line - 1
        sha = hashlib.sha256(row.kernel_source.encode()).hexdigest()
        record = self.new_evaluation(
            node_id=f"call-{number}",
            code=row.kernel_source,
            step=number,
            is_root=number == 0 and sha == self._seed,
            completed_at=row.timestamp_utc,
        )
        self.add_result(record, row.feedback, line=line)


class _Rollout(msgspec.Struct):
    """An answer of a model that is trained while it searches."""

    candidate_id: str
    outcome: Feedback
    parsed_code: str | None = None
    parent_id: str | None = None
    step: int | None = None
    timestamp_utc: str | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    eval_time_s: float | None = None


class Rollouts(LogReader):
    """A training run. Its reward is a ratio of microseconds, not a speedup, and is not read."""

    row_kind = RowKind(_Rollout)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.facts.n_mutations_failed = 0

    def add_row(self, line: int, row: _Rollout) -> None:
        """Add one rollout; without a program it was never run."""
        self.facts.counts["rollouts"] += 1
        input_tokens = whole_number(row.prompt_tokens)
        output_tokens = whole_number(row.response_tokens)
        self.add_tokens(input_tokens, output_tokens)
        if row.outcome.kind == "parse_failure" or row.parsed_code is None:
            self.facts.n_mutations_failed = (self.facts.n_mutations_failed or 0) + 1
            return
        record = self.new_evaluation(
            node_id=row.candidate_id,
            code=row.parsed_code,
            parent_node_id=row.parent_id,
            step=step_number(row.step),
            completed_at=row.timestamp_utc,
            gpu_seconds=not_negative(row.eval_time_s),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        self.add_result(record, row.outcome, line=line, field="outcome.kind")


class _MeasuredCandidate(msgspec.Struct):
    """A measured candidate."""

    reference_code: str
    candidate_code: str
    aggregated_speedup: float | None = None
    hardware: Hardware | None = None
    true_bin: int | None = None
    source_id: str | None = None


class EvalSet(LogReader):
    """An evaluation set as its builder wrote it."""

    row_kind = RowKind(_MeasuredCandidate)

    def add_row(self, line: int, row: _MeasuredCandidate) -> None:
        """Add one measured candidate."""
        node = row.source_id or f"row-{line}"
        earlier = self.evaluations.get(node)
        if earlier is not None and earlier.code != row.candidate_code:
            node = f"{node}@{line}"
        record = self.new_evaluation(
            node_id=node,
            code=row.candidate_code,
            gpu=row.hardware.device_name if row.hardware is not None else None,
            reference_code=row.reference_code,
        )
        feedback = Feedback("success", aggregated_speedup=row.aggregated_speedup)
        self.add_result(record, feedback, line=line)
        label = None if record.speedup is None else bin_of(record.speedup, "released")
        if row.true_bin is not None and label not in (None, row.true_bin):
            message = f"the released rule gives {label} to {record.speedup:.6g}"
            where = {"field": "true_bin", "value": str(row.true_bin)}
            self.warning("label-differs", message, line=line, **where)

    def complete_facts(self) -> None:
        """Add the facts that all rows share, and those of the manifest, which is written last."""
        for column in ("reference_code", "gpu"):
            stated = {getattr(record, column) for record in self.evaluations.values()}
            setattr(self.facts, column, stated.pop() if len(stated) == 1 else None)
        super().complete_facts()
