"""Recording a plan."""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from kernel_archive.readers.events import TimingLine
from kernel_measure.chains import ChainRun, read_chain
from kernel_measure.logs import now, read_lines, write_json
from kernel_measure.plan import PlannedRun, SearchPlan
from kernel_measure.questions import FileProvider
from kernel_measure.runs import Job, earlier_run, run_document
from kernel_measure.search import Search
from kernel_measure.station import Host, Station
from kernel_measure.strategies import Puct

#: Let this many runs take turns, enough to hide the compilers; the next starts when one has
#: finished.
AT_ONCE = 14
#: Look for proposals this often when nothing else is left to do, s.
POLL_S = 0.5


class Recorded(msgspec.Struct, kw_only=True):
    """What a call recorded; ``runs`` has a row for each run with measurements."""

    evaluations: int = 0
    unfinished: int = 0  # runs
    waiting: int = 0  # proposals that searches wait for: see questions/ in the runs
    runs: list[dict[str, Any]] = []


class ActiveRun:
    """One run in progress: its log, its waiting jobs and their compilations.

    ``seen`` are programs that need no proposing again.

    Raises:
        DataError: the log is damaged or another run's, or a file of a chain is at fault.
        UsageError: the program to start from cannot be read.
        BusyError: another process records into the directory.
    """

    def __init__(self, run: PlannedRun, plan: SearchPlan, out: Path, seen: set[str]) -> None:
        directory, entry = out / run.key, run.entry
        self.planned, self._path = run, directory / "run.json"
        self.document = _document(run, plan, self._path)
        self.log: ChainRun | Search
        if run.folder is not None:
            self.log = ChainRun(directory, read_chain(run.folder))
        else:
            start = plan.base / entry.start if entry.start else None
            provider = FileProvider(directory, run.task, plan.gpu, start)
            self.log = Search(
                directory, strategy=entry, provider=provider, steps=entry.steps, seen=seen
            )
        self.jobs: list[Job] = []
        self.compiling: list[Future[None]] = []
        timing = read_lines(directory / "timing.jsonl", TimingLine)
        self.gpu_seconds = sum(row.wall_s or 0.0 for row in timing)

    def propose(self, station: Station) -> bool:
        """Get the next jobs; ``False`` when the run has finished.

        Those of a search begin to compile; a chain is compiled before.
        """
        self.jobs = self.log.jobs()
        if not isinstance(self.log, ChainRun):
            codes = [job.code for job in self.jobs]
            self.compiling = station.compile_ahead(self.planned.task, codes)
        return bool(self.jobs or self.log.waits)

    def write(self, facts: dict[str, Any]) -> None:
        """``run.json`` as of now."""
        counts = self.log.counts
        self.document.update(
            facts,
            **self.log.facts(),
            end=now(),
            finished=self.log.finished,
            evaluations=counts.total(),
            successes=counts["success"],
            failures={k: v for k, v in sorted(counts.items()) if k != "success"},
            gpu_seconds=round(self.gpu_seconds, 3),
        )
        write_json(self._path, self.document)


def _document(run: PlannedRun, plan: SearchPlan, path: Path) -> dict[str, Any]:
    """``run.json`` as a call begins with it."""
    facts: dict[str, Any] = {
        "method": run.entry.method,
        "language": run.language,
        "mutator": "files" if run.folder is None else "language model",
        "run": run.key,
        "plan": plan.name,
        "start": now(),
    }
    if run.folder is None:
        facts["search"] = {
            "total_budget_steps": run.entry.steps,
            **{name: getattr(run.entry, name) for name in Puct.__struct_fields__},
            "reward": "speedup",
            "aggregation": "geomean",
            "rng_seed": run.seed,
        }
    document = run_document(run.task, plan.settings, **facts)
    earlier = earlier_run(path, document)
    return {**earlier, **document, "start": earlier.get("start", document["start"])}


def record(
    plan: SearchPlan,
    out: Path,
    host: Host,
    *,
    only: Sequence[str] = (),
    seconds: float = math.inf,
    wait: bool = True,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Recorded:
    """Record the runs of a plan into ``out``; a call after a crash or a deadline goes on.

    ``only`` are patterns of run keys (``fnmatch``). No evaluation begins after ``seconds``. Where
    nothing else is left to do, proposals are waited for with ``wait``. ``advance`` is called with
    evaluations done, evaluations expected, and the run.

    Raises:
        DataError: a run directory is damaged or of another plan, or a proposal is none.
        MeasurerError: no worker comes up.
    """
    begin = time.monotonic()
    runs = [r for r in plan.runs if any(fnmatch.fnmatch(r.key, p) for p in only or "*")]
    for run in runs:  # refuses a plan that does not fit before anything is measured
        _document(run, plan, out / run.key / "run.json")
    keys = [run.key for run in runs]
    result = Recorded(unfinished=len(runs))
    seen: dict[str, set[str]] = {}

    def start(run: PlannedRun) -> ActiveRun:
        return ActiveRun(run, plan, out, seen.setdefault(run.task, set()))

    task = runs[0].task if runs else None
    with Station(host, plan.settings, plan.gpu, task) as station:
        scheduler = Scheduler(station, result, start, begin + seconds, advance, wait=wait)
        try:
            scheduler.run(runs)
        finally:
            for active in list(scheduler.active):
                scheduler.end(active)
            result.runs.sort(key=lambda row: keys.index(row["run"]))
    return result


class Scheduler(msgspec.Struct):
    """Takes turns: while one run's programs are measured, the other searches' are compiled.

    All of the chains is compiled before anything is timed: a host that compiles launches kernels
    more slowly.
    """

    station: Station
    result: Recorded
    start: Callable[[PlannedRun], ActiveRun]
    deadline: float
    advance: Callable[[int, int, str], None]
    wait: bool = True
    active: list[ActiveRun] = []  # runs in progress, the one whose turn is next first

    def end(self, run: ActiveRun) -> None:
        """Write what a run holds now and close its logs.

        A plan may have more runs than files may be open.
        """
        self.active.remove(run)
        with closing(run.log) as log:
            if log.counts:
                run.write({})
                counts = dict(sorted(log.counts.items()))
                self.result.runs.append(
                    {"run": run.planned.key, "counts": counts, "finished": log.finished}
                )
            self.result.waiting += log.waits
            self.result.unfinished -= log.finished

    def _propose(self, run: ActiveRun) -> None:
        if not run.propose(self.station):
            self.end(run)

    def _compile(self, runs: Sequence[PlannedRun]) -> None:
        """Compile what was not measured of chains, and wait until all is done.

        Each log is closed again until the chain's turn: a plan may have more than may be open.
        """
        futures: list[Future[None]] = []
        for run in runs:
            log = self.start(run).log
            if isinstance(log, ChainRun):
                futures += self.station.compile_ahead(run.task, log.ahead())
                log.close()
        for done, future in enumerate(futures, 1):
            if time.monotonic() >= self.deadline:
                break
            future.result()
            self.advance(done, len(futures), "compiling")

    def run(self, runs: Sequence[PlannedRun]) -> None:
        """Until every run has finished or the time is used up."""
        expected = sum(run.expected for run in runs)
        measurer, queue = self.station.measurer, list(runs)
        self._compile([run for run in runs if run.folder is not None])
        while time.monotonic() < self.deadline:
            while queue and sum(bool(run.jobs) for run in self.active) < AT_ONCE:
                following = self.start(queue.pop(0))
                self.active.append(following)
                self._propose(following)
                if following.jobs:
                    measurer.start(following.planned.task)
            # A worker holds its task's inputs, tens of gigabytes for some.
            for task in measurer.tasks - {run.planned.task for run in self.active if run.jobs}:
                measurer.end(task)
            if not self.active:
                break
            chosen = next((run for run in self.active if run.jobs and self._ready(run)), None)
            if chosen is not None:
                self._measure(chosen, expected)
                self.active.remove(chosen)
                self.active.append(chosen)  # to the end of the queue
                if time.monotonic() < self.deadline:
                    self._propose(chosen)
                continue
            waiting = [run for run in self.active if not run.jobs]
            if len(waiting) == len(self.active) and not self.wait:
                break
            time.sleep(0.02 if len(waiting) < len(self.active) else POLL_S)
            for run in waiting:
                self._propose(run)

    def _ready(self, run: ActiveRun) -> bool:
        """Whether its programs are compiled and a worker waits, or does not come up at all."""
        if not all(f.done() for f in run.compiling):
            return False
        self.station.measurer.start(run.planned.task)
        return not self.station.measurer.is_starting(run.planned.task)

    def _measure(self, run: ActiveRun, expected: int) -> None:
        for job in run.jobs:
            if time.monotonic() >= self.deadline:
                break
            started = now()
            measured = self.station.measurer.measure(run.planned.task, job.code)
            run.log.report(job, measured, started)
            run.gpu_seconds += measured.wall_s
            self.result.evaluations += 1
            self.advance(self.result.evaluations, expected, run.planned.key)
        run.write({**self.station.facts(), "environment_last": self.station.environment()})
