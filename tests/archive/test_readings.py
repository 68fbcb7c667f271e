"""Tests of readings: what a reader found in a program, and what it does to the flags."""

from __future__ import annotations

import json

import pytest
from support.archives import remake

from kernel_archive.archive.build import build_archive
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.readings import HumanReading, readings_of
from kernel_archive.archive.recipe import load_recipe, shipped_recipes
from kernel_archive.errors import RecipeError
from kernel_archive.ids import program_id
from kernel_archive.pipeline import build

RECIPE = """name = "read"
licence = "CC0-1.0"
description = "d"
natural = true
{readings}
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
CODES = [
    "def custom_kernel(x): return x + 1",
    "def custom_kernel(x): return x + 2",
    "def custom_kernel(x): return x + 3",
]


def reading(code, **answers):
    """One line of a file of readings."""
    return json.dumps({"program": program_id(code), "useless": "no", "submit": "yes", **answers})


@pytest.fixture
def source(tmp_path):
    """Writes a recipe of three programs with the given lines of readings, and returns its path."""

    def made(*lines, key='readings = "readings.jsonl"'):
        folder = tmp_path / "src"
        folder.mkdir(exist_ok=True)
        (folder / "results.csv").write_text(
            "code,speedup\n" + "".join(f'"{code}",{n}.5\n' for n, code in enumerate(CODES))
        )
        (folder / "reference.txt").write_text("def reference(x): return x")
        (folder / "readings.jsonl").write_text("".join(line + "\n" for line in lines))
        (folder / "builder.toml").write_text(RECIPE.format(readings=key))
        return folder / "builder.toml"

    return made


def flags(recipe, out):
    """Flags by program, of the archive that is built from the recipe."""
    result = build_archive([str(recipe)], out=out, replace=True)
    kernels = open_archive(result.path).arrow("kernels")
    return {
        code: "unfit" in found
        for code, found in zip(
            kernels["code"].to_pylist(), kernels["flags"].to_pylist(), strict=True
        )
    }


@pytest.mark.parametrize(
    ("useless", "submit", "tells", "unfit"),
    [
        ("no", "yes", "", False),
        ("no", "doubtful", "", False),
        ("slight", "doubtful", "", False),
        ("yes", "yes", "", True),
        ("no", "no", "", True),
        ("yes", "no", "", True),
        ("no", "yes", "the fast one", True),
    ],
)
def test_what_is_unfit(useless, submit, tells, unfit):
    """Work that serves nothing, nobody who would submit it, or words that tell; no mere doubts."""
    reading = HumanReading(program="0" * 32, useless=useless, submit=submit, tells=tells)
    assert reading.unfit is unfit


def test_unfit_programs_have_the_flag_and_keep_their_label(source, tmp_path):
    """One reader of two is enough; the others are as they were."""
    recipe = source(
        reading(CODES[0]),
        reading(CODES[1], reader="r1"),
        reading(CODES[1], useless="yes", reader="r2", why="sums twice"),
    )
    assert flags(recipe, tmp_path / "out") == {CODES[0]: False, CODES[1]: True, CODES[2]: False}
    archive = open_archive(tmp_path / "out")
    assert archive.manifest.reports["flags"]["unfit"] == 1
    assert sorted(archive.arrow("kernels")["speedup"].to_pylist()) == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"program": "x"}', r"readings\.jsonl:2: .*program"),
        (reading(CODES[1], useless="maybe"), r"readings\.jsonl:2: .*useless"),
        (reading(CODES[1], speed=1), r"readings\.jsonl:2: .*speed"),
        ('{"program": ', r"readings\.jsonl:2: not valid JSON"),
        (
            reading("def other(): pass"),
            r"readings\.jsonl:2: program: a reading names a program that no log of its recipe has",
        ),
        (
            '{"program": "' + "0" * (2 << 20) + '"}',
            r"readings\.jsonl:2: the line is longer than 1 MiB",
        ),
    ],
)
def test_faulty_readings_are_refused_with_their_line(source, tmp_path, line, said):
    """Nothing is built from readings that are none, or that are of another program."""
    with pytest.raises(RecipeError, match=said):
        flags(source(reading(CODES[0]), line), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.jsonl", "no such file"),
        ("../readings.jsonl", "outside of the recipe's folder"),
        ("link.jsonl", "outside of the recipe's folder"),
        (".", "a directory"),
        ("", "a directory"),
        ("a" * 5000, "too long"),
    ],
)
def test_readings_lie_beside_the_recipe(source, tmp_path, name, said):
    """No path and no link leads out of the folder, to nothing or to a folder."""
    (tmp_path / "readings.jsonl").write_text("")
    recipe = source(key=f'readings = "{name}"')
    (recipe.parent / "link.jsonl").symlink_to(tmp_path / "readings.jsonl")
    with pytest.raises(RecipeError, match=said):
        flags(recipe, tmp_path / "out")


def test_an_archive_of_ones_own_does_not_ask_about_unfit_programs(source, tmp_path):
    """Without a word in its recipe; a definition that excludes no flag does ask."""
    recipe = source(reading(CODES[1], useless="yes"))
    build([str(recipe)], out=tmp_path / "out", name="me/own", jobs=1)
    archive = open_archive(tmp_path / "out")
    assert sorted(archive.arrow("eval")["candidate_code"].to_pylist()) == [CODES[0], CODES[2]]
    assert archive.manifest.splits["eval"].facts["excluded"]["flagged"] == 1
    remake(archive.path, "eval", exclude_flags=[])
    asked = open_archive(archive.path).arrow("eval")["candidate_code"].to_pylist()
    assert sorted(asked) == CODES


def test_every_row_that_is_asked_about_was_read(shipped):
    """Each program of a shipped evaluation split has a reading that lets it be asked about."""
    found = readings_of(load_recipe(shipped_recipes()["h200-lm-2026-11"]))
    read = {r.program: False for _, r in found} | {r.program: True for _, r in found if r.unfit}
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    for table in ("eval", "eval_cuda", "eval_problems"):
        asked = archive.sql(f"SELECT program_id FROM {table} JOIN kernels USING (kernel_id)")[
            "program_id"
        ].to_pylist()
        assert asked
        assert {read.get(program) for program in asked} == {False}
    kernels = archive.arrow("kernels", columns=["program_id", "flags"]).to_pylist()
    assert {k["program_id"] for k in kernels if "unfit" in k["flags"]} == {
        p for p, unfit in read.items() if unfit
    }
