"""Tests of plans and recordings on the stand-in device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from support.answers import read_run, run_answered, run_json, run_plan

from kernel_archive.errors import DataError
from kernel_measure.plan import read_plan
from kernel_measure.record import Recorded, Scheduler

PLAN = Path(__file__).with_name("plan") / "plan.toml"


def test_recording_gives_logs_that_the_readers_read(tmp_path):
    """Both methods, each finished, each evaluation with its time; a second call finds nothing to do."""  # noqa: E501
    done = run_answered(PLAN, tmp_path)
    logs = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert run_answered(PLAN, tmp_path).evaluations == 0
    assert logs == {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    assert done.unfinished == 0
    total = 0
    for run in read_plan(PLAN).runs:
        evaluations, facts = read_run(tmp_path / run.key)
        total += len(evaluations)
        assert facts.problem == "rehearsal"
        assert facts.gpu == "standin"
        assert facts.finished is True
        assert facts.tolerance == {"rtol": 1e-6, "atol": 1e-9}
        assert facts.measurement["statistic"] == "median"
        assert facts.software["sandbox"]["isolation"]
        assert all(e.gpu_seconds is not None for e in evaluations)
    assert total == done.evaluations
    assert not list(tmp_path.rglob(".run.json*"))


class FakeMeasurer:
    """Workers as a set of tasks, and what was asked of them."""

    def __init__(self):
        self.tasks, self.said = set(), []

    def start(self, task):
        if task not in self.tasks:
            self.tasks.add(task)
            self.said.append(f"start {task}")

    def end(self, task):
        self.tasks.remove(task)
        self.said.append(f"end {task}")

    def is_starting(self, task):
        return task not in self.tasks

    def measure(self, task, code):
        self.said.append(code)
        return SimpleNamespace(wall_s=0.0)


def test_only_tasks_whose_turn_it_is_have_a_worker(monkeypatch):
    """Of thirty tasks' inputs those are on the card that are being measured."""
    measurer = FakeMeasurer()
    station = SimpleNamespace(measurer=measurer, compile_ahead=lambda task, codes: [], facts=dict)

    def start(run):
        left = [[SimpleNamespace(code=code)] for code in run.codes]
        active = SimpleNamespace(planned=run, jobs=[], compiling=[], gpu_seconds=0.0)

        def propose(_):
            active.jobs = left.pop(0) if left else []
            return bool(active.jobs)

        active.propose, active.write = propose, lambda _: None
        active.log = SimpleNamespace(report=lambda *_: None, counts={}, waits=0, finished=True)
        active.log.close = lambda: measurer.said.append(f"close {run.key}")
        return active

    batches = [("a", ["a1", "a2"]), ("b", ["b1"]), ("b", ["b2"])]
    batches += [("a", []), ("c", ["c1"]), ("a", ["a3"])]
    runs = [
        SimpleNamespace(key=f"{task}{i}", task=task, codes=codes, folder="chain", expected=1)
        for i, (task, codes) in enumerate(batches)
    ]
    scheduler = Scheduler(station, Recorded(), start, float("inf"), lambda *_: None)
    monkeypatch.setattr("kernel_measure.record.AT_ONCE", 1)
    scheduler.run(runs)
    turns_taken = (
        "start a, a1, a2, close a0, start b, end a, b1, close b1, b2, close b2, close a3, start c, "
        "end b, c1, close c4, start a, end c, a3, close a5, end a"
    )
    assert measurer.said == turns_taken.split(", ")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("steps = 3", "steps = 3\nc_puct = 2.0", "search"),
        ("max_runs = 5", "max_runs = 7", "measurement"),
    ],
)
def test_run_of_other_numbers_is_not_continued(tmp_path, old, new, field):
    """Neither a search nor the protocol changes its numbers in the middle."""
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    text = PLAN.read_text().replace("seed = 1", 'seed = 1\nname = "s"')
    plan.write_text(text)
    run_plan(plan, out)
    plan.write_text(text.replace(old, new))
    with pytest.raises(DataError, match="other settings") as refused:
        run_plan(plan, out)
    assert refused.value.findings[0].field == field


def test_search_may_be_given_more_steps(tmp_path):
    """No choice depends on how many steps there are, so a run that was finished goes on."""
    plan = read_plan(PLAN)
    run = next(run for run in plan.runs if run.folder is None)
    for steps in (2, 3):
        longer = msgspec.structs.replace(run, entry=msgspec.structs.replace(run.entry, steps=steps))
        result = run_answered(msgspec.structs.replace(plan, runs=[longer]), tmp_path)
        assert result.evaluations > 0
        document = run_json(tmp_path / run.key)
        assert (document["search"]["total_budget_steps"], document["finished"]) == (steps, True)


def test_deadline_leaves_resumable_runs(tmp_path):
    """Out of time: runs that were not begun leave nothing behind, and a later call finishes all."""
    plan = read_plan(PLAN)
    first = run_answered(plan, tmp_path, seconds=0.0)
    assert first.evaluations == 0
    assert first.unfinished == 2
    assert not any(tmp_path.rglob("*.jsonl"))
    assert run_answered(plan, tmp_path).unfinished == 0


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.6, 1.1])
def test_killed_recording_goes_on(tmp_path, delay):
    """The whole recording killed with SIGKILL, twice."""
    code = "import sys; from kernel_measure.cli import main; raise SystemExit(main(sys.argv[1:]))"
    options = ["--device", "standin", "--no-wait", "--compilers", "0"]
    command = [sys.executable, "-c", code, "record", str(PLAN), "--out", str(tmp_path), *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(2):
        process = subprocess.Popen(command, start_new_session=True, **quiet)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert run_answered(PLAN, tmp_path).unfinished == 0
    for key in ("tree_search/rehearsal__s1", "agentic/rehearsal__t_a00"):
        evaluations, _ = read_run(tmp_path / key)
        assert all(e.n_logged == 1 for e in evaluations)
        assert len({e.node_id for e in evaluations}) == len(evaluations)


def test_compiling_ahead_changes_no_verdict(tmp_path):
    """With and without compilers the same programs pass and fail."""
    plan = read_plan(PLAN)
    outcomes = []
    for compilers in (0, 2):
        out = tmp_path / str(compilers)
        run_answered(plan, out, only=["agentic/*"], compilers=compilers)
        outcomes.append([e.outcome for e in read_run(out / "agentic" / "rehearsal__t_a00")[0]])
    assert outcomes == [["success", "incorrect", "compile_failed", "success"]] * 2
