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
    "launches",
    "operators",
    "idle",
    "waves",
    "serial",
    "trips",
    "least_blocks",
    "most_blocks",
    "blocks",
    "kernels",
)
_AS_THEY_ARE: Final = ("most_warps", "configurations", "with_dots")


def load_launch_features(archive: Archive) -> Mapping[tuple[str, str], Floats]:
    """Load features by program and problem; empty for an archive without dry runs."""
    if "launches" not in archive.tables:
        return {}
    rows = archive.sql(_CALLS, [MULTIPROCESSORS]).to_pylist()
    by_program: dict[tuple[str, str], list[Floats]] = {}
    for row in rows:
        by_program.setdefault((row["program_id"], row["problem"]), []).append(_case_features(row))
    return {key: np.mean(cases, axis=0) for key, cases in by_program.items()}


def _log(value: float) -> float:
    return float(np.log2(1.0 + value))


def _case_features(row: dict[str, object]) -> Floats:
    values = {name: value for name, value in row.items() if isinstance(value, (int, float))}
    cases = get_problem(str(row["problem"])).cases
    index = int(values["case"])
    least_bytes, least_flops = 1.0, 1.0
    if index < len(cases):
        work = cases[index].least_work
        least_bytes = float(work.bytes_read + work.bytes_written)
        least_flops = float(work.flops + 1)
    seconds = (
        _LAUNCH_S * values["launches"]
        + _OPERATOR_S * values["operators"]
        + (values["operator_bytes"] + values["launch_bytes"]) / _BYTES_S
        + values["operator_flops"] / _FLOPS_S
    )
    largest = row["largest"] if isinstance(row["largest"], list) else [None] * _LARGEST
    shape = [_MISSING if value is None else _log(float(value)) for value in largest]
    return np.array(
        [
            *(_log(values[name]) for name in _LOGARITHMS),
            *(values[name] for name in _AS_THEY_ARE),
            _log(values["operator_bytes"] / least_bytes),
            _log(values["operator_flops"] / least_flops),
            _log(values["launch_bytes"] / least_bytes),
            _log(least_bytes / max(1.0, values["blocks"])),
            np.log2(seconds + 1e-7),
            np.log2(seconds + _TRIP_S * values["serial"] + 1e-7),
            *shape,
        ]
    )


def launch_matrix(
    features: Mapping[tuple[str, str], Floats], codes: Sequence[str], problems: Sequence[str]
) -> Floats:
    """Look features up for programs: shape (n, m), NaN where a program was not followed."""
    rows = [features.get((program_id(c), p)) for c, p in zip(codes, problems, strict=True)]
    width = len(next(iter(features.values()))) if features else 0
    return np.array([np.full(width, np.nan) if row is None else row for row in rows])
