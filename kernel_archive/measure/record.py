"""Recording a plan: many searches on one device, compiled ahead on other processors, every run resumable."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.errors import DataError, Finding
from kernel_archive.measure.agent import AgentRun
from kernel_archive.measure.compile_ahead import CompilePool
from kernel_archive.measure.hardware import Watch
from kernel_archive.measure.logs import now, read_lines, write_json
from kernel_archive.measure.measurer import Measurer
from kernel_archive.measure.search import Search
from kernel_archive.measure.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from kernel_archive.measure.plan import Plan, Run
    from kernel_archive.measure.search import Job

__all__ = ["AT_ONCE", "Recorded", "earlier_run", "record", "share_processors"]

#: So many runs take turns; the next of the plan starts when one has finished. Enough to hide the compilers.
AT_ONCE = 14


class Recorded(msgspec.Struct, kw_only=True):
    """What a recording did.

    Attributes:
        runs: key -> counts by outcome, finished, best speedup.
        evaluations: measured in this call.
        seconds: wall time of this call.
        gpu_seconds: of that, in evaluations.
        restarts: workers replaced.
        unfinished: runs that a later call goes on with.
    """

    runs: dict[str, dict[str, Any]] = {}
    evaluations: int = 0
    seconds: float = 0.0
    gpu_seconds: float = 0.0
    restarts: int = 0
    unfinished: int = 0


def share_processors(part: int = 0, parts: int = 1) -> tuple[list[int], list[int]]:
    """Processors for timing and for everything else, for one of several recordings on a machine.

    With fewer than six to share, all serve both.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    size = len(usable) // parts
    mine = usable[part * size : (part + 1) * size]
    # Not the very first: interrupts are served there.
    return (mine[1:3], mine[3:]) if size >= 6 else (usable, usable)


class _Active:
    """One run in progress: its log, its waiting jobs and their compilations."""

    def __init__(self, run: Run, plan: Plan, out: Path, seen: set[str], clock: Callable[[], str]) -> None:
        self.run, self._out, self._clock = run, out / run.key, clock
        self.document = _document(run, plan, self._out / "run.json")
        if run.method == "agentic":
            self.log: Search | AgentRun = AgentRun(self._out, run.agent(plan.base), seed=run.seed)
        else:
            self.log = Search(
                self._out, strategy=run.strategy(), provider=run.provider(plan.base), objective=run.objective,
                steps=run.entry.steps, seed=run.seed, seen=seen,
            )  # fmt: skip
        self.jobs: list[Job] = []
        self.compiling: list[Future[list[str]]] = []
        self.gpu_seconds = sum(float(row.get("wall_s") or 0.0) for row in read_lines(self._out / "timing.jsonl"))

    def write(self, facts: dict[str, Any]) -> None:
        """``run.json`` as of now."""
        counts = self.log.counts
        self.document.update(facts)
        self.document.update(
            search=self.log.hyperparameters, end=self._clock(), finished=self.log.finished,
            evaluations=sum(counts.values()), successes=counts.get("success", 0),
            failures={k: v for k, v in sorted(counts.items()) if k != "success"}, gpu_seconds=round(self.gpu_seconds, 3),
        )  # fmt: skip
        write_json(self._out / "run.json", self.document)


def _document(run: Run, plan: Plan, path: Path) -> dict[str, Any]:
    """``run.json`` as a call begins with it: what the plan says, over what an earlier call found out of the device.

    Raises:
        DataError: the directory was recorded under other settings and must not be continued.
    """
    document = _header(run, plan)
    earlier = earlier_run(path, document)
    if earlier is None:
        return document
    return {**earlier, **document, "start": earlier.get("start", document["start"])}


def earlier_run(path: Path, document: dict[str, Any]) -> dict[str, Any] | None:
    """The ``run.json`` of an earlier call that ``document`` goes on with, if there is one.

    Raises:
        DataError: it can't be read, or was recorded under other settings.
    """
    if not path.exists():
        return None
    try:
        earlier = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        finding = Finding(code="bad-json", file=str(path), message=f"not valid: {error}", fix="Move the run away")
        raise DataError.from_findings([finding]) from error
    fixed = ["task", "method", "reference_source", "measurement", "benchmark_cases", "correctness_cases", "tolerance"]
    for name in fixed:
        if earlier.get(name) != document[name]:
            finding = Finding(
                code="another-plan", file=str(path), field=name,
                message="the run was recorded under other settings and can't be continued"
                if name in earlier else "the run does not say under which settings it was recorded and can't be continued",
                fix="Record into another directory",
            )  # fmt: skip
            raise DataError.from_findings([finding])
    return earlier


def _check_all(runs: Sequence[Run], plan: Plan, out: Path) -> None:
    """Refuse a plan that does not fit the directory before anything is measured."""
    for run in runs:
        _document(run, plan, out / run.key / "run.json")


def _header(run: Run, plan: Plan) -> dict[str, Any]:
    task = get_task(run.task)
    return {
        "method": run.method,
        "task": run.task,
        "language": run.language,
        "mutator": run.mutator,
        "run": run.key,
        "plan": plan.name,
        "start": now(),
        "measurement": msgspec.json.decode(msgspec.json.encode(plan.settings.describe())),
        "reference_source": task.reference,
        "benchmark_cases": list(task.benchmark_cases),
        "correctness_cases": list(task.correctness_cases),
        "tolerance": {"rtol": task.rtol, "atol": task.atol},
        "checks": task.describe_checks(),
    }


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
    say: Callable[[str], None] = lambda _: None,
    advance: Callable[[int, int, str], None] = lambda _done, _total, _what: None,
) -> Recorded:
    """Record the runs of a plan into ``out``; a call after a crash or a deadline goes on.

    Args:
        plan: the plan.
        out: directory of the recorded runs.
        device: ``cuda``, or ``standin`` to rehearse.
        only: patterns of run keys (``fnmatch``) to record; all when not given.
        seconds: start no evaluation after so many seconds.
        part: which share of the machine's processors, from 0.
        parts: recordings that share the machine.
        compilers: processes that compile ahead; one less than the processors left when not given, none for 0.
        cache: compiler caches; a temporary directory when not given.
        say: called with remarks.
        advance: called with evaluations done, evaluations expected, and the run.

    Raises:
        DataError: a run directory is damaged or of another plan.
        MeasurerError: no worker comes up.
    """
    import fnmatch

    begin = time.monotonic()
    runs = [r for r in plan.runs if only is None or any(fnmatch.fnmatch(r.key, p) for p in only)]
    timing_cpus, other_cpus = share_processors(part, parts)
    result = Recorded()
    seen: dict[str, set[str]] = {}
    active: list[_Active] = []
    watch = Watch(enabled=device == "cuda")
    with Measurer(
        device, plan.settings, gpu=plan.gpu, cache=cache, cpus=timing_cpus, start_cpus=other_cpus
    ) as measurer:
        count = max(1, len(other_cpus) - 1) if compilers is None else compilers
        pool = (
            CompilePool(
                count, task=runs[0].task, device=device, settings=plan.settings, cache=measurer.cache, cpus=other_cpus
            )
            if count and runs
            else None
        )
        try:
            _check_all(runs, plan, out)
            loop = _Loop(measurer, pool, watch, result, begin + seconds, say, advance)
            loop.run(runs, active, lambda run: _Active(run, plan, out, seen.setdefault(run.task, set()), now))
        finally:
            if pool is not None:
                pool.close()
            watch.close()
            for a in active:
                a.log.close()
                if a.log.counts:
                    a.write({})
                    counts = dict(sorted(a.log.counts.items()))
                    result.runs[a.run.key] = {"counts": counts, "finished": a.log.finished, "best": a.log.best}
            result.unfinished = len(runs) - sum(a.log.finished for a in active)
            result.seconds = time.monotonic() - begin
            result.restarts = measurer.restarts
    return result


class _Loop:
    """Takes turns: while one run's programs are measured, the others' are compiled."""

    def __init__(
        self,
        measurer: Measurer,
        pool: CompilePool | None,
        watch: Watch,
        result: Recorded,
        deadline: float,
        say: Callable[[str], None],
        advance: Callable[[int, int, str], None],
    ) -> None:
        self._measurer, self._pool, self._watch, self._result = measurer, pool, watch, result
        self._deadline, self._say, self._advance = deadline, say, advance
        self._expected = 0

    def run(self, runs: Sequence[Run], active: list[_Active], start: Callable[[Run], _Active]) -> None:
        """Until every run has finished or the time is used up; runs that were started are added to ``active``."""
        self._expected = sum(_expected(run) for run in runs)
        for task in dict.fromkeys(run.task for run in runs):
            self._measurer.start(task)
        queue = list(runs)
        waiting: list[_Active] = []
        while time.monotonic() < self._deadline:
            while queue and len(waiting) < AT_ONCE:
                following = start(queue.pop(0))
                active.append(following)
                if self._propose(following):
                    waiting.append(following)
            if not waiting:
                break
            chosen = next((a for a in waiting if self._ready(a)), None)
            if chosen is None:
                time.sleep(0.02)
                continue
            self._measure(chosen)
            waiting.remove(chosen)
            if time.monotonic() < self._deadline and self._propose(chosen):
                waiting.append(chosen)  # to the end of the queue

    def _propose(self, a: _Active) -> bool:
        """Get the run's next jobs and start compiling them; ``False`` when it has finished."""
        first = not a.jobs and not a.compiling
        a.jobs = a.log.jobs()
        codes = [j.code for j in a.jobs]
        if first and isinstance(a.log, AgentRun):
            codes = a.log.ahead() or codes
        if self._pool is not None:
            a.compiling = [self._pool.submit(a.run.task, code) for code in codes]
        return bool(a.jobs)

    def _ready(self, a: _Active) -> bool:
        """Whether its programs are compiled and a worker waits. Never blocks, unless nothing is compiled ahead."""
        return all(f.done() for f in a.compiling) and (self._measurer.is_ready(a.run.task) or self._start(a.run.task))

    def _start(self, task: str) -> bool:
        """Bring up a worker; a worker that does not come up is the measurer's to report."""
        self._measurer.start(task)
        return not self._measurer.is_alive(task)

    def _measure(self, a: _Active) -> None:
        for job in a.jobs:
            if time.monotonic() >= self._deadline:
                break
            started = now()
            measured = self._measurer.measure(a.run.task, job.code)
            a.log.report(job, measured, started)
            a.gpu_seconds += measured.wall_s
            self._result.evaluations += 1
            self._result.gpu_seconds += measured.wall_s
            self._advance(self._result.evaluations, self._expected, a.run.key)
        facts = dict(self._measurer.facts)
        software = dict(facts.get("software", {}))
        software["driver"] = self._watch.first.get("driver_version")
        software["sandbox"] = self._measurer.confined
        a.write({
            **facts, "software": software, "nvidia_smi": self._watch.first, "environment_last": self._watch.latest(),
        })  # fmt: skip
        best = f"{a.log.best:.3f}" if a.log.best is not None else "-"
        self._say(f"{a.run.key}: {sum(a.log.counts.values())} measured, best {best}x")


def _expected(run: Run) -> int:
    """About how many evaluations a whole run takes."""
    entry = run.entry
    if run.method == "agentic":
        return int(entry.steps)
    batch = 1 if run.method == "local_search" else entry.batch_size
    return 1 + int(entry.steps) * batch * int(entry.samples_per_parent)
