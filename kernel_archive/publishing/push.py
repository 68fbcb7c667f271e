"""Publish an archive: validate, upload what changed in one commit, tag it.

The content changes on the Hub in one commit, which is there or isn't. What a broken push leaves
behind (uploaded blobs, a commit without its tag) the next push of the same archive completes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.manifest import Manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.swap import OURS
from kernel_archive.errors import (
    ArchiveMismatchError,
    ArchiveNotFoundError,
    DataError,
    TargetExistsError,
    UsageError,
)
from kernel_archive.publishing.card import CARD_FILE, published_files, render_card, validate_whole
from kernel_archive.publishing.hub import (
    check_name,
    commit_at,
    connect,
    hub_errors,
    manifest_at,
    tag_of,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_TAG: Final = re.compile(r"\w(?:[\w.+-]*\w)?")


class PublishedFile(msgspec.Struct, frozen=True):
    """One file of a published version."""

    path: str
    bytes: int


class PushResult(msgspec.Struct, kw_only=True):
    """What a push did, or would do."""

    repo: str
    version: str
    logical_digest: str
    tag: str
    dry_run: bool  # nothing was sent
    files: list[PublishedFile]  # everything; the Hub is sent what it lacks
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


def _holds(api: HfApi, repo: str, commit: str, manifest: Manifest) -> bool:
    """Tell whether a commit holds the archive of this manifest."""
    try:
        return manifest_at(api, repo, commit) == manifest
    except (ArchiveMismatchError, ArchiveNotFoundError):
        return False


def push(
    path: str | Path, repo: str, *, private: bool = False, dry_run: bool = False
) -> PushResult:
    """Publish an archive directory as the dataset ``repo`` (``owner/name``), and tag its version.

    ``private`` makes a new repository private. ``dry_run`` says what would be published and asks
    nobody. A push of what stands there already sends nothing.

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
    files, api = _valid_files(archive, repo), connect()
    result = PushResult(
        repo=repo,
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        tag=tag,
        dry_run=dry_run,
        files=[PublishedFile(name, add.upload_info.size) for name, add in sorted(files.items())],
        tagged=True,
        url=f"{api.endpoint}/datasets/{repo}/tree/{tag}",
    )
    if dry_run:
        return result
    state = "Nothing of this version is published yet; what came up already is not sent again"
    with hub_errors(f"pushing to {repo}", state=state):
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        head = commit_at(api, repo)
        tags = api.list_repo_refs(repo, repo_type="dataset").tags
        tagged = next((ref.target_commit for ref in tags if ref.name == tag), None)
        if tagged is not None and not _holds(api, repo, tagged, manifest):
            raise TargetExistsError(
                f"{repo} has the tag {tag} already, with other content; a published version never "
                "changes. Build this one with another --version"
            )
        if tagged is not None:
            result.tagged = False
            return result
        gone = [
            CommitOperationDelete(name)
            for name in api.list_repo_files(repo, revision=head, repo_type="dataset")
            if name not in files and (name.partition("/")[0] in OURS)
        ]
        commit = api.create_commit(  # leaves out files that the Hub has
            repo,
            [*files.values(), *gone],
            commit_message=f"{repo} {result.version}",
            commit_description=result.logical_digest,
            repo_type="dataset",
            parent_commit=head,
        )
    state = f"The content is published, the tag {tag} is not set yet; pushing again sets it"
    with hub_errors(f"tagging {tag} in {repo}", state=state):
        api.create_tag(repo, tag=tag, revision=commit.oid, repo_type="dataset")
    return result
