"""A model that reads the text: ridge regression on hashed pairs of tokens.

For an evaluation split it learns which tokens go with programs that are faster than the others of their problem; for
discovery pairs, which tokens an edit brings and takes away. It orders; :mod:`kernel_archive.forecasters.spreading` makes
probabilities of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.forecasters.nearest import token_vectors
from kernel_archive.forecasters.spreading import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernel_archive.forecasters.pairs import AskedPairs, ProgramPairs, TrainingPairs

    Floats = NDArray[np.float64]

#: Weight of the penalty. Between 1 and 10 the order of problems left out is found equally well (training rows alone).
RIDGE: Final = 3.0


def _centred(values: Floats, names: tuple[str, ...]) -> Floats:
    """Less the mean of the rows of the same name."""
    _, groups = np.unique(np.asarray(names), return_inverse=True)
    return np.asarray(values - (np.bincount(groups, weights=values) / np.bincount(groups))[groups])


def text(asked: AskedPairs, training: TrainingPairs) -> Floats:
    """Forecasts of the text model: shape (n, 8)."""
    edits = asked.split.kind == "discovery"
    every = [*training.anchors, *training.candidates, *asked.anchors, *asked.candidates]
    codes = list(dict.fromkeys(every))
    place = {code: i for i, code in enumerate(codes)}
    vectors = token_vectors(codes)

    def seen(pairs: ProgramPairs) -> NDArray[np.float32]:
        candidates = vectors[[place[code] for code in pairs.candidates]]
        return candidates - vectors[[place[code] for code in pairs.anchors]] if edits else candidates

    def ranker(known: TrainingPairs, wanted: ProgramPairs) -> Floats:
        known = known.take(np.flatnonzero(known.native(asked.split)))
        features = seen(known)
        logs = known.log_speedups
        aims = logs - logs.mean() if edits else _centred(logs, known.problems)
        kernel = np.asarray(features @ features.T, dtype=np.float64)
        kernel[np.diag_indices(len(kernel))] += RIDGE
        weights: Floats = features.T.astype(np.float64) @ np.linalg.solve(kernel, aims)
        scores: Floats = seen(wanted).astype(np.float64) @ weights
        return np.round(scores, 6)

    return spread(ranker, asked, training)
