"""Chains: programs that an author wrote one after another.

A chain is recorded as ``attempts``. A folder of chains belongs to one author and holds
``author.json`` and a folder for every problem::

    a01/author.json            who wrote: AuthorFacts
    a01/trimul/01.py           a program
    a01/trimul/01.json         what the author said of it before it was measured: ProgramFacts
    a01/trimul/02.py ...

The programs are numbered from 1 without a gap. A chain grows between the rounds of measuring, so
its run goes on when ``record`` is called again; a program that was measured must not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.untrusted import misfit
from kernel_measure.runs import AttemptLog, Tally, feedback_of
from kernel_measure.search import Job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernel_archive.readers.events import Attempt
    from kernel_measure.verdict import Measurement


Facts = TypeVar("Facts", bound=msgspec.Struct)


class ProgramDraft(msgspec.Struct, frozen=True):
    """One attempt before it is measured, as its row in the log has it."""

    title: str
    note: str
    code: str
    parent: int | None = None
    forecast: dict[str, Any] | None = None
    tokens: int | None = None


class ProgramFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an author says of a program before it is measured.

    Attributes:
        title: what it is, in a few words.
        intent: what it tries, what it reacts to, what the author expects.
        expected_speedup: the author's guess, x.
        probabilities: the author's belief over the eight bins (scheme ``paper``); sums to 1 within
            0.02.
        parent: number of the program that it builds on; ``None`` for a new start.
        tokens: tokens that the author wrote for it, where known.
    """

    title: str
    intent: str
    expected_speedup: float
    probabilities: list[float]
    parent: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a forecast that is none."""
        if not self.expected_speedup > 0:
            raise ValueError("expected_speedup must be above 0")
        if (
            len(self.probabilities) != 8
            or min(self.probabilities) < 0
            or abs(sum(self.probabilities) - 1) > 0.02
        ):
            raise ValueError("probabilities are eight numbers of at least 0 that sum to 1")


class AuthorFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who wrote a folder of chains, and what the author was asked for.

    Attributes:
        author: id of the author, also the folder's name.
        role: ``held_out`` or ``training``: what the chains may be used for.
        model: the language model that wrote, as far as known.
        experience: the experience that the brief asked for.
        style: the style that the brief asked for.
        language: language of the chains.
        chains: problem -> what the brief said of that chain (aim, hypotheses, goal).
    """

    author: str
    role: str
    model: str
    experience: str
    style: str
    language: str
    chains: dict[str, dict[str, Any]]


class Chain:
    """One author's programs for one problem, so far and in order."""

    def __init__(self, author: AuthorFacts, problem: str, attempts: Sequence[ProgramDraft]) -> None:
        self.author, self.problem, self.attempts = author, problem, tuple(attempts)

    def next(self, history: Sequence[Attempt]) -> ProgramDraft | None:
        """The next program of the chain."""
        return self.attempts[len(history)] if len(history) < len(self.attempts) else None

    def ahead(self, done: int) -> list[str]:
        """All that were not measured yet."""
        return [draft.code for draft in self.attempts[done:]]

    @property
    def facts(self) -> dict[str, Any]:
        """For ``run.json``: author and brief."""
        said = {
            name: getattr(self.author, name)
            for name in ("author", "role", "model", "experience", "style")
        }
        return said | {"brief": self.author.chains.get(self.problem, {})}


def _read(path: Path, kind: type[Facts]) -> Facts:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise DataError.of(
            code="unreadable", file=str(path), message=f"cannot be read: {error.strerror}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text, field = misfit(error)
        raise DataError.of(
            code="bad-chain", file=str(path), field=field, message=printable(text, 300)
        ) from error


def read_chain(folder: Path) -> Chain:
    """The chain in a folder; its author's facts lie beside it.

    Raises:
        DataError: a file is missing or at fault, with its name and field.
    """
    author = _read(folder.parent / "author.json", AuthorFacts)
    drafts: list[ProgramDraft] = []
    for number, path in enumerate(sorted(folder.glob("*.py")), 1):
        if path.stem != f"{number:02d}":
            message = f"program {number} of a chain is called {number:02d}.py"
            raise DataError.of(code="bad-chain", file=str(path), message=message)
        facts = _read(path.with_suffix(".json"), ProgramFacts)
        if facts.parent is not None and not 1 <= facts.parent < number:
            raise DataError.of(
                code="bad-chain",
                file=str(path.with_suffix(".json")),
                field="parent",
                value=str(facts.parent),
                message="a program builds on an earlier one of its chain",
            )
        parent = None if facts.parent is None else facts.parent - 1
        forecast = {
            "expected_speedup": facts.expected_speedup,
            "probabilities": facts.probabilities,
        }
        try:
            code = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise DataError.of(
                code="bad-chain", file=str(path), message=f"not UTF-8: {error}"
            ) from error
        drafts.append(ProgramDraft(facts.title, facts.intent, code, parent, forecast, facts.tokens))
    return Chain(author, folder.name, drafts)


class AgentRun:
    """One run directory of an agent; the same calls as a ``Search``.

    Raises:
        DataError: the directory holds another agent's attempts.
        BusyError: another process records into the directory.
    """

    def __init__(self, directory: Path, agent: Chain) -> None:
        self._agent = agent
        self.tally = Tally()
        self._log = AttemptLog(directory)
        for i, row in enumerate(self._log.rows):
            draft = agent.next(self._log.rows[:i])
            if draft is None or draft.code != row.code:
                self._log.close()
                raise DataError.of(
                    code="another-search",
                    file=str(directory / "attempts.jsonl"),
                    line=i + 1,
                    message="the directory holds attempts that this agent did not make",
                    fix="Record into another directory, or move this one away",
                )
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
            draft.code,
            measured,
            started_at,
            parent_attempt=draft.parent,
            title=draft.title,
            note=draft.note,
            forecast=draft.forecast,
            output_tokens=draft.tokens,
        )
        self.tally.add(feedback_of(row.evaluation))
