"""Compiling ahead, without a GPU: Triton kernels against a faked device and tensors without data, CUDA C++ by import.

Fills the program's own compiler cache, so that the evaluation only loads what was made. Compiler hangs are ended by the
driver's limit. Runs in a sandboxed worker like everything else that touches a program.
"""

from __future__ import annotations

import importlib.util
import queue
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_archive.ids import program_id
from kernel_archive.measure.messages import Config, Reply, Request
from kernel_archive.measure.process import Lost, WorkerProcess
from kernel_archive.measure.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.measure.settings import Settings

__all__ = ["CompilePool", "compile_mode"]


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


def _compile(code: str, task: str, path: Path) -> list[str]:
    """Import a program and call it on tensors without data; remarks on what did not work."""
    notes: set[str] = set()
    path.write_text(code, encoding="utf-8", errors="surrogatepass")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # noqa: S101 - a path that ends in .py always has one
    assert spec.loader is not None  # noqa: S101 - likewise
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    t = get_task(task)
    try:
        spec.loader.exec_module(module)
        if t.framework == "torch" and "triton" in code:
            for case in (*t.correctness_cases, *t.benchmark_cases):
                try:
                    module.custom_kernel(t.shapes(case))
                except Exception as error:  # noqa: BLE001 - tensors without data can't do everything: what compiled is kept
                    notes.add(f"{type(error).__name__}: {str(error)[:200]}")
    except BaseException as error:  # noqa: BLE001 - a program that fails here fails in its evaluation, with a verdict
        notes.add(f"{type(error).__name__}: {str(error)[:300]}")
    finally:
        sys.modules.pop(path.stem, None)
    return sorted(notes)


def compile_mode(config: Config) -> tuple[Callable[[Request], Reply], dict[str, Any]]:
    """A worker that compiles; see the module."""
    scratch = Path(config.scratch)
    if get_task(config.task).framework == "torch":
        import torch
        import torch.utils.cpp_extension

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        _fake_triton(int(config.architecture or "90"))
    serial = 0

    def answer(request: Request) -> Reply:
        nonlocal serial
        serial += 1
        notes = _compile(request.code, request.task or config.task, scratch / f"ahead_{serial}.py")
        return Reply(nonce=request.nonce, notes=notes)

    return answer, {}


class CompilePool:
    """Compiles programs in parallel in confined workers; a compiler that hangs is killed and replaced.

    Args:
        workers: processes.
        task: any task of the framework; programs name their own.
        settings: for the limits.
        cache: root of the compiler caches, the measurer's.
        architecture: compute capability without its point, ``90`` for Hopper.
        cpus: processors to use; others than the one that times.
    """

    def __init__(
        self,
        workers: int,
        *,
        task: str,
        device: str,
        settings: Settings,
        cache: Path,
        architecture: str = "90",
        cpus: list[int] | None = None,
    ) -> None:
        self._settings, self._cache = settings, cache
        self._arguments: dict[str, Any] = {
            "mode": "compile", "task": task, "device": device, "settings": settings, "cache": cache,
            "architecture": architecture, "cpus": cpus, "start_cpus": cpus, "nice": 10,
        }  # fmt: skip
        self._free: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(workers)
        self._all: list[WorkerProcess] = []
        self._closed = False
        #: Programs whose compilation exceeded its limit, by program id.
        self.too_slow: set[str] = set()

    def submit(self, task: str, code: str) -> Future[list[str]]:
        """Compile a program; the future gives remarks and never fails."""
        return self._threads.submit(self._run, task, code)

    def _run(self, task: str, code: str) -> list[str]:
        worker = self._free.get()
        try:
            if self._closed:
                return []
            if worker is None or not worker.alive:
                worker = WorkerProcess(**self._arguments)
                self._all.append(worker)
            up = worker.ready(300.0)
            if self._closed:
                return []
            if not up:
                text = worker.output(300)
                worker.kill()
                worker = None
                return [f"no compiler worker comes up: {text}"]
            cache = self._cache / program_id(code)
            answer = worker.ask(code, cache, self._settings.compile_timeout_s, task)
            if isinstance(answer, Lost):
                worker.kill()
                worker = None
                if answer.why == "timeout":
                    self.too_slow.add(program_id(code))
                    # A lock that the killed compiler left would make the evaluation wait for it.
                    shutil.rmtree(cache, ignore_errors=True)
                return [f"{answer.why}: {answer.text}"]
            return answer.notes
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End all workers; programs that wait are not compiled."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._all):
            worker.kill()
        self._threads.shutdown(wait=True)
        for worker in self._all:  # one that was just being started when the others were ended
            worker.kill()
