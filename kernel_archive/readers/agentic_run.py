"""``agentic-run``: a coding agent in a terminal that wrote kernels and had them measured; one row is one measurement that it asked for.

The log names no parents and numbers nothing: a call's number is that of its line. Calls that the infrastructure lost are
not in it. The seed's own call is in it, first, only when its result was not cached.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.beside import load_object
from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.reading import Reading, log_format
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import BAD_JSON, any_json, natural, not_negative, object_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.salvage import Report

_SEED, _RESULT, _AGENT_LOG = "seed_kernel.py", "result.json", "agent_raw.log"
_CACHE: Final = "../baseline_cache/*.json"
_SHA_LENGTH: Final = 64


class Call(msgspec.Struct):
    """One row."""

    kernel_source: str
    feedback: Feedback
    sha256: str | None = None
    timestamp_utc: str | None = None


class _AgenticRun(Reading):
    """An agent's run."""

    kind = RowKind(Call)

    def __init__(self, run: RunFiles, path: Path, report: Report) -> None:
        super().__init__(run, path, report)
        seed = run.find(_SEED)
        data = run.whole(seed) if seed is not None else None
        self._seed = hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else None

    def take(self, line: int, row: Call) -> None:
        """Take in one call."""
        sha = hashlib.sha256(row.kernel_source.encode()).hexdigest()
        number = line - 1
        node = f"call-{number}" if f"call-{number}" not in self.found else f"call-{number}@{len(self.found)}"
        record = self.evaluation(
            row.feedback,
            line=line,
            node_id=node,
            code=row.kernel_source,
            step=number,
            is_root=number == 0 and sha == self._seed,
            completed_at=row.timestamp_utc,
        )
        if record is None:
            return
        if row.sha256 is not None and row.sha256 != sha:
            self.warning("wrong-sha256", "the source is not the one whose sha256 is logged", line=line)
        self.found[node] = record

    def finish(self) -> None:
        """The facts of the run."""
        facts = self.facts
        facts.problem = self.problem()
        result = load_object(self, _RESULT)
        facts.finished = result is not None
        facts.wall_seconds = not_negative(object_of(result).get("elapsed_s"))
        self._cache_facts()
        self._agent_log()

    def _cache_facts(self) -> None:
        """GPU, Triton version and aggregation stand in the name of the cached baseline only."""
        names = {p.name.split(".json")[0] for p in self.run.files if p.parent.name == "baseline_cache"}
        fitting = [n for n in names if self._seed is not None and n.startswith(f"{self._seed}_")]
        parts = fitting[0][_SHA_LENGTH + 1 :].rsplit("_", 2) if len(fitting) == 1 else []
        if len(parts) == 3 and all(parts):
            self.facts.gpu = parts[0]
            self.facts.software = {"triton": parts[1]}
            self.facts.measurement = {"aggregator": parts[2]}

    def _agent_log(self) -> None:
        """Model and tokens from the agent's own output: a mixed log in which only some lines are JSON."""
        path, facts = self.run.find(_AGENT_LOG), self.facts
        for item in self.run.lines(path) if path is not None else ():
            if isinstance(item, Finding):
                self.report.add(msgspec.structs.replace(item, severity="warning"))
                continue
            line = item[1]
            if not line.startswith(b"{") or (b'"init"' not in line and b'"result"' not in line):
                continue
            try:
                value: dict[str, Any] = object_of(any_json(line))
            except BAD_JSON:
                continue
            if value.get("type") == "init":
                facts.model = facts.model or text_of(value.get("model"))
            elif value.get("type") == "result":
                stats = object_of(value.get("stats"))
                sent, answered = natural(stats.get("input_tokens")), natural(stats.get("output_tokens"))
                facts.input_tokens = sent if sent is not None else facts.input_tokens
                facts.output_tokens = answered if answered is not None else facts.output_tokens


AGENTIC_RUN: Final = log_format(
    _AgenticRun,
    name="agentic-run",
    title="Benchmark calls of a command-line agent (agentic gemini_cli v1)",
    expects="run directories with trajectory.jsonl (seed_kernel.py, result.json, agent_raw.log beside it), or the log files",
    log=("trajectory.jsonl",),
    beside=(_SEED, _RESULT, _AGENT_LOG, _CACHE),
    version=2,
)
