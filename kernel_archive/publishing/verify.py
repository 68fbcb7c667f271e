"""Whether an archive's content is what its manifest and a version's name say."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kernel_archive._version import __version__
from kernel_archive.archive.manifest import MANIFEST_NAME, shard_faults
from kernel_archive.errors import ArchiveMismatchError, printable
from kernel_archive.publishing.hub import tag_of

if TYPE_CHECKING:
    from kernel_archive.archive.manifest import Manifest
    from kernel_archive.archive.open import Archive

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
    """Refuse an archive that is another version than was asked for.

    Args:
        manifest: of the archive that is there.
        version: a release (``1.2.0``, ``v1.2.0``) or a digest (``sha256:...``, at least 12 hex digits).
        where: the archive, for the message.

    Raises:
        ArchiveMismatchError: it is another one.
    """
    if is_digest(version) and (covers := named_by_digest(manifest, version)):
        if covers == "measured":
            warnings.warn(
                f"{printable(version)} is a digest of the old kind: it names the measured tables of {where}, not its splits "
                f"and labels. The digest of the whole is {manifest.logical_digest}",
                stacklevel=2,
            )
        return
    digest = manifest.logical_digest.removeprefix("sha256:")
    if tag_of(version) == tag_of(manifest.version):
        return
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
