"""Count what the card states, one named query per fact."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from kernel_archive.archive.manifest import ShardFacts
from kernel_archive.archive.open import Archive
from kernel_archive.bins import N_BINS, SCHEMES, assign_bins
from kernel_archive.gpus import gpu_lines
from kernel_archive.schema import TABLES

_BIN_COUNTS: Final = ", ".join(f"count(*) FILTER (bin = {b})" for b in range(1, N_BINS + 1))
#: Fact -> query. Each states its order: the card must not depend on the order of rows.
QUERIES: Final = {
    "totals": """
        SELECT (SELECT count(*) FROM kernels) AS kernels,
               (SELECT count(DISTINCT program_id) FROM kernels) AS programs,
               (SELECT count(*) FROM kernels WHERE n_measurements > 1) AS repeated,
               (SELECT count(*) FROM evaluations) AS evaluations,
               (SELECT count(goal_bin) FROM kernels) AS with_goal,
               (SELECT count(*) FROM failures) AS failures,
               (SELECT count(*) FROM searches) AS searches,
               (SELECT count(gpu_seconds) FROM searches) AS searches_with_gpu_seconds,
               (SELECT count(coalesce(input_tokens, output_tokens)) FROM searches)
                   AS searches_with_tokens,
               (SELECT coalesce(sum(input_tokens), 0)::BIGINT FROM searches) AS input_tokens,
               (SELECT coalesce(sum(output_tokens), 0)::BIGINT FROM searches) AS output_tokens""",
    "outcomes": """
        SELECT outcome AS name, count(*) AS n FROM evaluations GROUP BY 1 ORDER BY n DESC, 1""",
    "languages": """
        SELECT language AS name, count(*) AS n FROM kernels GROUP BY 1 ORDER BY n DESC, 1""",
    "models": """
        SELECT model AS name, count(*) AS n FROM kernels GROUP BY 1
        ORDER BY n DESC, 1 NULLS LAST""",
    "gpus": "SELECT gpu AS name, count(*) AS n FROM kernels GROUP BY 1 ORDER BY n DESC, 1",
    "flags": """
        SELECT flag AS name, count(*) AS n
        FROM (SELECT unnest(flags) AS flag FROM kernels) GROUP BY 1 ORDER BY 1""",
    "excluded": """
        SELECT excluded AS name, builder, count(*) AS n FROM evaluations
        WHERE excluded IS NOT NULL GROUP BY ALL ORDER BY builder, n DESC, name""",
    "methods": """
        SELECT generation_method AS name, count(*) AS searches,
               sum(n_evaluations)::BIGINT AS evaluations,
               coalesce(any_value(first_found.n), 0) AS kernels
        FROM searches
        LEFT JOIN (SELECT generation_method, count(*) AS n FROM kernels GROUP BY 1) AS first_found
            USING (generation_method)
        GROUP BY 1 ORDER BY kernels DESC, 1""",
    "problems": f"""
        SELECT problem AS name, [{_BIN_COUNTS}] AS bins FROM kernels GROUP BY 1
        ORDER BY count(*) DESC, 1""",
    "gpu_seconds": """
        SELECT gpu_seconds AS n FROM searches WHERE gpu_seconds IS NOT NULL ORDER BY search_id""",
}


def splits_of(archive: Archive, table: str) -> list[tuple[str, list[ShardFacts], int]]:
    """List the splits of a table as (name, shards, rows), in the order of the schema."""
    shards = archive.manifest.tables[table].splits
    return [
        (split, shards[split], sum(shard.rows for shard in shards[split]))
        for split in TABLES[table].splits
        if split in shards
    ]


def collect_facts(archive: Archive) -> dict[str, Any]:
    """Count everything that the card states: the rows of :data:`QUERIES`, and a few facts more.

    ``schemes`` are kernels per bin under each, ``relabelled`` those whose bin differs between them.
    """
    facts: dict[str, Any] = {
        name: archive.sql(query).to_pylist() for name, query in QUERIES.items()
    }
    facts["totals"] = facts["totals"][0]
    speedups = archive.arrow("kernels", columns=["speedup"])["speedup"].to_numpy()
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
