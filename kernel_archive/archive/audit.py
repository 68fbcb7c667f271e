"""The audit: every flag with its rule, its count, and the worst examples; and what was doubted and left out of the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import SCHEMES, assign_bins

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive


def audit_archive(archive: Archive, *, examples: int = 5) -> dict[str, Any]:
    """Flags with rule, count by problem and worst examples; what was excluded, and what of the sources became no evaluation.

    Args:
        archive: the archive.
        examples: so many rows per flag.
    """
    total = archive.sql("SELECT count(*) AS n FROM kernels").column(0)[0].as_py()
    flags: list[dict[str, Any]] = []
    for flag in FLAGS:
        by_problem = archive.sql(
            "SELECT problem, count(*) AS n FROM kernels WHERE list_contains(flags, ?) GROUP BY 1 ORDER BY 1",
            [flag.name],
        ).to_pylist()
        worst = archive.sql(
            f"""SELECT kernel_id, problem, gpu, speedup, bin, n_measurements, speedup_min, speedup_max, search_id,
                       source_file, source_line
                FROM kernels WHERE list_contains(flags, ?) ORDER BY {flag.worst}, kernel_id LIMIT ?""",
            [flag.name, examples],
        ).to_pylist()
        flags.append(
            {
                "flag": flag.name,
                "rule": flag.rule,
                "why": flag.why,
                "kernels": sum(r["n"] for r in by_problem),
                "by_problem": {r["problem"]: r["n"] for r in by_problem},
                "worst": worst,
            }
        )
    speedups = archive.arrow("kernels", columns=["speedup"]).column("speedup").to_numpy()
    labels = {name: assign_bins(speedups, name) for name in SCHEMES}
    excluded = archive.sql(
        """SELECT search_id, node_id, excluded AS reason, speedup, source_file, source_line FROM evaluations
           WHERE excluded IS NOT NULL ORDER BY search_id, source_line, node_id"""
    ).to_pylist()
    return {
        "kernels": total,
        "flags": flags,
        "labels_that_differ_between_schemes": int((labels["paper"] != labels["released"]).sum()),
        "excluded": excluded,
        "rows_left_out": archive.manifest.reports.get("log_counts", {}).get("rows_left_out", 0),
        "findings": archive.manifest.findings,
    }
