"""Building: same bytes however it is run, incremental, whole after a kill."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.archives import validate_archive
from support.builds import build_archive
from support.folders import contents
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive import build as build_module
from kernel_archive.archive import consolidate, shards, stage
from kernel_archive.archive.consolidate import superseding_pairs
from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.manifest import read_manifest
from kernel_archive.archive.recipe import find_recipe
from kernel_archive.archive.swap import locked_work_folder, replaced_directory, work_folder_of
from kernel_archive.errors import KernelArchiveError, LogError, RecipeError, TargetExistsError


def write_runs(folder, count=4, first=0):
    """So many small runs under ``logs/``."""
    for n in range(first, first + count):
        log = RunLog(serial=10_000 * (n + 1))
        root = log.root(program(f"seed_{n}"), 1.0)
        for i in range(5):
            log.child(root, program(f"p_{n}_{i}"), 0.5 + i * 0.7)
        log.write(folder / f"logs/run_{n}")


@pytest.fixture
def source(tmp_path):
    """Four runs and their recipe."""
    write_runs(tmp_path / "src")
    return recipe(tmp_path / "src", ("logs/*", "held_out"))


@pytest.mark.parametrize(
    ("module", "changes", "jobs"),
    [
        (build_module, {"PARALLEL_BYTES": 0}, 2),
        (stage, {"GROUP_ROWS": 2}, 1),
        (consolidate, {"SMALL_BYTES": 0, "CHUNK_ROWS": 1}, 1),
    ],
)
def test_the_same_bytes_however_it_is_run(tmp_path, source, monkeypatch, module, changes, jobs):
    """Two processes, small blocks of fragments, few rows merged at once; nothing is left over."""
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    build_archive([str(source)], out=tmp_path / "b", jobs=jobs)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert not list((tmp_path / ".b.stage").glob("merge*"))


def test_a_build_reads_what_is_new(tmp_path, source):
    """Unchanged, it touches no file; one more run makes one fragment, as from nothing."""
    first = build_archive([str(source)], out=tmp_path / "a", jobs=1)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")}
    second = build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert (first.unchanged, first.staged) == (False, 4)
    assert (second.unchanged, second.staged) == (True, 0)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*")} == before
    write_runs(tmp_path / "src", count=1, first=9)
    again = build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert (again.staged, again.runs) == (1, 5)
    build_archive([str(source)], out=tmp_path / "b", jobs=1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_release_is_never_overwritten_silently(tmp_path, source):
    """Another content under or over a release's place is refused, and goes through with replace."""
    build_archive([str(source)], out=tmp_path / "a", jobs=1, version="1.0.0")
    before = contents(tmp_path / "a")
    write_runs(tmp_path / "src", count=1, first=9)
    with pytest.raises(TargetExistsError, match=r"holds release 1\.0\.0"):
        build_archive([str(source)], out=tmp_path / "a", jobs=1, version="1.0.0")
    assert contents(tmp_path / "a") == before
    result = build_archive([str(source)], out=tmp_path / "a", jobs=1, version="1.1.0", replace=True)
    assert (result.version, result.replaced) == ("1.1.0", "1.0.0")


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path, source):
    """Neither a folder with other things nor a file is written to."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.tex").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("a", "not an archive"), ("pipe", "not a folder")):
        with pytest.raises(TargetExistsError, match=words):
            build_archive([str(source)], out=tmp_path / name, jobs=1)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "pipe").is_dir()


def test_the_same_run_twice_is_refused(tmp_path):
    """A copy of a run, as held out and as training, would leak; it is named."""
    log = RunLog()
    log.root(program("seed"), 1.0)
    log.write(tmp_path / "src/held/run")
    log.write(tmp_path / "src/train/run_copy")
    path = recipe(tmp_path / "src", ("held/*", "held_out"), ("train/*", "training"))
    with pytest.raises(RecipeError, match="as held_out and as training"):
        build_archive([str(path)], out=tmp_path / "a", jobs=1)
    assert not (tmp_path / "a").exists()


EXCLUDE = '[[exclude]]\nsearch = "{}"\nnode = "1"\nreason = "x"\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("logs/*", "nothing/*"), "matches no file"),
        (lambda t: t + 'gpu = "L40S"\n', "contradict|the recipe says 'L40S'"),
        (lambda t: t + 'problem = "trimul"\n', "the recipe says 'trimul'"),
        (lambda t: t + EXCLUDE.format("nope"), "names a search"),
        (lambda t: t + EXCLUDE.format("run_0"), "names node '1'"),
        (lambda t: t + "[[source]\n", "not valid TOML"),
        (lambda t: t.replace('name = "made"', 'name = "../evil"'), "name"),
    ],
)
def test_a_faulty_recipe_is_one_clear_error(tmp_path, source, change, message):
    """Paths, contradictions, exclude entries and what is no recipe at all."""
    source.write_text(change(source.read_text()))
    with pytest.raises(RecipeError, match=message) as caught:
        build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert caught.value.findings[0].file.endswith("builder.toml")
    assert not (tmp_path / "a").exists()


def test_a_damaged_line_is_reported_and_the_rest_kept(tmp_path, source):
    """Line and file are named, the count stands in the manifest."""
    log = tmp_path / "src/logs/run_1/events.jsonl"
    lines = log.read_text().splitlines()
    lines[9] = lines[9][:40]
    log.write_text("\n".join(lines) + "\n")
    result = build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert result.findings >= 1
    assert (result.shown[0].file, result.shown[0].line) == ("logs/run_1/events.jsonl", 10)
    assert read_manifest(tmp_path / "a").findings["total"] == result.findings
    with pytest.raises(LogError):
        build_archive([str(source)], out=tmp_path / "b", jobs=1, strict=True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe \x80", b'{"a": 1}\n', b"[" * 100_000])
def test_a_log_of_which_nothing_can_be_read_is_an_error(tmp_path, source, content):
    """Empty, binary, foreign and absurdly nested logs."""
    (tmp_path / "src/logs/run_2/events.jsonl").write_bytes(content)
    with pytest.raises(LogError, match="run_2"):
        build_archive([str(source)], out=tmp_path / "a", jobs=1)


def test_other_people_s_files_in_the_archive_stay(tmp_path, source):
    """Notes and folders that no build wrote are there after the next build, links as links."""
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    (tmp_path / "a/notes.md").write_text("mine")
    (tmp_path / "a/.git/objects").mkdir(parents=True)
    (tmp_path / "a/.git/objects/x").write_text("y")
    (tmp_path / "a/link").symlink_to("nowhere")
    write_runs(tmp_path / "src", count=1, first=9)
    assert not build_archive([str(source)], out=tmp_path / "a", jobs=1).unchanged
    assert (tmp_path / "a/notes.md").read_text() == "mine"
    assert (tmp_path / "a/.git/objects/x").read_text() == "y"
    assert (tmp_path / "a/link").is_symlink()


def test_a_flipped_byte_is_built_again(tmp_path, source):
    """A damaged shard of the right size is not "up to date"."""
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    before = contents(tmp_path / "a")
    victim = next((tmp_path / "a/data/kernels").glob("test-*"))
    data = bytearray(victim.read_bytes())
    data[50] ^= 1
    victim.write_bytes(data)
    assert not build_archive([str(source)], out=tmp_path / "a", jobs=1).unchanged
    assert contents(tmp_path / "a") == before
    (tmp_path / "a/manifest.json").write_text("{")
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert contents(tmp_path / "a") == before


def test_supersession_is_taken_whole_and_never_in_a_circle():
    """What a builder supersedes includes what that one does, whatever their names."""
    chain = {"a": ["b"], "b": ["c"], "c": []}
    assert superseding_pairs(chain) == [("a", "b"), ("a", "c"), ("b", "c")]
    with pytest.raises(RecipeError, match="supersedes itself"):
        superseding_pairs({"a": ["b"], "b": ["a"]})


def test_a_reference_stays_in_the_recipe_s_folder(tmp_path):
    """A problem's name from a log can't name a file elsewhere."""
    (tmp_path / "secret.py").write_text("password")
    write_runs(tmp_path / "src", count=1)
    path = recipe(tmp_path / "src", ("logs/*", "archive"))
    path.write_text(path.read_text() + 'reference = "{problem}.py"\n')
    (job,) = jobs_of([find_recipe(str(path))])
    for name in ("../secret", "/etc/passwd", "..", ""):
        with pytest.raises(RecipeError, match="no reference file can be called"):
            job.reference_text(name)
    with pytest.raises(RecipeError, match="cannot be read"):
        job.reference_text("trimul")


def test_what_a_build_deletes_lies_in_its_own_stage(tmp_path):
    """No link is followed, neither in the place of the work folder nor inside it."""
    precious, place = tmp_path / "precious", work_folder_of(tmp_path / "a")
    (precious / "new.1").mkdir(parents=True)
    names = ("new.1/thesis.txt", ".x.tmp")
    for name in names:
        (precious / name).write_text("years")
    place.symlink_to(precious)
    with pytest.raises(TargetExistsError, match="is a link"), locked_work_folder(place):
        pass
    assert not (precious / "lock").exists()
    place.unlink()
    (place / "old.2").mkdir(parents=True)
    (place / "new.1").symlink_to(precious)
    with locked_work_folder(place):
        assert [p.name for p in place.iterdir()] == ["lock"]
    assert all((precious / name).read_text() == "years" for name in names)


def test_a_merge_that_does_not_fit_is_an_error(tmp_path, source, monkeypatch):
    """Too little memory for the merge ends the build, with what is kept."""
    monkeypatch.setattr(consolidate, "MEMORY_LIMIT", "1MB")
    with pytest.raises(KernelArchiveError, match=r"merge could not go on.*fragments are kept"):
        build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert not (tmp_path / "a").exists()


def test_files_end_where_they_would(tmp_path, source, monkeypatch):
    """Small files and groups: each file ends with a group, and the archive is valid."""
    small = {"SHARD_ROWS": 6, "GROUP_MIN": 2, "GROUP_FULL": 3, "GROUP_MAX": 4, "GROUP_RATE": 3}
    for name, value in small.items():
        monkeypatch.setattr(shards, name, value)
    build_archive([str(source)], out=tmp_path / "a", jobs=1)
    assert validate_archive(tmp_path / "a") == []
    files = [pq.read_metadata(f) for f in (tmp_path / "a/data/evaluations").iterdir()]
    assert len(files) > 3
    assert max(f.row_group(g).num_rows for f in files for g in range(f.num_row_groups)) <= 4


def test_a_directory_is_on_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    """Every file and folder of it is flushed while the target is not there yet."""
    target, early = tmp_path / "archive", set()

    def fsync(descriptor):
        if not target.exists():
            early.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    with replaced_directory(target) as new:
        (new / "data/eval").mkdir(parents=True)
        (new / "data/eval/a.parquet").write_bytes(b"a")
        (new / "manifest.json").write_bytes(b"{}")
        whole = {new, *new.rglob("*")}
    assert whole == early
