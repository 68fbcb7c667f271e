"""Sources elsewhere: one commit of a Git repository as plain files, files in a zip."""

from __future__ import annotations

import subprocess
import zipfile
from typing import TYPE_CHECKING

import pytest
from support.programs import program
from support.puct import RunLog, recipe

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
        (lambda url, commit: url.replace(commit, commit[:7]), "not the address of a commit"),
        (lambda url, commit: url.replace(commit, "0" * 40), "fetch failed"),
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


def from_zip(folder: Path, pattern: str, members: dict[str, bytes]) -> str:
    """A recipe whose source is in a zip file with these members."""
    with zipfile.ZipFile(folder / "logs.zip", "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    path = recipe(folder / "src", ("PLACE", "held_out"))
    url = f"zip://{pattern}::file://{folder}/logs.zip"
    path.write_text(path.read_text().replace("PLACE", url))
    return str(path)


@pytest.mark.parametrize("name", ["logs/../../../../up/x.jsonl", "logs/../x/../../../up/y.jsonl"])
def test_a_member_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is written outside of the work folder, and the member is named."""
    path = from_zip(tmp_path, "**/*.jsonl", {"logs/fine.jsonl": b"{}\n", name: b"{}\n"})
    with pytest.raises(RecipeError, match="outside of the folder"):
        build([path], out=tmp_path / "deep/er/out")
    assert not [p for p in tmp_path.rglob("*.jsonl") if ".stage" not in p.as_posix()]


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """The service is not to blame."""
    with pytest.raises(RecipeError, match="Install adlfs") as refused:
        fetch_source("abfs://container/logs/*", tmp_path, beside=False)
    assert "network" not in str(refused.value)


def test_a_zip_of_logs_is_read(tmp_path: Path) -> None:
    """Runs inside an archive file are built like any others."""
    log = RunLog()
    log.child(log.root(program("seed"), 1.0), program("fast"), 2.0)
    files = sorted(log.write(tmp_path / "run").iterdir())
    members = {f"logs/run/{file.name}": file.read_bytes() for file in files}
    path = from_zip(tmp_path, "logs/*/events.jsonl", members)
    assert build([path], out=tmp_path / "out").rows["kernels"] == 2
