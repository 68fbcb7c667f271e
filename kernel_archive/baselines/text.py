"""Nearest neighbours on the tokens of programs.

A pair is like the measured pairs whose two programs read like its own.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.baselines.features import ProgramParts
from kernel_archive.bins import N_BINS, SCHEMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kernel_archive.baselines.pairs import AskedPairs, ProgramPairs, TrainingPairs
    from kernel_archive.bins import Scheme

# Chosen by leaving one training search out at a time (CRPS of the search left out); the evaluation
# split was not read.
NEIGHBOURS: Final = 12
#: Similarity enters the weight of a neighbour with this power.
SHARPNESS: Final = 4.0
#: Standard deviation of a neighbour's speedup, in octaves.
WIDTH: Final = 1.0
#: Share of the uniform distribution.
SMOOTHING: Final = 0.05
#: Token pairs are hashed into so many columns; a fixed hash, so that no run differs.
_COLUMNS: Final = 1 << 14


def token_vectors(codes: Sequence[str]) -> NDArray[np.float32]:
    """Compute unit vectors of token pairs (with single tokens), weighted by rarity.

    Returns:
        float32, shape (n, columns): log(1 + count) x log(n / programs that have it), length 1.
    """
    bags: list[Counter[int]] = []
    for code in codes:
        tokens = ProgramParts.of(code).tokens
        grams = [*tokens, *(f"{a} {b}" for a, b in itertools.pairwise(tokens))]
        bags.append(
            Counter(zlib.crc32(gram.encode("utf-8", "surrogatepass")) % _COLUMNS for gram in grams)
        )
    seen: Counter[int] = Counter(column for bag in bags for column in bag)
    column_of = {column: i for i, column in enumerate(sorted(seen))}
    rarity = {column: math.log((1 + len(codes)) / (1 + n)) for column, n in seen.items()}
    vectors = np.zeros((len(codes), len(column_of)), dtype=np.float32)
    for i, bag in enumerate(bags):
        for column, n in bag.items():
            vectors[i, column_of[column]] = math.log1p(n) * rarity[column]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def _vectors(*pairs: ProgramPairs) -> tuple[NDArray[np.float32], dict[str, int]]:
    """Vectors of all programs of some pairs, and the row of each program."""
    codes = list(
        dict.fromkeys(code for some in pairs for code in (*some.anchors, *some.candidates))
    )
    return token_vectors(codes), {code: i for i, code in enumerate(codes)}


def _bin_masses(centre: NDArray[np.float64], scheme: Scheme) -> NDArray[np.float64]:
    """Mass of a normal distribution around each base-2 logarithm in every bin: shape (k, 8)."""
    edges = np.log2(np.asarray(SCHEMES[scheme].edges))
    z = (edges[None, :] - centre[:, None]) / (WIDTH * math.sqrt(2.0))
    below = 0.5 * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(z))
    bounds = np.column_stack([np.zeros(len(centre)), below, np.ones(len(centre))])
    return np.diff(bounds, axis=1)


def nearest(asked: AskedPairs, training: TrainingPairs) -> NDArray[np.float64]:
    """Forecast from the most similar training pairs of the same problem: shape (n, 8).

    Similarity of two pairs is the cosine of the anchors times that of the candidates. A problem
    without training pairs looks among all.
    """
    vectors, place = _vectors(training, asked)
    anchors = np.asarray([place[code] for code in training.anchors])
    candidates = np.asarray([place[code] for code in training.candidates])
    logs, names = training.log_speedups, np.asarray(training.problems)
    out = np.empty((len(asked), N_BINS))
    for i in range(len(asked)):
        among = np.flatnonzero(names == asked.problems[i])
        if not len(among):
            among = np.arange(len(training))
        # A program is compared once, however many pairs it is in; float64, so that ties are ties on
        # every machine.
        cosines = [
            _cosines(vectors, place[code], ids[among])
            for code, ids in ((asked.anchors[i], anchors), (asked.candidates[i], candidates))
        ]
        similarity = np.round(cosines[0] * cosines[1], 6)
        order = np.argsort(-similarity, kind="stable")[:NEIGHBOURS]
        weights = np.maximum(similarity[order], 1e-6) ** SHARPNESS
        masses = _bin_masses(logs[among[order]], asked.scheme)
        out[i] = (1.0 - SMOOTHING) * (weights[:, None] * masses).sum(
            axis=0
        ) / weights.sum() + SMOOTHING / N_BINS
    return out


def _cosines(vectors: NDArray[np.float32], one: int, many: NDArray[np.intp]) -> NDArray[np.float64]:
    distinct, back = np.unique(many, return_inverse=True)
    cosines = np.asarray(vectors[distinct] @ vectors[one], dtype=np.float64)
    return np.asarray(cosines[back])
