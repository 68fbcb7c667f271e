"""Near copies: which programs are as good as another one of a cell, and how near a program is to what a trainer sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from kernel_archive.ids import program_id, token_id, token_text
from kernel_archive.selection.similarity import Near, Program, nearest, overlap, token_grams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kernel_archive.selection.tables import ArchiveTables


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


def training_programs(tables: ArchiveTables) -> Callable[[str], Iterator[Program]]:
    """What a trainer sees of a problem, one program of each near-duplicate class.

    That is ``kernels/train``, and what only training pairs hold that stand in the archive: those that others published,
    or that somebody has changed.
    """

    def programs(problem: str) -> Iterator[Program]:
        part = tables.part_with(problem)
        rows = part.train.select(["kernel_id", "token_id", "program_id"]).filter(
            pc.equal(part.train["problem"], problem)
        )
        listed: dict[str, tuple[str, str]] = {}
        for name, token, program in sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True)):
            listed.setdefault(token, (name, program))
        wanted = sorted(listed.values())
        for start in range(0, len(wanted), tables.texts.block_rows):
            block = wanted[start : start + tables.texts.block_rows]
            for (name, _), code in zip(block, tables.texts.fetch([p for _, p in block]).to_pylist(), strict=True):
                yield Program(name, problem, code)
        yield from _paired(tables, problem, set(listed))

    return programs


def _paired(tables: ArchiveTables, problem: str, seen: set[str]) -> Iterator[Program]:
    """Candidates of stored training pairs of a problem that are no kernels of training, and their anchors."""
    known: set[str] | None = None
    for part in tables.stored("train_pairs", ("row_id", "problem", "pair_type", "anchor_code", "candidate_code")):
        for row in part.filter(pc.equal(part["problem"], problem)).to_pylist():
            if known is None:
                known = set(tables.of(None).read("kernels", ["program_id"], "train")["program_id"].to_pylist())
            # The anchor of a seed pair is the reference, which every row of an evaluation shows.
            for code in (row["candidate_code"], row["anchor_code"])[: 1 if row["pair_type"] == "seed" else 2]:
                if program_id(code) not in known and (token := token_id(code)) not in seen:
                    seen.add(token)
                    yield Program(row["row_id"], problem, code)


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
