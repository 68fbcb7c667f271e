"""Archives of one's own: from a table of measurements to the splits of their recipe."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.cli import cli, main
from kernel_archive.errors import DataError, LogError, RecipeError
from kernel_archive.pipeline import build, remake_split, validate
from kernel_archive.problems import PROBLEMS
from kernel_archive.selection.own_archive import problems_left_out

RECIPE = '''
name = "mine"
licence = "MIT"
description = "Made."

[archive]
name = "me/mine"
title = "My kernels"
description = "Two problems, of nobody else."
citation = "Me, 2026."

[[source]]
path = "t.csv"
format = "sql"
role = "held_out"
generation_method = "evolution"
query = """SELECT src AS code, x AS speedup, task AS problem, card AS gpu, ref AS reference_code,
id AS node_id, "from" AS parent_node_id FROM read_csv('t.csv', all_varchar = true)"""
'''
HEAD = ("id", "from", "task", "card", "src", "x", "ref")


def rows() -> list[tuple[Any, ...]]:
    """``wide`` has kernels in four bins on two GPUs, ``flat`` in one; ``bare`` no reference."""
    wide, flat = "def ref(x): ...", "def r(x): ..."
    made: list[tuple[Any, ...]] = []
    for i, x in enumerate((0.31, 0.61, 0.91, 1.21)):
        for card in ("L40S", "RTX 5090"):
            code = f"def w_{i}(x): return x + {i}"
            made.append((f"w{card}{i}", f"w{card}{i - 1}", "wide", card, code, x, wide))
        code = f"def bare_{i}(x): return x - {i}"
        made.append((f"b{i}", f"b{i - 1}", "bare", "L40S", code, 0.3 * 2**i, ""))
    for i in range(3):
        made.append((f"f{i}", "", "flat", "L40S", f"def f_{i}(x): return x * {i}", 1.1, flat))
    return made


def make(tmp_path: Path, *extra: tuple[Any, ...], recipe: str = RECIPE) -> Path:
    """The archive of these rows, built as its recipe says, in ``me/mine``."""
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([HEAD, *rows(), *extra])
    (tmp_path / "builder.toml").write_text(recipe)
    return tmp_path / build([str(tmp_path)], out=tmp_path / "me/mine").path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive as the recipe says, once for all who only read it."""
    return make(tmp_path_factory.mktemp("own"))


def test_every_problem_with_enough_bins_is_asked_about(own: Path) -> None:
    """On the GPU with the most kernels; what is not asked about is counted by its reason."""
    archive = open_archive(own)
    facts = archive.manifest.splits["eval"]
    assert (facts.name, facts.parameters["gpu"], facts.rows) == ("canonical", "L40S", 8)
    cells = {"bare": [0, 1, 1, 0, 1, 0, 1, 0], "wide": [0, 1, 1, 1, 1, 0, 0, 0]}
    assert facts.facts["cells"] == cells
    texts = {(r["task"], r["reference_code"]) for r in archive.arrow("eval").to_pylist()}
    assert texts == {("bare", ""), ("wide", "def ref(x): ...")}
    assert facts.facts["excluded"] == {"near_training": 0, "other_gpu": 4, "other_problem": 3}
    assert validate(archive.path).ok


def test_pairs_need_no_reference(own: Path) -> None:
    """Child over parent is the ratio of their times, whatever the reference was."""
    archive = open_archive(own)
    pairs = archive.arrow("discovery_pairs").to_pylist()
    of_each = {("wide", "L40S"): 3, ("wide", "RTX 5090"): 3, ("bare", "L40S"): 3}
    assert Counter((p["problem"], p["gpu"]) for p in pairs) == of_each
    assert [p["g"] for p in pairs if p["problem"] == "bare"] == pytest.approx([2.0] * 3)


def test_the_archive_says_what_it_is(own: Path) -> None:
    """Card and load example follow its name; an unknown GPU is a finding with a way out."""
    card = (own / "README.md").read_text()
    assert "# My kernels" in card
    assert "This archive: Me, 2026" in card
    assert 'load_dataset("me/mine")' in card
    assert "gpu-forecasters/kernels" not in card
    findings = open_archive(own).manifest.findings["first"]
    (fix,) = (f["fix"] for f in findings if f["code"] == "unknown-gpu")
    assert '[gpu."RTX 5090"]' in fix


@pytest.mark.parametrize(
    ("eval_", "rows_", "gpu"),
    [
        ("cap = 1\nbins = 1", 9, "L40S"),
        ("bins = 5", 0, None),
        ('gpu = "RTX 5090"', 4, "RTX 5090"),
        ('tasks = ["flat"]', 3, "L40S"),
        ('languages = ["triton"]', 0, None),
        ('roles = { training = ["w*"] }', 4, "L40S"),
    ],
)
def test_what_the_recipe_asks_about(
    tmp_path: Path, eval_: str, rows_: int, gpu: str | None
) -> None:
    """``[eval]`` states cap, bins, GPU, tasks, languages and roles."""
    path = make(tmp_path, recipe=f"{RECIPE}\n[eval]\n{eval_}\n")
    archive = open_archive(path)
    facts = archive.manifest.splits["eval"]
    assert (facts.name, facts.rows, facts.parameters["gpu"]) == ("canonical", rows_, gpu)
    assert validate(path).ok
    if "roles" in eval_:
        assert set(archive.arrow("train_pairs")["problem"].to_pylist()) == {"wide"}
        assert set(archive.arrow("searches")["role"].to_pylist()) == {"held_out", "training"}


@pytest.mark.parametrize(
    ("eval_", "reasons"),
    [
        ("", {"flat": "its speedups fall in 1 of 8 bins, and 3 are needed ([eval] bins)"}),
        ('gpu = "RTX 5090"', dict.fromkeys(("bare", "flat"), "none was measured on RTX 5090")),
        ('tasks = ["flat"]', dict.fromkeys(("wide", "bare"), "[eval] tasks does not name it")),
        (
            'roles = { training = ["w*", "bare"] }',
            dict.fromkeys(("wide", "bare"), "its searches are not held out"),
        ),
        (
            'languages = ["triton"]',
            dict.fromkeys(("wide", "bare", "flat"), "none is written in triton"),
        ),
    ],
)
def test_why_nothing_is_asked_about_a_problem(
    tmp_path: Path, eval_: str, reasons: dict[str, str]
) -> None:
    """The first reason that holds for all its kernels; those of most rows first."""
    outcome = "SELECT IF(id = 'z', 'incorrect', 'success') AS outcome, src"
    recipe = f"{RECIPE}\n[eval]\n{eval_}\n".replace("SELECT src", outcome)
    path = make(tmp_path, ("z", "", "zero", "L40S", "", 1.0, ""), recipe=recipe)
    left_out = problems_left_out(open_archive(path))
    assert {row["problem"]: row["reason"] for row in left_out} == reasons | {
        "zero": "no program counts"
    }
    assert (left_out[-1]["problem"], left_out[-1]["rows"]) == ("zero", 1)


@pytest.mark.parametrize("rule", ['roles = { training = ["w*", "conv_*"] }', 'tasks = ["conv_*"]'])
def test_a_name_that_fits_no_problem_is_an_error(tmp_path: Path, rule: str) -> None:
    """The pattern is named, and the problems that there are."""
    with pytest.raises(RecipeError, match=r"\(got conv_\*\).*bare, flat, wide"):
        make(tmp_path, recipe=f"{RECIPE}\n[eval]\n{rule}\n")


def test_names_as_they_were_written(tmp_path: Path) -> None:
    """Roles and reference files may use a name that is kept as another."""
    (tmp_path / "refs/level1").mkdir(parents=True)
    (tmp_path / "refs/level1/1_relu.py").write_text("def relu(x): ...")
    recipe = RECIPE.replace("ref AS reference_code", "NULL AS reference_code")
    recipe = f'{recipe}reference = "refs/{{problem}}.py"\n'
    for name in ("wide", "bare", "flat"):
        (tmp_path / f"refs/{name}.py").write_text("def ref(x): ...")
    recipe += '[eval]\nroles = { training = ["level1/*"] }\n'
    more = [(f"k{i}", "", "level1/1_relu", "L40S", f"def k{i}(): ...", 2.0, "") for i in (1, 2)]
    archive = open_archive(make(tmp_path, *more, recipe=recipe))
    pairs = archive.arrow("train_pairs")
    assert set(pairs["problem"].to_pylist()) == {"kernelbench_l1_p1"}
    assert "def relu(x): ..." in pairs["anchor_code"].to_pylist()


def test_why_there_is_no_training_pair(tmp_path: Path) -> None:
    """Training kernels without a reference program are the reason, not a missing role."""
    make(tmp_path, recipe=RECIPE + '[eval]\nroles = { training = ["bare"] }\n')
    why = "4 training kernels have no reference program"
    assert why in build([str(tmp_path)], out=tmp_path / "me/mine").not_made["train_pairs"]
    with pytest.raises(DataError, match=why):
        load_training_pairs(open_archive(tmp_path / "me/mine"))


def test_a_build_without_kernels_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what became of most rows, and where the first is; the archive that is there stays."""
    monkeypatch.chdir(tmp_path)
    before = open_archive(make(tmp_path)).manifest
    lines = ["id,from,task,card,src,x,ref", *(f"{i},,wide,L40S,,2.0," for i in range(3))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "builder.toml").write_text(RECIPE)
    assert main(["build", "builder.toml"]) == 1
    shown = capsys.readouterr()
    came = "no program with a speedup came out, so nothing is built: 3 rows are left out. "
    assert came in shown.err
    assert not shown.out
    assert main(["build", "builder.toml", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "LogError"
    assert open_archive(tmp_path / "me/mine").manifest == before


def test_a_query_that_fails_is_the_only_error(tmp_path: Path) -> None:
    """The name of the format is not blamed for it."""
    with pytest.raises(LogError, match="Binder") as raised:
        make(tmp_path, recipe=RECIPE.replace("x AS speedup", "xx AS speedup"))
    assert "right format" not in str(raised.value)


def test_another_cut_is_a_variant_of_its_own_split(tmp_path: Path) -> None:
    """``build-eval`` with options changes the archive's own definition."""
    path = make(tmp_path)
    made = remake_split(path, "eval", gpu="RTX 5090")
    assert (made.facts.name != "canonical", made.facts.rows) == (True, 4)
    assert remake_split(path, "eval").facts.name == "canonical"


def test_an_empty_split_says_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``build-eval`` says which role is missing where nothing is asked about."""
    make(tmp_path, recipe=RECIPE.replace('"held_out"', '"training"'))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["build-eval"])
    assert shown.exit_code == 0, shown.output
    assert 'role = "held_out"' in shown.output
    assert "Nothing is asked about wide (8 rows): its searches are not held out." in shown.output
    assert "me/mine: eval (canonical), 0 rows" in shown.output.replace("\\", "/")


def test_a_shipped_definition_asks_about_no_program_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``build-eval`` says so, and where the definition is to copy."""
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(cli, ["build-eval", "--split", "validity", "--json"]).stderr
    definition = Path(said.partition("Copy ")[2].partition(",")[0])
    assert (definition.name, definition.is_file()) == ("validity.toml", True)


def test_two_recipes_may_not_call_the_archive_differently(tmp_path: Path) -> None:
    """One archive has one name."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        recipe = RECIPE.replace('"mine"', f'"{name}"').replace("me/mine", f"me/{name}")
        make(tmp_path / name, recipe=recipe)
    with pytest.raises(RecipeError, match=r"different \[archive\]"):
        build([str(tmp_path / "a"), str(tmp_path / "b")], out=tmp_path / "both")


# -- a foreign task of our name


def test_a_task_of_our_name_is_ours_only_with_our_reference(tmp_path: Path) -> None:
    """``trimul`` with another reference is kept apart; with ours it is ours."""
    own = ("t1", "", "trimul", "L40S", "def t1(x): ...", 1.5, "def theirs(x): ...")
    ours = ("t2", "", "trimul", "L40S", "def t2(x): ...", 1.5, PROBLEMS["trimul"].reference)
    archive = open_archive(make(tmp_path, own, ours))
    found = {r["code"]: (r["problem"], r["family"]) for r in archive.arrow("kernels").to_pylist()}
    assert found["def t1(x): ..."] == ("mine.trimul", "other")
    assert found["def t2(x): ..."] == ("trimul", "gpu_mode")
    assert "not-our-problem" in archive.manifest.findings["by_code"]
