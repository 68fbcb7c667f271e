"""``manifest.json``: what an archive directory holds, with digests, inputs and the facts of its splits.

The manifest holds no time, host or user: same inputs and same writer give the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import ArchiveMismatchError, ArchiveNotFoundError, Finding, printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.storage import file_sha256, write_atomically
from kernel_archive.untrusted import has_few_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

#: Version of the manifest. Format 1 named an archive by the digest of its measured tables alone.
FORMAT: Final = 2
_READ_FORMATS: Final = (1, FORMAT)
MANIFEST_NAME: Final = "manifest.json"
#: A hundred times the manifest of the shipped data; one comes from a Hub, and may be anything.
MAX_MANIFEST_BYTES: Final = 64 << 20


class ShardFacts(msgspec.Struct, frozen=True):
    """One Parquet file: path inside the archive, rows, bytes, sha256 of the bytes as 64 hex digits."""

    path: str
    rows: int
    bytes: int
    sha256: str


class TableFacts(msgspec.Struct, frozen=True):
    """One table: shards per split, and the logical digest over all its rows."""

    splits: dict[str, list[ShardFacts]]
    logical_digest: str

    @property
    def rows(self) -> dict[str, int]:
        """Rows per split."""
        return {split: sum(s.rows for s in shards) for split, shards in self.splits.items()}


class InputFacts(msgspec.Struct, frozen=True):
    """One run that went in: its search id, path relative to its builder, digest, bytes, and what was found in it."""

    search_id: str
    builder: str
    path: str
    digest: str
    bytes: int
    evaluations: int
    findings: int


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen facts of one derived table (``eval``, ``discovery_pairs``, ``train_pairs``)."""

    name: str  # "canonical" or the name of a variant; only the canonical one is scored as such
    #: "selected" by a definition here, "published" and kept as it was, or "withheld": selected, without labels.
    origin: str
    scheme: str  # bin scheme of its labels
    logical_digest: str  # over its rows
    rows: int
    parameters: dict[str, Any]  # everything that the selection depended on (cap, GPU, seed, strata, ...)
    facts: dict[str, Any]  # counts, representatives (m_1, m_8, task x bin, cutoffs, exclusions, label differences)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest."""

    format: int  # of the manifest: 2, or 1 (see whole_digest)
    name: str  # of the dataset, gpu-forecasters/kernels
    version: str  # a release's name, or the first 12 hex digits of the digest
    logical_digest: str  # the name of the content: whole_digest when the manifest was written
    package: str  # version of this package that wrote it
    writer: str  # version of the Parquet writer
    bin_scheme: str  # of kernels.bin
    builders: list[dict[str, Any]]  # recipes with version, licence and digest
    tables: dict[str, TableFacts]
    splits: dict[str, SplitFacts]  # facts of the derived tables
    inputs: list[InputFacts]  # every run
    findings: dict[str, Any]  # damaged lines and other faults of the logs: number per code, and the first ones in full
    reports: dict[str, Any]  # further counts (exclusions, rows withheld from train, similarity, ...)
    canary: str  # the text in every row
    about: dict[str, str] = {}  # title, description and citation of an archive of one's own
    #: What the evaluation split of an archive of one's own asks about, where its recipe or its name makes it one.
    evaluation: dict[str, Any] | None = None

    @property
    def measured_digest(self) -> str:
        """Digest over the measured tables (kernels, failures, evaluations, searches, references, gpus).

        It stays the same when splits are made in another way: it says which measurements an archive holds.
        """
        total = hashlib.sha256()
        for name in sorted(name for name in self.tables if name in TABLES and not TABLES[name].derived):
            total.update(f"{name}\0{self.tables[name].logical_digest}\0".encode())
        return f"sha256:{total.hexdigest()}"

    @property
    def whole_digest(self) -> str:
        """Digest over everything that a score depends on: every table, and the facts of every split.

        A manifest of format 1 has the digest of the measured tables in this place: whoever is given such a digest knows
        nothing of the evaluation labels.
        """
        if self.format == 1:
            return self.measured_digest
        content = {
            "bin_scheme": self.bin_scheme,
            "tables": {name: facts.logical_digest for name, facts in self.tables.items()},
            "splits": self.splits,
        }
        return f"sha256:{sha256_hex(canonical_json(content))}"

    @property
    def released(self) -> bool:
        """Whether the version is a name that somebody gave; else it is the beginning of the digest."""
        return self.version != self.logical_digest.removeprefix("sha256:")[:12]

    def shards(self, table: str | None = None, split: str | None = None) -> list[ShardFacts]:
        """Every Parquet file, or those of one table or split, in order."""
        return [
            shard
            for name, facts in self.tables.items()
            if table in (None, name)
            for part, shards in facts.splits.items()
            if split in (None, part)
            for shard in shards
        ]


def shard_faults(directory: Path, shards: Iterable[ShardFacts], *, content: bool = True) -> Iterator[Finding]:
    """A finding for every file that is not what the manifest says: missing, of another size, or (``content``) of other bytes."""
    for shard in shards:
        path = directory / shard.path
        code, message = "missing-file", None
        try:
            size = path.stat().st_size
            if size != shard.bytes:
                code, message = "wrong-size", f"{size} bytes, the manifest says {shard.bytes}"
            elif content and file_sha256(path) != shard.sha256:
                code, message = "wrong-sha256", "the bytes are not those that the manifest names"
        except FileNotFoundError:
            message = "named in the manifest, not there"
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        if message is not None:
            yield Finding(code=code, message=message, file=str(path), fix="Build or pull the archive again")


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Write ``manifest.json``, with the digest of what it names: indented, keys in a fixed order, no time in it.

    Returns:
        The manifest as written. One that is called after its digest is called after the new one.
    """
    # As it will be read: a key or number that JSON spells differently would give another digest.
    plain = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest)
    digest = plain.whole_digest
    sealed = msgspec.structs.replace(
        plain,
        version=plain.version if plain.released else digest.removeprefix("sha256:")[:12],
        logical_digest=digest,
    )
    data = msgspec.json.format(msgspec.json.encode(sealed, order="deterministic"), indent=1) + b"\n"
    write_atomically(directory / MANIFEST_NAME, data)
    return sealed


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an archive directory.

    Raises:
        ArchiveNotFoundError: there is none.
        ArchiveMismatchError: it can't be read or has another format.
    """
    path = directory / MANIFEST_NAME
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ArchiveNotFoundError(
            f"no archive in {directory} (it has no {MANIFEST_NAME}). Build your own with: kernel-archive build builder.toml; "
            f"the shipped one with: kernel-archive build --out {directory}"
        ) from None
    except OSError as error:
        raise ArchiveNotFoundError(f"{path} cannot be read: {error.strerror or error}") from None

    def fail(why: object) -> ArchiveMismatchError:
        return ArchiveMismatchError.of(
            code="bad-manifest", file=str(path), message=f"not a manifest: {why}", fix="Build or pull the archive again"
        )

    if len(data) > MAX_MANIFEST_BYTES or not has_few_values(data):
        raise fail("it is larger than one can be")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise fail(error) from None
    if manifest.format not in _READ_FORMATS:
        raise ArchiveMismatchError(
            f"{path} has format {manifest.format}, this version reads {' and '.join(map(str, _READ_FORMATS))}. "
            "Install a matching kernel-archive"
        )
    _refuse_foreign_names(manifest, path)
    return manifest


def present_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory; ``None`` where there is none, or none that can be read: it protects nothing."""
    try:
        return read_manifest(directory)
    except (ArchiveNotFoundError, ArchiveMismatchError):
        return None


def _refuse_foreign_names(manifest: Manifest, path: Path) -> None:
    """Names from a manifest go into paths and queries: only those of our own layout are taken.

    Raises:
        ArchiveMismatchError: a table, split or shard is named as none of ours is.
    """
    for table, facts in manifest.tables.items():
        known = TABLES.get(table)
        if known is None or not facts.splits.keys() <= set(known.splits):
            raise ArchiveMismatchError(
                f"{path} names a table or split that this version does not know: {printable(table)}"
            )
        for split, shards in facts.splits.items():
            for shard in shards:
                if not re.fullmatch(rf"data/{table}/{split}-\d{{5}}-of-\d{{5}}\.parquet", shard.path):
                    raise ArchiveMismatchError(f"{path} names a shard outside the layout: {printable(shard.path)}")
