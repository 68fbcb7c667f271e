"""Publishing: what is sent, what is refused, and what a broken push leaves for the next one."""

import json
import shutil

import pytest
from support.fake_hub import READ_TOKEN
from support.folders import contents

from kernel_archive.publishing.card import write_card

from .conftest import NAME


def push(client, path, *more, repo=NAME, **kwargs):
    return client.cli("push", repo, "--archive", str(path), *more, **kwargs)


def test_push_publishes_everything_and_tags_it(client, hub, archive_path):
    """A first push sends every file once, in one commit, and tags it; a second sends nothing."""
    done = push(client, archive_path, "--json")
    assert done.status == 0, done.text
    result = json.loads(done.out)
    repo = hub.repos[NAME]
    assert result["created"]
    assert result["tagged"]
    assert repo.tags == {"v1.0.0": result["commit"]}
    assert len(repo.commits) == 2  # the Hub's own first one, and ours
    sent = {path: file.data for path, file in repo.files.items() if path != ".gitattributes"}
    assert sent == contents(archive_path)
    asked = ("PUT /lfs", "POST /commit/", "POST /tag/")
    before = [hub.count(*which.split()) for which in asked]
    assert "published already" in push(client, archive_path).out
    assert [hub.count(*which.split()) for which in asked] == before


def test_push_of_next_version_sends_only_what_changed(client, hub, archive_path, next_archive_path):
    """The next version sends the changed files only and gets its own tag."""
    push(client, archive_path)
    first = hub.repos[NAME].tags["v1.0.0"]
    done = push(client, next_archive_path, "--json")
    assert done.status == 0, done.text
    result = json.loads(done.out)
    changed = {c["path"] for c in result["changes"]}
    assert "data/references/train-00000-of-00001.parquet" not in changed
    assert "data/kernels/train-00000-of-00001.parquet" in changed
    repo = hub.repos[NAME]
    assert repo.tags == {"v1.0.0": first, "v1.1.0": repo.main}


def test_push_removes_files_of_ours_that_are_gone_and_no_others(
    client, hub, archive_path, next_archive_path
):
    """A shard or another file of ours is deleted in the same commit; others' files stay."""
    gone = {"data/kernels/train-00000-of-00002.parquet": b"old", "eval.yaml": b"old"}
    hub.add(NAME, {**gone, "NOTES.txt": b"mine", "README.md": b"# hand-made\n"})
    assert push(client, archive_path).status == 0
    files = hub.repos[NAME].files
    assert not gone.keys() & files.keys()
    assert files["NOTES.txt"].data == b"mine"
    assert files["README.md"].data != b"# hand-made\n"


def test_dry_run_writes_nothing(client, hub, archive_path):
    """A dry run needs no login and writes nothing, whether the repository is there or not."""
    done = push(client, archive_path, "--dry-run", token=None)
    assert done.status == 0, done.err
    assert "Dry run" in done.out
    assert "data/eval/test-00000-of-00001.parquet" in done.out
    assert NAME not in hub.repos
    hub.create(NAME)
    done = push(client, archive_path, "--dry-run", "--json")
    assert json.loads(done.out)["commit"] is None
    assert len(hub.repos[NAME].commits) == 1


def test_card_is_rendered_for_the_repository_pushed_to(client, hub, archive_path):
    """The examples of the published card name the repository that it is in."""
    assert push(client, archive_path, repo="somebody/else").status == 0
    card = hub.repos["somebody/else"].files["README.md"].data.decode()
    assert 'load_dataset("somebody/else")' in card
    assert 'load_dataset("gpu-forecasters/kernels")' not in card


def test_tag_is_never_moved(client, hub, archive_path, next_archive_path, tmp_path):
    """A tag that names other content is refused before anything is sent."""
    push(client, archive_path)
    altered = tmp_path / "altered"
    shutil.copytree(next_archive_path, altered)
    manifest = json.loads((altered / "manifest.json").read_text())
    manifest["version"] = "1.0.0"
    (altered / "manifest.json").write_text(json.dumps(manifest))
    write_card(altered)
    commits, sent = len(hub.repos[NAME].commits), hub.uploaded_bytes
    done = push(client, altered)
    assert done.status == 1
    assert "has the tag v1.0.0 already" in done.err
    assert (len(hub.repos[NAME].commits), hub.uploaded_bytes) == (commits, sent)


def test_invalid_archive_is_not_published(client, hub, archive_path, tmp_path):
    """A damaged file or an edited card is refused before the Hub hears of it."""
    for name in ("data/kernels/test-00000-of-00001.parquet", "README.md"):
        broken = tmp_path / name.replace("/", "-")
        shutil.copytree(archive_path, broken)
        data = bytearray((broken / name).read_bytes())
        data[200] ^= 1
        (broken / name).write_bytes(data)
        done = push(client, broken)
        assert done.status == 1
        assert "nothing is published" in done.err
        assert name in done.err
    assert not hub.requests


@pytest.mark.parametrize(
    ("token", "said"),
    [(None, "401"), ("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", "401"), (READ_TOKEN, "403")],
)
def test_login_that_does_not_suffice(client, hub, archive_path, token, said):
    """No token, a wrong one and a read-only one are told apart, and nothing is made."""
    done = push(client, archive_path, token=token)
    assert done.status == 1
    assert said in done.err
    assert NAME not in hub.repos
    assert "hf_This" not in done.text


@pytest.mark.parametrize(
    ("method", "place", "fault", "said"),
    [
        ("*", "/preupload/", {"status": 403}, "403"),
        ("*", "/lfs-store/", {"status": 429}, "429"),
        ("*", "/commit/", {"status": 412}, "412"),
        ("*", "/tag/", {"status": 500}, "500"),
        ("PUT", "/lfs-store/", {"drop": True}, "no answer"),
        ("POST", "/repos/create", {"after": True}, "no answer"),
        ("POST", "/commit/", {"after": True}, "no answer"),
    ],
)
def test_what_breaks_off_is_completed_by_the_next_push(
    client, hub, archive_path, method, place, fault, said
):
    """Wherever a push is refused or breaks off, nothing is half published; the next completes."""
    hub.fail(method, place, **fault)
    done = push(client, archive_path)
    assert done.status == 1, done.text
    assert said in done.err
    assert "published" in done.err
    assert done.err.count("\n") <= 3
    assert hub.repos[NAME].tags == {}
    hub.faults.clear()
    sent = hub.uploaded_bytes
    done = push(client, archive_path)
    assert done.status == 0, done.text
    repo = hub.repos[NAME]
    assert repo.tags == {"v1.0.0": repo.main}
    assert len(repo.commits) == 2
    if "/tag/" in place or (fault.get("after") and "/commit/" in place):
        assert hub.uploaded_bytes == sent  # nothing that had come up was sent twice


def test_wrong_names_are_usage_errors(client, archive_path, tmp_path):
    """A repository or version that can't exist is refused with status 2 before anything is done."""
    assert push(client, archive_path, repo="no-owner").status == 2
    shutil.copytree(archive_path, tmp_path / "named")
    manifest = tmp_path / "named/manifest.json"
    manifest.write_text(manifest.read_text().replace('"1.0.0"', '"v 1"'))
    done = push(client, manifest.parent)
    assert done.status == 2
    assert "can't be a git tag" in done.err
