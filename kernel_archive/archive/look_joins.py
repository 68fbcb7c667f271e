"""For ``kernel-archive init``: a second table that has what the first one lacks, joined by the one key that fits."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.archive.guess import Guess, guess
from kernel_archive.archive.seen import run_of
from kernel_archive.errors import printable
from kernel_archive.readers.cells import is_missing, key_of
from kernel_archive.readers.report import Report
from kernel_archive.readers.tables import table_rows
from kernel_archive.readers.values import from_text

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
        theirs = [row for _, row in islice(table_rows(run_of(other), other, Report(), at=at), _MOST_ROWS)]
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
