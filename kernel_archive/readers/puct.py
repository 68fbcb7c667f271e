"""``puct-events``: one event a line of max-reward PUCT, v2 or v3.

PUCT is a search that goes on from programs with good rewards and few visits. Other formats hold
logs of the same events and read them by :class:`EventLog`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kernel_archive.readers import events as ev
from kernel_archive.readers.log_reader import LogReader, feedback_of, log_format
from kernel_archive.readers.records import EVALUATION_FAILED
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import natural, seconds_between, step_number

if TYPE_CHECKING:
    from kernel_archive.readers.records import Evaluation

#: Kinds of events of which every one is counted -> name of the count.
_COUNTED: Final = {
    "step_completed": "steps_completed",
    "mutation_requested": "mutations_requested",
    "mutation_completed": "mutations_completed",
    "mutation_failed": "mutations_failed",
    "forecast_requested": "forecasts_requested",
    "forecast_completed": "forecasts_completed",
    "forecast_failed": "forecasts_failed",
    "candidate_selected": "candidates_selected",
    "candidate_deferred": "candidates_deferred",
    "evaluation_failed": "evaluation_failed",
}


class EventLog(LogReader):
    """One search; ``outer_step`` is the step of the outer search whose inner search this is."""

    kind = RowKind(ev.Event, ev.EVENT_TYPES)

    def __init__(self, *arguments: Any, search: str | None = None) -> None:
        super().__init__(*arguments, search=search)
        self.outer_step: int | None = None
        self._step: int | None = None  # v2 events have no step: it is that of the last start
        self._requests: dict[str, tuple[ev.EvaluationRequested, int | None]] = {}
        self._answered: set[str] = set()
        self._tokens: dict[str, ev.Usage] = {}  # by request of the proposal

    def add_row(self, line: int, row: Any) -> None:
        """Add the event of one line."""
        kind = row.__struct_config__.tag
        if kind in _COUNTED:
            self.facts.counts[_COUNTED[kind]] += 1
        handler = getattr(self, f"_{kind}", None)
        if handler is not None:
            handler(line, row)

    def _search_initialized(self, line: int, event: ev.SearchInitialized) -> None:
        root, facts, task = event.root, self.facts, event.kernel_task
        if task is not None and facts.problem is None:
            is_kernelbench = natural(task.level_id) and natural(task.task_id)
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

    def _step_started(self, _line: int, event: ev.StepStarted) -> None:
        self._step = step_number(event.step)

    def _step_completed(self, _line: int, _event: ev.StepCompleted) -> None:
        self._step = None

    def _mutation_completed(self, _line: int, event: ev.MutationCompleted) -> None:
        if event.llm_usage is not None:
            self._tokens[event.request_id] = event.llm_usage
            self._add_tokens(event.llm_usage)

    def _forecast_completed(self, _line: int, event: ev.ForecastCompleted) -> None:
        if event.llm_usage is not None:
            self._add_tokens(event.llm_usage)

    def _add_tokens(self, usage: ev.Usage) -> None:
        """Add the tokens of one call to those of the search."""
        facts = self.facts
        facts.input_tokens = (facts.input_tokens or 0) + (natural(usage.input_tokens) or 0)
        facts.output_tokens = (facts.output_tokens or 0) + (natural(usage.output_tokens) or 0)

    def _evaluation_requested(self, _line: int, event: ev.EvaluationRequested) -> None:
        step = self._step if event.step is None else step_number(event.step)
        outer = self.outer_step
        self._requests[event.request_id] = (event, step if outer is None else outer)

    def _evaluation(
        self, line: int, event: ev.EvaluationCompleted | ev.EvaluationFailed
    ) -> Evaluation | None:
        """Make the evaluation that a result answers; ``None`` where its request is lost."""
        if event.request_id not in self._requests:
            self.facts.counts["results_without_request"] += 1
            message = "the log has no request for this result, so its program is unknown; left out"
            self.error("result-without-request", message, line=line, value=event.request_id)
            return None
        self._answered.add(event.request_id)
        request, step = self._requests[event.request_id]
        tokens = self._tokens.get(request.from_mutation_request_id or request.request_id)
        return self.new_evaluation(
            node_id=request.child_ulid or request.request_id,  # v3 has one id for both
            code=request.code,
            parent_node_id=request.parent_ulid,
            step=step,
            started_at=request.started_at,
            completed_at=event.completed_at,
            gpu_seconds=seconds_between(request.started_at, event.completed_at),
            input_tokens=None if tokens is None else natural(tokens.input_tokens),
            output_tokens=None if tokens is None else natural(tokens.output_tokens),
        )

    def _evaluation_completed(self, line: int, event: ev.EvaluationCompleted) -> None:
        record = self._evaluation(line, event)
        if record is not None:
            self._add_observed(record, event.evaluation, line)

    def _evaluation_failed(self, line: int, event: ev.EvaluationFailed) -> None:
        record = self._evaluation(line, event)
        if record is not None:
            record.source_line = line
            record.error_type, record.error_text = EVALUATION_FAILED, event.reason or None
            self.add(record)

    def _add_observed(self, record: Evaluation, result: ev.LoggedEvaluation, line: int) -> None:
        """Add an evaluation with its result, unless that is only a forecast (compound search)."""
        observation = result.observation
        if observation.kind == "forecast":
            self.facts.counts["compound_forecasts"] += 1
            return
        if observation.deferral_reason is not None:
            self.facts.counts["compound_deferrals"] += 1
        self.add_result(record, feedback_of(result), line=line, field="evaluation.observation")

    def complete_facts(self) -> None:
        """Add the counts of the log, then the facts of the files beside it."""
        facts, counts = self.facts, self.facts.counts
        facts.n_pending = len(self._requests) - len(self._answered)
        facts.n_mutations_failed = counts.pop("mutations_failed", 0)
        n_forecasts = counts.get("forecasts_completed", 0) + counts.get("compound_forecasts", 0)
        facts.n_forecasts = n_forecasts or None
        facts.n_deferred = counts.pop("candidates_deferred", None)
        super().complete_facts()


PUCT_EVENTS: Final = log_format("puct-events", EventLog)
BIN_FILLER: Final = log_format("bin-filler", EventLog)
