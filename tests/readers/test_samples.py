"""The samples of every other format against independent counts."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from readers.reading import Read, read

if TYPE_CHECKING:
    from pathlib import Path

FILLED = (
    "SEVERE_SLOWDOWN",
    "SIGNIFICANT_SLOWDOWN",
    "MINOR_SLOWDOWN",
    "SIGNIFICANT_SPEEDUP",
    "HIGH_SPEEDUP",
    "EXTREME_SPEEDUP",
)


def _read(name: str, folder: Path, base: Path, log: str = "") -> tuple[Read, dict[str, Any]]:
    """Read a sample; its best speedup and pairs are what another reader counted."""
    expected = json.loads((folder / "EXPECTED.json").read_text())
    result = read(name, folder / log, base)
    best = expected.get("best_speedup_including_root", expected["best_speedup"])
    assert max(e.speedup for e in result.successes) == best
    if "pairs" in expected:
        assert sorted(result.pairs) == sorted(map(tuple, expected["pairs"]))
    return result, expected


def _programs(evaluations: list[Any]) -> int:
    """Count the distinct programs that passed, beside the root."""
    return len({e.code.rstrip() for e in evaluations if e.outcome == "success" and not e.is_root})


def test_ttt_rollouts(simulated: Path) -> None:
    """Traps 1 and 19: rollouts without a program are no evaluations."""
    folder = simulated / "ttt_discover_v2/trimul__sim0501"
    result, expected = _read("ttt-rollouts", folder, simulated, "tinker_log/seed_00")
    outcomes = {k: n for k, n in expected["outcomes"].items() if k != "parse_failure"}
    assert result.outcomes == outcomes
    assert len(result.evaluations) == expected["n_evaluations"]
    assert result.facts.n_mutations_failed == expected["outcomes"]["parse_failure"]
    assert result.facts.counts["rollouts"] == expected["n_rollouts"]
    assert result.unique == expected["n_unique_successful_programs"]
    assert expected["best_speedup"] != expected["best_reward"]
    log = (folder / "tinker_log/seed_00/rollouts.jsonl").read_text()
    rows = [json.loads(line) for line in log.splitlines()]
    assert result.facts.input_tokens == sum(r["prompt_tokens"] for r in rows)
    assert result.facts.output_tokens == sum(r["response_tokens"] for r in rows)
    assert {e.step for e in result.evaluations} == set(range(6))
    assert result.facts.finished is True
    assert result.facts.model == "openai/gpt-oss-120b"
    assert not result.findings


@pytest.mark.parametrize("name", ["run_00", "run_01"])
def test_agentic_run(simulated: Path, name: str) -> None:
    """Trap 10: the seed's call is the root where it was logged."""
    folder = simulated / "agentic_gemini_cli/trimul__sim0601" / name
    result, expected = _read("agentic-run", folder, simulated)
    own = [e for e in result.evaluations if not e.is_root]
    assert len(result.evaluations) == expected["n_trajectory_records"]
    assert len(own) == expected["n_evaluations"]
    assert result.outcomes == expected["outcomes"]
    assert sum(e.outcome == "success" for e in own) == expected["n_successes"]
    assert _programs(own) == expected["n_unique_successful_programs"]
    assert {e.parent_node_id for e in result.evaluations} == {None}
    assert result.facts.wall_seconds == expected["elapsed_s"]
    assert result.facts.finished is True
    assert not result.findings


def test_greedy_checkpoint(simulated: Path) -> None:
    """Candidates with a result, those whose scoring raised, pairs, steps and milliseconds."""
    folder = simulated / "greedy_search/kernelbench_l1__sim0401"
    result, expected = _read("greedy-checkpoint", folder, simulated)
    raised = [e for e in result.evaluations if e.error_type == "evaluation_failed"]
    assert len(result.evaluations) == expected["n_candidates"]
    assert len(raised) == expected["n_unscored_candidates"]
    assert len(raised) == result.facts.counts["evaluation_failed"]
    assert len(result.evaluations) - len(raised) == expected["n_evaluations_including_starter"]
    verdicts = Counter(e.outcome for e in result.evaluations if e not in raised)
    assert verdicts == expected["feedback_kinds"]
    assert result.facts.n_mutations_failed == expected["mutation_failures"]
    (starter,) = [e for e in result.evaluations if e.is_root]
    assert (starter.runtime_us, starter.step) == (900_000.0, None)
    assert {e.step for e in result.evaluations if not e.is_root} == set(range(expected["rounds"]))


def test_hill_climbing_checkpoint(simulated: Path) -> None:
    """A hill climb's checkpoint as JSON gives the programs that passed."""
    folder = simulated / "hill_climbing/trimul__sim0201"
    log = "checkpoint_as_json.json"
    result, expected = _read("hill-climbing-checkpoint", folder, simulated, log)
    assert len(result.evaluations) == expected["archive_size"]
    assert sum(not e.is_root for e in result.successes) == expected["n_successes"]
    assert _programs(result.evaluations) == expected["n_unique_successful_programs"]
    assert result.facts.counts["steps_completed"] == expected["current_step"]
    assert not result.findings


def test_python_pickle_is_refused(simulated: Path) -> None:
    """Trap 12: a pickle is one finding that says how to write JSON instead."""
    path = simulated / "hill_climbing/trimul__sim0201/checkpoint.pkl"
    for name in ("hill-climbing-checkpoint", "puct-checkpoint"):
        result = read(name, path, simulated)
        (finding,) = result.findings
        assert (finding.code, finding.severity) == ("python-pickle", "error")
        assert "json.dump" in (finding.fix or "")
        assert not result.evaluations


def test_puct_checkpoint(simulated: Path) -> None:
    """Trap 13: a v1 checkpoint holds its archive, and that is what is yielded."""
    folder = simulated / "puct_v1/trimul__sim0301"
    result, expected = _read("puct-checkpoint", folder, simulated)
    assert len(result.evaluations) == expected["archive_size"]
    assert len(result.successes) == expected["n_archived_successes"]
    assert _programs(result.evaluations) == expected["n_unique_successful_programs"]
    assert result.facts.counts["steps_completed"] == expected["current_step"]


@pytest.mark.parametrize("name", FILLED)
def test_bin_filler(simulated: Path, name: str) -> None:
    """Trap 1: the rewards of these logs are negative distances, the root's too."""
    folder = simulated / "eval_dataset_builder/fp8_quant__sim0801" / name
    result, expected = _read("bin-filler", folder, simulated)
    verdicts = [e for e in result.evaluations if e.error_type != "evaluation_failed"]
    assert len(verdicts) == expected["n_evaluations_including_root"]
    assert len(result.evaluations) - len(verdicts) == expected["n_evaluation_failed"]
    assert Counter(e.outcome for e in verdicts if not e.is_root) == expected["outcomes"]
    assert len(result.pairs) == expected["n_parent_child_pairs_both_ran"]
    assert all(e.speedup > 0 for e in result.successes)
    assert result.facts.gpu == "NVIDIA A100-SXM4-80GB"
    assert result.facts.hyperparameters["target_bin"] == name
    assert result.facts.reference_code.startswith("# placeholder")
    assert result.facts.finished is True


def test_eval_set(simulated: Path) -> None:
    """Rows of an evaluation set are measured candidates; their labels follow the released rule."""
    folder = simulated / "eval_dataset_builder/fp8_quant__sim0801"
    result, expected = _read("eval-set-jsonl", folder, simulated)
    assert len(result.successes) == expected["n_rows"]
    assert result.unique == expected["n_unique_candidate_code"]
    same = sum(e.code == e.reference_code for e in result.evaluations)
    assert same == expected["n_rows_candidate_equals_reference"]
    assert result.facts.gpu == "NVIDIA A100-SXM4-80GB"
    assert not result.findings


#: Folder of measured runs -> format, and the names of the runs.
H200_RUNS = {
    "puct": ("puct-events", "trimul__s31 gdn_chunk_fwd_o__s11 cross_entropy__cuda_s31"),
    "goal_conditioned": (
        "puct-events",
        "gdn_chunk_fwd_h__bin2_s21 cross_entropy__bin1_s21 trimul__bin8_s21",
    ),
    "hill_climbing": (
        "hill-climbing-checkpoint",
        "cross_entropy__s21 fp8_quant__s21 gdn_chunk_fwd_o__s21 gdn_recompute_w_u__s21",
    ),
    "agentic": ("attempts", "cross_entropy__s31 fp8_quant__s31 gdn_chunk_fwd_h__s31"),
}


@pytest.mark.parametrize(
    ("folder", "name"), [(f, name) for f, (_, names) in H200_RUNS.items() for name in names.split()]
)
def test_h200_run_agrees_with_independent_count(
    h200: Path, h200_expected: dict[str, Any], folder: str, name: str
) -> None:
    """A measured run has the evaluations, failures, programs, pairs and GPU time of another
    reader's count. Of what failed a hill climb keeps timing lines alone, and agents' nodes are
    called by their number.
    """
    expected = h200_expected[f"{folder}/{name}"]
    result = read(H200_RUNS[folder][0], h200 / folder / name, h200)
    is_climb, n_evaluations = folder == "hill_climbing", expected["evaluations"]
    lost = result.facts.counts.get("evaluations_without_program", 0)
    failed = [e for e in result.evaluations if e.outcome != "success"]
    failures = Counter(
        e.error_type if e.error_type == "evaluation_failed" else e.outcome for e in failed
    )
    assert not result.findings
    assert len(result.evaluations) + lost == n_evaluations
    assert lost == (sum(expected["failures"].values()) if is_climb else 0)
    assert failures == ({} if is_climb else expected["failures"])
    assert result.unique == expected["unique_successful_programs"]
    assert len(result.pairs) == expected["parent_child_pairs_both_ran"]
    assert sum(e.is_root for e in result.evaluations) == 1
    best = max((e.speedup for e in result.successes), default=0.0)
    assert round(best, 4) == expected["best_speedup"]
    if is_climb:
        assert all(e.gpu_seconds and e.started_at for e in result.evaluations)
    else:
        seconds = sum(e.gpu_seconds or 0.0 for e in result.evaluations)
        assert seconds == pytest.approx(expected["gpu_seconds"], abs=0.02)
    if folder == "agentic":
        assert [e.node_id for e in result.evaluations] == [*map(str, range(n_evaluations))]
        assert result.evaluations[0].is_root
    facts = result.facts
    assert facts.gpu_seconds == expected["gpu_seconds"]
    assert (facts.gpu, facts.problem) == ("NVIDIA H200", name.split("__", maxsplit=1)[0])
    assert "def " in facts.reference_code
    assert set(facts.tolerance) == {"rtol", "atol"}
    assert facts.software["torch"].startswith("2.")
