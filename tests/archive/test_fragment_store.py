"""Staging: what was read is kept, here or behind a URL, and believed only as it was written."""

from __future__ import annotations

import fsspec
import pytest
from support.builds import build_archive
from support.folders import contents
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive import shards, stage
from kernel_archive.archive.fragment_store import Store
from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.archive.stage import stage_run
from kernel_archive.errors import KernelArchiveError, LogError, RecipeError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def bucket(monkeypatch):
    """The faults of a store."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    from support.s3 import s3

    with s3(monkeypatch) as faults:
        yield faults


@pytest.fixture
def logs(tmp_path):
    """A folder of four runs."""
    for n in range(4):
        run = RunLog(serial=1000 * (n + 1))
        root = run.root(program("seed"), 1.0)
        for k in range(6):
            run.child(root, program(f"p{n}_{k}"), 1.5 + k / 3 + n / 10)
        run.write(tmp_path / f"src/logs/run_{n}")
    return tmp_path / "src/logs"


def recipe_at(folder, place):
    """A recipe whose one source is there."""
    return str(recipe(folder, (f"{place}/*", "held_out")))


def test_source_and_staging_area_in_a_bucket(bucket, logs, tmp_path, monkeypatch):
    """The archive is that of local files, byte for byte; a second build fetches no log."""
    here = build_archive([recipe_at(tmp_path / "here", logs)], out=tmp_path / "a", jobs=1)
    fsspec.filesystem("s3").put(str(logs), "bucket/logs", recursive=True)
    there = recipe_at(tmp_path / "there", "s3://bucket/logs")
    bucket.plan = {"logs/run_1": ["throttle", "break"], ".run": ["throttle"]}
    monkeypatch.setattr(shards, "SHARD_ROWS", 14)
    built = build_archive([there], out=tmp_path / "b", jobs=1, stage="s3://bucket/stage")
    assert built.logical_digest == here.logical_digest
    assert contents(tmp_path / "b/data") == contents(tmp_path / "a/data")
    assert sorted(fault for fault, *_ in bucket.done) == ["break", "throttle", "throttle"]
    bucket.reads.clear()
    again = build_archive([there], out=tmp_path / "b", jobs=1, stage="s3://bucket/stage")
    assert (again.unchanged, again.staged) == (True, 0)
    assert not [path for path in bucket.reads if "/logs/" in path]
    left = fsspec.filesystem("s3", use_listings_cache=False).find("bucket/stage")
    endings = {name.rsplit(".", 1)[-1] for name in left}
    assert endings == {"bucket/stage/kernel-archive", "parquet", "run"}


def test_an_object_that_never_comes_whole_is_an_error(bucket, logs, tmp_path):
    """Half of a log is never taken for a log: the build ends with its name."""
    fsspec.filesystem("s3").put(str(logs), "bucket/logs", recursive=True)
    bucket.plan = {"logs/run_2/events": ["short"] * 50}
    there = recipe_at(tmp_path / "there", "s3://bucket/logs")
    words = r"download of bucket/logs/run_2/.* failed: .* bytes came, the listing says"
    with pytest.raises(RecipeError, match=words):
        build_archive([there], out=tmp_path / "b", jobs=1)
    assert not (tmp_path / "b").exists()


def test_what_a_worker_does_not_see_is_said(tmp_path):
    """A directory that is not there on a worker's machine is named, with the way out."""
    with pytest.raises(KernelArchiveError, match="All workers must see the fragments"):
        Store(str(tmp_path / "nowhere")).write("x", ".bin", b"x")


@pytest.mark.slow
def test_a_cluster_builds_the_same_bytes(cluster, logs, tmp_path):
    """Tables and manifest are those of one process."""
    recipe_file = recipe_at(tmp_path, logs)
    build_archive([recipe_file], out=tmp_path / "a", jobs=1)
    dask = {"engine": "dask", "scheduler": cluster}
    build_archive([recipe_file], out=tmp_path / "b", **dask)
    assert contents(tmp_path / "b/data") == contents(tmp_path / "a/data")
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in "ab"]
    assert manifests[0] == manifests[1]
    (logs / "run_3/events.jsonl").write_text("no events\n")
    with pytest.raises(LogError, match="run_3"):
        build_archive([recipe_file], out=tmp_path / "c", strict=True, **dask)


@pytest.fixture
def job(tmp_path):
    """One small run."""
    log = RunLog()
    root = log.root(program("seed"), 1.0)
    log.child(root, program("fast"), 3.0)
    log.write(tmp_path / "src/logs/run")
    (only,) = jobs_of([find_recipe(str(recipe(tmp_path / "src", ("logs/*", "held_out"))))])
    (tmp_path / "stage").mkdir()
    return only


def test_any_damage_to_a_fragment_is_found(job, tmp_path):
    """Wherever a bit flips, in the rows or in the facts beside them, and where a file is cut or
    gone, the run is read again.
    """
    place = tmp_path / "stage"
    first, _ = stage_run(job, Store(str(place)))
    for victim in sorted(place.iterdir()):
        whole = victim.read_bytes()
        bits = range(0, len(whole), max(1, len(whole) // 40))
        flipped = (whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in bits)
        for damage in (None, b"", b"x", *flipped):
            victim.unlink() if damage is None else victim.write_bytes(damage)
            assert stage_run(job, Store(str(place))) == (first, True)
            assert victim.read_bytes() == whole


def test_a_run_that_takes_all_memory_is_named(job, tmp_path, monkeypatch):
    """It fails alone, with its name, and leaves nothing staged."""

    def too_much(rows):
        raise MemoryError

    monkeypatch.setattr(stage, "fragment_table", too_much)
    with pytest.raises(LogError, match="made/run takes more memory"):
        stage_run(job, Store(str(tmp_path / "stage")))
    assert list((tmp_path / "stage").iterdir()) == []
