"""The words of search logs: every event, row and result that readers parse and recorders write.

Decoding skips every field that is not named here; encoding leaves out every field that was not set.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec


class Feedback(msgspec.Struct, omit_defaults=True):
    """What the harness said of one program; which fields are set depends on the outcome ``kind``.

    GPU-mode harnesses and KernelBench spell the fields differently; both spellings stand here.
    """

    kind: str
    aggregated_speedup: float | None = None
    aggregation_method: str | None = None
    per_case_speedups: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=1000)] | None = None
    speedup: float | None = None
    runtime_us: float | None = None  # KernelBench: misnamed in the logs, milliseconds
    ref_runtime_us: float | None = None
    compilation_error_name: str | None = None
    compilation_error: str | None = None
    runtime_error_name: str | None = None
    runtime_error: str | None = None
    traceback: str | None = None
    runtime_error_traceback: str | None = None
    error_message: str | None = None
    correctness_issue: str | None = None
    reason: str | None = None
    narrow_domain: str | None = None  # of a success: what it does wrong beyond the timed inputs


class Observation(msgspec.Struct, omit_defaults=True):
    """What came back for one program: a measurement; in compound logs a forecast or a wrapper."""

    feedback: Feedback | None = None
    kind: str | None = None
    inner: Observation | None = None


class LoggedEvaluation(msgspec.Struct):
    """The ``evaluation`` object of an event, a node or an attempt."""

    observation: Observation
    reward: float | msgspec.UnsetType | None = msgspec.UNSET  # what the search aims at: no speedup


class Node(msgspec.Struct):
    """A node of a search as logged; ``ancestors`` are the nearest first."""

    program_code: str
    ulid: str
    evaluation: LoggedEvaluation | None = None
    ancestors: list[str] = []
    is_seed: bool = False


class KernelTask(msgspec.Struct):
    """What is searched for (v3)."""

    op_name: str | None = None
    level_id: int | None = None
    task_id: int | None = None


class Hardware(msgspec.Struct):
    """Where it is measured."""

    device_name: str | None = None


class Usage(msgspec.Struct):
    """Tokens of one call to a model."""

    input_tokens: int | None = None
    output_tokens: int | None = None


class _Event(msgspec.Struct, tag_field="kind", omit_defaults=True):
    """Any event; the tag of each class is its ``kind`` in the log."""


class SearchInitialized(_Event, tag="search_initialized"):
    """The first event: the starting program with its result; in v3 also problem and hardware."""

    root: Node
    kernel_task: KernelTask | None = None
    seed_reference_code: str | None = None
    hardware: Hardware | None = None


class StepStarted(_Event, tag="step_started"):
    """Parents were selected. In v2 only this and ``step_completed`` tell the step of an event."""

    step: int | None = None
    parent_ulids: list[str] | None = None
    selected_parent_scores: Any = None  # why they were selected; never a result
    selected_parent_visits: Any = None


class StepCompleted(_Event, tag="step_completed"):
    """The children of the step were admitted."""

    step: int | None = None


class _OfRequest(_Event, kw_only=True):
    """An event of one request; times are ISO 8601."""

    request_id: str
    parent_ulid: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


class MutationRequested(_OfRequest, tag="mutation_requested"):
    """A program was asked for."""


class MutationCompleted(_OfRequest, tag="mutation_completed"):
    """A program was proposed."""

    code: str | None = None
    llm_usage: Usage | None = None


class MutationFailed(_OfRequest, tag="mutation_failed"):
    """A proposal gave no program."""

    reason: str | None = None


class ForecastCompleted(_OfRequest, tag="forecast_completed"):
    """A program was forecast, not measured."""

    forecast: Any = None
    llm_usage: Usage | None = None


class CandidateSelected(_OfRequest, tag="candidate_selected"):
    """The program will be evaluated."""

    selection_score: Any = None


class CandidateDeferred(_OfRequest, tag="candidate_deferred"):
    """The program was proposed and will not be evaluated."""

    selection_score: Any = None


class EvaluationRequested(_OfRequest, tag="evaluation_requested"):
    """A program was sent to the GPU. Its node is ``child_ulid`` in v2, the request's id in v3."""

    code: str
    child_ulid: str | None = None
    from_mutation_request_id: str | None = None
    step: int | None = None


class EvaluationCompleted(_OfRequest, tag="evaluation_completed"):
    """The result of a request. It carries neither program nor (in v2) parent."""

    evaluation: LoggedEvaluation


class EvaluationFailed(_OfRequest, tag="evaluation_failed"):
    """The driver gave an evaluation up: there is no verdict of the harness."""

    reason: str | None = None


#: v3: events of which nothing is read but that they happened.
_BARE: Final = (
    *("forecast_requested", "forecast_failed"),
    *("mutations_drained", "forecasts_drained", "evaluations_drained"),
)
#: Kind -> struct, of every event.
EVENT_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    **{kind: msgspec.defstruct(kind, [], bases=(_Event,), tag=kind) for kind in _BARE},
    **{str(cls.__struct_config__.tag): cls for cls in _OfRequest.__subclasses__()},
    "search_initialized": SearchInitialized,
    "step_started": StepStarted,
    "step_completed": StepCompleted,
}
#: What a line of an event log may be, for a decoder.
Event: Any = reduce(or_, EVENT_TYPES.values())


class Attempt(msgspec.Struct, omit_defaults=True):
    """One row of ``attempts.jsonl``: one attempt of an agent with its result."""

    attempt: int
    code: str
    parent_attempt: int | None = None
    title: str | None = None
    note: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    forecast: dict[str, Any] | None = None  # what its author expected before it was measured
    output_tokens: int | None = None
    evaluation: LoggedEvaluation | None = None


class TimingLine(msgspec.Struct, omit_defaults=True):
    """One row of ``timing.jsonl``: one evaluation as the timer saw it, as far as readers use it."""

    kind: str | None = None
    speedup: float | None = None
    wall_s: float | None = None
    started_at: str | None = None
    completed_at: str | None = None
