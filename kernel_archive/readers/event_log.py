"""``puct-events``, ``bin-filler`` and ``theory-builder``: searches that wrote one line for everything that happened.

All are logs of PUCT, a search that goes on from the programs with the best rewards and few visits. A bin filler looks for programs of
one speedup bin, not for the fastest. :class:`EventLog` is the state of one log while it is read; other formats hold such logs, too.

A theory builder is a model that states hypotheses about a kernel and tries each in a search of its own. The outer search is that of
hypotheses; each step of it holds an inner search with a log of its own. Every trial stands up to three times in such a run: in an
inner log and twice in the outer one. Only the inner logs are read.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, printable
from kernel_archive.readers import events as ev
from kernel_archive.readers.beside import FILES_BESIDE, UPSTREAM_FILES, add_facts, load_object, read_upstream
from kernel_archive.readers.reading import EVALUATION_FAILED, Reading, feedback_of, log_format
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.salvage import RowKind
from kernel_archive.readers.values import build, natural, object_of, seconds_between, step_number, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.salvage import Report

EVENTS_FILE: Final = "events.jsonl"
_ULID: Final = "[0-9A-HJKMNP-TV-Z]" * 26 + ".json"
#: Measurements of nodes that a compound search itself only forecast: in the run directory or in a folder of it.
CONFIRMED_FILES: Final = (_ULID, f"*/{_ULID}")
#: Ancestors behind a parent that was only forecast, of which the nearest measured one is looked for.
_MAX_CHAIN: Final = 100


class Request(msgspec.Struct):
    """An evaluation asked for: its fields as :class:`Evaluation` has them."""

    node_id: str
    code: str
    parent_node_id: str | None = None
    started_at: str | None = None
    step: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class CheckedForecast(msgspec.Struct):
    """A file with the measurement of a node that was only forecast."""

    child_ulid: str
    real_observation: ev.Observation | None
    code_sha256: str | None = None


#: Events of which every one is counted.
_COUNTED: Final[dict[type, str]] = {
    ev.StepCompleted: "steps_completed",
    ev.MutationRequested: "mutations_requested",
    ev.MutationCompleted: "mutations_completed",
    ev.MutationFailed: "mutations_failed",
    ev.ForecastRequested: "forecasts_requested",
    ev.ForecastCompleted: "forecasts_completed",
    ev.ForecastFailed: "forecasts_failed",
    ev.CandidateSelected: "candidates_selected",
    ev.CandidateDeferred: "candidates_deferred",
}


class EventLog(Reading):
    """One search in the events of max-reward PUCT, v2 or v3; where it is one step of an outer search, ``outer_step`` is that step."""

    kind = RowKind(ev.Event, ev.EVENT_TYPES)

    def __init__(
        self, run: RunFiles, path: Path, report: Report, *, search: str | None = None, outer_step: int | None = None
    ) -> None:
        super().__init__(run, path, report, search=search)
        self.outer_step = outer_step
        self._roots: dict[str, Evaluation] = {}
        self._step: int | None = None
        self._unstepped: list[Request] = []
        self._requests: dict[str, Request] = {}
        self._answered: set[str] = set()
        self._forecast: dict[str, Request] = {}  # nodes evaluated by a forecast only
        self._proposals: dict[str, ev.MutationCompleted] = {}  # those that no evaluation request has repeated yet
        # A look-up: to match nine classes one after the other takes a quarter longer for the whole log.
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            ev.EvaluationCompleted: self._evaluation_completed,
            ev.EvaluationRequested: self._evaluation_requested,
            ev.EvaluationFailed: self._evaluation_failed,
            ev.SearchInitialized: self._search_initialized,
            ev.StepStarted: self._step_started,
            ev.StepCompleted: self._step_completed,
            ev.MutationCompleted: self._mutation_completed,
            ev.ForecastCompleted: self._forecast_completed,
            ev.CandidateDeferred: self._candidate_deferred,
        }

    def take(self, line: int, row: Any) -> None:
        """Take in the event of one line."""
        if (counted := _COUNTED.get(type(row))) is not None:
            self.count(counted)
        if (handler := self._handlers.get(type(row))) is not None:
            handler(line, row)

    # -- the search's frame

    def _search_initialized(self, line: int, event: ev.SearchInitialized) -> None:
        root, facts = event.root, self.facts
        if self._roots:
            known = root.ulid in self._roots
            message = "the search is initialised again" + ("" if known else " with another root; both are kept")
            self.warning("second-root", message, line=line, value=root.ulid)
        if event.kernel_task is not None and facts.problem is None:
            task = event.kernel_task
            facts.problem = task.op_name or None
            if natural(task.level_id) and natural(task.task_id):
                facts.problem = f"level{task.level_id}/{task.task_id}"
        if event.hardware is not None and facts.gpu is None:
            facts.gpu = event.hardware.device_name or None
        facts.reference_code = facts.reference_code or event.seed_reference_code or None
        if root.evaluation is None:
            self.warning("root-without-result", "the root has no evaluation", line=line)
            return
        request = Request(root.ulid, root.program_code, step=self.outer_step)
        record = self._measured(line, request, root.evaluation.observation, None)
        if record is not None:
            record.is_root = True
            earlier = self._roots.get(root.ulid)
            record.n_logged = 1 if earlier is None else earlier.n_logged + 1
            self._roots[root.ulid] = record

    def _step_started(self, _line: int, event: ev.StepStarted) -> None:
        self._step = step_number(event.step)

    def _step_completed(self, _line: int, event: ev.StepCompleted) -> None:
        for request in self._unstepped:
            # The line that opened this step is lost; the fence that closes it still has its number.
            request.step = step_number(event.step)
            result = self.found.get(request.node_id)
            if result is not None and result.step is None:
                result.step = request.step
        self._unstepped.clear()
        self._step = None

    # -- proposals

    def _mutation_completed(self, _line: int, event: ev.MutationCompleted) -> None:
        self._proposals[event.request_id] = event
        self._add_tokens(event.llm_usage)

    def _forecast_completed(self, _line: int, event: ev.ForecastCompleted) -> None:
        sent, answered = self._add_tokens(event.llm_usage)
        self.count("forecast_input_tokens", sent or 0)
        self.count("forecast_output_tokens", answered or 0)

    def _candidate_deferred(self, _line: int, event: ev.CandidateDeferred) -> None:
        self._proposals.pop(event.request_id, None)

    def _add_tokens(self, usage: ev.Usage | None) -> tuple[int | None, int | None]:
        """Tokens sent and answered of one call, added to those of the search."""
        if usage is None:
            return None, None
        sent, answered = natural(usage.input_tokens), natural(usage.output_tokens)
        self.facts.input_tokens = (self.facts.input_tokens or 0) + (sent or 0)
        self.facts.output_tokens = (self.facts.output_tokens or 0) + (answered or 0)
        return sent, answered

    # -- evaluations

    def _step_of(self, step: int | None) -> int | None:
        """The step of an evaluation: the outer search's, the event's own (v3), or the one whose events stand around it."""
        return self.outer_step if self.outer_step is not None else step_number(step if step is not None else self._step)

    def _evaluation_requested(self, line: int, event: ev.EvaluationRequested) -> None:
        node = event.child_ulid or event.request_id
        request = Request(node, event.code, event.parent_ulid, event.started_at, self._step_of(event.step))
        if request.step is None:
            self._unstepped.append(request)
        proposal = self._proposals.pop(event.from_mutation_request_id or event.request_id, None)
        if proposal is not None and proposal.llm_usage is not None:
            request.input_tokens = natural(proposal.llm_usage.input_tokens)
            request.output_tokens = natural(proposal.llm_usage.output_tokens)
        if event.request_id in self._requests:
            self.warning("second-request", "the evaluation is requested again", line=line, value=event.request_id)
        self._requests[event.request_id] = request

    def _requested(self, line: int, event: ev.EvaluationCompleted | ev.EvaluationFailed) -> Request | None:
        """The request that a result answers; rebuilt where its line is lost and the log still has all of it."""
        request = self._requests.get(event.request_id)
        proposal = self._proposals.get(event.request_id)  # v3: one id for proposal and evaluation
        if request is None and proposal is not None and proposal.code and event.parent_ulid is not None:
            step = self._step_of(event.step)
            request = Request(event.request_id, proposal.code, event.parent_ulid, step=step)
            self._requests[event.request_id] = request
            message = "the result's request is missing; program and parent are those of its proposal"
            self.warning("request-rebuilt", message, line=line, value=event.request_id)
        if request is None:
            self.count("results_without_request")
            message = "a result whose request is missing: its program and parent are unknown, so it is left out"
            self.error("result-without-request", message, line=line, value=event.request_id)
        else:
            self._answered.add(event.request_id)
        return request

    def _evaluation_completed(self, line: int, event: ev.EvaluationCompleted) -> None:
        request = self._requested(line, event)
        if request is None:
            return
        record = self._measured(line, request, event.evaluation.observation, event.completed_at)
        if record is None:
            return
        earlier = self.found.get(request.node_id)
        if earlier is not None:
            self.count("results_doubled")
            what = f"the result of node {printable(request.node_id)} is logged {earlier.n_logged + 1} times"
            self.keep_last(record, what, fix=f"the earlier one is on line {earlier.source_line}")
        else:
            self.found[request.node_id] = record

    def _evaluation_failed(self, line: int, event: ev.EvaluationFailed) -> None:
        request = self._requested(line, event)
        if request is None:
            return
        self.count("evaluation_failed")
        earlier = self.found.get(request.node_id)
        if earlier is not None:
            earlier.n_logged += 1
            message = f"node {printable(request.node_id)} has a result and a failure of its driver; the result counts"
            self.warning("doubled-result", message, line=line, fix=f"the result is on line {earlier.source_line}")
            return
        self.found[request.node_id] = Evaluation(
            source_file=self.file,
            source_line=line,
            outcome="infrastructure_failure",
            error_type=EVALUATION_FAILED,
            error_text=event.reason or None,
            **self._identity(request, event.completed_at),
        )

    def _identity(self, request: Request, completed_at: str | None) -> dict[str, Any]:
        """What a request says of its evaluation."""
        return {
            **msgspec.structs.asdict(request),
            "completed_at": completed_at,
            "gpu_seconds": seconds_between(request.started_at, completed_at),
            "search": self.facts.search,
        }

    def _measured(
        self, line: int | None, request: Request, observation: ev.Observation, completed_at: str | None
    ) -> Evaluation | None:
        """The evaluation of a result; ``None`` for what is no measurement (counted, and reported where it is a fault)."""
        if observation.kind == "forecast":
            self.count("compound_forecasts")
            self._forecast[request.node_id] = request
            return None
        if observation.inner is not None and observation.deferral_reason is not None:
            self.count("compound_deferrals")
        feedback = feedback_of(ev.LoggedEvaluation(observation))
        identity = self._identity(request, completed_at)
        return self.evaluation(feedback, line=line, field="evaluation.observation", **identity)

    # -- the end

    def finish(self) -> None:
        """Measurements of forecast nodes from their own files, ancestors, and the facts that the log itself states."""
        self._confirm()
        lineages: dict[str, tuple[str, ...]] = {}
        for node, record in [*self.found.items()]:
            parent = record.parent_node_id
            if parent in self._forecast:
                if parent not in lineages:
                    lineages[parent] = self._ancestors(parent)
                record.ancestor_node_ids = lineages[parent]
            if node in self._roots:
                self.warning("duplicate-node", "a child has the root's id", line=record.source_line)
                del self.found[node]
        facts, counts = self.facts, self.facts.counts
        facts.problem = facts.problem or self.problem()
        facts.n_pending = len(self._requests.keys() - self._answered)
        facts.n_mutations_failed = counts.pop("mutations_failed", 0)
        facts.n_forecasts = counts.get("forecasts_completed", 0) + counts.get("compound_forecasts", 0) or None
        facts.n_deferred = counts.pop("candidates_deferred", None)
        facts.counts = {name: n for name, n in sorted(counts.items()) if n}

    def evaluations(self) -> list[Evaluation]:
        """Every evaluation, the roots first, then in the order of their results."""
        return [*self._roots.values(), *self.found.values()]

    def _ancestors(self, node: str) -> tuple[str, ...]:
        """The ancestors behind a parent that was only forecast, nearest first, up to the first one measured."""
        chain: dict[str, None] = {}
        at: str | None = node
        while at is not None and at in self._forecast and len(chain) < _MAX_CHAIN:
            at = self._forecast[at].parent_node_id
            if at is None or at in chain:
                break
            chain[at] = None
        return tuple(chain)

    def _confirm(self) -> None:
        """Add the measurements of forecast nodes; one of another program than the node's is reported and left out."""
        for path in self.run.files if self._forecast else ():
            node = path.name.split(".")[0]
            request = self._forecast.get(node)
            if request is None:
                continue
            name, value = self.run.name(path), self.run.json(path)
            if isinstance(value, Finding):
                self.report.warning(value.code, f"{value.message}; its measurement is missing", file=name)
                continue
            try:
                checked = build(CheckedForecast, object_of(value), [])
            except (ValueError, RecursionError) as error:
                self.report.warning("bad-confirmation", f"no confirmed forecast: {error}", file=name)
                continue
            if checked.real_observation is None or checked.real_observation.kind == "forecast":
                continue
            sha = hashlib.sha256(request.code.encode()).hexdigest()
            if checked.child_ulid != node or checked.code_sha256 not in (None, sha):
                message = "the confirmed program is not the one that the log has; left out"
                self.report.error("wrong-sha256", message, file=name)
                continue
            record = self._measured(None, request, checked.real_observation, None)
            if record is not None:
                record.source_file, record.started_at = name, None  # the log's times are those of the forecast
                self.found[node] = record
                del self._forecast[node]
                self.count("forecasts_confirmed")


_SEED, _MANIFEST = "seed.json", "../eval_dataset_manifest.json"
_TARGET: Final = ("target_bin", "target_band_lo", "target_band_hi", "target_midpoint_speedup", "seed_source_id")


class _Puct(EventLog):
    """A search with the files of its run around it."""

    def finish(self) -> None:
        """The log's own facts, then those of the files beside it."""
        super().finish()
        add_facts(self)


class _BinFiller(EventLog):
    """A search for programs of one speedup bin. Its reward is a distance to that bin."""

    def finish(self) -> None:
        """Reference and GPU from the seed row, the target from the summary, then the other files."""
        super().finish()
        facts = self.facts
        seed, manifest, summary = (load_object(self, name) or {} for name in (_SEED, _MANIFEST, "summary.json"))
        facts.reference_code = facts.reference_code or text_of(seed.get("reference_code"))
        hardware = object_of(seed.get("hardware")) or object_of(manifest.get("hardware"))
        facts.gpu = facts.gpu or text_of(hardware.get("device_name"))
        facts.software = {"hardware": hardware} if hardware else None
        target: dict[str, Any] = {name: summary[name] for name in _TARGET if name in summary}
        facts.hyperparameters = {**object_of(summary.get("search_config")), **target} or None
        add_facts(self)


PUCT_EVENTS: Final = log_format(
    _Puct,
    name="puct-events",
    title="Event log of a max-reward PUCT search (v2, v3), GPU-mode, KernelBench, legacy or compound observations",
    expects="run directories with events.jsonl (other files of the run beside it), or the log files",
    log=(EVENTS_FILE,),
    beside=(*FILES_BESIDE, *CONFIRMED_FILES),
    version=2,
)
BIN_FILLER: Final = log_format(
    _BinFiller,
    name="bin-filler",
    title="Event log of a search for programs of one speedup bin; its reward is no speedup",
    expects="directories of one bin with events.jsonl (summary.json and seed.json beside it), or the log files",
    log=(EVENTS_FILE,),
    beside=(_SEED, _MANIFEST, *FILES_BESIDE),
    version=2,
)


_INNER: Final = "inner_events.jsonl"
_STEP: Final = re.compile(r"step_(\d{1,9})$")


class _TheoryBuilder(Reading):
    """An outer search: the evaluations of all its inner logs, each in the step that its folder names."""

    def read(self, path: Path) -> bool:
        """Take in every inner log; whether there was an event in one."""
        logs: list[tuple[int | None, Path]] = []
        for log in self.run.files:
            if log.name.removesuffix(".zst").removesuffix(".gz") == _INNER or log == path:
                match = _STEP.search(log.parent.name)
                logs.append((int(match[1]) if match else None, log))
        any_seen = False
        for step, log in sorted(logs, key=lambda item: (item[0] is None, item[0] or 0, item[1].as_posix())):
            inner = EventLog(self.run, log, self.report, outer_step=step)
            any_seen |= inner.read_lines(self.run.lines(log))
            inner.finish()
            self.add(inner)
        self.facts.counts["inner_logs"] = len(logs)
        return any_seen

    def add(self, inner: EventLog) -> None:
        """Add the evaluations and facts of an inner log."""
        for record in inner.evaluations():
            if record.node_id in self.found:
                message = "a node of an earlier inner log stands here again; the earlier one counts"
                inner.warning("duplicate-node", message, line=record.source_line, value=record.node_id)
            else:
                self.found[record.node_id] = record
        for name in ("problem", "gpu", "reference_code"):
            if getattr(self.facts, name) is None:
                setattr(self.facts, name, getattr(inner.facts, name))
        for name in ("n_pending", "n_mutations_failed", "n_deferred", "n_forecasts", "input_tokens", "output_tokens"):
            value = getattr(inner.facts, name)
            if value is not None:
                setattr(self.facts, name, (getattr(self.facts, name) or 0) + value)
        for name, n in inner.facts.counts.items():
            self.count(name, n)

    def finish(self) -> None:
        read_upstream(self)


THEORY_BUILDER: Final = log_format(
    _TheoryBuilder,
    name="theory-builder",
    title="Inner logs of a theory-building run; its outer log repeats their trials and is not read",
    expects="run directories with step_*/inner_events.jsonl, or one such log",
    log=(f"step_*/{_INNER}", _INNER),
    beside=UPSTREAM_FILES,
    version=2,
)
