"""Fetching and loading published archives: by version, verified, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import shutil

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from publishing.conftest import NAME
from support.folders import contents

import kernel_archive
from kernel_archive.archive.manifest import read_manifest
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import ArchiveMismatchError, ArchiveNotFoundError, HubError
from kernel_archive.publishing.pull import is_digest

ESCAPE = "\x1b]0;owned\x07\x1b[31m\u202e"


def publish(hub, *paths, repo=NAME):
    """Archives as if they had been pushed one after the other, each tagged with its version."""
    for path in paths:
        commit = hub.add(repo, contents(path))
        hub.repos[repo].tags["v" + read_manifest(path).version] = commit.oid
    return hub.repos[repo]


def test_pull_makes_the_directory_that_was_pushed(client, hub, archive_path):
    """What pull writes is byte for byte what push sent, and validates."""
    assert client.cli("push", NAME, "--archive", str(archive_path)).status == 0
    done = client.cli("pull", NAME)
    assert done.status == 0, done.text
    assert contents(client.cwd / NAME) == contents(archive_path)
    again = client.cli("pull", NAME, "--json")
    assert json.loads(again.out)["unchanged"]


@pytest.mark.parametrize("asked", ["1.0.0", "v1.0.0", "commit", "digest"])
def test_pull_of_a_version(client, hub, archive_path, next_archive_path, asked):
    """A version is named by release, tag, commit or digest; without one the newest comes."""
    repo = publish(hub, archive_path, next_archive_path)
    digest = read_manifest(archive_path).logical_digest
    version = {"commit": repo.tags["v1.0.0"], "digest": digest}.get(asked, asked)
    assert client.cli("pull", NAME, "--version", version, "--out", "old").status == 0
    assert contents(client.cwd / "old") == contents(archive_path)
    assert client.cli("pull", NAME, "--out", "new").status == 0
    assert contents(client.cwd / "new") == contents(next_archive_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([NAME, "--version", "9.9"], "no version '9.9'; it has: v1.0.0, v1.1.0"),
        ([NAME, "--version", "v1.0.0"], "is version 1.1.0"),
        (["no/body"], "refuses (401"),
        (["other/kernels"], "holds no archive"),
        (["secret/kernels"], "hf auth login"),
        ([NAME, "--out", "mine", "--replace"], "mine"),
    ],
)
def test_a_pull_that_is_refused_writes_nothing(
    client, hub, archive_path, next_archive_path, arguments, message
):
    """Unknown or moved versions, other repositories, folders of somebody else: one message each."""
    tags = publish(hub, archive_path, next_archive_path).tags
    if arguments[-1] == "v1.0.0":
        tags["v1.0.0"] = tags["v1.1.0"]
    hub.add("other/kernels", {"README.md": b"# other\n"})
    publish(hub, archive_path, repo="secret/kernels").private = True
    (client.cwd / "mine").mkdir()
    (client.cwd / "mine" / "thesis.txt").write_text("years")
    done = client.cli("pull", *arguments, token=None)
    assert done.status == 1
    assert message in done.err
    assert [path.name for path in client.cwd.rglob("*")] == ["mine", "thesis.txt"]


def test_own_split_is_not_overwritten(client, hub, archive_path):
    """A split of one's own is not lost by pulling again; a damaged file is repaired."""
    publish(hub, archive_path)
    assert client.cli("pull", NAME).status == 0
    shard = client.cwd / NAME / "data/gpus/train-00000-of-00001.parquet"
    shard.write_bytes(b"")
    assert client.cli("pull", NAME).status == 0
    assert contents(client.cwd / NAME) == contents(archive_path)
    assert client.cli("build-eval", "--cap", "1", "--archive", NAME).status == 0
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "other splits" in done.err
    assert contents(client.cwd / NAME) != contents(archive_path)
    assert client.cli("pull", NAME, "--replace").status == 0
    assert contents(client.cwd / NAME) == contents(archive_path)


@pytest.mark.parametrize(
    ("place", "fault", "said"),
    [
        (r"/resolve/.*\.parquet", {"status": 403}, "(403"),
        (r"/resolve/.*\.parquet", {"status": 503, "message": ESCAPE}, "(503"),
        (r"/resolve/.*kernels.*\.parquet", {"truncate": 300}, "run the command again"),
        (r"/resolve/.*kernels.*\.parquet", {"drop": True}, "run the command again"),
        (r"/resolve/.*kernels.*\.parquet", {"flip": True}, "kernels/"),
        ("/revision/", {"body": b"[" * 100_000}, "no answer"),
        ("/revision/", {"body": b'{"id": "a/b", "sha": "../../evil"}'}, "names no commit"),
        ("/resolve/.*manifest", {"body": b'{"a":' * 50_000}, "not a manifest"),
    ],
)
def test_a_pull_that_breaks_off_writes_nothing(client, hub, archive_path, place, fault, said):
    """Whatever the Hub answers: one message, nothing in the target, and the next pull completes."""
    publish(hub, archive_path)
    hub.fail("*", place, **fault)
    done = client.cli("pull", NAME)
    assert done.status == 1, done.text
    assert said in done.err
    assert not {"\x1b", "\x07"} & set(done.err)
    assert not list(client.cwd.rglob("*.parquet"))
    hub.faults.clear()
    assert client.cli("pull", NAME).status == 0
    assert contents(client.cwd / NAME) == contents(archive_path)


def test_a_file_that_came_damaged_is_fetched_again(client, hub, archive_path):
    """One flipped byte costs one more download."""
    publish(hub, archive_path)
    hub.fail("GET", r"/resolve/.*kernels.*\.parquet", flip=True, times=1)
    assert client.cli("pull", NAME).status == 0
    assert contents(client.cwd / NAME) == contents(archive_path)


def last_row_removed(files):
    """Change a table together with the digest of its file."""
    path = "data/references/train-00000-of-00001.parquet"
    rows, out = pq.read_table(io.BytesIO(files[path])), io.BytesIO()
    pq.write_table(rows.slice(0, rows.num_rows - 1), out)
    data, manifest = out.getvalue(), json.loads(files["manifest.json"])
    shard = manifest["tables"]["references"]["splits"]["train"][0]
    shard |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    shard["rows"] -= 1
    return {path: data, "manifest.json": json.dumps(manifest).encode()}


def path_outside(files):
    """Name a path outside the archive in the manifest."""
    manifest = json.loads(files["manifest.json"])
    shard = manifest["tables"]["references"]["splits"]["train"][0]
    shard["path"] = "../../outside.parquet"
    return {"manifest.json": json.dumps(manifest).encode()}


def other_card(files):
    """Change the card."""
    return {"README.md": files["README.md"].replace(b"speedup", b"slowdown", 1)}


def damaged_table(files):
    """Change one byte of a table."""
    path = "data/gpus/train-00000-of-00001.parquet"
    return {path: files[path][:-1] + b"x"}


def other_package(files):
    """Say in the manifest that another version of the package wrote it, and change the card."""
    manifest = json.loads(files["manifest.json"]) | {"package": "0.0.1"}
    return {"manifest.json": json.dumps(manifest).encode(), "README.md": b"# Other prose\n"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (last_row_removed, "references. It was changed by hand"),
        (path_outside, "outside the layout"),
        (damaged_table, "data/gpus/train-00000-of-00001.parquet"),
        (other_card, "README.md"),
    ],
)
def test_content_changed_by_hand_is_refused(client, hub, archive_path, tmp_path, change, message):
    """What was changed is named, and nothing is written."""
    repo = publish(hub, archive_path)
    files = {path: file.data for path, file in repo.files.items()}
    commit = hub.add(NAME, change(files))
    done = client.cli("pull", NAME, "--version", commit.oid)
    assert done.status == 1
    assert message in done.err
    assert not (client.cwd / NAME).exists()
    assert not list(tmp_path.rglob("outside.parquet"))


def test_a_card_of_another_version_is_a_warning(client, hub, archive_path):
    """A card that another version of the package wrote gives a warning."""
    repo = publish(hub, archive_path)
    hub.add(NAME, other_package({path: file.data for path, file in repo.files.items()}))
    done = client.cli("pull", NAME)
    assert done.status == 0, done.text
    assert "warning" in done.err
    assert "0.0.1" in done.err
    assert len(json.loads(client.cli("pull", NAME, "--json").out)["findings"]) >= 1


def test_load_from_the_hub(client, hub, archive_path, next_archive_path):
    """Load verifies, and never takes another version for the one that cannot be had."""
    publish(hub, archive_path, next_archive_path)
    archive = kernel_archive.load(NAME, version="v1.0.0")
    assert archive.manifest.version == "1.0.0"
    assert archive.polars("kernels").height == 84
    hub.fail("*", ".", drop=True)
    with pytest.raises(HubError, match="load what was pulled"):
        kernel_archive.load(NAME, version="v1.0.0")


def test_load_of_a_directory_checks_version_and_bytes(archive_path, tmp_path):
    """A directory is opened only when its content is what the version names."""
    digest = read_manifest(archive_path).logical_digest
    for version in (None, "1.0.0", "v1.0.0", digest, digest.removeprefix("sha256:")[:12]):
        assert kernel_archive.load(archive_path, version).manifest.version == "1.0.0"
    with pytest.raises(ArchiveMismatchError, match=r"is version 1\.0\.0 .* not 1\.0\.1"):
        kernel_archive.load(archive_path, "1.0.1")
    with pytest.raises(ArchiveNotFoundError):
        kernel_archive.load(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(archive_path, broken)
    shard = broken / "data/gpus/train-00000-of-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ArchiveMismatchError, match=r"data/gpus/train-00000-of-00001\.parquet"):
        kernel_archive.load(broken)
    shard.unlink()
    with pytest.raises(ArchiveMismatchError, match="data/gpus"):
        kernel_archive.load(broken)


def swapped_labels(place) -> None:
    """Change every evaluation speedup and all digests but the archive's own."""
    manifest = read_manifest(place)
    rows = pq.read_table(place / "data/eval/test-00000-of-00001.parquet")
    place_of = rows.schema.get_field_index("speedup")
    field = rows.schema.field(place_of)
    rows = rows.set_column(place_of, field, pc.multiply(rows["speedup"], 1.01))
    facts = write_table(place, "eval", {"test": rows})
    split = msgspec.structs.replace(manifest.splits["eval"], logical_digest=facts.logical_digest)
    forged = msgspec.structs.replace(
        manifest,
        tables={**manifest.tables, "eval": facts},
        splits={**manifest.splits, "eval": split},
    )
    (place / "manifest.json").write_bytes(msgspec.json.encode(forged))


def test_swapped_labels_are_not_what_a_digest_names(client, hub, archive_path, tmp_path):
    """Changed evaluation labels are refused, also with all lower digests changed."""
    digest = read_manifest(archive_path).logical_digest
    forged = tmp_path / "forged"
    shutil.copytree(archive_path, forged)
    swapped_labels(forged)
    publish(hub, forged)
    done = client.cli("pull", NAME, "--version", digest)
    assert done.status == 1, done.text
    assert not (client.cwd / NAME).exists()
    with pytest.raises(ArchiveMismatchError):
        kernel_archive.load(forged, digest)
    with pytest.raises(ArchiveMismatchError, match="the archive as a whole"):
        kernel_archive.load(forged)


def test_is_digest():
    """A digest is told from a release and from a commit id."""
    assert all(map(is_digest, ("sha256:" + "a" * 64, "0123456789ab")))
    assert not any(map(is_digest, ("a" * 40, "1.0.0", "v1")))
