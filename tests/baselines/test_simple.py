"""Forecasts that read no program."""

import numpy as np
import pytest

from kernel_archive.baselines import registry as simple
from kernel_archive.baselines.pairs import AskedPairs, TrainingPairs
from kernel_archive.splits import SPLITS


def target(problems, scheme="paper", split="eval"):
    """Rows of these problems."""
    n = len(problems)
    return AskedPairs(
        split=SPLITS[split],
        scheme=scheme,
        row_ids=tuple(map(str, range(n))),
        problems=tuple(problems),
        gpus=("H200",) * n,
        anchors=("a",) * n,
        candidates=("b",) * n,
    )


def training(rows):
    """Pairs from (problem, kind, speedup)."""
    n = len(rows)
    return TrainingPairs(
        problems=tuple(r[0] for r in rows),
        gpus=("H200",) * n,
        anchors=("a",) * n,
        candidates=tuple(f"c{i}" for i in range(n)),
        row_ids=tuple(map(str, range(n))),
        speedups=np.array([r[2] for r in rows]),
        kinds=tuple(r[1] for r in rows),
        searches=("s",) * n,
        natural=np.zeros(n, bool),
    )


def test_prior_is_the_smoothed_frequency_of_native_pairs():
    """Worked by hand: two seed pairs of p in bin 5, one of q in bin 8; the parent edit does not
    count.
    """
    pairs = training(
        [("p", "seed", 1.2), ("p", "seed", 1.3), ("q", "seed", 9.0), ("p", "parent_edit", 0.1)]
    )
    p, q, unknown = simple.prior(target(["p", "q", "r"]), pairs)
    everything = (np.array([0, 0, 0, 0, 2, 0, 0, 1]) + 1) / 11
    assert p == pytest.approx((np.array([0, 0, 0, 0, 2, 0, 0, 0]) + 4 * everything) / 6)
    assert q == pytest.approx((np.array([0, 0, 0, 0, 0, 0, 0, 1]) + 4 * everything) / 5)
    assert unknown == pytest.approx(everything)


def test_prior_for_discovery_counts_parent_edits():
    """The anchor of a discovery row is a parent, so parent edits are its like."""
    pairs = training([("p", "seed", 9.0), ("p", "parent_edit", 0.1)])
    assert simple.prior(target(["p"], split="discovery"), pairs)[0].argmax() == 0
