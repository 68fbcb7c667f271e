"""What an archive tells: what it holds, counted; its audit; and one kernel, traced.

The audit is every flag with its rule, its count and the worst examples; what was doubted, and what of the sources was left out.
A kernel is traced by code, measurements, and its ancestors back to the root, each with the line of its log; with the logs at hand,
also by the figures for which its search came to measure it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.labels import FLAGS
from kernel_archive.bins import SCHEMES, assign_bins
from kernel_archive.errors import UsageError, printable
from kernel_archive.readers import events as ev
from kernel_archive.splits import SPLIT_TABLES
from kernel_archive.untrusted import Lines

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.archive.open import Archive

MIN_PREFIX: Final = 6
_BY: Final = {
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
        """SELECT count(*) AS searches, sum(gpu_seconds ORDER BY gpu_seconds) AS gpu_seconds, count(gpu_seconds) AS searches_with_gpu_seconds,
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
                  sum(n_successes)::BIGINT AS successes, sum(gpu_seconds ORDER BY gpu_seconds) / 3600 AS gpu_hours
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


def find_kernel(archive: Archive, wanted: str) -> dict[str, Any]:
    """The row of ``kernels`` or ``failures`` by kernel id, program id, evaluation id, split row id, or their beginning.

    Raises:
        UsageError: no row or several have that id.
    """
    text = wanted.strip().lower()
    if len(text) < MIN_PREFIX:
        raise UsageError(f"{printable(wanted)!r} is too short for an id; give at least {MIN_PREFIX} digits")
    tables = ("kernels", "failures")
    matches: dict[str, tuple[str, str]] = {}
    # Ids are hexadecimal: anything else is in no table, and would be a wildcard of LIKE.
    pattern = f"{text}%" if set(text) <= set("0123456789abcdef") else ""
    for table in tables:
        query = f"SELECT kernel_id, problem, gpu, split FROM {table} WHERE kernel_id LIKE ? OR program_id LIKE ? ORDER BY kernel_id LIMIT 20"
        for row in archive.sql(query, [pattern, pattern]).to_pylist():
            matches[row["kernel_id"]] = (table, f"{row['kernel_id']} ({row['problem']} on {row['gpu']})")
    if not matches:
        query = "SELECT DISTINCT kernel_id, excluded FROM evaluations WHERE evaluation_id LIKE ? OR kernel_id LIKE ? OR program_id LIKE ?"
        for row in archive.sql(query, [pattern] * 3).to_pylist():
            matches[row["kernel_id"]] = ("", row["kernel_id"])
    if not matches:
        raise UsageError(f"no kernel, program or evaluation has the id {printable(wanted)!r} in {archive.path}")
    if len(matches) > 1:
        listed = "; ".join(m[1] for m in list(matches.values())[:8])
        raise UsageError(f"{printable(wanted)!r} fits {len(matches)} kernels: {listed}. Give more digits")
    ((kid, (table, _)),) = matches.items()
    for name in (table,) if table else tables:
        found = archive.sql(f"SELECT * FROM {name} WHERE kernel_id = ?", [kid]).to_pylist()
        if found:
            return {"table": name, **found[0]}
    return {"table": "evaluations", "kernel_id": kid}


def trace(archive: Archive, wanted: str) -> dict[str, Any]:
    """Everything the archive knows of one kernel.

    Returns:
        ``kernel`` (its row, code included), ``measurements`` (its evaluations), ``lineage`` (ancestors, nearest first, each
        with outcome, speedup, file and line) and ``splits`` (the derived tables it is in).
    """
    kernel = find_kernel(archive, wanted)
    kid = kernel["kernel_id"]
    measurements = archive.sql(
        """SELECT evaluation_id, search_id, node_id, outcome, error_type, speedup, runtime_us, reference_runtime_us, cases, step,
                  is_root, n_logged, gpu_seconds, excluded, source_file, source_line, source_digest
           FROM evaluations WHERE kernel_id = ? ORDER BY search_id, source_file, source_line, evaluation_id""",
        [kid],
    ).to_pylist()
    lineage: list[dict[str, Any]] = []
    search = kernel.get("search_id") or (measurements[0]["search_id"] if measurements else None)
    rows = archive.sql(
        """SELECT kernel_id, parent_kernel_id, parent_distance, node_id, outcome, speedup, step, is_root, source_file, source_line
           FROM evaluations WHERE search_id = ? ORDER BY source_line, evaluation_id""",
        [search],
    ).to_pylist()
    first: dict[str, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(row["kernel_id"], row)
    seen = {kid}
    here = first.get(kid)
    while here is not None and here["parent_kernel_id"] is not None and here["parent_kernel_id"] not in seen:
        distance = here["parent_distance"]
        here = first.get(here["parent_kernel_id"])
        if here is not None:
            seen.add(here["kernel_id"])
            lineage.append({**here, "distance": distance})
    splits = [
        name
        for name, split in SPLIT_TABLES.items()
        if name in archive.tables
        and archive.sql(f"SELECT 1 FROM {name} WHERE {split.kernel} = ? LIMIT 1", [kid]).num_rows
    ]
    return {"kernel": kernel, "measurements": measurements, "lineage": lineage, "splits": splits}


#: A longer log is not read through for one node, bytes.
_MAX_LOG: Final = 1 << 30


def reasons(logs: Path, source_file: str, node: str) -> dict[str, Any] | None:
    """The search's own figures about a node of an event log; ``None`` where there is no such log, or it says nothing of them.

    The log's name is relative to ``logs``, the builder's folder.

    Returns:
        ``step``; ``parent_score`` and ``parent_visits``, by which the parent was selected; ``forecast`` and
        ``selection_score`` where a forecaster chose the program. What is missing or no number is left out.
    """
    path = logs / source_file
    if not path.resolve().is_relative_to(logs.resolve()) or not path.is_file():
        return None
    step = ev.StepStarted()
    forecasts: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    decode = msgspec.json.Decoder(ev.Event).decode
    for item in Lines(path, max_bytes=_MAX_LOG, max_lines=100_000_000, hashed=False):
        if not isinstance(item, tuple):
            continue  # a damaged line is the build's to report
        try:
            event = decode(item[1])
        except (ValueError, RecursionError):
            continue
        match event:
            case ev.StepStarted():
                step = event
            case ev.ForecastCompleted(request_id=key, forecast=forecast):
                forecasts[key] = forecast
            case ev.CandidateSelected(request_id=key, selection_score=score):
                scores[key] = score
            case ev.EvaluationRequested(request_id=key, child_ulid=child, parent_ulid=parent) if node in (child, key):
                proposal = event.from_mutation_request_id or key
                found: dict[str, Any] = {
                    "parent_score": _beside(step.parent_ulids, parent, step.selected_parent_scores),
                    "parent_visits": _beside(step.parent_ulids, parent, step.selected_parent_visits),
                    "selection_score": _number(scores.get(proposal)),
                    "forecast": forecasts.get(proposal),
                }
                found = {name: value for name, value in found.items() if value is not None}
                return {"step": step.step, **found} if found else None
    return None


def _number(value: object) -> int | float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _beside(parents: list[str] | None, parent: str | None, values: object) -> int | float | None:
    """The value that stands beside a parent in a list of the same length."""
    if parents is None or parent not in parents or not isinstance(values, list) or len(values) != len(parents):
        return None
    return _number(values[parents.index(parent)])
