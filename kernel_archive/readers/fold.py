"""From events to evaluations: the state of one search log while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.errors import printable
from kernel_archive.readers import events as ev
from kernel_archive.readers.lenient import natural, safe_text, seconds_between, step_number
from kernel_archive.readers.observations import Judge
from kernel_archive.readers.records import Evaluation, SearchFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kernel_archive.readers.events import Observation
    from kernel_archive.readers.report import Report

__all__ = ["EVALUATION_FAILED", "Request", "SearchFold"]

#: ``error_type`` of an evaluation that ended in an ``evaluation_failed`` event: the driver timed out or its own code
#: raised, so the log has no verdict of a harness. Its outcome is ``infrastructure_failure``.
EVALUATION_FAILED = "evaluation_failed"
#: An ancestor chain longer than this is a loop or an attack.
_MAX_CHAIN = 10_000


class Request(msgspec.Struct):
    """An evaluation asked for."""

    node: str
    code: str
    parent: str | None
    started_at: str | None
    step: int | None
    input_tokens: int | None = None
    output_tokens: int | None = None


class SearchFold:
    """One search being read: feed it events in order, then take its evaluations and facts.

    Args:
        file: name of the log, for provenance and findings.
        report: takes the findings.
        outer_step: step of every evaluation, where the log is one step of an outer search.
        search: name of the search, where one file holds several.
    """

    def __init__(self, file: str, report: Report, *, outer_step: int | None = None, search: str | None = None) -> None:
        self.file = file
        self.report = report
        self.outer_step = outer_step
        self.search = search
        self.judge = Judge()
        self.facts = SearchFacts(search=search)
        self.n_events = 0
        self.steps_completed = 0
        self._step: int | None = None
        self._unstepped: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._results: dict[str, Evaluation] = {}
        self._roots: dict[str, Evaluation] = {}
        self.forecast_nodes: dict[str, Request] = {}  # evaluated by a forecast only
        self._answered: set[str] = set()
        self._codes: dict[str, ev.MutationCompleted] = {}  # proposals that no evaluation request has repeated yet
        self._counts: dict[str, int] = {}
        self._tokens: tuple[int, int] | None = None
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            ev.EvaluationCompleted: self._evaluation_completed,
            ev.EvaluationRequested: self._evaluation_requested,
            ev.MutationCompleted: self._mutation_completed,
            ev.MutationRequested: self._counted("mutations_requested"),
            ev.MutationFailed: self._counted("mutations_failed"),
            ev.EvaluationFailed: self._evaluation_failed,
            ev.StepStarted: self._step_started,
            ev.StepCompleted: self._step_completed,
            ev.SearchInitialized: self._search_initialized,
            ev.ForecastRequested: self._counted("forecasts_requested"),
            ev.ForecastCompleted: self._forecast_completed,
            ev.ForecastFailed: self._counted("forecasts_failed"),
            ev.CandidateSelected: self._counted("candidates_selected"),
            ev.CandidateDeferred: self._candidate_deferred,
        }

    def feed(self, line: int, event: Any) -> None:
        """Take in the event of one line."""
        self.n_events += 1
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(line, event)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a count that ends in the search's facts."""
        self._counts[name] = self._counts.get(name, 0) + n

    def _counted(self, name: str) -> Callable[[int, Any], None]:
        counts = self._counts

        def handler(_line: int, _event: Any) -> None:
            counts[name] = counts.get(name, 0) + 1

        return handler

    # -- the search's frame

    def _search_initialized(self, line: int, event: ev.SearchInitialized) -> None:
        root = event.root
        if self._roots:
            known = root.ulid in self._roots
            self.report.warning(
                "second-root",
                "the search is initialised again" + ("" if known else " with another root; both are kept"),
                file=self.file,
                line=line,
                value=root.ulid,
            )
        facts = self.facts
        if event.kernel_task is not None and facts.problem is None:
            task = event.kernel_task
            facts.problem = task.op_name or None
            if natural(task.level_id) and natural(task.task_id):
                facts.problem = f"level{task.level_id}/{task.task_id}"
        if event.hardware is not None and facts.gpu is None:
            facts.gpu = event.hardware.device_name or None
        if event.seed_reference_code and facts.reference_code is None:
            facts.reference_code = event.seed_reference_code
        if root.evaluation is None:
            self.report.warning("root-without-result", "the root has no evaluation", file=self.file, line=line)
            return
        record = self._evaluation(
            line, Request(root.ulid, root.program_code, None, None, self.outer_step), root.evaluation.observation, None
        )
        if record is None:
            return
        record.is_root = True
        earlier = self._roots.get(root.ulid)
        if earlier is not None:
            record.n_logged = earlier.n_logged + 1
        self._roots[root.ulid] = record

    def _step_started(self, _line: int, event: ev.StepStarted) -> None:
        self._step = step_number(event.step)

    def _step_completed(self, _line: int, event: ev.StepCompleted) -> None:
        self.steps_completed += 1
        step = step_number(event.step)
        if self._unstepped:
            # The line that opened this step is lost; the fence that closes it still has its number.
            for request in self._unstepped:
                request.step = step
                result = self._results.get(request.node)
                if result is not None and result.step is None:
                    result.step = step
            self._unstepped.clear()
        self._step = None

    # -- proposals

    def _mutation_completed(self, _line: int, event: ev.MutationCompleted) -> None:
        self.count("mutations_completed")
        self._codes[event.request_id] = event
        if event.llm_usage is not None:
            self._add_tokens(event.llm_usage)

    def _add_tokens(self, usage: ev.Usage) -> tuple[int | None, int | None]:
        sent, answered = natural(usage.input_tokens), natural(usage.output_tokens)
        before = self._tokens or (0, 0)
        self._tokens = (before[0] + (sent or 0), before[1] + (answered or 0))
        return sent, answered

    def _forecast_completed(self, _line: int, event: ev.ForecastCompleted) -> None:
        self.count("forecasts_completed")
        if event.llm_usage is not None:
            sent, answered = self._add_tokens(event.llm_usage)
            self.count("forecast_input_tokens", sent or 0)
            self.count("forecast_output_tokens", answered or 0)

    def _candidate_deferred(self, _line: int, event: ev.CandidateDeferred) -> None:
        self.count("candidates_deferred")
        self._codes.pop(event.request_id, None)

    # -- evaluations

    def _evaluation_requested(self, line: int, event: ev.EvaluationRequested) -> None:
        step = event.step if event.step is not None else self._step
        request = Request(
            event.child_ulid or event.request_id, event.code, event.parent_ulid, event.started_at, step_number(step)
        )
        if self.outer_step is not None:
            request.step = self.outer_step
        elif request.step is None:
            self._unstepped.append(request)
        proposal = self._codes.pop(event.from_mutation_request_id or event.request_id, None)
        if proposal is not None and proposal.llm_usage is not None:
            request.input_tokens = natural(proposal.llm_usage.input_tokens)
            request.output_tokens = natural(proposal.llm_usage.output_tokens)
        if event.request_id in self._requests:
            self.report.warning(
                "second-request", "the evaluation is requested again", file=self.file, line=line, value=event.request_id
            )
        self._requests[event.request_id] = request

    def _requested(self, line: int, event: ev.EvaluationCompleted | ev.EvaluationFailed) -> Request | None:
        """The request that a result answers; rebuilt where its line is lost and the log still has all of it."""
        request = self._requests.get(event.request_id)
        if request is not None:
            return request
        proposal = self._codes.get(event.request_id)  # v3: one id for proposal and evaluation
        if proposal is not None and event.parent_ulid is not None and proposal.code:
            step = event.step if event.step is not None else self._step
            request = Request(event.request_id, proposal.code, event.parent_ulid, None, step_number(step))
            self._requests[event.request_id] = request
            self.report.warning(
                "request-rebuilt",
                "the result's request is missing; program and parent are those of its proposal",
                file=self.file,
                line=line,
                value=event.request_id,
            )
            return request
        self.count("results_without_request")
        self.report.error(
            "result-without-request",
            "a result whose request is missing: its program and parent are unknown, so it is left out",
            file=self.file,
            line=line,
            value=event.request_id,
        )
        return None

    def _evaluation_completed(self, line: int, event: ev.EvaluationCompleted) -> None:
        request = self._requested(line, event)
        if request is None:
            return
        self._answered.add(event.request_id)
        record = self._evaluation(line, request, event.evaluation.observation, event.completed_at)
        if record is None:
            return
        earlier = self._results.get(request.node)
        if earlier is not None:
            record.n_logged = earlier.n_logged + 1
            self.count("results_doubled")
            self.report.warning(
                "doubled-result",
                f"the result of node {printable(request.node)} is logged {record.n_logged} times; the last one counts",
                file=self.file,
                line=line,
                fix=f"the earlier one is on line {earlier.source_line}",
            )
        self._results[request.node] = record

    def _evaluation_failed(self, line: int, event: ev.EvaluationFailed) -> None:
        request = self._requested(line, event)
        if request is None:
            return
        self._answered.add(event.request_id)
        self.count("evaluation_failed")
        earlier = self._results.get(request.node)
        if earlier is not None:
            earlier.n_logged += 1
            self.report.warning(
                "doubled-result",
                f"node {printable(request.node)} has a result and a failure of its driver; the result counts",
                file=self.file,
                line=line,
                fix=f"the result is on line {earlier.source_line}",
            )
            return
        self._results[request.node] = self._record(
            line,
            request,
            event.completed_at,
            outcome="infrastructure_failure",
            error_type=EVALUATION_FAILED,
            error_text=event.reason or None,
        )

    def _record(self, line: int, request: Request, completed_at: str | None, **fields: Any) -> Evaluation:
        return Evaluation(
            node_id=safe_text(request.node),
            code=request.code,
            source_file=self.file,
            source_line=line,
            parent_node_id=None if request.parent is None else safe_text(request.parent),
            step=request.step,
            started_at=request.started_at,
            completed_at=completed_at,
            gpu_seconds=seconds_between(request.started_at, completed_at),
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            search=self.search,
            **fields,
        )

    def _evaluation(
        self, line: int, request: Request, observation: Observation, completed_at: str | None
    ) -> Evaluation | None:
        """The record of one measurement; ``None`` for what is none (counted, and reported where it is a fault)."""
        if observation.kind == "forecast":
            self.count("compound_forecasts")
            self.forecast_nodes[request.node] = request
            return None
        if observation.kind == "real" and observation.inner is not None:
            if observation.deferral_reason is not None:
                self.count("compound_deferrals")
            observation = observation.inner
        verdict = self.judge.verdict(observation.feedback) if observation.feedback is not None else None
        if verdict is None:
            named = observation.feedback.kind if observation.feedback is not None else observation.kind
            self.count("unknown_outcomes")
            self.report.error(
                "unknown-outcome",
                "the result has no outcome that these logs know; it is left out",
                file=self.file,
                line=line,
                field="evaluation.observation",
                value=named,
            )
            return None
        if verdict.remark is not None:
            self.count("successes_without_speedup")
            self.report.warning("null-score", verdict.remark, file=self.file, line=line)
        return self._record(
            line,
            request,
            completed_at,
            **verdict.fields(),
        )

    # -- the end

    def confirm(self, node: str, observation: Observation, file: str) -> bool:
        """Take in the measurement of a node that the search itself only forecast.

        Returns:
            Whether the log has such a node and the observation is a measurement.
        """
        request = self.forecast_nodes.get(node)
        if request is None or observation.kind == "forecast":
            return False
        record = self._evaluation(0, request, observation, None)
        if record is None:
            return False
        record.source_file, record.source_line = file, None
        record.started_at = None  # of the forecast
        del self.forecast_nodes[node]
        self._results[node] = record
        return True

    def evaluations(self) -> Iterator[Evaluation]:
        """Every evaluation, the root first, then in the order of their results."""
        yield from self._roots.values()
        for record in self._results.values():
            parent = record.parent_node_id
            if parent in self.forecast_nodes:
                record.ancestor_node_ids = self._ancestors(parent)
            if record.node_id in self._roots:
                self.report.warning(
                    "duplicate-node", "a child has the root's id", file=self.file, line=record.source_line
                )
                continue
            yield record

    def _ancestors(self, node: str | None) -> tuple[str, ...]:
        """The ancestors behind a parent that was only forecast, nearest first, up to the first one measured."""
        chain: list[str] = []
        while node is not None and node in self.forecast_nodes and len(chain) < _MAX_CHAIN:
            node = self.forecast_nodes[node].parent
            if node is None or node in chain:
                break
            chain.append(node)
        return tuple(chain)

    def close(self) -> SearchFacts:
        """The facts that the log itself states."""
        facts, counts = self.facts, self._counts
        if facts.problem is None:
            facts.problem = self.judge.problem()
        facts.n_pending = len(self._requests.keys() - self._answered)
        facts.n_mutations_failed = counts.pop("mutations_failed", 0)
        forecasts = counts.get("forecasts_completed", 0) + counts.get("compound_forecasts", 0)
        facts.n_forecasts = forecasts or None
        facts.n_deferred = counts.pop("candidates_deferred", None)
        if self._tokens is not None:
            facts.input_tokens, facts.output_tokens = self._tokens
        counts["steps_completed"] = self.steps_completed
        facts.counts = {name: n for name, n in sorted(counts.items()) if n}
        return facts
