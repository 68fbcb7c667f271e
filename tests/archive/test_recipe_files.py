"""Files beside a recipe: readings of its programs, and what a dry run of them launched."""

from __future__ import annotations

import json

import pytest
from support.archives import remake

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe import load_recipe, shipped_recipes
from kernel_archive.archive.recipe_files import Reading, reading_rows
from kernel_archive.errors import RecipeError
from kernel_archive.ids import program_id
from kernel_archive.pipeline import build, validate

RECIPE = """name = "mine"
licence = "CC0-1.0"
description = "d"
natural = true
{more}
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
CODES = [f"def custom_kernel(x): return x + {n}" for n in range(3)]


def reading(code, **answers):
    """One line of a file of readings."""
    return json.dumps({"program": program_id(code), "useless": "no", "submit": "yes", **answers})


def launch(code, **columns):
    """One line of a dry run."""
    known = {"problem": "softmax", "case": 0, "kind": "launch", "name": "k", "n": 3, "bytes": 64}
    return json.dumps({"program_id": program_id(code), **known, **columns})


@pytest.fixture
def source(tmp_path):
    """Writes a recipe of three programs with lines in a file beside it, and returns its path."""

    def write(key, *lines, name=None):
        folder = tmp_path / "src"
        folder.mkdir(exist_ok=True)
        rows = "".join(f'"{code}",{n}.5\n' for n, code in enumerate(CODES))
        (folder / "results.csv").write_text("code,speedup\n" + rows)
        (folder / "reference.txt").write_text("def reference(x): return x")
        (folder / "lines.jsonl").write_text("".join(f"{line}\n" for line in lines))
        named = f'{key} = "{"lines.jsonl" if name is None else name}"'
        (folder / "builder.toml").write_text(RECIPE.format(more=named))
        return folder / "builder.toml"

    return write


def test_lines_of_known_programs_become_rows_of_launches(source, tmp_path):
    """Each with an id of its own; of programs that the archive lacks nothing is kept."""
    lines = [launch(CODES[0], grid_x=8, warps=4), launch(CODES[0], grid_x=8, warps=4)]
    lines += [launch("import unknown")]
    lines += [launch(CODES[1], kind="not_followed", name="TypeError: no")]
    build([str(source("launches", *lines))], out=tmp_path / "a")
    archive = open_archive(tmp_path / "a")
    rows = archive.arrow("launches").to_pylist()
    assert len({row["launch_id"] for row in rows}) == len(rows) == 3
    assert {row["program_id"] for row in rows} == {program_id(code) for code in CODES[:2]}
    assert min((row["kind"], row["grid_x"], row["n"]) for row in rows) == ("launch", 8, 3)
    counts = {"programs": 2, "not_followed": 1, "without": 1}
    assert archive.manifest.reports["dry_runs"] == counts
    report = validate(tmp_path / "a")
    assert report.ok, [finding.render() for finding in report.findings]


def test_several_files_of_launches_are_one_table(source, tmp_path):
    """A dry run and a profile of one program stand side by side, each row with an id of its own."""
    recipe = source("launches", launch(CODES[0], grid_x=8))
    profile = launch(CODES[0], kind="kernel", threads=128, registers=40, spilled=0)
    (recipe.parent / "profile.jsonl").write_text(profile + "\n")
    text = recipe.read_text().replace('"lines.jsonl"', '["lines.jsonl", "profile.jsonl"]')
    recipe.write_text(text)
    build([str(recipe)], out=tmp_path / "a")
    rows = open_archive(tmp_path / "a").arrow("launches").to_pylist()
    assert len({row["launch_id"] for row in rows}) == 2
    assert {row["kind"]: row["registers"] for row in rows} == {"launch": None, "kernel": 40}


@pytest.mark.parametrize(
    ("answers", "unfit"),
    [
        ({"submit": "doubtful"}, False),
        ({"useless": "slight"}, False),
        ({"useless": "yes"}, True),
        ({"submit": "no"}, True),
        ({"tells": "the fast one"}, True),
    ],
)
def test_what_is_unfit(answers, unfit):
    """Work that serves nothing, nobody who would submit it, or words that tell; no mere doubts."""
    plain = {"useless": "no", "submit": "yes"}
    assert Reading(program="0" * 32, **(plain | answers)).unfit is unfit


def test_unfit_programs_keep_their_label_and_are_not_asked_about(source, tmp_path):
    """One reader of two is enough; a definition that excludes no flag does ask."""
    lines = [reading(CODES[0]), reading(CODES[1], reader="r1")]
    lines += [reading(CODES[1], useless="yes", reader="r2", why="sums twice")]
    path = source("readings", *lines)
    build([str(path)], out=tmp_path / "out", name="me/own", jobs=1)
    archive = open_archive(tmp_path / "out")
    kernels = {row["code"]: row for row in archive.arrow("kernels").to_pylist()}
    assert [code for code in CODES if "unfit" in kernels[code]["flags"]] == [CODES[1]]
    assert kernels[CODES[1]]["speedup"] == 1.5
    assert archive.manifest.reports["flags"]["unfit"] == 1
    assert sorted(archive.arrow("eval")["candidate_code"].to_pylist()) == [CODES[0], CODES[2]]
    assert archive.manifest.splits["eval"].facts["excluded"]["flagged"] == 1
    remake(archive.path, "eval", exclude_flags=[])
    asked = open_archive(archive.path).arrow("eval")["candidate_code"].to_pylist()
    assert sorted(asked) == CODES


@pytest.mark.parametrize(
    ("key", "line", "words"),
    [
        ("launches", launch(CODES[0], n=-1), "n: "),
        ("launches", launch(CODES[0], kind="guess"), "kind: "),
        ("launches", launch(CODES[0], speedup=2.0), ".*speedup"),
        ("launches", "{", "not valid JSON"),
        ("readings", '{"program": "x"}', ".*program"),
        ("readings", reading(CODES[1], useless="maybe"), ".*useless"),
        ("readings", reading("def other(): pass"), "program: .*that no log"),
        ("readings", '"' + "0" * (2 << 20) + '"', "the line is longer than 1 MiB"),
    ],
)
def test_a_faulty_line_is_named(source, tmp_path, key, line, words):
    """File, line and field; nothing is built."""
    first = {"launches": launch, "readings": reading}[key](CODES[0])
    with pytest.raises(RecipeError, match=rf"lines\.jsonl:2: {words}"):
        build([str(source(key, first, line))], out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.jsonl", "no such file"),
        ("../lines.jsonl", "outside of the recipe's folder"),
        ("link.jsonl", "outside of the recipe's folder"),
        ("", "a directory"),
        ("a" * 5000, "too long"),
    ],
)
def test_the_file_lies_beside_the_recipe(source, tmp_path, name, words):
    """No path and no link leads out of the folder, to nothing or to a folder."""
    (tmp_path / "lines.jsonl").write_text("")
    path = source("readings", name=name)
    (path.parent / "link.jsonl").symlink_to(tmp_path / "lines.jsonl")
    with pytest.raises(RecipeError, match=words):
        build([str(path)], out=tmp_path / "out")


def test_every_row_that_is_asked_about_was_read(shipped):
    """Each program of a shipped evaluation split has a reading that lets it be asked about."""
    rows = reading_rows([load_recipe(shipped_recipes()["h200-lm-2026-11"])])
    unfit = {row["program_id"] for row in rows if row["unfit"]}
    fit = {row["program_id"] for row in rows} - unfit
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    for table in ("eval", "eval_cuda", "eval_problems"):
        query = f"SELECT program_id FROM {table} JOIN kernels USING (kernel_id)"
        asked = set(archive.sql(query)["program_id"].to_pylist())
        assert asked
        assert asked <= fit
    kernels = archive.arrow("kernels", columns=["program_id", "flags"]).to_pylist()
    assert {k["program_id"] for k in kernels if "unfit" in k["flags"]} == unfit
