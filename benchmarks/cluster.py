"""The same build through local processes and through a Dask cluster of separate processes.

Left alone and killed.

    python benchmarks/cluster.py [--kernels 12388] [--workers 1 2] [--kills 20] [--logs DIR]

Starts a scheduler and workers of one thread and 2 GB each on this machine. Prints for every way the
time of a cold build, the peak memory of a worker and of the process that builds (resident, sampled)
and whether the digest is that of the first. Then kills -9 at random moments: a random worker, every
fifth time the scheduler, after which the build is started again on a new one. With PYTHONPATH
another checkout is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from logs import generate

BUILD = """
import sys
from kernel_archive.pipeline import build
if __name__ == "__main__":
    recipe, out, engine, address, jobs = sys.argv[1:]
    jobs = {"jobs": int(jobs)} if engine == "local" else {"engine": engine, "scheduler": address}
    print(build([recipe], out=out, **jobs).logical_digest)
"""
#: As the command line sets them.
ALLOCATORS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
}
SCHEDULER = """
import asyncio, distributed
async def main():
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()
asyncio.run(main())
"""
QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SAMPLE = 0.05


def children(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += children(int(child))
    return found


def resident(pid: int) -> int:
    """Memory of a process, bytes; 0 when it has ended."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class Peak:
    """The most memory that a build's own process, and any one of its children, is seen to hold."""

    def __init__(self, pid: int) -> None:
        self.pid, self.own, self.child = pid, 0, 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE):
            self.own = max(self.own, resident(self.pid))
            self.child = max([self.child, *map(resident, children(self.pid)[1:])])

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._sampler.join()


class Cluster:
    """A scheduler and workers, all processes of their own."""

    def __init__(self, workers: int) -> None:
        self.scheduler = subprocess.Popen(
            [sys.executable, "-c", SCHEDULER],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.scheduler.stdout is not None
        self.address = self.scheduler.stdout.readline().strip()
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            self.address,
            "--nthreads",
            "1",
        ]
        command += ["--memory-limit", "2GB", "--no-dashboard", "--host", "127.0.0.1"]
        self.workers = [
            subprocess.Popen(command, start_new_session=True, **QUIET) for _ in range(workers)
        ]
        self.peak = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE):
            for worker in self.workers:
                self.peak = max([self.peak, *map(resident, children(worker.pid)[1:])])

    def close(self) -> None:
        """End all of them."""
        self._ended.set()
        self._sampler.join()
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.scheduler.kill()
        self.scheduler.wait()


def start(recipe: Path, out: Path, engine: str, address: str, jobs: int) -> subprocess.Popen:
    command = [sys.executable, "-c", BUILD, str(recipe), str(out), engine, address, str(jobs)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**ALLOCATORS, **os.environ}, **pipes)


def clean(out: Path) -> None:
    for folder in (out, out.parent / f".{out.name}.stage"):
        shutil.rmtree(folder, ignore_errors=True)


def timed(
    name: str, recipe: Path, out: Path, wanted: str | None, workers: int, *, dask: bool
) -> str:
    clean(out)
    cluster = Cluster(workers) if dask else None
    if cluster is not None:
        time.sleep(3)
    began = time.perf_counter()
    address = cluster.address if cluster else ""
    process = start(recipe, out, "dask" if dask else "local", address, workers)
    peak = Peak(process.pid)
    digest, errors = process.communicate()
    wall = time.perf_counter() - began
    peak.close()
    if process.returncode:
        raise SystemExit(errors)
    digest = digest.strip()
    worker = peak.child
    if cluster is not None:
        cluster.close()
        worker = cluster.peak
    memory = f"{worker / 1e6:,.0f} MB a worker, {peak.own / 1e6:,.0f} MB the building process"
    said = "" if wanted is None else "same digest" if digest == wanted else f"OTHER DIGEST {digest}"
    print(f"{name:<44} {wall:8.1f} s {memory:<52}  {said}", flush=True)
    return digest


def killed(recipe: Path, out: Path, wanted: str, kills: int, seconds: float) -> None:
    """Kill at random moments; the digest of every build, ended or begun again."""
    rng = random.Random(0)
    same = begun_again = 0
    for number in range(kills):
        clean(out)
        cluster = Cluster(2)
        try:
            process = start(recipe, out, "dask", cluster.address, 2)
            moment, whole = rng.uniform(0.5, seconds), number % 5 == 4
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            victims = [p for w in cluster.workers for p in children(w.pid)[1:]]
            victim = (
                cluster.scheduler.pid if whole else rng.choice(victims or [cluster.workers[0].pid])
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            digest, errors = process.communicate(timeout=600)
            if process.returncode:
                begun_again += 1
                last = errors.strip().splitlines()[-1][:150]
                cluster.close()
                cluster = Cluster(2)
                digest, errors = start(recipe, out, "dask", cluster.address, 2).communicate(
                    timeout=600
                )
            else:
                last = ""
            good = digest.strip() == wanted
            same += good
            what = "scheduler" if whole else "worker"
            print(
                f"  {number + 1:2}: {what} at {moment:5.1f} s: "
                f"{'same digest' if good else errors[-300:]} {last}",
                flush=True,
            )
        finally:
            cluster.close()
    print(
        f"{kills} kills: {same} times the same digest, {begun_again} builds ended and were begun "
        "again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=12388)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="folder for the logs (kept)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = given.logs or Path(own)
        recipe = folder / "builder.toml"
        if not recipe.is_file():
            generate(folder, given.kernels)
        size = sum(p.stat().st_size for p in folder.rglob("events.jsonl"))
        print(
            f"{size / 1e6:.0f} MB of event logs, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        )
        out = folder / "out"
        wanted = None
        for jobs in given.workers:
            wanted = timed(f"{jobs} local processes", recipe, out, wanted, jobs, dask=False)
        seconds = 0.0
        for workers in given.workers:
            began = time.perf_counter()
            timed(f"Dask, {workers} workers", recipe, out, wanted, workers, dask=True)
            seconds = time.perf_counter() - began - 4
        if given.kills and wanted is not None:
            killed(recipe, out, wanted, given.kills, max(seconds, 3.0))
        clean(out)


if __name__ == "__main__":
    main()
