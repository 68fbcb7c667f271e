"""Near copies: which programs are as good as another one of a cell, and how near a program is to what a trainer sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_archive.ids import program_id, token_text
from kernel_archive.selection.similarity import Near, Program, nearest, overlap, token_grams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Neighbours:
    """The nearest training program of any program, within its problem; each pair is compared once."""

    def __init__(self, training: Callable[[str], Iterable[Program]]) -> None:
        """Training programs of a problem, each once."""
        self._training = training
        self._known: dict[tuple[str, str], tuple[str, float]] = {}

    def of(self, programs: Iterable[Program]) -> dict[str, Near]:
        """Name -> the nearest training program, for every program that shares anything with one."""
        asked = list(programs)
        keys = {program.name: (program.problem, program_id(program.code)) for program in asked}
        missing: dict[str, dict[str, Program]] = {}
        for program in asked:
            problem, text = keys[program.name]
            if (problem, text) not in self._known:
                missing.setdefault(problem, {})[text] = Program(text, problem, program.code)
        for problem in sorted(missing):
            for near in nearest(list(missing[problem].values()), self._training(problem)):
                self._known[problem, near.row] = (near.program, near.similarity)
        found = {name: Near(name, *self._known[key]) for name, key in keys.items()}
        return {name: near for name, near in found.items() if near.similarity > 0}

    def known(self, programs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, float]]:
        """What was found of programs, by problem and program id."""
        return {key: self._known[key] for key in programs if key in self._known}

    def learn(self, known: Mapping[tuple[str, str], tuple[str, float]]) -> None:
        """Take what another has found."""
        self._known.update(known)


class Copies:
    """Which of a few programs are near copies of each other; texts are looked at once."""

    def __init__(self, programs: Sequence[Program], threshold: float) -> None:
        """Programs, and the similarity from which two are near copies."""
        self._grams = dict(
            zip((p.name for p in programs), token_grams(token_text(p.code) for p in programs), strict=True)
        )
        self._threshold = threshold

    def near(self, name: str, others: Iterable[str]) -> bool:
        """Whether a program is a near copy of one of the others."""
        return any(overlap(self._grams[name], self._grams[other]) >= self._threshold for other in others)
