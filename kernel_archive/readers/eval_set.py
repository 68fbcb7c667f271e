"""``eval-set-jsonl``: the rows of an evaluation set as its builder wrote them, each a measured candidate."""

from __future__ import annotations

from typing import Final

import msgspec

from kernel_archive.bins import bin_of
from kernel_archive.readers.beside import load_object
from kernel_archive.readers.events import Hardware  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.reading import Reading, log_format
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import object_of, positive, text_of

_MANIFEST: Final = "eval_dataset_manifest.json"


class EvalRow(msgspec.Struct):
    """One row."""

    reference_code: str
    candidate_code: str
    aggregated_speedup: float | None = None
    hardware: Hardware | None = None
    true_bin: int | None = None
    source_id: str | None = None


class _EvalSet(Reading):
    """An evaluation set."""

    kind = RowKind(EvalRow)

    def take(self, line: int, row: EvalRow) -> None:
        """Take in one row."""
        speedup = positive(row.aggregated_speedup)
        if speedup is None:
            self.count("rows_without_speedup")
            message = "no finite speedup above 0; skipped"
            self.warning("null-score", message, line=line, field="aggregated_speedup")
            return
        if row.true_bin is not None and row.true_bin != bin_of(speedup, "released"):
            message = f"the label is not the one that the released rule gives to {speedup:.6g}"
            self.warning("label-differs", message, line=line, field="true_bin", value=str(row.true_bin))
        node = row.source_id or f"row-{line}"
        earlier = self.found.get(node)
        if earlier is not None and (earlier.code, earlier.speedup) == (row.candidate_code, speedup):
            earlier.n_logged += 1
            self.warning("doubled-result", "the row stands twice", line=line, value=node)
            return
        node = node if earlier is None else f"{node}@{line}"
        self.found[node] = Evaluation(
            node_id=node,
            code=row.candidate_code,
            outcome="success",
            source_file=self.file,
            source_line=line,
            speedup=speedup,
            gpu=row.hardware.device_name if row.hardware is not None else None,
            reference_code=row.reference_code,
        )

    def finish(self) -> None:
        """Facts that all rows share, and those of the manifest, which is written after the rows."""
        facts = self.facts
        references = {record.reference_code for record in self.found.values()}
        gpus = {record.gpu for record in self.found.values()}
        facts.reference_code = references.pop() if len(references) == 1 else None
        facts.gpu = gpus.pop() if len(gpus) == 1 else None
        manifest = load_object(self.run, _MANIFEST, self.report)
        if manifest is not None:
            facts.finished = True
            hardware = object_of(manifest.get("hardware"))
            facts.gpu = facts.gpu or text_of(hardware.get("device_name"))
            facts.software = {"hardware": hardware} if hardware else None


EVAL_SET_JSONL: Final = log_format(
    _EvalSet,
    name="eval-set-jsonl",
    title="An evaluation set as its builder wrote it; each row a measured candidate against its reference",
    expects="directories with eval_dataset.jsonl, or such files",
    log=("eval_dataset.jsonl",),
    beside=(_MANIFEST,),
    version=2,
)
