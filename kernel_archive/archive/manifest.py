"""``manifest.json``: what an archive directory holds, with digests, inputs and facts of its splits.

The manifest holds no time, host or user: same inputs and same writer give the same bytes.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kernel_archive.errors import ArchiveMismatchError, ArchiveNotFoundError, Finding, printable
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.storage import file_sha256, write_atomically
from kernel_archive.untrusted import has_few_values

#: Version of the manifest.
FORMAT: Final = 2
MANIFEST_NAME: Final = "manifest.json"
#: Stands behind the version of an archive whose labels are withheld.
WITHHELD_SUFFIX: Final = "-withheld"
#: Refuse a larger manifest (the shipped one has a hundredth): it may come from a Hub.
MAX_MANIFEST_BYTES: Final = 64 << 20


class ShardFacts(msgspec.Struct, frozen=True):
    """One Parquet file."""

    path: str  # inside the archive
    rows: int
    bytes: int
    sha256: str  # of the bytes, 64 hex digits


class TableFacts(msgspec.Struct, frozen=True):
    """One table: shards per split of the Hub (train, test), and the digest over all its rows."""

    splits: dict[str, list[ShardFacts]]
    logical_digest: str

    @property
    def rows(self) -> dict[str, int]:
        """Rows per split."""
        return {split: sum(s.rows for s in shards) for split, shards in self.splits.items()}


class InputFacts(msgspec.Struct, frozen=True):
    """One run that went in."""

    search_id: str  # of the run; it may hold several searches
    builder: str
    path: str  # relative to its builder
    digest: str
    bytes: int
    evaluations: int  # number of them
    findings: int  # number of them


#: Why a training kernel is in no pair -> the words for it.
_NO_PAIRS: Final = {
    "unknown_reference": "have no reference program. Return reference_code in the query, or set "
    "reference = ... in the [[source]]",
    "held_out": "are programs that a held-out search ran too",
    "flagged": "are doubtful: see kernel-archive audit",
}


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one derived table: an evaluation split, discovery or training pairs."""

    name: str  # "canonical" or the name of a variant; only the canonical one is scored as such
    #: "selected" by a definition, "published" and kept as it was, or "withheld": without labels.
    origin: str
    scheme: str  # bin scheme of its labels
    logical_digest: str  # over its rows
    rows: int
    parameters: dict[str, Any]  # what the selection depended on (cap, GPU, seed, strata, ...)
    facts: dict[str, Any]  # counts, m_1, m_8, task x bin, cutoffs, exclusions, label differences

    def why_no_pairs(self) -> str | None:
        """Say why most training kernels are in no pair; ``None`` where none was left out."""
        left_out = Counter(self.facts.get("excluded", {}))
        del left_out["other_role"]
        ((reason, n),) = left_out.most_common(1) or [("", 0)]
        why = _NO_PAIRS.get(reason, f"are left out: {reason.replace('_', ' ')}")
        return f"{n:,} training kernels {why}" if n else None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest."""

    format: int  # of the manifest
    name: str  # of the dataset, gpu-forecasters/kernels
    version: str  # a release's name, or the first 12 hex digits of the digest
    logical_digest: str  # the name of the content: whole_digest when the manifest was written
    package: str  # version of this package that wrote it
    writer: str  # version of the Parquet writer
    bin_scheme: str  # of kernels.bin
    builders: list[dict[str, Any]]  # recipes with version, licence and digest
    tables: dict[str, TableFacts]
    splits: dict[str, SplitFacts]  # by derived table
    inputs: list[InputFacts]  # every run
    findings: dict[str, Any]  # faults of the logs: number per code, and the first ones in full
    reports: dict[str, Any]  # further counts (exclusions, rows withheld from train, ...)
    canary: str  # the text in every row
    about: dict[str, str] = {}  # title, description and citation of a user's own archive
    #: ``[eval]`` of a user's own archive; ``None`` in the shipped one.
    eval_rules: dict[str, Any] | None = msgspec.field(default=None, name="evaluation")
    #: Of a folder of withheld labels; no archive has the field.
    kind: Literal["labels"] | msgspec.UnsetType = msgspec.UNSET

    @property
    def measured_digest(self) -> str:
        """Digest over the measured tables; it stays the same when splits are made anew."""
        total = hashlib.sha256()
        for name in sorted(self.tables):
            if name in TABLES and not TABLES[name].derived:
                total.update(f"{name}\0{self.tables[name].logical_digest}\0".encode())
        return f"sha256:{total.hexdigest()}"

    @property
    def whole_digest(self) -> str:
        """Digest over everything that a score depends on: tables and facts of splits."""
        content = {
            "bin_scheme": self.bin_scheme,
            "tables": {name: facts.logical_digest for name, facts in self.tables.items()},
            "splits": self.splits,
        }
        return f"sha256:{sha256_hex(canonical_json(content))}"

    @property
    def natural_builders(self) -> list[str]:
        """Names of the builders whose recipes say that every program was written whole."""
        return [str(b["name"]) for b in self.builders if b.get("natural") is True]

    @property
    def released(self) -> bool:
        """Whether the version is a name that somebody gave; else it is taken from the digest."""
        return self.version != _short(self.logical_digest)

    def shards(self, table: str | None = None, split: str | None = None) -> list[ShardFacts]:
        """List every Parquet file, or those of one table or split, in order."""
        return [
            shard
            for name, facts in self.tables.items()
            if table in (None, name)
            for part, shards in facts.splits.items()
            if split in (None, part)
            for shard in shards
        ]


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def shard_faults(
    directory: Path, shards: Iterable[ShardFacts], *, content: bool = True
) -> Iterator[Finding]:
    """Yield a finding for every file that is missing, of another size, or of other ``content``."""
    for shard in shards:
        path = directory / shard.path
        code, message = "missing-file", ""
        try:
            size = path.stat().st_size
            if size != shard.bytes:
                message = f"has size {size:,}, the manifest says {shard.bytes:,}"
                code = "wrong-size"
            elif content and file_sha256(path) != shard.sha256:
                code, message = "wrong-sha256", "the bytes are not those that the manifest names"
        except FileNotFoundError:
            message = "named in the manifest, not there"
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        if message:
            fix = "Build or pull the archive again"
            yield Finding(code=code, message=message, file=str(path), fix=fix)


def write_manifest(directory: Path, manifest: Manifest) -> Manifest:
    """Write ``manifest.json``, indented, keys in one order; return the manifest as written.

    It gets the digest of its content, and a version from it if it has none.
    """
    # As it will be read: a key or number that JSON spells differently would give another digest.
    plain = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest)
    digest = plain.whole_digest
    version = plain.version if plain.released else _short(digest)
    sealed = msgspec.structs.replace(plain, version=version, logical_digest=digest)
    data = msgspec.json.format(msgspec.json.encode(sealed, order="deterministic"), indent=1) + b"\n"
    write_atomically(directory / MANIFEST_NAME, data)
    return sealed


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of an archive directory.

    ArchiveNotFoundError where it is missing, ArchiveMismatchError where it can't be read.
    """
    path = directory / MANIFEST_NAME
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise ArchiveNotFoundError(
            f"no archive in {directory} (it has no {MANIFEST_NAME}). Build your own with: "
            "kernel-archive build builder.toml; "
            f"the shipped one with: kernel-archive build --out {shlex.quote(str(directory))}"
        ) from None
    except OSError as error:
        raise ArchiveNotFoundError(f"{path} cannot be read: {error.strerror or error}") from None

    def fail(why: object) -> ArchiveMismatchError:
        fix = "Build or pull the archive again"
        return ArchiveMismatchError.of(
            code="bad-manifest", message=f"not a manifest: {why}", file=str(path), fix=fix
        )

    if len(data) > MAX_MANIFEST_BYTES or not has_few_values(data):
        raise fail("it is larger than one can be")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (ValueError, RecursionError) as error:
        raise fail(error) from None
    if manifest.format != FORMAT:
        raise ArchiveMismatchError(
            f"{path} has format {manifest.format}, this version reads {FORMAT}. Build the archive "
            "again, or install a matching kernel-archive"
        )
    _refuse_foreign_names(manifest, path)
    return manifest


def present_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a directory; ``None`` where none can be read."""
    try:
        return read_manifest(directory)
    except (ArchiveNotFoundError, ArchiveMismatchError):
        return None


def _refuse_foreign_names(manifest: Manifest, path: Path) -> None:
    """Refuse names outside of our layout: they go into paths and queries."""
    for table, facts in manifest.tables.items():
        if table not in TABLES or not facts.splits.keys() <= {*TABLES[table].splits}:
            unknown = f"a table or split that this version does not know: {printable(table)}"
            raise ArchiveMismatchError(f"{path} names {unknown}")
        for split, shards in facts.splits.items():
            pattern = rf"data/{table}/{split}-\d{{5}}-of-\d{{5}}\.parquet"
            for shard in shards:
                if not re.fullmatch(pattern, shard.path):
                    foreign = f"a shard outside the layout: {printable(shard.path)}"
                    raise ArchiveMismatchError(f"{path} names {foreign}")
