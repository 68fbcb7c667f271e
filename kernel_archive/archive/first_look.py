"""For ``kernel-archive init``: which formats the files of a user's folder are of, the recipe that would read them, and what would come out.

Nothing is built. What a recipe needs and no file says is asked for, or left as a comment that says so.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.look_runs import kernelbench, openevolve, own_format
from kernel_archive.archive.look_tables import tables
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.archive.seen import Look

#: Files that are looked at.
_MOST_FILES: Final = 20_000
_LICENCES: Final = {
    "MIT License": "MIT",
    "Apache License": "Apache-2.0",
    "Creative Commons Attribution 4.0": "CC-BY-4.0",
}


def look(place: Path) -> Look:
    """Recognise a folder or file.

    Raises:
        DataError: it does not exist, or nothing in it can be recognised; the message lists what was seen.
    """
    place = place.absolute()
    if not place.exists():
        raise DataError.of(code="missing-file", message="there is no such file or folder", file=str(place))
    files = [place] if place.is_file() else _files(place)
    top = place if place.is_dir() else place.parent
    found = (
        kernelbench(files)
        or openevolve(files)
        or own_format(place, files)
        or tables(files, files if place.is_dir() else _files(top))
    )
    if found is None:
        seen = Counter("".join(path.suffixes[-2:]) or path.name for path in files)
        listed = ", ".join(f"{n} {printable(ending)}" for ending, n in seen.most_common(8)) or "no files"
        raise DataError.of(
            code="nothing-recognised",
            message=f"nothing in it is recognised as results: {listed}",
            file=str(place),
            fix="Expected is a table with a program, or the name of its file, in every row (CSV, TSV, JSON, JSON lines, Parquet), or a "
            "format of kernel-archive readers",
        )
    for path in islice((p for p in files if p.parent == top), 200):
        if path.name.upper().startswith(("LICENSE", "LICENCE")):
            text = path.read_text("utf-8", "replace")[:500]
            found.licence = next((spdx for words, spdx in _LICENCES.items() if words in text), None)
    return found


def _files(folder: Path) -> list[Path]:
    found = (
        p
        for p in folder.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(folder).parts)
    )
    return sorted(islice(found, _MOST_FILES))


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
