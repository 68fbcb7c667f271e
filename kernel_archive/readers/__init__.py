"""Readers: each turns the files of a run into typed records, by one engine and facts of its own."""

from __future__ import annotations

from typing import Final

from kernel_archive.readers import attempts, checkpoints, hub, puct, rows, sql
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.log_reader import LogReader, reader_spec

#: Format -> how its logs are read; ``formats.toml`` has the facts of each.
_LOGS: Final[dict[str, type[LogReader]]] = {
    "puct-events": puct.EventLog,
    "puct-checkpoint": checkpoints.ArchiveCheckpoint,
    "greedy-checkpoint": checkpoints.GreedyCheckpoint,
    "hill-climbing-checkpoint": checkpoints.ArchiveCheckpoint,
    "ttt-rollouts": rows.Rollouts,
    "agentic-run": rows.AgenticRun,
    "theory-builder": puct.TheoryBuilder,
    "bin-filler": puct.EventLog,
    "eval-set-jsonl": rows.EvalSet,
    "attempts": attempts.Attempts,
    "hub-events": hub.HubEvents,
    "hub-eval-set": hub.PublishedSplit,
    "hub-discovery-pairs": hub.PublishedSplit,
    "hub-training-pool": hub.PublishedSplit,
}
READERS: Final[dict[str, ReaderSpec]] = {
    **{name: reader_spec(name, reader_class) for name, reader_class in _LOGS.items()},
    sql.SQL.name: sql.SQL,
}
