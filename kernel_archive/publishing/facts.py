"""Count what the card states, one named query per fact."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np

from kernel_archive.archive.manifest import ShardFacts
from kernel_archive.archive.open import Archive
from kernel_archive.bins import N_BINS, SCHEMES, assign_bins
from kernel_archive.gpus import gpu_lines
from kernel_archive.schema import TABLES

#: Fact -> query.
_QUERIES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def splits_of(archive: Archive, table: str) -> list[tuple[str, list[ShardFacts], int]]:
    """List the splits of a table as (name, shards, rows), in the order of the schema."""
    shards = archive.manifest.tables[table].splits
    return [
        (split, shards[split], sum(shard.rows for shard in shards[split]))
        for split in TABLES[table].splits
        if split in shards
    ]


def collect_facts(archive: Archive) -> dict[str, Any]:
    """Count everything that the card states: the rows of ``facts.toml``, and a few facts more.

    ``schemes`` are kernels per bin under each, ``relabelled`` those whose bin differs between them.
    """
    facts: dict[str, Any] = {
        name: archive.sql(query).to_pylist() for name, query in _QUERIES.items()
    }
    facts["totals"] = facts["totals"][0]
    speedups = archive.polars("kernels", columns=["speedup"])["speedup"].to_numpy()
    labels = {name: assign_bins(speedups, name) for name in SCHEMES}
    facts["schemes"] = {
        name: np.bincount(bins, minlength=N_BINS + 1)[1:].tolist() for name, bins in labels.items()
    }
    facts["relabelled"] = int((labels["paper"] != labels["released"]).sum())
    facts["stated_gpus"] = [
        {"name": name, "facts": list(gpu_lines(gpu)), "source": gpu.source}
        for name, gpu in archive.stated_gpus.items()
    ]
    # Summed exactly: the order of rows must not change the last digit.
    facts["gpu_hours"] = math.fsum(row["n"] for row in facts["gpu_seconds"]) / 3600
    return facts
