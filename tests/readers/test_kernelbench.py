"""``kernelbench``: results, programs and baselines together, as the format's public code writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from readers.reading import read

if TYPE_CHECKING:
    from pathlib import Path

L40S = {"hardware": "NVIDIA L40S", "device": "cuda:0"}


def result(sample: int, runtime: float = -1.0, **more: Any) -> dict[str, Any]:
    """A result as it is written; a pass where nothing else is said."""
    base = {"sample_id": sample, "compiled": True, "correctness": True, "metadata": L40S, "runtime": runtime}
    return {**base, "runtime_stats": {}, **more}


RESULTS = {
    "1": [result(0, 1.5), result(1, 6.0)],
    "2": [
        result(0, compiled=False, correctness=False, metadata={**L40S, "compilation_error": "nvcc", "compilation_error_name": "E"}),
        result(1, correctness=False, metadata={**L40S, "runtime_error": "illegal access"}),
        result(2, correctness=False, metadata={**L40S, "correctness_issue": "mismatch"}),
        result(3, correctness=False),
    ],
}  # fmt: skip


def run(tmp_path: Path, results: Any = RESULTS, hardware: str = "NVIDIA L40S") -> Path:
    """A run folder with its programs, a baseline file and the reference programs."""
    folder = tmp_path / "runs/mine"
    folder.mkdir(parents=True)
    (folder / "eval_results.json").write_text(json.dumps(results))
    for problem, found in results.items():
        for sample in range(len(found) if isinstance(found, list) else 1):
            (folder / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(
                f"class ModelNew: n = {problem}{sample}\n"
            )
    timing = {
        "level1": {
            "1_Square.py": {"mean": 3.0, "hardware": hardware},
            "2_Other.py": {"mean": 1.0, "hardware": hardware},
        }
    }
    (tmp_path / "baseline.json").write_text(json.dumps(timing))
    (tmp_path / "KernelBench/level1").mkdir(parents=True)
    (tmp_path / "KernelBench/level1/1_Square.py").write_text("class Model: ...\n")
    return folder


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """What a recipe would say."""
    return {"recipe_directory": tmp_path, "baseline": "baseline.json", "problems": "KernelBench", **more}


def test_results_programs_baselines_and_references(tmp_path: Path) -> None:
    """Every result is an evaluation: with the program, its reference's time and text, and failures as they failed."""
    read_ = read("kernelbench", run(tmp_path), tmp_path, **settings(tmp_path))
    assert [(e.node_id, e.speedup, e.problem, e.gpu) for e in read_.successes] == [
        ("1/1/0", 2.0, "kernelbench_l1_p1", "NVIDIA L40S"),
        ("1/1/1", 0.5, "kernelbench_l1_p1", "NVIDIA L40S"),
    ]
    assert read_.successes[0].code == "class ModelNew: n = 10\n"
    assert read_.successes[0].reference_code == "class Model: ...\n"
    assert [(e.outcome, e.error_text, e.error_type) for e in read_.evaluations[2:]] == [
        ("compile_failed", "nvcc", "E"), ("runtime_error", "illegal access", None), ("incorrect", "mismatch", None), ("incorrect", None, None),
    ]  # fmt: skip
    assert not read_.findings
    assert {(e.source_file, e.source_line) for e in read_.evaluations} == {("runs/mine/eval_results.json", None)}


def test_one_result_per_problem_as_earlier_versions_wrote(tmp_path: Path) -> None:
    """A result instead of a list of them."""
    assert (
        read("kernelbench", run(tmp_path, {"1": result(0, 1.5)}), tmp_path, **settings(tmp_path)).successes[0].speedup
        == 2.0
    )


def test_runtimes_without_a_baseline_give_no_speedup(tmp_path: Path) -> None:
    """It is said, with the way out; the failures stay."""
    read_ = read("kernelbench", run(tmp_path), tmp_path, recipe_directory=tmp_path)
    assert not read_.successes
    assert len(read_.evaluations) == 4
    (first, second) = read_.findings
    assert (first.code, second.code) == ("no-baseline", "no-speedup")
    assert "baseline = " in str(first.fix)
    assert second.line is None
    assert "2 rows (in 1/1/0, 1/1/1)" in second.message


def test_a_baseline_of_another_gpu_gives_no_ratio(tmp_path: Path) -> None:
    """The baseline says which GPU it was timed on."""
    read_ = read("kernelbench", run(tmp_path, hardware="NVIDIA H100"), tmp_path, **settings(tmp_path))
    assert not [e for e in read_.successes if e.excluded is None]
    assert "two-gpus" in read_.codes


@pytest.mark.parametrize("name", ["generation_config.yaml", None])
def test_the_level_where_no_program_names_it(tmp_path: Path, name: str | None) -> None:
    """It comes from the settings of the run, or it is missed."""
    folder = run(tmp_path, {"1": [result(0, 1.5)]})
    (folder / "level_1_problem_1_sample_0_kernel.py").unlink()
    if name:
        (folder / name).write_text("run_name: x\nlevel: 1\n")
    assert ("no-level" in read("kernelbench", folder, tmp_path, **settings(tmp_path)).codes) == (name is None)


@pytest.mark.parametrize(("mean", "counts"), [(1.5, True), (1.52, True), (4.5, False)])
def test_a_runtime_against_its_own_mean(tmp_path: Path, mean: float, counts: bool) -> None:
    """A third of the mean would be a speedup three times too large: the row is left out, and said."""
    folder = run(tmp_path, {"1": [result(0, 1.5, runtime_stats={"mean": mean}), result(1, 6.0)]})
    read_ = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    assert [e.speedup for e in read_.successes] == ([2.0, 0.5] if counts else [0.5])
    assert ("runtime-contradicted" in read_.codes) is not counts


def nested(results: dict[str, Any], top: str | None = None) -> dict[str, Any]:
    """The same results by sample, and below a level."""
    by_sample = {p: {str(r["sample_id"]): r for r in found} for p, found in results.items()}
    return by_sample if top is None else {top: by_sample}


@pytest.mark.parametrize(
    "results",
    [
        nested(RESULTS),
        nested(RESULTS, "1"),
        nested(RESULTS, "level1"),
        {"level1": RESULTS},
        {f"problem_{p}": v for p, v in nested(RESULTS).items()},
    ],
)
def test_results_by_sample_and_by_level(tmp_path: Path, results: Any) -> None:
    """Relatives of KernelBench nest their results by sample, and below the level; what comes out is the same."""
    folder = run(tmp_path)
    wanted = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    (folder / "eval_results.json").write_text(json.dumps(results))
    read_ = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    assert not read_.findings
    facts = [[(e.outcome, e.speedup, e.code, e.problem) for e in each.evaluations] for each in (wanted, read_)]
    assert facts[0] == facts[1]


def test_a_file_for_each_sample(tmp_path: Path) -> None:
    """Alone they are the run; beside ``eval_results.json`` they add what it lacks, and nothing twice."""
    folder = run(tmp_path)
    wanted = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    for problem, found in RESULTS.items():
        for each in found:
            (folder / f"level_1_problem_{problem}_sample_{each['sample_id']}_eval_result.json").write_text(
                json.dumps(each)
            )
    both = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    assert [e.node_id for e in both.evaluations] == [e.node_id for e in wanted.evaluations]
    assert not both.findings
    (folder / "eval_results.json").unlink()
    alone = read("kernelbench", folder, tmp_path, **settings(tmp_path))
    assert [(e.node_id, e.speedup) for e in alone.evaluations] == [(e.node_id, e.speedup) for e in wanted.evaluations]
    assert alone.evaluations[0].source_file == "runs/mine/level_1_problem_1_sample_0_eval_result.json"


@pytest.mark.parametrize(
    ("results", "field", "others"),
    [
        ({"1": {"0": {"ok": True}}}, "1.0.ok", ""),
        ({"1": {"0": {"0": {"0": {"compiled": True}}}}}, "1.0.0", ""),
        ({"1": [[], 3], "2": "x"}, "1.1", "1 others"),
        ({"compiled": True}, None, ""),
        ([], None, ""),
    ],
)
def test_what_is_no_result(tmp_path: Path, results: Any, field: str | None, others: str) -> None:
    """One finding with the place and what was expected, never an empty run without a word."""
    folder = run(tmp_path)
    (folder / "eval_results.json").write_text(json.dumps(results))
    findings = read("kernelbench", folder, tmp_path, **settings(tmp_path)).findings
    first = findings[0]
    assert (first.code, first.field, first.severity) == ("no-result", field, "error")
    assert others in first.message
    assert "problem -> sample" in str(first.fix)
    assert findings[-1].code == "wrong-format"


def test_a_folder_is_no_baseline(tmp_path: Path) -> None:
    """Where a folder is named, the files below it that may be meant are named."""
    (tmp_path / "run").mkdir()
    results = {"1": [{"sample_id": 0, "compiled": True, "correctness": True, "runtime": 1.0}]}
    (tmp_path / "run/eval_results.json").write_text(json.dumps(results))
    (tmp_path / "timing/H100").mkdir(parents=True)
    (tmp_path / "timing/H100/baseline_time_torch.json").write_text("{}")
    findings = read("kernelbench", tmp_path / "run", tmp_path, baseline="timing", level="1").findings
    (finding,) = [f for f in findings if f.code == "bad-baseline"]
    assert "H100/baseline_time_torch.json" in str(finding.fix)
