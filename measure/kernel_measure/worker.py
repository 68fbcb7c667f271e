"""The worker process: the only place of the package where a program under test runs.

Started by ``process.py`` with two descriptors; after a line with a ``WorkerConfig`` it answers one
JSON line (``Reply``) per request line (``Request``). Modes: ``time`` evaluates. ``compile``
compiles ahead, without a GPU: Triton kernels against a faked device and tensors without data, CUDA
C++ by import. It fills the program's own compiler cache, so that the evaluation only loads what was
made. ``dry`` follows host code on tensors without values and says what it launches
(``following.py``). ``profile`` calls a program on the GPU and says what was launched there
(``profiler.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import msgspec

from kernel_archive.gpus import gpu_facts
from kernel_measure.device import StandIn, check_device
from kernel_measure.evaluate import Evaluator, import_code
from kernel_measure.failures import failure_by
from kernel_measure.following import (
    fake_gpu,
    follow,
    follow_model,
    install_torch,
    install_triton,
    meta_mode,
)
from kernel_measure.profiler import profile_call, record_spills
from kernel_measure.sandbox import limit_resources, protect_process
from kernel_measure.settings import WorkerConfig
from kernel_measure.tasks import get_task
from kernel_measure.tasks.base import Data
from kernel_measure.torch_device import AnyDevice, TorchDevice


class Request(msgspec.Struct, kw_only=True):
    """One program, with its own compiler cache; the task of a worker that times is its own."""

    nonce: str
    code: str
    cache: str
    task: str = ""
    reference: str = ""  # in mode ``dry``: of a program in the form of KernelBench, without a task


class Reply(msgspec.Struct, kw_only=True):
    """One answer; the first one says that the worker is ready."""

    nonce: str = ""  # of the request; empty for the first line
    #: A ``timing.Result`` as plain data, in mode ``time``; in modes ``dry`` and ``profile``
    #: calls by case (``cases``), or the ``error`` of a program that can't be followed.
    result: Any = None
    error: str = ""  # a fault of the harness itself, not of the program
    sandbox: dict[str, str] = {}  # what the sandbox achieved (first line)
    facts: dict[str, Any] = {}  # device and software (first line)
    ends_worker: bool = False  # it can serve no more: the device is unusable, or it was lost
    wall_s: float = 0.0  # seconds that the request took


Handler: TypeAlias = "Callable[[Request], Reply]"
Facts: TypeAlias = dict[str, Any]


def _import_torch() -> Any:
    """Load what programs load, and return torch."""
    import torch
    import torch.utils.cpp_extension

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import triton
        import triton.language  # noqa: F401 - loaded for the programs
    return torch


def _fake_triton(architecture: int) -> None:
    """Let Triton compile for ``architecture`` (90 is Hopper) and launch nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver, jit

    def compile_once(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        return [0.0 for _ in quantiles]

    # Answers what the compiler asks of a driver; autotuning compiles every configuration.
    offline = types.SimpleNamespace(
        get_benchmarker=lambda: compile_once,
        get_current_device=lambda: 0,
        get_current_stream=lambda *_, **__: 0,
        get_current_target=lambda: GPUTarget("cuda", architecture, 32),
    )
    driver.set_active(offline)
    original = jit.JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        del warmup
        return original(self, *args, grid=grid, warmup=True, **kwargs)

    jit.JITFunction.run = run


def _compile_mode(config: WorkerConfig) -> tuple[Handler, Facts]:
    """Import programs and call them on tensors that have shapes alone."""
    mode: Any = contextlib.nullcontext()
    if get_task(config.task).framework == "torch":
        torch = _import_torch()
        facts = gpu_facts(config.gpu)
        major, minor = map(int, (facts.compute_capability or "9.0").split("."))
        _fake_triton(10 * major + minor)
        multiprocessors = facts.multiprocessors or config.multiprocessors
        fake_gpu(torch, multiprocessors, (major, minor))  # isolated, it sees none
        mode = meta_mode(torch)
    folder, serial = Path(config.scratch), itertools.count(1)

    def handle(request: Request) -> Reply:
        name = f"ahead_{next(serial)}"
        # A program that fails here fails in its evaluation, with a verdict.
        with contextlib.suppress(BaseException), mode:
            module = import_code(request.code, folder, name)
            task = get_task(request.task)
            if task.framework == "torch" and "triton" in request.code:
                for case in (*task.correctness_cases, *task.benchmark_cases):
                    # Shapes alone can't do everything: what compiled is kept.
                    with contextlib.suppress(Exception):
                        module.custom_kernel(task.input_of(case, 0, "standard", "meta"))
        sys.modules.pop(name, None)
        return Reply()

    return handle, {}


def calls_by_case(cases: Iterable[list[dict[str, Any]]]) -> dict[str, Any]:
    """Count the equal calls of a program by case; an ``error`` says why there are none."""
    counted = []
    try:
        for calls in cases:
            alike = Counter(msgspec.json.encode(call) for call in calls)
            counted.append([{**msgspec.json.decode(call), "n": n} for call, n in alike.items()])
    except BaseException as error:  # noqa: BLE001 - whatever a program raises
        failure = failure_by(error)
        return {"error": f"{failure.name}: {failure.error}"[:200]}
    return {"cases": counted}


def _inputs(request: Request, device: str) -> Iterator[Data]:
    """Make the inputs of the timed cases of a request's task."""
    task = get_task(request.task)
    return (task.input_of(case, 0, "standard", device) for case in task.benchmark_cases)


def _dry_mode(config: WorkerConfig) -> tuple[Handler, Facts]:
    """Follow host code on tensors without values."""
    import torch
    import torch._meta_registrations  # loaded before the first program's time runs

    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    install_triton()
    meta, operators = install_torch(torch, config.multiprocessors)
    device = torch.device("meta")

    def cases(request: Request) -> Iterator[list[dict[str, Any]]]:
        if request.reference:
            yield follow_model(request.code, request.reference, device, meta, operators)
            return
        for data in _inputs(request, "meta"):
            yield follow(request.code, data, meta, operators)

    def handle(request: Request) -> Reply:
        torch.set_default_dtype(torch.float32)  # the program before may have set another
        return Reply(result=calls_by_case(cases(request)))

    return handle, {}


def _profile_mode(config: WorkerConfig) -> tuple[Handler, Facts]:
    """Call programs on the GPU, and say what was launched there."""
    torch = _import_torch()
    device = TorchDevice(config.device)
    torch.cuda.set_per_process_memory_fraction(config.settings.gpu_memory_fraction)
    spills = record_spills()
    scratch, serial = Path(config.scratch), itertools.count(1)

    def cases(request: Request, name: str) -> Iterator[list[dict[str, Any]]]:
        program = import_code(request.code, scratch, name).custom_kernel
        for data in _inputs(request, "cuda"):
            yield profile_call(program, data, scratch, spills)

    def handle(request: Request) -> Reply:
        name = f"profiled_{next(serial)}"
        result = calls_by_case(cases(request, name))
        sys.modules.pop(name, None)
        return _checked(Reply(result=result), device, keep_gb=4)  # others share the GPU

    return handle, device.facts()


def _checked(reply: Reply, device: AnyDevice, *, keep_gb: int) -> Reply:
    """Give memory back; say in the reply where the program broke the CUDA context."""
    try:
        device.synchronize()
        if device.name == "cuda":
            import torch

            torch.zeros(1, device="cuda").item()
            if torch.cuda.memory_reserved() > keep_gb * 2**30:
                torch.cuda.empty_cache()
    except Exception:  # noqa: BLE001 - whatever the driver raises, the context is gone
        reply.ends_worker = True
    return reply


def _time_mode(config: WorkerConfig) -> tuple[Handler, Facts]:
    """Evaluate programs of one task."""
    task = get_task(config.task)
    if task.framework == "torch":
        with contextlib.suppress(ImportError):  # the device says what is missing
            _import_torch()
    check_device(config.device, task)
    device = StandIn() if config.device == "standin" else TorchDevice(config.device)
    if config.device == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(config.settings.gpu_memory_fraction)
    evaluator = Evaluator(task, device, config)
    evaluator.warm()

    def handle(request: Request) -> Reply:
        result = msgspec.to_builtins(evaluator.evaluate(request.code))
        return _checked(Reply(result=result), device, keep_gb=60)

    return handle, device.facts()


_MODES: Final = {
    "time": _time_mode,
    "compile": _compile_mode,
    "dry": _dry_mode,
    "profile": _profile_mode,
}


def _serve(config: WorkerConfig, requests: IO[bytes], replies: IO[bytes]) -> int:
    """Answer requests until there are no more, or one ends the worker; return the exit status."""
    handle, facts = _MODES[config.mode](config)
    isolation = "none" if config.trusted else "bubblewrap"
    sandbox = {"isolation": isolation, "limits": limit_resources(config.settings)}
    # Taken before a program could replace them.
    write = replies.write
    encode, decode = msgspec.json.encode, msgspec.json.Decoder(Request).decode

    def send_reply(reply: Reply) -> None:
        write(encode(reply) + b"\n")
        replies.flush()

    send_reply(Reply(sandbox=sandbox, facts=facts))
    for line in requests:
        if config.cpus:
            os.sched_setaffinity(0, set(config.cpus))
        request = decode(line)
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache) / "triton")
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(request.cache) / "extensions")
        begin = time.perf_counter()
        try:
            reply = handle(request)
        except Exception as error:  # noqa: BLE001 - a fault of ours must reach the driver as one
            reply = Reply(error=f"{type(error).__name__}: {error}"[:2000])
        reply.nonce, reply.wall_s = request.nonce, time.perf_counter() - begin
        send_reply(reply)
        if reply.ends_worker:
            return 3
    return 0


def main(argv: list[str]) -> int:
    """Entry point of the process."""
    protect_process()
    with os.fdopen(int(argv[0]), "rb") as requests, os.fdopen(int(argv[1]), "wb") as replies:
        config = msgspec.json.decode(requests.readline(), type=WorkerConfig)
        os.chdir(config.scratch)
        return _serve(config, requests, replies)
