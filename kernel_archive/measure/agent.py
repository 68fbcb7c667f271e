"""Agent runs: one attempt after another, each made with the measurements of the earlier ones in hand (``attempts``)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kernel_archive.errors import DataError, UsageError
from kernel_archive.measure.runs import AttemptLog, Tally, feedback_of
from kernel_archive.measure.search import Job

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from kernel_archive.measure.providers import Templates
    from kernel_archive.measure.verdict import Measurement
    from kernel_archive.readers.events import Attempt


class Draft(msgspec.Struct, frozen=True):
    """One attempt before it is measured.

    Attributes:
        title: what it is, in a few words.
        note: why it was tried.
        code: the program.
        parent: number of the attempt that it builds on, from 0.
        forecast: what its author expects: ``expected_speedup`` and ``probabilities``.
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

    @property
    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        ...

    def next(self, history: Sequence[Attempt]) -> Draft | None:
        """The next attempt after the logged ones; ``None`` at the end."""
        ...

    def ahead(self, done: int) -> Sequence[str]:
        """Programs that are known before their turn, after so many attempts; they can be compiled."""
        ...


class TuningAgent:
    """A rule-based agent: tries every program of a folder of templates once, then tunes the best one knob by knob.

    Each attempt follows from the measurements before it: a change that helps by more than 1 % is kept and built upon.

    Args:
        templates: the programs.
        seed: of the order in which programs, knobs and values are tried.
        budget: attempts.
    """

    KEEP = 1.01

    def __init__(self, templates: Templates, *, seed: int, budget: int) -> None:
        self._templates, self._seed, self._budget = templates, seed, budget

    @property
    def facts(self) -> dict[str, Any]:
        """The seed."""
        return {"rng_seed": self._seed}

    def ahead(self, done: int) -> Sequence[str]:
        """Nothing: each attempt follows from the measurements before it."""
        del done
        return ()

    def next(self, history: Sequence[Attempt]) -> Draft | None:
        """Replays its own decisions over the logged measurements and makes the next one."""
        if len(history) >= self._budget:
            return None
        walk = self._walk()
        try:
            draft = next(walk)
            for row in history:
                draft = walk.send(feedback_of(row.evaluation).aggregated_speedup)
        except StopIteration:
            return None
        return draft

    def _walk(self) -> Generator[Draft, float | None, None]:
        rng = random.Random(self._seed)  # noqa: S311 - a search, no secret
        algorithms = self._templates.algorithms
        names = sorted(algorithms)
        rng.shuffle(names)
        seen: set[str] = set()
        count, best, at, spec = 0, 0.0, None, None
        for name in names:
            new = self._templates.draw(name, rng)
            code = self._templates.render(new)
            seen.add(code)
            got = yield Draft(f"try {name}", "see where this algorithm stands before tuning any", code, None)
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
                    code = self._templates.render(new)
                    if code in seen:
                        continue
                    seen.add(code)
                    note = f"the best so far, {best:.3f}x, has {knob} = {spec['knobs'][knob]}"
                    got = yield Draft(f"{spec['algo']}: {knob} = {value}", note, code, at)
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

    def __init__(self, directory: Path, agent: Agent) -> None:
        self._agent = agent
        self.tally = Tally()
        self._log = AttemptLog(directory)
        for i, row in enumerate(self._log.rows):
            draft = agent.next(self._log.rows[:i])
            if draft is None or draft.code != row.code:
                self._log.close()
                raise DataError.of(
                    code="another-search", file=str(directory / "attempts.jsonl"), line=i + 1,
                    message="the directory holds attempts that this agent did not make",
                    fix="Record into another directory, or move this one away",
                )  # fmt: skip
            self.tally.add(feedback_of(row.evaluation))

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    @property
    def finished(self) -> bool:
        """Whether the agent has come to its end."""
        return self._agent.next(self._log.rows) is None

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {"attempts": len(self._log.rows), "aggregation": "geomean", **self._agent.facts}

    def jobs(self) -> list[Job]:
        """The next attempt; empty when there is none."""
        draft = self._agent.next(self._log.rows)
        return [] if draft is None else [Job(f"attempt-{len(self._log.rows)}", draft.code)]

    def ahead(self) -> Sequence[str]:
        """Programs that can be compiled before their turn."""
        return self._agent.ahead(len(self._log.rows))

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of the attempt.

        Raises:
            UsageError: it is not this attempt's turn.
        """
        draft = self._agent.next(self._log.rows)
        if draft is None or job.request_id != f"attempt-{len(self._log.rows)}":
            raise UsageError(f"{job.request_id} is not waiting: reported before, or of another run")
        row = self._log.add(
            draft.code, measured, started_at, parent_attempt=draft.parent, title=draft.title, note=draft.note,
            forecast=draft.forecast, output_tokens=draft.tokens,
        )  # fmt: skip
        self.tally.add(feedback_of(row.evaluation))
