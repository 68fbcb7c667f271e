"""``openevolve``: every program of all checkpoints once, with its parent, and the metrics that the recipe names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from readers.reading import Read, read

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = [
    ("root", None, 0, {"ms": 8.0, "combined_score": 0.1}),
    ("a", "root", 3, {"ms": 4.0, "combined_score": 0.2}),
    ("b", "a", 7, {"ms": 2.0, "combined_score": 0.4}),
]


def checkpoint(folder: Path, number: int, programs: list[Any]) -> None:
    """A checkpoint as it is written: a file per program, and what is no program beside it."""
    place = folder / f"checkpoints/checkpoint_{number}"
    (place / "programs").mkdir(parents=True)
    (place / "metadata.json").write_text(json.dumps({"islands": [["root"]], "last_iteration": number}))
    for name, parent, iteration, metrics in programs:
        value = {
            "id": name,
            "code": f"def kernel_{name}(): ...",
            "language": "python",
            "parent_id": parent,
            "metrics": metrics,
        }
        (place / f"programs/{name}.json").write_text(
            json.dumps({**value, "iteration_found": iteration, "timestamp": 1.0e9})
        )


def run(tmp_path: Path, **settings: Any) -> Read:
    """Two checkpoints, the first with two of the programs."""
    checkpoint(tmp_path / "out", 5, PROGRAMS[:2])
    checkpoint(tmp_path / "out", 10, PROGRAMS)
    return read("openevolve", tmp_path / "out", tmp_path, **settings)


MS = {"runtime": {"column": "metrics.ms", "unit": "ms"}}


def test_the_root_is_the_reference_when_the_recipe_says_so(tmp_path: Path) -> None:
    """Speedups are the root's time over the program's; a program that stands in two checkpoints counts once."""
    result = run(tmp_path, columns=MS, reference="root")
    assert [(e.node_id, e.parent_node_id, e.step, e.speedup, e.is_root) for e in result.evaluations] == [
        ("root", None, 0, 1.0, True),
        ("a", "root", 3, 2.0, False),
        ("b", "a", 7, 4.0, False),
    ]
    assert {e.reference_code for e in result.evaluations} == {"def kernel_root(): ..."}
    assert result.by_node["a"].source_file == "out/checkpoints/checkpoint_10/programs/a.json"
    assert not result.findings


def test_a_metric_that_is_the_speedup(tmp_path: Path) -> None:
    """Without ``root`` there is no reference text, and the metric counts as it is."""
    result = run(tmp_path, columns={"speedup": "metrics.combined_score"})
    assert [(e.speedup, e.reference_code) for e in result.evaluations] == [(0.1, None), (0.2, None), (0.4, None)]


def test_metrics_must_be_named(tmp_path: Path) -> None:
    """What a metric means only the user knows: the finding lists those that there are."""
    (finding,) = run(tmp_path).findings
    assert finding.code == "bad-columns"
    assert "combined_score, ms" in finding.message


def test_a_program_that_changed(tmp_path: Path) -> None:
    """An id with another code in a later checkpoint is said."""
    checkpoint(tmp_path / "out", 1, PROGRAMS[:1])
    path = tmp_path / "out/checkpoints/checkpoint_1/programs/root.json"
    path.write_text(path.read_text().replace("def kernel_root", "def other"))
    assert "program-changed" in run(tmp_path, columns=MS, reference="root").codes


@pytest.mark.parametrize("place", ["out/checkpoints", "out/checkpoints/checkpoint_10"])
def test_every_folder_of_a_run_is_read(tmp_path: Path, place: str) -> None:
    """The checkpoints' folder, or one checkpoint."""
    run(tmp_path, columns=MS, reference="root")
    assert len(read("openevolve", tmp_path / place, tmp_path, columns=MS, reference="root").evaluations) == 3


def test_no_checkpoints(tmp_path: Path) -> None:
    """A folder without programs is no run."""
    assert read("openevolve", tmp_path, tmp_path, columns=MS).codes == ["wrong-format"]


def test_migrants_are_the_same_evaluation(tmp_path: Path) -> None:
    """Copies on other islands, also copies of copies, count once; their children are those of the program that they copy."""
    copies = [("a_migrant_1", "a", 3, {"ms": 4.0, "combined_score": 0.2})]
    copies += [("a_migrant_1_migrant_2", "a_migrant_1", 3, {"ms": 4.0, "combined_score": 0.2})]
    checkpoint(tmp_path / "out", 9, [*PROGRAMS, *copies, ("c", "a_migrant_1_migrant_2", 8, {"ms": 1.0})])
    for path in tmp_path.glob("out/checkpoints/*/programs/a_migrant*.json"):
        path.write_text(path.read_text().replace(path.stem, "a").replace('"id": "a"', f'"id": "{path.stem}"'))
    result = read("openevolve", tmp_path / "out", tmp_path, columns=MS, reference="root")
    assert [(e.node_id, e.parent_node_id) for e in result.evaluations] == [
        ("root", None), ("a", "root"), ("b", "a"), ("c", "a"),
    ]  # fmt: skip
    assert [(f.code, f.severity) for f in result.findings] == [("migrants", "info")]
    assert "2 migrants" in result.findings[0].message


def test_what_an_evaluator_wrote_of_a_failure(tmp_path: Path) -> None:
    """``metrics.error`` is the error's text and kind, and says how an incorrect program failed; a number is no text."""
    errors = [{"error": "CompilationError: at 12:4"}, {"error": "RuntimeError: device"}, {"error": 0.0}, {}]
    rows = [("root", None, 0, {"ms": 8.0, "ok": 1.0})]
    rows += [(f"p{n}", "root", n + 1, {"ms": 0.0, "ok": 0.0, **error}) for n, error in enumerate(errors)]
    checkpoint(tmp_path / "out", 5, rows)
    result = read("openevolve", tmp_path / "out", tmp_path, columns={**MS, "correct": "metrics.ok"}, reference="root")
    assert [(e.outcome, e.error_type, e.error_text) for e in result.evaluations] == [
        ("success", None, None),
        ("compile_failed", "CompilationError", "CompilationError: at 12:4"),
        ("runtime_error", "RuntimeError", "RuntimeError: device"),
        ("incorrect", None, None),
        ("incorrect", None, None),
    ]
