"""Publishing an archive: validate, upload what changed in one commit, tag it.

The content changes on the Hub in one commit, which is there or isn't. What a broken push leaves behind (uploaded blobs
without a commit, a commit without its tag) the next push of the same archive finds and completes.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.manifest import MANIFEST_NAME, Manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.connections import endpoint
from kernel_archive.errors import (
    ArchiveMismatchError,
    DataError,
    Finding,
    HubError,
    TargetExistsError,
    UsageError,
)
from kernel_archive.publishing.card import CARD_FILES, EXTRA_FILES, card_name, check_card, render_card
from kernel_archive.publishing.facts import splits_of
from kernel_archive.publishing.hub import check_name, commit_id, connect, hub_errors, tag_of
from kernel_archive.publishing.templates import render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from huggingface_hub import HfApi

_OURS: Final = ("data/", "assets/")


class FileChange(msgspec.Struct, frozen=True):
    """One file that differs between the archive and the Hub: path, bytes to send, ``add``, ``change`` or ``delete``."""

    path: str
    bytes: int
    kind: str


class PushResult(msgspec.Struct, kw_only=True):
    """What a push did, or would do.

    Attributes:
        repo: the repository.
        version: the archive's version.
        logical_digest: its digest.
        tag: the tag.
        dry_run: nothing was sent.
        created: the repository was (would be) made.
        changes: files that were (would be) sent or deleted.
        unchanged: files that were there already.
        upload_bytes: bytes of the files to send; the Hub stores only their new chunks.
        commit: the commit that holds this version; ``None`` in a dry run with changes.
        tagged: the tag was (would be) set now; it was there already otherwise.
        notes: the release notes, Markdown.
        url: address of the version.
    """

    repo: str
    version: str
    logical_digest: str
    tag: str
    dry_run: bool
    created: bool
    changes: list[FileChange]
    unchanged: int
    upload_bytes: int
    commit: str | None
    tagged: bool
    notes: str
    url: str


class _Remote(msgspec.Struct, kw_only=True):
    """What stands on the Hub."""

    exists: bool
    head: str | None
    files: dict[str, tuple[str, str | None]]
    tags: dict[str, str]


def check_tag(tag: str, manifest: Manifest) -> str:
    """A tag that may name this version.

    A release's tag is its version, with or without ``v``. An archive whose version is only its digest has no name yet:
    any tag may give it one.

    Raises:
        UsageError: the tag names another version, or can't be a tag.
    """
    bad = set(" ~^:?*[\\") & set(tag)
    if (
        not tag
        or bad
        or tag.startswith(("-", "/", "."))
        or tag.endswith(("/", ".", ".lock"))
        or ".." in tag
        or "@{" in tag
    ):
        raise UsageError(f"{tag!r} can't be a git tag")
    if manifest.released and tag_of(tag) != tag_of(manifest.version):
        raise UsageError(
            f"the archive is version {manifest.version}, so its tag is {tag_of(manifest.version)}, not {tag}. "
            f"Build it with --version {tag.removeprefix('v')} to publish it as that"
        )
    return tag


def _git_blob_id(data: bytes) -> str:
    """The id that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _local_files(archive: Archive, repo: str, findings: Sequence[Finding]) -> dict[str, Path | bytes]:
    """Everything that is published: path in the repository -> file or content. The card was just found as it should be."""
    present = card_name(archive) == repo and not any(f.code == "stale-card" for f in findings)
    files: dict[str, Path | bytes] = {}
    files |= {shard.path: archive.path / shard.path for shard in archive.manifest.shards()}
    files |= {} if present else render_card(archive, name=repo)
    for name in (MANIFEST_NAME, *EXTRA_FILES, *(CARD_FILES if present else ())):
        if (archive.path / name).is_file():
            files[name] = archive.path / name
    return files


def _same(content: Path | bytes, remote: tuple[str, str | None]) -> bool:
    blob_id, sha256 = remote
    if sha256 is None:
        return _git_blob_id(content if isinstance(content, bytes) else content.read_bytes()) == blob_id
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest() == sha256
    with content.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sha256


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _tree(api: HfApi, repo: str, revision: str) -> dict[str, tuple[str, str | None]]:
    """Path -> git blob id, and sha256 where the file is stored by it."""
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(repo, recursive=True, revision=revision, repo_type="dataset")
    return {f.path: (f.blob_id, f.lfs.sha256 if f.lfs else None) for f in listed if isinstance(f, RepoFile)}


def _remote(api: HfApi, repo: str) -> _Remote:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        head = commit_id(api.dataset_info(repo).sha, repo)
    except RepositoryNotFoundError:
        # A login that isn't accepted shows in the next line, as itself.
        api.whoami()
        return _Remote(exists=False, head=None, files={}, tags={})
    refs = api.list_repo_refs(repo, repo_type="dataset")
    return _Remote(
        exists=True, head=head, files=_tree(api, repo, head), tags={t.name: t.target_commit for t in refs.tags}
    )


def _changes(local: dict[str, Path | bytes], remote: dict[str, tuple[str, str | None]]) -> list[FileChange]:
    made = []
    for path, content in sorted(local.items()):
        if path not in remote:
            made.append(FileChange(path, _size(content), "add"))
        elif not _same(content, remote[path]):
            made.append(FileChange(path, _size(content), "change"))
    for path in sorted(remote):
        ours = path in CARD_FILES or path.startswith(_OURS)
        if ours and path not in local:
            made.append(FileChange(path, 0, "delete"))
    return made


def _validate(archive: Archive) -> list[Finding]:
    from kernel_archive.archive.validate import validate_measured
    from kernel_archive.selection.check import check_splits

    return validate_measured(archive, (("splits", check_splits), ("card", check_card))).findings


def _refuse_invalid(findings: list[Finding], path: Path) -> None:
    errors = [f for f in findings if f.severity == "error"]
    if errors:
        summary = f"{path} is not valid ({len(errors)} errors), so nothing is published. Build it again"
        raise DataError.from_findings(errors, summary)


def _release_notes(archive: Archive, before: Path | None) -> str:
    """What a version holds and what changed since the one that stands on the Hub, as Markdown; no time in it."""
    from kernel_archive.selection.diff import changelog, diff

    changes = "The first version here." if before is None else changelog(diff(before, archive.path)).strip()
    tables = {name: splits_of(archive, name) for name in archive.tables}
    return render("notes.md", manifest=archive.manifest, tables=tables, changes=changes).strip()


def _commit(
    api: HfApi,
    repo: str,
    local: dict[str, Path | bytes],
    changes: list[FileChange],
    head: str,
    message: str,
    notes: str,
) -> str:
    """Send the changes as one commit on top of ``head``; its id."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[Any] = []
    for change in changes:
        if change.kind == "delete":
            operations.append(CommitOperationDelete(change.path))
        else:
            operations.append(CommitOperationAdd(change.path, local[change.path]))
    made = api.create_commit(
        repo, operations, commit_message=message, commit_description=notes, repo_type="dataset", parent_commit=head
    )
    return commit_id(made.oid, repo)


def push(
    path: str | Path,
    repo: str,
    *,
    tag: str | None = None,
    private: bool = False,
    dry_run: bool = False,
) -> PushResult:
    """Publish an archive directory as a dataset repository and tag its version.

    Args:
        path: the archive.
        repo: ``owner/name`` on the Hub; made when it isn't there. The card is rendered for this name.
        tag: the tag; ``v`` and the archive's version when not given.
        private: make a new repository private (one that is there stays as it is).
        dry_run: say what would be sent, and send nothing.

    Returns:
        What was done. A push of what stands there already sends nothing.

    Raises:
        DataError: the archive is not valid; nothing was sent.
        TargetExistsError: the tag stands and names other content; nothing was sent.
        HubError: the Hub refused or can't be reached. The next push completes what this one began.
    """
    check_name(repo)
    archive = open_archive(path)
    manifest = archive.manifest
    tag = check_tag(tag or tag_of(manifest.version), manifest)
    findings = _validate(archive)
    _refuse_invalid(findings, archive.path)
    local = _local_files(archive, repo, findings)
    doing = f"pushing to {repo}"
    nothing = "Nothing of this version is published yet; what came up already is not sent again"
    with hub_errors(repo, doing, state="Nothing was sent"):
        api = connect()
        remote = _remote(api, repo)
        changes = _changes(local, remote.files)
        tagged_at = remote.tags.get(tag)
        if tagged_at is not None and tagged_at != remote.head:
            changes = _changes(local, _tree(api, repo, tagged_at))
        if tagged_at is not None and changes:
            raise TargetExistsError(
                f"{repo} has the tag {tag} already, with other content ({len(changes)} files differ); a published "
                "version never changes. Build this one with another --version"
            )
        notes = _release_notes(archive, _version_before(api, repo, remote) if changes else None)
    result = PushResult(
        repo=repo,
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        tag=tag,
        dry_run=dry_run,
        created=not remote.exists,
        changes=changes,
        unchanged=len(local) - sum(1 for c in changes if c.kind != "delete"),
        upload_bytes=sum(c.bytes for c in changes),
        commit=tagged_at or (remote.head if not changes else None),
        tagged=tagged_at is None,
        notes=notes,
        url=f"{endpoint()}/datasets/{repo}/tree/{tag}",
    )
    if dry_run or tagged_at is not None:
        return result
    if changes:
        with hub_errors(repo, doing, state=nothing):
            if not remote.exists:
                api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
            head = remote.head or commit_id(api.dataset_info(repo).sha, repo)
            message = f"{manifest.name} {manifest.version}"
            result.commit = _commit(api, repo, local, changes, head, message, notes)
            _verify(local, _tree(api, repo, result.commit), repo)
    untagged = f"The content is published, the tag {tag} is not set yet; pushing again sets it"
    with hub_errors(repo, f"tagging {tag} in {repo}", state=untagged):
        api.create_tag(repo, tag=tag, tag_message=notes, revision=result.commit, repo_type="dataset")
    return result


def _verify(local: dict[str, Path | bytes], there: dict[str, tuple[str, str | None]], repo: str) -> None:
    """Compare what the commit holds with what was meant, before it gets a name."""
    wrong = [path for path, content in local.items() if path not in there or not _same(content, there[path])]
    if wrong:
        raise HubError(f"{repo} now holds other content than was sent: {', '.join(wrong[:5])}. Push again")


def _version_before(api: HfApi, repo: str, remote: _Remote) -> Path | None:
    """A folder with the version that stands on the Hub; ``None`` where none does."""
    from kernel_archive.publishing.pull import fetch_commit

    if remote.head is None or MANIFEST_NAME not in remote.files:
        return None
    try:
        return fetch_commit(api, repo, remote.head)
    except ArchiveMismatchError:
        # Somebody's file of the same name, or a layout of another time: there is nothing to compare with.
        return None
