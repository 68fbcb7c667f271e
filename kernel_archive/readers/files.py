"""The files of one run as every reader sees them, and what a reader is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding
from kernel_archive.readers.salvage import sound_records
from kernel_archive.readers.values import BAD_JSON, any_json, safe_text
from kernel_archive.untrusted import Lines, UntrustedFileError, allowance, is_compressed, open_bounded, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kernel_archive.readers.records import Record

#: A longer line, or row of a table, is reported and skipped; it is never held in memory.
MAX_LINE_BYTES: Final = 16 << 20
#: Lines of a log, or rows of a table.
MAX_LINES: Final = 5_000_000
#: A log or table may come to so much.
MAX_FILE_BYTES: Final = 1 << 30
#: A file that must be held whole (a checkpoint, a list) may come to so much.
MAX_WHOLE_BYTES: Final = 128 << 20
#: Codes of findings that say that a recipe takes a run for what it is not; all others are damage of that run alone.
MISTAKES: Final = frozenset({"wrong-format", "bad-columns", "nothing-counts"})
#: What may stand behind the name of any file that a reader reads.
SUFFIXES: Final = ("", ".zst", ".gz")
_WILD: Final = frozenset("*?[")
#: Most files that are looked for are not there; a path object for each takes 40 % of the time of finding a run's files. No name
#: that a table gives, however long, is an error to it.
is_file: Final = os.path.isfile


class RunFiles:
    """One run: a matched path, the files beside it that its reader declares, and what the recipe says of it.

    ``base`` is the recipe's directory, to which names in findings and provenance are relative; ``settings`` are the keys of the
    recipe's ``[[source]]`` (gpu, problem, columns, ...).
    """

    def __init__(self, path: Path, base: Path, spec: ReaderSpec, settings: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.base = base
        self.settings: dict[str, Any] = dict(settings or {})
        self.root = path if path.is_dir() else path.parent
        #: Names of compressed files that could not be read to an end at which their checksum holds.
        self.unsound: set[str] = set()
        found: dict[Path, None] = {path: None} if path.is_file() else {}
        for pattern in spec.files:
            plain = not _WILD.intersection(pattern)
            for suffix in SUFFIXES:
                if plain and not is_file(f"{self.root}/{pattern}{suffix}"):
                    continue
                for match in sorted(self.root.glob(pattern + suffix)):
                    if match.is_file():
                        found[match] = None
        if spec.also is not None:
            found.update(dict.fromkeys(spec.also(self)))
        #: Every file that the reader may read, in a fixed order; their digests name the staged fragment.
        self.files: tuple[Path, ...] = tuple(found)

    def name(self, path: Path) -> str:
        """The file's name as findings and tables state it: relative to the recipe, forward slashes."""
        # By name, not by target: a run behind a symbolic link keeps the name that the recipe gives it.
        place, base = Path(os.path.normpath(path)), Path(os.path.normpath(self.base))
        return safe_text(place.relative_to(base).as_posix() if place.is_relative_to(base) else place.name)

    def find(self, name: str) -> Path | None:
        """The file of that name in the run (or in a folder of it), plain or compressed; ``None`` where there is none."""
        for suffix in SUFFIXES:
            if is_file(f"{self.root}/{name}{suffix}"):
                return self.root / (name + suffix)
        return None

    def log(self, *names: str) -> Path | None:
        """The log of the run: the matched file, else the first file of these names (or patterns) in the matched directory."""
        if self.path.is_file():
            return self.path
        patterns = [name + suffix for name in names for suffix in SUFFIXES]
        return next((path for path in self.files if any(map(path.match, patterns))), None)

    def lines(self, path: Path, *, raw: bool = False) -> Iterator[tuple[int, bytes] | Finding]:
        """The lines of a file with their numbers from 1, and findings where one can't be had; ``raw``: blank ones and line ends, too."""
        name = self.name(path)
        limit = MAX_FILE_BYTES
        with suppress(OSError):  # said by the lines themselves
            if is_compressed(path):
                limit = allowance(path, limit)
                self.unsound.add(name)  # until it was read to its end
        lines = Lines(
            path, max_bytes=limit, max_lines=MAX_LINES, max_line=MAX_LINE_BYTES, name=name, raw=raw, hashed=False
        )
        yield from lines
        if lines.at_end:
            self.unsound.discard(name)

    def head(self, path: Path, n: int) -> bytes:
        """The first bytes of a file, decompressed; fewer where there are no more, or it can't be read."""
        try:
            with open_bounded(path, max_bytes=MAX_FILE_BYTES) as stream:
                return stream.read(n)
        except (OSError, UntrustedFileError):
            return b""

    def whole(self, path: Path) -> bytes | Finding:
        """The content of a file that must be held whole; a finding where it can't be."""
        try:
            return read_whole(path, max_bytes=allowance(path, MAX_WHOLE_BYTES))
        except UntrustedFileError as error:
            return error.finding(self.name(path))
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            return Finding(code="unreadable", message=message, file=self.name(path))

    def json(self, path: Path) -> Any:
        """A whole JSON file as plain data; a finding where it can't be."""
        data = self.whole(path)
        if isinstance(data, Finding):
            return data
        try:
            return any_json(data.removeprefix(b"\xef\xbb\xbf"))
        except BAD_JSON as error:
            return Finding(code="bad-json", message=f"not valid JSON: {error}"[:300], file=self.name(path))


class ReaderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A reader and what it expects."""

    name: str  # the ``format`` of a recipe
    title: str  # one line for people
    expects: str  # what ``path`` must match, in words
    files: tuple[str, ...]  # patterns of the files it reads, in the run's directory; ``.zst`` and ``.gz`` are implied
    version: int  # raised when the reader's output changes, so that staged fragments are made anew
    records: Callable[[RunFiles], Iterator[Record]]  # yields what the run's files say
    also: Callable[[RunFiles], Iterator[Path]] | None = None  # further files that it reads, which only the run names
    #: Anybody may write it, of problems of their own: one that is called like one of ours is ours only with our reference.
    foreign: bool = False

    def read(self, run: RunFiles) -> Iterator[Record]:
        """Everything of a run, and what was wrong with it; of damaged files what :func:`sound_records` leaves."""
        return sound_records(self.records(run), run.unsound, run.files)
