"""Rows chosen for a split, and what follows from them: the table with its labels, its digest, its facts, and who is in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.shards import digest_rows
from kernel_archive.bins import N_BINS, SCHEMES, Scheme, assign_bins, representatives
from kernel_archive.ids import CANARY, ID_LENGTH, logical_digest, sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.selection.texts import PART_ROWS, OrNothing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kernel_archive.selection.texts import Texts
    from kernel_archive.splits import Split

__all__ = [
    "CANONICAL",
    "Member",
    "Origin",
    "Row",
    "Selection",
    "Side",
    "by_program",
    "cell_counts",
    "label_facts",
    "pair_id",
    "select",
]

Origin = Literal["selected", "published"]
#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"


class Side(NamedTuple):
    """One program of a row: its ids, and the kernel that it is; ``None`` for a reference."""

    program_id: str
    token_id: str
    kernel_id: str | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One chosen row, before it has a label.

    Attributes:
        row_id: its id.
        problem: the problem of both programs.
        family: the problem's suite.
        gpu: the GPU that both were measured on.
        search_id: the search that the candidate comes from; empty where unknown.
        value: anchor time / candidate time, x.
        anchor: the program that the candidate is compared with.
        candidate: the program whose speedup is forecast.
        pair_type: kind of a training pair; empty for other rows.
        more: further columns of its table, by name.
    """

    row_id: str
    problem: str
    family: str
    gpu: str
    search_id: str
    value: float
    anchor: Side
    candidate: Side
    pair_type: str = ""
    more: dict[str, Any] = {}


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of leaks knows of a row of a split.

    Attributes:
        row_id: its id.
        problem: its problem.
        search_id: its search; empty where unknown.
        programs: ids of the programs that searches wrote: the candidate, or anchor and candidate.
        tokens: token ids (near-duplicate classes) of the same programs.
        open_anchor: the row says that its first program is the reference, which everybody may know; the check looks it
            up.
    """

    row_id: str
    problem: str
    search_id: str
    programs: tuple[str, ...]
    tokens: tuple[str, ...]
    open_anchor: bool = False


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows chosen for a split, in their defined order.

    The texts are fetched when the table is read, part by part, so that memory does not grow with the archive.

    Attributes:
        split: the split.
        rows: every column but texts and canary.
        texts: text column -> source and keys, one per row.
        members: the rows as the check of leaks sees them.
        variant: ``canonical``, or the name of a variant.
        origin: selected here, or published by others and kept.
        scheme: bin scheme of the labels.
        parameters: everything that the choice depended on.
        counts: facts of the choice.
    """

    split: Split
    rows: pa.Table
    texts: Mapping[str, tuple[Texts, Sequence[str]]]
    members: Sequence[Member]
    variant: str
    origin: Origin
    scheme: Scheme
    parameters: dict[str, Any]
    counts: dict[str, Any]
    _known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def parts(self) -> Iterator[pa.Table]:
        """The table in parts, exactly in the schema of its name."""
        schema = TABLES[self.split.table].schema
        block = min((source.block_rows for source, _ in self.texts.values()), default=PART_ROWS)
        for start in range(0, len(self), block):
            fetched = {name: source.fetch(keys[start : start + block]) for name, (source, keys) in self.texts.items()}
            rows = self.rows.slice(start, block)
            for at in range(0, rows.num_rows, PART_ROWS):
                part = rows.slice(at, PART_ROWS)
                columns = {name: texts.slice(at, PART_ROWS).cast(pa.string()) for name, texts in fetched.items()}
                columns["canary"] = pa.array([CANARY] * part.num_rows, pa.string())
                yield pa.table(
                    [columns[f.name] if f.name in columns else part.column(f.name).cast(f.type) for f in schema],
                    schema=schema,
                )

    @cached_property
    def table(self) -> pa.Table:
        """The whole table in memory, exactly in the schema of its name."""
        return pa.concat_tables([*self.parts()] or [TABLES[self.split.table].schema.empty_table()])

    @property
    def digest(self) -> str:
        """Logical digest over the rows."""
        if "digest" not in self._known:
            digests = [row for part in self.parts() for row in digest_rows(self.split.table, part)]
            self._known["digest"] = logical_digest(digests)
        return self._known["digest"]

    def written(self, digest: str) -> None:
        """Note the digest that the writer found, so that it need not be computed again."""
        self._known["digest"] = digest

    @property
    def facts(self) -> SplitFacts:
        """What the manifest keeps of the split."""
        return SplitFacts(
            name=self.variant,
            origin=self.origin,
            scheme=self.scheme,
            logical_digest=self.digest,
            rows=len(self),
            parameters=self.parameters,
            facts=self.counts,
        )


def select(
    split: Split,
    rows: Sequence[Row],
    *,
    texts: Mapping[str, tuple[Texts, Sequence[str]]],
    scheme: Scheme,
    variant: str,
    parameters: dict[str, Any],
    counts: dict[str, Any],
    origin: Origin = "selected",
    labels: NDArray[np.int8] | None = None,
) -> Selection:
    """The selection of these rows, in their order.

    Args:
        split: the split.
        rows: the rows.
        texts: text column -> source and keys, one per row (see :func:`by_program`).
        scheme: bin scheme of the labels.
        variant: name of the variant.
        parameters: everything that the choice depended on.
        counts: facts of the choice, beside those that follow from the rows.
        origin: selected here, or published by others and kept.
        labels: the labels, where they are not made from the values.

    Raises:
        DataError: a value is not finite and above 0.
    """
    ids = [row.row_id for row in rows]
    problems = [row.problem for row in rows]
    values = np.array([row.value for row in rows], np.float64)
    bins = assign_bins(values, scheme, row_ids=ids) if labels is None else labels
    columns = {
        "row_id": ids,
        split.task: problems,
        "family": [row.family for row in rows],
        "gpu": [row.gpu for row in rows],
        split.value: values,
        "pair_type": [row.pair_type for row in rows],
        "bin": bins,
        "bin_scheme": [scheme] * len(rows),
        "search_id": [row.search_id for row in rows],
        "parent_kernel_id": [row.anchor.kernel_id for row in rows],
        "anchor_program_id": [row.anchor.program_id for row in rows],
        split.kernel: [row.candidate.kernel_id for row in rows],
    }
    for name in TABLES[split.table].schema.names:
        if name not in columns and name not in texts and name != "canary":
            columns[name] = [row.more.get(name) for row in rows]
    schema = [f for f in TABLES[split.table].schema if f.name in columns]
    facts = {
        **label_facts(values, bins, scheme),
        "cells": cell_counts(zip(problems, bins.tolist(), strict=True)),
        "gpus": dict(sorted(Counter(row.gpu for row in rows).items())),
        "searches": len({row.search_id for row in rows if row.search_id}),
        **(_several_references(rows) if split.kind == "eval" else {}),
    }
    return Selection(
        split=split,
        rows=pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=pa.schema(schema)),
        texts=texts,
        members=[_member(split, row) for row in rows],
        variant=variant,
        origin=origin,
        scheme=scheme,
        parameters=parameters,
        counts={**facts, **counts},
    )


def by_program(split: Split, rows: Sequence[Row], source: Texts) -> dict[str, tuple[Texts, Sequence[str]]]:
    """The text columns of these rows, from a source that knows texts by program id."""
    return {
        split.anchor: (OrNothing(source), [row.anchor.program_id for row in rows]),
        split.candidate: (source, [row.candidate.program_id for row in rows]),
    }


def _member(split: Split, row: Row) -> Member:
    sides = (row.anchor, row.candidate)[-len(split.programs) :]
    return Member(
        row_id=row.row_id,
        problem=row.problem,
        search_id=row.search_id,
        programs=tuple(side.program_id for side in sides),
        tokens=tuple(side.token_id for side in sides),
        open_anchor=row.pair_type == "seed",
    )


def _several_references(rows: Iterable[Row]) -> dict[str, Any]:
    """A fact to warn of: tasks with rows that were timed against more than one reference; nothing where there is none.

    Such rows stand in one cell of the table though their speedups have different denominators. The fact is
    ``{"several_references": {task: {reference program id: rows}}}``.
    """
    counts: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=lambda r: (r.problem, r.anchor.program_id)):
        counts.setdefault(row.problem, Counter())[row.anchor.program_id] += 1
    several = {task: dict(found) for task, found in counts.items() if len(found) > 1}
    return {"several_references": several} if several else {}


def pair_id(prefix: str, first: str, second: str) -> str:
    """Id of an ordered pair: first 32 hex digits of sha256 over a prefix and the two ids, separated by NUL."""
    return sha256_hex(f"{prefix}\0{first}\0{second}".encode())[:ID_LENGTH]


def cell_counts(cells: Iterable[tuple[str, int]], always: Iterable[str] = ()) -> dict[str, list[int]]:
    """Rows per task and bin, eight counts each, from the task and bin of every row.

    Args:
        cells: task and bin of every row.
        always: tasks that are in it also where they have no row.
    """
    found = Counter(cells)
    names = sorted({*always, *(task for task, _ in found)})
    return {task: [found[task, b] for b in range(1, N_BINS + 1)] for task in names}


def label_facts(speedups: NDArray[np.float64], bins: NDArray[np.int8], scheme: Scheme) -> dict[str, Any]:
    """Representatives of the end bins, rows per bin, and the rows that the two schemes label differently.

    Args:
        speedups: shape (n,), x.
        bins: shape (n,), the labels.
        scheme: their scheme.
    """
    m = representatives(speedups, bins, scheme)
    by_scheme = {name: assign_bins(speedups, name) for name in SCHEMES}
    return {
        "m_1": float(m[0]),
        "m_8": float(m[-1]),
        "bins": np.bincount(bins, minlength=N_BINS + 1)[1:].tolist(),
        "label_differences": int(np.count_nonzero(by_scheme["paper"] != by_scheme["released"])),
    }
