"""One worker process as the driver sees it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import msgspec

import kernel_archive
from kernel_archive.errors import printable
from kernel_archive.ids import program_id
from kernel_measure.memory import MemoryGroup, resident_gb
from kernel_measure.sandbox import (
    bubblewrap_command,
    give_to_worker,
    require_isolation,
    worker_environment,
    worker_user,
    write_filter,
)
from kernel_measure.settings import WorkerConfig
from kernel_measure.worker import Reply, Request

_MAX_REPLY_BYTES = 16 * 2**20
# Threads and extensions of a program must not keep the process alive: no ordinary exit.
_START = (
    "import os, sys; {drop}sys.path[:0] = {paths}; "
    "from kernel_measure.worker import main; os._exit(main(sys.argv[1:]))"
)
_DROP = (
    "os.setgroups([]); os.setresgid({user}, {user}, {user}); os.setresuid({user}, {user}, {user}); "
)


def _import_paths() -> list[str]:
    """List where a worker imports from: both packages, then as this process does."""
    ours = [Path(module).resolve().parents[1] for module in (__file__, kernel_archive.__file__)]
    return list(dict.fromkeys([*map(str, ours), *filter(None, sys.path)]))


class LostRequest(msgspec.Struct, frozen=True):
    """A request without an answer, and why, also in words."""

    why: Literal["timeout", "died", "memory", "garbage"]
    text: str


def _open_init_pidfd(info: int) -> int:
    """Open a pidfd of process 1 of the worker's namespace, which bubblewrap names; -1: failed."""
    data = b""
    while b"}" not in data and select.select([info], [], [], 10.0)[0]:
        chunk = os.read(info, 4096)
        if not chunk:
            break
        data += chunk
    try:
        return os.pidfd_open(json.loads(data)["child-pid"])
    except (ValueError, KeyError, OSError):
        return -1


def _start_killer(pidfd: int) -> subprocess.Popen[bytes]:
    """Start a process that ends a worker of another user when this process ends.

    bubblewrap has given up the right to signal it: ``--die-with-parent`` does nothing there.
    """
    code = f"import os, signal; os.read(0, 1); signal.pidfd_send_signal({pidfd}, signal.SIGKILL)"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[pidfd],
        start_new_session=True,
    )


class WorkerProcess:
    """A worker.

    Its own folder is made in ``cache``, too, the root of the compiler caches.

    Raises:
        IsolationError: programs cannot be isolated here, and the configuration does not trust them.
    """

    def __init__(self, config: WorkerConfig, cache: Path) -> None:
        if not config.trusted:
            require_isolation()
        self.settings, self.served = config.settings, 0
        cache.mkdir(parents=True, exist_ok=True)
        self._cache = cache.resolve()
        self.scratch = Path(tempfile.mkdtemp(prefix="kernel-archive-worker-", dir=self._cache))
        self._lent = None if config.trusted else self.scratch / "lent"
        self._group = MemoryGroup.make(int(self.settings.host_memory_gb * 1e9))
        self._first_reply: Reply | None = None
        self._buffer, self._ended, self._init_pidfd = b"", False, -1
        self._killer: subprocess.Popen[bytes] | None = None
        self.salt = secrets.token_hex(8)
        # Kept open: what a program makes of the file's name later is of no concern.
        self._output = (self.scratch / "output.txt").open("w+b")
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        config = msgspec.structs.replace(config, scratch=str(self.scratch), salt=self.salt)
        os.write(self._requests, msgspec.json.encode(config) + b"\n")
        drop = "" if config.trusted or worker_user() is None else _DROP.format(user=worker_user())
        start = _START.format(drop=drop, paths=json.dumps(_import_paths()))
        files = [request_read, reply_write]
        command = [sys.executable, "-c", start, str(request_read), str(reply_write)]
        with ExitStack() as passed:
            for descriptor in files:
                passed.callback(os.close, descriptor)
            gpu = config.device == "cuda" and config.mode in {"time", "profile"}
            self._start(command, files, gpu=gpu)

    def _start(self, command: list[str], files: list[int], *, gpu: bool) -> None:
        """Start the process, which inherits ``files``."""
        before = self._group.command() if self._group else []
        with ExitStack() as passed:
            if self._lent is not None:
                rules = os.memfd_create("filter")
                info_read, info_write = os.pipe()
                for descriptor in (rules, info_read):
                    passed.callback(os.close, descriptor)
                write_filter(rules)
                before += bubblewrap_command(self.scratch, cache=self._cache, gpu=gpu)
                before += ["--seccomp", str(rules), "--info-fd", str(info_write), "--"]
                files = [*files, rules, info_write]
                for folder in (self.scratch, *(self.scratch / n for n in ("tmp", "shm", "lent"))):
                    give_to_worker(folder)
            self._process = subprocess.Popen(
                [*before, *command],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=files,
                start_new_session=True,
                cwd=self.scratch,
                env=worker_environment(self.scratch),
            )
            if self._lent is not None:
                os.close(info_write)
                self._init_pidfd = _open_init_pidfd(info_read)
                if worker_user() is not None and self._init_pidfd >= 0:
                    self._killer = _start_killer(self._init_pidfd)

    @property
    def pid(self) -> int:
        """Return the process id, also the id of its process group."""
        return self._process.pid

    def ready(self, timeout: float) -> Reply | None:
        """Wait until it can be asked; return its first reply, none when it died or was too slow."""
        if self._first_reply is None:
            answer = self._read(timeout)
            self._first_reply = answer if isinstance(answer, Reply) else None
        return self._first_reply

    @property
    def alive(self) -> bool:
        """Tell whether the process runs."""
        return not self._ended and self._process.poll() is None

    def last_line(self) -> str:
        """Return the last line that it printed, for a message."""
        file = self._output.fileno()
        data = os.pread(file, 2000, max(0, os.fstat(file).st_size - 2000))
        lines = data.decode("utf-8", "replace").strip().splitlines()
        return printable(lines[-1], 300) if lines else "it says nothing"

    def cache_of(self, code: str) -> Path:
        """Return the compiler cache of a program."""
        return self._cache / program_id(code)

    def ask(
        self, code: str, timeout: float, task: str = "", reference: str = ""
    ) -> Reply | LostRequest:
        """Send one program, and wait for the answer, at most ``timeout`` seconds."""
        nonce, cache = secrets.token_hex(8), self.cache_of(code)
        request = Request(nonce=nonce, code=code, cache=str(cache), task=task, reference=reference)
        if self._lent is None:
            cache.mkdir(exist_ok=True)
            return self._ask(request, timeout)
        # Other programs' caches do not exist for a worker in bubblewrap: it is given this one and
        # no other.
        lent = self._lent / cache.name
        try:
            cache.rename(lent)
        except FileNotFoundError:
            lent.mkdir()
            give_to_worker(lent)
        try:
            return self._ask(request, timeout)
        finally:
            try:
                lent.rename(cache)
            except OSError:  # the program made something else of it, or another worker has one
                shutil.rmtree(lent, ignore_errors=True)

    def _ask(self, request: Request, timeout: float) -> Reply | LostRequest:
        """Send a request and wait for its answer, at most ``timeout`` seconds together."""
        data = memoryview(msgspec.json.encode(request) + b"\n")
        end = time.monotonic() + timeout
        try:
            while data:
                if not select.select([], [self._requests], [], max(0.0, end - time.monotonic()))[1]:
                    return LostRequest("timeout", "the worker does not take requests")
                data = data[os.write(self._requests, data[:65536]) :]
        except OSError:
            return self._died()
        answer = self._read(max(0.0, end - time.monotonic()))
        self.served += 1
        if isinstance(answer, Reply) and answer.nonce != request.nonce:
            return LostRequest("garbage", "the answer does not belong to the request")
        return answer

    def _over(self) -> LostRequest | None:
        """Report the loss of a worker that holds, or held, more memory than it may."""
        limit, group = self.settings.host_memory_gb, self._group
        used = group.used_gb() if group else resident_gb(self.pid)
        if used <= limit and not (group and group.was_over()):
            return None
        text = f"{max(used, limit):.1f} GB of host memory, {limit:g} GB are allowed"
        return LostRequest("memory", text)

    def _died(self) -> LostRequest:
        """Report the loss of a worker that has ended, with the reason as far as known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        over = self._over() if self._group else None
        if over:
            return over
        status = self._process.returncode
        if status is not None:
            # bubblewrap ends like a shell: a status above 128 stands for a signal.
            number = -status if status < 0 else status - 128 if self._lent is not None else 0
            with contextlib.suppress(ValueError):
                return LostRequest("died", f"the worker was ended by {signal.Signals(number).name}")
        return LostRequest("died", f"the worker ended with status {status}")

    def _read(self, timeout: float) -> Reply | LostRequest:
        """Wait for a line from the worker, at most ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            readable, _, _ = select.select([self._replies], [], [], max(0.0, min(left, 0.25)))
            if readable:
                chunk = os.read(self._replies, 1 << 16)
                if not chunk:
                    return self._died()
                self._buffer += chunk
                if len(self._buffer) > _MAX_REPLY_BYTES:
                    return LostRequest("garbage", f"an answer over {_MAX_REPLY_BYTES >> 20} MB")
                continue
            if not self.alive:  # a child that it left behind may hold the pipe open
                return self._died()
            if left <= 0:
                return LostRequest("timeout", f"no answer within {timeout:.0f} s")
            over = self._over()
            if over:
                return over
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return msgspec.json.decode(line, type=Reply)
        except (ValueError, RecursionError):
            return LostRequest("garbage", "an answer that is not one")

    def kill(self) -> None:
        """End it and everything that it started, and remove its directory; once."""
        if self._ended:
            return
        self._ended = True
        if self._init_pidfd >= 0:  # with process 1 everything in the namespace ends
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            select.select([self._init_pidfd], [], [], 20.0)
            os.close(self._init_pidfd)
        if self._killer is not None:
            self._killer.kill()
            self._killer.communicate()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        for descriptor in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._output.close()
        if self._group is not None:
            self._group.close()
        # Not by shutil: there may be folders within folders, more than Python can go into.
        subprocess.run(
            ["rm", "-rf", "--", str(self.scratch)], stderr=subprocess.DEVNULL, check=False
        )
