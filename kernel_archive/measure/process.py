"""One worker process as the driver sees it: started, asked with a time limit, watched, killed with all it started."""

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
from pathlib import Path
from typing import Literal

import msgspec

from kernel_archive.measure.sandbox import bubblewrap, bubblewrap_command, environment, hide_from_workers
from kernel_archive.measure.worker import Config, Reply, Request

_MAX_REPLY = 16 * 2**20
# Threads and extensions of a program must not keep the process alive: no ordinary exit.
_START = (
    "import os, sys; os.nice({nice}); sys.path[:0] = {paths}; "
    "from kernel_archive.measure.worker import main; os._exit(main(sys.argv[1:]))"
)


class Lost(msgspec.Struct, frozen=True):
    """A request without an answer, and why, also in words."""

    why: Literal["timeout", "died", "memory", "garbage"]
    text: str


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for process in found:  # grows while it is walked
        with contextlib.suppress(OSError):
            for thread in os.scandir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError, ValueError):
                    found += map(int, Path(thread.path, "children").read_text("ascii").split())
    return found


def _resident_gb(pid: int) -> float:
    """Resident memory of a process and its descendants, GB; what can't be read counts as none."""
    pages = 0
    for process in _tree(pid):
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int(Path(f"/proc/{process}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


class WorkerProcess:
    """A worker. It serves one task; ``served`` counts its evaluations.

    Its own folder is made in ``cache``, too, the root of the compiler caches. ``lock`` is the descriptor of the file that is locked
    while the device is set up, ``nice`` how far it stands behind other processes.
    """

    def __init__(self, config: Config, cache: Path, *, lock: int | None = None, nice: int = 0) -> None:
        self.settings, self.served = config.settings, 0
        cache.mkdir(parents=True, exist_ok=True)
        self.scratch = Path(tempfile.mkdtemp(prefix="kernel-archive-worker-", dir=cache.resolve()))
        program = bubblewrap()
        # Opened anew: a lock belongs to an opening of a file, and a copy of the driver's would share its lock.
        own_lock = os.open(f"/dev/fd/{lock}" if lock is not None else os.devnull, os.O_RDWR)
        config = msgspec.structs.replace(
            config, scratch=str(self.scratch), salt=secrets.token_hex(8), lock=own_lock, bubblewrapped=program is not None
        )  # fmt: skip
        self.salt = config.salt
        (self.scratch / "config.json").write_bytes(msgspec.json.encode(config))
        before: list[str] = []
        self._lent: Path | None = None
        if program is None:
            hide_from_workers()
        else:
            self._lent = self.scratch / "lent"
            gpu = config.device == "cuda" and config.mode == "time"
            before = bubblewrap_command(program, self.scratch, cache=cache.resolve(), gpu=gpu)
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *(p for p in sys.path if p and p != package)]
        # Kept open: what a program makes of the file's name later is of no concern.
        self._output = (self.scratch / "output.txt").open("w+b")
        self._process = subprocess.Popen(
            [
                *before, sys.executable, "-c", _START.format(nice=nice, paths=json.dumps(paths)),
                str(self.scratch / "config.json"), str(request_read), str(reply_write),
            ],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            pass_fds=(request_read, reply_write, own_lock), start_new_session=True, cwd=self.scratch,
            env=environment(self.scratch),
        )  # fmt: skip
        for descriptor in (request_read, reply_write, own_lock):
            os.close(descriptor)
        self._buffer = b""
        self._ended = False
        self.hello: Reply | None = None

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._process.pid

    def ready(self, timeout: float) -> bool:
        """Wait until it can be asked; ``False`` when it died or did not come up in time."""
        if self.hello is None:
            answer = self._read(timeout)
            if isinstance(answer, Lost):
                return False
            self.hello = answer
        return True

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended and self._process.poll() is None

    def output(self, limit: int = 2000) -> str:
        """The end of what it printed."""
        file = self._output.fileno()
        return os.pread(file, limit, max(0, os.fstat(file).st_size - limit)).decode("utf-8", "replace")

    def ask(self, code: str, cache: Path, timeout: float, task: str = "") -> Reply | Lost:
        """One program and its compiler cache; waits for the answer, at most ``timeout`` seconds."""
        request = Request(nonce=secrets.token_hex(8), code=code, cache=str(cache.resolve()), task=task)
        if self._lent is None:
            cache.mkdir(exist_ok=True)
            return self._ask(request, timeout)
        # Other programs' caches do not exist for a worker in bubblewrap: it is given this one and no other.
        lent = self._lent / cache.name
        try:
            cache.rename(lent)
        except FileNotFoundError:
            lent.mkdir()
        try:
            return self._ask(request, timeout)
        finally:
            try:
                lent.rename(cache)
            except OSError:  # the program made something else of it, or another worker has one by now
                shutil.rmtree(lent, ignore_errors=True)

    def _ask(self, request: Request, timeout: float) -> Reply | Lost:
        data = memoryview(msgspec.json.encode(request) + b"\n")
        end = time.monotonic() + timeout
        try:
            while data:
                if not select.select([], [self._requests], [], max(0.0, end - time.monotonic()))[1]:
                    return Lost("timeout", "the worker does not take requests")
                data = data[os.write(self._requests, data[:65536]) :]
        except OSError:
            return self._died()
        answer = self._read(max(0.0, end - time.monotonic()))
        self.served += 1
        if isinstance(answer, Reply) and answer.nonce != request.nonce:
            return Lost("garbage", "the answer does not belong to the request")
        return answer

    def _died(self) -> Lost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        status = self._process.returncode
        if status is not None:
            # bubblewrap ends like a shell: a status above 128 stands for a signal.
            number = -status if status < 0 else status - 128 if self._lent is not None else 0
            with contextlib.suppress(ValueError):
                return Lost("died", f"the worker was ended by {signal.Signals(number).name}")
        return Lost("died", f"the worker ended with status {status}")

    def _read(self, timeout: float) -> Reply | Lost:
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            readable, _, _ = select.select([self._replies], [], [], max(0.0, min(left, 0.25)))
            if readable:
                chunk = os.read(self._replies, 1 << 16)
                if not chunk:
                    return self._died()
                self._buffer += chunk
                if len(self._buffer) > _MAX_REPLY:
                    return Lost("garbage", f"an answer over {_MAX_REPLY >> 20} MB")
                continue
            if not self.alive:  # a child that it left behind may hold the pipe open
                return self._died()
            if left <= 0:
                return Lost("timeout", f"no answer within {timeout:.0f} s")
            used = _resident_gb(self.pid)
            if used > self.settings.host_memory_gb:
                return Lost("memory", f"{used:.1f} GB of host memory, {self.settings.host_memory_gb:g} GB are allowed")
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            return msgspec.json.decode(line, type=Reply)
        except (ValueError, RecursionError):
            return Lost("garbage", "an answer that is not one")

    def kill(self) -> None:
        """End it and everything that it started, and remove its directory; once."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        for descriptor in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._output.close()
        try:
            shutil.rmtree(self.scratch, ignore_errors=True)
        except RecursionError:  # folders within folders, more than Python can go into
            subprocess.run(["rm", "-rf", "--", str(self.scratch)], check=False)
