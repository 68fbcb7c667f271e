"""The files of one run as every reader sees them, and what a reader is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive import untrusted
from kernel_archive.errors import Finding, counted
from kernel_archive.readers.records import Record
from kernel_archive.readers.values import BAD_JSON, any_json, safe_text
from kernel_archive.untrusted import UntrustedFileError

MAX_LINE_BYTES: Final = 16 << 20  # a longer line, or row of a table, is reported and skipped
MAX_LINES: Final = 5_000_000  # reading stops after this many lines of a log
MAX_FILE_BYTES: Final = 1 << 30  # and after this many bytes of a log or table, decompressed
MAX_WHOLE_BYTES: Final = 128 << 20  # a larger checkpoint or file of settings is refused
#: Codes of findings that blame the recipe; all others are damage of one run alone.
RECIPE_FAULTS: Final = frozenset({"bad-utf8", "wrong-format", "bad-columns", "nothing-counts"})
SUFFIXES: Final = ("", ".zst", ".gz")  # endings of any file that a reader reads
#: Whether a path is a file. Most files looked for are missing: no ``Path`` is made for each.
is_file: Final = os.path.isfile


class RunFiles:
    """One run: a matched path, the files beside it that its reader declares, and its query.

    ``base`` is the recipe's directory, to which names in findings and provenance are relative.
    """

    def __init__(self, path: Path, base: Path, spec: ReaderSpec, query: str | None = None) -> None:
        self.path, self.base, self.format = path, base, spec.name
        self.query = query or ""  # of the format ``sql``
        self.root = path if path.is_dir() else path.parent
        #: Names of compressed files that could not be read to an end at which their checksum holds.
        self.unsound: set[str] = set()
        files: dict[Path, None] = {path: None} if path.is_file() else {}
        for pattern in spec.files:
            for suffix in SUFFIXES:
                if "*" in pattern or "[" in pattern or is_file(f"{self.root}/{pattern}{suffix}"):
                    matches = sorted(self.root.glob(pattern + suffix))
                    files.update(dict.fromkeys(filter(is_file, matches)))
        if spec.further_files is not None:
            files.update(dict.fromkeys(spec.further_files(self)))
        #: Every file that the reader may read, in a fixed order; their digests name the fragment.
        self.files: tuple[Path, ...] = tuple(files)

    def name(self, path: Path) -> str:
        """Return the file's name for findings and tables: relative to the recipe, with ``/``."""
        # By name, not by target: a run behind a symbolic link keeps the name of the link.
        place, base = Path(os.path.normpath(path)), Path(os.path.normpath(self.base))
        return safe_text(
            place.relative_to(base).as_posix() if place.is_relative_to(base) else place.name
        )

    def find(self, name: str) -> Path | None:
        """Find the file of that name in the run, plain or compressed; ``None`` without one."""
        paths = (f"{self.root}/{name}{suffix}" for suffix in SUFFIXES)
        return next((Path(path) for path in paths if is_file(path)), None)

    def log(self, *names: str) -> Path | None:
        """Find the log: the matched file, else the first file of these names or patterns."""
        if self.path.is_file():
            return self.path
        patterns = [name + suffix for name in names for suffix in SUFFIXES]
        return next((path for path in self.files if any(map(path.match, patterns))), None)

    def lines(self, path: Path) -> Iterator[tuple[int, bytes] | Finding]:
        """Yield the lines of a file with their numbers from 1, and a finding where one is lost."""
        name, most = self.name(path), untrusted.decompressed_limit(path, MAX_FILE_BYTES)
        if untrusted.is_compressed(path):
            self.unsound.add(name)  # until it was read to its end
        bounds = {"max_bytes": most, "max_lines": MAX_LINES, "max_line": MAX_LINE_BYTES}
        lines = untrusted.Lines(path, name=name, **bounds)
        yield from lines
        if lines.at_end:
            self.unsound.discard(name)

    def head(self, path: Path, n: int) -> bytes:
        """Read the first bytes of a file, decompressed; none where it can't be read."""
        with suppress(UntrustedFileError), untrusted.open_uncompressed(path) as stream:
            return stream.read(n)
        return b""

    def whole(self, path: Path) -> bytes | Finding:
        """Read a whole file; a finding where it can't be."""
        try:
            most = untrusted.decompressed_limit(path, MAX_WHOLE_BYTES)
            return untrusted.read_whole(path, max_bytes=most)
        except UntrustedFileError as error:
            return error.finding(self.name(path))

    def json(self, path: Path) -> Any:
        """Read a whole JSON file as plain data; a finding where it can't be."""
        data = self.whole(path)
        if isinstance(data, Finding):
            return data
        try:
            return any_json(data.removeprefix(b"\xef\xbb\xbf"))
        except BAD_JSON as error:
            message = f"not valid JSON: {error}"[:300]
            return Finding(code="bad-json", message=message, file=self.name(path))


class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A reader and what it expects."""

    name: str  # the ``format`` of a recipe
    title: str  # one line for people
    expects: str  # what ``path`` must match, in words
    files: tuple[str, ...]  # patterns of its files in the run directory, without ``SUFFIXES``
    version: int  # raised when its output changes, so that staged fragments are made anew
    records: Callable[[RunFiles], Iterator[Record]]  # yields what the files of a run state
    further_files: Callable[[RunFiles], Iterator[Path]] | None = None  # that the run names
    has_foreign_problems: bool = False  # the writer's own, unless their reference is one of ours

    def read(self, run: RunFiles) -> Iterator[Record]:
        """Yield the records of a run, without the rows of a damaged compressed file."""
        n_unsound = 0
        for record in [*self.records(run)]:  # only then it is known which files are sound
            file = getattr(record, "source_file", None)  # of a row
            if file in run.unsound:
                n_unsound += 1
            else:
                yield record
        if n_unsound:
            message = f"a damaged compressed file; left out: {counted(n_unsound, 'row')}"
            fix = "Get the file again, whole"
            yield Finding(code="unsound-file", message=message, file=min(run.unsound), fix=fix)
