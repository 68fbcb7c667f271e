"""A first look at somebody's folder: which format it is, the recipe that reads it, and what would come out.

Nothing is built. What a recipe needs and no file says is asked for, or left as a comment that says so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.guess import PROGRAM_ENDINGS, Guess, guess
from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.patterns import common_pattern
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.gpus import canonical_gpu, gpu_in, is_known
from kernel_archive.problems import normalise_problem
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.measurements import MEASUREMENTS
from kernel_archive.readers.openevolve import OPENEVOLVE
from kernel_archive.readers.records import Evaluation, SearchFacts
from kernel_archive.readers.report import Report
from kernel_archive.readers.sniff import looks_like
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import object_of
from kernel_archive.storage import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Look", "look", "preview", "recipe_text", "write_recipe"]

_TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_PACKED: Final = (".gz", ".zst")
#: Files that are looked at, rows of a table, runs read for the preview.
_MOST_FILES: Final = 20_000
_HEAD: Final = 60
_RUNS: Final = 25
_LICENCES: Final = {
    "MIT License": "MIT",
    "Apache License": "Apache-2.0",
    "Creative Commons Attribution 4.0": "CC-BY-4.0",
}


class Look(msgspec.Struct):
    """What was recognised.

    Attributes:
        found: in words.
        sources: keys of each ``[[source]]``; ``path`` is absolute.
        open: what a person must say or look at, by key of the source.
        unused: columns that nothing is read from.
        licence: SPDX name, where a licence file says it.
        gpus: GPUs that need facts in the recipe.
    """

    found: str
    sources: list[dict[str, Any]]
    open: dict[str, str] = {}
    unused: list[str] = []
    licence: str | None = None
    gpus: list[str] = []


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
        _kernelbench(files)
        or _openevolve(files)
        or _own_format(place, files)
        or _table(files, files if place.is_dir() else _files(top))
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


def _run(path: Path, format_: str = "measurements", **settings: Any) -> RunFiles:
    return RunFiles(path, path.parent, msgspec.structs.replace(READERS[format_], also=None), settings)


def _plain_name(path: Path) -> str:
    name = path.name
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return name


# -- formats with files of fixed names


def _kernelbench(files: list[Path]) -> Look | None:
    results = [path for path in files if _plain_name(path) == "eval_results.json"]
    if not results:
        return None
    sources: list[dict[str, Any]] = []
    open_: dict[str, str] = {}
    problems = next(
        (p.parent.parent for p in files if p.suffix == ".py" and re.fullmatch(r"level\d", p.parent.name)), None
    )
    baselines = {path: gpu for path in files if path.suffix == ".json" and (gpu := _baseline_gpu(path)) is not None}
    for path in results:
        data = _run(path, "kernelbench").json(path)
        if not isinstance(data, dict):
            open_[f"run {path.parent.name}"] = (
                f"{path.name} of this run cannot be read: get it again, or take its [[source]] out"
            )
        hardware = re.search(r'"hardware":\s*"([^"]+)"', json.dumps(data)) if isinstance(data, dict) else None
        gpu = canonical_gpu(hardware[1]) if hardware else None
        source: dict[str, Any] = {"path": str(path.parent), "format": "kernelbench"}
        fitting = [p for p, g in baselines.items() if gpu is None or canonical_gpu(g) == gpu]
        if fitting:
            source["baseline"] = str(
                min(fitting, key=lambda p: ("compile" in p.name, p.name != "baseline_time_torch.json", p.name))
            )
        else:
            of = f" of {gpu}" if gpu else ""
            open_["baseline"] = (
                f"runtimes alone give no speedup: name the timing baseline{of} (results/timing/GPU/baseline_time_torch.json)"
            )
        if problems is not None:
            source["problems"] = str(problems)
        else:
            open_["problems"] = (
                "the folder with the reference programs (level1/1_*.py ...): without them forecasters see the candidate alone"
            )
        if not any(path.parent.glob("level_*_problem_*_kernel.py")):
            open_["programs"] = (
                f"no level_*_problem_*_sample_*_kernel.py beside {path.name}: the programs themselves are missing"
            )
        if hardware is None and isinstance(data, dict):
            open_["gpu"] = "the GPU, which the results do not name"
        sources.append({**source, "generation_method": "sampling"})
    return Look(found=f"{len(results)} run(s) of KernelBench (eval_results.json)", sources=sources, open=open_)


def _baseline_gpu(path: Path) -> str | None:
    """The GPU of a timing baseline, empty where it names none; ``None`` for what is no baseline."""
    try:
        head = path.read_bytes()[: 1 << 20] if path.stat().st_size < 1 << 24 else b""
    except OSError:
        return None
    if not re.match(rb'\s*\{\s*"level\d"', head):
        return None
    found = re.search(rb'"hardware":\s*"([^"]+)"', head)
    return found[1].decode("utf-8", "replace") if found else ""


def _openevolve(files: list[Path]) -> Look | None:
    programs = [path for path in files if path.parent.name == "programs" and path.suffix == ".json"]
    runs = sorted({_evolution_root(path) for path in programs})
    if not runs:
        return None
    rows = [row for path in programs[-_HEAD:] if isinstance(row := _run(path, "openevolve").json(path), dict)]
    if not any("code" in row and "metrics" in row for row in rows):
        return None
    metrics = [object_of(row.get("metrics")) for row in rows]
    guessed = guess([{"metrics": each} for each in metrics])
    # Failures have a time of 0, which says nothing of what a metric is.
    timed = guess([{"metrics": {name: value for name, value in each.items() if value != 0}} for each in metrics])
    columns = {
        ours: rule
        for ours, rule in (timed.columns | guessed.columns).items()
        if ours in ("speedup", "runtime", "reference_runtime", "correct", "compiled")
    }
    if "speedup" in columns and "." in str(columns["speedup"]) and columns["speedup"].endswith(("score", ".x")):
        del columns["speedup"]
    open_ = {key: text for key, text in (timed.open | guessed.open).items() if "metrics" in key}
    source: dict[str, Any] = {"format": "openevolve", "columns": columns, "generation_method": "evolution"}
    if "speedup" not in columns and "reference_runtime" not in columns:
        source["reference"] = "root"
        if "runtime" not in columns:
            names = sorted({str(name) for each in metrics for name in each})
            open_["columns"] = (
                f"which metric is the speedup or a time: {', '.join(names[:15])} (a combined_score is neither)"
            )
    elif "reference_runtime" not in columns:
        open_["reference"] = (
            'the file with the reference program, or "root" where the first program is it; without one forecasters see the candidate alone'
        )
    open_ |= {"gpu": "the GPU, which checkpoints do not name", "problem": "what the programs compute"}
    sources = [{"path": str(run), **source} for run in runs]
    if len(runs) > 1 and (one := common_pattern(runs, "p")) is not None:
        pattern, folders = one
        sources = [{"path": pattern, **source}]
        if len({name.strip("0123456789_-. ") for name in folders.values()}) > 1:  # not run_1, run_2
            sources[0]["problem"] = "{p}"
            listed = ", ".join(printable(name, 30) for name in list(folders.values())[:8])
            open_["problem"] = f"the folders' names are taken for the problems: {listed}; else say problem"
    return Look(
        found=f"{len(programs):,} program files of OpenEvolve checkpoints in {len(runs)} run(s)",
        sources=sources,
        open=open_,
        unused=sorted(
            {*timed.unused, *guessed.unused}
            - {rule if isinstance(rule, str) else str(rule.get("column")) for rule in columns.values()}
        ),
    )


def _evolution_root(path: Path) -> Path:
    """The run that a program's file belongs to, as the reader expects it."""
    checkpoint = path.parent.parent
    outer = checkpoint.parent if checkpoint.name.startswith("checkpoint_") else None
    return checkpoint if outer is None else outer.parent if outer.name == "checkpoints" else outer


def _own_format(place: Path, files: list[Path]) -> Look | None:
    """A format of which a single file tells what it is: the logs of searches."""
    others = {name: spec for name, spec in READERS.items() if spec not in (MEASUREMENTS, OPENEVOLVE)}
    for path in files[:200]:
        if not _plain_name(path).endswith(_TABLES):
            continue
        said = looks_like(_run(path), path).split(" ")[0]
        spec = others.get(said)
        if spec is None:
            continue
        named = [p for p in files if p.name == path.name]
        in_runs = bool(spec.files) and _plain_name(path) in spec.files
        if place.is_file() or not in_runs:
            pattern = str(path) if place.is_file() else str(path.parent / f"*{path.suffix}")
        else:
            pattern = str(path.parent if len(named) == 1 else path.parent.parent / "*")
        source = {"path": pattern, "format": said, "generation_method": "tree_search"}
        return Look(
            found=f"{spec.title} ({path.name})",
            sources=[source],
            open={"gpu": "the GPU, where the logs do not name it"},
        )
    return None


# -- tables


def _table(files: list[Path], around: list[Path]) -> Look | None:
    """The tables among some files; ``around`` are the files that may hold their programs."""
    groups: dict[tuple[str, ...], list[tuple[Path, str | None, list[dict[str, Any]]]]] = {}
    for path in [p for p in files if _plain_name(p).lower().endswith(_TABLES)][:200]:
        at, rows = _head_of(path)
        if rows:
            groups.setdefault(tuple(sorted({key for row in rows for key in row})), []).append((path, at, rows))
    best: tuple[tuple[int, int], Look] | None = None
    for members in groups.values():
        path, at, rows = members[0]
        below = [
            str(p.relative_to(path.parent))
            for p in around
            if p.is_relative_to(path.parent) and p.suffix in PROGRAM_ENDINGS
        ]
        guessed = guess(rows, path.parent, below)
        rank = (guessed.worth, len(members))
        if guessed.worth and (best is None or rank > best[0]):
            best = rank, _table_look([p for p, _, _ in members], at, rows, guessed, files)
    return best[1] if best is not None else None


def _head_of(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """The first rows of a table, and where they are in a JSON document."""
    rows = [row for _, row in islice(table_rows(_run(path), path, Report()), _HEAD)]
    value = _run(path).json(path) if _plain_name(path).endswith(".json") else None
    if isinstance(value, dict):
        number, at = _rows_in(value)
        if number > len(rows):
            return at, [row for _, row in islice(table_rows(_run(path), path, Report(), at=at), _HEAD)]
    return None, rows


def _rows_in(value: Any, depth: int = 4) -> tuple[int, str]:
    """Where in a document rows are: the place with the most, ``{key}`` for every name at a place, and how many."""
    if isinstance(value, list):
        return (len(value), "") if value and all(isinstance(item, dict) for item in value) else (0, "")
    if not isinstance(value, dict) or not depth:
        return 0, ""
    inner = {key: _rows_in(item, depth - 1) for key, item in value.items()}
    found = [(n, f"{key}.{at}".rstrip(".")) for key, (n, at) in inner.items() if n and "." not in key]
    if len(inner) > 1 and len(places := {at for _, at in inner.values()}) == 1:
        # The same under every name: rows there, or each of them a row.
        at = places.pop()
        n = sum(n for n, _ in inner.values())
        if n and "{key}" not in at:
            found.append((n, f"{{key}}.{at}".rstrip(".")))
        elif not n and all(isinstance(item, dict) for item in value.values()):
            found.append((len(inner), "{key}"))
    return max(found, default=(0, ""), key=lambda option: (option[0], "{" in option[1]))


def _table_look(
    paths: list[Path], at: str | None, rows: list[dict[str, Any]], guessed: Guess, files: list[Path]
) -> Look:
    """The source of tables with the same columns, and what they leave open."""
    first, open_, columns = paths[0], dict(guessed.open), dict(guessed.columns)
    source: dict[str, Any] = {"path": str(first), "format": "measurements"}
    named = {p: gpu_in(p.name.removesuffix("".join(p.suffixes))) or gpu_in(p.parent.name) for p in paths}
    one = common_pattern(paths, "card") if len(paths) > 1 else None
    gpus: list[str] = []
    apart = False
    if one is not None:
        pattern, cards = one
        are_cards = sum(gpu_in(card) == canonical_gpu(card) for card in cards.values())
        if "gpu" not in columns and are_cards * 2 >= len(cards):
            source |= {"path": pattern, "gpu": "{card}"}
            gpus = [card for card in cards.values() if not is_known(card)]
        else:
            source["path"] = pattern.replace("{card}", "*")
            apart = "gpu" not in columns and any(named.values())
    elif len(paths) > 1:
        same = [p for p in files if p.parent == first.parent and p.suffixes == first.suffixes]
        apart = set(same) != set(paths) or ("gpu" not in columns and any(named.values()))
        source["path"] = str(first.parent / f"*{''.join(first.suffixes)}")
    if "gpu" not in columns and "gpu" not in source and any(named.values()):
        gpus = [gpu for gpu in named.values() if gpu and not is_known(gpu)]
        said = sorted({gpu for gpu in named.values() if gpu})
        open_["gpu"] = f"taken from the file's name: {', '.join(said)}" + (
            "" if all(named.values()) else "; the GPU of the other files is not said"
        )
    if at is not None:
        source["rows"] = at
    if "speedup" not in columns and "runtime" in columns and "reference_runtime" not in columns:
        source["reference"] = "root"
        open_["reference"] = (
            "no reference's time: the first row counts as the reference (root); or map reference_runtime"
        )
    elif "reference_code" not in columns:
        text = _reference_file(first.parent)
        source |= {"reference": text} if text else {}
        if not text:
            open_["reference"] = (
                'the reference programs, reference = "references/{problem}.py" or a column: without them forecasters see the candidate alone'
            )
    if "code" not in columns:
        open_["code"] = "no column holds programs or names their files"
    if not {"speedup", "runtime", "correct", "outcome"} & columns.keys():
        open_["speedup"] = "no column is a speedup, a time, or an outcome"
    if "gpu" not in columns and "gpu" not in source and "gpu" not in open_:
        open_["gpu"] = "the GPU, which the table does not name"
    if "problem" not in columns and "number" not in columns:
        open_["problem"] = "what the programs compute, which the table does not say"
    source |= {
        "generation_method": "evolution" if {"parent_node_id", "kept"} & columns.keys() else "independent",
        "columns": columns,
    }
    what = f"{len(paths)} table(s) like {first.name} of {len(rows)}{'+' if len(rows) == _HEAD else ''} rows"
    sources = [source]
    if "gpu" not in columns and "gpu" not in source:
        each = paths if apart else paths[:1]
        sources = [
            {**source, **({"path": str(p)} if apart else {}), **({"gpu": named[p]} if named[p] else {})} for p in each
        ]
    elif apart:
        sources = [{**source, "path": str(p)} for p in paths]
    return Look(found=what, sources=sources, open=open_, unused=guessed.unused, gpus=gpus)


def _reference_file(folder: Path) -> str | None:
    """A single file that is called like a reference program."""
    found = [p for p in folder.glob("*.py") if re.match(r"(ref|reference|baseline|original)", p.name.lower())]
    return str(found[0]) if len(found) == 1 else None


# -- the recipe


def recipe_text(found: Look, folder: Path, *, name: str, answers: Mapping[str, str]) -> str:
    """A commented ``builder.toml`` for a folder.

    Args:
        found: what was recognised.
        folder: where the recipe will be; paths are relative to it.
        name: name of the archive, ``owner/dataset``.
        answers: keys of the sources that a person said (gpu, problem, role, reference, ...).
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
            yield f"# {key} = ...  # NEEDED: {text}" if key in _ORDER and key not in source else f"# LOOK: {text}"
    if source.get("columns"):
        yield ""
        yield "[source.columns]  # our column = theirs; kernel-archive readers --columns lists ours"
        for ours, rule in source["columns"].items():
            yield f"{ours} = {_toml(rule)}"


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


def write_recipe(path: Path, text: str) -> None:
    """Write a recipe; what stands there is replaced."""
    write_atomically(path, text.encode())


# -- what would come out


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
    first: list[dict[str, Any]] = []
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
            if record.outcome == "success" and record.excluded is None and len(first) < 3:
                line = next((text.strip() for text in record.code.split("\n") if text.strip()), "")
                first.append(
                    {
                        "problem": problem,
                        "gpu": gpu,
                        "speedup": record.speedup,
                        "code": line[:80],
                        "from": record.source_file,
                        "line": record.source_line,
                    }
                )
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
    return {
        "runs": len(jobs),
        "runs_read": min(len(jobs), _RUNS),
        "rows": rows,
        "evaluations": n,
        "outcomes": dict(outcomes.most_common()),
        "problems": len(problems),
        "gpus": dict(gpus.most_common()),
        "with_parent": parents,
        "first": first,
        "findings": findings,
        "missing": missing,
    }
