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

from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from kernel_archive.errors import DataError
from kernel_measure.logs import read_given
from kernel_measure.runs import AttemptLog, Job
from kernel_measure.verdict import Measurement


class ProgramFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an author says of a program before it is measured."""

    title: str  # what it is, in a few words
    intent: str  # what it tries, what it reacts to, what the author expects
    expected_speedup: Annotated[float, msgspec.Meta(gt=0)]  # the author's guess, x
    #: The author's belief over the eight bins (scheme ``paper``); sums to 1 within 0.02.
    probabilities: list[float]
    parent: int | None = None  # number of the program that it builds on; ``None`` for a new start
    tokens: int | None = None  # tokens that the author wrote for it, where known

    def __post_init__(self) -> None:
        """Refuse a forecast that is none."""
        p = self.probabilities
        if len(p) != 8 or min(p) < 0 or abs(sum(p) - 1) > 0.02:
            raise ValueError("probabilities are eight numbers of at least 0 that sum to 1")


class AuthorFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who wrote a folder of chains, and what the author was asked for."""

    author: str  # id of the author, also the folder's name
    role: str  # ``held_out`` or ``training``: what the chains may be used for
    model: str  # the language model that wrote, as far as known
    experience: str  # the experience that the brief asked for
    style: str  # the style that the brief asked for
    language: str  # language of the chains
    #: Problem -> what the brief said of that chain (aim, hypotheses, goal).
    chains: dict[str, dict[str, Any]]


class ChainProgram(NamedTuple):
    """One program of a chain, and what its author says of it."""

    code: str
    facts: ProgramFacts


class Chain(msgspec.Struct):
    """One author's programs for one problem, so far and in order."""

    author: AuthorFacts
    problem: str
    attempts: list[ChainProgram]


def read_chain(folder: Path) -> Chain:
    """Read the chain in a folder; its author's facts lie beside it.

    Raises:
        DataError: a file is missing or at fault, with its name and field.
    """
    read, fail = partial(read_given, code="bad-chain"), partial(DataError.of, code="bad-chain")
    author = read(folder.parent / "author.json", AuthorFacts)
    programs: list[ChainProgram] = []
    for number, path in enumerate(sorted(folder.glob("*.py")), 1):
        if path.stem != f"{number:02d}":
            message = f"program {number} of a chain is called {number:02d}.py"
            raise fail(file=str(path), message=message)
        facts = read(path.with_suffix(".json"), ProgramFacts)
        if facts.parent is not None and not 1 <= facts.parent < number:
            raise fail(
                file=str(path.with_suffix(".json")),
                field="parent",
                value=str(facts.parent),
                message="a program builds on an earlier one of its chain",
            )
        programs.append(ChainProgram(read(path, str), facts))
    return Chain(author, folder.name, programs)


class ChainLog(AttemptLog):
    """The log of a chain's run; the same calls as a ``Search``.

    Raises:
        DataError: the directory holds attempts of another chain.
    """

    def __init__(self, directory: Path, chain: Chain) -> None:
        self._chain = chain
        super().__init__(directory)
        for i, row in enumerate(self.rows):
            if [row.code] != [code for code, _ in chain.attempts[i : i + 1]]:
                self._refuse(i + 1, "attempts that this agent did not make")

    @property
    def finished(self) -> bool:
        """Tell whether all programs were measured."""
        return len(self.rows) == len(self._chain.attempts)

    def facts(self) -> dict[str, Any]:
        """Return author and brief, for ``run.json``."""
        author = self._chain.author
        names = ("author", "role", "model", "experience", "style")
        facts = {name: getattr(author, name) for name in names}
        brief = author.chains.get(self._chain.problem, {})
        search = {"attempts": len(self.rows), "aggregation": "geomean", **facts, "brief": brief}
        return {"search": search}

    def next_jobs(self) -> list[Job]:
        """Return all programs that were not measured yet."""
        programs = enumerate(self._chain.attempts)
        return [Job(f"attempt-{i}", code) for i, (code, _) in programs if i >= len(self.rows)]

    def report(self, job: Job, measured: Measurement, started_at: str) -> None:
        """Write the measurement of the attempt whose turn it is."""
        _, facts = self._chain.attempts[len(self.rows)]
        self.add(
            job.code,
            measured,
            started_at,
            parent_attempt=None if facts.parent is None else facts.parent - 1,
            title=facts.title,
            note=facts.intent,
            forecast={n: getattr(facts, n) for n in ("expected_speedup", "probabilities")},
            output_tokens=facts.tokens,
        )
