"""Command lines and code run against the loopback Hub, in a client process.

One process serves many calls, since ``HF_ENDPOINT`` must stand before ``huggingface_hub`` is
imported and starting Python takes longer than most calls. Three things are changed in it: the Hub's
client does not sleep between its retries (it would wait half a minute in all), a Hub that never
answers is waited for two seconds, not a minute, and an archive whose files are, byte for byte,
those that a push has validated before is not validated again.

This file is the process's program, too. Each line of its input is JSON: ``{"kind": "cli" | "code",
"args": [...], "cwd": ..., "environment": {...}}``; each answer is one line of JSON: ``{"status",
"out", "err"}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fake_hub import FakeHub

    from kernel_archive.archive.open import Archive
    from kernel_archive.errors import Finding

__all__ = ["Client", "Done", "Process"]

#: Seconds that a Hub which never answers is waited for.
TIMEOUT = 2


@dataclass
class Done:
    """A finished call."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Process:
    """The client process that serves all calls of a session."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.hub, self.home = hub, home
        self.popen = subprocess.Popen(
            [sys.executable, __file__],
            env=self.environment(None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def environment(self, token: str | None) -> dict[str, str]:
        """Environment of a client: the loopback Hub, a home of its own, short waits."""
        waits = {f"HF_HUB_{name}_TIMEOUT": str(TIMEOUT) for name in ("ETAG", "DOWNLOAD")}
        return (
            self.hub.environment(self.home, token)
            | waits
            | {"XDG_CACHE_HOME": str(self.home / "xdg")}
        )

    def call(
        self, kind: str, args: tuple[str, ...], cwd: Path, environment: dict[str, str]
    ) -> Done:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        call = {"kind": kind, "args": args, "cwd": str(cwd), "environment": environment}
        self.popen.stdin.write(json.dumps(call) + "\n")
        self.popen.stdin.flush()
        line = self.popen.stdout.readline()
        assert line, "the client process ended"
        return Done(**json.loads(line))

    def close(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait(timeout=20)
        self.popen.stdout.close()


@dataclass
class Client:
    """Calls of one test, in its own directory; no call may print a secret, no command a
    traceback.
    """

    process: Process
    cwd: Path

    def _checked(self, done: Done, kind: str) -> Done:
        from support.fake_hub import READ_TOKEN, SIGNATURE, WRITE_TOKEN

        for secret in (WRITE_TOKEN, READ_TOKEN, SIGNATURE):
            assert secret not in done.text, "a secret was printed"
        assert kind == "code" or "Traceback" not in done.err, done.err
        return done

    def _call(self, kind: str, args: tuple[str, ...], token: str | None) -> Done:
        from support.fake_hub import WRITE_TOKEN

        login = {} if token is None else {"HF_TOKEN": token or WRITE_TOKEN}
        return self._checked(self.process.call(kind, args, self.cwd, login), kind)

    def cli(self, *args: str, token: str | None = "") -> Done:
        """Run a command, with a token that may write unless another one (or none) is given."""
        return self._call("cli", args, token)

    def code(self, code: str, token: str | None = "") -> Done:
        """Run Python code."""
        return self._call("code", (code,), token)

    def fresh(self, kind: str, *args: str, **environment: str) -> Done:
        """Run a command or code in a process of its own, with further environment."""
        from support.fake_hub import WRITE_TOKEN

        made = subprocess.run(
            [sys.executable, __file__, kind, *args],
            cwd=self.cwd,
            env=self.process.environment(WRITE_TOKEN) | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return self._checked(Done(made.returncode, made.stdout, made.stderr), kind)


class _Awake:
    """The module ``time``, but nobody sleeps."""

    def __getattr__(self, name: str) -> object:
        return (lambda seconds: None) if name == "sleep" else getattr(time, name)


def _once(validate: Callable[[Archive], list[Finding]]) -> Callable[[Archive], list[Finding]]:
    """Validation that remembers its findings of a directory with these very files."""
    seen: dict[tuple[tuple[Path, bytes], ...], list[Finding]] = {}

    def validated(archive: Archive) -> list[Finding]:
        key = tuple(
            (p, sha256(p.read_bytes()).digest())
            for p in sorted(archive.path.rglob("*"))
            if p.is_file()
        )
        if key not in seen:
            seen[key] = validate(archive)
        return [*seen[key]]

    return validated


def _run(kind: str, args: list[str]) -> int:
    if kind == "cli":
        from kernel_archive.cli import main

        return main(args)
    try:
        exec(args[0], {"__name__": "__main__"})
    except SystemExit as stop:
        return int(stop.code or 0)
    except Exception:  # noqa: BLE001 - whatever the code raises goes into the answer
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Answer calls until the input ends."""
    from huggingface_hub import file_download
    from huggingface_hub.utils import _http

    from kernel_archive import connections
    from kernel_archive.publishing import push

    push._validate = _once(push._validate)
    connections.TIMEOUT = float(TIMEOUT)  # type: ignore[misc] # shorter than for a user
    _http.time = file_download.time = _Awake()  # type: ignore[assignment] # a stand-in module
    warnings.simplefilter("error", UserWarning)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        call = json.loads(line)
        os.chdir(call["cwd"])
        before = dict(os.environ)
        os.environ.pop("HF_TOKEN", None)
        os.environ.update(call["environment"])
        out, err = io.StringIO(), io.StringIO()
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = _run(call["kind"], call["args"])
        os.environ.clear()
        os.environ.update(before)
        answers.write(
            json.dumps({"status": status, "out": out.getvalue(), "err": err.getvalue()}) + "\n"
        )
        answers.flush()


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(_run(sys.argv[1], sys.argv[2:]))
    serve()
