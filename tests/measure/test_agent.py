"""Tests of agents: what the rule-based one builds on, and whose runs are continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_archive.errors import DataError
from kernel_archive.measure.agent import AgentRun, TuningAgent
from kernel_archive.measure.chains import read_chain
from kernel_archive.measure.plan import read_plan
from kernel_archive.measure.providers import Templates
from kernel_archive.measure.record import record
from kernel_archive.readers.events import Attempt, Feedback, LoggedEvaluation, Observation

PLAN = Path(__file__).with_name("plan") / "plan.toml"
TEMPLATES_FOLDER = PLAN.parent / "programs" / "rehearsal"
TEMPLATES = Templates(TEMPLATES_FOLDER)


def row(speedup):
    """A logged attempt of that speedup."""
    feedback = Feedback(kind="incorrect") if speedup is None else Feedback(kind="success", aggregated_speedup=speedup)
    return Attempt(attempt=0, code="", evaluation=LoggedEvaluation(observation=Observation(feedback=feedback)))


def test_tuning_agent_builds_on_the_best():
    """It tries each algorithm once, then changes the best one knob at a time and keeps what helped."""
    agent = TuningAgent(TEMPLATES, seed=1, budget=8)
    history = []
    first, second = agent.next(history), agent.next([row(1.0)])
    assert {first.title, second.title} == {"try rows", "try whole"}
    assert first.parent is second.parent is None
    history = [row(1.0), row(3.0)]
    third = agent.next(history)
    assert third.parent == 1
    assert "3.000x" in third.note
    history.append(row(5.0))
    assert agent.next(history).parent == 2
    history[2] = row(None)
    assert agent.next(history).parent == 1
    assert agent.next([row(1.0)] * 8) is None


def test_tuning_agent_ends_when_nothing_worked():
    """Without a program that passes there is nothing to tune."""
    assert TuningAgent(TEMPLATES, seed=1, budget=8).next([row(None), row(None)]) is None


def test_run_of_another_agent_is_not_continued(tmp_path):
    """A directory that holds another author's programs is refused."""
    record(read_plan(PLAN), tmp_path, device="standin", only=["agentic/*"])
    other = read_chain(PLAN.parent / "chains" / "a00" / "rehearsal")
    other.attempts = other.attempts[1:]
    with pytest.raises(DataError, match="did not make"):
        AgentRun(tmp_path / "agentic" / "rehearsal__t_a00", other)
