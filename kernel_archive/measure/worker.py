"""The worker process: the only place of the package where a program under test runs.

Started by ``process.py`` with a configuration file and two descriptors; answers one JSON line per request line. Modes:
``time`` evaluates. ``compile`` compiles ahead, without a GPU: Triton kernels against a faked device and tensors without data, CUDA
C++ by import. It fills the program's own compiler cache, so that the evaluation only loads what was made.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from kernel_archive.gpus import gpu_facts
from kernel_archive.measure.device import StandIn, check_device, exclusive
from kernel_archive.measure.evaluate import Evaluator, import_code
from kernel_archive.measure.messages import Config, Reply, Request
from kernel_archive.measure.sandbox import confine, surrender
from kernel_archive.measure.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.measure.device import Device
    from kernel_archive.measure.tasks.base import Task


def _import_torch() -> None:
    """Load what programs load, so that none pays for it and none sees an unpatched module appear later."""
    import torch
    import torch.utils.cpp_extension

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import triton
        import triton.language  # noqa: F401 - loaded for the programs


def _fake_triton(architecture: int) -> None:
    """Let Triton compile for ``architecture`` (90 is Hopper) and launch nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    class Offline:
        """Answers what the compiler asks of a driver."""

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            del device
            return 0

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", architecture, 32)

    driver.set_active(Offline())
    original = jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        del warmup
        return original(self, *args, grid=grid, warmup=True, **kwargs)

    jit.JITFunction.run = run


def _compile(code: str, task: str, folder: Path, name: str) -> list[str]:
    """Import a program and call it on tensors without data; remarks on what did not work."""
    notes: set[str] = set()
    t = get_task(task)
    try:
        module = import_code(code, folder, name)
        if t.framework == "torch" and "triton" in code:
            for case in (*t.correctness_cases, *t.benchmark_cases):
                try:
                    module.custom_kernel(t.input_of(case, 0, "standard", "meta"))
                except Exception as error:  # noqa: BLE001 - tensors without data can't do everything: what compiled is kept
                    notes.add(f"{type(error).__name__}: {str(error)[:200]}")
    except BaseException as error:  # noqa: BLE001 - a program that fails here fails in its evaluation, with a verdict
        notes.add(f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        sys.modules.pop(name, None)
    return sorted(notes)


def compile_mode(config: Config) -> tuple[Callable[[Request], Reply], dict[str, Any]]:
    """A worker that compiles; see the module."""
    if get_task(config.task).framework == "torch":
        _import_torch()
        capability = gpu_facts(config.gpu).compute_capability or "9.0"
        _fake_triton(int(capability.replace(".", "")))
    serial = 0

    def answer(request: Request) -> Reply:
        nonlocal serial
        serial += 1
        notes = _compile(request.code, request.task or config.task, Path(config.scratch), f"ahead_{serial}")
        return Reply(nonce=request.nonce, notes=notes)

    return answer, {}


def open_device(name: str, task: Task) -> Device:
    """The device of that name, when it is here and the task can run there.

    Raises:
        UsageError: unknown name, no such device here, or a task of another framework.
        MissingExtraError: torch is needed and missing.
    """
    check_device(name, task)
    if name == "standin":
        return StandIn()
    from kernel_archive.measure.torch_device import TorchDevice

    return TorchDevice(name)


def _time_mode(config: Config) -> tuple[Callable[[Request], Reply], dict[str, Any]]:
    task = get_task(config.task)
    if task.framework == "torch":
        with contextlib.suppress(ImportError):  # open_device says what is missing
            _import_torch()
    with exclusive(config.lock):
        device = open_device(config.device, task)
        if config.device == "cuda":
            import torch

            torch.cuda.set_per_process_memory_fraction(config.settings.gpu_memory_fraction)
        evaluator = Evaluator(
            task, device, config.settings, salt=config.salt, gpu=config.gpu, scratch=Path(config.scratch)
        )
        evaluator.warm()
    os.close(config.lock)

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


def _serve(config: Config, requests: IO[bytes], replies: IO[bytes], *, namespace: bool) -> int:
    if config.start_cpus:
        os.sched_setaffinity(0, set(config.start_cpus))
    start: Callable[[Config], tuple[Callable[[Request], Reply], dict[str, Any]]] = _time_mode
    if config.mode == "compile":
        start = compile_mode
    answer, facts = start(config)
    confined = confine(config.settings, bubblewrapped=config.bubblewrapped, namespace=namespace)
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
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache) / "triton")
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(request.cache) / "extensions")
        begin = time.perf_counter()
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
    namespace = surrender()
    config = msgspec.json.decode(Path(argv[0]).read_bytes(), type=Config)
    Path(argv[0]).unlink()  # the salt is none of a program's business
    with os.fdopen(int(argv[1]), "rb") as requests, os.fdopen(int(argv[2]), "wb") as replies:
        return _serve(config, requests, replies, namespace=namespace)
