"""What an archive holds, counted; and its audit.

The audit is every flag with its rule, its count and the worst examples; what was doubted, and what of the sources was left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import SCHEMES, assign_bins

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive

_BY = {
    "problem": ("kernels", "problem"),
    "gpu": ("kernels", "gpu"),
    "language": ("kernels", "language"),
    "generation_method": ("kernels", "generation_method"),
    "bin": ("kernels", "bin"),
    "split": ("kernels", "split"),
    "outcome": ("evaluations", "outcome"),
}


def archive_info(archive: Archive) -> dict[str, Any]:
    """Counts by problem, GPU, language, method, outcome and bin; tokens, GPU hours, inputs; all from the tables.

    Returns:
        A JSON-ready dictionary. Totals that no log states are ``None``, not 0.
    """
    manifest = archive.manifest

    def rows(query: str) -> list[dict[str, Any]]:
        return list(archive.sql(query).to_pylist())

    counts = {
        name: {
            str(r["k"]): r["n"]
            for r in rows(f'SELECT {column} AS k, count(*) AS n FROM "{table}" GROUP BY 1 ORDER BY 1')
        }
        for name, (table, column) in _BY.items()
    }
    problems = rows(
        f"""SELECT problem, count(*) AS kernels, {", ".join(f"count(*) FILTER (bin = {n}) AS bin{n}" for n in range(1, 9))},
                   median(speedup) AS median, max(speedup) AS best
            FROM kernels GROUP BY problem ORDER BY problem"""
    )
    totals = rows(
        """SELECT count(*) AS searches, sum(gpu_seconds) AS gpu_seconds, count(gpu_seconds) AS searches_with_gpu_seconds,
                  sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
                  count(input_tokens) AS searches_with_tokens, sum(n_pending)::BIGINT AS pending,
                  sum(n_duplicates)::BIGINT AS duplicates, sum(n_deferred)::BIGINT AS deferred, sum(n_forecasts)::BIGINT AS forecasts
           FROM searches"""
    )[0]
    evaluations = rows(
        "SELECT count(*) AS evaluations, count(*) FILTER (is_root) AS roots, count(*) FILTER (excluded IS NOT NULL) AS excluded FROM evaluations"
    )[0]
    programs = rows("SELECT count(DISTINCT program_id) AS programs FROM kernels")[0]
    methods = rows(
        """SELECT generation_method AS method, role, count(*) AS searches, sum(n_evaluations)::BIGINT AS evaluations,
                  sum(n_successes)::BIGINT AS successes, sum(gpu_seconds) / 3600 AS gpu_hours
           FROM searches GROUP BY 1, 2 ORDER BY 1, 2"""
    )
    return {
        "path": str(archive.path),
        "name": manifest.name,
        "version": manifest.version,
        "logical_digest": manifest.logical_digest,
        "bin_scheme": manifest.bin_scheme,
        "package": manifest.package,
        "tables": {name: facts.rows for name, facts in manifest.tables.items()},
        "counts": counts,
        "problems": problems,
        "methods": methods,
        **evaluations,
        **programs,
        **totals,
        "gpu_hours": None if totals["gpu_seconds"] is None else totals["gpu_seconds"] / 3600,
        "flags": manifest.reports.get("flags", {}),
        "builders": manifest.builders,
        "inputs": {"runs": len(manifest.inputs), "bytes": sum(i.bytes for i in manifest.inputs)},
        "findings": {"total": manifest.findings["total"], "by_code": manifest.findings["by_code"]},
        "reports": {k: v for k, v in manifest.reports.items() if k not in {"build_key", "flags"}},
        "splits": {name: {"name": s.name, "rows": s.rows, "scheme": s.scheme} for name, s in manifest.splits.items()},
    }


def audit_archive(archive: Archive, *, examples: int = 5) -> dict[str, Any]:
    """Flags with rule, count by problem and worst examples; what was excluded, and what of the sources became no evaluation."""
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
