"""Tests of a forecaster in a search: what is measured, what the log says of the rest, and that a killed run decides as before."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from measure.test_record import PLAN, read
from measure.test_search import Numbered, drive, events, shape_of, speed_of
from measure.test_search import read as read_run
from support.small_archive import write_archive

from kernel_archive.errors import RecipeError, UsageError
from kernel_archive.forecasters import boosted as boosted_module
from kernel_archive.ids import program_id
from kernel_archive.measure.plan import read_plan
from kernel_archive.measure.record import record
from kernel_archive.measure.search import Objective, Search
from kernel_archive.measure.strategies import Puct
from kernel_archive.measure.surrogate import Forecast, Surrogate, SurrogatePlan


def certain(bin_):
    """A forecast that is certain of a bin."""
    return [float(b == bin_) for b in range(1, 9)]


def forecaster(folder, **settings):
    """A surrogate of forecasts made ahead: programs 0 to 9999, sure of what comes out; 4 of 9 have none."""
    from kernel_archive.bins import bin_of

    path = folder / "made.jsonl"
    if not path.exists():
        rows = [
            {"row_id": program_id(f"program {i}"), "probabilities": certain(bin_of(speed_of(f"program {i}") or 0.1))}
            for i in range(10_000) if i % 9
        ]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = SurrogatePlan(forecaster="made.jsonl", **settings)
    return Surrogate(plan, folder, task="t", gpu="H200", reference="")


def make(directory, surrogate):
    """A search of made-up programs with a surrogate."""
    return Search(
        directory, strategy=Puct(batch_size=2), provider=Numbered(), objective=Objective(), steps=4, seed=5,
        surrogate=surrogate,
    )  # fmt: skip


def decisions(log):
    """What was decided of every proposal, in order, by program."""
    codes = {e["request_id"]: e["code"] for e in log if e["kind"] == "mutation_completed"}
    kinds = ("forecast_completed", "forecast_failed", "candidate_selected", "candidate_deferred")
    return [(e["kind"], codes[e["request_id"]], e.get("selection_score")) for e in log if e["kind"] in kinds]


def test_the_share_with_the_best_forecasts_is_measured_and_the_rest_stays_in_the_log(tmp_path):
    """Eight proposals a parent, a quarter measured; every candidate has its forecast, and only the chosen a result."""
    search = make(tmp_path / "run", forecaster(tmp_path))
    count = drive(search)
    assert search.finished
    search.close()
    log = events(tmp_path / "run")
    kinds = Counter(e["kind"] for e in log)
    assert kinds["mutation_completed"] == kinds["forecast_completed"] + kinds["forecast_failed"] == 8 + 3 * 16
    assert kinds["forecast_failed"] == search.without_forecast > 0
    assert kinds["candidate_selected"] == kinds["evaluation_requested"] == kinds["evaluation_completed"] == count - 1
    assert kinds["forecast_completed"] == kinds["candidate_selected"] + kinds["candidate_deferred"]
    step = []
    for kind, _, score in decisions(log):
        if kind.startswith("forecast"):
            step = []
        else:
            step.append((kind, score))
            chosen = [s for k, s in step if k == "candidate_selected"]
            left = [s for k, s in step if k == "candidate_deferred"]
            assert not left or min(chosen) >= max(left)
            assert not left or len(chosen) >= (len(chosen) + len(left)) / 4
    *records, facts = read_run(tmp_path / "run")
    assert [r for r in records if type(r).__name__ == "Finding"] == []
    assert sum(type(r).__name__ == "Evaluation" for r in records) == count
    assert facts.n_forecasts == kinds["forecast_completed"]
    assert facts.n_deferred == kinds["candidate_deferred"]


@pytest.mark.parametrize("position", [0.08, 0.3, 0.45, 0.6, 0.66, 0.8, 0.97])
def test_a_resumed_run_decides_as_before(tmp_path, position):
    """The log torn at any byte: the same programs are measured and deferred, by the same scores, each decided once."""
    surrogate = forecaster(tmp_path, rank="beat", unsure=2.0)
    for name in ("whole", "torn"):
        search = make(tmp_path / name, surrogate)
        drive(search)
        search.close()
        path = tmp_path / name / "events.jsonl"
        if name == "torn":
            data = path.read_bytes()
            path.write_bytes(data[: int(len(data) * position)])
    again = make(tmp_path / "torn", surrogate)
    drive(again)
    assert again.finished
    again.close()
    whole, torn = events(tmp_path / "whole"), events(tmp_path / "torn")
    assert sorted(decisions(torn)) == sorted(decisions(whole))
    assert shape_of(torn) == shape_of(whole)


def test_the_log_says_why_a_parent_was_selected(tmp_path):
    """Score and visits stand beside every selected parent; the first one is the root, unvisited, scored by its speedup."""
    search = make(tmp_path / "run", None)
    drive(search)
    search.close()
    steps = [e for e in events(tmp_path / "run") if e["kind"] == "step_started"]
    assert steps[0]["selected_parent_visits"] == [0]
    assert steps[0]["selected_parent_scores"] == [pytest.approx(speed_of("program 0"))]
    for step in steps:
        assert len(step["parent_ulids"]) == len(step["selected_parent_scores"]) == len(step["selected_parent_visits"])
        assert step["selected_parent_scores"] == sorted(step["selected_parent_scores"], reverse=True)


def test_a_cue_ranks_either_way_and_unsure_forecasts_are_measured(tmp_path):
    """Longest or shortest first; a forecast of more than the stated bits is measured whatever its rank."""
    for name, first in (("code_length", 1), ("-code_length", 0)):
        surrogate = Surrogate(SurrogatePlan(forecaster=name), tmp_path, task="t", gpu="", reference="")
        cast = surrogate.forecast(["x", "xxx", "xx", "xx"])
        assert surrogate.choose(cast, None)[1] == {first}
    surrogate = forecaster(tmp_path, unsure=2.5)
    cast = [Forecast(certain(8)), Forecast(certain(1)), Forecast([0.125] * 8), Forecast(certain(7))]
    assert surrogate.choose(cast, 2.0)[1] == {0, 2}
    assert surrogate.choose([], None) == ([], set())


def test_learnt_from_training_pairs_and_without_the_task(tmp_path, monkeypatch):
    """The forecaster that a plan names learns from training pairs alone and says what it saw; a task can be left out."""
    monkeypatch.setitem(boosted_module.SETTINGS, "max_iter", 5)
    archive = write_archive(tmp_path / "archive")
    pairs = archive.arrow("train_pairs").to_pydict()
    task, reference = pairs["problem"][0], pairs["anchor_code"][0]
    saw = {}
    for without in (False, True):
        plan = SurrogatePlan(forecaster="boosted", archive=str(archive.path), without_task=without)
        surrogate = Surrogate(plan, tmp_path, task=task, gpu=pairs["gpu"][0], reference=reference)
        cast = surrogate.forecast(pairs["candidate_code"][:3])
        assert [sum(f.probabilities) for f in cast] == pytest.approx([1.0] * 3, abs=1e-5)
        saw[without] = surrogate.saw
    assert saw[False]["training_pairs"] == len(pairs["problem"])
    assert task in saw[False]["tasks"]
    assert task not in saw[True]["tasks"]


def test_wrong_surrogates_are_refused_by_name(tmp_path):
    """An unknown forecaster, a file that is not there, a share of nothing, and a search that wants no speed."""
    for name, message in (("bosted", "boosted"), ("none.jsonl", "no such file")):
        with pytest.raises(UsageError, match=message):
            Surrogate(SurrogatePlan(forecaster=name), tmp_path, task="t", gpu="", reference="")
    text = 'name="x"\ngpu="H200"\n[[search]]\nmethod="{}"\ntask="rehearsal"\ntarget_bin={}\nsurrogate={{forecaster="boosted",share={}}}'
    for method, target, share, message in (("tree_search", 0, 0.0, "share"), ("bin_filling", 3, 0.5, "want speed")):
        (tmp_path / "plan.toml").write_text(text.format(method, target, share))
        with pytest.raises(RecipeError, match=message):
            read_plan(tmp_path / "plan.toml")


def test_runs_that_are_compared_share_measurements_and_nothing_else(tmp_path):
    """Three arms: each proposes as if alone, a program is measured once for all, and each counts it; a second call adds nothing."""
    entry = 'method = "tree_search"\ntask = "rehearsal"\nseed = 1\nsteps = 3\nsamples_per_parent = 2\nbatch_size = 1\n'
    surrogate = 'surrogate = {{ forecaster = "{}", proposals = 4, share = 0.5 }}\n'
    text = 'name = "x"\ngpu = "standin"\ncompare = true\n[settings]\nmax_runs = 5\ncandidates_per_worker = 50\nremeasure = 0\n'
    for arm in ("plain", "code_length", "-code_length"):
        text += f'[[search]]\n{entry}templates = "{PLAN.parent / "programs"}"\nname = "{arm}"\n'
        text += "" if arm == "plain" else surrogate.format(arm)
    (tmp_path / "plan.toml").write_text(text)
    plan = read_plan(tmp_path / "plan.toml")
    done = record(plan, tmp_path / "runs", device="standin", compilers=0)
    assert done.unfinished == 0
    speeds, count = {}, 0
    for run in plan.runs:
        evaluations, facts = read(tmp_path / "runs" / run.key)
        count += len(evaluations)
        assert len(evaluations) == 7
        assert (facts.n_deferred or 0) == (0 if "plain" in run.key else 6)
        for e in evaluations:
            assert speeds.setdefault(e.code, e.speedup) == e.speedup
    shared = (tmp_path / "runs" / "shared" / "rehearsal.jsonl").read_bytes()
    assert shared.count(b"\n") == len(speeds) < count == done.evaluations
    assert record(plan, tmp_path / "runs", device="standin", compilers=0).evaluations == 0
    assert (tmp_path / "runs" / "shared" / "rehearsal.jsonl").read_bytes() == shared
    (tmp_path / "plan.toml").write_text(text.replace("proposals = 4", "proposals = 8"))
    with pytest.raises(Exception, match="other settings"):
        record(read_plan(tmp_path / "plan.toml"), tmp_path / "runs", device="standin", compilers=0)


def test_forecasts_of_other_programs_are_said(tmp_path):
    """A file of forecasts that knows none of a template's programs: the search measures nothing, and says why."""
    (tmp_path / "old.jsonl").write_text(json.dumps({"row_id": "0" * 32, "probabilities": certain(3)}) + "\n")
    (tmp_path / "plan.toml").write_text(
        'name = "x"\ngpu = "standin"\n[settings]\nmax_runs = 5\nremeasure = 0\n'
        '[[search]]\nmethod = "tree_search"\ntask = "rehearsal"\nseed = 1\nsteps = 2\nname = "stale"\n'
        f'templates = "{PLAN.parent / "programs"}"\n'
        'surrogate = { forecaster = "old.jsonl", proposals = 4, share = 0.5 }\n'
    )
    said: list[str] = []
    done = record(read_plan(tmp_path / "plan.toml"), tmp_path / "runs", device="standin", compilers=0, say=said.append)
    (told,) = [line for line in said if "no forecast" in line]
    assert "stale: " in told
    assert int(told.split(": ")[1].split()[0]) > 0
    assert done.evaluations == 1, "the starting program alone"
    (run,) = (tmp_path / "runs").rglob("run.json")
    assert json.loads(run.read_text())["search"]["without_forecast"] == int(told.split(": ")[1].split()[0])
    again: list[str] = []
    record(read_plan(tmp_path / "plan.toml"), tmp_path / "runs", device="standin", compilers=0, say=again.append)
    assert told in again, "a finished run says it too"
