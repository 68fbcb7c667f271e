"""``agentic-run``: the benchmark calls of a command-line agent, one row each.

The log names no parents. Calls that the infrastructure lost are not in it. The seed's own call is in it only when its
result was not cached.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.files import ReaderSpec, open_binary
from kernel_archive.readers.jsonl import Rows
from kernel_archive.readers.lenient import BAD_JSON, decode_loose, natural, not_negative
from kernel_archive.readers.observations import Judge
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.run_facts import load_object, object_of, text_of
from kernel_archive.readers.sniff import nothing_read, wrong_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["SPEC", "read"]

_LOG, _SEED, _RESULT, _AGENT_LOG = "trajectory.jsonl", "seed_kernel.py", "result.json", "agent_raw.log"
_CACHE: Final = "../baseline_cache/*.json"
_SHA_LENGTH: Final = 64
_MAX_SEED_BYTES: Final = 16 * 1024 * 1024


class Call(msgspec.Struct):
    """One row."""

    kernel_source: str
    feedback: Feedback
    sha256: str | None = None
    timestamp_utc: str | None = None
    path: str | None = None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _seed_sha(run: RunFiles) -> str | None:
    path = run.find(_SEED)
    if path is None:
        return None
    try:
        with open_binary(path) as stream:
            return hashlib.sha256(stream.read(_MAX_SEED_BYTES)).hexdigest()
    except (OSError, EOFError):
        return None


def _cache_facts(run: RunFiles, seed: str | None, facts: SearchFacts) -> None:
    """GPU, Triton version and aggregation stand in the name of the cached baseline only."""
    names = {p.name.split(".json")[0] for p in run.files if p.parent.name == "baseline_cache"}
    fitting = [n for n in names if seed is not None and n.startswith(f"{seed}_")]
    if len(fitting) != 1:
        return
    parts = fitting[0][_SHA_LENGTH + 1 :].rsplit("_", 2)
    if len(parts) == 3 and all(parts):
        facts.gpu = parts[0]
        facts.software = {"triton": parts[1]}
        facts.measurement = {"aggregator": parts[2]}


def _agent_log(run: RunFiles, facts: SearchFacts, report: Report) -> None:
    """Model and tokens from the agent's own output: a mixed log in which only some lines are JSON."""
    path = run.find(_AGENT_LOG)
    if path is None:
        return
    for item in run.lines(path):
        if not isinstance(item, tuple):
            report.add(item)
            continue
        line = item[1].strip()
        if not line.startswith(b"{") or (b'"init"' not in line and b'"result"' not in line):
            continue
        try:
            value: Any = decode_loose(line)
        except BAD_JSON:
            continue
        if not isinstance(value, dict):
            continue
        if value.get("type") == "init":
            facts.model = facts.model or text_of(value.get("model"))
        elif value.get("type") == "result":
            stats = object_of(value.get("stats"))
            sent, answered = natural(stats.get("input_tokens")), natural(stats.get("output_tokens"))
            facts.input_tokens = sent if sent is not None else facts.input_tokens
            facts.output_tokens = answered if answered is not None else facts.output_tokens


def read(run: RunFiles) -> Iterator[Record]:
    """One agent's run: an evaluation per benchmark call, the facts, and what was wrong."""
    report = Report()
    path = run.path if run.path.is_file() else run.find(_LOG)
    if path is None:
        yield wrong_format(run, SPEC)
        return
    file = run.name(path)
    judge, facts = Judge(), SearchFacts()
    seed = _seed_sha(run)
    found: list[Evaluation] = []
    n_rows = 0
    for line, row in Rows(run, path, Call, report):
        index = n_rows
        n_rows += 1
        verdict = judge.verdict(row.feedback)
        if verdict is None:
            report.error(
                "unknown-outcome", "left out", file=file, line=line, field="feedback.kind", value=row.feedback.kind
            )
            continue
        if verdict.remark is not None:
            report.warning("null-score", verdict.remark, file=file, line=line)
        sha = _sha256(row.kernel_source)
        if row.sha256 is not None and row.sha256 != sha:
            report.warning("wrong-sha256", "the source is not the one whose sha256 is logged", file=file, line=line)
        found.append(
            Evaluation(
                node_id=f"call-{index}",
                code=row.kernel_source,
                source_file=file,
                source_line=line,
                step=index,
                is_root=not found and sha == seed,
                completed_at=row.timestamp_utc,
                **verdict.fields(),
            )
        )
    if n_rows == 0:
        yield from nothing_read(run, SPEC, path, report)
        return
    facts.problem = judge.problem()
    result = load_object(run, _RESULT, report)
    facts.finished = result is not None
    if result is not None:
        facts.wall_seconds = not_negative(result.get("elapsed_s"))
    _cache_facts(run, seed, facts)
    _agent_log(run, facts, report)
    yield from found
    yield from report
    yield facts


SPEC = ReaderSpec(
    name="agentic-run",
    title="Benchmark calls of a command-line agent (agentic gemini_cli v1)",
    expects="run directories with trajectory.jsonl (seed_kernel.py, result.json, agent_raw.log beside it), or the log files",
    files=(_LOG, _SEED, _RESULT, _AGENT_LOG, _CACHE),
    version=1,
    read=read,
)
