"""What a reader yields: facts of the search, evaluations, published rows, and findings.

A reader is a function ``read(run: RunFiles) -> Iterator[Record]``. It never raises for a damaged log: whatever can be
salvaged is yielded, and each fault is a :class:`~kernel_archive.errors.Finding` with file and line.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from kernel_archive.errors import Finding

#: A time ratio outside of these is no measurement; within them medians and quotients of two stay finite.
SPEEDUP_RANGE: Final = (1e-9, 1e9)

Outcome = Literal["success", "compile_failed", "runtime_error", "incorrect", "infrastructure_failure"]


class Case(msgspec.Struct, frozen=True):
    """One timed benchmark case of one evaluation.

    Attributes:
        shape: the log's shape fields of the case; empty where the log has none.
        speedup: reference time / candidate time, x.
        runtime_us: mean candidate time, us.
        reference_runtime_us: mean reference time, us.
    """

    shape: dict[str, Any]
    speedup: float | None = None
    runtime_us: float | None = None
    reference_runtime_us: float | None = None


class Evaluation(msgspec.Struct, kw_only=True):
    """One evaluation of one program that came to a verdict: measured, failed, or lost by the infrastructure.

    A forecast, a reward and a deferred candidate are none. ``speedup`` is set exactly for ``success``.

    Attributes:
        node_id: id inside the search, unique in it.
        code: the program as logged.
        outcome: how it ended.
        parent_node_id: the direct parent as the log names it, also when that node is not in the log.
        ancestor_node_ids: further ancestors, nearest first, where the log lists them (for evicted parents).
        step: step of the search, from 0.
        is_root: the search's starting program.
        speedup: reference time / candidate time, x, finite and above 0.
        runtime_us: candidate time, us, where there are no cases.
        reference_runtime_us: reference time, us, where there are no cases.
        cases: per-case times.
        error_type: name of the error.
        error_text: error message as logged; consolidation bounds it.
        n_logged: how many times the log holds this evaluation.
        started_at: ISO 8601 with zone, as logged.
        completed_at: ISO 8601 with zone, as logged.
        gpu_seconds: upper bound of its GPU time, s; ``None`` where the log has none.
        input_tokens: tokens sent to the model for this program; ``None`` where not logged.
        output_tokens: tokens answered.
        model: model that wrote it, where the log says so per program.
        source_file: file, relative to the run's base (see ``RunFiles``).
        source_line: line from 1, ``None`` where the format has no lines.
        problem: only where each row of a table has its own problem.
        gpu: only where each row has its own GPU.
        reference_code: only where each row has its own reference.
        search: name of the search, only where one file holds several.
        excluded: why it counts in no other table, where its file gives reason to that.
        narrow_domain: a success that is wrong on inputs beyond the timed ones.
    """

    node_id: str
    code: str
    outcome: Outcome
    source_file: str
    source_line: int | None = None
    parent_node_id: str | None = None
    ancestor_node_ids: tuple[str, ...] = ()
    step: int | None = None
    is_root: bool = False
    speedup: float | None = None
    runtime_us: float | None = None
    reference_runtime_us: float | None = None
    cases: tuple[Case, ...] = ()
    error_type: str | None = None
    error_text: str | None = None
    n_logged: int = 1
    started_at: str | None = None
    completed_at: str | None = None
    gpu_seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    model: str | None = None
    problem: str | None = None
    gpu: str | None = None
    reference_code: str | None = None
    search: str | None = None
    excluded: str | None = None
    narrow_domain: bool = False


class SearchFacts(msgspec.Struct, kw_only=True):
    """What a log and the files around it say of the whole search; ``None`` where they don't. At most one per run, last.

    Attributes:
        problem: problem id as logged.
        gpu: GPU as logged.
        model: model slug.
        reference_code: source of the reference.
        tolerance: ``{"rtol": ..., "atol": ...}``.
        benchmark_cases: the timed cases.
        correctness_cases: further checked cases.
        hyperparameters: search settings.
        measurement: measurement settings.
        software: versions, device properties.
        finished: whether the run came to its own end.
        gpu_seconds: GPU time that the run itself states, s.
        wall_seconds: wall time of the run, s.
        input_tokens: tokens of the whole run where only a total is logged.
        output_tokens: likewise.
        n_pending: evaluations requested without a verdict.
        n_mutations_failed: proposals that gave no program.
        n_deferred: programs proposed but never run.
        n_forecasts: forecasts logged.
        counts: any further counts of the format, for the manifest.
        search: name of the search, only where one file holds several (one record each).
    """

    problem: str | None = None
    gpu: str | None = None
    model: str | None = None
    reference_code: str | None = None
    tolerance: dict[str, float] | None = None
    benchmark_cases: list[dict[str, Any]] | None = None
    correctness_cases: list[dict[str, Any]] | None = None
    hyperparameters: dict[str, Any] | None = None
    measurement: dict[str, Any] | None = None
    software: dict[str, Any] | None = None
    finished: bool | None = None
    gpu_seconds: float | None = None
    wall_seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    n_pending: int = 0
    n_mutations_failed: int | None = None
    n_deferred: int | None = None
    n_forecasts: int | None = None
    counts: dict[str, int] = {}
    search: str | None = None


class PublishedRow(msgspec.Struct, kw_only=True):
    """One row of a split that somebody else published: kept with its id, order and label, never selected again.

    Attributes:
        split: which split it is a row of.
        row_id: the published id.
        problem: problem id.
        gpu: GPU as published.
        anchor_code: reference, parent or anchor program.
        candidate_code: candidate or child program.
        speedup: anchor time / candidate time, x.
        label: the published bin (``released`` scheme).
        pair_type: ``seed``, ``parent_edit`` or ``pair`` for training rows.
        parent_node_id: for discovery rows.
        child_node_id: for discovery rows.
        source_search: the search that it came from, as published.
        order: position in the published table, from 0.
        source_file: file.
        source_line: row number from 1.
    """

    split: Literal["eval", "discovery_pairs", "train_pairs"]
    row_id: str
    problem: str
    gpu: str
    anchor_code: str
    candidate_code: str
    speedup: float
    label: int
    order: int
    source_file: str
    source_line: int | None = None
    pair_type: str | None = None
    parent_node_id: str | None = None
    child_node_id: str | None = None
    source_search: str | None = None


Record: TypeAlias = Evaluation | SearchFacts | PublishedRow | Finding
