"""Load the pairs of programs that a split asks about, without their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kernel_archive.archive.open import Archive
from kernel_archive.bins import Scheme, checked_scheme
from kernel_archive.gpus import Gpu
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.split import forecast_split, split_facts
from kernel_archive.splits import SplitSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPairs:
    """Pairs of an anchor (the reference, or the parent) and a candidate; none by default."""

    problems: tuple[str, ...] = ()  # n problem ids
    gpus: tuple[str, ...] = ()  # n GPU names
    anchors: tuple[str, ...] = ()  # n programs
    candidates: tuple[str, ...] = ()  # n programs
    row_ids: tuple[str, ...] = ()  # n names
    #: Facts of GPUs that the archive states.
    stated_gpus: Mapping[str, Gpu] = field(default_factory=dict)
    #: (program id, problem, GPU) -> features of its dry run, for baselines that ask for them.
    launch_features: Mapping[tuple[str, str, str], Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.problems)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Self:
        """Select pairs, in this order."""
        columns: dict[str, Any] = {}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                columns[name] = values[rows]
            elif isinstance(values, tuple):  # all else holds for all pairs at once
                columns[name] = tuple(values[i] for i in rows)
        return replace(self, **columns)

    def joined(self, more: ProgramPairs) -> ProgramPairs:
        """Append more pairs; labels are left out."""
        columns = ("problems", "gpus", "anchors", "candidates")
        both = {name: getattr(self, name) + getattr(more, name) for name in columns}
        features = {**self.launch_features, **more.launch_features}
        return ProgramPairs(**both, stated_gpus=self.stated_gpus, launch_features=features)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedPairs(ProgramPairs):
    """The rows of a split, to be forecast."""

    split: SplitSpec  # which split
    scheme: Scheme  # bin scheme of its labels; the labels themselves are not here
    #: n of GPU and speedup on it that are shown, or ``None``.
    known: tuple[tuple[str, float] | None, ...]


def load_asked_pairs(archive: Archive, split: str) -> AskedPairs:
    """Load the rows of a split, without their labels.

    Raises:
        UsageError: the split's name is wrong, or the archive has no such split yet.
    """
    spec = forecast_split(split)
    known = ("known_gpu", spec.known) if spec.known else ()
    rows, columns = read_pairs(archive, spec, *known)
    shown = zip(*(rows[name].to_pylist() for name in known), strict=True)
    labels = checked_scheme(split_facts(archive, spec).scheme)
    columns["known"] = tuple(shown) if known else (None,) * rows.num_rows
    return AskedPairs(split=spec, scheme=labels, **columns)


def read_pairs(archive: Archive, spec: SplitSpec, *more: str) -> tuple[pa.Table, dict[str, Any]]:
    """Read rows, and what forecasters see of them: ids, problems, GPUs and both programs."""
    columns = {"row_ids": "row_id", "problems": spec.problem, "gpus": "gpu"}
    columns |= {"anchors": spec.anchor, "candidates": spec.candidate}
    rows = archive.arrow(spec.table, columns=[*columns.values(), *more])
    if spec.kind == "train":
        rows = rows.sort_by("row_id")
    texts = {field: tuple(rows[column].to_pylist()) for field, column in columns.items()}
    return rows, {**texts, "stated_gpus": archive.stated_gpus}
