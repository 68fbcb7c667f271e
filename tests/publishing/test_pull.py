"""Fetching and loading published archives: by version, verified, whole or not at all."""

from __future__ import annotations

import json
import shutil

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from publishing.conftest import NAME

import kernel_archive
from kernel_archive.archive.manifest import read_manifest
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import ArchiveMismatchError, ArchiveNotFoundError
from kernel_archive.publishing.pull import is_digest


def publish(hub, *paths, repo=NAME):
    """Archives as if they had been pushed one after the other, each tagged with its version."""
    for path in paths:
        files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
        if repo in hub.repos:
            made = hub.add(repo, files)
        else:
            hub.create(repo, files)
            made = hub.repos[repo].commits[hub.repos[repo].main]
        hub.repos[repo].tags["v" + read_manifest(path).version] = made.oid
    return hub.repos[repo]


def same_content(a, b):
    """Whether two archive directories hold the same files."""
    names = [{str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()} for d in (a, b)]
    return names[0] == names[1] and all((a / n).read_bytes() == (b / n).read_bytes() for n in names[0])


def test_pull_makes_the_directory_that_was_pushed(client, hub, archive_path):
    """What pull writes is byte for byte what push sent, and validates."""
    assert client.cli("push", NAME, "--archive", str(archive_path)).status == 0
    done = client.cli("pull", NAME)
    assert done.status == 0, done.text
    assert same_content(client.cwd / NAME, archive_path)
    again = client.cli("pull", NAME, "--json")
    assert json.loads(again.out)["unchanged"]


@pytest.mark.parametrize("asked", ["1.0.0", "v1.0.0", "commit", "digest"])
def test_pull_of_a_version(client, hub, archive_path, next_archive_path, asked):
    """A version is named by release, tag, commit or digest; without one the newest comes."""
    repo = publish(hub, archive_path, next_archive_path)
    digest = read_manifest(archive_path).logical_digest
    version = {"commit": repo.tags["v1.0.0"], "digest": digest}.get(asked, asked)
    assert client.cli("pull", NAME, "--version", version, "--out", "old").status == 0
    assert same_content(client.cwd / "old", archive_path)
    assert client.cli("pull", NAME, "--out", "new").status == 0
    assert same_content(client.cwd / "new", next_archive_path)


def test_unknown_version_lists_those_that_are_there(client, hub, archive_path):
    """A version that isn't there is refused with the ones that are."""
    publish(hub, archive_path)
    done = client.cli("pull", NAME, "--version", "9.9")
    assert done.status == 1
    assert "no version '9.9'" in done.err
    assert "v1.0.0" in done.err


def test_another_archive_in_the_way_is_kept(client, hub, archive_path, next_archive_path):
    """A directory that holds another version is only overwritten when asked."""
    publish(hub, archive_path)
    assert client.cli("pull", NAME).status == 0
    publish(hub, next_archive_path)
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "--replace" in done.err
    assert same_content(client.cwd / NAME, archive_path)
    assert client.cli("pull", NAME, "--replace").status == 0
    assert same_content(client.cwd / NAME, next_archive_path)


def test_own_split_is_not_overwritten(client, hub, archive_path):
    """A split that its user made in a pulled archive is not lost by pulling again; a damaged file is repaired."""
    publish(hub, archive_path)
    assert client.cli("pull", NAME).status == 0
    shard = client.cwd / NAME / "data/gpus/train-00000-of-00001.parquet"
    shard.write_bytes(b"")
    assert client.cli("pull", NAME).status == 0
    assert same_content(client.cwd / NAME, archive_path)
    assert client.cli("build-eval", "--cap", "1", "--archive", NAME).status == 0
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "other splits" in done.err
    assert not same_content(client.cwd / NAME, archive_path)


def test_folder_of_somebody_else_is_left_alone(client, hub, archive_path):
    """A directory with other content is never overwritten, not even with --replace."""
    publish(hub, archive_path)
    (client.cwd / "mine").mkdir()
    (client.cwd / "mine" / "thesis.txt").write_text("years")
    done = client.cli("pull", NAME, "--out", "mine", "--replace")
    assert done.status == 1
    assert (client.cwd / "mine" / "thesis.txt").read_text() == "years"


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_refused_pull_leaves_the_target(client, hub, archive_path, status):
    """Whatever status a download meets: one clear message, the target as it was, the next pull completes."""
    publish(hub, archive_path)
    hub.fail("*", r"/resolve/.*\.parquet", status=status, times=1000, skip=4)
    done = client.cli("pull", NAME)
    assert done.status == 1, done.text
    assert str(status) in done.err
    assert done.err.count("\n") == 1
    assert not (client.cwd / NAME).exists()
    hub.faults.clear()
    assert client.cli("pull", NAME).status == 0
    assert same_content(client.cwd / NAME, archive_path)


@pytest.mark.parametrize(
    "fault",
    [
        {"truncate": 300, "times": 1000},
        {"drop": True, "times": 1000},
        {"truncate": 300, "times": 1},
        {"flip": True, "times": 1},
    ],
)
def test_broken_download_is_repaired(client, hub, archive_path, fault):
    """A truncated, broken or damaged download is repaired at once where that is possible, else by the next pull."""
    publish(hub, archive_path)
    hub.fail("GET", r"/resolve/.*kernels.*\.parquet", **fault)
    done = client.cli("pull", NAME)
    if fault["times"] > 1:
        assert done.status == 1, done.text
        assert "Run the command again" in done.err
        assert not (client.cwd / NAME).exists()
        hub.faults.clear()
        done = client.cli("pull", NAME)
    assert done.status == 0, done.text
    assert same_content(client.cwd / NAME, archive_path)


def test_download_that_stays_damaged_is_refused(client, hub, archive_path):
    """A file whose bytes are wrong twice is named, and nothing is written."""
    publish(hub, archive_path)
    hub.fail("GET", r"/resolve/.*references.*\.parquet", flip=True, times=1000)
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "data/references/train-00000-of-00001.parquet" in done.err
    assert not (client.cwd / NAME).exists()


def test_content_changed_by_hand_is_refused(client, hub, archive_path, tmp_path):
    """Rows that were changed together with the manifest's file digests are found by the logical digest."""
    forged = tmp_path / "forged"
    shutil.copytree(archive_path, forged)
    shard = forged / "data/references/train-00000-of-00001.parquet"
    import pyarrow.parquet as pq

    rows = pq.read_table(shard)
    pq.write_table(rows.slice(0, rows.num_rows - 1), shard)
    import hashlib

    data = json.loads((forged / "manifest.json").read_text())
    entry = data["tables"]["references"]["splits"]["train"][0]
    entry |= {"sha256": hashlib.sha256(shard.read_bytes()).hexdigest(), "bytes": shard.stat().st_size}
    entry["rows"] -= 1
    (forged / "manifest.json").write_text(json.dumps(data))
    publish(hub, forged)
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "not what its digest says: references" in done.err
    assert not (client.cwd / NAME).exists()


def test_repository_without_an_archive(client, hub):
    """A repository that kernel-archive did not make is told apart from one that is not there."""
    hub.create(NAME, {"README.md": b"# other\n"})
    done = client.cli("pull", NAME)
    assert done.status == 1
    assert "holds no archive" in done.err
    done = client.cli("pull", "no/body")
    assert done.status == 1
    assert "there is no dataset no/body" in done.err


def test_private_repository_needs_a_login(client, hub, archive_path):
    """A private archive is found with a token and only with one."""
    publish(hub, archive_path).private = True
    done = client.cli("pull", NAME, token=None)
    assert done.status == 1
    assert "hf auth login" in done.err
    assert client.cli("pull", NAME).status == 0


def test_manifest_cannot_write_outside(client, hub, archive_path, tmp_path):
    """A manifest that names a path outside the archive is refused before anything is fetched by it."""
    publish(hub, archive_path)
    data = json.loads((archive_path / "manifest.json").read_text())
    data["tables"]["references"]["splits"]["train"][0]["path"] = "../../outside.parquet"
    commit = hub.add(NAME, {"manifest.json": json.dumps(data).encode()})
    done = client.cli("pull", NAME, "--version", commit.oid)
    assert done.status == 1
    assert "outside the layout" in done.err
    assert not list(tmp_path.rglob("outside.parquet"))


def test_load_dataset_from_the_pushed_repository(client, hub, archive_path, next_archive_path):
    """load_dataset gives the default config, another config at a tag, and streams."""
    publish(hub, archive_path, next_archive_path)
    done = client.code(f"""
from datasets import load_dataset
new = load_dataset("{NAME}")
print(new["train"].num_rows + new["test"].num_rows)
old = load_dataset("{NAME}", "kernels", revision="v1.0.0")
print(old["train"].num_rows + old["test"].num_rows)
print(load_dataset("{NAME}", "eval", split="test").num_rows)
print(next(iter(load_dataset("{NAME}", "failures", split="train", streaming=True)))["outcome"])
""")
    assert done.status == 0, done.err
    evals = open_archive(next_archive_path).arrow("eval").num_rows
    assert done.out.split() == ["88", "84", str(evals), "incorrect"]


def test_load_from_the_hub_and_offline_from_its_cache(client, hub, archive_path, next_archive_path):
    """Load gives a verified handle, keeps versions apart, and offline never takes one for another."""
    publish(hub, archive_path, next_archive_path)
    code = f"""
import kernel_archive
a = kernel_archive.load("{NAME}", version="v1.0.0")
print(a.manifest.version, a.polars("kernels").height, a.datasets("eval").num_rows > 0, a.sql("SELECT 1 AS x").num_rows)
"""
    done = client.code(code)
    assert done.status == 0, done.err
    assert done.out.split() == ["1.0.0", "84", "True", "1"]
    hub.fail("*", ".", drop=True, times=10_000)
    code = "import warnings; warnings.simplefilter('always')" + code
    offline = client.code(code)
    assert offline.status == 0, offline.err
    assert offline.out.split() == ["1.0.0", "84", "True", "1"]
    assert "cached copy" in offline.err
    newest = client.code(code.replace(', version="v1.0.0"', ""))
    assert newest.out.split()[0] == "1.0.0"
    wrong = client.fresh("code", code.replace("v1.0.0", "v1.1.0"), HF_HUB_OFFLINE="1")
    assert wrong.status == 1
    assert "HubError: offline mode is on" in wrong.err


def test_a_full_disk_is_not_a_hub_that_cannot_be_reached(client, hub, archive_path, next_archive_path):
    """The Hub said what is newest, and then it could not be stored: an older copy in the cache is not handed out for it."""
    publish(hub, archive_path)
    code = f'print(kernel_archive.load("{NAME}").manifest.version)'
    assert client.code(f"import kernel_archive\n{code}").out.split() == ["1.0.0"]
    publish(hub, next_archive_path)
    full = client.code(f"""
import huggingface_hub, kernel_archive
from unittest import mock
with mock.patch.object(huggingface_hub.HfApi, "hf_hub_download", side_effect=OSError(28, "No space left on device")):
    {code}
""")
    assert full.status == 1
    assert "No space left on device" in full.err
    assert "cached copy" not in full.err


def test_moved_tag_is_noticed(client, hub, archive_path, next_archive_path):
    """A tag that was moved by hand to other content is refused: the content isn't what the version names."""
    repo = publish(hub, archive_path, next_archive_path)
    repo.tags["v1.0.0"] = repo.tags["v1.1.0"]
    done = client.cli("pull", NAME, "--version", "v1.0.0")
    assert done.status == 1
    assert "is version 1.1.0" in done.err


def test_load_of_a_directory_checks_version_and_bytes(archive_path, tmp_path, monkeypatch):
    """A directory is opened when its content is what the version names, and refused with both names otherwise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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


def swapped_labels(place, *, manifest_format) -> None:
    """Give every evaluation row another speedup, and the manifest everything that follows but the archive's digest."""
    manifest = read_manifest(place)
    rows = pq.read_table(place / "data/eval/test-00000-of-00001.parquet")
    at = rows.schema.get_field_index("speedup")
    rows = rows.set_column(at, rows.schema.field(at), pc.multiply(rows["speedup"], 1.01))
    facts = write_table(place, "eval", {"test": rows}, metadata={"bin_scheme": "paper", "split": "canonical"})
    split = msgspec.structs.replace(manifest.splits["eval"], logical_digest=facts.logical_digest)
    forged = msgspec.structs.replace(
        manifest,
        format=manifest_format,
        logical_digest=manifest.measured_digest if manifest_format == 1 else manifest.logical_digest,
        tables={**manifest.tables, "eval": facts},
        splits={**manifest.splits, "eval": split},
    )
    (place / "manifest.json").write_bytes(msgspec.json.encode(forged))


def test_swapped_labels_are_not_what_a_digest_names(client, hub, archive_path, tmp_path):
    """A repository whose evaluation labels were changed, with all digests below the archive's own, is refused."""
    digest = read_manifest(archive_path).logical_digest
    forged = tmp_path / "forged"
    shutil.copytree(archive_path, forged)
    swapped_labels(forged, manifest_format=2)
    publish(hub, forged)
    done = client.cli("pull", NAME, "--version", digest)
    assert done.status == 1, done.text
    assert not (client.cwd / NAME).exists()
    with pytest.raises(ArchiveMismatchError):
        kernel_archive.load(forged, digest)
    with pytest.raises(ArchiveMismatchError, match="the archive as a whole"):
        kernel_archive.load(forged)


def test_a_digest_of_the_old_kind_is_known_as_such(archive_path, tmp_path):
    """It names the measured tables: it opens an archive, of either format, and says that it says nothing of the labels."""
    old = tmp_path / "old"
    shutil.copytree(archive_path, old)
    swapped_labels(old, manifest_format=1)
    digest = read_manifest(archive_path).measured_digest
    assert read_manifest(old).logical_digest == digest
    for place in (archive_path, old):
        with pytest.warns(UserWarning, match="digest of the old kind"):
            kernel_archive.load(place, digest)


def test_rows_are_verified_once_per_manifest(archive_path, tmp_path, monkeypatch):
    """That rows and digests agree is noted for exactly this manifest; bytes are compared every time."""
    from kernel_archive.archive import validate

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read = []
    real = validate.digest_rows
    monkeypatch.setattr(validate, "digest_rows", lambda table, rows: read.append(table) or real(table, rows))
    kernel_archive.load(archive_path)
    assert "kernels" in read
    read.clear()
    kernel_archive.load(archive_path)
    assert not read
    broken = tmp_path / "broken"
    shutil.copytree(archive_path, broken)
    shard = broken / "data/references/train-00000-of-00001.parquet"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ArchiveMismatchError, match="references"):
        kernel_archive.load(broken)
    (broken / "manifest.json").write_text((broken / "manifest.json").read_text() + "\n")
    shutil.copyfile(archive_path / "data/references/train-00000-of-00001.parquet", shard)
    kernel_archive.load(broken)
    assert "kernels" in read


@pytest.mark.parametrize(
    ("text", "expected"),
    [("sha256:" + "a" * 64, True), ("0123456789ab", True), ("a" * 40, False), ("1.0.0", False), ("v1", False)],
)
def test_is_digest(text, expected):
    """A digest is told from a release and from a commit id."""
    assert is_digest(text) is expected
