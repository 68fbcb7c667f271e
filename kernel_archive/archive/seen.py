"""For ``kernel-archive init``: what was recognised in a user's folder, and how its files are opened for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Endings of tables, packed or not.
TABLES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_PACKED: Final = (".gz", ".zst")
#: Rows of a table that are looked at.
HEAD: Final = 60
_PARTS: Final = frozenset({"train", "test", "valid", "validation", "val", "dev", "eval", "all", "old", "new"})


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


def run_of(path: Path, format_: str = "measurements", **settings: Any) -> RunFiles:
    """A file as a reader would see it."""
    return RunFiles(path, path.parent, msgspec.structs.replace(READERS[format_], also=None), settings)


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
