"""Load the pairs of programs that a baseline forecasts, and those that it learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kernel_archive.archive.open import Archive
from kernel_archive.bins import DEFAULT_SCHEME, Scheme, checked_scheme, outcome_speedups
from kernel_archive.errors import ArchiveMismatchError, DataError
from kernel_archive.gpus import Gpu
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.load import search_clusters
from kernel_archive.scoring.replay import load_worlds, replay_texts
from kernel_archive.scoring.split import forecast_split, split_facts, table_rows
from kernel_archive.selection.definitions import load_definition
from kernel_archive.splits import REPLAY, SPLITS, SplitSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramPairs:
    """Pairs of an anchor (the reference, or the parent) and a candidate; none by default."""

    problems: tuple[str, ...] = ()  # n problem ids
    gpus: tuple[str, ...] = ()  # n GPU names
    anchors: tuple[str, ...] = ()  # n programs
    candidates: tuple[str, ...] = ()  # n programs
    row_ids: tuple[str, ...] = ()  # n names
    #: Facts of GPUs that this package does not know.
    stated_gpus: Mapping[str, Gpu] = field(default_factory=dict)
    #: (program id, problem, GPU) -> features of its dry run, for baselines that ask for them.
    launches: Mapping[tuple[str, str, str], Floats] = field(default_factory=dict)

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
        launches = {**self.launches, **more.launches}
        return ProgramPairs(**both, stated_gpus=self.stated_gpus, launches=launches)


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedPairs(ProgramPairs):
    """The rows of a split, to be forecast."""

    split: SplitSpec  # which split
    scheme: Scheme  # bin scheme of its labels; the labels themselves are not here
    #: n of GPU and speedup on it that are shown, or ``None``.
    known: tuple[tuple[str, float] | None, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPairs(ProgramPairs):
    """Measured pairs of training searches."""

    #: Shape (n,), x (anchor time / candidate time).
    speedups: Floats = field(default_factory=lambda: np.empty(0))
    kinds: tuple[str, ...] = ()  # n of ``seed``, ``parent_edit``, ``pair``
    #: n authors of the candidate; its search where the data name none.
    authors: tuple[str, ...] = ()
    builders: tuple[str, ...] = ()  # n builders of the candidate's search
    #: Shape (n,), whether the candidate was written whole, by no template.
    natural: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))

    def of_builders(self, split: SplitSpec) -> TrainingPairs:
        """Select the pairs of the builders that a split asks about; all if no pair is.

        Programs of searches, whose authors all wanted speed, are of another kind than those with
        assigned speeds: what orders the ones misleads about the others.
        """
        rule = load_definition(split.name)
        kept = [
            builder not in rule.without_builders and (not rule.builders or builder in rule.builders)
            for builder in self.builders
        ]
        return self.take(np.flatnonzero(kept)) if any(kept) else self

    def same_pair_type(self, split: SplitSpec) -> NDArray[np.bool_]:
        """Say which pairs are made as the rows of a split are; all of them where none is."""
        mask = np.asarray([kind == split.pair_type for kind in self.kinds], dtype=bool)
        return mask if mask.any() else np.ones(len(self), dtype=bool)

    def comparable(self, split: SplitSpec) -> NDArray[np.intp]:
        """Return positions of pairs made as the split's rows are, natural ones alone if any."""
        same_type = self.same_pair_type(split)
        if split.kind == "close":
            same_type &= np.abs(np.log2(self.speedups)) <= 1.0  # as far apart as the split's pairs
        natural = same_type & self.natural
        return np.flatnonzero(natural if natural.any() else same_type)


def load_asked_pairs(archive: Archive, split: str) -> AskedPairs:
    """Load the rows of a split, without their labels.

    Raises:
        UsageError: the split's name is wrong, or the archive has no such split yet.
    """
    spec = forecast_split(split)
    if spec.name == REPLAY.name:  # the programs of recorded searches, against their references
        worlds = load_worlds(archive)
        anchors, candidates = zip(*replay_texts(archive, worlds), strict=True)
        return AskedPairs(
            split=REPLAY,
            scheme=DEFAULT_SCHEME,
            row_ids=worlds.split.row_ids,
            problems=worlds.split.tasks,
            gpus=worlds.gpus,
            anchors=anchors,
            candidates=candidates,
            known=(None,) * len(candidates),
            stated_gpus=archive.stated_gpus,
        )
    known = ("known_gpu", spec.known) if spec.known else ()
    rows, columns = _read_rows(archive, spec, *known)
    shown = zip(*(rows[name].to_pylist() for name in known), strict=True)
    labels = checked_scheme(split_facts(archive, spec).scheme)
    columns["known"] = tuple(shown) if known else (None,) * rows.num_rows
    return AskedPairs(split=spec, scheme=labels, **columns)


def _read_rows(archive: Archive, spec: SplitSpec, *more: str) -> tuple[pa.Table, dict[str, Any]]:
    """Read rows, and what forecasters see of them: ids, problems, GPUs and both programs."""
    columns = {"row_ids": "row_id", "problems": spec.problem, "gpus": "gpu"}
    columns |= {"anchors": spec.anchor, "candidates": spec.candidate}
    rows = archive.arrow(spec.table, columns=[*columns.values(), *more])
    if spec.kind == "train":
        rows = rows.sort_by("row_id")
    texts = {field: tuple(rows[column].to_pylist()) for field, column in columns.items()}
    return rows, {**texts, "stated_gpus": archive.stated_gpus}


def load_training_pairs(archive: Archive) -> TrainingPairs:
    """Load the training pairs of an archive, sorted by row id.

    They come from ``train_pairs`` alone, the table cut from training searches and checked for
    leaks against every evaluation split.

    Raises:
        DataError: the archive has no training pairs.
        ArchiveMismatchError: a pair is of a search that is not a training search.
    """
    spec = SPLITS["train"]
    if spec.table not in archive.manifest.tables:
        raise DataError(
            f"the archive in {archive.path} has no training pairs to learn from. Make them with: "
            f"kernel-archive {spec.command}"
        )
    rows, columns = _read_rows(archive, spec, "pair_type", spec.value, "search_id")
    if rows.num_rows == 0:
        facts = archive.manifest.splits.get(spec.table)
        reason = (facts and facts.why_no_pairs()) or (
            "no search has the role 'training'. Build it with a recipe that gives one"
        )
        raise DataError(
            f"the archive in {archive.path} holds no training pair: {reason}. Or use the baseline "
            "uniform, which does not learn"
        )
    searches = rows["search_id"].to_pylist()
    roles = table_rows(archive, "searches", "search_id", "role")
    wrong = {search for search, role in roles if role != "training"} & set(searches)
    if wrong:
        raise ArchiveMismatchError(
            f"train_pairs of {archive.path} holds pairs of search {min(wrong)}, which is not a "
            "training search. Build the archive again, then: kernel-archive validate"
        )
    clusters = search_clusters(archive)
    return TrainingPairs(
        **columns,
        speedups=np.asarray(rows[spec.value].to_numpy(), dtype=np.float64),
        kinds=tuple(rows["pair_type"].to_pylist()),
        authors=tuple(clusters.get(search, search) for search in searches),
        builders=tuple(search.split("/")[0] for search in searches),
        natural=np.array([s in clusters for s in searches], dtype=bool),
    )


def load_outcomes(archive: Archive) -> TrainingPairs:
    """Load which programs of training searches passed and which failed, without their texts."""
    roles = dict(table_rows(archive, "searches", "search_id", "role"))
    columns = ("problem", "search_id")
    rows = [(*row, True) for row in table_rows(archive, "kernels", *columns)]
    failures = table_rows(archive, "failures", *columns, "outcome")
    rows += [(*row, False) for *row, outcome in failures if outcome != "infrastructure_failure"]
    kept = [(problem, passes) for problem, search, passes in rows if roles[search] == "training"]
    problems, passes = zip(*kept, strict=True) if kept else ((), ())
    return TrainingPairs(problems=problems, speedups=outcome_speedups(passes))
