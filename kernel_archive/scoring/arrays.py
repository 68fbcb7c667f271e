"""What the formulas share: draws of rows as weights, sums, and which scores tie.

A formula takes n rows and ``weights``, shape (n, D): how often each row counts in each of D draws.
It gives one value per draw, shape (D,). A draw is a column, so that running sums go over whole
rows of memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]

#: Scores tie below this relative difference: far above rounding, far below any that was meant.
TIE: Final = 1e-12
#: Absolute slack at the edge of a confidence bucket and in the distance to the mean bin.
EDGE: Final = 1e-9
#: Up to this many columns numpy's own accumulation down the rows is faster.
_FEW_COLUMNS: Final = 16


def row_sums(values: Floats) -> Floats:
    """Sum over the last axis in one fixed order, so that equal rows have equal sums."""
    total = values[..., 0].copy()
    for b in range(1, values.shape[-1]):
        total += values[..., b]
    return total


def group_ties(scores: Floats) -> NDArray[np.intp]:
    """Number the tie groups from 0 for the lowest, shape (n,): scores within rounding tie."""
    order = np.argsort(scores)
    ranked = scores[order]
    apart = np.diff(ranked) > TIE * np.maximum(np.abs(ranked[1:]), np.abs(ranked[:-1]))
    group = np.zeros(len(scores), dtype=np.intp)
    group[order[1:]] = np.cumsum(apart)
    return group


def product(left: Floats, right: Floats) -> Floats:
    """Multiply matrices of shapes (k, n) and (n, d), or (n,) and (n, d), without BLAS.

    BLAS splits such small products over threads and waits for the slowest, on a busy machine for
    ten times as long as one thread takes.
    """
    out: Floats = np.einsum("n,nd->d" if left.ndim == 1 else "kn,nd->kd", left, right)
    return out


def running(operation: np.ufunc, values: Floats) -> Floats:
    """Accumulate a sum or maximum down the rows, in place, faster than ``operation.accumulate``."""
    if values.shape[1] <= _FEW_COLUMNS:
        operation.accumulate(values, axis=0, out=values)
        return values
    for i in range(1, len(values)):
        operation(values[i - 1], values[i], out=values[i])
    return values
