"""Features of what programs launch, from the archive's table ``launches`` (dry runs, no GPU).

Every figure is for one timed case, as a base-2 logarithm where it is a size or a count
(``launches.sql``), and is averaged over the problem's cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_archive.ids import program_id
from kernel_archive.problems import PROBLEMS
from kernel_archive.scoring.cues import MULTIPROCESSORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.arrays import Floats

_FEATURES: Final = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def load_launch_features(archive: Archive) -> Mapping[tuple[str, str], Floats]:
    """Load features by program and problem; empty for an archive without dry runs."""
    if "launches" not in archive.tables:
        return {}
    least_work = [
        {
            "problem": problem.name,
            "case": number,
            "least_bytes": float(case.least_work.bytes_read + case.least_work.bytes_written),
            "least_flops": float(case.least_work.flops + 1),
        }
        for problem in PROBLEMS.values()
        for number, case in enumerate(problem.cases)
    ]
    rows = archive.sql(_FEATURES, [MULTIPROCESSORS, least_work])
    by_program: dict[tuple[str, str], list[list[float]]] = {}
    for program, problem, _, features in zip(*(c.to_pylist() for c in rows.columns), strict=True):
        by_program.setdefault((program, problem), []).append(features)
    return {key: np.mean(cases, axis=0) for key, cases in by_program.items()}


def launch_matrix(
    features: Mapping[tuple[str, str], Floats], codes: Sequence[str], problems: Sequence[str]
) -> Floats:
    """Look features up for programs: shape (n, m), NaN where a program was not followed."""
    rows = [features.get((program_id(c), p)) for c, p in zip(codes, problems, strict=True)]
    width = len(next(iter(features.values()))) if features else 0
    return np.array([np.full(width, np.nan) if row is None else row for row in rows])
