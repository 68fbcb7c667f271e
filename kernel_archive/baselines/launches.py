"""Features of what programs launch, from the archive's table ``launches`` (dry runs, no GPU).

Every figure is for one timed case, as a base-2 logarithm where it is a size or a count
(``launches.sql``) or a cost (:func:`call_costs`), and is averaged over the problem's cases.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from kernel_archive.archive.open import Archive
from kernel_archive.baselines.blocks import BlockWork, kernel_work
from kernel_archive.ids import program_id
from kernel_archive.problems import PROBLEMS
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.cues import multiprocessors_of

_FEATURES_SQL: Final = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")
_CALLS_SQL: Final = """SELECT program_id, problem, "case", kind, name, n, bytes, coalesce(flops, 0),
    coalesce(grid_x, 0) * coalesce(grid_y, 1) * coalesce(grid_z, 1), coalesce(warps, 4),
    coalesce(trips, 1)
    FROM launches WHERE kind IN ('launch', 'operator') ORDER BY launch_id"""

# A GPU in round figures, and what a launch, an operator of torch and a load wait for. Memory is
# faster than in the query, whose 3e12 are older: frozen forecasts depend on both.
_MEMORY_BYTES_PER_S, _CACHE_BYTES_PER_S = 4e12, 6e12
_MATRIX_FLOPS_PER_S, _VECTOR_OPS_PER_S, _ATOMICS_PER_S = 2e14, 1.5e13, 1e10
_LAUNCH_S, _OPERATOR_S, _LOAD_S = 4e-6, 3e-6, 4e-7
#: The costs of :func:`call_costs`, in order.
COSTS: Final = (
    *("overhead", "memory", "cache", "waits", "products", "vector", "total", "reduced"),
    *("transcendentals", "atomics", "scalars", "elements", "waits_of_block"),
)


class LaunchCall(NamedTuple):
    """One row of the table ``launches``, of a launch or an operator."""

    kind: str
    name: str
    n: int
    bytes: int
    flops: int
    blocks: int
    warps: int
    trips: float


def call_costs(call: LaunchCall, multiprocessors: int, works: Sequence[BlockWork] = ()) -> Floats:
    """Estimate seconds that calls take: shape (13,), all of :data:`COSTS`.

    ``works`` are what one block may do: the one whose waits are nearest to the dry run's trips
    counts. Without any, loads are as many as trips.
    """
    memory = call.bytes / _MEMORY_BYTES_PER_S
    costs = dict.fromkeys(COSTS, 0.0) | {"memory": memory}
    if call.kind == "operator":
        products = call.flops / _MATRIX_FLOPS_PER_S
        costs |= {"overhead": _OPERATOR_S, "products": products}
        costs["total"] = max(_OPERATOR_S, memory, products)
        return call.n * np.array([*costs.values()])
    blocks = call.blocks
    unknown = BlockWork(sectors=call.bytes / max(1, blocks), waits=call.trips)
    work = min(
        works, default=unknown, key=lambda w: abs(math.log((w.waits + 1) / (call.trips + 1)))
    )
    rounds = max(1, math.ceil(blocks / (multiprocessors * max(1, min(32, 64 // call.warps)))))
    # Shares of the GPU that are busy: 16 warps a multiprocessor saturate it, or one block.
    busy = max(1e-6, min(1.0, blocks * call.warps / (16 * multiprocessors)))
    filled = max(1e-6, min(1.0, blocks / multiprocessors))
    operations = work.elements + work.reduced + 4 * work.transcendentals
    costs |= {
        "overhead": _LAUNCH_S,
        "cache": blocks * work.sectors / _CACHE_BYTES_PER_S / busy,
        "waits": rounds * work.waits * _LOAD_S,
        "products": blocks * work.flops / _MATRIX_FLOPS_PER_S / filled,
        "vector": blocks * operations / _VECTOR_OPS_PER_S / busy,
        "reduced": blocks * work.reduced / _VECTOR_OPS_PER_S / busy,
        "transcendentals": blocks * work.transcendentals / _VECTOR_OPS_PER_S / busy,
        "atomics": blocks * work.atomics / _ATOMICS_PER_S,
        "scalars": rounds * work.scalars * _LOAD_S,
        "elements": blocks * work.elements / _VECTOR_OPS_PER_S,
        "waits_of_block": work.waits * _LOAD_S,
    }
    slowest = ("memory", "cache", "waits", "products", "vector")
    costs["total"] = _LAUNCH_S + max(costs[name] for name in slowest)
    return call.n * np.array([*costs.values()])


def load_launch_features(
    archive: Archive, codes: Iterable[str], gpus: Iterable[str]
) -> Mapping[tuple[str, str, str], Floats]:
    """Load features by program id, problem and GPU; empty for an archive without dry runs."""
    if "launches" not in archive.tables:
        return {}
    texts = {program_id(code): code for code in codes}
    return {
        (*key, gpu): features
        for gpu in set(gpus)
        for key, features in _features(archive, texts, multiprocessors_of(archive, gpu)).items()
    }


def _features(
    archive: Archive, texts: Mapping[str, str], multiprocessors: int
) -> dict[tuple[str, str], Floats]:
    """Compute the features of programs by program id and problem."""
    # Of a program in one case: the costs of all calls together, and the total of the longest one.
    sums: dict[tuple[str, str, int], Floats] = defaultdict(lambda: np.zeros(len(COSTS) + 1))
    for program, problem, case, *row in pl.DataFrame(archive.sql(_CALLS_SQL)).iter_rows():
        if program in texts:
            call = LaunchCall(*row)
            costs = call_costs(
                call, multiprocessors, kernel_work(texts[program]).get(call.name, ())
            )
            of_case = sums[program, problem, case]
            of_case[:-1] += costs
            of_case[-1] = max(of_case[-1], costs[COSTS.index("total")])
    least_work = [
        {"problem": problem.name, "case": number}
        | {"least_bytes": float(work.bytes_read + work.bytes_written)}
        | {"least_flops": float(work.flops)}
        for problem in PROBLEMS.values()
        for number, work in enumerate(case.least_work for case in problem.cases)
    ]
    by_program: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    rows = pl.DataFrame(archive.sql(_FEATURES_SQL, [multiprocessors, least_work])).iter_rows()
    for program, problem, case, moved, flops, features in rows:
        if (program, problem, case) in sums:
            least = 1e-7 + max(moved / _MEMORY_BYTES_PER_S, flops / (2 * _MATRIX_FLOPS_PER_S))  # s
            costs = np.log2(sums[program, problem, case] / least + 1e-3)
            by_program[program, problem].append(np.concatenate([features, costs]))
    return {key: np.mean(cases, axis=0) for key, cases in by_program.items()}
