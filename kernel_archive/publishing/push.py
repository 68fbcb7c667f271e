"""Publishing an archive: validate, upload what changed in one commit, tag it.

The content changes on the Hub in one commit, which is there or isn't. What a broken push leaves behind (uploaded blobs
without a commit, a commit without its tag) the next push of the same archive finds and completes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.manifest import MANIFEST_NAME, Manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.connections import endpoint
from kernel_archive.errors import ArchiveMismatchError, DataError, HubError, TargetExistsError, UsageError
from kernel_archive.publishing.card import CARD_FILES, EXTRA_FILES, card_name, check_card, render_card
from kernel_archive.publishing.facts import splits_of
from kernel_archive.publishing.hub import check_name, commit_id, connect, hub_errors, tag_of
from kernel_archive.publishing.pull import fetch_commit
from kernel_archive.publishing.templates import render

if TYPE_CHECKING:
    from pathlib import Path

    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.hf_api import RepoFile

    from kernel_archive.errors import Finding

_OURS: Final = ("data/", "assets/")


class FileChange(msgspec.Struct, frozen=True):
    """One file that differs between the archive and the Hub: path, bytes to send, ``add``, ``change`` or ``delete``."""

    path: str
    bytes: int
    kind: str


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
    notes: str  # the release notes, Markdown
    url: str  # of the version


def check_tag(tag: str, manifest: Manifest) -> str:
    """A tag that may name this version.

    A release's tag is its version, with or without ``v``. An archive whose version is only its digest has no name yet:
    any tag may give it one.

    Raises:
        UsageError: the tag names another version, or can't be a tag.
    """
    misplaced = tag.startswith(("-", "/", ".")) or tag.endswith(("/", ".", ".lock"))
    if not tag or misplaced or set(" ~^:?*[\\") & set(tag) or ".." in tag or "@{" in tag:
        raise UsageError(f"{tag!r} can't be a git tag")
    if manifest.released and tag_of(tag) != tag_of(manifest.version):
        raise UsageError(
            f"the archive is version {manifest.version}, so its tag is {tag_of(manifest.version)}, not {tag}. "
            f"Build it with --version {tag.removeprefix('v')} to publish it as that"
        )
    return tag


def _validate(archive: Archive) -> list[Finding]:
    from kernel_archive.archive.validate import validate_measured
    from kernel_archive.selection.check import check_splits

    return validate_measured(archive, (("splits", check_splits), ("card", check_card))).findings


def _valid_files(archive: Archive, repo: str) -> dict[str, CommitOperationAdd]:
    """Everything that is published: path in the repository -> file or content.

    Raises:
        DataError: the archive is not valid.
    """
    from huggingface_hub import CommitOperationAdd

    findings = _validate(archive)
    if errors := [f for f in findings if f.severity == "error"]:
        summary = f"{archive.path} is not valid ({len(errors)} errors), so nothing is published. Build it again"
        raise DataError.from_findings(errors, summary)
    files: dict[str, Path | bytes] = {shard.path: archive.path / shard.path for shard in archive.manifest.shards()}
    names = [MANIFEST_NAME, *EXTRA_FILES]
    if card_name(archive) == repo and not any(f.code == "stale-card" for f in findings):
        names += CARD_FILES
    else:
        files |= render_card(archive, name=repo)
    files |= {name: archive.path / name for name in names if (archive.path / name).is_file()}
    return {path: CommitOperationAdd(path, content) for path, content in files.items()}


def _same(local: CommitOperationAdd, remote: RepoFile) -> bool:
    from huggingface_hub.utils.sha import git_hash

    if remote.lfs:
        return local.upload_info.sha256.hex() == remote.lfs.sha256
    with local.as_file() as stream:
        return git_hash(stream.read()) == remote.blob_id


def _head(api: HfApi, repo: str) -> str | None:
    """The newest commit; ``None`` where there is no such repository."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return commit_id(api.dataset_info(repo).sha, repo)
    except RepositoryNotFoundError:
        # A login that isn't accepted shows in the next line, as itself.
        api.whoami()
        return None


def _tree(api: HfApi, repo: str, revision: str) -> dict[str, RepoFile]:
    from huggingface_hub.hf_api import RepoFile

    listed = api.list_repo_tree(repo, recursive=True, revision=revision, repo_type="dataset")
    return {file.path: file for file in listed if isinstance(file, RepoFile)}


def _changes(local: dict[str, CommitOperationAdd], remote: dict[str, RepoFile]) -> list[FileChange]:
    made = []
    for path, content in sorted(local.items()):
        if path not in remote or not _same(content, remote[path]):
            made.append(FileChange(path, content.upload_info.size, "change" if path in remote else "add"))
    for path in sorted(remote.keys() - local.keys()):
        if path in CARD_FILES or path.startswith(_OURS):
            made.append(FileChange(path, 0, "delete"))
    return made


def _release_notes(archive: Archive, before: Path | None) -> str:
    """What a version holds and what changed since the one that stands on the Hub, as Markdown; no time in it."""
    from kernel_archive.selection.diff import changelog, diff

    changes = "The first version here." if before is None else changelog(diff(before, archive.path)).strip()
    tables = {name: splits_of(archive, name) for name in archive.tables}
    return render("notes.md", manifest=archive.manifest, tables=tables, changes=changes).strip()


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
    from huggingface_hub import CommitOperationDelete

    check_name(repo)
    archive = open_archive(path)
    manifest = archive.manifest
    tag = check_tag(tag or tag_of(manifest.version), manifest)
    local = _valid_files(archive, repo)
    doing = f"pushing to {repo}"
    with hub_errors(repo, doing, state="Nothing was sent"):
        api = connect()
        head = _head(api, repo)
        refs = [] if head is None else api.list_repo_refs(repo, repo_type="dataset").tags
        there = {} if head is None else _tree(api, repo, head)
        tagged_at = next((ref.target_commit for ref in refs if ref.name == tag), None)
        at_tag = there if tagged_at in (None, head) else _tree(api, repo, tagged_at)
        changes = _changes(local, at_tag)
        if tagged_at is not None and changes:
            raise TargetExistsError(
                f"{repo} has the tag {tag} already, with other content ({len(changes)} files differ); a published "
                "version never changes. Build this one with another --version"
            )
        before = None
        if changes and head is not None and MANIFEST_NAME in there:
            # Somebody's file of the same name, or a layout of another time: there is nothing to compare with.
            with suppress(ArchiveMismatchError):
                before = fetch_commit(api, repo, head)
        notes = _release_notes(archive, before)
    result = PushResult(
        repo=repo,
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        tag=tag,
        dry_run=dry_run,
        created=head is None,
        changes=changes,
        unchanged=len(local) - sum(1 for c in changes if c.kind != "delete"),
        upload_bytes=sum(c.bytes for c in changes),
        commit=tagged_at or (head if not changes else None),
        tagged=tagged_at is None,
        notes=notes,
        url=f"{endpoint()}/datasets/{repo}/tree/{tag}",
    )
    if dry_run or tagged_at is not None:
        return result
    if changes:
        nothing = "Nothing of this version is published yet; what came up already is not sent again"
        with hub_errors(repo, doing, state=nothing):
            if head is None:
                api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
            made = api.create_commit(
                repo,
                [CommitOperationDelete(c.path) if c.kind == "delete" else local[c.path] for c in changes],
                commit_message=f"{manifest.name} {manifest.version}",
                commit_description=notes,
                repo_type="dataset",
                parent_commit=head or commit_id(api.dataset_info(repo).sha, repo),
            )
            result.commit = commit_id(made.oid, repo)
            # What the commit holds is compared with what was meant before it gets a name.
            there = _tree(api, repo, result.commit)
            wrong = [path for path in local if path not in there or not _same(local[path], there[path])]
            if wrong:
                raise HubError(f"{repo} now holds other content than was sent: {', '.join(wrong[:5])}. Push again")
    untagged = f"The content is published, the tag {tag} is not set yet; pushing again sets it"
    with hub_errors(repo, f"tagging {tag} in {repo}", state=untagged):
        api.create_tag(repo, tag=tag, tag_message=notes, revision=result.commit, repo_type="dataset")
    return result
