"""Rows of splits as others published them, in the numbers of the published evaluation set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from support.archives import reference
from support.programs import program

from kernel_archive.archive.stage import PUBLISHED_SCHEMA
from kernel_archive.bins import bin_of
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.readers.records import PublishedRow

SPEEDUPS = [0.1, 0.3, 0.5, 0.6, 0.8, 1.0, 1.2, 1.71, 2.0, 2.5, 3.0, 4.0, 5.0]


def row(i: int, split: str = "eval", **changes: Any) -> PublishedRow:
    """A published row; ids are not in alphabetical order, tasks alternate."""
    speedup = SPEEDUPS[i % len(SPEEDUPS)]
    values = {
        "split": split,
        "row_id": hashlib.sha256(f"{split}{i}".encode()).hexdigest()[:12],
        "problem": GPU_MODE_TASKS[i % 6],
        "gpu": "NVIDIA A100-SXM4-80GB",
        "anchor_code": reference(GPU_MODE_TASKS[i % 6]) + "\n",
        "candidate_code": program(f"{split}{i}"),
        "speedup": speedup,
        "label": bin_of(speedup, "released"),
        "order": i,
        "source_file": "eval.parquet",
        "source_line": i + 1,
        "source_search": f"e{i % 6}",
    }
    return PublishedRow(**{**values, **changes})


ROWS = [row(i) for i in range(424)]


def staged(folder: Path, rows: Sequence[PublishedRow]) -> Path:
    """Rows as the build stages them."""
    path = folder / "x.published.parquet"
    pq.write_table(
        pa.Table.from_pylist(
            [{**msgspec.structs.asdict(r), "search_id": "b/x"} for r in rows],
            schema=PUBLISHED_SCHEMA,
        ),
        path,
    )
    return path
