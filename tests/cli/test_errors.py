"""Exit statuses and errors: one line with the way out, or JSON."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from kernel_archive.cli import cli, report


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["buidl"], 2, "Did you mean 'build'?"),
        (["info", "--jsn"], 2, "--jsn"),
        (["build-eval", "--split", "evl"], 2, "Did you mean 'eval'?"),
        (["push"], 2, "REPO"),
        (["push", "a/b", "--private=yes"], 2, "--private"),
        (["pull", "x y"], 2, "x y"),
        (["push", "a/b"], 1, "kernel-archive build"),
        (["diff", "none", "neither"], 1, "does not exist"),
        (["build", "cuda-l1", "--source", "none"], 1, "no such directory"),
        *((command, 1, "kernel-archive build") for command in (["info"], ["audit"], ["validate"])),
        (["show", "abcdef123456"], 1, "kernel-archive build"),
        (["sql", "SELECT 1"], 1, "kernel-archive build"),
    ],
)
def test_mistakes_have_a_status_and_a_hint(tmp_path, monkeypatch, run, arguments, status, message):
    """2 for wrong usage, 1 for missing data; one message that says what to do, no traceback."""
    monkeypatch.chdir(tmp_path)
    got, out, err = run(*arguments)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    if status == 1 and "kernel-archive build" in message:
        assert json.loads(run(*arguments, "--json")[1])["error"] == "ArchiveNotFoundError"


QUESTIONS = ["forecast", "--export", "q.jsonl"]
INSPECT = "inspect eval kernel_archive/forecast --model PROV"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["score"], 2, "FILES"),
        (["score", "nothing.jsonl"], 1, "no such file"),
        (["score", "."], 1, "directory"),
        (["check", "/dev/null"], 1, "pipe or a device"),
        (["score", "x", "--bins", "other"], 2, "--bins"),
        (["score", "x", "--draws", "-1"], 2, "--draws"),
        (["score", "x", "--split", "train"], 2, "--split"),
        (["compare", "x"], 2, "B"),
        (["template", "--repeats", "0"], 2, "--repeats"),
        (["forecast", "--model", "m", "-o", "f.jsonl"], 2, INSPECT),
        (QUESTIONS, 2, "--model NAME"),
        (["forecast", "--import", "a.jsonl"], 2, "-o FILE"),
        ([*QUESTIONS, "--from-log", "a.eval"], 2, "give one of"),
        (["forecast", "--import", "a.jsonl", "--from-log", "a.eval"], 2, "give one of"),
        ([*QUESTIONS, "--model", "m", "--split", "discovery", "--defer"], 2, "without --defer"),
        (["forecast", "--export", "none/q.jsonl", "--model", "m"], 2, "no directory"),
        (["baseline", "unifrom"], 2, "Did you mean 'uniform'?"),
        (["leaderboard", "add", "missing.jsonl", "--name", "x"], 1, "no such file"),
        (["leaderboard", "add", "u.jsonl"], 2, "--name"),
        (["leaderboard", "build"], 2, "leaderboard add"),
    ],
)
def test_wrong_calls_about_an_archive_that_is_there(
    archive, tmp_path, monkeypatch, run, arguments, status, message
):
    """Status 2 for a wrong call, 1 for what is not there; no result and no traceback."""
    monkeypatch.chdir(tmp_path)
    got, out, err = run(*arguments, "--archive", archive)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("x"), "This is a bug"),
        (OSError(28, "No space left on device", "out/x"), "out/x: No space left on device"),
        (MemoryError(), "Error: out of memory. Finished files are kept\n"),
    ],
)
def test_errors_that_are_not_ours(capsys, monkeypatch, error, message):
    """One line each; a traceback only when asked for."""
    monkeypatch.delenv("KERNEL_ARCHIVE_TRACEBACK", raising=False)
    assert report(error, as_json=False) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_ctrl_c_while_duckdb_works(archive):
    """A query that is one long task is stopped at once, with one word."""
    query = (
        "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "kernel_archive", "sql", query, "--archive", str(archive)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Two seconds of processor time are more than it takes to begin: the query works.
    used = lambda: sum(
        map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13])
    )
    deadline = time.monotonic() + 60
    while used() < 2 * os.sysconf("SC_CLK_TCK"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.strip() == "Stopped."


def test_warnings_are_one_line(run, monkeypatch):
    """A warning of a library is told without its file and line, and without its controls."""
    monkeypatch.setattr(
        cli, "main", lambda **_: warnings.warn("old \x1b[2J", UserWarning, stacklevel=1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, shown = run("info")
    assert status == 0
    assert shown.startswith("warning: old ")
    assert shown.count("\n") == 1
    assert "\x1b" not in shown
