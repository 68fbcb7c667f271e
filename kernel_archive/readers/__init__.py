"""Readers: raw formats, each a plain function from files to a stream of typed records; close relatives share a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kernel_archive.readers.checkpoints import GREEDY, HILL_CLIMBING, PUCT_V1
from kernel_archive.readers.event_log import BIN_FILLER, PUCT_EVENTS, THEORY_BUILDER
from kernel_archive.readers.hub import DISCOVERY_PAIRS, EVAL_SET, HUB_EVENTS, TRAINING_POOL
from kernel_archive.readers.kernelbench import KERNELBENCH
from kernel_archive.readers.measurements import MEASUREMENTS
from kernel_archive.readers.openevolve import OPENEVOLVE
from kernel_archive.readers.row_logs import AGENTIC_RUN, ATTEMPTS, EVAL_SET_JSONL, TTT_ROLLOUTS

if TYPE_CHECKING:
    from kernel_archive.readers.files import ReaderSpec

READERS: Final[dict[str, ReaderSpec]] = {
    spec.name: spec
    for spec in (
        PUCT_EVENTS,
        PUCT_V1,
        GREEDY,
        HILL_CLIMBING,
        TTT_ROLLOUTS,
        AGENTIC_RUN,
        THEORY_BUILDER,
        BIN_FILLER,
        EVAL_SET_JSONL,
        ATTEMPTS,
        HUB_EVENTS,
        EVAL_SET,
        DISCOVERY_PAIRS,
        TRAINING_POOL,
        MEASUREMENTS,
        KERNELBENCH,
        OPENEVOLVE,
    )
}
