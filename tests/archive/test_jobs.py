"""Recipes that a stranger wrote: whatever stands in them, one clear error."""

from __future__ import annotations

import pytest
from support.puct import RunLog, program, recipe

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.errors import RecipeError
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation


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


def test_parts_of_a_path_are_named(tmp_path):
    """``{name}`` in a path matches like ``*``."""
    for name in ("L40S/level2.csv", "H100/level3.csv"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        (tmp_path / "data" / name).write_text('src,x,n\n"def a(): ...",2.0,7\n')
    text = """
name = "made"
licence = "MIT"
description = "Made."

[[source]]
path = "data/{card}/level{level}.csv"
format = "sql"
role = "archive"
generation_method = "independent"
gpu = "{card}"
variables = { level = "{level}" }
query = '''
SELECT src AS code, x AS speedup,
  'kernelbench_l' || getvariable('level') || '_p' || n AS problem, '{card}' AS model
FROM read_csv(getvariable('file'))'''
"""
    (tmp_path / "builder.toml").write_text(text)
    jobs = jobs_of([find_recipe(str(tmp_path))])
    assert [(j.search_id, j.source.gpu) for j in jobs] == [
        ("made/data/H100/level3", "H100"),
        ("made/data/L40S/level2", "L40S"),
    ]
    (first, *_) = [r for r in READERS["sql"].read(jobs[0].run_files) if isinstance(r, Evaluation)]
    assert first.problem == "kernelbench_l3_p7"
    assert first.model == "{card}"  # names of files are data: the text of a query stays as it is
    (tmp_path / "builder.toml").write_text(text.replace("{card}/", "{level}/"))
    with pytest.raises(RecipeError, match="stand once"):
        find_recipe(str(tmp_path))
