"""Which candidates a search would measure: rules that turn bin forecasts into an order, and one that says "not sure".

The open ends count as one octave, so that their centres are the representatives of a scheme without rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from kernel_archive.bins import DEFAULT_SCHEME, SCHEMES, Scheme, representatives

if TYPE_CHECKING:
    from kernel_archive.scoring.arrays import Floats

#: What candidates are ranked by: the speedup that is expected, or the probability of beating the best so far.
Rank = Literal["expected", "beat"]


def expected_speedups(probabilities: Floats, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Expected speedup of every forecast, x: shape (n,) of probabilities of shape (n, 8)."""
    return np.asarray(probabilities @ representatives([], [], scheme))


def chance_of_beating(probabilities: Floats, best: float, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """Probability of a speedup above ``best``, x: shape (n,). Inside a bin, octaves are alike.

    >>> chance_of_beating(np.array([[0, 0, 0, 0, 0, 0, 0.5, 0.5]]), 2.0), chance_of_beating(np.eye(8)[6:], 2**1.5)
    (array([1.]), array([0.5, 1. ]))
    """
    edges = np.log2(SCHEMES[scheme].edges)
    bounds = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    above = np.clip((bounds[1:] - np.log2(best)) / np.diff(bounds), 0.0, 1.0)
    return np.asarray(probabilities @ above)


def entropy(probabilities: Floats) -> Floats:
    """Uncertainty of every forecast, bits, 0 to 3: shape (n,)."""
    p = np.asarray(probabilities, dtype=np.float64)
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(-(p * logs).sum(axis=-1)) + 0.0


def rank_scores(probabilities: Floats, rank: Rank, best: float | None, scheme: Scheme = DEFAULT_SCHEME) -> Floats:
    """What candidates are ordered by, larger first: shape (n,).

    A chance of beating the best that several share (none beats the end of the scale) is told apart by the expected
    speedup, whose share of the score is too small to change any other order that matters.
    """
    expected = expected_speedups(probabilities, scheme)
    if rank == "expected" or best is None:
        return expected
    return chance_of_beating(probabilities, best, scheme) + 1e-6 * expected
