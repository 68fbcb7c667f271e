"""Validation finds what was tampered with, layer by layer."""

from __future__ import annotations

import functools
import json
import operator
import tracemalloc

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.archives import validate_archive, with_column
from support.builds import build_archive
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.manifest import read_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.archive.validate import validate_measured
from kernel_archive.errors import ArchiveMismatchError
from kernel_archive.storage import file_sha256


@pytest.fixture
def archive(tmp_path):
    """A small valid archive with both roles and a failure."""
    for role, serial in (("held", 1000), ("train", 5000)):
        log = RunLog(serial=serial)
        root = log.root(program(f"seed_{role}"), 1.0)
        child = log.child(root, program(f"a_{role}"), 2.5)
        log.child(child, program(f"b_{role}"), 0.4)
        log.child(child, program(f"c_{role}"), outcome="incorrect")
        log.write(tmp_path / f"src/logs/{role}/run")
    path = recipe(tmp_path / "src", ("logs/held/*", "held_out"), ("logs/train/*", "training"))
    build_archive([str(path)], out=tmp_path / "a", jobs=1)
    return tmp_path / "a"


def change_manifest(directory, change):
    """Change the JSON of the manifest."""
    manifest = json.loads((directory / "manifest.json").read_text())
    change(manifest)
    (directory / "manifest.json").write_text(json.dumps(manifest))


def column(name, function):
    """A change of one column, value by value."""

    def change(rows):
        return with_column(rows, name, [function(v) for v in rows[name].to_pylist()])

    return change


def codes(directory):
    """Codes of all findings."""
    return {f.code for f in validate_archive(directory)}


def test_a_fresh_archive_is_valid(archive):
    """Every layer says ok and none is skipped."""
    report = validate_measured(open_archive(archive))
    assert report.ok
    names = " ".join(layer.name for layer in report.layers)
    assert names == "layout schema digests ids labels cross-references canary"
    assert {layer.status for layer in report.layers} == {"ok"}


def test_missing_truncated_and_stray_files(archive):
    """Layout: the file is named, and layers that would only repeat it are skipped."""
    victim = next((archive / "data/failures").iterdir())
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-10])
    assert codes(archive) == {"wrong-size"}
    victim.unlink()
    report = validate_measured(open_archive(archive))
    assert [f.code for f in report.findings] == ["missing-file"]
    assert report.layers[-1].status == "skipped"
    victim.write_bytes(whole)
    (archive / "data/kernels/train-00001-of-00002.parquet").write_bytes(whole)
    assert codes(archive) == {"stray-file"}


@pytest.mark.parametrize(
    ("table", "change", "code"),
    [
        ("kernels", column("speedup", lambda v: v * 1.001), "wrong-median"),
        ("kernels", column("bin", lambda v: 8), "wrong-label"),
        ("kernels", column("code", lambda v: v + "\nx = 1"), "wrong-program-id"),
        ("kernels", column("token_id", lambda v: "0" * 32), "wrong-token-id"),
        ("kernels", column("gpu", lambda v: "L40S"), "wrong-kernel-id"),
        ("kernels", column("bin_scheme", lambda v: "mine"), "unknown-scheme"),
        ("kernels", column("canary", lambda v: ""), "no-canary"),
        ("kernels", column("source_line", lambda v: v + 1000), "no-provenance"),
        ("kernels", lambda rows: rows.slice(0, 1), "lost-evaluation"),
        ("kernels", lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), "duplicate-key"),
        ("failures", lambda rows: rows.slice(0, 0), "lost-evaluation"),
        ("evaluations", column("search_id", lambda v: "nowhere"), "unknown-search"),
        ("evaluations", column("outcome", lambda v: "fine"), "unknown-value"),
        ("searches", column("role", lambda v: "training"), "wrong-split"),
        ("references", lambda rows: rows.slice(0, 0), "unknown-reference"),
    ],
)
def test_a_careful_forgery_is_found(archive, table, change, code):
    """Digests that were made to fit don't hide a wrong value: it is computed again."""
    opened = open_archive(archive)
    splits = {
        split: change(opened.arrow(table, split)) for split in opened.manifest.tables[table].splits
    }
    facts = msgspec.to_builtins(write_table(archive, table, splits))
    change_manifest(archive, lambda manifest: manifest["tables"].update({table: facts}))
    assert code in codes(archive)


SHARD = ("tables", "gpus", "splits", "train", 0)


def test_a_missing_value_where_none_may_be_is_found(archive):
    """A null in a column that is never empty: the file and the column are named."""
    (shard,) = read_manifest(archive).shards("gpus")
    path = archive / shard.path
    rows = pq.read_table(path)
    unnamed = pa.nulls(rows.num_rows, pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("gpu"), "gpu", unnamed), path)
    changed = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    place = functools.partial(functools.reduce, operator.getitem, SHARD)
    change_manifest(archive, lambda manifest: place(manifest).update(changed))
    (finding,) = validate_archive(archive)
    assert finding.code == "unreadable"
    assert "gpus/train-00000-of-00001.parquet" in finding.message
    assert "'gpu'" in finding.message


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (SHARD, {"path": "../../etc/passwd"}),
        (SHARD, {"path": "data/gpus/train-00000-of-00001.parquet/../x"}),
        (SHARD[:3], {"x' AS split; COPY (SELECT 1) TO '/tmp/x.csv'; --": []}),
        (SHARD[:1], {'evil"; DROP': {"splits": {}, "logical_digest": ""}}),
    ],
)
def test_names_that_no_layout_of_ours_has_are_refused(archive, place, change):
    """A manifest from elsewhere can't make us read other files or run other queries."""
    change_manifest(archive, lambda m: functools.reduce(operator.getitem, place, m).update(change))
    with pytest.raises(ArchiveMismatchError, match="names a "):
        open_archive(archive)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not a manifest"),
        (b"\xff\xfe", "not a manifest"),
        (b"[" * 5_000_000, "larger than one can be"),
        (b'{"name": "' + b"x" * (65 << 20) + b'"}', "larger than one can be"),
    ],
    ids=["cut", "no text", "values", "bytes"],
)
def test_what_is_no_manifest_is_refused(archive, content, words):
    """It may come from a Hub: neither its bytes nor its values are taken without a bound."""
    (archive / "manifest.json").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ArchiveMismatchError, match=words):
        read_manifest(archive)
    assert tracemalloc.get_traced_memory()[1] < 200 << 20
    tracemalloc.stop()
