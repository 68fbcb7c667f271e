"""No control character of a log, recipe or manifest reaches a terminal; odd outputs end clearly.

Commands run behind a pseudo-terminal here, as colours and widths are for terminals only.
"""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.manifest import read_manifest
from kernel_archive.cli import common, main
from kernel_archive.pipeline import build

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two archives of hostile logs, and a recipe with a hostile key."""
    folder = tmp_path_factory.mktemp("hostile")
    log = RunLog(gpu=f"GPU {EVIL}", task=f"task {EVIL}", reference=None)
    root = log.root(program("seed"), 1.0)
    log.child(root, program("fast") + f"# {EVIL}\n", 2.0)
    log.child(root, program("absurd"), 1e308)
    log.child(root, program("bad"), outcome="compile_failed")
    log.write(folder / f"src/logs/run {EVIL}")
    log.events[-1]["evaluation"]["observation"]["feedback"]["compilation_error"] = EVIL
    plain = recipe(folder / "src", ("logs/*", "archive"))
    text = plain.read_text()
    plain.write_text(text.replace("Made for a test.", json.dumps(f"Made {EVIL}")[1:-1]))
    for name in ("a", "b"):
        build([str(plain)], out=folder / name, version=name, jobs=1)
    other = read_manifest(folder / "b")
    odd = msgspec.structs.replace(
        other,
        version=EVIL,
        bin_scheme=EVIL,
        reports={**other.reports, "flags": {EVIL: 1}},
    )
    (folder / "b/manifest.json").write_bytes(msgspec.json.encode(odd))
    (folder / "bad.toml").write_text(f'{text}\n"{json.dumps(EVIL)[1:-1]}" = 1\n')
    return folder


def in_terminal(*arguments, cwd):
    """Run a command in a terminal; its exit status, and all bytes that arrive there.

    The descriptors are the terminal's, so that libraries below Python write there, too.
    """
    leader, follower = pty.openpty()
    seen = bytearray()

    def listen():
        with contextlib.suppress(OSError):  # what Linux answers when nobody holds the other end
            while part := os.read(leader, 65536):
                seen.extend(part)

    listener = threading.Thread(target=listen)
    listener.start()
    streams, kept = (sys.stdin, sys.stdout, sys.stderr), [os.dup(n) for n in range(3)]
    try:
        for n in range(3):
            os.dup2(follower, n)
        os.close(follower)
        opened = [os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww")]
        sys.stdin, sys.stdout, sys.stderr = opened
        with contextlib.chdir(cwd):
            status = main(list(arguments))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for n, before in enumerate(kept):
            os.dup2(before, n)
            os.close(before)
        listener.join()
        os.close(leader)
    return status, bytes(seen)


COMMANDS = [
    ["build", "src/builder.toml", "--out", "c", "--jobs", "1"],
    ["build", "bad.toml", "--out", "d"],
    ["build", f"no{EVIL}", "--out", "d"],
    ["build", f"--{EVIL}"],
    ["info", "a"],
    ["info", "b"],
    ["validate", "a"],
    ["validate", "b"],
    ["audit", "a"],
    ["diff", "a", "b"],
    ["sql", "SELECT * FROM evaluations", "--archive", "a"],
    ["sql", f'SELECT 1 AS "{EVIL}"', "--archive", "a"],
    ["sql", f"SELECT {EVIL}", "--archive", "a"],
    ["show", "KERNEL", "--archive", "a"],
    ["build-eval", "--archive", "a", "--cap", "2"],
    ["score", f"nothing{EVIL}", "--archive", "a"],
    ["push", EVIL, "--archive", "a"],
    ["pull", f"a/{EVIL}"],
]


@pytest.mark.parametrize(
    "arguments", COMMANDS, ids=lambda a: " ".join(a).encode("ascii", "replace").decode()[:40]
)
def test_no_control_of_a_stranger_reaches_the_terminal(place, arguments):
    """Titles, clearing of the screen, colours and reversed text are shown, never sent."""
    if "KERNEL" in arguments:
        from kernel_archive.archive.open import open_archive

        query = "SELECT kernel_id FROM kernels WHERE code LIKE '%]0;%'"
        kernel = open_archive(place / "a").sql(query).to_pylist()[0]["kernel_id"]
        arguments = [kernel if a == "KERNEL" else a for a in arguments]
    status, seen = in_terminal(*arguments, cwd=place)
    assert status in {0, 1, 2}
    assert seen
    assert b"internal error" not in seen
    for control in (b"\x1b]", b"\x07", b"\x1b[2J", "\x9b".encode(), "\u202e".encode()):
        assert control not in seen, seen


@pytest.mark.parametrize(
    "redirected", [">&-", "2>&-", ">&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"]
)
@pytest.mark.parametrize("arguments", ["info a", "readers --json", "--help", "info nowhere --json"])
def test_streams_that_are_closed_or_full(place, arguments, redirected):
    """Neither the program nor the interpreter complains; a full disk is one clear error."""
    line = f"{sys.executable} -m kernel_archive {arguments} {redirected}"
    done = subprocess.run(line, cwd=place, shell=True, capture_output=True, text=True)
    for word in ("Traceback", "internal error", "Exception ignored"):
        assert word not in done.stderr, done.stderr
    if redirected == ">/dev/full" and "nowhere" not in arguments:
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "No space left" in done.stderr
    if "full" not in redirected and "nowhere" not in arguments:
        assert (done.returncode, "rror" in done.stderr) == (0, False), done.stderr


def test_every_line_goes_through_one_place():
    """Commands print through the functions that make text printable; lines of data are bytes."""
    for path in Path(common.__file__).parent.glob("*.py"):
        if path.name not in {"common.py", "__init__.py"}:
            calls = re.findall(r".*(?:click\.echo\(| print\().*", path.read_text())
            assert [line for line in calls if "nl=False" not in line] == [], path.name


def test_tables_in_a_pipe_are_narrow(capsys):
    """Nothing is wider than 120 columns."""
    assert main(["readers"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


def test_problems_of_info_fit_80_columns(shipped):
    """The table of problems and bins of the shipped archive is one line a problem."""
    for width in ("80", "200"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", width)
            _, seen = in_terminal("info", "gpu-forecasters/kernels", cwd=shipped)
        table = seen.decode().split("problems, with kernels by bin")[1].split("methods")[0]
        lines = [line for line in table.splitlines() if line.strip()]
        problems = {line.split()[0]: len(line) for line in lines[2:]}
        assert {"gdn_recompute_w_u", "batched_transpose_add"} <= problems.keys()
        assert (len(problems), max(problems.values()) <= 80) == (len(lines) - 2, True)
