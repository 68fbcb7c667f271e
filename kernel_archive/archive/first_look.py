"""For ``kernel-archive init``: which formats the files of a user's folder are of, the recipe that would read them, and what would come out.

Nothing is built. What a recipe needs and no file says is asked for, or left as a comment that says so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.look_runs import kernelbench, openevolve, own_format
from kernel_archive.archive.look_tables import tables
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def recipe_text(found: Look, folder: Path, *, name: str, answers: Mapping[str, str]) -> str:
    """A commented ``builder.toml`` for the folder that it will be in, of an archive called ``owner/dataset``.

    ``answers`` are keys of the sources that a person said (gpu, problem, role, reference, ...).
    """
    licence = answers.get("licence") or found.licence
    lines = [
        f"# {found.found}",
        "# Written by kernel-archive init; kernel-archive readers --keys explains every key.",
        "",
        f"name = {_toml(re.sub(r'[^A-Za-z0-9._-]+', '-', name.rsplit('/', maxsplit=1)[-1]) or 'mine')}",
        f"licence = {_toml(licence or 'other')}"
        + ("" if licence else "  # NEEDED before you publish: the SPDX name of the data's licence"),
        'description = "What these measurements are, who made them and how."  # NEEDED before you publish: in your words',
        "",
        "[archive]",
        f"name = {_toml(name)}",
        f"title = {_toml(name.rsplit('/', maxsplit=1)[-1])}",
        '# description = "..."  # NEEDED before you publish: what is in it, in a few sentences; the card begins with it',
        "",
    ]
    for gpu in sorted(
        {*found.gpus, *([answers["gpu"]] if answers.get("gpu") and not is_known(answers["gpu"]) else [])}
    ):
        lines += [f"[gpu.{_toml(gpu)}]  # not known to this package: state its facts, or leave the table empty", ""]
    lines += [
        "[eval]  # what the evaluation split asks about; by default every problem with kernels in enough bins",
        "# cap = 10                                     # kernels per problem and speedup bin",
        '# roles = { training = ["conv_*"] }            # problems to train on; all others are asked about',
        "",
    ]
    for source in found.sources:
        stated = {
            **source,
            **{
                key: value
                for key, value in answers.items()
                if value
                and (key in found.open or key in ("reference", "baseline", "problems"))
                # What one of several files says of itself is not overruled by what is said of all.
                and not (key == "gpu" and key in source and len(found.sources) > 1)
            },
        }
        stated["role"] = answers.get("role") or "held_out"
        lines += ["[[source]]", *_source_lines(stated, folder, found, answers), ""]
    if found.unused:
        lines.append(f"# Columns that nothing is read from: {', '.join(printable(name, 40) for name in found.unused)}")
    return "\n".join(lines).rstrip() + "\n"


_ORDER: Final = (
    "path",
    "format",
    "role",
    "generation_method",
    "gpu",
    "problem",
    "reference",
    "baseline",
    "problems",
    "level",
    "model",
    "rows",
)


def _source_lines(source: dict[str, Any], folder: Path, found: Look, answers: Mapping[str, str]) -> Iterable[str]:
    remarks = {
        "role": "  # held_out: asked about | training: to train on | archive: neither",
        "generation_method": "  # how the programs were made, in your words",
        "path": "  # every match is one search",
    }
    for key in _ORDER:
        if key in source:
            value = source[key]
            if key in ("path", "baseline", "problems") or (key == "reference" and Path(str(value)).is_absolute()):
                value = _relative(str(value), folder)
            yield f"{key} = {_toml(value)}{remarks.get(key, '')}"
    for key, text in found.open.items():
        if key not in answers or not answers[key]:
            if key == "gpu" and key not in source:
                text = f'{text}; one that kernel-archive does not know gets a table, too: [gpu."NAME"]'  # noqa: PLW2901
            yield f"# {key} = ...  # NEEDED: {text}" if key in _ORDER and key not in source else f"# LOOK: {text}"
    if source.get("columns"):
        yield ""
        yield "[source.columns]  # our column = theirs; kernel-archive readers --columns lists ours"
        for ours, rule in source["columns"].items():
            yield f"{ours} = {_toml(rule)}"
    for join in source.get("join", ()):
        yield ""
        yield "[[source.join]]  # a second table: NAME.column above is its column"
        yield from (f"{key} = {_toml(value)}" for key, value in join.items())


def _relative(path: str, folder: Path) -> str:
    """A path relative to the recipe's folder where it is below it, else as it is."""
    place = Path(path)
    try:
        return place.relative_to(folder.absolute()).as_posix() or "."
    except ValueError:
        return place.as_posix()


def _toml(value: Any) -> str:
    """A value as TOML: texts, numbers, booleans, and tables in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
