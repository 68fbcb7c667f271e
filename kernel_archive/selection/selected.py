"""Rows chosen for a split, and what follows from them: the table with its labels, its digest, its facts, and who is in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from kernel_archive.archive.manifest import SplitFacts
from kernel_archive.archive.open import Archive
from kernel_archive.archive.shards import digest_rows, write_table
from kernel_archive.bins import N_BINS, SCHEMES, Scheme, assign_bins, representatives
from kernel_archive.errors import Finding, printable
from kernel_archive.ids import CANARY, ID_LENGTH, logical_digest, program_id, sha256_hex, token_id
from kernel_archive.schema import TABLES
from kernel_archive.selection.texts import PART_ROWS
from kernel_archive.splits import EVALUATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kernel_archive.archive.manifest import Manifest
    from kernel_archive.selection.texts import ArchiveTexts
    from kernel_archive.splits import Split

Origin = Literal["selected", "published"]
#: Name of a split that is made by the shipped definition; any other is a variant.
CANONICAL: Final = "canonical"
#: The table of the rows of every evaluation split without their labels; its splits are called as the evaluation splits.
INPUTS: Final = "eval_inputs"
#: So many rows are named in a message; the rest is counted.
NAMED: Final = 10
#: Columns with the ids of both programs of a row, and of their near-duplicate classes.
IDS: Final = ("anchor_program", "anchor_token", "candidate_program", "candidate_token")
PROGRAMS: Final = IDS[::2]
#: What the check of leaks knows of a row of a split; ``pair_type`` is null but in training pairs, ``search_id`` empty where unknown.
MEMBER: Final = pa.schema([(name, pa.string()) for name in ("row_id", "problem", "search_id", "pair_type", *IDS)])


class Side(NamedTuple):
    """One program of a row: its ids, and the kernel that it is; ``None`` for a reference."""

    program_id: str
    token_id: str
    kernel_id: str | None


@dataclass(kw_only=True)
class Selection:
    """Rows chosen for a split, in their defined order.

    The texts are fetched when the table is read, part by part, so that memory does not grow with the archive.

    Attributes:
        split: the split.
        rows: every column but the canary, and the columns of :data:`IDS`; texts only where no source has them.
        source: texts of programs by their ids.
        variant: ``canonical``, or the name of a variant.
        origin: selected here, or published by others and kept.
        scheme: bin scheme of the labels.
        parameters: everything that the choice depended on.
        counts: facts of the choice.
    """

    split: Split
    rows: pa.Table
    source: ArchiveTexts | None
    variant: str
    origin: Origin
    scheme: Scheme
    parameters: dict[str, Any]
    counts: dict[str, Any]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def members(self) -> pa.Table:
        """The rows as the check of leaks sees them."""
        return members_of(self.split, self.rows)

    def parts(self) -> Iterator[pa.Table]:
        """The table in parts, exactly in the schema of its name."""
        schema = TABLES[self.split.table].schema
        block = PART_ROWS if self.source is None else self.source.block_rows
        for start in range(0, len(self), block):
            rows = self.rows.slice(start, block)
            if self.source is not None:
                for name, key in zip((self.split.anchor, self.split.candidate), PROGRAMS, strict=True):
                    rows = rows.append_column(name, self.source.fetch(rows[key].to_pylist()))
            for at in range(0, rows.num_rows, PART_ROWS):
                part = rows.slice(at, PART_ROWS)
                part = part.append_column("canary", pa.array([CANARY] * part.num_rows, pa.string()))
                yield part.select(schema.names).cast(schema)

    @cached_property
    def table(self) -> pa.Table:
        """The whole table in memory, exactly in the schema of its name."""
        return pa.concat_tables([*self.parts()] or [TABLES[self.split.table].schema.empty_table()])

    @cached_property
    def digest(self) -> str:
        """Logical digest over the rows; the writer of the table, who finds it on the way, sets it."""
        return logical_digest([row for part in self.parts() for row in digest_rows(self.split.table, part)])

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


def split_row(split: Split, anchor: Side, candidate: Side, value: float, **columns: Any) -> dict[str, Any]:
    """One chosen row: the columns of its table but texts, label and canary, and the ids of both programs.

    Args:
        split: the split.
        anchor: the program that the candidate is compared with.
        candidate: the program whose speedup is forecast.
        value: anchor time / candidate time, x.
        columns: the other columns; ``problem`` for the one that the split calls so in its own way.
    """
    return {
        **columns,
        split.task: columns["problem"],
        split.value: value,
        split.kernel: candidate.kernel_id,
        "parent_kernel_id": anchor.kernel_id,
        "anchor_program_id": anchor.program_id,
        **dict(zip(IDS, (*anchor[:2], *candidate[:2]), strict=True)),
    }


def row_table(split: Split, rows: Sequence[dict[str, Any]], **more: pa.DataType) -> pa.Table:
    """Rows (:func:`split_row`) as a table, with further columns of these types."""
    aside = {split.anchor, split.candidate, "bin", "bin_scheme", "canary"}
    fields = [field for field in TABLES[split.table].schema if field.name not in aside]
    return pa.Table.from_pylist(
        rows, schema=pa.schema([*fields, *((name, pa.string()) for name in IDS), *more.items()])
    )


def with_ids(split: Split, rows: pa.Table, tokens: dict[str, str] | None = None) -> pa.Table:
    """Rows of a split's table with the ids of their own texts (:data:`IDS`): what it holds, whatever ids it states.

    ``tokens`` are token ids by program id, where known already; what is computed is added.
    """
    known = {} if tokens is None else tokens
    found: list[pa.Array] = []
    for name in (split.anchor, split.candidate):
        texts = rows[name].combine_chunks().dictionary_encode()
        ids = []
        for code in texts.dictionary.to_pylist():
            program = program_id(code)
            if program not in known:
                known[program] = token_id(code)
            ids.append((program, known[program]))
        found += [pa.array([pair[i] for pair in ids], pa.string()).take(texts.indices) for i in (0, 1)]
    for name, column in zip(IDS, found, strict=True):
        rows = rows.append_column(name, column)
    return rows


def members_of(split: Split, rows: pa.Table) -> pa.Table:
    """What the check of leaks knows of rows (:func:`row_table`, :func:`with_ids`): :data:`MEMBER`."""
    kinds = rows["pair_type"] if split.kind == "train" else pa.nulls(len(rows), pa.string())
    columns = [rows["row_id"], rows[split.task], rows["search_id"], kinds, *(rows[name] for name in IDS)]
    return pa.table(columns, names=MEMBER.names).cast(MEMBER)


def together(parts: Sequence[pa.Table], *keys: str) -> pa.Table:
    """The rows of parts that each are in the order of these columns, and of others within them, in that order."""
    rows = pa.concat_tables(parts)
    return rows if len(parts) == 1 else rows.sort_by([(key, "ascending") for key in keys])


def counted(rows: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    """How often the values of some columns come together."""
    groups = rows.group_by([*names]).aggregate([([], "count_all")])
    columns = (groups[name].to_pylist() for name in (*names, "count_all"))
    return Counter({tuple(values): n for *values, n in zip(*columns, strict=True)})


def select(
    split: Split,
    rows: pa.Table,
    *,
    scheme: Scheme,
    variant: str,
    parameters: dict[str, Any],
    counts: dict[str, Any],
    source: ArchiveTexts | None = None,
    origin: Origin = "selected",
    labels: NDArray[np.int8] | None = None,
) -> Selection:
    """The selection of these rows, in their order; what is not told here is an attribute of :class:`Selection`.

    ``counts`` come beside the facts that follow from the rows; ``labels`` are given where they are not made from the values.

    Raises:
        DataError: a value is not finite and above 0.
    """
    values = rows[split.value].to_numpy()
    if labels is None:
        wrong = not (np.isfinite(values) & (values > 0)).all()
        labels = assign_bins(values, scheme, row_ids=rows["row_id"].to_pylist() if wrong else None)
    rows = rows.append_column("bin", pa.array(labels, pa.int8()))
    rows = rows.append_column("bin_scheme", pa.repeat(scheme, len(rows)))
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
        source=source,
        variant=variant,
        origin=origin,
        scheme=scheme,
        parameters=parameters,
        counts={**facts, **counts},
    )


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


def frame(rows: pa.Table) -> pl.DataFrame:
    """An Arrow table as a Polars data frame."""
    return cast("pl.DataFrame", pl.from_arrow(rows))


def named(rows: Sequence[str], length: int = 200) -> str:
    """The first ones of some rows for a message, each up to a length, and how many more there are."""
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(printable(row, length) for row in rows[:NAMED]) + more


def pair_id(prefix: str, first: str, second: str) -> str:
    """Id of an ordered pair: first 32 hex digits of sha256 over a prefix and the two ids, separated by NUL."""
    return sha256_hex(f"{prefix}\0{first}\0{second}".encode())[:ID_LENGTH]


def cell_counts(
    cells: Iterable[tuple[str, int]] | Mapping[tuple[str, int], int], always: Iterable[str] = ()
) -> dict[str, list[int]]:
    """Rows per task and bin, eight counts each, from the task and bin of every row.

    Tasks that are always in it stand there also where they have no row.
    """
    found = Counter(cells)
    names = sorted({*always, *(task for task, _ in found)})
    return {task: [found[task, b] for b in range(1, N_BINS + 1)] for task in names}


def label_facts(speedups: NDArray[np.float64], bins: NDArray[np.int8], scheme: Scheme) -> dict[str, Any]:
    """Representatives of the end bins, rows per bin, and the rows that the two schemes label differently."""
    m = representatives(speedups, bins, scheme)
    by_scheme = {name: assign_bins(speedups, name) for name in SCHEMES}
    return {
        "m_1": float(m[0]),
        "m_8": float(m[-1]),
        "bins": np.bincount(bins, minlength=N_BINS + 1)[1:].tolist(),
        "label_differences": int(np.count_nonzero(by_scheme["paper"] != by_scheme["released"])),
    }


def _inputs(archive: Archive) -> dict[str, pa.Table]:
    """What each split of the table holds: the columns that it has in common with the evaluation split."""
    names = TABLES[INPUTS].schema.names
    return {
        name: archive.arrow(split.table, columns=names)
        for name, split in EVALUATIONS.items()
        if split.table in archive.manifest.tables
    }


def with_inputs(directory: Path, manifest: Manifest) -> Manifest:
    """Write the rows of the evaluation splits that a manifest names without their labels; the manifest with that table."""
    parts = _inputs(Archive(directory, manifest))
    if not parts:
        return manifest
    tables = {**manifest.tables, INPUTS: write_table(directory, INPUTS, parts)}
    ordered = {name: tables[name] for name in TABLES if name in tables}
    return msgspec.structs.replace(manifest, tables=ordered)


def check_inputs(archive: Archive) -> Iterator[Finding]:
    """Whether :data:`INPUTS` holds exactly the rows of the evaluation splits, in their order."""
    held = archive.manifest.tables.get(INPUTS)
    for name, rows in _inputs(archive).items():
        if held is None or name not in held.splits:
            message = "the evaluation split has no rows without labels"
            yield Finding(code="inputs-missing", message=message, field=name, severity="warning", fix="Make it again")
        elif not archive.arrow(INPUTS, name).equals(rows.cast(TABLES[INPUTS].schema)):
            message = "the rows without labels are not those of the evaluation split"
            yield Finding(code="inputs-differ", message=message, field=f"{INPUTS}.{name}", fix="Make the split again")
