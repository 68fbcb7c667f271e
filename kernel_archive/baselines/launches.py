"""Features of what programs launch, from the archive's table ``launches`` (dry runs, no GPU).

Every figure is for one timed case, as a base-2 logarithm where it is a size or a count, and is
averaged over the problem's cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.ids import program_id
from kernel_archive.problems import get_problem
from kernel_archive.scoring.controls import MULTIPROCESSORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Floats

# Rough costs, only to put calls on one scale: seconds of a launch, of an operator, bytes and
# floating-point operations a second, seconds of one trip of a loop.
_LAUNCH_S, _OPERATOR_S, _BYTES_S, _FLOPS_S, _TRIP_S = 4e-6, 3e-6, 3e12, 2e14, 4e-7
_CALLS: Final = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
#: What the launch with the most work adds, in the order of ``largest``.
_LARGEST: Final = 12
_MISSING: Final = -1.0
#: Columns that are features as logarithms, and those that are features as they are.
_LOGARITHMS: Final = (
    *("launches", "operators", "idle", "waves", "serial", "trips"),
    *("least_blocks", "most_blocks", "blocks", "kernels"),
)
_AS_THEY_ARE: Final = ("most_warps", "configurations", "with_dots")


def load_launch_features(archive: Archive) -> Mapping[tuple[str, str], Floats]:
    """Load features by program and problem; empty for an archive without dry runs."""
    if "launches" not in archive.tables:
        return {}
    rows = archive.sql(_CALLS, [MULTIPROCESSORS])
    programs, problems, cases, largest = (
        rows[name].to_pylist() for name in ("program_id", "problem", "case", "largest")
    )
    value = {n: np.asarray(rows[n], dtype=np.float64) for n in rows.column_names[3:-1]}
    work = [_least_work(*case) for case in zip(problems, cases, strict=True)]
    least_bytes, least_flops = np.array(work, dtype=np.float64).reshape(-1, 2).T
    seconds = (
        _LAUNCH_S * value["launches"]
        + _OPERATOR_S * value["operators"]
        + (value["operator_bytes"] + value["launch_bytes"]) / _BYTES_S
        + value["operator_flops"] / _FLOPS_S
    )
    shape = np.array([row or [None] * _LARGEST for row in largest], dtype=np.float64)
    features = np.column_stack(
        [
            *(np.log2(1.0 + value[name]) for name in _LOGARITHMS),
            *(value[name] for name in _AS_THEY_ARE),
            np.log2(1.0 + value["operator_bytes"] / least_bytes),
            np.log2(1.0 + value["operator_flops"] / least_flops),
            np.log2(1.0 + value["launch_bytes"] / least_bytes),
            np.log2(1.0 + least_bytes / np.maximum(1.0, value["blocks"])),
            np.log2(seconds + 1e-7),
            np.log2(seconds + _TRIP_S * value["serial"] + 1e-7),
            np.where(np.isnan(shape), _MISSING, np.log2(1.0 + shape)),
        ]
    )
    positions: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(programs, problems, strict=True)):
        positions.setdefault(key, []).append(row)
    return {key: features[rows_of].mean(axis=0) for key, rows_of in positions.items()}


def _least_work(problem: str, case: int) -> tuple[float, float]:
    """Return the least bytes and floating-point operations of a timed case, 1 where unknown."""
    cases = get_problem(problem).cases
    if case >= len(cases):
        return 1.0, 1.0
    work = cases[case].least_work
    return float(work.bytes_read + work.bytes_written), float(work.flops + 1)


def launch_matrix(
    features: Mapping[tuple[str, str], Floats], codes: Sequence[str], problems: Sequence[str]
) -> Floats:
    """Look features up for programs: shape (n, m), NaN where a program was not followed."""
    rows = [features.get((program_id(c), p)) for c, p in zip(codes, problems, strict=True)]
    width = len(next(iter(features.values()))) if features else 0
    return np.array([np.full(width, np.nan) if row is None else row for row in rows])
