"""Readers: each turns the files of a run into typed records, by one engine and facts of its own."""

from __future__ import annotations

from typing import Final

from kernel_archive.readers import attempts, checkpoints, hub, puct, rows, sql
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.log_reader import LogReader, log_format

#: Format -> how its logs are read; ``formats.toml`` has the facts of each.
_LOGS: Final[dict[str, type[LogReader]]] = {
    "puct-events": puct.EventLog,
    "puct-checkpoint": checkpoints.Archived,
    "greedy-checkpoint": checkpoints.Greedy,
    "hill-climbing-checkpoint": checkpoints.Archived,
    "ttt-rollouts": rows.Rollouts,
    "agentic-run": rows.AgenticRun,
    "theory-builder": puct.TheoryBuilder,
    "bin-filler": puct.EventLog,
    "eval-set-jsonl": rows.EvalSet,
    "attempts": attempts.Attempts,
    "hub-events": hub.HubEvents,
    "hub-eval-set": hub.Published,
    "hub-discovery-pairs": hub.Published,
    "hub-training-pool": hub.Published,
}
READERS: Final[dict[str, ReaderSpec]] = {
    **{name: log_format(name, reader) for name, reader in _LOGS.items()},
    sql.SQL.name: sql.SQL,
}
