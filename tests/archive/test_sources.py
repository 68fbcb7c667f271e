"""Sources in a Git repository: a commit and nothing else, as plain files."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.sources import fetch_source
from kernel_archive.errors import RecipeError
from kernel_archive.pipeline import build

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """
name = "theirs"
licence = "MIT"
description = "A table in a repository."

[[source]]
path = "{url}"
format = "sql"
query = "SELECT problem, code, speedup, 'H100' AS gpu FROM read_csv('t.csv', header = true)"
role = "training"
generation_method = "agent"
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody."""
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with a table, a link that leads out and a file beside; its commit."""
    theirs = tmp_path / "theirs"
    (theirs / "results/deep").mkdir(parents=True)
    git(theirs, "init", "--quiet")
    (theirs / "results/t.csv").write_text('problem,code,speedup\np,"def a(): ...",2.5\n')
    (theirs / "results/deep/x.json").write_text("{}")
    (theirs / "results/passwd").symlink_to("/etc/passwd")
    (theirs / "other.txt").write_text("other")
    git(theirs, "add", ".")
    git(theirs, "commit", "--quiet", "-m", "one")
    return theirs, git(theirs, "rev-parse", "HEAD")


def test_a_build_reads_one_commit(repository: tuple[Path, str], tmp_path: Path) -> None:
    """What the branch says later is not read; a local clone gives the same archive."""
    theirs, commit = repository
    own = tmp_path / "own"
    own.mkdir()
    address = f"git+file://{theirs}@{commit}#results"
    (own / "builder.toml").write_text(RECIPE.format(url=address))
    clone = build([str(own)], out=tmp_path / "clone", source=theirs)
    (theirs / "results/t.csv").write_text('problem,code,speedup\np,"def b(): ...",9.5\n')
    git(theirs, "commit", "--quiet", "-am", "two")
    fetched = build([str(own)], out=tmp_path / "fetched")
    assert open_archive(fetched.path).arrow("kernels")["speedup"].to_pylist() == [2.5]
    assert fetched.logical_digest == clone.logical_digest
    theirs.rename(tmp_path / "gone")  # what was fetched is not fetched again
    assert build([str(own)], out=tmp_path / "fetched").unchanged


def test_the_tree_is_written_as_plain_files(repository: tuple[Path, str], tmp_path: Path) -> None:
    """A link is a file that holds its words; nothing beside the path comes."""
    theirs, commit = repository
    folder, pattern = fetch_source(f"git+file://{theirs}@{commit}#results/*.csv", tmp_path / "s")
    assert [path.name for path in folder.glob(pattern)] == ["t.csv"]
    assert (folder / "passwd").read_text() == "/etc/passwd"
    assert not (folder / "passwd").is_symlink()
    assert not (folder.parent / "other.txt").exists()
    whole, name = fetch_source(f"git+file://{theirs}@{commit}#.", tmp_path / "s")
    assert (whole / name / "other.txt").read_text() == "other"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url, _: url.replace("#results", "#none"), "checkout failed"),
        (lambda url, _: url.replace("#results", "#../x"), "not the address of a commit"),
        (lambda url, _: url.replace("#results", ""), "not the address of a commit"),
        (lambda url, commit: url.replace(commit, commit[:7]), "not the address of a commit"),
        (lambda url, commit: url.replace(commit, "0" * 40), "fetch failed"),
        (lambda url, _: url.replace("file://", "file:///no"), "fetch failed"),
        (lambda url, _: url.replace("git+file", "git+ext"), "not the address of a commit"),
    ],
)
def test_what_is_no_commit(
    repository: tuple[Path, str], tmp_path: Path, change: object, words: str
) -> None:
    """One error names the address and the way out; nothing stays behind."""
    theirs, commit = repository
    url = change(f"git+file://{theirs}@{commit}#results", commit)  # type: ignore[operator]
    with pytest.raises(RecipeError, match=words) as caught:
        fetch_source(url, tmp_path / "s")
    assert caught.value.findings[0].value == url
    assert not list((tmp_path / "s").rglob("*.csv"))
