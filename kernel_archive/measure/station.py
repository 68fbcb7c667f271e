"""A place at which programs are measured: a device with its measurer, compilers on other processors than the one that times, and a watch."""

from __future__ import annotations

import os
import queue
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from kernel_archive.ids import program_id
from kernel_archive.measure.hardware import Watch
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.messages import Config
from kernel_archive.measure.process import Lost, WorkerProcess

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from kernel_archive.measure.settings import Settings


class CompilePool:
    """Compiles programs in parallel in confined workers; a compiler that hangs is killed and replaced.

    Args:
        workers: processes.
        task: any task of the framework; programs name their own.
        settings: for the limits.
        cache: root of the compiler caches, the measurer's.
        gpu: canonical name of the GPU to compile for.
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
        gpu: str,
        cpus: list[int],
    ) -> None:
        self._cache = cache
        self._config = Config(
            mode="compile", task=task, device=device, settings=settings, gpu=gpu, cpus=cpus, start_cpus=cpus
        )
        self._free: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._free.put(None)
        self._threads = ThreadPoolExecutor(workers)
        self._all: list[WorkerProcess] = []
        self._closed = False

    def submit(self, task: str, code: str) -> Future[list[str]]:
        """Compile a program; the future gives remarks and never fails."""
        return self._threads.submit(self._run, task, code)

    def _run(self, task: str, code: str) -> list[str]:
        worker = self._free.get()
        try:
            if self._closed:
                return []
            if worker is None or not worker.alive:
                worker = WorkerProcess(self._config, self._cache, nice=10)
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
            answer = worker.ask(code, cache, self._config.settings.compile_timeout_s, task)
            if isinstance(answer, Lost):
                worker.kill()
                worker = None
                if answer.why == "timeout":
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


def share_processors(part: int = 0, parts: int = 1) -> tuple[list[int], list[int]]:
    """Processors for timing and for everything else, for one of several stations on a machine.

    With fewer than six to share, all serve both.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    size = len(usable) // parts
    mine = usable[part * size : (part + 1) * size]
    # Not the very first: interrupts are served there.
    return (mine[1:3], mine[3:]) if size >= 6 else (usable, usable)


class Station:
    """Measures programs and compiles others meanwhile; used as a context manager.

    Args:
        device: ``cuda``, or ``standin`` to rehearse.
        settings: the protocol.
        gpu: canonical name of the GPU.
        task: any task of the framework that is measured; nothing is compiled ahead without one.
        part: which share of the machine's processors, from 0.
        parts: stations that share the machine.
        compilers: processes that compile ahead; one less than the processors left when not given, none for 0.
        cache: compiler caches; a temporary directory when not given.
    """

    def __init__(
        self,
        device: str,
        settings: Settings,
        gpu: str,
        task: str | None,
        *,
        part: int = 0,
        parts: int = 1,
        compilers: int | None = None,
        cache: Path | None = None,
    ) -> None:
        mine, others = share_processors(part, parts)
        self._open = ExitStack()
        self._watch = Watch(enabled=device == "cuda")
        self._open.callback(self._watch.close)
        self.measurer = self._open.enter_context(
            Measurer(device, settings, gpu=gpu, cache=cache, cpus=mine, start_cpus=others)
        )
        count = max(1, len(others) - 1) if compilers is None else compilers
        self._pool = None
        if count and task is not None:
            self._pool = CompilePool(
                count, task=task, device=device, gpu=gpu, settings=settings, cache=self.measurer.cache, cpus=others
            )
            self._open.callback(self._pool.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def compile_ahead(self, task: str, code: str) -> Future[list[str]] | None:
        """Begin to compile a program; ``None`` when nothing is compiled ahead."""
        return self._pool.submit(task, code) if self._pool is not None else None

    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says of device and software, once something was measured."""
        facts = self.measurer.facts
        software = {
            **facts.get("software", {}),
            "driver": self._watch.first.get("driver_version"),
            "sandbox": self.measurer.confined,
        }
        return {
            **facts, "software": software, "nvidia_smi": self._watch.first, "environment_last": self._watch.latest(),
        }  # fmt: skip
