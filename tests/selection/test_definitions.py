"""Reading split definitions."""

from __future__ import annotations

import pytest

from kernel_archive.errors import RecipeError, UsageError
from kernel_archive.problems import GPU_MODE_TASKS, HELD_OUT_PROBLEMS
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.storage import content_path


def changed(tmp_path, name, old, new):
    """A copy of a shipped definition with one text replaced."""
    text = (content_path("splits") / f"{name}.toml").read_text()
    assert old in text
    path = tmp_path / f"{name}.toml"
    path.write_text(text.replace(old, new))
    return path


def test_shipped_definitions_are_the_contract():
    """Six tasks, cap 10, A100-80GB, 500 pairs, seed 0, five strata, three cutoffs."""
    evaluation, discovery, train = (load_definition(n) for n in ("eval", "discovery", "train"))
    assert tuple(evaluation.tasks) == GPU_MODE_TASKS
    assert (evaluation.cap, evaluation.gpu, evaluation.near_copy) == (10, "A100-80GB", 0.7)
    assert evaluation.exclude_flags == discovery.exclude_flags == ["artificial", "unfit"]
    assert (evaluation.natural, evaluation.languages) == (True, ["triton"])
    problems, cuda = load_definition("eval_problems"), load_definition("eval_cuda")
    search, edits = load_definition("eval_search"), load_definition("discovery_search")
    assert (search.builders, edits.builders) == (discovery.without_builders,) * 2
    assert problems.problems == sorted(HELD_OUT_PROBLEMS)
    assert (cuda.languages, cuda.problems) == (["cuda"], evaluation.problems)
    assert [d.measured for d in (evaluation, problems, cuda)] == [3, 3, 1]
    assert {d.scheme for d in (evaluation, discovery, train)} == {"paper"}
    assert discovery.methods == ["tree_search", "bin_filling", "agentic"]
    assert (discovery.cutoffs, discovery.roles) == ([1.25, 1.5, 2.0], ["held_out", "archive"])
    assert (train.pairs_per_task, train.seed, train.strata) == (500, 0, [0.0, 0.1, 0.5, 1.0, 2.0])
    assert (train.priority, train.exclude_flags) == (["seed", "parent_edit", "pair"], [])


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("eval", "cap = 10", "cap = 0", "cap"),
        ("eval", "cap = 10", "cap = 99999999999", "cap"),
        ("eval", 'scheme = "paper"', 'scheme = "rounded"', "scheme"),
        ("eval", 'role = "held_out"', 'role = "training"', "role"),
        ("eval", '"trimul",', '"level3/48_Mamba2",', "tasks"),
        ("eval", 'gpu = "A100-80GB"', 'gpu = "a100_80gb"', "gpu"),
        ("eval", '["artificial", "unfit"]', '["slow"]', "exclude_flags[0]"),
        ("discovery", '"held_out", "archive"', '"training"', "roles[0]"),
        ("discovery", "1.25", "inf", "cutoffs[0]"),
        ("train", "0.0, 0.1", "0.1", "strata"),
        ("train", "0.5, 1.0", "1.0, 0.5", "strata"),
        ("train", "1.0, 2.0", "1.0, nan", "strata[4]"),
        ("train", '"parent_edit", ', "", "priority"),
        ("train", "seed = 0", "seed = -1", "seed"),
        ("train", "seed = 0", "", None),
        ("eval", "cap = 10", "capp = 10", None),
    ],
)
def test_wrong_values_name_file_and_field(tmp_path, name, old, new, field):
    """A wrong, missing or unknown value is refused with file, field and the fields there are."""
    path = changed(tmp_path, name, old, new)
    with pytest.raises(RecipeError) as error:
        load_definition(name, path)
    (finding,) = error.value.findings
    assert (finding.file, finding.field) == (str(path), field)
    assert "exclude_flags" in finding.fix


def test_broken_and_missing_files(tmp_path):
    """A file that is no TOML or isn't there is a finding, not a traceback."""
    with pytest.raises(RecipeError, match="not valid TOML"):
        load_definition("eval", changed(tmp_path, "eval", "cap = 10", "cap ="))
    with pytest.raises(RecipeError, match="no such split definition"):
        load_definition("eval", tmp_path / "none.toml")
    with pytest.raises(UsageError, match="Choose one of: eval, eval_problems, eval_cuda"):
        load_definition("test")


def test_changes_are_checked():
    """Fields can be replaced, None leaves one alone and a wrong value is refused like in a file."""
    assert with_changes(load_definition("eval"), cap=3, scheme=None).cap == 3
    with pytest.raises(RecipeError, match="cap"):
        with_changes(load_definition("eval"), cap=0)
