"""Programs compiled ahead in parallel, in confined workers on other processors than the one that times."""

from __future__ import annotations

import queue
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from kernel_archive.ids import program_id
from kernel_archive.measure.messages import Config
from kernel_archive.measure.process import Lost, WorkerProcess

if TYPE_CHECKING:
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
