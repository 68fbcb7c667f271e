"""The table of launches: lines of a dry run, of programs that the archive holds."""

from __future__ import annotations

import json

import pytest

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import RecipeError
from kernel_archive.ids import program_id
from kernel_archive.pipeline import build, validate

RECIPE = """name = "dry"
licence = "CC0-1.0"
description = "d"
launches = "launches.jsonl"
[[source]]
path = "results.csv"
format = "sql"
role = "held_out"
generation_method = "agentic"
gpu = "H200"
problem = "softmax"
reference = "reference.txt"
query = "SELECT code, speedup FROM 'results.csv'"
"""
CODES = ["def custom_kernel(x): return x + 1", "def custom_kernel(x): return x + 2"]


def line(code, **columns):
    """One launch of a program."""
    known = {"problem": "softmax", "case": 0, "kind": "launch", "name": "k", "n": 3, "bytes": 64}
    return {"program_id": program_id(code), **known, **columns}


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe of two programs with these lines, and returns its path."""

    def write(*lines):
        folder = tmp_path / "src"
        folder.mkdir(exist_ok=True)
        rows = "".join(f'"{code}",{n + 1}.5\n' for n, code in enumerate(CODES))
        (folder / "results.csv").write_text("code,speedup\n" + rows)
        (folder / "reference.txt").write_text("def reference(x): return x")
        text = "".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in lines)
        (folder / "launches.jsonl").write_text(text)
        (folder / "builder.toml").write_text(RECIPE)
        return folder / "builder.toml"

    return write


def test_lines_of_known_programs_become_rows(recipe, tmp_path):
    """Each with an id of its own; of programs that the archive lacks nothing is kept."""
    path = recipe(
        line(CODES[0], grid_x=8, warps=4),
        line(CODES[0], grid_x=8, warps=4),
        line("import unknown"),
        line(CODES[1], kind="not_followed", name="TypeError: no"),
    )
    build([str(path)], out=tmp_path / "a")
    archive = open_archive(tmp_path / "a")
    rows = archive.arrow("launches").to_pylist()
    assert len({row["launch_id"] for row in rows}) == len(rows) == 3
    assert {row["program_id"] for row in rows} == {program_id(code) for code in CODES}
    assert min((row["kind"], row["grid_x"], row["n"]) for row in rows) == ("launch", 8, 3)
    assert archive.manifest.reports["dry_runs"] == {
        "programs": 2,
        "not_followed": 1,
        "without": 0,
    }
    report = validate(tmp_path / "a")
    assert report.ok, [finding.render() for finding in report.findings]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (line(CODES[0], n=-1), "n"),
        (line(CODES[0], kind="guess"), "kind"),
        (line(CODES[0], speedup=2.0), None),
        (line("x") | {"program_id": "../x"}, "program_id"),
        ("{", None),
    ],
)
def test_a_bad_line_is_named(recipe, tmp_path, bad, field):
    """File, line and field; nothing is built."""
    with pytest.raises(RecipeError) as error:
        build([str(recipe(line(CODES[1]), bad))], out=tmp_path / "a")
    (finding,) = error.value.findings
    assert (finding.code, finding.line, finding.field) == ("bad-launch", 2, field)
    assert not (tmp_path / "a").exists()
