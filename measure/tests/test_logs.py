"""Tests of the crash-safe log: nothing glued, nothing doubled, one writer."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_archive.errors import DataError, KernelArchiveError
from kernel_measure.logs import append_line, read_lines, recording_into


@pytest.mark.parametrize("before", [b"", b'{"i": 0}\n'])
@pytest.mark.parametrize(
    ("fragment", "kept"),
    [
        *((b'{"i": 1', []), (b'{"i": "\xc3', []), (b"{", []), (b'{"i": 1}{"i"', [])),
        *((b'{"code": "' + b"x" * 200_000, []), (b'{"i": 1}', [1])),
    ],
    ids=["open", "in a letter", "short", "glued", "long", "complete"],
)
def test_unfinished_line_is_cut_off_not_glued(tmp_path, before, fragment, kept):
    """A crash in the middle of a line, also the first; one that lacks its end alone is kept."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(before + fragment)
    first = [0] if before else []
    assert [row["i"] for row in read_lines(path, Any)] == [*first, *kept]
    append_line(path, {"i": 2, "text": "line\nbreak ü"})
    assert [row["i"] for row in read_lines(path, Any)] == [*first, *kept, 2]


def test_second_writer_is_refused(tmp_path):
    """Two processes can't record into one directory; the next can."""
    out = tmp_path / "new" / "runs"
    refused = pytest.raises(KernelArchiveError, match="another process is recording into")
    with recording_into(out), refused, recording_into(out):
        pass
    with recording_into(out):
        assert list(out.iterdir()) == []


def test_damaged_line_in_the_middle_is_an_error_with_its_place(tmp_path):
    """Such a file was not written here: it is refused with file and line."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"i": 0}\n{"i":{"kind":"x"}\n{"i": 2}\n')
    with pytest.raises(DataError) as caught:
        list(read_lines(path, Any))
    assert caught.value.findings[0].line == 2
