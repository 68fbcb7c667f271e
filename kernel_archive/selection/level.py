"""Levelling a split.

Authors have habits, and with few chains of them a quantity that can be counted without
understanding (loops, branches, names of types) may go with the speedup in a task by chance. As with
a matched sample in any experiment, of the kernels that a cell could hold those are taken that break
such a relation. Cells keep their sizes, so that no label is more likely than before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

#: An exchange must lower the penalty by more than this: below it is rounding.
_LEAST_GAIN: Final = 1e-6
#: So many exchanges are weighed at a time.
_TOGETHER: Final = 20_000


def level(
    quantities: NDArray[np.float64],
    speedups: NDArray[np.float64],
    cells: NDArray[np.intp],
    taken: NDArray[np.bool_],
    *,
    limit: float,
    fits: Callable[[int, Sequence[int]], bool],
) -> NDArray[np.bool_]:
    """Exchange rows of one task while that lowers correlations of quantities with the speedup.

    A quantity counts by its ranks, the speedup by its ranks and as it is. Each time the one
    exchange is made that lowers the sum of squares of what the correlations have above the limit
    the most; of equal ones the first. Ranks are those among all kernels of the task, so that an
    exchange changes a few sums only.

    Args:
        quantities: shape (n, q), of every kernel that a cell could hold.
        speedups: shape (n,), x.
        cells: shape (n,), number of the cell of each kernel.
        taken: shape (n,), the rows to begin with.
        limit: correlation, either way, that is let be.
        fits: whether a kernel may stand beside these others of its cell.

    Returns:
        The rows, shape (n,), as many of every cell as before.
    """
    x = _ranks(quantities)
    # The speedup by its rank, and as it is: the second asks for the few fastest, which the first
    # hardly sees.
    targets = [_ranks(speedups[:, None]), _scaled(speedups[:, None])]
    columns = np.concatenate(
        [x, x * x, *(part for y in targets for part in (x * y, y, y * y))], axis=1
    )
    n, q = int(taken.sum()), x.shape[1]
    chosen = taken.copy()

    def penalty(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        sx, sxx = sums[..., :q], sums[..., q : 2 * q]
        above = np.zeros(sums.shape[:-1])
        for i in range(len(targets)):
            of = sums[..., 2 * q + i * (q + 2) :]
            sxy, sy, syy = of[..., :q], of[..., q, None], of[..., q + 1, None]
            spread = np.maximum(sxx - sx * sx / n, 0.0) * np.maximum(syy - sy * sy / n, 0.0)
            found = (sxy - sx * sy / n) / np.sqrt(np.where(spread > 0, spread, np.inf))
            above += (np.maximum(np.abs(found) - limit, 0.0) ** 2).sum(-1)
        return above

    def beside(comes: int, goes: int) -> list[int]:
        return [i for i in np.flatnonzero(chosen & (cells == cells[comes])).tolist() if i != goes]

    # Every exchange lowers the penalty, so that none comes back; the bound is for the time it may
    # take.
    for _ in range(n):
        sums = columns[chosen].sum(0)
        waiting, held = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        at = np.argwhere(cells[waiting, None] == cells[held])
        pairs = np.stack([waiting[at[:, 0]], held[at[:, 1]]], axis=1)
        if not len(pairs):
            break
        parts = (pairs[i : i + _TOGETHER] for i in range(0, len(pairs), _TOGETHER))
        after = np.concatenate(
            [penalty(sums + columns[part[:, 0]] - columns[part[:, 1]]) for part in parts]
        )
        order = np.argsort(after, kind="stable")
        better = map(np.ndarray.tolist, pairs[order[after[order] < penalty(sums) - _LEAST_GAIN]])
        exchange = next((pair for pair in better if fits(pair[0], beside(*pair))), None)
        if exchange is None:
            break
        comes, goes = exchange
        chosen[comes], chosen[goes] = True, False
    return chosen


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values centred and scaled to about one; zeros where they are all the same."""
    spread = np.ptp(values) if len(values) else 0.0
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks of every column, ties by their mean, centred and scaled to about one."""
    found = pl.from_numpy(values).select(pl.all().rank("average")).to_numpy().astype(np.float64)
    middle, n = (len(values) + 1) / 2, max(len(values), 1)
    return (found - middle) / n
