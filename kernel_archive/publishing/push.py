"""Publish an archive: validate, upload what changed in one commit, tag it.

The content changes on the Hub in one commit, which is there or isn't. What a broken push leaves
behind (uploaded blobs, a commit without its tag) the next push of the same archive completes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.swap import OURS
from kernel_archive.errors import DataError, TargetExistsError, UsageError
from kernel_archive.publishing.card import CARD_FILE, published_files, render_card, validate_whole
from kernel_archive.publishing.hub import check_name, commit_at, connect, hub_errors, tag_of

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.hf_api import RepoFile

_TAG: Final = re.compile(r"\w(?:[\w.+-]*\w)?")


class FileChange(msgspec.Struct, frozen=True):
    """One file that differs between the archive and the Hub."""

    path: str
    bytes: int  # to send
    kind: str  # add, change or delete


class PushResult(msgspec.Struct, kw_only=True):
    """What a push did, or would do."""

    repo: str
    version: str
    logical_digest: str
    tag: str
    dry_run: bool  # nothing was sent
    created: bool  # the repository was (would be) made
    changes: list[FileChange]  # files that were (would be) sent or deleted
    unchanged: int  # files that were there already
    upload_bytes: int  # of the files to send; the Hub stores only their new chunks
    commit: str | None  # the one that holds this version; None in a dry run with changes
    tagged: bool  # the tag was (would be) set now; it was there already otherwise
    url: str  # of the version


def _valid_files(archive: Archive, repo: str) -> dict[str, CommitOperationAdd]:
    """Return everything that is published: path in the repository -> file or content.

    Raises:
        DataError: the archive is not valid.
    """
    from huggingface_hub import CommitOperationAdd

    errors = [f for f in validate_whole(archive).findings if f.severity == "error"]
    if errors:
        summary = (
            f"{archive.path} is not valid (errors: {len(errors)}), so nothing is published. "
            "Build it again"
        )
        raise DataError.from_findings(errors, summary)
    paths = {name: archive.path / name for name in published_files(archive.manifest)}
    files: dict[str, Path | bytes] = {n: path for n, path in paths.items() if path.is_file()}
    files[CARD_FILE] = render_card(archive, name=repo)
    return {path: CommitOperationAdd(path, content) for path, content in files.items()}


def _ask_hub(api: HfApi, repo: str, tag: str) -> tuple[str | None, str | None, dict[str, RepoFile]]:
    """Ask for the newest commit, that of the tag, and the files of the latter or else the former.

    The commits are ``None`` where there is no such repository or tag.
    """
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    try:
        head = commit_at(api, repo)
    except RepositoryNotFoundError:
        return None, None, {}
    refs = api.list_repo_refs(repo, repo_type="dataset").tags
    tag_commit = next((ref.target_commit for ref in refs if ref.name == tag), None)
    revision = tag_commit or head
    tree = api.list_repo_tree(repo, recursive=True, revision=revision, repo_type="dataset")
    return head, tag_commit, {file.path: file for file in tree if isinstance(file, RepoFile)}


def _same(local: CommitOperationAdd, remote: RepoFile) -> bool:
    from huggingface_hub.utils.sha import git_hash

    if remote.lfs:
        return local.upload_info.sha256.hex() == remote.lfs.sha256
    with local.as_file() as stream:
        return git_hash(stream.read()) == remote.blob_id


def _changes(
    local: Mapping[str, CommitOperationAdd], remote: Mapping[str, RepoFile]
) -> list[FileChange]:
    changes = []
    for path, content in sorted(local.items()):
        if path not in remote or not _same(content, remote[path]):
            kind = "change" if path in remote else "add"
            changes.append(FileChange(path, content.upload_info.size, kind))
    for path in sorted(remote.keys() - local.keys()):
        if path.partition("/")[0] in OURS:
            changes.append(FileChange(path, 0, "delete"))
    return changes


def push(
    path: str | Path, repo: str, *, private: bool = False, dry_run: bool = False
) -> PushResult:
    """Publish an archive directory as the dataset ``repo`` (``owner/name``), and tag its version.

    ``private`` makes a new repository private. ``dry_run`` says what would be sent and sends
    nothing. A push of what stands there already sends nothing.

    Raises:
        UsageError: the name of the repository or the version can't be one.
        DataError: the archive is not valid; nothing was sent.
        TargetExistsError: the tag stands and names other content; nothing was sent.
        HubError: the Hub refused or can't be reached. The next push completes what this one began.
    """
    from huggingface_hub import CommitOperationDelete

    check_name(repo)
    archive = open_archive(path)
    manifest = archive.manifest
    tag = tag_of(manifest.version)
    if not _TAG.fullmatch(tag) or ".." in tag or tag.endswith(".lock"):
        raise UsageError(f"{tag!r} can't be a git tag: build the archive with another --version")
    local = _valid_files(archive, repo)
    doing = f"pushing to {repo}"
    with hub_errors(doing, state="Nothing was sent"):
        api = connect()
        head, tag_commit, present = _ask_hub(api, repo, tag)
    changes = _changes(local, present)
    if tag_commit is not None and changes:
        raise TargetExistsError(
            f"{repo} has the tag {tag} already, with other content (files: {len(changes)}); "
            "a published version never changes. Build this one with another --version"
        )
    result = PushResult(
        repo=repo,
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        tag=tag,
        dry_run=dry_run,
        created=head is None,
        changes=changes,
        unchanged=len(local) - sum(change.kind != "delete" for change in changes),
        upload_bytes=sum(change.bytes for change in changes),
        commit=tag_commit or (None if changes else head),
        tagged=tag_commit is None,
        url=f"{api.endpoint}/datasets/{repo}/tree/{tag}",
    )
    if dry_run or tag_commit is not None:
        return result
    if changes:
        state = "Nothing of this version is published yet; what came up already is not sent again"
        with hub_errors(doing, state=state):
            if head is None:
                api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
            commit = api.create_commit(
                repo,
                [
                    local.get(change.path) or CommitOperationDelete(change.path)
                    for change in changes
                ],
                commit_message=f"{repo} {result.version}",
                commit_description=result.logical_digest,
                repo_type="dataset",
                parent_commit=head or commit_at(api, repo),
            )
            result.commit = commit.oid
    state = f"The content is published, the tag {tag} is not set yet; pushing again sets it"
    with hub_errors(f"tagging {tag} in {repo}", state=state):
        api.create_tag(repo, tag=tag, revision=result.commit, repo_type="dataset")
    return result
