"""What card, pictures and Croissant state of an archive, each counted from the tables by one named query."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS, SCHEMES, assign_bins
from kernel_archive.gpus import gpu_lines
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernel_archive.archive.manifest import ShardFacts
    from kernel_archive.archive.open import Archive

#: Fact -> the query whose rows (a list of dictionaries) it is. Every query states its order: a card has the same bytes
#: whatever order the rows of the tables have.
QUERIES: Final = {
    "totals": """
        SELECT (SELECT count(*) FROM kernels) AS kernels,
               (SELECT count(DISTINCT program_id) FROM kernels) AS programs,
               (SELECT count(*) FROM kernels WHERE n_measurements > 1) AS repeated,
               (SELECT count(*) FROM evaluations) AS evaluations,
               (SELECT count(*) FROM failures) AS failures,
               (SELECT count(*) FROM searches) AS searches,
               (SELECT count(gpu_seconds) FROM searches) AS searches_with_gpu_seconds,
               (SELECT count(coalesce(input_tokens, output_tokens)) FROM searches) AS searches_with_tokens,
               (SELECT coalesce(sum(input_tokens), 0)::BIGINT FROM searches) AS input_tokens,
               (SELECT coalesce(sum(output_tokens), 0)::BIGINT FROM searches) AS output_tokens""",
    "outcomes": "SELECT outcome AS name, count(*) AS n FROM evaluations GROUP BY 1 ORDER BY n DESC, 1",
    "languages": "SELECT language AS name, count(*) AS n FROM kernels GROUP BY 1 ORDER BY n DESC, 1",
    "models": "SELECT model AS name, count(*) AS n FROM kernels GROUP BY 1 ORDER BY n DESC, 1 NULLS LAST",
    "flags": """
        SELECT flag AS name, count(*) AS n FROM (SELECT unnest(flags) AS flag FROM kernels) GROUP BY 1 ORDER BY 1""",
    "excluded": """
        SELECT excluded AS name, builder, count(*) AS n FROM evaluations
        WHERE excluded IS NOT NULL GROUP BY ALL ORDER BY builder, n DESC, name""",
    "methods": """
        SELECT generation_method AS name, count(*) AS searches, sum(n_evaluations)::BIGINT AS evaluations,
               coalesce(any_value(found.n), 0) AS kernels
        FROM searches
        LEFT JOIN (SELECT generation_method, count(*) AS n FROM kernels GROUP BY 1) AS found USING (generation_method)
        GROUP BY 1 ORDER BY kernels DESC, 1""",
    "bins": "SELECT problem AS row, bin::VARCHAR AS col, count(*) AS n FROM kernels GROUP BY ALL ORDER BY ALL",
    "gpus": "SELECT gpu AS row, generation_method AS col, count(*) AS n FROM kernels GROUP BY ALL ORDER BY ALL",
    "speedups": "SELECT problem AS name, list_sort(list(speedup)) AS values FROM kernels GROUP BY 1 ORDER BY 1",
    "gpu_seconds": "SELECT gpu_seconds AS n FROM searches WHERE gpu_seconds IS NOT NULL ORDER BY search_id",
}


class Grid(msgspec.Struct, frozen=True):
    """Counts over rows (problems, GPUs) and columns (bins, methods)."""

    rows: list[str]
    columns: list[str]
    counts: list[list[int]]  # one list per row, as long as ``columns``

    @property
    def row_totals(self) -> list[int]:
        """Sum of every row."""
        return [sum(row) for row in self.counts]

    @property
    def column_totals(self) -> list[int]:
        """Sum of every column."""
        return [sum(row[i] for row in self.counts) for i in range(len(self.columns))]

    def largest(self, most: int) -> Grid:
        """At most ``most`` rows: the largest ones in their order, the rest summed as ``others``."""
        if len(self.rows) <= most:
            return self
        totals = self.row_totals
        kept = sorted(sorted(range(len(self.rows)), key=lambda i: (-totals[i], self.rows[i]))[: most - 1])
        rest = [self.counts[i] for i in range(len(self.rows)) if i not in kept]
        rows = [*(self.rows[i] for i in kept), f"{len(rest)} others"]
        return Grid(rows, self.columns, [*(self.counts[i] for i in kept), [sum(c) for c in zip(*rest, strict=True)]])


def splits_of(archive: Archive, table: str) -> list[tuple[str, list[ShardFacts], int]]:
    """The splits of a table with their shards and rows, in the order of the schema (a manifest has them by name)."""
    held = archive.manifest.tables[table].splits
    return [(split, held[split], sum(s.rows for s in held[split])) for split in TABLES[table].splits if split in held]


def _grid(cells: Iterable[dict[str, Any]], rows: list[str], columns: list[str]) -> Grid:
    at = {(cell["row"], cell["col"]): cell["n"] for cell in cells}
    return Grid(rows, columns, [[at.get((r, c), 0) for c in columns] for r in rows])


def _by_size(cells: Iterable[dict[str, Any]], key: str) -> list[str]:
    totals: Counter[str] = Counter()
    for cell in cells:
        totals[cell[key]] += cell["n"]
    return sorted(totals, key=lambda name: (-totals[name], name))


def collect_facts(archive: Archive) -> dict[str, Any]:
    """Everything that the card counts: the rows of :data:`QUERIES`, and what is made from them.

    Returns:
        Beside the queries: ``problems`` (a :class:`Grid`, problem x bin), ``gpu_methods`` (GPU x method, the largest
        first), ``schemes`` (scheme -> kernels per bin), ``relabelled`` (kernels whose bin differs between the schemes),
        ``stated_gpus`` (what recipes state of GPUs that this package does not know) and ``gpu_hours``.
    """
    facts: dict[str, Any] = {name: archive.sql(query).to_pylist() for name, query in QUERIES.items()}
    cells = facts["bins"]
    speedups = archive.arrow("kernels", columns=["speedup"])["speedup"].to_numpy()
    labels = {name: assign_bins(speedups, name) for name in SCHEMES}
    return facts | {
        "totals": facts["totals"][0],
        "problems": _grid(cells, sorted({c["row"] for c in cells}), [str(b) for b in range(1, N_BINS + 1)]),
        "gpu_methods": _grid(facts["gpus"], _by_size(facts["gpus"], "row"), _by_size(facts["gpus"], "col")),
        "schemes": {name: np.bincount(bins, minlength=N_BINS + 1)[1:].tolist() for name, bins in labels.items()},
        "relabelled": int((labels["paper"] != labels["released"]).sum()),
        # Summed exactly, so that the order in which rows come can't change the last digit.
        "stated_gpus": [
            {"name": name, "facts": list(gpu_lines(gpu)), "source": gpu.source}
            for name, gpu in archive.stated_gpus.items()
        ],
        "gpu_hours": math.fsum(row["n"] for row in facts["gpu_seconds"]) / 3600,
    }
