"""Recipes that a stranger wrote: whatever stands in them, one clear error."""

from __future__ import annotations

import pytest
from support.puct import RunLog, program, recipe

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.errors import RecipeError


@pytest.fixture
def source(tmp_path):
    """A recipe of one run."""
    log = RunLog()
    log.root(program("seed"), 1.0)
    log.write(tmp_path / "src/logs/run")
    return recipe(tmp_path / "src", ("logs/*", "held_out"))


@pytest.mark.parametrize(
    "path", ["", ".", "/", "*/" * 200, "**/" * 200, "logs/\\u0000", "a" * 5000, "/" * 3, "~"]
)
def test_a_path_that_names_nothing_is_one_clear_error(source, path):
    """Empty, absolute, endless and impossible paths: file and field are named."""
    source.write_text(source.read_text().replace("logs/*", path))
    with pytest.raises(RecipeError) as caught:
        jobs_of([find_recipe(str(source))])
    assert caught.value.findings[0].field == "source[0].path"


def test_a_path_that_leads_up_and_down_again_is_followed(source, tmp_path):
    """``..`` in the middle of a path, and an absolute path, name the run as the plain one does."""
    plain = source.read_text()
    (wanted,) = jobs_of([find_recipe(str(source))])
    for path in ("../src/logs/*", str(tmp_path / "src/logs/*")):
        source.write_text(plain.replace("logs/*", path))
        (found,) = jobs_of([find_recipe(str(source))])
        assert found.path == wanted.path
        assert found.search_id == "made/run"
