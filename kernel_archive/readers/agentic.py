"""``agentic-run``: one row per measurement that a coding agent in a terminal asked for.

The log names no parents and numbers nothing: a call's number is that of its line. Calls that the
infrastructure lost are missing; the seed's call is there only when its result was not cached.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

import msgspec

from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec reads the annotations
from kernel_archive.readers.log_reader import LogReader, log_format
from kernel_archive.readers.salvage import RowKind

_SEED: Final = "seed_kernel.py"


class _Call(msgspec.Struct):
    """One row."""

    kernel_source: str
    feedback: Feedback
    timestamp_utc: str | None = None


class _AgenticRun(LogReader):
    """A run of an agent in a terminal."""

    kind = RowKind(_Call)

    @cached_property
    def _seed(self) -> str | None:
        """The sha256 of the starting program."""
        path = self.run.find(_SEED)
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


AGENTIC_RUN: Final = log_format("agentic-run", _AgenticRun)
