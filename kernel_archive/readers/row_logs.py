"""Logs with a row for each program and its result: ``attempts``, ``agentic-run``, ``ttt-rollouts`` and ``eval-set-jsonl``.

``attempts``: one row per attempt of an agent, written one after another by hand or by a model.

``agentic-run``: a coding agent in a terminal that wrote kernels and had them measured; one row is one measurement that it asked for.
The log names no parents and numbers nothing: a call's number is that of its line. Calls that the infrastructure lost are
not in it. The seed's own call is in it, first, only when its result was not cached.

``ttt-rollouts``: the answers of a model that is trained on one problem while it searches, with what their programs measured.
A row is one answer (a rollout of test-time training). Its reward is a ratio of microseconds, 0 for any failure, and not a
speedup: it is not read. A rollout whose answer held no program was never run. The trainer logs step 0 throughout; such steps are
no time axis and are left out.

``eval-set-jsonl``: an evaluation set as its builder wrote it, each row a measured candidate.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Final

import msgspec

from kernel_archive.bins import bin_of
from kernel_archive.errors import Finding
from kernel_archive.readers.beside import FILES_BESIDE, add_facts, load_object
from kernel_archive.readers.events import Attempt, Feedback, Hardware
from kernel_archive.readers.reading import Reading, feedback_of, log_format
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import (
    BAD_JSON,
    any_json,
    natural,
    not_negative,
    object_of,
    positive,
    seconds_between,
    step_number,
    text_of,
)


class _Attempts(Reading):
    """An agent's run; a node's id is the number of its attempt."""

    kind = RowKind(Attempt)

    def take(self, line: int, row: Attempt) -> None:
        """Take in one attempt; without a result it is pending."""
        feedback = feedback_of(row.evaluation)
        if feedback is None:
            self.facts.n_pending += 1
            return
        node = str(row.attempt)
        earlier = self.found.get(node)
        if earlier is not None and earlier.code != row.code:
            node = f"{node}@{line}"
            self.warning("duplicate-node", f"the attempt's number is used again; kept as {node}", line=line)
        record = self.evaluation(
            feedback,
            line=line,
            field="evaluation.observation.feedback.kind",
            node_id=node,
            code=row.code,
            parent_node_id=None if row.parent_attempt is None else str(row.parent_attempt),
            step=step_number(row.attempt),
            is_root=row.parent_attempt is None and (not self.found or node == next(iter(self.found))),
            started_at=row.started_at,
            completed_at=row.completed_at,
            gpu_seconds=seconds_between(row.started_at, row.completed_at),
        )
        self.keep_last(record, "the attempt is logged again")

    def finish(self) -> None:
        """The problem, and the files beside the log."""
        self.facts.problem = self.problem()
        add_facts(self)


ATTEMPTS: Final = log_format(
    _Attempts,
    name="attempts",
    title="Attempts of an agent, one row each with program, parent attempt and measurement",
    expects="run directories with attempts.jsonl (and run.json, timing.jsonl where there are), or the log files",
    log=("attempts.jsonl",),
    beside=FILES_BESIDE,
    version=2,
)


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

    @cached_property
    def _seed(self) -> str | None:
        path = self.run.find(_SEED)
        data = self.run.whole(path) if path is not None else None
        return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else None

    def take(self, line: int, row: Call) -> None:
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


_EXPERIMENT, _DONE = "../../experiment.json", "DONE"
_NO_PROGRAM: Final = "parse_failure"


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


class _Rollouts(Reading):
    """A training run."""

    kind = RowKind(Rollout)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._places: set[tuple[int | None, int | None, int | None]] = set()
        self.facts.n_mutations_failed = self.facts.input_tokens = self.facts.output_tokens = 0

    def take(self, line: int, row: Rollout) -> None:
        facts = self.facts
        self.count("rollouts")
        self._places.add((row.step, row.group_index, row.rollout_index))
        sent, answered = natural(row.prompt_tokens), natural(row.response_tokens)
        facts.input_tokens = (facts.input_tokens or 0) + (sent or 0)
        facts.output_tokens = (facts.output_tokens or 0) + (answered or 0)
        if row.outcome.kind == _NO_PROGRAM or row.parsed_code is None:
            facts.n_mutations_failed = (facts.n_mutations_failed or 0) + 1
            return
        record = self.evaluation(
            row.outcome,
            line=line,
            field="outcome.kind",
            node_id=row.candidate_id,
            code=row.parsed_code,
            parent_node_id=row.parent_id,
            step=step_number(row.step),
            completed_at=row.timestamp_utc,
            gpu_seconds=not_negative(row.eval_time_s),
            input_tokens=sent,
            output_tokens=answered,
        )
        self.keep_last(record, "the candidate is logged again")

    def finish(self) -> None:
        """Whether the steps are steps, and the facts of the run."""
        facts, n = self.facts, self.facts.counts["rollouts"]
        if len(self._places) < n and len({step for step, _, _ in self._places}) == 1:
            facts.counts["constant_steps"] = n
            for record in self.found.values():
                record.step = None
        facts.problem = self.problem()
        done = self.run.find(_DONE) is not None
        experiment = load_object(self, _EXPERIMENT)
        settings = object_of(object_of(experiment).get("discover"))
        facts.hyperparameters, facts.model = settings or None, text_of(settings.get("model_name"))
        facts.finished = True if done else None if experiment is None else False


TTT_ROLLOUTS: Final = log_format(
    _Rollouts,
    name="ttt-rollouts",
    title="Rollouts of test-time training (ttt_discover v2); their reward is no speedup",
    expects="seed directories with rollouts.jsonl (<run>/tinker_log/seed_NN), or the log files",
    log=("rollouts.jsonl",),
    beside=(_EXPERIMENT, _DONE),
    version=2,
)


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
        manifest = load_object(self, _MANIFEST)
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
