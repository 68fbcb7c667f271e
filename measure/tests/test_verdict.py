"""Tests of the record of a measurement: statistics, arms of the observation, and what a reader
makes of them.
"""

from __future__ import annotations

import msgspec
import pytest

from kernel_archive.readers.events import Feedback, LoggedEvaluation, Observation
from kernel_measure.runs import feedback_of
from kernel_measure.timing import CaseResult, Result, describe
from kernel_measure.verdict import Measurement, logged_evaluation, measurement_of


def case(mine, theirs, **shape):
    """A timed case with these times, ns."""
    return CaseResult(shape=shape or {"n": 1}, candidate=describe(mine), reference=describe(theirs))


def verdict(cases, **failure):
    """The measurement over cases."""
    return measurement_of("t", Result(cases=cases, **failure), wall_s=0.5)


def test_speedup_is_the_geometric_mean_over_cases():
    """Four times and once: twice."""
    m = verdict([case([100.0] * 3, [400.0] * 3), case([100.0] * 3, [100.0] * 3)])
    assert m.speedup == pytest.approx(2.0)


def test_median_is_not_moved_by_an_outlier():
    """One slow call in five leaves the label alone; the whole distribution is kept."""
    m = verdict([case([100.0, 100.0, 100.0, 100.0, 600.0], [200.0] * 5)])
    assert m.speedup == pytest.approx(2.0)
    timing = m.timing()["timing"][0]["candidate"]
    assert (timing.median, timing.mean, timing.worst) == (100.0, 200.0, 600.0)


def test_log_s_case_times_give_its_speedup():
    """The logged runtimes are of the statistic that the speedup is made of."""
    feedback = feedback_of(
        logged_evaluation(verdict([case([100.0, 100.0, 400.0], [300.0] * 3, vocab_size=32000)]))
    )
    times = {"speedup": 3.0, "runtime_ns": 100.0, "ref_runtime_ns": 300.0}
    assert feedback.per_case_speedups == [{**times, "vocab_size": 32000}]
    assert feedback.aggregated_speedup == pytest.approx(3.0)


@pytest.mark.parametrize("kind", ["compile_failed", "runtime_error", "incorrect"])
def test_first_failed_case_decides(kind):
    """Timed cases before it stay in the record; the reward is null."""
    m = verdict([case([1.0] * 3, [2.0] * 3)], failure_kind=kind, error="because")
    assert (m.outcome, m.speedup, m.error) == (kind, None, "because")
    logged = logged_evaluation(m)
    assert logged.reward is None
    assert logged.observation.feedback.kind == kind
    assert "because" in str(logged.observation.feedback)
    assert len(m.timing()["timing"]) == 1


def test_fault_of_the_harness_is_nobody_s_failure():
    """An infrastructure failure has a reason and no cases."""
    m = Measurement(task="t", outcome="infrastructure_failure", cases=[], error="no driver")
    assert msgspec.json.decode(msgspec.json.encode(logged_evaluation(m))) == {
        "observation": {"feedback": {"kind": "infrastructure_failure", "reason": "no driver"}},
        "reward": None,
    }


def test_result_without_its_speedup_is_refused():
    """A success has a speedup, and nothing else has one."""
    for feedback in (
        Feedback(kind="success"),
        Feedback(kind="incorrect", aggregated_speedup=1.0),
        None,
    ):
        with pytest.raises(ValueError, match=r"feedback|speedup"):
            feedback_of(LoggedEvaluation(observation=Observation(feedback=feedback)))
