"""Compare an archive with the version asked for, its bytes and rows with its manifest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernel_archive.archive.manifest import shard_faults
from kernel_archive.errors import ArchiveMismatchError, printable
from kernel_archive.publishing.hub import tag_of

if TYPE_CHECKING:
    from kernel_archive.archive.manifest import Manifest
    from kernel_archive.archive.open import Archive

_DIGEST: Final = re.compile(r"(sha256:)?[0-9a-f]{12,64}")
_COMMIT_LENGTH: Final = 40


def is_digest(version: str) -> bool:
    """Whether a version names content: ``sha256:`` and hex digits, or at least 12 hex digits."""
    commit = len(version) == _COMMIT_LENGTH and ":" not in version
    return _DIGEST.fullmatch(version) is not None and not commit


def has_digest(manifest: Manifest, version: str) -> bool:
    """Whether a digest, or its beginning, is that of an archive."""
    own = manifest.whole_digest.removeprefix("sha256:")
    return own.startswith(version.removeprefix("sha256:"))


def check_version(manifest: Manifest, version: str, place: str) -> None:
    """Refuse an archive of another version: a release (with or without ``v``) or a digest.

    Raises:
        ArchiveMismatchError: it is another one.
    """
    same_digest = is_digest(version) and has_digest(manifest, version)
    if not same_digest and tag_of(version) != tag_of(manifest.version):
        digest = manifest.logical_digest.removeprefix("sha256:")
        raise ArchiveMismatchError(
            f"{place} is version {printable(manifest.version)} (sha256:{digest[:12]}…), "
            f"not {printable(version)}"
        )


def verify_bytes(directory: Path, manifest: Manifest, fix: str) -> None:
    """Refuse an archive with a file whose bytes are not what the manifest names.

    Raises:
        ArchiveMismatchError: with a finding per file.
    """
    damaged = list(shard_faults(directory, manifest.shards()))
    if damaged:
        paths = [Path(f.file or "").relative_to(directory).as_posix() for f in damaged]
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        summary = f"{directory} is not what its manifest says: {', '.join(paths[:3])}{more}. {fix}"
        raise ArchiveMismatchError(summary, findings=damaged)


def verified(archive: Archive, fix: str) -> Archive:
    """Return the archive when files, rows and digests are what its manifest names.

    Raises:
        ArchiveMismatchError: with the faults as findings.
    """
    from kernel_archive.archive.validate import digest_faults

    verify_bytes(archive.path, archive.manifest, fix)
    faults = list(digest_faults(archive))
    if faults:
        names = ", ".join(finding.field or "the archive as a whole" for finding in faults)
        summary = f"{archive.path} is not what its digest says: {names}. {fix}"
        raise ArchiveMismatchError.from_findings(faults, summary)
    return archive
