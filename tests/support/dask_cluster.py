"""A Dask cluster on loopback: a scheduler and workers, all processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys

#: Calls reach the cluster by their names: its processes import them from where this one does.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    # ten heartbeats of half a second at least, says Dask: 5 s
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "2 s",
    # Nobody looks at what an idle cluster measures of itself a hundred times a second.
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "5 s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1 s",
}


@contextlib.contextmanager
def scheduler():
    """A scheduler of its own process; its address, and the process."""
    code = (
        "import asyncio, distributed\n"
        "async def main():\n"
        "    async with distributed.Scheduler(host='127.0.0.1', port=0, dashboard=False) as s:\n"
        "        print(s.address, flush=True)\n"
        "        await s.finished()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def workers(address, count=2, *options):
    """Workers with nannies, as ``dask worker`` starts them."""
    command = f"{sys.executable} -m distributed.cli.dask_worker {address} --nthreads 1"
    command += " --no-dashboard --host 127.0.0.1"
    started = [
        subprocess.Popen(
            [*command.split(), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
