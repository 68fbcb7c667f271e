"""For ``kernel-archive init``: which files are tables of results, where their rows are, what their columns mean, what belongs to them."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive import seen
from kernel_archive.archive.guess import PROGRAM_ENDINGS, Guess, guess
from kernel_archive.errors import printable
from kernel_archive.gpus import canonical_gpu, gpu_in, is_known
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text, is_missing, key_of, lookup, spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

#: Rows of the second table that are read, and the share of the first one's rows that must find theirs.
_MOST_ROWS: Final = 10_000
_SHARE: Final = 0.9
#: What is worth a join.
_WANTED: Final = frozenset({"code", "speedup", "runtime", "reference_runtime", "correct", "outcome", "reference_code"})

Table = tuple["Path", "str | None", list[dict[str, Any]]]


def completed(first: Table, guessed: Guess, others: Iterable[Table], below: Sequence[str]) -> tuple[Guess, list[Any]]:
    """What the columns of a table mean together with the tables that complete it, and the ``[[source.join]]`` of these."""
    path, _, rows = first
    joins: list[dict[str, Any]] = []
    for other, at, _ in others:
        if "code" in guessed.columns and (
            "speedup" in guessed.columns or {"runtime", "reference_runtime"} <= guessed.columns.keys()
        ):
            break
        name = other.name.split(".")[0]
        theirs = [row for _, row in islice(table_rows(seen.run_of(other), other, Report(), at=at), _MOST_ROWS)]
        options = _keys(rows, theirs)
        partners = {key_of(row, options[0].values()): row for row in theirs} if options else {}
        merged = [{**row, name: partners.get(key_of(row, options[0]), {})} for row in rows] if options else []
        more = guess(merged, path.parent, below)
        added = {
            ours: rule for ours, rule in more.columns.items() if ours not in guessed.columns and f"{name}." in str(rule)
        }
        if not _WANTED & added.keys() or any(join["name"] == name for join in joins) or name in rows[0]:
            continue
        shown = printable(other.name, 60)
        if len(options) > 1:
            said = " or ".join(_said(on) for on in options[:4])
            guessed.open[f"join of {shown}"] = f"several keys fit, none is taken: {said}; add a [[source.join]]"
            continue
        joins.append(
            {
                "name": name,
                "path": os.path.relpath(other, path.parent),
                "on": options[0],
                **({"rows": at} if at else {}),
            }
        )
        guessed.columns |= added
        guessed.open[f"join of {shown}"] = f"guessed by the only key that fits, {_said(options[0])}"
        guessed.open |= {key: text for key, text in more.open.items() if f"{name}." in key}
        guessed.unused = [
            theirs for theirs in more.unused if theirs.removeprefix(f"{name}.") not in options[0].values()
        ]
        rows = merged
    return guessed, joins


def _said(on: dict[str, str]) -> str:
    return ", ".join(f"{printable(a, 40)} = {printable(b, 40)}" for a, b in on.items())


def _keys(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """The ways in which rows can belong to rows of another table: by a column of one name, by all of them, else by any one."""
    ours, theirs = _columns(rows), _columns(others)
    shared = [name for name in ours if name in theirs]
    same = [{name: name} for name in shared if _fit(rows, others, {name: name})]
    together = {name: name for name in shared}
    if not same and len(shared) > 1 and _fit(rows, others, together):
        same = [together]
    return same or [on for a in ours for b in theirs if a != b and _fit(rows, others, on := {a: b})]


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Columns that may be keys: short texts or whole numbers, more than one."""
    found = []
    for name in {name: None for row in rows for name in row}:
        values = [from_text(row.get(name)) for row in rows if not is_missing(row.get(name))]
        plain = all(isinstance(v, str | int) and not isinstance(v, bool) and len(str(v)) < 200 for v in values)
        if plain and len(set(values)) > 1:
            found.append(name)
    return found


def _fit(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], on: dict[str, str]) -> bool:
    """Whether the key stands once in the second table, and nearly every row of the first one finds it there."""
    keys = [key for row in others if (key := key_of(row, on.values())) is not None]
    found = set(keys)
    return len(found) == len(keys) and sum(key_of(row, on) in found for row in rows) >= _SHARE * len(rows)


#: Tables that are tried as the second of two.
_MOST_JOINED: Final = 6
_COMMA: Final = re.compile(r"[-+]?\d+,\d+(\s*[a-zµ]{1,3})?")


def tables(files: list[Path], around: list[Path]) -> seen.Look | None:
    """The tables among some files; ``around`` are the files that may hold their programs."""
    groups: dict[tuple[str, ...], list[tuple[Path, str | None, list[dict[str, Any]]]]] = {}
    for path in [p for p in files if seen.plain_name(p).lower().endswith(seen.TABLES)][:200]:
        at, rows = _head_of(path)
        if rows:
            groups.setdefault(tuple(sorted({key for row in rows for key in row})), []).append((path, at, rows))
    best: tuple[tuple[int, int, int], seen.Look] | None = None
    for members in groups.values():
        path, at, rows = members[0]
        below = [
            str(p.relative_to(path.parent))
            for p in around
            if p.is_relative_to(path.parent) and p.suffix in PROGRAM_ENDINGS
        ]
        guessed = guess(rows, path.parent, below)
        if "code" not in guessed.columns and len(members) > 1 and all(len(head) == 1 for _, _, head in members):
            guessed.columns |= _beside([p for p, _, _ in members])
        others = [each[0] for each in groups.values() if len(each) == 1 and each is not members]
        guessed, joins = completed(members[0], guessed, others[:_MOST_JOINED], below)
        rank = (guessed.worth, len(guessed.columns) if joins else 0, len(members))
        if guessed.worth and (best is None or rank > best[0]):
            best = rank, _table_look([p for p, _, _ in members], at, rows, guessed, files)
            for source in best[1].sources if joins else ():
                source["join"] = joins
    return best[1] if best is not None else None


def _head_of(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """The first rows of a table, and where they are in a JSON document."""
    rows = [row for _, row in islice(table_rows(seen.run_of(path), path, Report()), seen.HEAD)]
    name = seen.plain_name(path)
    value = seen.run_of(path).json(path) if name.endswith(".json") else None
    number, at = _rows_in(value) if isinstance(value, dict) else (0, "")
    if rows and not isinstance(value, dict) and name.endswith((".json", ".jsonl", ".ndjson")):
        # Lists inside of rows are rows where these have what the outer ones lack.
        number, at = max(
            (_rows_in({k: v for k, v in row.items() if isinstance(v, list)}) for row in rows), default=(0, "")
        )
        at = f"{{row}}.{at}" if at and name.endswith(".json") else at
    inner = [row for _, row in islice(table_rows(seen.run_of(path), path, Report(), at=at), seen.HEAD)] if at else []
    if number > len(rows) if isinstance(value, dict) else guess(inner).worth > guess(rows).worth:
        return at, inner
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
        if n and "{sample}" not in at and all(isinstance(item, dict | list) for item in value.values()):
            found.append((n, f"{{key}}.{at.replace('{key}', '{sample}')}".rstrip(".")))
        elif not n and all(isinstance(item, dict) for item in value.values()):
            found.append((len(inner), "{key}"))
    return max(found, default=(0, ""), key=lambda option: (option[0], "{" in option[1]))


def _table_look(
    paths: list[Path], at: str | None, rows: list[dict[str, Any]], guessed: Guess, files: list[Path]
) -> seen.Look:
    """The source of tables with the same columns, and what they leave open."""
    first, open_, columns = paths[0], dict(guessed.open), dict(guessed.columns)
    source: dict[str, Any] = {"path": str(first), "format": "measurements"}
    named = {p: gpu_in(p.name.removesuffix("".join(p.suffixes))) or gpu_in(p.parent.name) for p in paths}
    timed = str(columns.get("runtime", {}).get("column", ""))
    by_column = gpu_in(timed) if "gpu" not in columns else None
    if by_column is not None:
        named = dict.fromkeys(paths, by_column)
        rest = sorted({gpu for name in guessed.unused if (gpu := gpu_in(name)) not in (None, by_column)})
        if rest:
            open_["other GPUs"] = (
                f"columns of {', '.join(rest)} are left out: write the table with a row for each GPU to have them"
            )
    one = seen.common_pattern(paths, "card") if len(paths) > 1 else None
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
            apart = "gpu" not in columns and by_column is None and any(named.values())
            if not apart and not {"problem", "number"} & columns.keys() and seen.are_problems(cards.values()):
                source |= {"path": pattern.replace("{card}", "{p}"), "problem": "{p}"}
                open_["problem"] = seen.taken_for_problems(cards.values(), "files' or folders' names")
    elif len(paths) > 1 and (tree := seen.tree_pattern(paths)) is not None:
        source["path"], folders = tree
        part, values = min(folders, key=lambda folder: len(set(folder[1])))
        if "problem" not in columns and "number" not in columns and 1 < len(set(values)) < len(paths):
            source["problem"] = part
            open_["problem"] = seen.taken_for_problems(values, "folders' names")
    elif len(paths) > 1:
        same = [p for p in files if p.parent == first.parent and p.suffixes == first.suffixes]
        apart = set(same) != set(paths) or ("gpu" not in columns and any(named.values()))
        source["path"] = str(first.parent / f"*{''.join(first.suffixes)}")
    if "gpu" in columns:
        gpus = sorted({name for row in rows if (name := spelled(lookup(row, columns["gpu"]))) and not is_known(name)})
    elif "gpu" not in source and any(named.values()):
        gpus = [gpu for gpu in named.values() if gpu and not is_known(gpu)]
        said = sorted({gpu for gpu in named.values() if gpu})
        where = "file's name" if by_column is None else f"name of the column {printable(timed, 40)}"
        open_["gpu"] = f"taken from the {where}: {', '.join(said)}" + (
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
                'the reference programs, reference = "references/{problem}.py", "root" where the first row is it, or a column: without them forecasters see the candidate alone'
            )
    if at is not None and "{key}" in at and columns.get("problem") == "key":
        open_["problem"] = seen.taken_for_problems((str(row.get("key")) for row in rows), "keys of the document")
    commas = [name for name in guessed.unused if any(_COMMA.fullmatch(str(row.get(name)).strip()) for row in rows)]
    if commas:
        listed = ", ".join(printable(name, 40) for name in commas[:5])
        open_["numbers"] = f"{listed}: a comma in a number is not read; write decimals with a point"
    if "code" not in columns:
        open_["code"] = "no column holds programs or names their files"
    if not {"speedup", "runtime", "correct", "outcome"} & columns.keys():
        open_["speedup"] = "no column is a speedup, a time, or an outcome"
    if "gpu" not in columns and "gpu" not in source and "gpu" not in open_:
        open_["gpu"] = "the GPU, which the table does not name"
    if "problem" not in columns and "number" not in columns and "problem" not in source:
        open_["problem"] = "what the programs compute, which the table does not say"
    source |= {
        "generation_method": "evolution" if {"parent_node_id", "kept"} & columns.keys() else "independent",
        "columns": columns,
    }
    what = f"{len(paths)} table(s) like {first.name} of {len(rows)}{'+' if len(rows) == seen.HEAD else ''} rows"
    sources = [source]
    if "gpu" not in columns and "gpu" not in source:
        each = paths if apart else paths[:1]
        sources = [
            {**source, **({"path": str(p)} if apart else {}), **({"gpu": named[p]} if named[p] else {})} for p in each
        ]
    elif apart:
        sources = [{**source, "path": str(p)} for p in paths]
    return seen.Look(found=what, sources=sources, open=open_, unused=guessed.unused, gpus=gpus)


def _beside(paths: list[Path]) -> dict[str, Any]:
    """The program, and the reference, that lie under one name beside every one of some files of a single row each."""
    there = [{p.name for p in path.parent.iterdir() if p.suffix in PROGRAM_ENDINGS} for path in paths]
    names = sorted(set.intersection(*there))
    references = [name for name in names if re.match(r"(ref|reference|baseline|original|torch)", name.lower())]
    programs = [name for name in names if name not in references and not name.endswith(".txt")]
    if len(programs) != 1 or len({path.parent for path in paths}) != len(paths):
        return {}
    reference = {"reference_code": {"file": references[0]}} if len(references) == 1 else {}
    return {"code": {"file": programs[0]}, **reference}


def _reference_file(folder: Path) -> str | None:
    """A single file that is called like a reference program."""
    found = [p for p in folder.glob("*.py") if re.match(r"(ref|reference|baseline|original)", p.name.lower())]
    return str(found[0]) if len(found) == 1 else None
