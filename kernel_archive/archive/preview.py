"""Show what a recipe would read: counts and first rows, without building."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts

if TYPE_CHECKING:
    from pathlib import Path

#: Read this many runs of a recipe; the others are only counted.
_MAX_RUNS: Final = 25


def preview(recipe: Path) -> dict[str, Any]:
    """Read what a recipe names, without building: counts, first rows, findings, what is missing.

    Raises:
        RecipeError: the recipe is at fault.
    """
    jobs = jobs_of([load_recipe(recipe)])
    outcomes, gpus, problems = Counter[str](), Counter[str](), Counter[str]()
    findings: list[Finding] = []
    first: list[dict[str, Any]] = []
    rows = 0
    for job in jobs[:_MAX_RUNS]:
        records = list(READERS[job.source.format].read(job.run_files))
        findings += [record for record in records if isinstance(record, Finding)]
        stated = [record for record in records if isinstance(record, SearchFacts)]
        facts = stated[0] if stated else SearchFacts()
        evaluations = [record for record in records if isinstance(record, Evaluation)]
        rows += facts.counts.get("rows", len(evaluations))
        for record in evaluations:
            gpu = canonical_gpu(record.gpu or facts.gpu or job.source.gpu or "")
            problem = record.problem or facts.problem or job.source.problem or ""
            outcomes["refused" if record.excluded else record.outcome] += 1
            gpus[gpu] += 1
            problems[problem] += 1
            if len(first) < 3 and record.outcome == "success" and record.excluded is None:
                row = {"problem": problem, "gpu": gpu, "speedup": record.speedup}
                row["code"] = record.code.strip().split("\n", 1)[0][:80]
                first.append(row | {"from": record.source_file, "line": record.source_line})
    without = {"gpu": gpus.pop("", 0), "problem": problems.pop("", 0)}
    return {
        "runs": len(jobs),
        "runs_read": min(len(jobs), _MAX_RUNS),
        "rows": rows,
        "evaluations": outcomes.total(),
        "outcomes": dict(outcomes.most_common()),
        "problems": len(problems),
        "gpus": dict(gpus.most_common()),
        "first": first,
        "findings": findings,
        "missing": [
            f"the {what} of {n:,} rows: {what} = ... in the [[source]]"
            for what, n in without.items()
            if n
        ],
    }
