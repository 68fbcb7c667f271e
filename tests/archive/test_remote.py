"""Sources behind URLs: names from a listing stay inside, whatever the listing says."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import PurePosixPath

import pytest
from support.puct import RunLog, program, recipe

from kernel_archive.archive.build import build_archive
from kernel_archive.archive.store import _place
from kernel_archive.errors import RecipeError


def archive_of(path, names, data):
    """A zip or tar file with the same content under every name."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as made:
            for name in names:
                made.writestr(name, data)
    else:
        with tarfile.open(path, "w") as made:
            for name in names:
                facts = tarfile.TarInfo(name)
                facts.size = len(data)
                made.addfile(facts, io.BytesIO(data))


def remote_recipe(tmp_path, url):
    """A recipe whose one source is behind a URL."""
    path = recipe(tmp_path / "src", ("PLACE", "held_out"))
    path.write_text(path.read_text().replace("PLACE", url))
    return str(path)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    "name", ["logs/../../../../escaped/x.jsonl", "logs/../x/../../../../escaped/y.jsonl"]
)
def test_a_member_that_leads_out_is_refused(tmp_path, kind, name):
    """Nothing is written outside of the stage, and the member is named."""
    archive_of(tmp_path / f"evil.{kind}", ["logs/fine.jsonl", name], b"{}\n")
    url = f"{kind}://**/*.jsonl::file://{tmp_path}/evil.{kind}"
    with pytest.raises(RecipeError, match="outside of the folder"):
        build_archive([remote_recipe(tmp_path, url)], out=tmp_path / "deep/er/out", jobs=1)
    assert not [p for p in tmp_path.rglob("*.jsonl") if ".stage" not in p.as_posix()]
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a/logs/x.jsonl", ("x.jsonl",)),
        ("a/logs/run/x.jsonl", ("run", "x.jsonl")),
        ("elsewhere/x.jsonl", ("x.jsonl",)),
        ("a/logs/../x.jsonl", None),
        ("a/logs/run/..", None),
        ("..", None),
        ("/", None),
        ("", None),
        ("a/logs", None),
        ("a/logs/..\\x", None),
        ("a/logs/x\0y", None),
    ],
)
def test_where_a_listed_file_goes(name, parts):
    """Below the fixed part of the pattern, by its last name elsewhere."""
    assert _place(name, PurePosixPath("a/logs")) == parts


def test_a_zip_of_logs_is_read(tmp_path):
    """Runs inside an archive file are built like any others."""
    log = RunLog()
    log.child(log.root(program("seed"), 1.0), program("fast"), 2.0)
    folder = log.write(tmp_path / "run")
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as made:
        for path in sorted(folder.iterdir()):
            made.write(path, f"logs/run/{path.name}")
    url = f"zip://logs/*/events.jsonl::file://{tmp_path}/logs.zip"
    assert (
        build_archive([remote_recipe(tmp_path, url)], out=tmp_path / "out", jobs=1).rows["kernels"]
        == 2
    )
