"""Recording a plan."""

from __future__ import annotations

import fnmatch
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernel_archive.archive.build import Advance
from kernel_measure.chains import ChainLog, read_chain
from kernel_measure.logs import now, recording_into, write_json
from kernel_measure.plan import PlannedRun, SearchPlan
from kernel_measure.questions import FileProvider
from kernel_measure.runs import Job, RunLog, run_document
from kernel_measure.search import Search
from kernel_measure.station import Station, StationOptions
from kernel_measure.strategies import Puct

#: Look for proposals this often when nothing else is left to do, s.
POLL_S = 0.5


class Recorded(msgspec.Struct, kw_only=True):
    """What a call recorded; ``runs`` has a row for each run with measurements."""

    evaluations: int
    unfinished: int  # runs
    waiting: int  # proposals that searches wait for: see questions/ in the runs
    runs: list[dict[str, Any]]


class Run(msgspec.Struct, kw_only=True):
    """A run that is recorded, and what its ``run.json`` says."""

    directory: Path
    task: str
    log: RunLog
    document: dict[str, Any]
    expected_evaluations: int  # about how many evaluations the whole run takes
    in_new_worker: bool = False  # whether it begins in a worker that served no other run

    def write(self, facts: dict[str, Any]) -> None:
        """Write ``run.json`` as of now."""
        counts = self.log.counts
        self.document.update(
            facts,
            **self.log.facts(),
            end=self.log.end,
            finished=self.log.finished,
            evaluations=counts.total(),
            successes=counts["success"],
            failures={k: v for k, v in sorted(counts.items()) if k != "success"},
            gpu_seconds=round(self.log.gpu_seconds, 3),
        )
        write_json(self.directory / "run.json", self.document)


class Recorder(msgspec.Struct, kw_only=True):
    """Records runs by rounds.

    A round takes what each run can have measured now, compiles all of it, and only then measures
    it, run by run in their order: a host that compiles launches kernels more slowly.
    """

    runs: list[Run]
    station: Station
    deadline: float = math.inf
    wait: bool = True
    advance: Advance = lambda _done, _total, _what: None

    def record(self) -> int:
        """Record until every run has finished or the time is up; return how many evaluations."""
        before = self._evaluations()
        try:
            while time.monotonic() < self.deadline and self._round():
                pass
        finally:
            for run in self.runs:
                if run.log.counts and run.directory.is_dir():
                    run.write({})
        return self._evaluations() - before

    def _evaluations(self) -> int:
        return sum(run.log.counts.total() for run in self.runs)

    def _round(self) -> bool:
        """Compile and measure what there is, or wait for proposals; tell whether more may come."""
        proposed = [(run, run.log.next_jobs()) for run in self.runs]
        proposed = [(run, jobs) for run, jobs in proposed if jobs]
        if not proposed:
            is_waiting = self.wait and any(run.log.n_waiting for run in self.runs)
            if is_waiting:
                self.station.measurer.end()  # its inputs may fill much of the GPU's memory
                time.sleep(POLL_S)
            return is_waiting
        programs = {(run.task, job.code): None for run, jobs in proposed for job in jobs}
        self.station.compile_ahead(list(programs), self.deadline, self.advance)
        for run, jobs in proposed:
            if time.monotonic() < self.deadline:
                self._measure(run, jobs)
        return True

    def _measure(self, run: Run, jobs: Sequence[Job]) -> None:
        """Measure the programs of a run until the time is up, and write what came of each."""
        measurer, total = self.station.measurer, sum(run.expected_evaluations for run in self.runs)
        if run.in_new_worker:
            measurer.end()
        if not run.log.counts:  # once: a run that somebody moves away is not begun anew
            run.directory.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            if time.monotonic() >= self.deadline:
                break
            started = now()
            measured = measurer.measure(run.task, job.code)
            # Before its row: rows alone don't say how they were made.
            run.write(self.station.facts())
            run.log.report(job, measured, started)
            self.advance(self._evaluations(), total, run.document["run"])
        if run.log.counts:
            run.write({"environment_last": self.station.gpu_state()})


def _begin(run: PlannedRun, plan: SearchPlan, out: Path, seen: set[str]) -> Run:
    """Open a run of a plan with its log; ``seen`` are programs that need no proposing again."""
    directory, entry = out / run.key, run.entry
    facts: dict[str, Any] = {
        "method": entry.method,
        "language": run.language,
        "mutator": "files" if run.folder is None else "language model",
        "run": run.key,
        "plan": plan.name,
    }
    if run.folder is None:
        facts["search"] = {
            "total_budget_steps": entry.steps,
            **{name: getattr(entry, name) for name in Puct.__struct_fields__},
            "reward": "speedup",
            "aggregation": "geomean",
            "rng_seed": run.seed,
        }
    document = run_document(directory, run.task, plan.settings, **facts)
    log: RunLog
    if run.folder is not None:
        log = ChainLog(directory, read_chain(run.folder))
    else:
        start = plan.base / entry.start if entry.start else None
        provider = FileProvider(directory, run.task, plan.gpu, start)
        log = Search(directory, strategy=entry, provider=provider, steps=entry.steps, seen=seen)
    return Run(
        directory=directory,
        task=run.task,
        log=log,
        document=document,
        expected_evaluations=run.expected_evaluations,
    )


def record(
    plan: SearchPlan,
    out: Path,
    options: StationOptions,
    *,
    only: Sequence[str] = (),
    seconds: float = math.inf,
    wait: bool = True,
    advance: Advance = lambda _done, _total, _what: None,
) -> Recorded:
    """Record the runs of a plan into ``out``; a call after a crash or a deadline goes on.

    ``only`` are patterns of run keys (``fnmatch``). No evaluation begins after ``seconds``. Where
    nothing else is left to do, proposals are waited for with ``wait``. ``advance`` is called with
    evaluations done, evaluations expected, and the run.

    Raises:
        DataError: a run directory is damaged or of another plan, or a file of a chain or a proposal
            is at fault.
        UsageError: the program to start from cannot be read.
        KernelArchiveError: another process records into ``out``.
        MeasurerError: no worker comes up.
    """
    deadline = time.monotonic() + seconds
    planned = [r for r in plan.runs if any(fnmatch.fnmatch(r.key, p) for p in only or "*")]
    planned.sort(key=lambda run: run.task)  # a worker holds the inputs of one task
    seen: defaultdict[str, set[str]] = defaultdict(set)
    with recording_into(out), Station(options, plan.settings, plan.gpu) as station:
        runs = [_begin(run, plan, out, seen[run.task]) for run in planned]
        recorder = Recorder(
            runs=runs, station=station, deadline=deadline, wait=wait, advance=advance
        )
        evaluations = recorder.record()
    rows = [
        {
            "run": run.document["run"],
            "counts": dict(sorted(run.log.counts.items())),
            "finished": run.log.finished,
        }
        for run in runs
        if run.log.counts
    ]
    return Recorded(
        evaluations=evaluations,
        unfinished=sum(not run.log.finished for run in runs),
        waiting=sum(run.log.n_waiting for run in runs),
        runs=rows,
    )
