"""``attempts``: one row per attempt of an agent, written one after another by hand or by a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_archive.readers.events import Attempt
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.jsonl import Rows
from kernel_archive.readers.lenient import seconds_between, step_number
from kernel_archive.readers.observations import Judge
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.run_facts import RUN_JSON, read_run_json
from kernel_archive.readers.sniff import nothing_read, wrong_format
from kernel_archive.readers.timing import TIMING_FILE, attach, read_timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["SPEC", "read"]

ATTEMPTS_FILE = "attempts.jsonl"


def read(run: RunFiles) -> Iterator[Record]:
    """One agent's run: an evaluation per attempt, the facts, and what was wrong."""
    report = Report()
    path = run.path if run.path.is_file() else run.find(ATTEMPTS_FILE)
    if path is None:
        yield wrong_format(run, SPEC)
        return
    file = run.name(path)
    judge, facts = Judge(), SearchFacts()
    found: dict[str, Evaluation] = {}
    n_rows = 0
    for line, row in Rows(run, path, Attempt, report):
        n_rows += 1
        observation = row.evaluation.observation if row.evaluation is not None else None
        feedback = observation.feedback if observation is not None else None
        verdict = judge.verdict(feedback) if feedback is not None else None
        if verdict is None:
            if feedback is None:
                facts.n_pending += 1
            else:
                report.error("unknown-outcome", "left out", file=file, line=line, field="kind", value=feedback.kind)
            continue
        if verdict.remark is not None:
            report.warning("null-score", verdict.remark, file=file, line=line)
        node = str(row.attempt)
        earlier = found.get(node)
        if earlier is not None and earlier.code != row.code:
            node = f"{node}@{line}"
            report.warning(
                "duplicate-node", f"the attempt's number is used again; kept as {node}", file=file, line=line
            )
            earlier = None
        elif earlier is not None:
            report.warning("doubled-result", "the attempt is logged again; the last one counts", file=file, line=line)
        found[node] = Evaluation(
            node_id=node,
            code=row.code,
            source_file=file,
            source_line=line,
            parent_node_id=None if row.parent_attempt is None else str(row.parent_attempt),
            step=step_number(row.attempt),
            is_root=row.parent_attempt is None and (not found or node == next(iter(found))),
            n_logged=1 if earlier is None else earlier.n_logged + 1,
            started_at=row.started_at,
            completed_at=row.completed_at,
            gpu_seconds=seconds_between(row.started_at, row.completed_at),
            **verdict.fields(),
        )
    if n_rows == 0:
        yield from nothing_read(run, SPEC, path, report)
        return
    evaluations = list(found.values())
    facts.problem = judge.problem()
    read_run_json(run, facts, report)
    timing = run.find(TIMING_FILE)
    if timing is not None:
        attach(evaluations, read_timing(run, timing, report))
    yield from evaluations
    yield from report
    yield facts


SPEC = ReaderSpec(
    name="attempts",
    title="Attempts of an agent, one row each with program, parent attempt and measurement",
    expects="run directories with attempts.jsonl (and run.json, timing.jsonl where there are), or the log files",
    files=(ATTEMPTS_FILE, RUN_JSON, TIMING_FILE),
    version=1,
    read=read,
)
