"""Compiling ahead, without a GPU: Triton kernels against a faked device and tensors without data, CUDA C++ by import.

Fills the program's own compiler cache, so that the evaluation only loads what was made. Runs in a confined worker
(``worker.py``, mode ``compile``) like everything else that touches a program; ``compile_pool.py`` drives several.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_archive.gpus import gpu_facts
from kernel_archive.measure.messages import Config, Reply, Request
from kernel_archive.measure.programs import import_code, import_torch
from kernel_archive.measure.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable


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
                    module.custom_kernel(t.shapes(case))
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
        import_torch()
        capability = gpu_facts(config.gpu).compute_capability or "9.0"
        _fake_triton(int(capability.replace(".", "")))
    serial = 0

    def answer(request: Request) -> Reply:
        nonlocal serial
        serial += 1
        notes = _compile(request.code, request.task or config.task, Path(config.scratch), f"ahead_{serial}")
        return Reply(nonce=request.nonce, notes=notes)

    return answer, {}
