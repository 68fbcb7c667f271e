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
    """One timed benchmark case of one evaluation."""

    shape: dict[str, Any]  # the log's shape fields of the case; empty where the log has none
    speedup: float | None = None  # reference time / candidate time, x
    runtime_us: float | None = None  # mean candidate time, us
    reference_runtime_us: float | None = None  # mean reference time, us


class Evaluation(msgspec.Struct, kw_only=True):
    """One evaluation of one program that came to a verdict: measured, failed, or lost by the infrastructure.

    A forecast, a reward and a deferred candidate are none. ``speedup`` is set exactly for ``success``.
    """

    node_id: str  # unique in the search
    code: str  # the program as logged
    outcome: Outcome
    source_file: str  # relative to the run's base (see ``RunFiles``)
    source_line: int | None = None  # from 1; ``None`` where the format has no lines
    parent_node_id: str | None = None  # the direct parent as the log names it, also when that node is not in the log
    ancestor_node_ids: tuple[str, ...] = ()  # further ones, nearest first (for evicted parents)
    step: int | None = None  # of the search, from 0
    is_root: bool = False  # the search's starting program
    speedup: float | None = None  # reference time / candidate time, x, finite and above 0
    runtime_us: float | None = None  # candidate time, us, where there are no cases
    reference_runtime_us: float | None = None  # reference time, us, where there are no cases
    cases: tuple[Case, ...] = ()
    error_type: str | None = None  # name of the error
    error_text: str | None = None  # its message as logged; consolidation bounds it
    n_logged: int = 1  # how many times the log holds this evaluation
    started_at: str | None = None  # ISO 8601 with zone, as logged; like completed_at
    completed_at: str | None = None
    gpu_seconds: float | None = None  # upper bound of its GPU time, s; ``None`` where the log has none
    input_tokens: int | None = None  # sent to the model for this program; ``None`` where not logged
    output_tokens: int | None = None  # answered
    model: str | None = None  # that wrote it, where the log says so per program
    problem: str | None = None  # only where each row of a table has its own; like gpu and reference_code
    gpu: str | None = None
    reference_code: str | None = None
    search: str | None = None  # name of the search, only where one file holds several
    excluded: str | None = None  # why it counts in no other table, where its file gives reason to that
    narrow_domain: bool = False  # a success that is wrong on inputs beyond the timed ones


class SearchFacts(msgspec.Struct, kw_only=True):
    """What a log and the files around it say of the whole search; ``None`` where they don't. At most one per run, last."""

    problem: str | None = None  # as logged; like gpu
    gpu: str | None = None
    model: str | None = None  # slug
    reference_code: str | None = None
    tolerance: dict[str, float] | None = None  # ``{"rtol": ..., "atol": ...}``
    benchmark_cases: list[dict[str, Any]] | None = None  # the timed ones
    correctness_cases: list[dict[str, Any]] | None = None  # further ones that are checked
    hyperparameters: dict[str, Any] | None = None  # settings of the search
    measurement: dict[str, Any] | None = None  # settings of the measurement
    software: dict[str, Any] | None = None  # versions, device properties
    finished: bool | None = None  # whether the run came to its own end
    gpu_seconds: float | None = None  # GPU time that the run itself states, s
    wall_seconds: float | None = None  # wall time of the run, s
    input_tokens: int | None = None  # of the whole run where only a total is logged; like output_tokens
    output_tokens: int | None = None
    n_pending: int = 0  # evaluations requested without a verdict
    n_mutations_failed: int | None = None  # proposals that gave no program
    n_deferred: int | None = None  # programs proposed but never run
    n_forecasts: int | None = None  # forecasts logged
    counts: dict[str, int] = {}  # any further counts of the format, for the manifest
    search: str | None = None  # only where one file holds several searches (one record each)


class PublishedRow(msgspec.Struct, kw_only=True):
    """One row of a split that somebody else published: kept with its id, order and label, never selected again."""

    split: Literal["eval", "discovery_pairs", "train_pairs"]
    row_id: str  # as published; like problem and gpu
    problem: str
    gpu: str
    anchor_code: str  # reference, parent or anchor program
    candidate_code: str  # candidate or child program
    speedup: float  # anchor time / candidate time, x
    label: int  # the published bin (``released`` scheme)
    order: int  # position in the published table, from 0
    source_file: str
    source_line: int | None = None  # row number from 1
    pair_type: str | None = None  # ``seed``, ``parent_edit`` or ``pair`` for training rows
    parent_node_id: str | None = None  # for discovery rows; like child_node_id
    child_node_id: str | None = None
    source_search: str | None = None  # the search that it came from, as published


Record: TypeAlias = Evaluation | SearchFacts | PublishedRow | Finding
