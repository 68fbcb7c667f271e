"""Recording a plan: many searches on one device, compiled ahead on other processors, every run resumable."""

from __future__ import annotations

import fnmatch
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.errors import UsageError
from kernel_archive.measure.agent import AgentRun
from kernel_archive.measure.logs import now, read_lines, write_json
from kernel_archive.measure.runs import SharedMeasurements, earlier_run, run_document
from kernel_archive.measure.search import Search
from kernel_archive.measure.station import Station
from kernel_archive.readers.events import TimingLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from kernel_archive.measure.plan import Plan, Run
    from kernel_archive.measure.search import Job

#: So many runs take turns; the next of the plan starts when one has finished. Enough to hide the compilers.
AT_ONCE = 14


class Recorded(msgspec.Struct, kw_only=True):
    """What a call recorded: its runs by key, how much it measured, and how many runs a later call goes on with.

    Attributes:
        gpu_seconds: of the wall time ``seconds``, in evaluations.
        restarts: workers replaced.
    """

    runs: dict[str, dict[str, Any]] = {}
    evaluations: int = 0
    seconds: float = 0.0
    gpu_seconds: float = 0.0
    restarts: int = 0
    unfinished: int = 0


class _Active:
    """One run in progress: its log, its waiting jobs and their compilations."""

    def __init__(self, run: Run, plan: Plan, out: Path, seen: set[str]) -> None:
        self.run, self._path = run, out / run.key / "run.json"
        self.document = _document(run, plan, self._path)
        self.log = run.open(out / run.key, plan, seen)
        self.jobs: list[Job] = []
        self.compiling: list[Future[None]] = []
        timing = read_lines(out / run.key / "timing.jsonl", TimingLine)
        self.gpu_seconds = sum(row.wall_s or 0.0 for row in timing)

    def ahead(self) -> Sequence[str]:
        """Programs that an agent has ready before their turn."""
        return self.log.ahead() if isinstance(self.log, AgentRun) else ()

    def write(self, facts: dict[str, Any]) -> None:
        """``run.json`` as of now."""
        counts = self.log.tally.counts
        self.document.update(facts)
        self.document.update(
            search=self.log.hyperparameters, end=now(), finished=self.log.finished, evaluations=sum(counts.values()),
            successes=counts.get("success", 0), failures={k: v for k, v in sorted(counts.items()) if k != "success"},
            gpu_seconds=round(self.gpu_seconds, 3),
        )  # fmt: skip
        write_json(self._path, self.document)


def _document(run: Run, plan: Plan, path: Path) -> dict[str, Any]:
    """``run.json`` as a call begins with it: what the plan says, over what an earlier call found out of the device."""
    document = run_document(
        run.task, plan.settings, method=run.method, language=run.language, mutator=run.mutator, run=run.key,
        plan=plan.name, start=now(), surrogate=msgspec.to_builtins(run.entry.surrogate), compared=plan.compare,
        **run.numbers,
    )  # fmt: skip
    earlier = earlier_run(path, document) or {}
    return {**earlier, **document, "start": earlier.get("start", document["start"])}


def record(
    plan: Plan,
    out: Path,
    *,
    device: str = "cuda",
    only: list[str] | None = None,
    seconds: float = float("inf"),
    part: int = 0,
    parts: int = 1,
    compilers: int | None = None,
    cache: Path | None = None,
    compile_only: bool = False,
    say: Callable[[str], None] = lambda _: None,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Recorded:
    """Record the runs of a plan into ``out``; a call after a crash or a deadline goes on.

    ``only`` are patterns of run keys (``fnmatch``). No evaluation begins after so many ``seconds``. ``part``, ``parts``,
    ``compilers`` and ``cache`` are the station's. ``compile_only`` fills ``cache`` with what is known ahead (chains) and
    measures nothing; a call with the same cache and ``compilers=0`` then times on a host that does nothing else. ``advance``
    is called with evaluations done, evaluations expected, and the run.

    Raises:
        DataError: a run directory is damaged or of another plan.
        MeasurerError: no worker comes up.
        UsageError: ``compile_only`` without a cache or without compilers.
    """
    if compile_only and (cache is None or compilers == 0):
        raise UsageError(
            "compiling only needs a place to keep what was compiled, and compilers: name --cache, drop --compilers 0"
        )
    begin = time.monotonic()
    runs = [r for r in plan.runs if only is None or any(fnmatch.fnmatch(r.key, p) for p in only)]
    for run in runs:
        _document(run, plan, out / run.key / "run.json")  # refuses a plan that does not fit before anything is measured
    result = Recorded()
    seen: dict[str, set[str]] = {}

    def start(run: Run) -> _Active:
        return _Active(run, plan, out, set() if plan.compare else seen.setdefault(run.task, set()))

    with ExitStack() as stack:
        task = runs[0].task if runs else None
        station = stack.enter_context(
            Station(device, plan.settings, plan.gpu, task, part=part, parts=parts, compilers=compilers, cache=cache)
        )
        shared = {}
        if plan.compare and not compile_only:
            for task in sorted({run.task for run in runs}):
                shared[task] = stack.enter_context(closing(SharedMeasurements(out / "shared" / f"{task}.jsonl")))
        loop = _Loop(station, shared, result, begin + seconds, say, advance)
        try:
            if compile_only:
                loop.compile(runs, start)
                return result
            loop.run(runs, start, at_once=len(runs) if plan.compare else AT_ONCE)
        finally:
            for a in loop.active:
                a.log.close()
                counts = a.log.tally.counts
                if counts and not compile_only:
                    a.write({})
                    result.runs[a.run.key] = {
                        "counts": dict(sorted(counts.items())), "finished": a.log.finished, "best": a.log.tally.best,
                    }  # fmt: skip
                if isinstance(a.log, Search) and a.log.without_forecast:
                    say(
                        f"{a.run.key}: {a.log.without_forecast} proposals have no forecast, so that the search never measures "
                        "them. If the forecasts were made ahead, for other programs than the templates give now, make them again"
                    )
            result.unfinished = len(runs) - sum(a.log.finished for a in loop.active)
            result.seconds = time.monotonic() - begin
            result.restarts = station.measurer.restarts
    return result


class _Loop(msgspec.Struct):
    """Takes turns: while one run's programs are measured, the others' are compiled. ``active``: runs that were started."""

    station: Station
    shared: dict[str, SharedMeasurements]
    result: Recorded
    deadline: float
    say: Callable[[str], None]
    advance: Callable[[int, int, str], None]
    active: list[_Active] = []

    def compile(self, runs: Sequence[Run], start: Callable[[Run], _Active]) -> None:
        """Compile every program that is known before its turn, and wait until all are."""
        for run in runs:
            if run.method == "agentic":
                self.active.append(start(run))
        futures = [f for a in self.active for f in self.station.compile_ahead(a.run.task, a.ahead())]
        for done, future in enumerate(futures, 1):
            future.result()
            self.advance(done, len(futures), "compiling")

    def run(self, runs: Sequence[Run], start: Callable[[Run], _Active], *, at_once: int = AT_ONCE) -> None:
        """Until every run has finished or the time is used up."""
        expected = sum(_expected(run) for run in runs)
        queue = list(runs)
        waiting: list[_Active] = []
        while time.monotonic() < self.deadline:
            while queue and len(waiting) < at_once:
                following = start(queue.pop(0))
                self.active.append(following)
                if self._propose(following):
                    self.station.measurer.start(following.run.task)
                    waiting.append(following)
            for task in self.station.measurer.tasks - {a.run.task for a in waiting}:
                self.station.measurer.end(task)  # a worker holds its task's inputs, tens of gigabytes for some
            if not waiting:
                break
            chosen = next((a for a in waiting if self._ready(a)), None)
            if chosen is None:
                time.sleep(0.02)
                continue
            self._measure(chosen, expected)
            waiting.remove(chosen)
            if time.monotonic() < self.deadline and self._propose(chosen):
                waiting.append(chosen)  # to the end of the queue

    def _propose(self, a: _Active) -> bool:
        """Get the run's next jobs and start compiling them; ``False`` when it has finished."""
        first = not a.jobs and not a.compiling
        a.jobs = a.log.jobs()
        shared = self.shared.get(a.run.task)
        fresh = [job.code for job in a.jobs if shared is None or shared.get(job.code) is None]
        a.compiling = self.station.compile_ahead(a.run.task, (first and a.ahead()) or fresh)
        return bool(a.jobs)

    def _ready(self, a: _Active) -> bool:
        """Whether its programs are compiled and a worker waits. Never blocks, unless nothing is compiled ahead."""
        if not all(f.done() for f in a.compiling):
            return False
        measurer, task = self.station.measurer, a.run.task
        if measurer.is_ready(task):
            return True
        measurer.start(task)
        return not measurer.is_alive(task)  # a worker that does not come up is the measurer's to report

    def _measure(self, a: _Active, expected: int) -> None:
        for job in a.jobs:
            if time.monotonic() >= self.deadline:
                break
            started = now()
            shared = self.shared.get(a.run.task)
            measured = shared.get(job.code) if shared is not None else None
            if measured is None:
                measured = self.station.measurer.measure(a.run.task, job.code)
                self.result.gpu_seconds += measured.wall_s
                if shared is not None:
                    shared.add(job.code, measured)
            a.log.report(job, measured, started)
            a.gpu_seconds += measured.wall_s
            self.result.evaluations += 1
            self.advance(self.result.evaluations, expected, a.run.key)
        a.write(self.station.facts())
        tally = a.log.tally
        best = f"{tally.best:.3f}" if tally.best is not None else "-"
        self.say(f"{a.run.key}: {sum(tally.counts.values())} measured, best {best}x")


def _expected(run: Run) -> int:
    """About how many evaluations a whole run takes."""
    entry = run.entry
    if run.method == "agentic":
        return entry.steps
    batch = 1 if run.method == "local_search" else entry.batch_size
    if entry.surrogate is not None:
        return 1 + entry.steps * entry.surrogate.budget(batch * entry.surrogate.proposals)
    return 1 + entry.steps * batch * entry.samples_per_parent
