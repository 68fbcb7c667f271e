"""Tests of plans: expansion, slips, and the shipped example."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_archive.errors import RecipeError
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_measure.plan import read_plan

PLAN = Path(__file__).with_name("plan") / "plan.toml"
HEAD = 'name = "x"\ngpu = "H200"\n'
SEARCH = '\n[[search]]\nmethod = "tree_search"\ntask = "trimul"\n'
EXAMPLES = Path(__file__).parents[2] / "examples" / "search"


def test_plan_is_expanded():
    """Lists stand for one run each, under names of their own."""
    plan = read_plan(PLAN)
    assert [r.key for r in plan.runs] == [
        "tree_search/rehearsal__s1",
        "agentic/rehearsal__t_a00",
    ]
    assert plan.settings.max_runs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "Invalid value"),
        ("name = " + "1" * 5000, "not valid TOML"),
        (HEAD + "search = []\nwrong = 1", "wrong"),
        (HEAD + "[settings]\nmax_rnus = 3" + SEARCH, "max_rnus"),
        (HEAD + SEARCH.replace("tree_search", "magic"), "magic"),
        (HEAD + SEARCH.replace("tree_search", "local_search"), "every search wants speed"),
        (HEAD + SEARCH + 'seed=[1,2]\nname="s"', "more than one"),
    ],
)
def test_wrong_plan_is_refused_with_its_place(tmp_path, text, message):
    """Every slip in a plan is a recipe error that names what is wrong."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_plan(path)


def test_missing_plan_is_refused(tmp_path):
    """A file that is not there."""
    with pytest.raises(RecipeError, match="there is no such plan"):
        read_plan(tmp_path / "no.toml")


def test_example_plan_covers_the_six_tasks():
    """The shipped plan reads, starts from a plain PyTorch program, and searches every task."""
    plan = read_plan(EXAMPLES / "plan.toml")
    assert {run.task for run in plan.runs} == set(GPU_MODE_TASKS)
