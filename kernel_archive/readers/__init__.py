"""Readers: each turns the files of a run into typed records, by one engine and facts of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kernel_archive.readers.agentic import AGENTIC_RUN
from kernel_archive.readers.attempts import ATTEMPTS
from kernel_archive.readers.checkpoints import GREEDY, HILL_CLIMBING, PUCT_V1
from kernel_archive.readers.eval_set import EVAL_SET_JSONL
from kernel_archive.readers.hub import DISCOVERY_PAIRS, EVAL_SET, HUB_EVENTS, TRAINING_POOL
from kernel_archive.readers.puct import BIN_FILLER, PUCT_EVENTS
from kernel_archive.readers.rollouts import TTT_ROLLOUTS
from kernel_archive.readers.sql import SQL
from kernel_archive.readers.theory_builder import THEORY_BUILDER

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
        SQL,
    )
}
