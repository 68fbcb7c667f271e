"""For ``kernel-archive init``: what was recognised in a user's folder, how its files are opened for that, and one path for several of them."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Endings of tables, packed or not.
TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_PACKED: Final = (".gz", ".zst")
#: Rows of a table that are looked at.
HEAD: Final = 60
_PARTS: Final = frozenset({"train", "test", "valid", "validation", "val", "dev", "eval", "all", "old", "new"})


class Look(msgspec.Struct):
    """What was recognised."""

    found: str  # in words
    sources: list[dict[str, Any]]  # keys of each [[source]]; path is absolute
    open: dict[str, str] = {}  # what a person must say or look at, by key of the source
    unused: list[str] = []  # columns that nothing is read from
    licence: str | None = None  # SPDX name, where a licence file says it
    gpus: list[str] = []  # those that need facts in the recipe


def run_of(path: Path, format_: str = "measurements") -> RunFiles:
    """A file as a reader would see it."""
    return RunFiles(path, path.parent, msgspec.structs.replace(READERS[format_], also=None))


def plain_name(path: Path) -> str:
    """A file's name without the ending of its packing."""
    name = path.name
    for ending in _PACKED:
        name = name.removesuffix(ending)
    return name


def are_problems(names: Iterable[str]) -> bool:
    """Whether names of files or folders may be those of problems: not one name with numbers (run_1, run_2), nor parts of a whole."""
    words = {name.strip("0123456789_-. ") for name in names}
    return len(words) > 1 and not words <= _PARTS


def taken_for_problems(names: Iterable[str], whose: str) -> str:
    """What is said where names are taken for the problems."""
    listed = ", ".join(printable(name, 30) for name in list(dict.fromkeys(names))[:8])
    return f"the {whose} are taken for the problems: {listed}; else say problem"


def common_pattern(paths: Sequence[Path], name: str) -> tuple[str, dict[Path, str]] | None:
    """The path that matches all of some files or folders and nothing else, with ``{name}`` for the part in which they differ.

    Names are cut where words end, so ``results_H100.csv`` and ``results_H200.csv`` differ in ``H100`` and ``H200``. Beside it
    is what stands at that part, by path. ``None`` where no such path exists.
    """
    parts, differ = _apart(paths)
    if len(differ) != 1:
        return None
    at = differ[0]
    names = [each[at] for each in parts]
    head = re.sub(r"[^_. -]*$", "", _common(names))
    tail = re.sub(r"^[^_. -]*", "", _common([each[::-1] for each in names])[::-1])
    values = {path: each[len(head) : len(each) - len(tail)] for path, each in zip(paths, names, strict=True)}
    if not all(values.values()):
        return None
    before, after = Path(*parts[0][:at]), parts[0][at + 1 :]
    matched = before.glob("/".join([f"{glob.escape(head)}*{glob.escape(tail)}", *after]))
    if set(matched) != set(paths):
        return None
    return str(before.joinpath(f"{head}{{{name}}}{tail}", *after)), values


def tree_pattern(paths: Sequence[Path]) -> tuple[str, list[tuple[str, list[str]]]] | None:
    """The path of files of one name in a tree of folders: ``{p1}``, ``{p2}`` for the folders, and what stands there.

    ``None`` where they lie at different depths, or the path would match anything else.
    """
    parts, differ = _apart(paths)
    if not differ or differ[-1] == len(parts[0]) - 1:
        return None
    steps = [*parts[0]]
    for n, i in enumerate(differ, start=1):
        steps[i] = f"{{p{n}}}"
    wild = ["*" if i in differ else step for i, step in enumerate(steps)][differ[0] :]
    if set(Path(*steps[: differ[0]]).glob("/".join(wild))) != set(paths):
        return None
    return str(Path(*steps)), [(f"{{p{n}}}", [each[i] for each in parts]) for n, i in enumerate(differ, start=1)]


def _apart(paths: Sequence[Path]) -> tuple[list[tuple[str, ...]], list[int]]:
    """The steps of some paths, and at which they differ: at none where a pattern could not say so."""
    parts = [path.parts for path in paths]
    if len(set(map(len, parts))) != 1 or any(mark in str(paths[0]) for mark in "*?[]{}"):
        return parts, []
    return parts, [i for i, at in enumerate(zip(*parts, strict=True)) if len(set(at)) > 1]


def _common(names: Sequence[str]) -> str:
    """What all names begin with."""
    low, high = min(names), max(names)
    n = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:n]
