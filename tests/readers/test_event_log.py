"""``puct-events``: samples against independent counts, every observation, every trap."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from readers.reading import read
from support.puct import V2, forecast, gpu_mode, kernelbench, real, ulid

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = [
    "puct_v2/trimul__sim0001/run_00",
    "puct_v2/fp8_quant__sim_crash_truncated/run_00",
    "puct_v3/trimul__sim0101/run_00",
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_sample_agrees_with_independent_count(simulated: Path, sample: str) -> None:
    """Evaluations, outcomes, programs, best speedup, pairs, tokens and GPU time are what another
    reader counted.
    """
    expected = json.loads((simulated / sample / "EXPECTED.json").read_text())
    result = read("puct-events", simulated / sample, simulated)
    verdicts = [e for e in result.evaluations if e.error_type != "evaluation_failed"]
    children = [e for e in verdicts if not e.is_root]
    passed = [e for e in children if e.outcome == "success"]
    assert len(children) == expected["n_evaluations"]
    assert len(verdicts) == expected["n_evaluations_including_root"]
    assert len(result.evaluations) - len(verdicts) == expected["n_evaluation_failed"]
    assert Counter(e.outcome for e in children) == expected["outcomes"]
    assert len(passed) == expected["n_successes"]
    assert result.unique == expected["n_unique_successful_programs_including_root"]
    assert max(e.speedup for e in passed) == expected["best_speedup"]
    listed = [(p["parent_id"], p["child_id"]) for p in expected["parent_child_pairs"]]
    assert sorted(result.pairs) == sorted(listed)
    (root,) = [e for e in result.evaluations if e.is_root]
    assert (root.node_id, root.speedup) == (expected["root"]["ulid"], expected["root"]["speedup"])
    facts = result.facts
    assert facts.n_pending == expected["n_evaluations_requested_without_terminal"]
    assert facts.n_mutations_failed == expected["mutation"]["failed"]
    assert facts.counts["mutations_completed"] == expected["mutation"]["completed"]
    assert facts.counts["steps_completed"] == expected["steps_completed"]
    assert (facts.input_tokens or 0) == expected["llm_tokens"]["events_forecast_input"]
    assert (facts.output_tokens or 0) == expected["llm_tokens"]["events_forecast_output"]
    assert (facts.n_forecasts or 0) == expected.get("n_forecasts", 0)
    assert (facts.n_deferred or 0) == expected.get("n_deferred", 0)
    assert len(result.findings) == len(expected["bad_lines"])


def test_facts_around_an_upstream_run(simulated: Path) -> None:
    """Problem, GPU, model, settings and whether it finished stand in the files around the log; GPU
    seconds in its invocation records.
    """
    expected = json.loads((simulated / SAMPLES[0] / "EXPECTED.json").read_text())
    total = expected["invocations"]["wall_clock_seconds"]["gpu_mode_kernel_evaluation_v2"]
    result = read("puct-events", simulated / SAMPLES[0])
    assert sum(e.gpu_seconds for e in result.evaluations) == pytest.approx(total)
    finished = result.facts
    assert (finished.problem, finished.gpu, finished.finished) == ("trimul", "A100-80GB", True)
    assert finished.model == "gemini/gemini-3-flash-preview"
    assert finished.hyperparameters["search"]["total_budget_steps"] == 14
    assert finished.wall_seconds == pytest.approx(2193.915649)
    crashed = read("puct-events", simulated / SAMPLES[1])
    assert crashed.facts.finished is False
    assert [(f.code, f.line, f.severity) for f in crashed.findings] == [
        ("truncated-line", 193, "warning")
    ]
    v3 = read("puct-events", simulated / SAMPLES[2]).facts
    assert (v3.problem, v3.gpu) == ("trimul", "NVIDIA A100-SXM4-80GB")
    assert v3.reference_code is not None


# -- observations


def test_kernelbench_arms_and_milliseconds(tmp_path: Path) -> None:
    """Trap 9: KernelBench has its own field names, and its ``runtime_us`` holds milliseconds."""
    log = V2(kernelbench(1.0)).step(0)
    kinds = ("compile_failed", "runtime_error", "incorrect", "infrastructure_failure")
    for n, kind in enumerate(kinds, start=2):
        log.child(n, kernelbench(kind=kind))
    log.child(1, kernelbench(2.5, runtime_ms=0.4)).end(0)
    nodes = read("puct-events", log.write(tmp_path)).by_node
    fast = nodes[ulid(1)]
    assert (fast.speedup, fast.runtime_us, fast.reference_runtime_us) == (2.5, 400.0, 1000.0)
    assert not fast.cases
    assert [(nodes[ulid(n)].error_type, nodes[ulid(n)].error_text) for n in range(2, 6)] == [
        ("CpuCompileError", "nvcc fatal"),
        ("RuntimeError", "illegal access"),
        (None, "Output mismatch"),
        (None, "eval returned None"),
    ]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [({"vocab_size": 32000}, "cross_entropy"), ({"B": 1, "T": 64, "H": 1, "K": 64, "V": 64}, None)],
)
def test_problem_of_a_lone_v2_log(
    tmp_path: Path, shape: dict[str, Any], problem: str | None
) -> None:
    """Trap 14: a v2 log names no problem."""
    log = V2(gpu_mode(1.0, shapes=[shape])).step(0).child(1, gpu_mode(2.0, shapes=[shape])).end(0)
    result = read("puct-events", log.write(tmp_path))
    assert (result.facts.problem, result.facts.gpu, result.facts.finished) == (problem, None, None)
    assert result.by_node[ulid(1)].cases[0].shape == shape


def test_forecasts_of_a_compound_search_are_no_measurements(tmp_path: Path) -> None:
    """Traps 1 and 2: a forecast's reward is no speedup."""
    log = V2(real(gpu_mode(1.0))).step(0)
    log.child(1, forecast(9.9)).child(2, forecast(5.0), parent=1).child(
        3, real(gpu_mode(2.0), "unsure"), parent=2
    )
    log.child(4, real(gpu_mode(kind="incorrect"), "unsure")).end(0)
    result = read("puct-events", log.write(tmp_path))
    assert set(result.by_node) == {ulid(0), ulid(3), ulid(4)}
    assert max(e.speedup for e in result.successes) == 2.0
    assert result.by_node[ulid(3)].parent_node_id == ulid(2)
    facts = result.facts
    assert (facts.n_forecasts, facts.n_pending) == (2, 0)


def test_null_scores_are_no_zeros(tmp_path: Path) -> None:
    """Trap 6: a success whose speedup was lost (null, NaN, Infinity, 0) is no success and has no
    speedup.
    """
    log = V2().step(0)
    for n, speedup in enumerate((None, float("nan"), float("inf"), 0.0, -1.0, 3.0), start=1):
        log.child(n, gpu_mode(speedup))
    result = read("puct-events", log.end(0).write(tmp_path))
    lost = [result.by_node[ulid(n)] for n in range(1, 6)]
    assert {(e.outcome, e.speedup, e.error_type) for e in lost} == {
        ("infrastructure_failure", None, "missing_speedup")
    }
    assert result.by_node[ulid(6)].speedup == 3.0
    assert [f.line for f in result.findings if f.code == "null-score"] == [6, 10, 14, 18, 22]


def test_nan_in_the_place_of_a_text_is_no_value(tmp_path: Path) -> None:
    """As data frames write a missing text: the event counts without it."""
    log = V2().step(0).child(1, gpu_mode(2.0)).end(0)
    for row in log.rows[1:]:
        row |= {name: float("nan") for name in ("started_at", "completed_at")}
    result = read("puct-events", log.write(tmp_path))
    assert result.by_node[ulid(1)].speedup == 2.0
    assert not result.findings


# -- mechanics of the log


def test_doubled_result_counts_once_and_the_last_one_wins(tmp_path: Path) -> None:
    """Trap 4: two results of one request are one evaluation, logged twice, with a warning that
    names both lines.
    """
    log = V2().step(0).child(1, gpu_mode(2.0)).answer(1, gpu_mode(2.5)).end(0)
    result = read("puct-events", log.write(tmp_path))
    child = result.by_node[ulid(1)]
    assert (child.speedup, child.n_logged, child.source_line) == (2.5, 2, 7)
    (finding,) = result.findings
    assert (finding.code, finding.severity, finding.line) == ("doubled-result", "warning", 7)
    assert "line 6" in (finding.fix or "")


def test_glued_line_is_salvaged(tmp_path: Path) -> None:
    """Trap 5: after a crash the next event stands behind the broken piece."""
    log = V2().step(0).child(1, gpu_mode(2.0)).child(2, gpu_mode(3.0)).end(0)
    rows = [json.dumps(row) for row in log.rows]
    rows[5] = '{"kind":"mutation_completed","request_id":"zz","code":"x = \\"{' + rows[5]
    log.rows = rows
    result = read("puct-events", log.write(tmp_path))
    assert result.by_node[ulid(1)].speedup == 2.0
    assert [(f.code, f.line) for f in result.findings] == [("glued-line", 6)]
    assert result.facts.counts["lines_salvaged"] == 1


def test_driver_failure_beside_a_result(tmp_path: Path) -> None:
    """Whichever comes first, the harness's result counts."""
    log = V2().step(0).child(1, gpu_mode(2.0)).fail(1).ask(2).fail(2).answer(2, gpu_mode(3.0))
    result = read("puct-events", log.write(tmp_path))
    assert [(e.speedup, e.n_logged) for e in result.evaluations[1:]] == [(2.0, 2), (3.0, 2)]
    assert result.codes == ["doubled-result"] * 2


def test_steps_are_inferred_from_position(tmp_path: Path) -> None:
    """Evaluations carry the step between whose events they stand; none where those are lost."""
    log = V2()
    for n in range(3):
        log.step(n).child(n + 1, gpu_mode(2.0)).end(n)
    log.rows = [row for row in log.rows if (row["kind"], row.get("step")) != ("step_started", 1)]
    nodes = read("puct-events", log.write(tmp_path)).by_node
    assert [nodes[ulid(n)].step for n in range(4)] == [None, 0, None, 2]


def test_unknown_events_and_fields_are_tolerated(tmp_path: Path) -> None:
    """A newer writer's events and fields don't hurt; each unknown kind is remarked once."""
    log = V2().step(0).child(1, gpu_mode(2.0) | {"novel": [1]})
    log.rows += [{"kind": "archive_pruned", "n": 1}, {"kind": "archive_pruned", "n": 2}]
    result = read("puct-events", log.write(tmp_path))
    assert len(result.evaluations) == 2
    assert [(f.code, f.severity, f.value) for f in result.findings] == [
        ("unknown-event", "info", "archive_pruned")
    ]
    assert result.facts.counts["events_unknown"] == 2


def test_value_of_a_wrong_type_costs_its_line(tmp_path: Path) -> None:
    """The finding names line and field; what depends on the line is reported, too."""
    log = V2().step(0).child(1, gpu_mode(2.0)).child(2, gpu_mode(3.0)).child(3, gpu_mode(4.0))
    log.rows[5]["evaluation"]["observation"]["feedback"]["aggregated_speedup"] = True
    log.rows[8]["code"] = None
    result = read("puct-events", log.write(tmp_path))
    assert set(result.by_node) == {ulid(0), ulid(3)}
    assert [(f.code, f.line, f.field) for f in result.findings] == [
        ("bad-event", 6, "evaluation.observation.feedback.aggregated_speedup"),
        ("bad-event", 9, "code"),
        ("result-without-request", 10, None),
    ]


def test_time_spans_that_hold_a_crash_are_no_gpu_time(tmp_path: Path) -> None:
    """A span longer than the search's own time limit spans a resume: unknown, and counted."""
    run = tmp_path / "run_00"
    log = V2().step(0).ask(1)
    log.clock += 5000
    log.answer(1, gpu_mode(2.0)).child(2, gpu_mode(2.0)).write(run)
    settings = {"run": {"search": {"per_request_timeout_s": 900.0}}}
    (tmp_path / "experiment.json").write_text(json.dumps(settings))
    result = read("puct-events", run)
    assert [e.gpu_seconds for e in result.evaluations] == [None, None, 1.0]
    assert result.facts.counts["durations_with_downtime"] == 1
    assert result.facts.finished is False
