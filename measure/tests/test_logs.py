"""Tests of the crash-safe log: nothing glued, nothing doubled, one writer."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from typing import Any

import pytest

from kernel_archive.errors import DataError
from kernel_measure.logs import BusyError, JsonLines, new_ulid, read_lines


def test_lines_come_back_in_order(tmp_path):
    """What is appended is read again, one value a line."""
    with closing(JsonLines(tmp_path / "a" / "log.jsonl")) as log:
        for i in range(3):
            log.append({"i": i, "text": "line\nbreak ü"})
    assert [row["i"] for row in read_lines(tmp_path / "a" / "log.jsonl", Any)] == [0, 1, 2]
    assert (tmp_path / "a" / "log.jsonl").read_bytes().count(b"\n") == 3


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
        log.append({"i": 2})
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


def test_killed_writer_leaves_whole_lines(tmp_path):
    """A process killed while it writes."""
    path = tmp_path / "log.jsonl"
    program = textwrap.dedent(f"""
        from pathlib import Path
        from kernel_measure.logs import JsonLines
        log = JsonLines(Path({str(path)!r}))
        i = 0
        while True:
            log.append({{"i": i, "code": "x" * 3000}})
            print(i, flush=True)
            i += 1
    """)
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    acknowledged = -1
    begin = time.monotonic()
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged > 50 or time.monotonic() - begin > 20:
            os.kill(writer.pid, signal.SIGKILL)
            break
    acknowledged = max([acknowledged, *(int(x) for x in writer.stdout if x.strip())])
    writer.wait()
    writer.stdout.close()
    JsonLines(path).close()
    rows = [row["i"] for row in read_lines(path, Any)]
    assert rows == list(range(len(rows)))
    assert len(rows) > acknowledged


def test_ulids_are_ordered_and_distinct():
    """Ids of one process sort as they were made."""
    ids = [new_ulid() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert all(len(i) == 26 for i in ids)


def test_a_file_without_a_line_goes_away(tmp_path):
    """A run that was stopped before its first line leaves nothing that a build would trip over; one
    with lines stays.
    """
    JsonLines(tmp_path / "run" / "events.jsonl").close()
    assert not (tmp_path / "run").exists()
    first = JsonLines(tmp_path / "run" / "events.jsonl")
    second = JsonLines(tmp_path / "run" / "timing.jsonl")
    first.append({"kind": "step_started"})
    for file in (first, second):
        file.close()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["events.jsonl"]


def test_only_its_own_empty_file_goes_away(tmp_path):
    """A folder that was there stays; a file that another writer put in its place stays."""
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
