"""What a reader yields: evaluations, published rows, facts of the search, and findings.

A reader never raises for a damaged log. It yields whatever can be salvaged, and a
:class:`~kernel_archive.errors.Finding` with file and line for each fault.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.schema import Outcome

#: A speedup outside of this range is no measurement; inside, quotients of two stay finite.
SPEEDUP_RANGE: Final = (1e-9, 1e9)

#: ``error_type`` of an evaluation that its driver gave up: the log has no verdict of a harness.
EVALUATION_FAILED: Final = "evaluation_failed"


class Case(msgspec.Struct, frozen=True):
    """One timed benchmark case of one evaluation."""

    shape: dict[str, Any]  # shape fields as logged; empty where the log has none
    speedup: float | None = None  # reference time / candidate time
    runtime_us: float | None = None  # mean time of the candidate
    reference_runtime_us: float | None = None  # mean time of the reference


class Evaluation(msgspec.Struct, kw_only=True):
    """One evaluation of one program: measured, failed, or lost by the infrastructure.

    A forecast, a reward or a deferred candidate is not one. ``speedup`` is set exactly for
    ``success``. Fields are ``None`` where the log does not state them.
    """

    node_id: str  # unique in the search
    code: str  # the program as logged
    source_file: str  # relative to the recipe (see ``RunFiles``)
    source_line: int | None = None  # from 1
    outcome: Outcome = "infrastructure_failure"  # until a harness gives another verdict
    parent_node_id: str | None = None  # as logged, even where that node is not in the log
    ancestor_node_ids: tuple[str, ...] = ()  # behind the parent, nearest first
    step: int | None = None  # of the search, from 0
    is_root: bool = False  # the starting program of the search
    speedup: float | None = None  # reference time / candidate time, finite and above 0
    runtime_us: float | None = None  # time of the candidate, where there are no cases
    reference_runtime_us: float | None = None  # time of the reference, where there are no cases
    cases: tuple[Case, ...] = ()
    error_type: str | None = None
    error_text: str | None = None  # as logged; rows bound its length
    n_logged: int = 1  # how many times the log holds this evaluation
    started_at: str | None = None  # ISO 8601 with zone, as logged
    completed_at: str | None = None
    gpu_seconds: float | None = None  # upper bound of its GPU time
    input_tokens: int | None = None  # sent to the model for this program
    output_tokens: int | None = None
    model: str | None = None  # where the log names it for each program
    problem: str | None = None  # problem, gpu, reference: where each row of a table has its own
    gpu: str | None = None
    reference_code: str | None = None
    search: str | None = None  # name of the search, where one file holds several
    excluded: str | None = None  # why it counts in no other table
    goal_bin: int | None = None  # 1 to 8: the bin that the author was told to land in
    aim: str | None = None  # what else the author was told to aim at
    narrow_domain: bool = False  # a success that is wrong on inputs beyond the timed ones


class SearchFacts(msgspec.Struct, kw_only=True):
    """What a log and the files around it state of a whole search; ``None`` where they don't."""

    problem: str | None = None  # as logged
    gpu: str | None = None
    model: str | None = None
    reference_code: str | None = None
    tolerance: dict[str, float] | None = None  # ``{"rtol": ..., "atol": ...}``
    benchmark_cases: list[dict[str, Any]] | None = None  # the timed ones
    correctness_cases: list[dict[str, Any]] | None = None  # those that are checked besides
    hyperparameters: dict[str, Any] | None = None
    measurement: dict[str, Any] | None = None  # settings of the measurement
    software: dict[str, Any] | None = None  # versions, device properties
    finished: bool | None = None  # whether the run came to its own end
    gpu_seconds: float | None = None  # stated by the run itself
    wall_seconds: float | None = None
    input_tokens: int | None = None  # of the whole run, where only a total is logged
    output_tokens: int | None = None
    n_pending: int = 0  # evaluations requested that have no verdict
    n_mutations_failed: int | None = None  # proposals that gave no program
    n_deferred: int | None = None  # programs proposed but never run
    n_forecasts: int | None = None
    counts: Counter[str] = msgspec.field(default_factory=Counter)  # for the manifest
    search: str | None = None  # where one file holds several searches (one record each)


class PublishedRow(msgspec.Struct, kw_only=True):
    """One row of a split that others published: kept with its id, order and label."""

    split: Literal["eval", "discovery_pairs", "train_pairs"]
    row_id: str  # as published
    problem: str
    gpu: str
    anchor_code: str  # reference, parent or anchor program
    candidate_code: str  # candidate or child program
    speedup: float  # anchor time / candidate time
    label: int  # the published bin (``released`` scheme)
    order: int  # position in the published table, from 0
    source_file: str
    source_line: int | None = None  # row number from 1
    pair_type: str | None = None  # of training rows: ``seed``, ``parent_edit`` or ``pair``
    parent_node_id: str | None = None  # of discovery rows
    child_node_id: str | None = None
    source_search: str | None = None  # the search it came from, as published


Record: TypeAlias = Evaluation | SearchFacts | PublishedRow | Finding
