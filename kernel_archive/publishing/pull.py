"""Fetching a published archive: by commit, content and version compared with manifest and name before anything uses it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.manifest import MANIFEST_NAME, Manifest, present_manifest, read_manifest, shard_faults
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.swap import check_target, locked_stage, replaced_directory, stage_directory
from kernel_archive.connections import endpoint
from kernel_archive.errors import (
    ArchiveMismatchError,
    ArchiveNotFoundError,
    Finding,
    HubError,
    KernelArchiveError,
    TargetExistsError,
    printable,
)
from kernel_archive.publishing.card import CARD_FILES, EXTRA_FILES, check_card
from kernel_archive.publishing.hub import check_name, commit_id, connect, hub_errors, tag_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{12,64}")


def is_digest(version: str) -> bool:
    """Whether a version is given by its content: ``sha256:`` and hex digits, or at least 12 hex digits."""
    return _DIGEST.fullmatch(version) is not None and not (len(version) == 40 and ":" not in version)


def named_by_digest(manifest: Manifest, version: str) -> Literal["whole", "measured"] | None:
    """What of an archive a digest (or its beginning) names: all of it, its measured tables, or nothing.

    A digest of a manifest of format 1 covers the measured tables alone, whatever the archive's other tables hold.
    """
    wanted = version.removeprefix("sha256:")
    if manifest.measured_digest.removeprefix("sha256:").startswith(wanted):
        return "measured"
    return "whole" if manifest.whole_digest.removeprefix("sha256:").startswith(wanted) else None


def check_version(manifest: Manifest, version: str, where: str) -> None:
    """Refuse an archive that is another version than was asked for: a release (with or without ``v``) or a digest.

    Raises:
        ArchiveMismatchError: it is another one.
    """
    covers = named_by_digest(manifest, version) if is_digest(version) else None
    if covers == "measured":
        warnings.warn(
            f"{printable(version)} is a digest of the old kind: it names the measured tables of {where}, not its splits "
            f"and labels. The digest of the whole is {manifest.logical_digest}",
            stacklevel=2,
        )
    if covers is None and tag_of(version) != tag_of(manifest.version):
        digest = manifest.logical_digest.removeprefix("sha256:")
        raise ArchiveMismatchError(
            f"{where} is version {printable(manifest.version)} (sha256:{digest[:12]}…), not {printable(version)}"
        )


def verify_bytes(directory: Path, manifest: Manifest, fix: str) -> None:
    """Refuse an archive of which a file's bytes are not what the manifest names.

    Raises:
        ArchiveMismatchError: with a finding per file.
    """
    damaged = list(shard_faults(directory, manifest.shards()))
    if damaged:
        more = "" if len(damaged) <= 3 else f" and {len(damaged) - 3} more"
        names = ", ".join(Path(f.file or "").relative_to(directory).as_posix() for f in damaged[:3]) + more
        summary = f"{directory} is not what its manifest says: {names}. {fix}"
        raise ArchiveMismatchError(summary, findings=damaged)


def _stamp(archive: Archive) -> Path | None:
    """Where it is noted that rows and digests of exactly this manifest agree; ``None`` without a home directory."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        content = (archive.path / MANIFEST_NAME).read_bytes()
    except (OSError, RuntimeError):
        return None
    key = hashlib.sha256(__version__.encode() + b"\0" + content).hexdigest()
    return cache / "kernel-archive" / "verified" / key


def verified(archive: Archive, fix: str) -> Archive:
    """The archive, when files, rows and digests are what its manifest names.

    The bytes first, always. Then the rows, since the logical digest that names a version covers rows, not bytes: once per
    manifest, which names the bytes; that they agreed is noted in the user's cache.

    Raises:
        ArchiveMismatchError: with the faults as findings.
    """
    from kernel_archive.archive.validate import digest_faults

    manifest = archive.manifest
    verify_bytes(archive.path, manifest, fix)
    stamp = _stamp(archive)
    if stamp is not None and stamp.is_file():
        return archive
    wrong = list(digest_faults(archive))
    if wrong:
        names = ", ".join(finding.field or "the archive as a whole" for finding in wrong)
        raise ArchiveMismatchError.from_findings(wrong, f"{archive.path} is not what its digest says: {names}. {fix}")
    if stamp is not None:
        with contextlib.suppress(OSError):
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()
    return archive


_KEPT: Final = "What was downloaded is kept; the next call goes on from there"


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
    findings: list[Finding] = []  # what could not be compared: a card that another version of the package wrote


def _names(manifest: Manifest) -> list[str]:
    """Every file of a published archive, by its path: what is asked for, and nothing else."""
    return [*(shard.path for shard in manifest.shards()), *CARD_FILES, *EXTRA_FILES, MANIFEST_NAME]


def _commit_of(api: HfApi, repo: str, version: str | None) -> str:
    """The commit that a version names now: a tag with or without ``v``, a branch, a commit, or a digest."""
    from huggingface_hub.errors import RevisionNotFoundError

    for name in ("main",) if version is None else dict.fromkeys((version, tag_of(version))):
        if ":" not in name:
            with contextlib.suppress(RevisionNotFoundError):
                return commit_id(api.dataset_info(repo, revision=name).sha, repo)
    known = sorted(tag.name for tag in api.list_repo_refs(repo, repo_type="dataset").tags)
    if version is not None and is_digest(version):
        for name in ("main", *reversed(known)):
            commit = commit_id(api.dataset_info(repo, revision=name).sha, repo)
            if named_by_digest(_manifest_at(api, repo, commit), version):
                return commit
    listed = ", ".join(printable(v) for v in known) if known else "none"
    raise HubError(f"{repo} has no version {printable(version or 'main')!r}; it has: {listed}")


def _manifest_at(api: HfApi, repo: str, commit: str) -> Manifest:
    """The manifest of a commit."""
    from huggingface_hub.errors import RemoteEntryNotFoundError

    def downloaded(*, anew: bool) -> Manifest:
        path = api.hf_hub_download(repo, MANIFEST_NAME, repo_type="dataset", revision=commit, force_download=anew)
        return read_manifest(Path(path).parent)

    try:
        try:
            return downloaded(anew=False)
        except ArchiveMismatchError:  # it may have come damaged
            return downloaded(anew=True)
    except RemoteEntryNotFoundError:
        raise ArchiveNotFoundError(
            f"{repo} holds no archive at {commit[:12]} (it has no {MANIFEST_NAME}): it was not published by kernel-archive"
        ) from None


def fetch_commit(api: HfApi, repo: str, commit: str, manifest: Manifest | None = None) -> Path:
    """A folder with all files of a commit, each compared with its manifest; a damaged one is fetched again, once.

    Raises:
        ArchiveNotFoundError: the commit holds no archive.
        ArchiveMismatchError: its files are not those of its manifest.
    """
    if manifest is None:
        manifest = _manifest_at(api, repo, commit)
    wanted = _names(manifest)
    folder = Path(
        api.snapshot_download(repo, repo_type="dataset", revision=commit, allow_patterns=wanted, max_workers=4)
    )
    for shard in manifest.shards():
        if any(shard_faults(folder, [shard])):
            api.hf_hub_download(repo, shard.path, repo_type="dataset", revision=commit, force_download=True)
    verify_bytes(folder, manifest, "The download came damaged twice, or the repository was changed by hand")
    return folder


def _manifest_of(api: HfApi, repo: str, commit: str, version: str | None) -> Manifest:
    """The manifest of a version's commit; content that is not what the version names is refused."""
    manifest = _manifest_at(api, repo, commit)
    if version not in (None, commit) and (manifest.released or is_digest(version)):
        check_version(manifest, version, f"what {repo} holds under {printable(version)}")
    return manifest


def pull(repo: str, *, version: str | None = None, out: str | Path | None = None, replace: bool = False) -> PullResult:
    """Fetch a published archive into a directory.

    Shards are compared with the manifest, their rows with its digests, the digest with the version that was asked for,
    and the card (README, Croissant, pictures) with what the data gives.

    Args:
        repo: ``owner/name`` on the Hub.
        version: a release (its tag, with or without ``v``), a commit, or a digest; the newest content when not given.
        out: the directory; ``owner/name`` in the current one when not given, where ``load_dataset`` finds it too.
        replace: allow another archive in that directory to be overwritten.

    Returns:
        What was done. The directory is complete and verified, or as it was.

    Raises:
        HubError: the Hub refused or can't be reached, or has no such version.
        ArchiveNotFoundError: the repository holds no archive of ours.
        ArchiveMismatchError: the content is not what the version or the manifest says.
        TargetExistsError: the directory holds something else.
    """
    check_name(repo)
    target = Path(out) if out is not None else Path(repo)
    check_target(target)
    unchanged = f"{target} is as it was"
    with hub_errors(repo, f"pulling {repo}", state=unchanged):
        api = connect()
        commit = _commit_of(api, repo, version)
        manifest = _manifest_of(api, repo, commit, version)
        present = present_manifest(target)
        result = PullResult(
            repo=repo,
            path=str(target),
            commit=commit,
            version=manifest.version,
            logical_digest=manifest.logical_digest,
            files=len(manifest.shards()),
            unchanged=False,
            replaced=present.version if present is not None and present != manifest else None,
        )
        if present == manifest and not any(shard_faults(target, manifest.shards())):
            result.findings = check_card(verified(open_archive(target), "Pull it again"), names=(repo,))
            result.unchanged = all(finding.severity != "error" for finding in result.findings)
            if result.unchanged:
                return result
        if present is not None and present != manifest and not replace:
            same = present.measured_digest == manifest.measured_digest
            held = "the same kernels with other splits or files" if same else f"version {printable(present.version)}"
            raise TargetExistsError(
                f"{target} holds {held}, {repo} has {printable(manifest.version)}. Choose another --out, or overwrite "
                "it with --replace"
            )
    with hub_errors(repo, f"pulling {repo}", state=f"{unchanged}. {_KEPT}"):
        folder = fetch_commit(api, repo, commit, manifest)
    with locked_stage(stage_directory(target)), replaced_directory(target) as new:
        for name in _names(manifest):
            if (folder / name).is_file():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, new / name)
        what = f"What {repo} holds at {commit[:12]} was not published by kernel-archive"
        result.findings = check_card(verified(open_archive(new), what), names=(repo,))
        errors = [f for f in result.findings if f.severity == "error"]
        if errors:
            names = ", ".join(Path(f.file or "").name for f in errors)
            summary = f"the card of {repo} is not what its data gives: {names}. {what}"
            raise ArchiveMismatchError.from_findings(errors, summary)
    return result


def _looks_local(name: str) -> bool:
    return name.startswith((".", "~", "/")) or name.count("/") != 1 or "\\" in name or Path(name).is_dir()


def load(name_or_path: str | Path, version: str | None = None) -> Archive:
    """Open an archive: a local directory, or a published one from the Hub (through its cache).

    Args:
        name_or_path: a directory, or ``owner/name``. A directory of that name in the current one comes first, as it
            does for ``load_dataset``.
        version: the version that it must be: a release (``1.2.0`` or its tag ``v1.2.0``), a commit (Hub only) or a
            digest (``sha256:...``). Without one, whatever the directory or the Hub's newest content is.

    Returns:
        The archive; ``.polars(table, split)``, ``.arrow(...)``, ``.datasets(...)`` and ``.sql(query)`` read it.
        Files and rows have been compared with the manifest's digests.

    Raises:
        ArchiveNotFoundError: there is no archive of that name.
        ArchiveMismatchError: the content is not what the manifest or the version names.
        HubError: the Hub refused or can't be reached, and the asked version is not in the cache.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or _looks_local(text):
        archive = open_archive(Path(name_or_path).expanduser())
        if version is not None:
            check_version(archive.manifest, version, str(archive.path))
        return verified(archive, "Build or pull it again")
    repo = check_name(text)
    with hub_errors(repo, f"loading {repo}", state=_KEPT):
        api = connect()
        try:
            commit = _commit_of(api, repo, version)
        except Exception as error:
            cached = _cached(repo, version, error)
            if cached is None:
                raise
            return verified(open_archive(cached), "The cached copy is damaged: load again with a network")
        folder = fetch_commit(api, repo, commit, _manifest_of(api, repo, commit, version))
    return verified(open_archive(folder), "The repository was changed by hand")


def _cached(repo: str, version: str | None, error: Exception) -> Path | None:
    """The cached snapshot of a version when the Hub can't be reached at all; the user is told.

    Snapshots are found by what they hold, not by the name under which they were fetched: the newest one when no version
    is asked for.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import repo_folder_name

    if isinstance(error, (HfHubHTTPError, KernelArchiveError)):
        return None  # the Hub answered: its answer counts
    store = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="dataset") / "snapshots"
    if not store.is_dir():
        return None
    for folder in sorted(store.iterdir(), key=lambda f: (-f.stat().st_mtime_ns, f.name)):
        manifest = present_manifest(folder)
        if manifest is None or not all((folder / shard.path).is_file() for shard in manifest.shards()):
            continue
        if version is not None and folder.name != version:
            try:
                check_version(manifest, version, str(folder))
            except ArchiveMismatchError:
                continue
        told = f"version {printable(manifest.version)}, commit {folder.name[:12]}"
        warnings.warn(f"{endpoint()} cannot be reached: this is the cached copy of {repo}, {told}", stacklevel=4)
        return folder
    return None
