"""Filling the cells of an evaluation split (one problem, one bin)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kernel_archive.selection.level import level
from kernel_archive.selection.similarity import overlap
from kernel_archive.text_quantities import quantities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kernel_archive.selection.definitions import EvalDefinition
    from kernel_archive.selection.similarity import TokenSet
    from kernel_archive.selection.tables import ArchiveTables


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A kernel that a cell could hold; ``order`` is its hash, by which those of a cell stand."""

    kernel_id: str
    program_id: str
    token_id: str
    problem: str
    search_id: str
    language: str
    speedup: float
    n_measurements: int
    bin: int
    order: str


class Cells:
    """The cells of a split, filled by its definition.

    Attributes:
        near_copies: candidates that were passed over as near copies of a row of their cell.
    """

    def __init__(self, rule: EvalDefinition, sets: Mapping[str, TokenSet]) -> None:
        """Take the definition and token sets by kernel id where it has a rule about near copies."""
        self.rule = rule
        self.near_copies = 0
        self._sets = sets

    def is_near(self, name: str, others: Iterable[str]) -> bool:
        """Whether a kernel is a near copy of one of the others."""
        limit = self.rule.near_copy
        if limit is None:
            return False
        grams = self._sets[name].grams
        return any(overlap(grams, self._sets[other].grams) >= limit for other in others)

    def fill(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Take the rows of every cell, bin by bin."""
        bins: dict[int, dict[str, list[Candidate]]] = {}
        for candidate in sorted(candidates, key=lambda c: (c.bin, c.problem, c.order, c.kernel_id)):
            bins.setdefault(candidate.bin, {}).setdefault(candidate.problem, []).append(candidate)
        return [candidate for cells in bins.values() for candidate in self._fill_bin(cells)]

    def _fill_bin(self, cells: Mapping[str, list[Candidate]]) -> Iterator[Candidate]:
        """Take the rows of one bin in turns: every problem takes its next row."""
        taken: dict[str, list[str]] = {problem: [] for problem in cells}
        languages: Counter[str] = Counter()
        searches: Counter[tuple[str, str]] = Counter()

        def rank(candidate: Candidate) -> tuple[int, ...]:
            # Of equal ones the first is taken: they stand in the order of their hashes.
            rows = {
                "language": languages[candidate.language],
                "search": searches[candidate.problem, candidate.search_id],
            }
            poor = candidate.n_measurements < self.rule.measured
            return (poor, *(rows[name] for name in self.rule.balance))

        def next_row(problem: str) -> Candidate | None:
            waiting = cells[problem]
            while waiting and len(taken[problem]) < self.rule.cap:
                candidate = min(waiting, key=rank)
                waiting.remove(candidate)
                if not self.is_near(candidate.kernel_id, taken[problem]):
                    taken[problem].append(candidate.kernel_id)
                    languages[candidate.language] += 1
                    searches[problem, candidate.search_id] += 1
                    return candidate
                self.near_copies += 1
            return None

        problems = list(cells)
        while problems:
            rows = [(problem, next_row(problem)) for problem in problems]
            problems = [problem for problem, row in rows if row is not None]
            yield from (row for _, row in rows if row is not None)


def level_rows(
    tables: ArchiveTables,
    cells: Cells,
    limit: float,
    chosen: Sequence[Candidate],
    candidates: Sequence[Candidate],
) -> list[Candidate]:
    """Level the rows (:mod:`~kernel_archive.selection.level`), task by task.

    Nothing comes in that is measured less often than the definition prefers.
    """
    before = {candidate.kernel_id for candidate in chosen}
    tasks: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: c.kernel_id):
        if candidate.kernel_id in before or candidate.n_measurements >= cells.rule.measured:
            tasks.setdefault(candidate.problem, []).append(candidate)
    rows: list[Candidate] = []
    for members in tasks.values():
        if all(member.kernel_id in before for member in members):
            rows += members
            continue
        names = [member.kernel_id for member in members]
        codes = tables.texts.fetch([member.program_id for member in members])
        counts = [list(quantities(code.as_py()).values()) for code in codes]

        def fits(comes: int, beside: Sequence[int], names: list[str] = names) -> bool:
            return not cells.is_near(names[comes], (names[i] for i in beside))

        taken = level(
            np.array(counts, dtype=np.float64),
            np.array([member.speedup for member in members]),
            np.array([member.bin for member in members]),
            np.array([name in before for name in names]),
            limit=limit,
            fits=fits,
        )
        rows += [member for member, take in zip(members, taken.tolist(), strict=True) if take]
    return rows
