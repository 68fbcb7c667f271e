"""``puct-events``: one event a line of max-reward PUCT, v2 or v3.

PUCT is a search that goes on from programs with good rewards and few visits. ``bin-filler`` and
``theory-builder`` have logs of the same events.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from kernel_archive.readers import events as ev
from kernel_archive.readers.log_reader import LogReader, feedback_of
from kernel_archive.readers.records import EVALUATION_FAILED, Evaluation
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import seconds_between, step_number, whole_number

#: Kinds of events of which every one is counted -> name of the count, as ``steps_completed``.
_COUNTED: Final = {
    kind: kind.replace("_", "s_", 1)
    for kind in ev.EVENT_TYPES
    if kind.startswith(("step_completed", "mutation_", "forecast_", "candidate_"))
}


class EventLog(LogReader):
    """One search; ``outer_step`` is the step of the outer search whose inner search this is."""

    row_kind = RowKind(ev.Event, ev.EVENT_TYPES)

    def __init__(self, *arguments: Any, search: str | None = None) -> None:
        super().__init__(*arguments, search=search)
        self.outer_step: int | None = None
        self._step: int | None = None  # v2 events have no step: it is that of the last start
        self._requests: dict[str, tuple[ev.EvaluationRequested, int | None]] = {}
        self._finished_requests: set[str] = set()
        self._tokens: dict[str, tuple[int | None, int | None]] = {}  # by request of the proposal

    def add_row(self, line: int, row: Any) -> None:
        """Add the event of one line."""
        kind = row.__struct_config__.tag
        if kind in _COUNTED:
            self.facts.counts[_COUNTED[kind]] += 1
        match row:  # the most frequent first
            case ev.EvaluationCompleted():
                self._add_finished(line, row)
            case ev.EvaluationRequested():
                step = self._step if row.step is None else step_number(row.step)
                step = step if self.outer_step is None else self.outer_step
                self._requests[row.request_id] = row, step
            case ev.MutationCompleted(llm_usage=ev.Usage() as usage):
                tokens = whole_number(usage.input_tokens), whole_number(usage.output_tokens)
                self._tokens[row.request_id] = tokens
                self.add_tokens(*tokens)
            case ev.ForecastCompleted(llm_usage=ev.Usage() as usage):
                self.add_tokens(whole_number(usage.input_tokens), whole_number(usage.output_tokens))
            case ev.StepStarted():
                self._step = step_number(row.step)
            case ev.StepCompleted():
                self._step = None
            case ev.EvaluationFailed():
                self.facts.counts["evaluation_failed"] += 1
                self._add_finished(line, row)
            case ev.SearchInitialized():
                self._add_root(line, row)

    def _add_root(self, line: int, event: ev.SearchInitialized) -> None:
        """Add the facts of the first event, and the starting program with its result."""
        root, facts, task = event.root, self.facts, event.kernel_task
        if task is not None and facts.problem is None:
            is_kernelbench = whole_number(task.level_id) and whole_number(task.task_id)
            name = f"level{task.level_id}/{task.task_id}" if is_kernelbench else task.op_name
            facts.problem = name or None
        if event.hardware is not None and facts.gpu is None:
            facts.gpu = event.hardware.device_name or None
        facts.reference_code = facts.reference_code or event.seed_reference_code or None
        if root.evaluation is None:
            self.warning("root-without-result", "the root has no evaluation", line=line)
            return
        record = self.new_evaluation(
            node_id=root.ulid, code=root.program_code, step=self.outer_step, is_root=True
        )
        self._add_observed(record, root.evaluation, line)

    def _add_finished(self, line: int, event: ev.EvaluationCompleted | ev.EvaluationFailed) -> None:
        """Add the evaluation of a request that got a result, or was given up."""
        if event.request_id not in self._requests:
            self.facts.counts["results_without_request"] += 1
            message = "the log has no request for this result, so its program is unknown; left out"
            self.error("result-without-request", message, line=line, value=event.request_id)
            return
        self._finished_requests.add(event.request_id)
        request, step = self._requests[event.request_id]
        proposal = request.from_mutation_request_id or request.request_id
        input_tokens, output_tokens = self._tokens.get(proposal, (None, None))
        record = self.new_evaluation(
            node_id=request.child_ulid or request.request_id,  # v3 has one id for both
            code=request.code,
            parent_node_id=request.parent_ulid,
            step=step,
            started_at=request.started_at,
            completed_at=event.completed_at,
            gpu_seconds=seconds_between(request.started_at, event.completed_at),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
        if isinstance(event, ev.EvaluationCompleted):
            self._add_observed(record, event.evaluation, line)
        else:
            record.source_line = line
            record.error_type, record.error_text = EVALUATION_FAILED, event.reason or None
            self.add(record)

    def _add_observed(self, record: Evaluation, result: ev.LoggedEvaluation, line: int) -> None:
        """Add an evaluation with its result, unless that is only a forecast (compound search)."""
        if result.observation.kind == "forecast":
            self.facts.counts["compound_forecasts"] += 1
            return
        self.add_result(record, feedback_of(result), line=line, field="evaluation.observation")

    def complete_facts(self) -> None:
        """Add the counts of the log, then the facts of the files beside it."""
        facts, counts = self.facts, self.facts.counts
        facts.n_pending = len(self._requests) - len(self._finished_requests)
        facts.n_mutations_failed = counts.pop("mutations_failed", 0)
        facts.n_forecasts = counts["forecasts_completed"] + counts["compound_forecasts"] or None
        facts.n_deferred = counts.pop("candidates_deferred", None)
        super().complete_facts()


class TheoryBuilder(EventLog):
    """Hypotheses about a kernel, each tried in an inner search with a log.

    The outer log repeats every trial and is not read.
    """

    def read(self, path: Path) -> bool:
        """Read every inner log in order; return whether there was an event in one."""
        logs: list[tuple[int, str, Path]] = []
        for log in self.run.files:
            if log == path or log.name.startswith("inner_events.jsonl"):
                match = re.search(r"step_(\d{1,9})$", log.parent.name)
                logs.append((int(match[1]) if match else -1, log.as_posix(), log))
        any_read = False
        for step, _, log in sorted(logs):
            self.outer_step, self.file = None if step < 0 else step, self.run.name(log)
            any_read |= super().read(log)
        self.facts.counts["inner_logs"] += len(logs)
        return any_read
