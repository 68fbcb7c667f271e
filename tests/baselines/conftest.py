"""Pairs of programs that are numbers."""

import numpy as np
import pytest

from kernel_archive.baselines.pairs import TrainingPairs
from kernel_archive.scoring.asked import AskedPairs
from kernel_archive.splits import SPLITS


def shown(values, problems):
    """Pairs whose candidates are their own number."""
    n = len(values)
    return {
        "problems": tuple(problems),
        "gpus": ("H200",) * n,
        "anchors": ("reference",) * n,
        "candidates": tuple(str(float(value)) for value in values),
        "row_ids": tuple(map(str, range(n))),
    }


@pytest.fixture(scope="session")
def training_pairs():
    """Makes training pairs of speedups and problems."""

    def make(speedups, problems, *, natural=None, pair_types="seed", authors=None, builders=None):
        n = len(speedups)
        return TrainingPairs(
            **shown(speedups, problems),
            speedups=np.asarray(speedups, dtype=float),
            pair_types=(pair_types,) * n if isinstance(pair_types, str) else pair_types,
            authors=tuple(authors or problems),
            builders=tuple(builders or ["mine"] * n),
            natural=np.zeros(n, bool) if natural is None else np.asarray(natural),
        )

    return make


@pytest.fixture(scope="session")
def asked_pairs():
    """Makes rows of a split whose candidates are scores."""

    def make(scores, problems, split="eval"):
        return AskedPairs(
            split=SPLITS[split],
            scheme="paper",
            known=(None,) * len(scores),
            **shown(scores, problems),
        )

    return make
