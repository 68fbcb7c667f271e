"""The words of search logs: every event, row and result that readers parse and the recorder writes.

One struct per line of ``events.jsonl`` (max-reward PUCT, v2 and v3), ``attempts.jsonl`` and ``timing.jsonl``, and the
results inside them. Decoding skips every field that is not named here; encoding leaves out every field that was not set.
A field that upstream logs may lack has a default, so that a reader can do without it.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final

import msgspec


class Feedback(msgspec.Struct, omit_defaults=True):
    """What the harness said of one program: ``kind`` is the outcome and says which other fields are set.

    GPU-mode harnesses and KernelBench spell the fields differently; both spellings stand here.
    """

    kind: str
    aggregated_speedup: float | None = None
    aggregation_method: str | None = None
    per_case_speedups: list[dict[str, Any]] | None = None
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
    narrow_domain: str | None = None  # of a success: what the program does wrong on inputs beyond the timed ones


class Observation(msgspec.Struct, omit_defaults=True):
    """What came back for one program: a measurement, or in compound logs a forecast or a wrapped measurement."""

    feedback: Feedback | None = None
    per_case_results: msgspec.Raw = msgspec.Raw(b"[]")  # not read: the feedback holds what counts of it
    kind: str | None = None
    inner: Observation | None = None
    deferral_reason: str | None = None


class LoggedEvaluation(msgspec.Struct):
    """The ``evaluation`` object of an event, a node or an attempt.

    The reward is what the search aims at: a speedup, a distance to a bin, a ratio of microseconds or a forecast. Readers
    never take it for a speedup.
    """

    observation: Observation
    reward: float | msgspec.UnsetType | None = msgspec.UNSET


class Node(msgspec.Struct):
    """A node of a search as logged; ``ancestors`` are the nearest first."""

    program_code: str
    ulid: str
    evaluation: LoggedEvaluation | None = None
    ancestors: list[str] = []
    is_seed: bool = False


class KernelTask(msgspec.Struct):
    """v3: what is searched for."""

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
    """The first event: the starting program with its result; v3 also says what is searched for and where."""

    root: Node
    kernel_task: KernelTask | None = None
    seed_reference_code: str | None = None
    hardware: Hardware | None = None


class StepStarted(_Event, tag="step_started"):
    """Parents were selected. In v2 this event and ``step_completed`` are all that says which step an event is of."""

    step: int | None = None
    parent_ulids: list[str] | None = None
    selected_parent_scores: Any = None  # beside parent_ulids: why they were selected; no reader takes it for a result
    selected_parent_visits: Any = None


class StepCompleted(_Event, tag="step_completed"):
    """The children of the step were admitted."""

    step: int | None = None


class MutationRequested(_Event, tag="mutation_requested"):
    """A program was asked for."""

    request_id: str
    parent_ulid: str | None = None
    started_at: str | None = None


class MutationCompleted(_Event, tag="mutation_completed"):
    """A program was proposed."""

    request_id: str
    code: str | None = None
    completed_at: str | None = None
    llm_usage: Usage | None = None


class MutationFailed(_Event, tag="mutation_failed"):
    """A proposal gave no program."""

    request_id: str
    reason: str | None = None
    completed_at: str | None = None


class ForecastRequested(_Event, tag="forecast_requested"):
    """v3: a forecast of a proposed program was asked for."""

    request_id: str


class ForecastCompleted(_Event, tag="forecast_completed"):
    """v3: a program was forecast, not measured."""

    request_id: str
    forecast: Any = None
    completed_at: str | None = None
    llm_usage: Usage | None = None


class ForecastFailed(_Event, tag="forecast_failed"):
    """v3: there is no forecast; such programs are never evaluated."""

    request_id: str
    reason: str | None = None


class CandidateSelected(_Event, tag="candidate_selected"):
    """v3: the program will be evaluated."""

    request_id: str
    selection_score: Any = None


class CandidateDeferred(_Event, tag="candidate_deferred"):
    """v3: the program was proposed and will not be evaluated."""

    request_id: str
    selection_score: Any = None


class EvaluationRequested(_Event, tag="evaluation_requested"):
    """A program was sent to the GPU. Its node's id is ``child_ulid`` in v2 and the request's id in v3."""

    request_id: str
    code: str
    child_ulid: str | None = None
    parent_ulid: str | None = None
    from_mutation_request_id: str | None = None
    started_at: str | None = None
    step: int | None = None


class EvaluationCompleted(_Event, tag="evaluation_completed"):
    """The result of a request. It carries neither program nor (in v2) parent."""

    request_id: str
    evaluation: LoggedEvaluation
    parent_ulid: str | None = None
    completed_at: str | None = None
    step: int | None = None


class EvaluationFailed(_Event, tag="evaluation_failed"):
    """The driver gave an evaluation up: there is no verdict of the harness."""

    request_id: str
    reason: str | None = None
    parent_ulid: str | None = None
    completed_at: str | None = None
    step: int | None = None


#: v3: no further proposals, forecasts or evaluations of this parent; nothing is read of them.
_DRAINED: Final = [
    msgspec.defstruct(kind, [], bases=(_Event,), tag=kind)
    for kind in ("mutations_drained", "forecasts_drained", "evaluations_drained")
]
#: Kind -> struct, of every event.
EVENT_TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    str(cls.__struct_config__.tag): cls for cls in _Event.__subclasses__()
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
    forecast: dict[str, Any] | None = None  # what its author expected, before it was measured
    output_tokens: int | None = None
    evaluation: LoggedEvaluation | None = None


class TimingLine(msgspec.Struct, omit_defaults=True):
    """One row of ``timing.jsonl``: one evaluation as the timer saw it. Only what readers use of it is named here."""

    kind: str | None = None
    speedup: float | None = None
    wall_s: float | None = None
    started_at: str | None = None
    completed_at: str | None = None
