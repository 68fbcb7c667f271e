"""Tests of plans and recordings on the stand-in device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.answers import read_run, run_answered, run_json, run_plan
from support.chains import write
from support.cheats import NUMPY_HONEST

from kernel_archive.errors import DataError
from kernel_measure.logs import read_lines
from kernel_measure.measurer import Measurer
from kernel_measure.plan import read_plan
from kernel_measure.record import Recorder, Run
from kernel_measure.runs import Job

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


class FakeLog:
    """A log whose programs come round by round; none in a round: it waits."""

    def __init__(self, *rounds):
        self.rounds, self.counts = list(rounds), Counter()
        self.end, self.gpu_seconds = None, 0.0
        self.facts = dict

    @property
    def n_waiting(self):
        """Rounds that are left."""
        return len(self.rounds)

    @property
    def finished(self):
        """Whether no program is left."""
        return not self.rounds

    def next_jobs(self):
        """The programs of the next round."""
        return [Job(code, code) for code in (self.rounds.pop(0) if self.rounds else [])]

    def report(self, job, measured, started):
        """Count one measurement."""
        self.counts["success"] += 1


def test_rounds_take_what_there_is(tmp_path, monkeypatch):
    """All of a round is compiled, then measured run by run; who has nothing holds up nobody."""
    said = []
    measurer = SimpleNamespace(
        measure=lambda task, code: said.append(f"{task} {code}"), end=lambda: said.append("end")
    )
    station = SimpleNamespace(measurer=measurer, facts=dict, gpu_state=dict)
    station.compile_ahead = lambda programs, *_: said.append([code for _, code in programs])
    logs = {
        "a": FakeLog(["1", "2"], [], ["3"]),
        "b": FakeLog(["1"]),
        "c": FakeLog([], ["4"], [], ["5"]),
    }
    runs = [
        Run(
            directory=tmp_path / task,
            task=task,
            log=log,
            document={"run": task},
            expected_evaluations=3,
        )
        for task, log in logs.items()
    ]
    runs[1].in_new_worker = True
    monkeypatch.setattr("kernel_measure.record.POLL_S", 0.0)
    assert Recorder(runs=runs, station=station).record() == 6
    assert said == [
        *(["1", "2", "1"], "a 1", "a 2", "end", "b 1"),
        *(["4"], "c 4"),
        *(["3"], "a 3"),
        *(["5"], "c 5"),
    ]
    assert [run_json(tmp_path / task)["evaluations"] for task in logs] == [3, 1, 2]


def test_stopped_recording_says_how_its_rows_were_made(tmp_path, monkeypatch):
    """Stopped while it measures: run.json is there already, and without it nothing goes on."""
    measured, measure_one = [], Measurer.measure

    def measure_two(measurer, task, code):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(code)
        return measure_one(measurer, task, code)

    monkeypatch.setattr(Measurer, "measure", measure_two)
    with pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, tmp_path, only=["agentic/*"], compilers=0)
    directory = tmp_path / "agentic" / "rehearsal__t_a00"
    assert len(read_lines(directory / "attempts.jsonl", Any)) == 2
    run = run_json(directory)
    assert (run["finished"], run["evaluations"], run["measurement"]["max_runs"]) == (False, 2, 5)
    (directory / "run.json").unlink()
    with pytest.raises(DataError, match=r"no run\.json"):
        run_plan(PLAN, tmp_path, only=["agentic/*"])


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("steps = 3", "steps = 3\nc_puct = 2.0", "search.c_puct"),
        ("max_runs = 5", "max_runs = 7", "measurement.max_runs"),
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


def test_moved_directory_is_continued(tmp_path):
    """Runs that were moved while nothing ran go on in their new place: no line is written anew."""
    run_plan(PLAN, tmp_path / "old", only=["tree_search/*"])
    logs = {p.relative_to(tmp_path / "old"): p for p in (tmp_path / "old").rglob("*.jsonl")}
    begun = {name: path.read_bytes() for name, path in logs.items()}
    (tmp_path / "old").rename(tmp_path / "new")
    assert run_answered(PLAN, tmp_path / "new").unfinished == 0
    assert not (tmp_path / "old").exists()
    assert begun
    for name, lines in begun.items():
        assert (tmp_path / "new" / name).read_bytes().startswith(lines)


def test_run_in_the_place_of_another_is_refused(tmp_path):
    """A run that was moved to another run's place is neither continued there nor overwritten."""
    plan = tmp_path / "plan.toml"
    text = PLAN.read_text().partition('[[search]]\nmethod = "agentic"')[0]
    plan.write_text(text.replace("seed = 1", "seed = [1, 2]"))
    out = tmp_path / "out"
    run_plan(plan, out, only=["*__s1"])
    moved = (out / "tree_search" / "rehearsal__s1").rename(out / "tree_search" / "rehearsal__s2")
    log = (moved / "events.jsonl").read_bytes()
    with pytest.raises(DataError, match="other settings") as refused:
        run_plan(plan, out, only=["*__s2"])
    assert refused.value.findings[0].field == "search.rng_seed"
    assert (moved / "events.jsonl").read_bytes() == log


def test_run_that_is_gone_is_begun_anew_by_the_next_call_alone(tmp_path, monkeypatch):
    """Moved while it is recorded: the call ends with an error, and makes no second half of it."""
    out, measure_one = tmp_path / "out", Measurer.measure
    directory = out / "agentic" / "rehearsal__t_a00"

    def measure_and_move(measurer, task, code):
        measured = measure_one(measurer, task, code)
        if (directory / "attempts.jsonl").exists():
            directory.rename(tmp_path / "moved")
        return measured

    with monkeypatch.context() as patch:
        patch.setattr(Measurer, "measure", measure_and_move)
        with pytest.raises(FileNotFoundError):
            run_plan(PLAN, out, only=["agentic/*"], compilers=0)
    assert not directory.exists()
    assert len(read_lines(tmp_path / "moved" / "attempts.jsonl", Any)) == 1
    assert run_plan(PLAN, out, only=["agentic/*"], compilers=0).unfinished == 0
    assert len(read_lines(directory / "attempts.jsonl", Any)) == 4


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


def test_a_program_that_hangs_costs_its_own_limit(tmp_path):
    """While it is compiled and while it is timed; the next one is measured."""
    folder = tmp_path / "chains" / "a01" / "rehearsal"
    for number, code in enumerate(("while True:\n    pass\n", NUMPY_HONEST), 1):
        write(folder, number, code)
    plan = tmp_path / "plan.toml"
    limits = "max_runs = 3\ntimeout_s = 2\ncompile_timeout_s = 1\n"
    search = '[[search]]\nmethod = "agentic"\nchains = "chains/*/*"\n'
    plan.write_text(f'name = "p"\ngpu = "H200"\n[settings]\n{limits}{search}')
    run_plan(plan, tmp_path / "out", compilers=1)
    evaluations, _ = read_run(tmp_path / "out" / "agentic" / "rehearsal__h_a01")
    assert [(e.outcome, e.error_type) for e in evaluations] == [
        ("runtime_error", "Timeout"),
        ("success", None),
    ]


def test_compiling_ahead_changes_no_verdict(tmp_path):
    """With and without compilers the same programs pass and fail."""
    plan = read_plan(PLAN)
    outcomes = []
    for compilers in (0, 2):
        out = tmp_path / str(compilers)
        run_answered(plan, out, only=["agentic/*"], compilers=compilers)
        outcomes.append([e.outcome for e in read_run(out / "agentic" / "rehearsal__t_a00")[0]])
    assert outcomes == [["success", "incorrect", "compile_failed", "success"]] * 2
