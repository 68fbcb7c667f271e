"""Tests of plans and recordings on the stand-in device: readable logs, crashes, resumption, the same verdict everywhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernel_archive.errors import DataError, RecipeError, UsageError
from kernel_archive.measure.agent import AgentRun, TuningAgent
from kernel_archive.measure.chains import read_chain
from kernel_archive.measure.compile_pool import CompilePool
from kernel_archive.measure.logs import read_lines
from kernel_archive.measure.plan import read_plan
from kernel_archive.measure.providers import FAULTS, Parent, TemplateProvider, Templates
from kernel_archive.measure.record import record
from kernel_archive.measure.remeasure import Program, remeasure_programs
from kernel_archive.measure.settings import Settings
from kernel_archive.measure.station import share_processors
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.readers import READERS
from kernel_archive.readers.events import Attempt, Feedback, LoggedEvaluation, Observation
from kernel_archive.readers.files import RunFiles

PLAN = Path(__file__).with_name("plan") / "plan.toml"
TEMPLATES_FOLDER = PLAN.parent / "programs" / "rehearsal"
TEMPLATES = Templates(TEMPLATES_FOLDER)


def read(directory):
    """A run through the package's own reader."""
    spec = READERS["attempts" if (directory / "attempts.jsonl").exists() else "puct-events"]
    records = list(spec.read(RunFiles(directory, directory.parents[1], spec)))
    assert [r for r in records if type(r).__name__ == "Finding"] == []
    return [r for r in records if type(r).__name__ == "Evaluation"], records[-1]


def test_plan_is_expanded():
    """Lists stand for one run each, under names of their own."""
    plan = read_plan(PLAN)
    assert [r.key for r in plan.runs] == [
        "tree_search/rehearsal__s1",
        "bin_filling/rehearsal__bin3_s1",
        "bin_filling/rehearsal__bin5_s1",
        "local_search/rehearsal__s1",
        "agentic/rehearsal__t_a00",
    ]
    assert plan.settings.max_runs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        ('name = "x"\ngpu = "H200"\nsearch = []\nwrong = 1', "wrong"),
        (
            'name = "x"\ngpu = "H200"\n[settings]\nmax_rnus = 3\n[[search]]\nmethod="agentic"\ntask="trimul"\ntemplates="m"',
            "max_rnus",
        ),
        ('name = "x"\ngpu = "H200"\n[[search]]\nmethod="magic"\ntask="trimul"\ntemplates="m"', "magic"),
        ('name = "x"\ngpu = "H200"\n[[search]]\nmethod="bin_filling"\ntask="trimul"\ntemplates="m"', "target_bin"),
        (
            'name = "x"\ngpu = "H200"\n[[search]]\nmethod="tree_search"\ntask="trimul"\ntemplates="m"\nseed=[1,2]\nname="s"',
            "more than one",
        ),
    ],
)
def test_wrong_plan_is_refused_with_its_place(tmp_path, text, message):
    """Every slip in a plan is a recipe error that names what is wrong."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_plan(path)


def test_missing_plan_and_unknown_task(tmp_path):
    """A file that is not there, and a task that is not there."""
    with pytest.raises(RecipeError, match="cannot be read"):
        read_plan(tmp_path / "no.toml")
    (tmp_path / "p.toml").write_text(
        'name="x"\ngpu="H200"\n[[search]]\nmethod="tree_search"\ntask="trimull"\ntemplates="m"'
    )
    with pytest.raises(UsageError, match="trimul"):
        read_plan(tmp_path / "p.toml")


def test_recording_gives_logs_that_the_readers_read(tmp_path):
    """All four methods, each finished, each evaluation with its time, and run.json with what a build needs."""
    done = record(read_plan(PLAN), tmp_path, device="standin")
    assert done.unfinished == 0
    total = 0
    for run in read_plan(PLAN).runs:
        evaluations, facts = read(tmp_path / run.key)
        total += len(evaluations)
        assert facts.problem == "rehearsal"
        assert facts.gpu == "standin"
        assert facts.finished is True
        assert facts.tolerance == {"rtol": 1e-6, "atol": 1e-9}
        assert facts.measurement["statistic"] == "median"
        assert facts.software["sandbox"]["network"]
        assert all(e.gpu_seconds is not None for e in evaluations)
    assert total == done.evaluations
    assert not list(tmp_path.rglob(".run.json*"))


def test_second_call_has_nothing_to_do(tmp_path):
    """A finished recording is not touched, and its documents keep what was found out of the device."""
    plan = read_plan(PLAN)
    record(plan, tmp_path, device="standin", only=["agentic/*"])
    path = tmp_path / "agentic" / "rehearsal__t_a00"
    logs = {f.name: f.read_bytes() for f in path.iterdir() if f.suffix == ".jsonl"}
    again = record(plan, tmp_path, device="standin", only=["agentic/*"])
    assert again.evaluations == 0
    assert logs == {f.name: f.read_bytes() for f in path.iterdir() if f.suffix == ".jsonl"}
    assert msgspec.json.decode((path / "run.json").read_bytes())["device_properties"]["name"] == "standin"


def test_run_of_other_settings_is_not_continued(tmp_path):
    """Measurements of two protocols are never mixed in one run; nothing is measured before that is said."""
    plan = read_plan(PLAN)
    record(plan, tmp_path, device="standin", only=["agentic/*"])
    other = msgspec.structs.replace(plan, settings=Settings(max_runs=7))
    with pytest.raises(DataError, match="other settings"):
        record(other, tmp_path, device="standin")
    assert not (tmp_path / "tree_search").exists()


def test_deadline_leaves_resumable_runs(tmp_path):
    """Out of time: runs that were not begun leave nothing behind, and a later call finishes all."""
    plan = read_plan(PLAN)
    first = record(plan, tmp_path, device="standin", seconds=0.0)
    assert first.evaluations == 0
    assert first.unfinished == 5
    assert not any(tmp_path.rglob("*.jsonl"))
    assert record(plan, tmp_path, device="standin").unfinished == 0


@pytest.mark.parametrize("delay", [0.6, 1.1])
def test_killed_recording_goes_on(tmp_path, delay):
    """The whole recording killed with SIGKILL, twice: the next call ends it, no line glued, no result doubled."""
    command = [
        sys.executable, "-c",
        "import sys; from kernel_archive.cli import main; raise SystemExit(main(sys.argv[1:]))",
        "record", str(PLAN), "--out", str(tmp_path), "--device", "standin", "--compilers", "0",
        "--only", "tree_search/*", "--only", "agentic/*",
    ]  # fmt: skip
    for _ in range(2):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = record(read_plan(PLAN), tmp_path, device="standin", only=["tree_search/*", "agentic/*"])
    assert done.unfinished == 0
    for key in ("tree_search/rehearsal__s1", "agentic/rehearsal__t_a00"):
        evaluations, _ = read(tmp_path / key)
        assert all(e.n_logged == 1 for e in evaluations)
        assert len({e.node_id for e in evaluations}) == len(evaluations)


def test_compiling_ahead_changes_no_verdict(tmp_path):
    """With and without compilers the same programs pass and fail."""
    plan = read_plan(PLAN)
    outcomes = []
    for compilers in (0, 2):
        out = tmp_path / str(compilers)
        record(plan, out, device="standin", only=["agentic/*"], compilers=compilers)
        outcomes.append([e.outcome for e in read(out / "agentic" / "rehearsal__t_a00")[0]])
    assert outcomes == [["success", "incorrect", "compile_failed", "success"]] * 2


def test_processors_are_shared_out(monkeypatch):
    """Each of several recordings gets its own processors, timing apart from compiling; few are used by all."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    parts = [share_processors(i, 4) for i in range(4)]
    used = [cpu for timing, others in parts for cpu in (*timing, *others)]
    assert len(used) == len(set(used))
    assert all(len(timing) == 2 and len(others) == 13 for timing, others in parts)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert share_processors() == ([0, 1], [0, 1])


def test_templates_give_distinct_programs_from_their_seed():
    """A provider repeats itself for the same generator, never a program that was seen, and refuses unknown algorithms."""
    provider = TemplateProvider(TEMPLATES, fault=0.0)
    seed = provider.seed()
    seen = {seed.code}
    parent = Parent(seed.code, 1.0, seed.spec)
    made = []
    for i in range(12):
        proposal = provider.propose(parent, random.Random(i), seen)
        assert proposal == provider.propose(parent, random.Random(i), seen)
        seen.add(proposal.code)
        made.append(proposal.code)
    assert len(set(made)) == 12


def test_folder_without_programs_or_with_a_bad_knob_is_refused(tmp_path):
    """What a plan names must be there, and the values of a knob are constants."""
    with pytest.raises(UsageError, match="no programs"):
        Templates(tmp_path)
    (tmp_path / "a.py").write_text("BLOCK = 1  # knob: 1, size\n")
    with pytest.raises(UsageError, match=r"a\.py: the values of a knob"):
        Templates(tmp_path)


def test_render_writes_the_knobs_and_the_mistake():
    """A rendered program differs from its file in the knobs alone; a deliberate mistake changes it once more."""
    spec = {"algo": "rows", "knobs": {"AGAIN": 3, "PARTS": 8}}
    code = TEMPLATES.render(spec)
    assert "AGAIN = 3\nPARTS = 8\n" in code
    assert "knob" not in code
    assert TEMPLATES.seed() == {"algo": "rows", "knobs": {"AGAIN": 0, "PARTS": 2}}
    for name in FAULTS:
        assert TEMPLATES.render({**spec, "fault": name}) != code


EXAMPLES = Path(__file__).parents[2] / "examples" / "search"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("programs/*/*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_example_program_renders(path):
    """Each knob of each example stands in the program once, its own value is one of those that it may take."""
    templates = Templates(path.parent)
    knobs = templates.algorithms[path.stem]
    as_written = {knob: values[0] for knob, values in knobs.items()}
    assert path.read_text().count("# knob:") == len(knobs) > 0
    for knob, values in knobs.items():
        for value in values:
            code = templates.render({"algo": path.stem, "knobs": {**as_written, knob: value}})
            assert f"\n{knob} = {value!r}\n" in code
            compile(code, str(path), "exec")


def test_example_plan_covers_the_six_tasks():
    """The shipped plan reads, starts from a plain PyTorch program, and searches every task."""
    plan = read_plan(EXAMPLES / "plan.toml")
    assert {run.task for run in plan.runs} == set(GPU_MODE_TASKS)
    assert {run.method for run in plan.runs} == {"tree_search", "bin_filling", "local_search", "agentic"}
    assert all(Templates(EXAMPLES / "programs" / task).seed()["algo"] == "eager" for task in GPU_MODE_TASKS)


def test_exhausted_templates_say_so(tmp_path):
    """When every variant was seen there is none to propose."""
    (tmp_path / "whole.py").write_text((TEMPLATES_FOLDER / "whole.py").read_text())
    templates = Templates(tmp_path)
    provider = TemplateProvider(templates, fault=0.0)
    seen = {templates.render({"algo": "whole", "knobs": {"AGAIN": i}}) for i in range(6)}
    assert provider.propose(Parent("x", 1.0, None), random.Random(1), seen) is None


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


def test_measured_again_in_other_workers(tmp_path):
    """Every repetition has a run of its own from other inputs; the summary states the spread and the bins left."""
    good = TEMPLATES.render(TEMPLATES.seed())
    programs = [Program("rehearsal", good, 1000.0), Program("rehearsal", "x =", None)]
    settings = Settings(max_runs=4, candidates_per_worker=10, remeasure=0)
    found = remeasure_programs(programs, tmp_path, repeat=2, device="standin", settings=settings)
    facts = found.tasks["rehearsal"]
    assert (facts.programs, facts.measured, facts.moved) == (2, 2, 1)
    assert facts.spread_p90 >= facts.spread_median >= 0
    assert found.notes == ["1 kernels failed at least once now: see the logs for the reasons"]
    salts = set()
    for r in (1, 2):
        directory = tmp_path / f"rehearsal__r{r}"
        evaluations, run = read(Path(directory))
        assert Counter(e.outcome for e in evaluations) == {"success": 1, "compile_failed": 1}
        assert run.problem == "rehearsal"
        salts |= {t["salt"] for t in read_lines(directory / "timing.jsonl", Any) if t["kind"] == "success"}
    assert len(salts) == 2
    before = (tmp_path / "rehearsal__r1" / "attempts.jsonl").read_bytes()
    remeasure_programs(programs, tmp_path, repeat=2, device="standin", settings=settings)
    assert (tmp_path / "rehearsal__r1" / "attempts.jsonl").read_bytes() == before


def test_remeasuring_again_changes_nothing_that_stands(tmp_path):
    """A program named twice is measured once; what is there keeps its run.json; other settings and foreign rows are refused."""
    good = Program("rehearsal", TEMPLATES.render(TEMPLATES.seed()), 1.0)
    other = Program("rehearsal", good.code + "\n# b", 1.0)
    settings = Settings(max_runs=4, candidates_per_worker=10, remeasure=0)

    def again(programs, **changes):
        return remeasure_programs(
            programs, tmp_path, repeat=1, device="standin", settings=msgspec.structs.replace(settings, **changes)
        )

    directory = tmp_path / "rehearsal__r1"
    assert again([good, good]).tasks["rehearsal"].measured == 1
    run = (directory / "run.json").read_bytes()
    again([good])
    assert (directory / "run.json").read_bytes() == run
    with pytest.raises(DataError, match="other settings"):
        again([good, other], max_runs=3)
    again([good, other, good])
    assert [row["attempt"] for row in read_lines(directory / "attempts.jsonl", Any)] == [0, 1]
    assert msgspec.json.decode((directory / "run.json").read_bytes())["evaluations"] == 2
    stale = msgspec.json.decode((directory / "run.json").read_bytes()) | {"evaluations": 1, "end": "before the kill"}
    (directory / "run.json").write_bytes(msgspec.json.encode(stale))
    again([good, other])
    mended = msgspec.json.decode((directory / "run.json").read_bytes())
    assert (mended["evaluations"], mended["finished"]) == (2, True)
    assert mended["end"] != "before the kill"
    whole = (directory / "attempts.jsonl").read_bytes()
    third = msgspec.json.decode(whole.splitlines()[1]) | {"attempt": 2}
    third["evaluation"]["observation"]["feedback"] = {"kind": "success"}
    for foreign in (b'{"attempt": 2}', msgspec.json.encode(third)):
        (directory / "attempts.jsonl").write_bytes(whole + foreign + b"\n")
        with pytest.raises(DataError, match=r":3"):
            again([good, other])
    (directory / "run.json").unlink()
    (directory / "attempts.jsonl").write_bytes((directory / "attempts.jsonl").read_bytes().splitlines(True)[0])
    with pytest.raises(DataError, match=r"no run.json"):
        again([good, other])


def test_a_killed_remeasurement_keeps_its_settings(tmp_path):
    """Killed while it measures: run.json is there already, and other settings are refused."""
    code = f"""
import sys
from pathlib import Path
from kernel_archive.measure.providers import Templates
from kernel_archive.measure.remeasure import Program, remeasure_programs
from kernel_archive.measure.settings import Settings
templates = Templates(Path({str(TEMPLATES_FOLDER)!r}))
good = templates.render(templates.seed())
if __name__ == "__main__":
    remeasure_programs([Program("rehearsal", good + "\\n# " + "b" * i) for i in range(200)], Path(sys.argv[1]), repeat=1,
                       device="standin", settings=Settings(max_runs=4, candidates_per_worker=10, remeasure=0))
"""
    script = tmp_path / "again.py"
    script.write_text(code)
    log = tmp_path / "out" / "rehearsal__r1" / "attempts.jsonl"
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path / "out")])
    try:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_bytes().count(b"\n") >= 2) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    rows = log.read_bytes().count(b"\n")
    assert 2 <= rows < 200
    run = msgspec.json.decode((log.parent / "run.json").read_bytes())
    assert (run["finished"], run["measurement"]["max_runs"]) == (False, 4)
    program = Program("rehearsal", TEMPLATES.render(TEMPLATES.seed()), None)
    with pytest.raises(DataError, match="other settings"):
        remeasure_programs([program], tmp_path / "out", repeat=1, device="standin", settings=Settings(max_runs=3))


def test_remeasuring_goes_on_after_a_torn_line(tmp_path, monkeypatch):
    """Killed while writing: the torn line is cut off, only what is missing is compiled and measured again."""
    good = TEMPLATES.render(TEMPLATES.seed())
    programs = [Program("rehearsal", good, 1.0), Program("rehearsal", good + "\n# b", 1.0), Program("rehearsal", "x =")]
    settings = Settings(max_runs=4, candidates_per_worker=10, remeasure=0)
    remeasure_programs(programs, tmp_path, repeat=1, device="standin", settings=settings)
    log = tmp_path / "rehearsal__r1" / "attempts.jsonl"
    whole = log.read_bytes().splitlines(keepends=True)
    assert len(whole) == 3
    log.write_bytes(b"".join(whole[:2]) + whole[2][:40])
    compiled = []
    submit = CompilePool.submit
    monkeypatch.setattr(CompilePool, "submit", lambda self, t, code: compiled.append(code) or submit(self, t, code))
    again = remeasure_programs(programs, tmp_path, repeat=1, device="standin", settings=settings)
    assert compiled == ["x ="]
    assert log.read_bytes().splitlines(keepends=True)[:2] == whole[:2]
    assert [row["code"] for row in read_lines(log, Any)] == [p.code for p in programs]
    assert again.notes == ["1 kernels failed at least once now: see the logs for the reasons"]
