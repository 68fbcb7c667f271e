"""From a worker's result to the record that logs and commands show: observation, reward, timing."""

from __future__ import annotations

import math
import statistics
from typing import Any

import msgspec

from kernel_archive.readers.events import Feedback, LoggedEvaluation, Observation
from kernel_archive.schema import Outcome
from kernel_measure.timing import Result


class Measurement(Result, kw_only=True):
    """One measured program."""

    task: str
    outcome: Outcome
    #: Reference time / candidate time, x, geometric mean over cases; ``None`` unless success.
    speedup: float | None = None
    #: Cases (as text) whose reference stayed outside its band after the repeats.
    off_band: list[str] = msgspec.field(default_factory=list)
    attempts: int = 1  # evaluations that this took
    wall_s: float = 0.0  # seconds in the worker, all attempts
    fresh_worker: bool = True  # whether the program was the first of its process

    def timing(self) -> dict[str, Any]:
        """Return the line of ``timing.jsonl``, with both distributions of every case."""
        return {
            "speedup": self.speedup,
            "kind": self.outcome,
            "statistic": "median",
            "wall_s": round(self.wall_s, 6),
            "attempts": self.attempts,
            "off_band": self.off_band,
            "salt": self.salt,
            "fresh_worker": self.fresh_worker,
            "timing": [
                {n: getattr(c, n) for n in ("candidate", "reference", "stop", "over_limit")}
                for c in self.cases
            ],
        }


def case_key(shape: dict[str, Any]) -> str:
    """Write a case as text: ``vocab_size=32000``."""
    return ",".join(f"{k}={v}" for k, v in shape.items())


def measurement_of(task: str, result: Result, *, wall_s: float) -> Measurement:
    """Return the verdict over cases: a failure, else the geometric mean of their ratios.

    Raises:
        ValueError: there is neither a failure nor a ratio.
    """
    reported = msgspec.structs.asdict(result)
    m = Measurement(task=task, outcome="success", wall_s=wall_s, **reported)
    if result.failure_kind != "none":
        m.outcome = result.failure_kind
        return m
    times = [(case.candidate.median, case.reference.median) for case in result.cases]
    if any(own <= 0 or ref <= 0 for own, ref in times):
        raise ValueError("times that are not above zero")
    m.speedup = statistics.geometric_mean([ref / own for own, ref in times])
    if not 0 < m.speedup < math.inf:
        raise ValueError("times that have no ratio")
    return m


def logged_evaluation(m: Measurement) -> LoggedEvaluation:
    """Write a measurement as the logs hold it; the reward is the speedup.

    Cases timed before a failure stand in ``timing()``.
    """
    feedback = Feedback(kind=m.outcome)
    if m.outcome == "compile_failed":
        feedback.compilation_error = m.error
    elif m.outcome == "runtime_error":
        feedback.runtime_error_name, feedback.runtime_error = m.error_name, m.error
    elif m.outcome == "incorrect":
        feedback.error_message = m.error
    elif m.outcome == "infrastructure_failure":
        feedback.reason = m.error
    else:
        feedback.aggregated_speedup, feedback.aggregation_method = m.speedup, "geomean"
        feedback.per_case_speedups = [
            {
                "speedup": case.reference.median / case.candidate.median,
                "runtime_ns": case.candidate.median,
                "ref_runtime_ns": case.reference.median,
                **case.shape,
            }
            for case in m.cases
        ]
        feedback.narrow_domain = m.narrow_domain or None
    return LoggedEvaluation(observation=Observation(feedback=feedback), reward=m.speedup)
