"""What driver and worker say to each other: a configuration at the start, then one JSON line per request and reply."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kernel_archive.measure.settings import Settings  # noqa: TC001 - msgspec reads the annotations


class Config(msgspec.Struct, kw_only=True):
    """What a worker is started for.

    Attributes:
        mode: ``time`` or ``compile``.
        task: the task, or any task of the framework for ``compile``.
        device: device name.
        settings: the protocol.
        gpu: canonical name, for the physical limit and for compiling ahead.
        cpus: processors while it answers; empty for any.
        start_cpus: processors while it starts, so that it disturbs none that times.
        scratch: the worker's directory; this and what follows is filled in by the process that starts it.
        salt: makes the inputs unknown to programs.
        lock: descriptor of the file that is locked while the device is set up; closed afterwards.
        bubblewrapped: whether bubblewrap separates it from the rest of the system.
    """

    mode: Literal["time", "compile"]
    task: str
    device: str
    settings: Settings
    gpu: str = ""
    cpus: list[int] = []
    start_cpus: list[int] = []
    scratch: str = ""
    salt: str = ""
    lock: int = -1
    bubblewrapped: bool = False


class Request(msgspec.Struct, kw_only=True):
    """One program.

    Attributes:
        nonce: comes back with the reply.
        code: the program.
        cache: its own compiler cache.
        task: the task, where the worker serves several (mode ``compile``).
    """

    nonce: str
    code: str
    cache: str
    task: str = ""


class Reply(msgspec.Struct, kw_only=True):
    """One answer.

    Attributes:
        nonce: of the request; empty for the first line, which says that the worker is ready.
        result: an ``evaluate.Result`` as plain data, in mode ``time``.
        error: a fault of the harness itself, not of the program.
        notes: remarks of mode ``compile``.
        confined: what the sandbox achieved (first line).
        facts: device and software (first line).
        sticky: the device is unusable now; the worker ends.
        wall_s: seconds that the request took.
    """

    nonce: str = ""
    result: Any = None
    error: str = ""
    notes: list[str] = []
    confined: dict[str, str] = {}
    facts: dict[str, Any] = {}
    sticky: bool = False
    wall_s: float = 0.0
