"""The worker process: the only place of the package where a program under test runs.

Started by ``process.py`` with a configuration file and two descriptors; answers one JSON line per request line. Modes:
``time`` evaluates, ``compile`` only fills the compilers' caches, launching nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from kernel_archive.measure.sandbox import confine
from kernel_archive.measure.settings import Settings  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Config", "Reply", "Request", "main"]


class Config(msgspec.Struct, kw_only=True):
    """What a worker is started for.

    Attributes:
        mode: ``time`` or ``compile``.
        task: the task.
        device: device name.
        settings: the protocol.
        scratch: the worker's directory.
        salt: makes the inputs unknown to programs.
        gpu: canonical name, for the physical limit.
        architecture: compute capability without its point, for compiling ahead.
        cpus: processors while it answers; empty for any.
        start_cpus: processors while it starts, so that it disturbs none that times.
        lock: file that is locked while the device is set up.
    """

    mode: Literal["time", "compile"]
    task: str
    device: str
    settings: Settings
    scratch: str
    salt: str
    gpu: str = ""
    architecture: str = ""
    cpus: list[int] = []
    start_cpus: list[int] = []
    lock: str = ""


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


def _own_statics() -> None:
    """Let no two CUDA extensions of one process share state.

    Static variables of C++ templates are unique symbols of the whole process, whatever the library they come from: a
    program would find the function attributes that an earlier one with the same kernel names has set.
    """
    os.environ["NVCC_APPEND_FLAGS"] = " ".join(
        [os.environ.get("NVCC_APPEND_FLAGS", ""), "-Xcompiler", "-fno-gnu-unique"]
    ).strip()


def _use_cache(cache: str) -> None:
    """Programs never share a compiler cache: one can't plant a binary for another."""
    os.environ["TRITON_CACHE_DIR"] = str(Path(cache) / "triton")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(cache) / "extensions")


def _import_torch() -> None:
    """Load what programs load, so that none pays for it and none sees an unpatched module appear later."""
    import torch
    import torch.utils.cpp_extension

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import triton
        import triton.language  # noqa: F401 - loaded for the programs


@contextlib.contextmanager
def _exclusive(lock: str) -> Iterator[None]:
    """Hold the device: setting up a worker must not disturb what another one times."""
    if not lock:
        yield
        return
    import fcntl

    with Path(lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _time_mode(config: Config) -> tuple[Callable[[Request], Reply], dict[str, Any]]:
    from kernel_archive.measure.device import open_device
    from kernel_archive.measure.evaluate import Evaluator
    from kernel_archive.measure.tasks import get_task

    task = get_task(config.task)
    if task.framework == "torch":
        with contextlib.suppress(ImportError):  # open_device says what is missing
            _import_torch()
    with _exclusive(config.lock):
        device = open_device(config.device, task)
        if config.device == "cuda":
            import torch

            torch.cuda.set_per_process_memory_fraction(config.settings.gpu_memory_fraction)
        evaluator = Evaluator(
            task, device, config.settings, salt=config.salt, gpu=config.gpu, scratch=Path(config.scratch)
        )
        evaluator.warm()

    def answer(request: Request) -> Reply:
        result = evaluator.evaluate(request.code)
        sticky = False
        try:
            device.synchronize()
            if config.device == "cuda":
                import torch

                torch.zeros(1, device="cuda").item()
                if torch.cuda.memory_reserved() > 60 * 2**30:
                    torch.cuda.empty_cache()
        except Exception:  # noqa: BLE001 - whatever the driver raises, the context is gone
            sticky = True
        return Reply(nonce=request.nonce, result=msgspec.to_builtins(result), sticky=sticky)

    return answer, device.facts()


def _serve(config: Config, requests: IO[bytes], replies: IO[bytes]) -> int:
    _own_statics()
    if config.start_cpus:
        os.sched_setaffinity(0, set(config.start_cpus))
    start: Callable[[Config], tuple[Callable[[Request], Reply], dict[str, Any]]] = _time_mode
    if config.mode == "compile":
        from kernel_archive.measure.compile_ahead import compile_mode

        start = compile_mode
    answer, facts = start(config)
    confined = confine(config.settings)
    send = replies.write
    encode, decode = msgspec.json.encode, msgspec.json.Decoder(Request).decode

    def reply(message: Reply) -> None:
        send(encode(message) + b"\n")
        replies.flush()

    reply(Reply(confined=confined, facts=facts))
    for line in requests:
        if config.cpus:
            os.sched_setaffinity(0, set(config.cpus))
        request = decode(line)
        begin = time.perf_counter()
        _use_cache(request.cache)
        try:
            message = answer(request)
        except Exception as error:  # noqa: BLE001 - a fault of ours must reach the driver as one
            message = Reply(nonce=request.nonce, error=f"{type(error).__name__}: {error}"[:2000])
        message.wall_s = time.perf_counter() - begin
        reply(message)
        if message.sticky:
            return 3
    return 0


def main(argv: list[str]) -> int:
    """Entry point of the process."""
    config = msgspec.json.decode(Path(argv[0]).read_bytes(), type=Config)
    with os.fdopen(int(argv[1]), "rb") as requests, os.fdopen(int(argv[2]), "wb") as replies:
        return _serve(config, requests, replies)
