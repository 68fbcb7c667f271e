"""Host memory of a worker and all that it starts, counted as the kernel counts it.

Where this process may make a control group, the worker starts in one of its own: memory without a
process (``memfd_create``) counts too, and the kernel ends what goes over the limit. Elsewhere the
resident memory of every process is summed, whichever of its threads still runs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
#: Joins a group before it becomes the worker: nothing that it starts is outside.
_JOIN_GROUP: Final = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class MemoryGroup:
    """A control group with a memory limit, version 1 or 2."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._is_v2 = (path / "memory.max").exists()
        (path / ("memory.max" if self._is_v2 else "memory.limit_in_bytes")).write_text(str(limit))
        if self._is_v2:
            with contextlib.suppress(OSError):  # there may be no swap to limit
                (path / "memory.swap.max").write_text("0")

    @classmethod
    def make(cls, limit: int) -> MemoryGroup | None:
        """Make a group; ``None`` where this process may not, or may not limit its memory."""
        for parent in parent_groups():
            path = parent / f"kernel-measure-{secrets.token_hex(6)}"
            with contextlib.suppress(OSError):
                path.mkdir()
                with contextlib.suppress(OSError):
                    group, stat = cls(path, limit), path / "memory.stat"
                    if os.access(path / "cgroup.procs", os.W_OK) and stat.exists():
                        return group
                path.rmdir()
        return None

    def command(self) -> list[str]:
        """Return the command line that stands before one that runs in the group."""
        return ["/bin/sh", "-c", _JOIN_GROUP, str(self._path)]

    def _numbers(self, name: str) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError):
            rows = map(str.split, (self._path / name).read_text("ascii").splitlines())
            return {row[0]: int(row[1]) for row in rows}
        return {}

    def used_gb(self) -> float:
        """Return the memory in use without what the kernel keeps of files, GB."""
        stat = self._numbers("memory.stat")
        names = ("anon", "shmem") if self._is_v2 else ("total_rss", "total_shmem")
        return sum(stat.get(name, 0) for name in names) / 1e9

    def was_over(self) -> bool:
        """Tell whether the kernel ended a process for its memory."""
        name = "memory.events" if self._is_v2 else "memory.oom_control"
        return self._numbers(name).get("oom_kill", 0) > 0

    def close(self) -> None:
        """Remove the group once the last process in it has ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._path.rmdir()
                return
            time.sleep(0.02)


def parent_groups() -> Iterator[Path]:
    """List folders in which this process might make a group with a memory limit."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield from (Path(f"{_ROOT}/memory{path}"), _ROOT / "memory")
            if not controllers:
                own = Path(f"{_ROOT}{path}")
                yield from (own, own.parent)


def _threads(process: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from Path(f"/proc/{process}/task").iterdir()


def _tree(pid: int) -> list[int]:
    """List a process and its descendants."""
    processes = [pid]
    for process in processes:  # grows while it is walked
        for thread in _threads(process):
            with contextlib.suppress(OSError, ValueError):
                processes += map(int, (thread / "children").read_text("ascii").split())
    return processes


def _pages(process: int) -> int:
    """Count a process's resident pages: of any thread, since the first may have ended."""
    most = 0
    for thread in _threads(process):
        with contextlib.suppress(OSError, IndexError, ValueError):
            most = max(most, int((thread / "statm").read_text("ascii").split()[1]))
    return most


def resident_gb(pid: int) -> float:
    """Sum the resident memory of a process and its descendants, GB; unreadable counts as none."""
    return sum(map(_pages, _tree(pid))) * os.sysconf("SC_PAGE_SIZE") / 1e9
