"""``ttt-rollouts``: one row per rollout of test-time training.

The row's reward is a ratio of microseconds, 0 for any failure, and not a speedup: it is not read. A rollout whose answer
held no program was never run. The trainer logs step 0 throughout; such steps are no time axis and are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kernel_archive.readers.events import Feedback  # noqa: TC001 - msgspec resolves it at run time
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.jsonl import Rows
from kernel_archive.readers.lenient import natural, not_negative, safe_text, step_number
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

_LOG, _EXPERIMENT, _DONE = "rollouts.jsonl", "../../experiment.json", "DONE"
_NO_PROGRAM = "parse_failure"


class Rollout(msgspec.Struct):
    """One row."""

    candidate_id: str
    outcome: Feedback
    parsed_code: str | None = None
    parent_id: str | None = None
    step: int | None = None
    group_index: int | None = None
    rollout_index: int | None = None
    timestamp_utc: str | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    eval_time_s: float | None = None


def read(run: RunFiles) -> Iterator[Record]:
    """One training run: an evaluation per rollout that ran, the facts, and what was wrong."""
    report = Report()
    path = run.path if run.path.is_file() else run.find(_LOG)
    if path is None:
        yield wrong_format(run, SPEC)
        return
    file = run.name(path)
    judge, facts = Judge(), SearchFacts()
    found: dict[str, Evaluation] = {}
    places: set[tuple[int | None, int | None, int | None]] = set()
    n_rows = n_without = 0
    repeated = False
    sent = answered = 0
    for line, row in Rows(run, path, Rollout, report):
        n_rows += 1
        place = (row.step, row.group_index, row.rollout_index)
        repeated = repeated or place in places
        places.add(place)
        tokens = natural(row.prompt_tokens), natural(row.response_tokens)
        sent, answered = sent + (tokens[0] or 0), answered + (tokens[1] or 0)
        if row.outcome.kind == _NO_PROGRAM or row.parsed_code is None:
            n_without += 1
            continue
        verdict = judge.verdict(row.outcome)
        if verdict is None:
            report.error(
                "unknown-outcome", "left out", file=file, line=line, field="outcome.kind", value=row.outcome.kind
            )
            continue
        if verdict.remark is not None:
            report.warning("null-score", verdict.remark, file=file, line=line)
        earlier = found.get(row.candidate_id)
        if earlier is not None:
            report.warning("doubled-result", "the candidate is logged again; the last one counts", file=file, line=line)
        found[row.candidate_id] = Evaluation(
            node_id=safe_text(row.candidate_id),
            code=row.parsed_code,
            source_file=file,
            source_line=line,
            parent_node_id=None if row.parent_id is None else safe_text(row.parent_id),
            step=step_number(row.step),
            n_logged=1 if earlier is None else earlier.n_logged + 1,
            completed_at=row.timestamp_utc,
            gpu_seconds=not_negative(row.eval_time_s),
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            **verdict.fields(),
        )
    if n_rows == 0:
        yield from nothing_read(run, SPEC, path, report)
        return
    if repeated and len({step for step, _, _ in places}) == 1:
        facts.counts["constant_steps"] = n_rows
        for record in found.values():
            record.step = None
    facts.problem = judge.problem()
    facts.n_mutations_failed = n_without
    facts.counts["rollouts"] = n_rows
    facts.input_tokens, facts.output_tokens = sent, answered
    experiment = load_object(run, _EXPERIMENT, report)
    if experiment is not None:
        facts.hyperparameters = object_of(experiment.get("discover")) or None
        facts.model = text_of(object_of(experiment.get("discover")).get("model_name"))
        facts.finished = run.find(_DONE) is not None
    elif run.find(_DONE) is not None:
        facts.finished = True
    yield from found.values()
    yield from report
    yield facts


SPEC = ReaderSpec(
    name="ttt-rollouts",
    title="Rollouts of test-time training (ttt_discover v2); their reward is no speedup",
    expects="seed directories with rollouts.jsonl (<run>/tinker_log/seed_NN), or the log files",
    files=(_LOG, _EXPERIMENT, _DONE),
    version=1,
    read=read,
)
