"""Fetch a published archive by commit, and verify it before anything uses it."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.archive.manifest import (
    MANIFEST_NAME,
    Manifest,
    present_manifest,
    read_manifest,
    shard_faults,
)
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.swap import (
    check_target,
    locked_work_folder,
    replaced_directory,
    work_folder_of,
)
from kernel_archive.errors import (
    ArchiveMismatchError,
    ArchiveNotFoundError,
    Finding,
    HubError,
    TargetExistsError,
    printable,
)
from kernel_archive.publishing.card import check_card, published_files
from kernel_archive.publishing.hub import check_name, commit_at, connect, hub_errors, tag_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_KEPT: Final = (
    "What was downloaded is kept; the next call goes on from there. Offline, load what was pulled"
)
_DAMAGED: Final = "It was changed by hand, or came damaged twice"
#: A bare one of 40 digits is a commit.
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{12,64}|(?![0-9a-f]{40}$)[0-9a-f]{12,64}")


class PullResult(msgspec.Struct, kw_only=True):
    """What a pull did."""

    repo: str
    path: str  # the archive directory
    commit: str
    version: str
    logical_digest: str
    files: int
    unchanged: bool  # it was there already, whole
    replaced: str | None  # the version that stood there before, if another
    findings: list[Finding] = []  # differences of a card that another package version wrote


def is_digest(version: str) -> bool:
    """Tell whether a version names content: ``sha256:`` and hex digits, or 12 or more of them."""
    return _DIGEST.fullmatch(version) is not None


def is_version_of(manifest: Manifest, version: str) -> bool:
    """Tell whether a version names an archive: its release (with or without ``v``) or digest."""
    if is_digest(version):
        own = manifest.whole_digest.removeprefix("sha256:")
        return own.startswith(version.removeprefix("sha256:"))
    return tag_of(version) == tag_of(manifest.version)


def check_version(manifest: Manifest, version: str, place: str) -> None:
    """Refuse an archive of another version.

    Raises:
        ArchiveMismatchError: it is another one.
    """
    if not is_version_of(manifest, version):
        digest = manifest.logical_digest.removeprefix("sha256:")
        raise ArchiveMismatchError(
            f"{place} is version {printable(manifest.version)} (sha256:{digest[:12]}…), "
            f"not {printable(version)}"
        )


def _verify_content(archive: Archive, fix: str) -> Archive:
    """Return the archive, once files, rows and digests are what its manifest names."""
    from kernel_archive.archive.validate import digest_faults

    faults = list(shard_faults(archive.path, archive.manifest.shards()))
    faults = faults or list(digest_faults(archive))
    if faults:
        places = [fault.file or fault.field or "the archive as a whole" for fault in faults]
        names = [place.removeprefix(f"{archive.path}/") for place in places]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        summary = f"{archive.path} is not what its manifest says: {', '.join(names[:3])}{more}"
        raise ArchiveMismatchError.from_findings(faults, f"{summary}. {fix}")
    return archive


def _manifest_at(api: HfApi, repo: str, commit: str) -> Manifest:
    """Fetch the manifest of a commit, anew: a damaged one does not stay in the cache."""
    from huggingface_hub.errors import RemoteEntryNotFoundError

    try:
        path = api.hf_hub_download(
            repo, MANIFEST_NAME, repo_type="dataset", revision=commit, force_download=True
        )
    except RemoteEntryNotFoundError:
        raise ArchiveNotFoundError(
            f"{repo} holds no archive at {commit[:12]} (it has no {MANIFEST_NAME}): it was not "
            "published by kernel-archive"
        ) from None
    return read_manifest(Path(path).parent)


def _find(api: HfApi, repo: str, version: str | None) -> tuple[str, Manifest]:
    """Find the commit that a version names now: a release or its tag, a commit or a digest."""
    from huggingface_hub.errors import RevisionNotFoundError

    if version is None:
        commit = commit_at(api, repo)
        return commit, _manifest_at(api, repo, commit)
    tags = sorted(tag.name for tag in api.list_repo_refs(repo, repo_type="dataset").tags)
    named = [version, tag_of(version)]
    # A digest is no name of the Hub: main and every tag are looked into, the last by name first.
    others = ["main", *reversed(tags)] if is_digest(version) else []
    for revision in [*named, *others]:
        with suppress(RevisionNotFoundError):
            commit = commit_at(api, repo, revision)
            manifest = _manifest_at(api, repo, commit)
            if revision not in named and not is_version_of(manifest, version):
                continue
            # A release goes by its name, digest or commit: a tag may hold another, a branch any.
            if manifest.released and not commit.startswith(version):
                check_version(manifest, version, f"what {repo} holds under {printable(version)}")
            return commit, manifest
    listed = ", ".join(map(printable, tags)) or "none"
    raise HubError(f"{repo} has no version {printable(version)!r}; it has: {listed}")


def _fetch(api: HfApi, repo: str, commit: str, manifest: Manifest) -> Path:
    """Fetch all files of a commit into the Hub's cache; what came damaged is fetched again."""
    fetch = partial(api.snapshot_download, repo, repo_type="dataset", revision=commit)
    folder = Path(fetch(allow_patterns=published_files(manifest)))
    damaged = [s.path for s in manifest.shards() if any(shard_faults(folder, [s]))]
    return Path(fetch(allow_patterns=damaged, force_download=True)) if damaged else folder


def pull(
    repo: str, *, version: str | None = None, out: str | Path | None = None, replace: bool = False
) -> PullResult:
    """Fetch a published archive into a directory, verified down to its rows and its card.

    ``version`` is a release (its tag, with or without ``v``), a commit or a digest; the newest
    content when not given. The directory is ``out``, else ``owner/name`` here, where
    ``load_dataset`` finds it too; ``replace`` allows another archive in it to be overwritten.

    Raises:
        HubError: the Hub refused or can't be reached, or has no such version.
        ArchiveNotFoundError: the repository holds no archive of ours.
        ArchiveMismatchError: the content is not what the version or the manifest says.
        TargetExistsError: the directory holds something else.
    """
    check_name(repo)
    target = Path(out) if out is not None else Path(repo)
    check_target(target)
    state = f"{target} is as it was"
    with hub_errors(f"pulling {repo}", state=state):
        api = connect()
        commit, manifest = _find(api, repo, version)
    present = present_manifest(target)
    replaced = present.version if present is not None and present != manifest else None
    if replaced is not None and not replace:
        raise TargetExistsError(
            f"{target} holds version {printable(replaced)}, or other splits of it; {repo} "
            f"has {printable(manifest.version)}. Choose another --out, or overwrite it with "
            "--replace"
        )
    result = PullResult(
        repo=repo,
        path=str(target),
        commit=commit,
        version=manifest.version,
        logical_digest=manifest.logical_digest,
        files=len(manifest.shards()),
        unchanged=present == manifest,
        replaced=replaced,
    )
    if result.unchanged:
        with suppress(ArchiveMismatchError):
            result.findings = _verify_pulled(target, repo)
            return result
        result.unchanged = False
    with hub_errors(f"pulling {repo}", state=f"{state}. {_KEPT}"):
        folder = _fetch(api, repo, commit, manifest)
    with locked_work_folder(work_folder_of(target)), replaced_directory(target) as new:
        for name in published_files(manifest):
            if (folder / name).is_file():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, new / name)
        result.findings = _verify_pulled(new, repo)
    return result


def _verify_pulled(directory: Path, repo: str) -> list[Finding]:
    """Verify an archive and its card; return the warnings about the card."""
    findings = check_card(_verify_content(open_archive(directory), _DAMAGED), repositories=(repo,))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        names = ", ".join(Path(finding.file or "").name for finding in errors)
        summary = f"the card of {repo} is not what its data gives: {names}. {_DAMAGED}"
        raise ArchiveMismatchError.from_findings(errors, summary)
    return findings


def load(name_or_path: str | Path, version: str | None = None) -> Archive:
    """Open a local archive, or ``owner/name`` on the Hub; files and rows are verified.

    As for ``load_dataset``, a directory of that name in the current one comes first. ``version`` is
    as of :func:`pull`. The archive's ``.polars(table, split)``, ``.arrow(...)`` and ``.sql(query)``
    read it.

    Raises:
        ArchiveNotFoundError: there is no archive of that name.
        ArchiveMismatchError: the content is not what the manifest or the version names.
        HubError: the Hub refused or can't be reached: pull once, then load the directory.
    """
    text = str(name_or_path)
    like_a_path = text.startswith((".", "~", "/")) or text.count("/") != 1 or "\\" in text
    if isinstance(name_or_path, Path) or like_a_path or Path(text).is_dir():
        archive = open_archive(Path(name_or_path).expanduser())
        if version is not None:
            check_version(archive.manifest, version, str(archive.path))
        return _verify_content(archive, "Build or pull it again")
    repo = check_name(text)
    with hub_errors(f"loading {repo}", state=_KEPT):
        api = connect()
        folder = _fetch(api, repo, *_find(api, repo, version))
    return _verify_content(open_archive(folder), _DAMAGED)
