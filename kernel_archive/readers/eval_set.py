"""``eval-set-jsonl``: an evaluation set as its builder wrote it, each row a measured candidate."""

from __future__ import annotations

from typing import Final

import msgspec

from kernel_archive.bins import bin_of
from kernel_archive.readers.events import Feedback, Hardware
from kernel_archive.readers.log_reader import LogReader, log_format
from kernel_archive.readers.salvage import RowKind


class _PublishedEntry(msgspec.Struct):
    """One row."""

    reference_code: str
    candidate_code: str
    aggregated_speedup: float | None = None
    hardware: Hardware | None = None
    true_bin: int | None = None
    source_id: str | None = None


class _EvalSet(LogReader):
    """An evaluation set."""

    kind = RowKind(_PublishedEntry)

    def add_row(self, line: int, row: _PublishedEntry) -> None:
        """Add one measured candidate."""
        node = row.source_id or f"row-{line}"
        earlier = self.nodes.get(node)
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
        references = {record.reference_code for record in self.nodes.values()}
        gpus = {record.gpu for record in self.nodes.values()}
        self.facts.reference_code = references.pop() if len(references) == 1 else None
        self.facts.gpu = gpus.pop() if len(gpus) == 1 else None
        super().complete_facts()


EVAL_SET_JSONL: Final = log_format("eval-set-jsonl", _EvalSet)
