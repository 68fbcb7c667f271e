"""For ``kernel-archive init``: a recipe and a query for a folder, and the first rows of it.

A folder that a shipped query can read gets that query. A table of another kind gets a query made
from the names of its columns, with a comment where it is a guess. Names are data: they are quoted,
and no file that a table names is opened by that name. ``guesses.toml`` says what is guessed by.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import tomli_w

from kernel_archive.archive.jobs import folder_name, jobs_of
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.databases import literal_path
from kernel_archive.drafting import guesses
from kernel_archive.drafting.table_query import BY_FOLDER, write_query
from kernel_archive.errors import DataError, Finding, RecipeError, counted, place_of, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.sql import files_below
from kernel_archive.storage import content_path, write_atomically
from kernel_archive.untrusted import UntrustedFileError, open_uncompressed, regular_file

#: Look at this many files of a folder.
_MAX_FILES: Final = 20_000
#: Read this many runs of a recipe; the others are only counted.
_MAX_RUNS: Final = 25
#: Look for bytes that are not UTF-8 this far into a table.
_MAX_TEXT_BYTES: Final = 16 << 20
#: Look into this many tables of a folder.
_MAX_TABLES: Final = 20
#: Name this many tables that are not read.
_MAX_NAMED: Final = 8


class Draft(msgspec.Struct, kw_only=True):
    """What was recognised: the sources of a recipe, the query, and what a person must look at."""

    found: str
    sources: list[dict[str, Any]]
    query: str | None = None
    notes: list[str] = []


def draft_recipe(place: Path) -> Draft:
    """Recognise a folder or file; a DataError says what is in one of which nothing is known."""
    place = place.absolute()
    if not place.exists():
        message = "there is no such file or folder"
        raise DataError.of(code="missing-file", message=message, file=str(place))
    if not place.is_dir():
        try:
            regular_file(place)
        except UntrustedFileError as error:
            raise DataError.from_findings([error.finding(str(place))]) from None
    folder = place if place.is_dir() else place.parent
    listed = islice(files_below(folder), _MAX_FILES)
    around = sorted(os.path.relpath(name, folder) for name in listed)
    around = [name for name in around if not any(p.startswith(".") for p in Path(name).parts)]
    names = around if place.is_dir() else [place.name]
    draft = _shipped(folder, names) or _own_format(folder, names) or _table(folder, names, around)
    if draft is None:
        _refuse_other_encodings(folder, names)
        endings = Counter(Path(name).suffix or Path(name).name for name in names).most_common(8)
        shown = ", ".join(f"{n} {printable(ending, 40)}" for ending, n in endings) or "no files"
        raise DataError.of(
            code="nothing-recognised",
            message=f"nothing in it is recognised as results: {shown}",
            file=str(place),
            fix="Write a recipe and its query yourself (lists within lists, say): docs/own-data.md",
        )
    return draft


def _pattern(path: Path | str) -> str:
    """Write a path as a pattern that stands for the path itself."""
    return re.sub(r"[{}]", "?", literal_path(path))


def _sources(
    folder: Path, names: Sequence[str], rest: Sequence[str] = (), **facts: str
) -> list[dict[str, Any]]:
    """Make one source with a pattern of these names, and perhaps of ``rest``; else one each."""
    first, last = Path(names[0]), {Path(name).name for name in names}
    ending = _pattern(first.name) if len(last) == 1 else f"*{first.suffix}"
    below = "/".join(["*"] * (len(first.parts) - 1) + [ending])
    found = {os.path.relpath(path, folder) for path in folder.glob(below or "*")}
    is_one = len(names) > 1 and {*names} <= found <= {*names, *rest}
    paths = [f"{_pattern(folder)}/{below}"] if is_one else [_pattern(folder / n) for n in names]
    facts = facts or {"format": "sql", "query": "import.sql"}
    return [{"path": path, **facts} for path in paths]


def _shipped(folder: Path, names: Sequence[str]) -> Draft | None:
    """Return the shipped query whose files are there."""
    for path in sorted(content_path("builders").glob("*/*.sql")):
        text = path.read_text(encoding="utf-8")
        files_line = re.search(r"^-- Files: (.*)$", text, re.MULTILINE)
        patterns = files_line[1].replace(",", " ").split() if files_line else []
        wanted = [f"*/{pattern.removeprefix('**/')}" for pattern in patterns]
        fitting = [n for n in names if any(fnmatch.fnmatchcase(f"/{n}", w) for w in wanted)]
        if fitting:
            is_each = "getvariable('file')" in text
            sources = _sources(folder, fitting if is_each else ["."])
            label = path.stem if path.parent.name == "queries" else path.parent.name
            found = f"{counted(len(fitting), 'file')} that the shipped query {label} reads"
            found += f", first {printable(fitting[0], 80)}"
            return Draft(found=found, sources=sources, query=text)
    return None


def _own_format(folder: Path, names: Sequence[str]) -> Draft | None:
    """Recognise a search log of a format with a file name of its own."""
    for name in names:
        plain = guesses.uncompressed(name).name
        spec = next((s for s in READERS.values() if plain in s.files[:1]), None)
        if spec is not None:
            runs = [str(Path(n).parent) for n in names if guesses.uncompressed(n).name == plain]
            sources = _sources(folder, runs, format=spec.name)
            return Draft(found=f"{spec.title} ({printable(name)})", sources=sources)
    return None


def _refuse_other_encodings(folder: Path, names: Sequence[str]) -> None:
    """Raise a DataError at the first line of a table of text that is not UTF-8."""
    endings = {*guesses.KNOWN["tables"]} - {".parquet"}
    for name in (n for n in names if guesses.uncompressed(n).suffix.lower() in endings):
        data = b""
        with suppress(UntrustedFileError), open_uncompressed(folder / name) as stream:
            data = stream.read(_MAX_TEXT_BYTES)
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                raise DataError.of(
                    code="bad-utf8",
                    message="the file is not UTF-8",
                    file=name,
                    line=number,
                    value=printable(line.decode("latin-1"), 60),
                    fix="Save it as UTF-8; from Latin-1: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW",
                ) from None


def _table(folder: Path, names: Sequence[str], around: Sequence[str]) -> Draft | None:
    """Recognise the table from which most columns of ours are known, and the tables like it.

    Programs are looked for in all the files ``around``.
    """
    listed = [n for n in names if guesses.uncompressed(n).suffix.lower() in guesses.KNOWN["tables"]]
    seen, rest = listed[:_MAX_TABLES], listed[_MAX_TABLES:]
    tables = {name: guesses.look_at(folder, name) for name in seen}
    matched, times = guesses.matched_columns, guesses.time_columns
    n_known = {n: len(matched(t.columns)) + len(times(t.columns)) for n, t in tables.items()}
    best = max(n_known, key=n_known.__getitem__, default=None)
    if best is None or n_known[best] < 2:
        return None
    table = tables[best]
    # Read as JSON, a file may lack a column; the others are read by their very columns.
    as_json = "read_json_objects(" in table.source
    alike = [name for name in seen if tables[name].source == table.source]
    same = [name for name in alike if as_json or tables[name].columns == table.columns]
    # Rows inside documents, (SELECT ... FROM read_json_objects(...)), keep the best one's columns.
    if table.source.startswith("read_json_objects("):
        table, same = guesses.united(table, tables)
    parents = {Path(name).parent for name in same}
    # Where the names of folders do not tell them apart they name no problem (run_0).
    is_each = 1 < len(parents) == len({folder_name(parent) for parent in parents})
    query, notes = write_query(folder, best, table, around, is_each=is_each)
    if "getvariable('file')" in query:
        sources = _sources(folder, same, rest)
    else:
        same, sources = [best], _sources(folder, ["."])
    if BY_FOLDER in notes:
        sources = [{**source, "problem": "{folder}"} for source in sources]
    more = f", and {len(same) - 1} like it" if len(same) > 1 else ""
    unread = [n for n in listed if n not in same and (n in seen or len(sources) >= len(same))]
    for name in unread[:_MAX_NAMED]:
        why = f"only {_MAX_TABLES} tables are looked into"
        if name in seen:
            why = f"its columns are not those of {printable(best, 80)}"
            why = why if tables[name].columns else guesses.why_unreadable(folder, name)
        notes.append(f"not read: {printable(name, 80)}: {why}")
    if n := len(unread[_MAX_NAMED:]):
        notes.append(f"not read: {counted(n, 'more table')}")
    found = f"the table {printable(best, 80)}{more}"
    return Draft(found=found, sources=sources, query=query, notes=notes)


def query_of(recipe: Path) -> Path:
    """Name the file of a recipe's query: two recipes of one folder have two."""
    return recipe.with_name("import.sql" if recipe.stem == "builder" else f"{recipe.stem}.sql")


def write_recipe(draft: Draft, target: Path, *, name: str, stated: dict[str, str]) -> None:
    """Write ``builder.toml``, and the query beside it."""
    here, query = _pattern(target.absolute().parent), query_of(target)
    facts = {key: stated[key] for key in ("gpu", "problem", "reference") if stated.get(key)}
    facts |= {"role": "held_out", "generation_method": "unknown"}
    sources = []
    for source in draft.sources:
        place = Path(source["path"])
        inside = place.relative_to(here).as_posix() if place.is_relative_to(here) else str(place)
        own_query = {"query": query.name} if "query" in source else {}
        sources.append({**source, "path": inside, **own_query, **facts})
    gpu = stated.get("gpu")
    recipe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rsplit("/", 1)[-1]).lstrip("._-")[:60]
    recipe = {
        "name": recipe_name or "mine",
        "licence": "other",
        "description": "What these measurements are, who made them and how.",
        "archive": {"name": name},
        **({"gpu": {gpu: {}}} if gpu and not is_known(gpu) else {}),
        "source": sources,
    }
    comments = """\
# Written by kernel-archive init; docs/recipes.md explains every key.
# Before you publish: licence (an SPDX name), description, generation_method.
# Each match of a path is one search. role: held_out is asked about, training trained on.

"""
    write_atomically(target, (comments + tomli_w.dumps(recipe)).encode())
    if draft.query is not None:
        write_atomically(query, draft.query.encode())


def preview(recipe: Path) -> dict[str, Any]:
    """Read what a recipe names, without building: counts, first rows, findings, what is missing."""
    jobs = jobs_of([load_recipe(recipe)])
    shown: list[dict[str, Any]] = []  # an evaluation each
    findings: list[Finding] = []
    other_gpus: dict[tuple[str, str], list[Evaluation]] = {}  # those stated, and those of rows
    n_rows = 0
    for job in jobs[:_MAX_RUNS]:
        records = list(READERS[job.source.format].read(job.run_files))
        findings += [record for record in records if isinstance(record, Finding)]
        facts = next((r for r in records if isinstance(r, SearchFacts)), SearchFacts())
        evaluations = [record for record in records if isinstance(record, Evaluation)]
        n_rows += facts.counts.get("rows", len(evaluations))
        stated_gpu = canonical_gpu(job.source.gpu or "")
        for record in evaluations:
            gpu = canonical_gpu(record.gpu or facts.gpu or stated_gpu)
            problem = record.problem or facts.problem or job.problem or ""
            supplied = None
            try:
                supplied = job.reference_text(problem, record.problem)
            except RecipeError as error:
                findings += [fault for fault in error.findings if fault not in findings]
            if stated_gpu and gpu != stated_gpu:
                other_gpus.setdefault((stated_gpu, gpu), []).append(record)
            row = {
                "problem": problem,
                "gpu": gpu,
                "speedup": record.speedup,
                "code": record.code.strip().split("\n", 1)[0][:80],
                "from": place_of(record.source_file, record.source_line),
                "outcome": "refused" if record.excluded else record.outcome,
                "has_reference": record.reference_code or facts.reference_code or supplied,
            }
            shown.append(row)
    for (stated, gpu), others in other_gpus.items():
        finding = Finding(
            code="gpu-differs",
            message=f"--gpu says {stated}, and {counted(len(others), 'row')} say {printable(gpu)}",
            file=others[0].source_file,
            line=others[0].source_line,
            field="gpu",
            fix="Leave --gpu out; where a row names none: coalesce(gpu, '...') AS gpu in the query",
        )
        findings.append(finding)
    missing = [
        f"the {name} of {counted(n, 'row')}: type --{name} NAME, or return it in the query"
        for name in ("gpu", "problem")
        if (n := sum(not row[name] for row in shown))
    ]
    successes = [row for row in shown if row["outcome"] == "success"]
    if n := sum(not row["has_reference"] for row in successes):
        place = "--reference FILE, in the folder of the recipe ({problem} stands for its name)"
        missing.append(f"the reference program of {counted(n, 'program')}: type {place}")
    columns = ("problem", "gpu", "speedup", "code", "from")
    return {
        "runs": len(jobs),
        "runs_read": min(len(jobs), _MAX_RUNS),
        "rows": n_rows,
        "evaluations": len(shown),
        "outcomes": dict(Counter(row["outcome"] for row in shown).most_common()),
        "problems": len({row["problem"] for row in shown} - {""}),
        "gpus": dict(Counter(row["gpu"] for row in shown if row["gpu"]).most_common()),
        "first": [{name: row[name] for name in columns} for row in successes[:3]],
        "findings": findings,
        "missing": missing,
    }


def why_no_build(preview_facts: dict[str, Any]) -> str | None:
    """Say of a preview why a build would end, or hold no program; ``None`` where it would not."""
    if any(finding.code == "gpu-differs" for finding in preview_facts["findings"]):
        return "--gpu contradicts the files, so that build ends"
    if any((finding.field or "").endswith(".reference") for finding in preview_facts["findings"]):
        return "--reference names no program that can be read, so that build ends"
    if not preview_facts["outcomes"].get("success"):
        return (
            "no row is a program with a speedup. Findings and notes say why: correct the query, or "
            "correct the files and type this again with --force. "
            "What it needs from another folder: name one above both (init FOLDER)"
        )
    if not preview_facts["problems"]:
        return "no row says its problem. Type --problem NAME, or correct the query: see the notes"
    if not preview_facts["gpus"]:
        return "no row says its GPU. Type --gpu NAME, or return it in the query"
    return None
