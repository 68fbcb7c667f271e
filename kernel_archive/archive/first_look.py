"""For ``kernel-archive init``: which formats the files of a user's folder are of, and the recipe that would read them.

Nothing is built. What a recipe needs and no file says is asked for, or left as a comment that says so.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from kernel_archive.archive.look_runs import kernelbench, openevolve, own_format
from kernel_archive.archive.look_tables import tables
from kernel_archive.errors import DataError, printable

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
