"""Small logs of the formats that are not event logs, and the files around all of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from readers.reading import read
from support.puct import V2, gpu_mode, kernelbench, ulid, write_lines

if TYPE_CHECKING:
    from pathlib import Path


# -- theory builder


def test_theory_builder_reads_inner_logs_only(tmp_path: Path) -> None:
    """Trap 11: trials stand in the outer log too, twice."""
    inner = V2().step(0).child(1, gpu_mode(2.0)).end(0)
    other = V2(root=10).step(0).child(11, gpu_mode(3.0), parent=10).end(0)
    inner.write(tmp_path / "step_0000", "inner_events.jsonl")
    other.write(tmp_path / "step_0010", "inner_events.jsonl")
    trial = {"code": "child = 1\n", "evaluation": gpu_mode(2.0)}
    trials = {"hypothesis_id": "h", "trials": [trial, trial]}
    outer = {"kind": "experiment_completed", "request_id": "x", "result": trials}
    write_lines(tmp_path / "events.jsonl", [outer, {**outer, "kind": "explanation_requested"}])
    found = read("theory-builder", tmp_path)
    assert [(e.node_id, e.step, e.is_root) for e in found.evaluations] == [
        (ulid(0), 0, True),
        (ulid(1), 0, False),
        (ulid(10), 10, True),
        (ulid(11), 10, False),
    ]
    assert found.facts.counts["inner_logs"] == 2
    assert not found.findings


# -- agents


def test_attempts_of_one_number(tmp_path: Path) -> None:
    """The same attempt logged twice counts once; another program under its number is kept apart."""
    row = {"attempt": 0, "parent_attempt": None, "code": "a", "evaluation": gpu_mode(2.0)}
    rows = [
        row,
        row,
        {**row, "code": "b"},
        {"attempt": 1, "code": "c"},
        {**row, "attempt": 2, "parent_attempt": 0},
    ]
    result = read("attempts", write_lines(tmp_path / "attempts.jsonl", rows))
    assert [(e.node_id, e.n_logged, e.is_root, e.parent_node_id) for e in result.evaluations] == [
        ("0", 2, True, None),
        ("0@3", 1, False, None),
        ("2", 1, False, "0"),
    ]
    assert result.codes == ["doubled-result", "duplicate-node"]
    assert result.facts.n_pending == 1


# -- checkpoints


def node(n: int, parent: int | None = None, evaluation: Any = None, **more: Any) -> dict[str, Any]:
    """A node of a checkpoint."""
    return {
        "program_code": f"x = {n}",
        "ancestors": [] if parent is None else [ulid(parent), ulid(0)],
        "evaluation": evaluation or gpu_mode(1.0 + n),
        "ulid": ulid(n),
        "is_seed": parent is None,
        **more,
    }


def test_bad_nodes_of_a_checkpoint(tmp_path: Path) -> None:
    """Nodes that are none cost themselves only; NaN in the place of a text is no value."""
    compound = {"observation": {"kind": "forecast", "expected_speedup": 9.0}, "reward": 9.0}
    unknown = node(1, 0, {"observation": {}})
    first = node(0)
    first["evaluation"]["observation"]["feedback"]["error_message"] = float("nan")
    archive = [first, 7, {"ulid": "x"}, unknown, node(2, 0, compound), node(0)]
    (tmp_path / "checkpoint.json").write_text(json.dumps({"archive": archive}))
    result = read("hill-climbing-checkpoint", tmp_path)
    assert [(e.node_id, e.n_logged) for e in result.evaluations] == [(ulid(0), 2)]
    assert result.codes == ["bad-node", "bad-node", "unknown-outcome", "doubled-result"]
    assert result.facts.counts["compound_forecasts"] == 1


def test_greedy_outcomes(tmp_path: Path) -> None:
    """The harness's feedback decides, except that an invalid candidate is never a success."""
    success = kernelbench(2.0, runtime_ms=0.5)["observation"]["feedback"]
    crash = kernelbench(kind="runtime_error")["observation"]["feedback"]
    valid = {"kind": "valid", "speedup": 2.0, "execution_feedback": success}
    evaluations = {
        "a": valid,
        "b": {**valid, "kind": "invalid", "reason": "nonpositive_runtime"},
        "c": {"kind": "invalid", "reason": "incorrect", "execution_feedback": crash},
        "d": None,
        "e": None,
        "f": {"kind": "invalid", "reason": "compile_failed"},
    }
    candidates: dict[str, Any] = {
        name: {"ulid": name, "code": name, "parent_ulid": "a", "evaluation": evaluation}
        for name, evaluation in evaluations.items()
    }
    failed = {"kind": "failure", "candidate_ulid": "d", "error": {"message": "boom"}}
    mutations = [{"kind": "success", "candidate_ulid": "b"}, {"kind": "failure"}]
    data = {
        "candidates": {"candidates": {**candidates, "?": {"code": "no id"}}},
        "trace": {"rounds": [{"mutation_attempts": mutations, "scoring_attempts": [failed]}]},
    }
    (tmp_path / "checkpoint.json").write_text(json.dumps(data))
    result = read("greedy-checkpoint", tmp_path)
    assert [(e.node_id, e.outcome, e.error_type, e.speedup) for e in result.evaluations] == [
        ("a", "success", None, 2.0),
        ("b", "incorrect", None, None),
        ("c", "runtime_error", "RuntimeError", None),
        ("d", "infrastructure_failure", "evaluation_failed", None),
        ("f", "compile_failed", None, None),
    ]
    assert result.by_node["b"].step == 0
    assert (result.facts.n_pending, result.facts.n_mutations_failed) == (1, 1)
    assert result.codes == ["bad-node"]


# -- evaluation sets


def test_eval_set_rows(tmp_path: Path) -> None:
    """Repeated rows count once, other rows of one id are kept apart, labels of another rule are
    reported.
    """
    row = {"reference_code": "r", "candidate_code": "c", "source_id": "t/1"}
    row |= {"aggregated_speedup": 2.5, "true_bin": 6}
    rows = [
        row,
        row,
        {**row, "candidate_code": "d"},
        {**row, "source_id": "t/2", "true_bin": 7},
        {**row, "source_id": "t/3", "aggregated_speedup": None},
    ]
    result = read("eval-set-jsonl", write_lines(tmp_path / "eval_dataset.jsonl", rows))
    assert [(e.node_id, e.n_logged) for e in result.evaluations] == [
        ("t/1", 2),
        ("t/1@3", 1),
        ("t/2", 1),
        ("t/3", 1),
    ]
    assert result.by_node["t/3"].outcome == "infrastructure_failure"
    assert result.codes == ["doubled-result", "label-differs", "null-score"]


# -- timing lines


def test_timing_lines_are_never_guessed(tmp_path: Path) -> None:
    """Equal speedups without time spans match nothing; a unique one matches."""
    archive = [node(0), *(node(n, 0, gpu_mode(x)) for n, x in ((1, 3.0), (2, 3.0), (3, 4.0)))]
    (tmp_path / "checkpoint.json").write_text(json.dumps({"archive": archive, "visited": []}))
    begun, ended = "2026-05-01T00:00:00Z", "2026-05-01T00:00:09Z"
    lines: list[Any] = [
        {"speedup": x, "wall_s": wall, "started_at": begun, "completed_at": ended}
        for x, wall in ((3.0, 1.0), (3.0, 2.0), (4.0, 3.0), (None, 7.0))
    ]
    write_lines(tmp_path / "timing.jsonl", [*lines, "{broken"])
    result = read("hill-climbing-checkpoint", tmp_path)
    assert [e.gpu_seconds for e in result.evaluations] == [None, None, None, 3.0]
    assert result.facts.counts == {"evaluations_without_program": 1, "timing_lines_unmatched": 2}
    assert [(f.code, f.line) for f in result.findings] == [("bad-timing", 5)]
