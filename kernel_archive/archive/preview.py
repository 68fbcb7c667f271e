"""What a recipe would make, without building it."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts

if TYPE_CHECKING:
    from pathlib import Path

#: Runs that are read.
_RUNS: Final = 25
#: Kernels that are shown.
_SHOWN: Final = 3
#: Lines with which every program begins.
_PREAMBLE: Final = re.compile(r"import |from |using |#|//|/\*|\*|\"\"\"|'''|@")


def preview(recipe: Path) -> dict[str, Any]:
    """What a recipe reads, without building: rows, outcomes, the first three kernels, findings, and what is missing.

    Raises:
        RecipeError: the recipe is at fault.
    """
    loaded = load_recipe(recipe)
    jobs = jobs_of([loaded])
    outcomes: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    rows = references = parents = 0
    #: One of each problem, one of each problem and GPU, and the first three, whatever they are.
    kernels: tuple[dict[Any, dict[str, Any]], ...] = ({}, {}, {})
    findings: list[Finding] = []
    for job in jobs[:_RUNS]:
        held: list[Evaluation] = []
        facts = SearchFacts()
        for record in READERS[job.source.format].read(job.run_files()):
            if isinstance(record, Evaluation):
                held.append(record)
            elif isinstance(record, SearchFacts):
                facts = record
            elif isinstance(record, Finding):
                findings.append(record)
        rows += facts.counts.get("rows", len(held))
        for record in held:
            problem = record.problem or facts.problem or job.source.problem
            gpu = record.gpu or facts.gpu or job.source.gpu
            outcomes["refused" if record.excluded else record.outcome] += 1
            problems[normalise_problem(problem) if problem else ""] += 1
            gpus[canonical_gpu(gpu) if gpu else ""] += 1
            references += bool(record.reference_code or facts.reference_code or job.source.reference)
            parents += record.parent_node_id is not None
            if record.outcome == "success" and record.excluded is None:
                for shown, key in zip(kernels, (problem, (problem, gpu), record.node_id), strict=True):
                    if len(shown) < _SHOWN and key not in shown:
                        shown[key] = {
                            "problem": problem,
                            "gpu": canonical_gpu(gpu) if gpu else None,
                            "speedup": record.speedup,
                            "code": _first_line(record.code),
                            "from": record.source_file,
                            "line": record.source_line,
                        }
    n = sum(outcomes.values())
    missing = [
        text
        for text, lacks in {
            "the GPU of {} rows: gpu in the [[source]]": gpus.pop("", 0),
            "the problem of {} rows: problem in the [[source]]": problems.pop("", 0),
            "the reference program of {} rows: who forecasts them sees the candidate alone": n - references,
        }.items()
        if lacks
        for text in [text.format(f"{lacks:,}")]
    ]
    if not n:
        missing.insert(0, "nothing comes out: see the findings")
    elif not outcomes["success"]:
        missing.insert(0, "no row is a success with a speedup: failures alone would come out")
    first: list[dict[str, Any]] = []
    for each in (row for shown in kernels for row in shown.values()):
        if each not in first:
            first.append(each)
    return {
        "runs": len(jobs),
        "runs_read": min(len(jobs), _RUNS),
        "rows": rows,
        "evaluations": n,
        "outcomes": dict(outcomes.most_common()),
        "problems": len(problems),
        "gpus": dict(gpus.most_common()),
        "with_parent": parents,
        "first": first[:_SHOWN],
        "findings": findings,
        "missing": missing,
    }


def _first_line(code: str) -> str:
    """The first line of a program that tells it from others."""
    lines = [line for text in code.split("\n") if (line := text.strip())]
    return next((line for line in lines if _PREAMBLE.match(line) is None), lines[0] if lines else "")[:80]
