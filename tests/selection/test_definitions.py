"""Reading split definitions."""

from __future__ import annotations

import pytest

from kernel_archive.errors import RecipeError, UsageError
from kernel_archive.problems import GPU_MODE_TASKS, HELD_OUT_PROBLEMS
from kernel_archive.selection import definitions
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.splits import SPLITS
from kernel_archive.storage import content_path
from kernel_archive.toml_files import toml_beside


def changed(tmp_path, name, old, new):
    """A copy of a shipped definition with one text replaced."""
    text = (content_path("splits") / f"{name}.toml").read_text()
    assert old in text
    path = tmp_path / f"{name}.toml"
    path.write_text(text.replace(old, new))
    return path


def test_shipped_definitions_are_the_contract():
    """Problems and what is said of builders; all else the facts of frozen splits record."""
    evaluation, discovery = load_definition("eval"), load_definition("discovery")
    assert tuple(evaluation.tasks) == GPU_MODE_TASKS
    assert load_definition("eval_problems").problems == sorted(HELD_OUT_PROBLEMS)
    assert load_definition("eval_cuda").problems == evaluation.problems
    for name in ("eval_search", "discovery_search", "validity"):
        assert load_definition(name).builders == discovery.without_builders


@pytest.mark.parametrize(
    ("name", "old", "new", "field"),
    [
        ("eval", "cap = 10", "cap = 0", "cap"),
        ("eval", "cap = 10", "cap = 99999999999", "cap"),
        ("eval", 'scheme = "paper"', 'scheme = "rounded"', "scheme"),
        ("eval", '"trimul",', '"level3/48_Mamba2",', "tasks"),
        ("eval", 'gpu = "A100-80GB"', 'gpu = "a100_80gb"', "gpu"),
        ("eval", '["artificial", "unfit"]', '["slow"]', "exclude_flags[0]"),
        ("discovery", '"held_out", "archive"', '"training"', "roles[0]"),
        ("eval_close", "closest = 1.05", "closest = inf", "closest"),
        ("train", "seed = 0", "seed = -1", "seed"),
        ("train", "seed = 0", "", None),
        ("eval", "cap = 10", 'cap = 10\nrole = "held_out"', None),
        ("train", "seed = 0", "seed = 0\nstrata = [0.0, 1.0]", None),
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
    assert field or new.split("\n")[-1].split(" ")[0] in finding.message


def test_broken_and_missing_files(tmp_path):
    """A file that is no TOML or isn't there is a finding, not a traceback."""
    with pytest.raises(RecipeError, match="not valid TOML"):
        load_definition("eval", changed(tmp_path, "eval", "cap = 10", "cap ="))
    with pytest.raises(RecipeError, match="no such split definition"):
        load_definition("eval", tmp_path / "none.toml")
    with pytest.raises(UsageError, match="Choose one of: eval, eval_problems, eval_cuda"):
        load_definition("test")


def test_changes_are_checked():
    """A wrong value is refused like in a file."""
    with pytest.raises(RecipeError, match="cap"):
        with_changes(load_definition("eval"), cap=0)


def test_every_key_is_explained():
    """In ``keys.toml``, and nothing else is."""
    tables = toml_beside(definitions.__file__, "keys.toml").values()
    explained = {key for meanings in tables for key in meanings}
    shipped = map(load_definition, SPLITS)
    assert explained == {key for each in shipped for key in each.__struct_encode_fields__}
