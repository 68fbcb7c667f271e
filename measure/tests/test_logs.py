"""Tests of the crash-safe log: nothing glued, nothing doubled, one writer."""

from __future__ import annotations

import fcntl
from contextlib import closing
from typing import Any

import pytest

from kernel_archive.errors import DataError
from kernel_measure.logs import BusyError, JsonLines, new_ulid, read_lines


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
    with closing(JsonLines(path)) as log:
        log.append({"i": 2, "text": "line\nbreak ü"})
    first = [0] if before else []
    assert [row["i"] for row in read_lines(path, Any)] == [*first, *kept, 2]


def test_second_writer_is_refused(tmp_path):
    """Two processes can't record into one run."""
    first = closing(JsonLines(tmp_path / "log.jsonl"))
    with first, pytest.raises(BusyError, match="another process"):
        JsonLines(tmp_path / "log.jsonl")


def test_damaged_line_in_the_middle_is_an_error_with_its_place(tmp_path):
    """Such a file was not written here: it is refused with file and line."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"i": 0}\n{"i":{"kind":"x"}\n{"i": 2}\n')
    with pytest.raises(DataError) as caught:
        list(read_lines(path, Any))
    assert caught.value.findings[0].line == 2


def test_ulids_are_ordered_and_distinct():
    """Ids of one process sort as they were made."""
    ids = [new_ulid() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert all(len(i) == 26 for i in ids)


def test_only_its_own_empty_file_goes_away(tmp_path):
    """A run that was stopped before its first line leaves nothing that a build would trip over.

    One with lines stays, as do a folder that was there and another writer's file in its place.
    """
    JsonLines(tmp_path / "run" / "events.jsonl").close()
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    JsonLines(tmp_path / "kept" / "events.jsonl").close()
    assert list((tmp_path / "kept").iterdir()) == []
    first = JsonLines(tmp_path / "run" / "events.jsonl")
    (tmp_path / "run").rename(tmp_path / "away")
    second = JsonLines(tmp_path / "run" / "events.jsonl")
    second.append({"kind": "step_started"})
    first.close()
    second.close()
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == b'{"kind":"step_started"}\n'


def test_a_writer_never_gets_a_file_that_is_gone(tmp_path, monkeypatch):
    """Its last writer takes the empty file away just before the lock is given."""
    path = tmp_path / "run" / "events.jsonl"
    real, calls = fcntl.flock, []

    def late(file, how):
        if not calls:
            path.unlink()
            path.parent.rmdir()
        calls.append(file)
        return real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    log = JsonLines(path)
    log.append({"a": 1})
    log.close()
    assert len(calls) == 2
    assert path.read_bytes() == b'{"a":1}\n'
