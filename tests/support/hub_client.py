"""Commands and code run against the loopback Hub, as if no other Hub were known.

Commands run in this process: the Hub's client is pointed at the loopback Hub, and does not sleep
between its retries (it would wait half a minute in all). Code runs in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import HfFileSystem, constants, file_download
from huggingface_hub.utils import _http
from support.fake_hub import READ_TOKEN, SIGNATURE, WRITE_TOKEN, FakeHub

from kernel_archive.cli import main


@dataclass
class Done:
    """A finished call."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class _Awake:
    """The module ``time``, but nobody sleeps."""

    def __getattr__(self, name: str) -> object:
        return (lambda seconds: None) if name == "sleep" else getattr(time, name)


class Client:
    """Calls of one test, in its own directory; no call may print a secret, no command a
    traceback.
    """

    def __init__(
        self,
        hub: FakeHub,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.hub, self.cwd, self.home = hub, place / "work", place / "home"
        self.cwd.mkdir()
        self._patch, self._capsys = monkeypatch, capsys
        settings = {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(self.home / "hub"),
            "HF_TOKEN_PATH": str(self.home / "token"),
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in settings.items():
            monkeypatch.setattr(constants, name, value)
        for module in (_http, file_download):
            monkeypatch.setattr(module, "time", _Awake())
        HfFileSystem.clear_instance_cache()  # it remembers what other tests' Hubs had
        monkeypatch.chdir(self.cwd)

    def _checked(self, done: Done) -> Done:
        for secret in (WRITE_TOKEN, READ_TOKEN, SIGNATURE):
            assert secret not in done.text, "a secret was printed"
        return done

    def cli(self, *args: str, token: str | None = WRITE_TOKEN) -> Done:
        """Run a command, with a token that may write unless another one (or none) is given."""
        self._patch.delenv("HF_TOKEN", raising=False)
        if token:
            self._patch.setenv("HF_TOKEN", token)
        self._capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the Hub's client, of its own use
            status = main([*args])
        done = self._checked(Done(status, *self._capsys.readouterr()))
        assert "Traceback" not in done.err, done.err
        return done

    def code(self, code: str) -> Done:
        """Run Python code in a process of its own."""
        made = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", code],
            cwd=self.cwd,
            env=self.hub.environment(self.home) | {"XDG_CACHE_HOME": str(self.home / "xdg")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return self._checked(Done(made.returncode, made.stdout, made.stderr))
