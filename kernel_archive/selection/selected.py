"""Rows chosen for a split, and what follows from them: the table with its labels, its digest, its facts, and who is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from kernel_archive.selection.texts import Texts
    from kernel_archive.splits import Split

Origin = Literal["selected", "published"]
#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"
#: The programs of a row.
SIDES: Final = ("anchor", "candidate")
#: Columns that are added to the rows that were chosen.
_ADDED: Final = ("bin", "bin_scheme", "canary")


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


class Members(Sequence[Member]):
    """The rows of a table as the check of leaks sees them, made while they are read: as objects they take ten times as much."""

    def __init__(self, split: Split, rows: pa.Table) -> None:
        """A table of :func:`row_table`."""
        sides = SIDES[-len(split.programs) :]
        names = ["row_id", split.task, "search_id", *(f"{s}_program" for s in sides), *(f"{s}_token" for s in sides)]
        self._rows, self._sides = rows.select([*names, *(["pair_type"] if split.kind == "train" else [])]), len(sides)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, i: Any) -> Any:
        found = [*Members._of(self._rows[i : i + 1] if isinstance(i, int) else self._rows[i], self._sides)]
        return found[0] if isinstance(i, int) else found

    def __iter__(self) -> Iterator[Member]:
        for start in range(0, len(self), PART_ROWS):
            yield from Members._of(self._rows.slice(start, PART_ROWS), self._sides)

    @staticmethod
    def _of(rows: pa.Table, sides: int) -> Iterator[Member]:
        for row_id, problem, search, *ids in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            programs, tokens, kind = ids[:sides], ids[sides : 2 * sides], ids[2 * sides :]
            yield Member(
                row_id=row_id,
                problem=problem,
                search_id=search,
                programs=tuple(programs),
                tokens=tuple(tokens),
                open_anchor=kind == ["seed"],
            )


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows chosen for a split, in their defined order.

    The texts are fetched when the table is read, part by part, so that memory does not grow with the archive.

    Attributes:
        split: the split.
        rows: every column but texts and canary, and the programs of both sides.
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
    texts: Mapping[str, tuple[Texts, pa.ChunkedArray]]
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
            fetched = {
                name: source.fetch(keys.slice(start, block).to_pylist()) for name, (source, keys) in self.texts.items()
            }
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


def row_table(split: Split, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table: every column of the split but texts, labels and canary, and ids of the programs of both sides."""
    columns = {
        "row_id": [row.row_id for row in rows],
        split.task: [row.problem for row in rows],
        "family": [row.family for row in rows],
        "gpu": [row.gpu for row in rows],
        split.value: [row.value for row in rows],
        "pair_type": [row.pair_type for row in rows],
        "search_id": [row.search_id for row in rows],
        "parent_kernel_id": [row.anchor.kernel_id for row in rows],
        "anchor_program_id": [row.anchor.program_id for row in rows],
        split.kernel: [row.candidate.kernel_id for row in rows],
    }
    fields = [f for f in TABLES[split.table].schema if f.name not in {split.anchor, split.candidate, *_ADDED}]
    for side in SIDES:
        columns[f"{side}_program"] = [getattr(row, side).program_id for row in rows]
        columns[f"{side}_token"] = [getattr(row, side).token_id for row in rows]
        fields += [pa.field(f"{side}_program", pa.string()), pa.field(f"{side}_token", pa.string())]
    arrays = [
        pa.array(columns[f.name] if f.name in columns else [row.more.get(f.name) for row in rows], f.type)
        for f in fields
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def together(parts: Sequence[pa.Table], *keys: str) -> pa.Table:
    """The rows of parts that each are in the order of these columns, and of others within them, in that order."""
    rows = pa.concat_tables(parts)
    return rows if len(parts) == 1 else rows.sort_by([(key, "ascending") for key in keys])


def counted(rows: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    """How often the values of some columns come together."""
    groups = rows.group_by([*names]).aggregate([([], "count_all")])
    columns = (groups[name].to_pylist() for name in (*names, "count_all"))
    return Counter({tuple(values): n for *values, n in zip(*columns, strict=True)})


def hashes(*texts: Iterable[Any]) -> NDArray[np.int64]:
    """Numbers of texts, or of tuples of them, that differ where they do but for chance, and from process to process."""
    return np.fromiter(
        (hash(x.as_py() if isinstance(x, pa.Scalar) else x) for column in texts for x in column), np.int64
    )


def select(
    split: Split,
    rows: pa.Table,
    *,
    texts: Mapping[str, tuple[Texts, pa.ChunkedArray]],
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
        rows: the rows (:func:`row_table`).
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
    values = rows[split.value].to_numpy()
    if labels is None:
        wrong = not (np.isfinite(values) & (values > 0)).all()
        labels = assign_bins(values, scheme, row_ids=rows["row_id"].to_pylist() if wrong else None)
    rows = rows.append_column("bin", pa.array(labels, pa.int8()))
    rows = rows.append_column(
        "bin_scheme", pa.array([scheme], pa.string()).take(pa.array(np.zeros(len(rows), np.int8)))
    )
    facts = {
        **label_facts(values, labels, scheme),
        "cells": cell_counts(counted(rows, split.task, "bin")),
        "gpus": {gpu: n for (gpu,), n in sorted(counted(rows, "gpu").items())},
        "searches": len({*rows["search_id"].unique().to_pylist()} - {""}),
        **(_several_references(rows, split) if split.kind == "eval" else {}),
    }
    return Selection(
        split=split,
        rows=rows,
        texts=texts,
        members=Members(split, rows),
        variant=variant,
        origin=origin,
        scheme=scheme,
        parameters=parameters,
        counts={**facts, **counts},
    )


def by_program(split: Split, rows: pa.Table, source: Texts) -> dict[str, tuple[Texts, pa.ChunkedArray]]:
    """The text columns of these rows, from a source that knows texts by program id."""
    return {
        split.anchor: (OrNothing(source), rows["anchor_program"]),
        split.candidate: (source, rows["candidate_program"]),
    }


def _several_references(rows: pa.Table, split: Split) -> dict[str, Any]:
    """A fact to warn of: tasks with rows that were timed against more than one reference; nothing where there is none.

    Such rows stand in one cell of the table though their speedups have different denominators. The fact is
    ``{"several_references": {task: {reference program id: rows}}}``.
    """
    counts: dict[str, dict[str, int]] = {}
    for (problem, reference), n in sorted(counted(rows, split.task, "anchor_program").items()):
        counts.setdefault(problem, {})[reference] = n
    several = {task: found for task, found in counts.items() if len(found) > 1}
    return {"several_references": several} if several else {}


def pair_id(prefix: str, first: str, second: str) -> str:
    """Id of an ordered pair: first 32 hex digits of sha256 over a prefix and the two ids, separated by NUL."""
    return sha256_hex(f"{prefix}\0{first}\0{second}".encode())[:ID_LENGTH]


def cell_counts(
    cells: Iterable[tuple[str, int]] | Mapping[tuple[str, int], int], always: Iterable[str] = ()
) -> dict[str, list[int]]:
    """Rows per task and bin, eight counts each, from the task and bin of every row.

    Args:
        cells: task and bin of every row, or how many rows have them.
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
