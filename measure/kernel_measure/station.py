"""A place at which programs are measured."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.gpus import canonical_gpu, gpu_facts
from kernel_measure.device import check_device
from kernel_measure.measurer import START_TIMEOUT_S, Measurer
from kernel_measure.process import LostRequest, WorkerProcess
from kernel_measure.settings import Settings, WorkerConfig
from kernel_measure.tasks import get_task
from kernel_measure.verdict import Measurement

if TYPE_CHECKING:
    from kernel_archive.archive.build import Advance

#: What is asked of ``nvidia-smi``.
_SMI_FIELDS: Final = (
    "name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory",
    "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "power.limit", "pstate",
    "clocks_event_reasons.active",
)  # fmt: skip


def gpu_state() -> dict[str, str]:
    """Ask ``nvidia-smi`` about the first visible GPU: texts by field; empty where there is none."""
    which = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    command = ["nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader"]
    command += [f"--id={which}"] if which else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = done.stdout.strip().splitlines()
    values = [part.strip() for part in lines[0].split(",")] if lines else []
    return dict(zip(_SMI_FIELDS, values, strict=False))


def resolve_gpu(device: str, gpu: str | None) -> str:
    """Return the GPU's canonical name: as given, as nvidia-smi says, or the stand-in's own name."""
    if gpu:
        return canonical_gpu(gpu)
    return canonical_gpu(gpu_state().get("name", "unknown")) if device == "cuda" else device


class CompilePool:
    """Compiles programs in parallel in confined workers."""

    def __init__(self, workers: int, config: WorkerConfig, cache: Path) -> None:
        self._config, self._cache = config, cache
        self._mine = threading.local()  # each thread has its worker
        self._threads = ThreadPoolExecutor(workers)
        self._all: list[WorkerProcess] = []
        self._closed = False

    def submit(self, task: str, code: str) -> Future[None]:
        """Compile a program; what does not compile is for its evaluation to say."""
        return self._threads.submit(self._run, task, code)

    def _run(self, task: str, code: str) -> None:
        if self._closed:
            return
        worker: WorkerProcess | None = getattr(self._mine, "worker", None)
        if worker is None or not worker.alive:
            worker = self._mine.worker = WorkerProcess(self._config, self._cache)
            self._all.append(worker)
            if self._closed:
                worker.kill()
                return
        if not worker.ready(START_TIMEOUT_S) or self._closed:
            worker.kill()
            return
        answer = worker.ask(code, self._config.settings.compile_timeout_s, task)
        if isinstance(answer, LostRequest):
            worker.kill()
            if answer.why == "timeout":
                # A lock that the killed compiler left would make the evaluation wait for it.
                shutil.rmtree(worker.cache_of(code), ignore_errors=True)

    def close(self) -> None:
        """End all workers; programs that wait are not compiled."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._all):
            worker.kill()
        self._threads.shutdown(wait=True)
        for worker in self._all:  # one that was just being started when the others were ended
            worker.kill()


def timing_processors() -> list[int]:
    """Two processors for the worker that times, or all where there are fewer than six.

    They are of those that this process may use: ``taskset`` gives several stations their own.
    """
    usable = sorted(os.sched_getaffinity(0))
    # Not the very first: interrupts are served there.
    return usable[1:3] if len(usable) >= 6 else usable


class StationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are compiled and measured."""

    device: str = "cuda"  # ``cuda``, ``cpu`` or ``standin``
    trusted: bool = False  # run programs without any isolation
    #: Processes that compile ahead; one less than processors by default.
    compilers: int | None = None
    cache: Path | None = None  # where compiled programs are kept; a temporary directory by default


#: Said wherever programs run unconfined.
TRUSTED_WARNING: Final = (
    "Programs ran without any isolation (--trusted): they could do all that you can."
)


class Station(ExitStack):
    """Compiles programs, then measures them; used as a context manager."""

    def __init__(self, options: StationOptions, settings: Settings, gpu: str) -> None:
        super().__init__()
        self._device = options.device
        self._state_at_start = self.gpu_state()
        more = {"gpu": gpu, "trusted": options.trusted, "cpus": timing_processors()}
        self.measurer = self.enter_context(
            Measurer(options.device, settings, cache=options.cache, **more)
        )
        usable = len(os.sched_getaffinity(0))
        self._compilers = max(1, usable - 1) if options.compilers is None else options.compilers

    def compile_ahead(
        self,
        programs: Collection[tuple[str, str]],
        deadline: float,
        advance: Advance,
    ) -> None:
        """Compile programs, given with their tasks, and end the compilers.

        None is waited for after the deadline. ``advance`` is called with programs done, programs in
        all, and what is done.
        """
        if not self._compilers or not programs:
            return
        task = next(iter(programs))[0]  # any of the framework
        config = msgspec.structs.replace(self.measurer.config, mode="compile", task=task, cpus=[])
        with closing(CompilePool(self._compilers, config, self.measurer.cache)) as pool:
            futures = [pool.submit(task, code) for task, code in programs]
            for done, future in enumerate(futures, 1):
                left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
                if not wait([future], left).done:
                    break
                future.result()
                advance(done, len(futures), "compiling")

    def gpu_state(self) -> dict[str, str]:
        """Return driver, clocks, temperature and power of the GPU now; empty without one."""
        return gpu_state() if self._device == "cuda" else {}

    def facts(self) -> dict[str, Any]:
        """Return what ``run.json`` says of device and software, once something was measured."""
        facts, driver = self.measurer.facts, self._state_at_start.get("driver_version")
        more = {"driver": driver, "sandbox": self.measurer.sandbox}
        return {
            **facts,
            "software": {**facts.get("software", {}), **more},
            "nvidia_smi": self._state_at_start,
        }


class FileResult(msgspec.Struct, kw_only=True):
    """The verdict of one file with its distributions."""

    file: str
    measurement: Measurement


class Measured(msgspec.Struct, kw_only=True):
    """The verdicts of all files, and how they were made."""

    task: str
    gpu: str
    device: str
    measurement: dict[str, Any]
    environment: dict[str, Any]
    results: list[FileResult]
    notes: list[str] = []


def measure_files(
    task: str,
    files: Sequence[Path],
    *,
    options: StationOptions,
    gpu: str | None,
    settings: Settings,
    advance: Advance,
) -> Measured:
    """Measure kernel files, Python modules with ``custom_kernel(data)``.

    nvidia-smi says which GPU it is where none is named. ``advance`` is called with files done,
    files in all, and the file.

    Raises:
        UsageError: unknown task, or a device that is not there.
        MeasurerError: no worker comes up.
    """
    facts = get_task(task)
    check_device(options.device, facts)  # before a process is started for it
    device, results = options.device, []
    name = resolve_gpu(device, gpu)
    with Measurer(device, settings, gpu=name, trusted=options.trusted) as measurer:
        for i, file in enumerate(files):
            advance(i, len(files), file.name)
            m = measurer.measure(facts.name, file.read_text("utf-8", "replace"))
            results.append(FileResult(file=str(file), measurement=m))
        advance(len(files), len(files), "")
        smi = gpu_state() if device == "cuda" else {}
        environment = {**measurer.facts, "nvidia_smi": smi, "sandbox": measurer.sandbox}
    notes = [TRUSTED_WARNING] if options.trusted else []
    if device != "cuda":
        notes.append(f"Times of the device {device}: for rehearsal, not comparable with any GPU's.")
    elif gpu_facts(name).memory_bandwidth_gb_s is None:
        notes.append(
            f"The peaks of {name} are not known: times were not checked against the physical limit."
        )
    return Measured(
        task=facts.name,
        gpu=name,
        device=device,
        measurement=settings.describe(),
        environment=environment,
        results=results,
        notes=notes,
    )
