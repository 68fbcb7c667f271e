"""The merge, and where files and row groups end."""

from __future__ import annotations

import json
import random

import pyarrow.parquet as pq
import pytest
from support.archives import validate_archive
from support.puct import RunLog, program, recipe

from kernel_archive.archive import consolidate, shards, stage
from kernel_archive.archive.build import build_archive
from kernel_archive.archive.open import open_archive
from kernel_archive.errors import KernelArchiveError
from kernel_archive.ids import program_id


def tree(directory):
    """Every file of an archive with its bytes."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in directory.rglob("*")
        if p.is_file()
    }


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Two builders, one superseding the other, with programs in common, near copies, failures."""
    place = tmp_path_factory.mktemp("logs")
    rng = random.Random(1)
    for builder, serial in (("old", 0), ("new", 500)):
        used = set()
        for n in range(4):
            slow = 1.0 if n % 3 else 1.4
            run = RunLog(serial=serial + 1000 * (n + 1), reference_ns=(1e5 * slow, 2e5))
            root = run.root(program("seed"), 1.0 + rng.random() / 10)
            for _k in range(rng.randint(3, 9)):
                text = program(f"p{rng.randrange(30)}") + rng.choice(["", "# copy\n"])
                used.add(text)
                if n == 3 or rng.random() < 0.8:
                    run.child(root, text, 1 + 3 * rng.random())
                else:
                    run.child(
                        root, text, outcome=rng.choice(["incorrect", "infrastructure_failure"])
                    )
            run.write(place / builder / f"logs/{'held' if n < 3 else 'train'}/run_{n}")
        path = recipe(
            place / builder, ("logs/held/*", "held_out"), ("logs/train/*", "training"), name=builder
        )
        if builder == "new":
            readings = 'readings = "readings.jsonl"'
            path.write_text(
                path.read_text().replace(
                    "licence", f'supersedes = ["old"]\nunanimous = true\n{readings}\nlicence'
                )
            )
            # Some of its programs were found unfit, wherever a cut puts them.
            (place / builder / "readings.jsonl").write_text(
                "".join(
                    json.dumps({"program": program_id(text), "useless": "yes", "submit": "yes"})
                    + "\n"
                    for text in sorted(used)[::3]
                )
            )
    return [str(place / name / "builder.toml") for name in ("old", "new")]


@pytest.fixture(scope="module")
def whole(recipes, tmp_path_factory):
    """The archive made in one part."""
    out = tmp_path_factory.mktemp("whole") / "out"
    build_archive(recipes, out=out, jobs=1)
    assert validate_archive(out) == []
    assert open_archive(out).manifest.reports["flags"]["unfit"] > 3
    return out


@pytest.mark.parametrize("rows", [1, 9])
def test_the_same_bytes_whatever_is_held(recipes, whole, tmp_path, monkeypatch, rows):
    """Few rows held at a time and small fragments' blocks."""
    monkeypatch.setattr(consolidate, "CHUNK_ROWS", rows)
    monkeypatch.setattr(stage, "_GROUP_ROWS", 2)
    build_archive(recipes, out=tmp_path / "out", jobs=1)
    assert tree(tmp_path / "out") == tree(whole)
    assert not list((tmp_path / ".out.stage").glob("merge*"))


def test_a_merge_that_does_not_fit_is_an_error(recipes, tmp_path, monkeypatch):
    """Too little memory for the merge ends the build, with what is kept."""
    monkeypatch.setattr(consolidate, "MEMORY_LIMIT", "1MB")
    with pytest.raises(KernelArchiveError, match=r"merge could not go on.*fragments are kept"):
        build_archive(recipes, out=tmp_path / "a", jobs=1)
    assert not (tmp_path / "a").exists()


def test_files_end_where_they_would(recipes, tmp_path, monkeypatch):
    """Small files and groups: each file ends with a group, and the archive is valid."""
    for name, value in {
        "SHARD_ROWS": 12,
        "GROUP_MIN": 3,
        "GROUP_FULL": 5,
        "GROUP_MAX": 8,
        "GROUP_RATE": 4,
    }.items():
        monkeypatch.setattr(shards, name, value)
    build_archive(recipes, out=tmp_path / "b", jobs=1)
    assert validate_archive(tmp_path / "b") == []
    files = sorted((tmp_path / "b/data/evaluations").iterdir())
    assert len(files) > 3
    counts = [
        pq.read_metadata(f).row_group(g).num_rows
        for f in files
        for g in range(pq.read_metadata(f).num_row_groups)
    ]
    assert max(counts) <= 8
