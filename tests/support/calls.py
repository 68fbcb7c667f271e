"""Calls for a team whose processes import them by name."""

import os
import signal

from kernel_archive.errors import DataError


def once(path, then):
    """Do something the first time, and end well the second time."""
    if not path.exists():
        path.write_text("")
        then()
    return "made"


def refuse(n):
    """End with an error of ours."""
    raise DataError.of(code="bad", message=f"fault {n}", file="log")


def kill_self():
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def break_disk():
    """End as a full disk does."""
    raise OSError(28, "No space left on device")
