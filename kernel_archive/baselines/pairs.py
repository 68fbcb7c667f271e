"""Load the pairs of programs that a baseline learns from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kernel_archive.archive.open import Archive
from kernel_archive.errors import DataError
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.asked import ProgramPairs, read_pairs
from kernel_archive.scoring.load import search_clusters
from kernel_archive.selection.definitions import load_definition
from kernel_archive.splits import SPLITS, SplitSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPairs(ProgramPairs):
    """Measured pairs of training searches."""

    #: Shape (n,), x (anchor time / candidate time).
    speedups: Floats = field(default_factory=lambda: np.empty(0))
    pair_types: tuple[str, ...] = ()  # n of ``seed``, ``parent_edit``, ``pair``
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
        definition = load_definition(split.name)
        kept = [
            builder not in definition.without_builders
            and (not definition.builders or builder in definition.builders)
            for builder in self.builders
        ]
        return self.take(np.flatnonzero(kept)) if any(kept) else self

    def same_pair_type(self, split: SplitSpec) -> NDArray[np.bool_]:
        """Return a mask, (n,): the pairs of the type of a split's rows; all where none is."""
        mask = np.asarray([each == split.pair_type for each in self.pair_types], dtype=bool)
        return mask if mask.any() else np.ones(len(self), dtype=bool)

    def comparable_rows(self, split: SplitSpec) -> NDArray[np.intp]:
        """Return positions of pairs made as the split's rows are, natural ones alone if any."""
        same_type = self.same_pair_type(split)
        if split.kind == "close":
            same_type &= np.abs(np.log2(self.speedups)) <= 1.0  # as far apart as the split's pairs
        natural = same_type & self.natural
        return np.flatnonzero(natural if natural.any() else same_type)


def load_training_pairs(archive: Archive) -> TrainingPairs:
    """Load the training pairs of an archive, sorted by row id.

    They come from ``train_pairs`` alone, the table cut from training searches and checked for
    leaks against every evaluation split.

    Raises:
        DataError: the archive has no training pairs.
    """
    spec = SPLITS["train"]
    if spec.table not in archive.manifest.tables:
        raise DataError(
            f"the archive in {archive.path} has no training pairs to learn from. Make them with: "
            f"kernel-archive {spec.command}"
        )
    rows, columns = read_pairs(archive, spec, "pair_type", spec.value, "search_id")
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
    clusters = search_clusters(archive)
    return TrainingPairs(
        **columns,
        speedups=np.asarray(rows[spec.value].to_numpy(), dtype=np.float64),
        pair_types=tuple(rows["pair_type"].to_pylist()),
        authors=tuple(clusters.get(search, search) for search in searches),
        builders=tuple(search.split("/")[0] for search in searches),
        natural=np.array([s in clusters for s in searches], dtype=bool),
    )
