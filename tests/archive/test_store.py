"""Sources and staging area behind a URL."""

from __future__ import annotations

import io
import tarfile
import zipfile

import fsspec
import pytest
from support.puct import RunLog, program, recipe

from kernel_archive.archive import shards
from kernel_archive.archive.build import build_archive
from kernel_archive.archive.store import Store
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


def tree(directory):
    """The tables of an archive with their bytes."""
    return {
        p.relative_to(directory).as_posix(): p.read_bytes()
        for p in (directory / "data").rglob("*.parquet")
    }


def test_source_and_staging_area_in_a_bucket(bucket, logs, tmp_path, monkeypatch):
    """The archive is that of local files, byte for byte; a second build fetches no log."""
    here = build_archive([recipe_at(tmp_path / "here", logs)], out=tmp_path / "a", jobs=1)
    fsspec.filesystem("s3").put(str(logs), "bucket/logs", recursive=True)
    there = recipe_at(tmp_path / "there", "s3://bucket/logs")
    bucket.plan = {"logs/run_1": ["throttle", "break"], ".run": ["throttle"]}
    monkeypatch.setattr(shards, "SHARD_ROWS", 14)
    built = build_archive([there], out=tmp_path / "b", jobs=1, stage="s3://bucket/stage")
    assert built.logical_digest == here.logical_digest
    assert tree(tmp_path / "b") == tree(tmp_path / "a")
    assert sorted(fault for fault, *_ in bucket.done) == ["break", "throttle", "throttle"]
    bucket.reads.clear()
    again = build_archive([there], out=tmp_path / "b", jobs=1, stage="s3://bucket/stage")
    assert (again.unchanged, again.staged) == (True, 0)
    assert not [path for path in bucket.reads if "/logs/" in path]
    left = fsspec.filesystem("s3", use_listings_cache=False).find("bucket/stage")
    assert {name.rsplit(".", 1)[-1] for name in left} == {
        "bucket/stage/kernel-archive",
        "parquet",
        "run",
    }


def test_an_object_that_never_comes_whole_is_an_error(bucket, logs, tmp_path):
    """Half of a log is never taken for a log: the build ends with its name."""
    fsspec.filesystem("s3").put(str(logs), "bucket/logs", recursive=True)
    bucket.plan = {"logs/run_2/events": ["short"] * 50}
    with pytest.raises(
        RecipeError,
        match=r"download of bucket/logs/run_2/.* failed: .* bytes came, the listing says",
    ):
        build_archive(
            [recipe_at(tmp_path / "there", "s3://bucket/logs")], out=tmp_path / "b", jobs=1
        )
    assert not (tmp_path / "b").exists()


def test_what_a_worker_does_not_see_is_said(tmp_path):
    """A directory that is not there on a worker's machine is named, with the way out."""
    with pytest.raises(KernelArchiveError, match="All workers must see the fragments"):
        Store(str(tmp_path / "nowhere")).write("x", ".bin", lambda path: path.write_bytes(b"x"))


# Archive files as sources.


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


# A build whose work goes to the workers of a Dask cluster.


@pytest.mark.slow
def test_a_cluster_builds_the_same_bytes(cluster, logs, tmp_path):
    """Tables and manifest are those of one process."""
    recipe_file = recipe_at(tmp_path, logs)
    build_archive([recipe_file], out=tmp_path / "a", jobs=1)
    dask = {"engine": "dask", "scheduler": cluster}
    build_archive([recipe_file], out=tmp_path / "b", **dask)
    assert tree(tmp_path / "b") == tree(tmp_path / "a")
    assert (tmp_path / "b/manifest.json").read_bytes() == (
        tmp_path / "a/manifest.json"
    ).read_bytes()
    (logs / "run_3/events.jsonl").write_text("no events\n")
    with pytest.raises(LogError, match="run_3"):
        build_archive([recipe_file], out=tmp_path / "c", strict=True, **dask)
