"""``puct-events`` and ``bin-filler``: searches that wrote one line for everything that happened.

Both are logs of PUCT, a search that goes on from the programs with the best rewards and few visits. A bin filler looks for programs of
one speedup bin, not for the fastest. What the lines mean is said in :mod:`kernel_archive.readers.event_log`.
"""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.readers.beside import FILES_BESIDE, add_facts, load_object
from kernel_archive.readers.event_log import CONFIRMED_FILES, EVENTS_FILE, EventLog
from kernel_archive.readers.reading import log_format
from kernel_archive.readers.values import object_of, text_of

_SEED, _MANIFEST = "seed.json", "../eval_dataset_manifest.json"
_TARGET: Final = ("target_bin", "target_band_lo", "target_band_hi", "target_midpoint_speedup", "seed_source_id")


class _Puct(EventLog):
    """A search with the files of its run around it."""

    def finish(self) -> None:
        """The log's own facts, then those of the files beside it."""
        super().finish()
        add_facts(self.run, self.evaluations(), self.facts, self.report)


class _BinFiller(EventLog):
    """A search for programs of one speedup bin. Its reward is a distance to that bin."""

    def finish(self) -> None:
        """Reference and GPU from the seed row, the target from the summary, then the other files."""
        super().finish()
        facts = self.facts
        seed, manifest, summary = (
            load_object(self.run, name, self.report) or {} for name in (_SEED, _MANIFEST, "summary.json")
        )
        facts.reference_code = facts.reference_code or text_of(seed.get("reference_code"))
        hardware = object_of(seed.get("hardware")) or object_of(manifest.get("hardware"))
        facts.gpu = facts.gpu or text_of(hardware.get("device_name"))
        facts.software = {"hardware": hardware} if hardware else None
        target: dict[str, Any] = {name: summary[name] for name in _TARGET if name in summary}
        facts.hyperparameters = {**object_of(summary.get("search_config")), **target} or None
        add_facts(self.run, self.evaluations(), facts, self.report)


PUCT_EVENTS: Final = log_format(
    _Puct,
    name="puct-events",
    title="Event log of a max-reward PUCT search (v2, v3), GPU-mode, KernelBench, legacy or compound observations",
    expects="run directories with events.jsonl (other files of the run beside it), or the log files",
    log=(EVENTS_FILE,),
    beside=(*FILES_BESIDE, *CONFIRMED_FILES),
    version=2,
)
BIN_FILLER: Final = log_format(
    _BinFiller,
    name="bin-filler",
    title="Event log of a search for programs of one speedup bin; its reward is no speedup",
    expects="directories of one bin with events.jsonl (summary.json and seed.json beside it), or the log files",
    log=(EVENTS_FILE,),
    beside=(_SEED, _MANIFEST, *FILES_BESIDE),
    version=2,
)
