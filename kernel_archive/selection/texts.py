"""Program texts for the rows of a split, from the row groups of an archive's files."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernel_archive.errors import ArchiveMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from kernel_archive.archive.open import Archive

#: Rows that are handed on at a time.
PART_ROWS: Final = 1000
#: Texts of an archive are held whole up to this size; of a larger one only what a block of rows needs.
HELD_BYTES: Final = 96 * 1024 * 1024


def _index(path: Path, key: str) -> tuple[list[tuple[int, int]], NDArray[np.bytes_]]:
    """Rows and bytes of each row group, the texts are most of them, and the keys of all rows.

    Raises:
        ArchiveMismatchError: the file is damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            # Not by column: Arrow's own view of a damaged column can end the process.
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            keys = file.read(columns=[key])[key].to_pylist()
            return [(g.num_rows, g.total_byte_size) for g in groups], _bytes(keys)
    except (pa.ArrowException, OSError, ValueError, LookupError, AttributeError) as error:
        raise ArchiveMismatchError(f"{path} is damaged: {error}. Build or pull the archive again") from error


def _bytes(keys: Sequence[str]) -> NDArray[np.bytes_]:
    return np.array([key.encode() for key in keys] or [b""], np.bytes_)[: len(keys)]


class ArchiveTexts:
    """Texts of the kernels and references of an archive by program id, read from its files by row group.

    Attributes:
        block_rows: keys that are best asked for at a time.
    """

    def __init__(self, archive: Archive) -> None:
        """Index the row groups, and begin to read the texts if they are held.

        Raises:
            ArchiveMismatchError: a file is damaged.
        """
        self._groups: list[tuple[Path, int]] = []
        starts = [0]
        size = 0
        names: list[NDArray[np.bytes_]] = []
        for table, key in (("kernels", "program_id"), ("references", "reference_id")):
            for path in archive.files(table):
                groups, keys = _index(path, key)
                names.append(keys)
                for i, (rows, of_rows) in enumerate(groups):
                    self._groups.append((path, i))
                    starts.append(starts[-1] + rows)
                    size += of_rows
        self._starts = np.array(starts)
        known = np.concatenate(names)
        # Of equal keys the last one is found: their texts are one.
        self._order = np.argsort(known, kind="stable")
        self._keys = known[self._order]
        average = size / max(1, len(known))
        # When texts must be read again for every block, blocks are large: two columns of them take half of what may be held.
        several = int(np.clip(HELD_BYTES / 4 / max(average, 1.0), PART_ROWS, 100 * PART_ROWS))
        self.block_rows = PART_ROWS if size <= HELD_BYTES else several
        self._whole: Future[pa.Array] | None = None
        if size <= HELD_BYTES:
            # Arrow reads outside the interpreter's lock: whoever asks later need not wait as long.
            reader = ThreadPoolExecutor(1)
            self._whole = reader.submit(self._read, range(len(self._groups)))
            reader.shutdown(wait=False)

    def _read(self, groups: Sequence[int], wanted: Sequence[NDArray[np.int64]] | None = None) -> pa.Array:
        """Texts of whole row groups, or of these rows of each, in one piece: taking rows out of many chunks costs twenty times as much."""
        chunks = [pa.array([], pa.large_string())]
        files: dict[Path, pq.ParquetFile] = {}
        with ExitStack() as stack:
            for k, g in enumerate(groups):
                path, i = self._groups[g]
                if path not in files:
                    files[path] = stack.enter_context(pq.ParquetFile(path))
                texts = files[path].read_row_group(i, columns=["code"]).column(0)
                chunks += (texts if wanted is None else texts.take(pa.array(wanted[k]))).cast(pa.large_string()).chunks
        return pa.concat_arrays(chunks)

    def fetch(self, keys: Sequence[str]) -> pa.Array:
        """The texts of these programs, in their order; an empty one for the empty id, of a reference that nobody knows."""
        if all(keys):
            return self._fetch(keys)
        known = [key for key in keys if key]
        places = iter(range(len(known)))
        at = pa.array([next(places) if key else None for key in keys], pa.int64())
        return self._fetch(known).take(at).fill_null("")

    def _fetch(self, keys: Sequence[str]) -> pa.Array:
        names = _bytes(keys)
        found = np.searchsorted(self._keys, names, side="right") - 1
        if (missing := np.flatnonzero((found < 0) | (self._keys[found] != names))).size:
            raise KeyError(keys[missing[0]])
        at = self._order[found]
        if self._whole is not None:
            return self._whole.result().take(pa.array(at))
        # Group by group, so that only what is asked for is held.
        rows, back = np.unique(at, return_inverse=True)
        needed, first = np.unique(np.searchsorted(self._starts, rows, side="right") - 1, return_index=True)
        wanted = [part - self._starts[g] for g, part in zip(needed.tolist(), np.split(rows, first[1:]), strict=False)]
        return self._read(needed.tolist(), wanted).take(pa.array(back))
