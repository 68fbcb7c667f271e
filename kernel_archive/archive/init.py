"""For ``kernel-archive init``: a recipe and a query for a folder, and the first rows of it.

Files that a shipped query reads get that query, a search log gets its reader. Any other table gets
a query made from the names of its columns, with the word LOOK where it is a guess. Names are data:
they are quoted.
"""

from __future__ import annotations

import fnmatch
import os
import re
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import tomli_w

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu, is_known
from kernel_archive.readers import READERS
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.sql import QueryError, files_below, run_query
from kernel_archive.storage import content_path, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Look at this many files of a folder, tables of it, and columns of a table.
_MAX_FILES: Final = 20_000
_MAX_TABLES: Final = 20
_MAX_COLUMNS: Final = 2_000
#: Ending of a table -> how DuckDB reads it. The dialect of CSV is stated: a guess could move with a
#: damaged byte.
_CSV: Final = (
    "read_csv(getvariable('file'), all_varchar = true, header = true, "
    "delim = '{}', quote = '\"', escape = '\"')"
)
_READ: Final = {
    ".csv": _CSV.format(","),
    ".tsv": _CSV.format("\t"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "read_json(getvariable('file'))"),
    ".parquet": "read_parquet(getvariable('file'))",
}
_PROGRAMS: Final = (".py", ".cu", ".cuh", ".cpp", ".hip", ".txt")


class KnownColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of ours, and how theirs are called and read (``init_names.toml``)."""

    name: str
    patterns: list[str]  # over the words of a name, the best first
    sql: str = "{}"  # what makes ours of theirs
    file: bool = False  # whether theirs names a file with the text
    look: str | None = None  # what a person must check


_KNOWN: Final = msgspec.toml.decode(
    Path(__file__).with_name("init_names.toml").read_bytes(), type=dict[str, list[KnownColumn]]
)["column"]


class Draft(msgspec.Struct, kw_only=True):
    """What was recognised: the sources of a recipe, the query, and what a person must look at."""

    found: str
    sources: list[dict[str, Any]]
    query: str | None = None
    notes: list[str] = []


def draft_recipe(place: Path) -> Draft:
    """Recognise a folder or file.

    Raises:
        DataError: it is not there, or nothing in it is recognised.
    """
    place = place.absolute()
    if not place.exists():
        message = "there is no such file or folder"
        raise DataError.of(code="missing-file", message=message, file=str(place))
    folder = place if place.is_dir() else place.parent
    files = files_below(folder) if place.is_dir() else [str(place)]
    names = sorted(os.path.relpath(name, folder) for name in islice(files, _MAX_FILES))
    names = [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]
    draft = _shipped(folder, names) or _own_format(folder, names) or _table(folder, names)
    if draft is None:
        endings = Counter(Path(name).suffix or Path(name).name for name in names).most_common(8)
        shown = ", ".join(f"{n} {printable(ending, 40)}" for ending, n in endings) or "no files"
        raise DataError.of(
            code="nothing-recognised",
            message=f"nothing in it is recognised as results: {shown}",
            file=str(place),
            fix='Write a query yourself: format = "sql" (docs/own-data.md)',
        )
    return draft


def _shipped(folder: Path, names: Sequence[str]) -> Draft | None:
    """Return the shipped query whose files are there."""
    for path in sorted(content_path("builders").glob("*/*.sql")):
        text = path.read_text(encoding="utf-8")
        stated = re.search(r"^-- Files: (.*)$", text, re.MULTILINE)
        patterns = stated[1].replace(",", " ").split() if stated else []
        wanted = [f"*/{pattern.removeprefix('**/')}" for pattern in patterns]
        fitting = [n for n in names if any(fnmatch.fnmatchcase(f"/{n}", w) for w in wanted)]
        if not fitting:
            continue
        is_each = "getvariable('file')" in text
        paths = [str(folder / name) for name in fitting] if is_each else [str(folder)]
        label = path.stem if path.parent.name == "queries" else path.parent.name
        found = f"{len(fitting):,} files that the shipped query {label} reads"
        return Draft(
            found=f"{found}, first {printable(fitting[0], 80)}",
            sources=[{"path": each, "format": "sql", "query": "import.sql"} for each in paths],
            query=text,
        )
    return None


def _own_format(folder: Path, names: Sequence[str]) -> Draft | None:
    """Recognise a search log of a format with a file name of its own."""
    for name in names:
        plain = _uncompressed(name).name
        spec = next((s for s in READERS.values() if plain in s.files[:1]), None)
        if spec is not None:
            source = {"path": str((folder / name).parent), "format": spec.name}
            note = "one run is named: write * in the path for the runs beside it"
            return Draft(found=f"{spec.title} ({printable(name)})", sources=[source], notes=[note])
    return None


def _table(folder: Path, names: Sequence[str]) -> Draft | None:
    """Recognise the table from which most columns of ours are known, and the tables like it."""
    tables = [name for name in names if _uncompressed(name).suffix.lower() in _READ]
    columns = {name: _columns(folder, name) for name in tables[:_MAX_TABLES]}
    n_known = {name: len(_matched(c)) for name, c in columns.items()}
    best = max(n_known, key=n_known.__getitem__, default=None)
    if best is None or n_known[best] < 2:
        return None
    same = [name for name in columns if columns[name] == columns[best]]
    query, notes = _query(best, columns[best], names)
    more = f", and {len(same) - 1} like it" if len(same) > 1 else ""
    return Draft(
        found=f"the table {printable(best, 80)}{more}",
        sources=[{"path": str(folder / n), "format": "sql", "query": "import.sql"} for n in same],
        query=query,
        notes=notes,
    )


def _uncompressed(name: str) -> Path:
    return Path(name.removesuffix(".zst").removesuffix(".gz"))


def _columns(folder: Path, table: str) -> list[str]:
    """Names of a table's columns; none where DuckDB cannot read it."""
    read = _READ[_uncompressed(table).suffix.lower()]
    describe = f"SELECT column_name FROM (DESCRIBE FROM {read}) LIMIT {_MAX_COLUMNS}"
    with tempfile.TemporaryFile() as answer:
        try:
            rows = run_query(describe, folder, {"file": table}, answer, seconds=60)
            return [str(name) for name in rows["column_name"].to_pylist()]
        except (QueryError, ValueError):  # a text that is no UTF-8
            return []


def _matched(columns: Sequence[str]) -> dict[str, tuple[str, KnownColumn]]:
    """Map columns of ours to a column of theirs, with what is known of such."""
    words = {}
    for column in columns:
        # kernelTime (ms) becomes kernel_time_ms.
        split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower().replace("\u00b5s", "us")
        words[column] = re.sub(r"[^a-z0-9]+", "_", split).strip("_")
    matched: dict[str, tuple[str, KnownColumn]] = {}
    for known in _KNOWN:
        fits = [c for p in known.patterns for c, name in words.items() if re.fullmatch(p, name)]
        if fits and known.name not in matched:
            matched[known.name] = (fits[0], known)
            del words[fits[0]]
    return matched


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _query(table: str, columns: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """Write a query over a table, and what a person must look at."""
    matched = _matched(columns)
    lines, joins, notes = list[str](), list[str](), list[str]()
    programs = Counter(ending for n in names if (ending := Path(n).suffix) in _PROGRAMS)
    for ours, (theirs, known) in matched.items():
        value = f"t.{quoted(theirs)}"
        if known.file:
            ending = programs.most_common(1)[0][0] if programs else ".py"
            alias = f"{ours}_file"
            joins.append(
                f"LEFT JOIN read_text('**/*{ending}') {alias}\n"
                f"  ON ends_with('/' || {alias}.filename, '/' || ltrim({value}, './'))"
            )
            lines.append(f"{alias}.content AS {ours},  -- the file that {printable(theirs)} names")
        else:
            look = f"  -- LOOK: {known.look}" if known.look else ""
            lines.append(f"{known.sql.format(value)} AS {ours},{look}")
        if known.look:
            notes.append(f"{printable(theirs, 60)}: {known.look}")
    if "code" not in matched:
        notes.append("no column with the program, or with the name of its file, was recognised")
    used = {theirs for theirs, _ in matched.values()}
    unused = ", ".join([printable(c, 40) for c in columns if c not in used][:40])
    read = _READ[_uncompressed(table).suffix.lower()]
    query = [
        "-- Written by kernel-archive init from the names of the columns: read it first.",
        f"-- Columns that nothing is read from: {unused or 'none'}",
        "SELECT",
        *(f"  {line}" for line in lines),
        "  getvariable('file') AS source_file,",
        "  t.source_row",
        f"FROM (SELECT *, row_number() OVER () AS source_row FROM {read}) t",
        *joins,
        "ORDER BY t.source_row",
    ]
    return "\n".join(query) + "\n", notes


def write_recipe(draft: Draft, target: Path, *, name: str, answers: dict[str, str]) -> None:
    """Write ``builder.toml``, and the query beside it."""
    here = target.absolute().parent
    stated = {key: answers[key] for key in ("gpu", "problem", "reference") if answers.get(key)}
    stated |= {"role": answers.get("role") or "held_out", "generation_method": "unknown"}
    sources = []
    for source in draft.sources:
        place = Path(source["path"])
        inside = place.relative_to(here).as_posix() if place.is_relative_to(here) else str(place)
        pattern = re.sub(r"[{}]", "?", re.sub(r"([*?\[])", r"[\1]", inside))
        sources.append({**source, "path": pattern, **stated})
    gpu = answers.get("gpu")
    own_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rsplit("/", 1)[-1]).lstrip("._-")[:60]
    recipe = {
        "name": own_name or "mine",
        "licence": answers.get("licence") or "other",
        "description": "What these measurements are, who made them and how.",
        "archive": {"name": name},
        **({"gpu": {gpu: {}}} if gpu and not is_known(gpu) else {}),
        "source": sources,
    }
    comments = """\
# Written by kernel-archive init; kernel-archive readers --keys explains every key.
# Before you publish: licence (an SPDX name), description, generation_method.
# Each match of a path is one search. role: held_out is asked about, training trained on.

"""
    write_atomically(target, (comments + tomli_w.dumps(recipe)).encode())
    if draft.query is not None:
        write_atomically(here / "import.sql", draft.query.encode())


def preview(recipe: Path) -> dict[str, Any]:
    """Read what a recipe names, without building: counts, first rows, findings, what is missing."""
    findings: list[Finding] = []
    rows: list[dict[str, Any]] = []
    n_rows = 0
    jobs = jobs_of([load_recipe(recipe)])
    for job in jobs:
        records = list(READERS[job.source.format].read(job.run_files))
        findings += [record for record in records if isinstance(record, Finding)]
        facts = next((r for r in records if isinstance(r, SearchFacts)), SearchFacts())
        evaluations = [record for record in records if isinstance(record, Evaluation)]
        n_rows += facts.counts.get("rows", len(evaluations))
        rows += [
            {
                "problem": record.problem or facts.problem or job.source.problem or "",
                "gpu": canonical_gpu(record.gpu or facts.gpu or job.source.gpu or ""),
                "outcome": "refused" if record.excluded else record.outcome,
                "speedup": record.speedup,
                "code": record.code.strip().split("\n", 1)[0][:80],
                "from": record.source_file,
                "line": record.source_line,
            }
            for record in evaluations
        ]
    counts = {name: Counter(row[name] for row in rows) for name in ("outcome", "problem", "gpu")}
    missing = [
        f"the {name} of {n:,} rows: {name} = ... in the [[source]]"
        for name in ("gpu", "problem")
        if (n := counts[name].pop("", 0))
    ]
    return {
        "runs": len(jobs),
        "rows": n_rows,
        "evaluations": len(rows),
        "outcomes": dict(counts["outcome"].most_common()),
        "problems": len(counts["problem"]),
        "gpus": dict(counts["gpu"].most_common()),
        "first": [row for row in rows if row["outcome"] == "success"][:3],
        "findings": findings,
        "missing": missing,
    }
