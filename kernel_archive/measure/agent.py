"""Agent runs: one attempt after another, each made with the measurements of the earlier ones in hand (``attempts``)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kernel_archive.bins import bin_of
from kernel_archive.errors import DataError, Finding, UsageError
from kernel_archive.ids import program_id
from kernel_archive.measure.logs import JsonLines, now, read_lines
from kernel_archive.measure.search import Job
from kernel_archive.measure.verdict import evaluation

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from kernel_archive.measure.verdict import Measurement

__all__ = ["Agent", "AgentRun", "Attempt", "TuningAgent", "WrittenSeries"]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt.

    Attributes:
        title: what it is, in a few words.
        note: why it was tried.
        code: the program.
        parent: index of the attempt that it builds on.
        forecast: what its author expects, before it is measured: ``expected_speedup`` and ``probabilities``.
        tokens: tokens that its author wrote for it, where known.
    """

    title: str
    note: str
    code: str
    parent: int | None = None
    forecast: dict[str, Any] | None = None
    tokens: int | None = None


class Agent(Protocol):
    """Makes attempts; must depend on the history alone, so that a resumed run goes on as it would have."""

    def next(self, history: Sequence[dict[str, Any]]) -> Attempt | None:
        """The next attempt after the logged ones (rows of ``attempts.jsonl``); ``None`` at the end."""
        ...


class WrittenSeries:
    """Attempts that somebody wrote one after another, measured again in the same order."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.attempts = tuple(attempts)
        for i, attempt in enumerate(self.attempts):
            if attempt.parent is not None and not 0 <= attempt.parent < i:
                raise UsageError(f"attempt {i} ({attempt.title}) builds on {attempt.parent}, which is not before it")

    def next(self, history: Sequence[dict[str, Any]]) -> Attempt | None:
        """The next one of the series."""
        return self.attempts[len(history)] if len(history) < len(self.attempts) else None


class TuningAgent:
    """A rule-based agent: tries every algorithm of a template module once, then tunes the best one knob by knob.

    Each attempt follows from the measurements before it: a change that helps by more than 1 % is kept and built upon.

    Args:
        module: a template module (``providers.TemplateProvider``).
        task: problem id.
        language: language of the templates.
        seed: of the order in which algorithms, knobs and values are tried.
        budget: attempts.
    """

    KEEP = 1.01

    def __init__(self, module: Any, task: str, language: str, *, seed: int, budget: int) -> None:
        self._module, self._task, self._language, self._seed, self._budget = module, task, language, seed, budget

    def next(self, history: Sequence[dict[str, Any]]) -> Attempt | None:
        """Replays its own decisions over the logged measurements and makes the next one."""
        if len(history) >= self._budget:
            return None
        walk = self._walk()
        try:
            attempt = next(walk)
            for row in history:
                attempt = walk.send(row["evaluation"]["observation"]["feedback"].get("aggregated_speedup"))
        except StopIteration:
            return None
        return attempt

    def _walk(self) -> Generator[Attempt, float | None, None]:
        rng = random.Random(f"{self._task}/{self._language}/{self._seed}")  # noqa: S311 - a search, no secret
        algorithms = self._module.algorithms(self._task, self._language)
        names = sorted(algorithms)
        rng.shuffle(names)
        seen: set[str] = set()
        count, best, at, spec = 0, 0.0, None, None
        for name in names:
            new = {"algo": name, "knobs": {k: rng.choice(v) for k, v in sorted(algorithms[name].items())}}
            code = self._module.render(self._task, self._language, new)
            seen.add(code)
            got = yield Attempt(f"try {name}", "see where this algorithm stands before tuning any", code, None)
            if got is not None and got > best:
                best, at, spec = got, count, new
            count += 1
        while spec is not None:
            order = sorted(algorithms[spec["algo"]])
            rng.shuffle(order)
            improved = False
            for knob in order:
                values = [v for v in algorithms[spec["algo"]][knob] if v != spec["knobs"][knob]]
                rng.shuffle(values)
                for value in values:
                    new = {"algo": spec["algo"], "knobs": {**spec["knobs"], knob: value}}
                    code = self._module.render(self._task, self._language, new)
                    if code in seen:
                        continue
                    seen.add(code)
                    note = f"the best so far, {best:.3f}x, has {knob} = {spec['knobs'][knob]}"
                    got = yield Attempt(f"{spec['algo']}: {knob} = {value}", note, code, at)
                    if got is not None and got > best * self.KEEP:
                        best, at, spec, improved = got, count, new, True
                    count += 1
            if not improved:
                return


class AgentRun:
    """One run directory of an agent; the same calls as a ``Search``.

    Raises:
        DataError: the directory holds another agent's attempts.
        BusyError: another process records into the directory.
    """

    def __init__(self, directory: Path, agent: Agent, *, seed: int = 0) -> None:
        self.directory, self._agent, self._seed = directory, agent, seed
        self.counts: dict[str, int] = {}
        self.best: float | None = None
        self.bins: dict[int, int] = {}
        self._log = JsonLines(directory / "attempts.jsonl")
        self._history: list[dict[str, Any]] = []
        for row in read_lines(directory / "attempts.jsonl"):
            expected = agent.next(self._history)
            if expected is None or expected.code != row["code"]:
                self._log.close()
                finding = Finding(
                    code="another-search", file=str(directory / "attempts.jsonl"), line=len(self._history) + 1,
                    message="the directory holds attempts that this agent did not make",
                    fix="Record into another directory, or move this one away",
                )  # fmt: skip
                raise DataError.from_findings([finding])
            self._take(row)
        self._timing = JsonLines(directory / "timing.jsonl")

    def _take(self, row: dict[str, Any]) -> None:
        self._history.append(row)
        feedback = row["evaluation"]["observation"]["feedback"]
        self.counts[feedback["kind"]] = self.counts.get(feedback["kind"], 0) + 1
        if feedback["kind"] == "success":
            speedup = feedback["aggregated_speedup"]
            self.best = speedup if self.best is None else max(self.best, speedup)
            self.bins[bin_of(speedup)] = self.bins.get(bin_of(speedup), 0) + 1

    def close(self) -> None:
        """Close the files."""
        self._log.close()
        self._timing.close()

    @property
    def finished(self) -> bool:
        """Whether the agent has come to its end."""
        return self._agent.next(self._history) is None

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """For ``run.json``."""
        facts = getattr(self._agent, "facts", {})
        return {"attempts": len(self._history), "aggregation": "geomean", "rng_seed": self._seed, **facts}

    def jobs(self) -> list[Job]:
        """The next attempt; empty when there is none."""
        attempt = self._agent.next(self._history)
        return [] if attempt is None else [Job(f"attempt-{len(self._history)}", attempt.code)]

    def ahead(self) -> list[str]:
        """Programs that can be compiled before their turn."""
        written = getattr(self._agent, "attempts", ())
        return [a.code for a in written[len(self._history) :]]

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of the attempt.

        Raises:
            UsageError: it is not this attempt's turn.
        """
        attempt = self._agent.next(self._history)
        if attempt is None or job.request_id != f"attempt-{len(self._history)}":
            raise UsageError(f"{job.request_id} is not waiting: reported before, or of another run")
        self._timing.append({
            "request_id": job.request_id, "program": program_id(job.code), "title": attempt.title,
            "started_at": started_at, "completed_at": now(), **measured.timing(),
        })  # fmt: skip
        row = {
            "attempt": len(self._history), "parent_attempt": attempt.parent, "title": attempt.title,
            "note": attempt.note, "code": attempt.code, "started_at": started_at, "completed_at": now(),
            **({"forecast": attempt.forecast} if attempt.forecast is not None else {}),
            **({"output_tokens": attempt.tokens} if attempt.tokens is not None else {}),
            "evaluation": evaluation(measured),
        }  # fmt: skip
        self._log.append(row)
        self._take(row)
