"""From a worker's result to the record that logs and commands show: observation, reward, timing."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kernel_archive.measure.evaluate import CaseResult, Result  # noqa: TC001 - msgspec reads the annotations
from kernel_archive.measure.stats import Distribution, geometric_mean

__all__ = ["Measurement", "case_key", "evaluation", "failed_case", "measurement", "time_of"]

Statistic = Literal["median", "mean"]
Outcome = Literal["success", "compile_failed", "runtime_error", "incorrect", "infrastructure_failure"]


class Measurement(msgspec.Struct, kw_only=True):
    """One measured program.

    Attributes:
        task: problem id.
        outcome: success, compile_failed, runtime_error, incorrect or infrastructure_failure.
        speedup: reference time / candidate time, x, geometric mean over cases; ``None`` unless success.
        cases: what each case gave, up to the first failure.
        error: message of the failure.
        error_name: exception or guard.
        traceback: of the program's frames.
        statistic: which statistic ``speedup`` is made of.
        off_band: cases (as text) whose reference stayed outside its band after the repeats.
        attempts: evaluations that this took.
        phases: seconds by phase, in the worker.
        wall_s: seconds in the worker, all attempts.
        salt: with the seed, gives the inputs again.
        fresh_worker: whether the program was the first of its process.
        narrow_domain: what a success does wrong on ``stress`` inputs; empty when nothing, or when the task has none.
    """

    task: str
    outcome: Outcome
    cases: list[CaseResult]
    speedup: float | None = None
    error: str = ""
    error_name: str = ""
    traceback: str = ""
    statistic: Statistic = "median"
    off_band: list[str] = []
    attempts: int = 1
    phases: dict[str, float] = {}
    wall_s: float = 0.0
    salt: str = ""
    fresh_worker: bool = True
    narrow_domain: str = ""

    def timing(self) -> dict[str, Any]:
        """The line of ``timing.jsonl``: phases and both distributions of every case."""
        return {
            "speedup": self.speedup,
            "kind": self.outcome,
            "statistic": self.statistic,
            "wall_s": round(self.wall_s, 6),
            "phases": {k: round(v, 6) for k, v in self.phases.items()},
            "attempts": self.attempts,
            "off_band": self.off_band,
            "salt": self.salt,
            "fresh_worker": self.fresh_worker,
            "timing": [
                {
                    "candidate": msgspec.to_builtins(c.candidate),
                    "reference": msgspec.to_builtins(c.reference),
                    "stop": c.stop,
                    "over_limit": c.over_limit,
                }
                for c in self.cases
                if c.candidate is not None
            ],
        }


def time_of(distribution: Distribution, statistic: Statistic) -> float:
    """The time that stands for a distribution, ns."""
    return distribution.median if statistic == "median" else distribution.mean


def case_key(shape: dict[str, Any]) -> str:
    """A case as text: ``vocab_size=32000``."""
    return ",".join(f"{k}={v}" for k, v in shape.items())


def measurement(task: str, result: Result, *, statistic: Statistic, wall_s: float) -> Measurement:
    """The verdict over cases: the first failed one decides, else the geometric mean of the cases' speedups."""
    cases = result.cases
    common: dict[str, Any] = {
        "task": task, "cases": cases, "statistic": statistic, "phases": result.phases, "salt": result.salt
    }  # fmt: skip
    for case in cases:
        if case.failure_kind != "none":
            return Measurement(
                outcome=case.failure_kind,  # type: ignore[arg-type] # one of the outcomes by construction
                error=case.error, error_name=case.error_name, traceback=case.traceback, wall_s=wall_s, **common,
            )  # fmt: skip
    ratios = []
    for case in cases:
        assert case.candidate is not None  # noqa: S101 - a case without failure was timed
        assert case.reference is not None  # noqa: S101 - likewise
        ratios.append(time_of(case.reference, statistic) / time_of(case.candidate, statistic))
    return Measurement(
        outcome="success", speedup=geometric_mean(ratios), wall_s=wall_s, narrow_domain=result.narrow_domain, **common
    )


def failed_case(kind: str, **fields: Any) -> dict[str, Any]:
    """One entry of ``per_case_results``."""
    empty = {
        "correct": False, "runtime_ns": 0.0, "ref_runtime_ns": 0.0, "error_message": "", "runtime_error_name": "",
        "runtime_error": "", "traceback": "", "compilation_error": "", "failure_kind": kind,
    }  # fmt: skip
    return {**empty, **fields}


def _case_record(case: CaseResult, statistic: Statistic) -> dict[str, Any]:
    if case.failure_kind == "compile_failed":
        return failed_case("compile_failed", compilation_error=case.error)
    if case.failure_kind == "runtime_error":
        return failed_case(
            "runtime_error", runtime_error_name=case.error_name, runtime_error=case.error, traceback=case.traceback
        )
    if case.failure_kind == "incorrect":
        return failed_case("incorrect", error_message=case.error)
    assert case.candidate is not None  # noqa: S101 - a case without failure was timed
    assert case.reference is not None  # noqa: S101 - likewise
    return failed_case(
        "none",
        correct=True,
        runtime_ns=time_of(case.candidate, statistic),
        ref_runtime_ns=time_of(case.reference, statistic),
    )


def evaluation(m: Measurement) -> dict[str, Any]:
    """The GPU Mode evaluation of the event logs: ``{"observation": ..., "reward": speedup or None}``."""
    records = [_case_record(c, m.statistic) for c in m.cases]
    feedback: dict[str, Any]
    if m.outcome == "success":
        per_case = [
            {
                "speedup": r["ref_runtime_ns"] / r["runtime_ns"],
                "runtime_ns": r["runtime_ns"],
                "ref_runtime_ns": r["ref_runtime_ns"],
                **c.shape,
            }
            for r, c in zip(records, m.cases, strict=True)
        ]
        feedback = {
            "kind": "success",
            "aggregated_speedup": m.speedup,
            "aggregation_method": "geomean",
            "per_case_speedups": per_case,
            **({"narrow_domain": m.narrow_domain} if m.narrow_domain else {}),
        }
    elif m.outcome == "compile_failed":
        feedback = {"kind": "compile_failed", "compilation_error": m.error}
    elif m.outcome == "runtime_error":
        feedback = {
            "kind": "runtime_error",
            "runtime_error_name": m.error_name,
            "runtime_error": m.error,
            "traceback": m.traceback,
        }
    elif m.outcome == "incorrect":
        feedback = {"kind": "incorrect", "error_message": m.error}
    else:
        feedback, records = {"kind": "infrastructure_failure", "reason": m.error}, []
    return {"observation": {"feedback": feedback, "per_case_results": records}, "reward": m.speedup}
