"""What an evaluation log entry says: the feedback arms of every harness, turned into one verdict.

The entry's ``reward`` is not read at all: it is a speedup in some logs, a log distance to a target bin, a ratio of
microseconds or a forecast in others. Only what the harness measured counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.problems import PROBLEMS
from kernel_archive.readers.lenient import finite, positive
from kernel_archive.readers.records import Case

if TYPE_CHECKING:
    from kernel_archive.readers.events import Feedback
    from kernel_archive.readers.records import Outcome

__all__ = ["Judge", "Verdict"]


class Verdict(msgspec.Struct):
    """The outcome of one evaluation, in the archive's terms.

    Attributes:
        outcome: how it ended.
        speedup: set exactly for success.
        runtime_us: where there are no cases.
        reference_runtime_us: where there are no cases.
        cases: per-case times.
        error_type: name of the error.
        error_text: message.
        remark: what is odd about it, for a finding.
    """

    outcome: Outcome
    speedup: float | None = None
    runtime_us: float | None = None
    reference_runtime_us: float | None = None
    cases: tuple[Case, ...] = ()
    error_type: str | None = None
    error_text: str | None = None
    remark: str | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of an evaluation that a verdict fills."""
        return {
            "outcome": self.outcome,
            "speedup": self.speedup,
            "runtime_us": self.runtime_us,
            "reference_runtime_us": self.reference_runtime_us,
            "cases": self.cases,
            "error_type": self.error_type,
            "error_text": self.error_text,
        }


_US_PER_MS: Final = 1000.0
_NS_PER_US: Final = 1000.0
_BY_SHAPE: Final[dict[frozenset[str], list[str]]] = {}
for _problem in PROBLEMS.values():
    _BY_SHAPE.setdefault(frozenset(_problem.shape_fields), []).append(_problem.name)


def _first(*texts: str | None) -> str | None:
    return next((t for t in texts if t), None)


class Judge:
    """Turns feedback into verdicts; equal case shapes share one dictionary.

    Attributes:
        shape_keys: every set of shape field names seen.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
        self.shape_keys: set[frozenset[str]] = set()

    def problem(self) -> str | None:
        """The one problem whose benchmark cases have the fields seen; ``None`` where several do (the GDN tasks)."""
        if len(self.shape_keys) != 1:
            return None
        names = _BY_SHAPE.get(next(iter(self.shape_keys)), [])
        return names[0] if len(names) == 1 else None

    def case(self, fields: dict[str, Any]) -> Case:
        """One entry of ``per_case_speedups``; takes the dictionary over."""
        speedup = fields.pop("speedup", None)
        runtime = fields.pop("runtime_ns", None)
        reference = fields.pop("ref_runtime_ns", None)
        fields.pop("seed", None)  # the random seed of the inputs is no shape
        try:
            key = tuple(fields.items())
            shape = self._shapes.get(key)
            if shape is None:
                shape = self._shapes[key] = fields
                if fields:
                    self.shape_keys.add(frozenset(fields))
        except TypeError:  # an unhashable shape value
            shape = fields
        runtime, reference = positive(runtime), positive(reference)
        return Case(
            shape,
            positive(speedup),
            None if runtime is None else runtime / _NS_PER_US,
            None if reference is None else reference / _NS_PER_US,
        )

    def verdict(self, feedback: Feedback) -> Verdict | None:
        """The verdict of one arm; ``None`` for an arm of an unknown kind."""
        kind = feedback.kind
        if kind == "success":
            return self._success(feedback)
        if kind == "compile_failed":
            return Verdict(
                "compile_failed",
                error_type=feedback.compilation_error_name or None,
                error_text=feedback.compilation_error or None,
            )
        if kind == "runtime_error":
            return Verdict(
                "runtime_error",
                error_type=feedback.runtime_error_name or None,
                error_text=_first(feedback.runtime_error, feedback.traceback, feedback.runtime_error_traceback),
            )
        if kind == "incorrect":
            return Verdict("incorrect", error_text=_first(feedback.error_message, feedback.correctness_issue))
        if kind == "infrastructure_failure":
            return Verdict("infrastructure_failure", error_text=feedback.reason or None)
        return None

    def _success(self, feedback: Feedback) -> Verdict:
        given = feedback.aggregated_speedup if feedback.aggregated_speedup is not None else feedback.speedup
        cases = tuple(self.case(c) for c in feedback.per_case_speedups or ())
        speedup = positive(given)
        if speedup is None:
            # A program that passed but whose time the log lost (non-finite numbers are written as null): not a
            # measurement, not the program's fault, and never 0.
            return Verdict(
                "infrastructure_failure",
                cases=cases,
                error_type="missing_speedup",
                error_text="logged as a success without a finite speedup above 0",
                remark=f"success without a finite speedup above 0: {finite(given) if given is not None else None}",
            )
        runtime = reference = None
        if not cases:
            runtime, reference = positive(feedback.runtime_us), positive(feedback.ref_runtime_us)
        return Verdict(
            "success",
            speedup=speedup,
            runtime_us=None if runtime is None else runtime * _US_PER_MS,
            reference_runtime_us=None if reference is None else reference * _US_PER_MS,
            cases=cases,
        )
