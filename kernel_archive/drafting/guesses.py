"""For ``kernel-archive init``: what the columns of a table may mean, by their names and cells.

``guesses.toml`` says what is guessed by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kernel_archive.databases import literal_path, sql_texts
from kernel_archive.toml_files import toml_beside

SPEED: Final = frozenset({"speedup", "runtime_us"})
KNOWN: Final = toml_beside(__file__)
UNITS: Final = KNOWN["units"]
WORDS: Final = {name: frozenset(words) for name, words in KNOWN["words"].items()}
ERRORS: Final = [(error["failure"], error["words"]) for error in KNOWN["error"]]
#: Endings of files with programs, the likeliest last: a log may be a .txt, too.
PROGRAMS: Final = (".txt", ".py", ".cu", ".cuh", ".cpp", ".hip")


def words_of(name: str) -> list[str]:
    """The words of a column's name: ``kernelTime (ms)`` gives kernel, time and ms."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("\u00b5s", "us")
    return [word for word in re.split(r"[^a-z0-9]+", split) if word]


def matched(columns: Iterable[str]) -> dict[str, str]:
    """Map columns of ours to the column of theirs with the best name; each is taken once."""
    plain = {c: {"_".join(words_of(c)), "_".join(words_of(c.rpartition(".")[2]))} for c in columns}
    found: dict[str, str] = {}
    for ours, patterns in KNOWN["columns"].items():
        ends = ((p, c, end) for p in patterns for c, names in plain.items() for end in names)
        fits = (c for p, c, end in ends if re.fullmatch(p, end))
        if (theirs := next(fits, None)) is not None:
            found[ours] = theirs
            del plain[theirs]
    return found


def known(columns: Iterable[str]) -> dict[str, str]:
    """Map columns of ours to theirs, times included."""
    listed = list(columns)
    return matched(listed) | {ours: theirs for ours, (theirs, _) in times(listed).items()}


def times(columns: Iterable[str]) -> dict[str, tuple[str, str | None]]:
    """Map our columns of times to theirs, and its unit where its name has one."""
    found: dict[str, tuple[str, str | None]] = {}
    for column in columns:
        words = words_of(column)
        unit = next((word for word in reversed(words) if word in UNITS), None)
        is_time = WORDS["time"].intersection(words) or unit not in (None, "s")
        is_time = is_time or WORDS["only_reference"].issuperset(words)
        if words and is_time and not WORDS["no_time"].intersection(words):
            name = "reference_runtime_us" if is_reference(column) else "runtime_us"
            found.setdefault(name, (column, unit))
    return found


def is_reference(column: str) -> bool:
    """Whether a name is of the reference's."""
    return bool(WORDS["reference"].intersection(words_of(column)))


class FileColumn(NamedTuple):
    """A column that names the file of a program."""

    name: str
    files: str  # which hold the programs, as SQL
    ending: str  # that is missing in its cells
    found: str | None  # the first of the files, if most are there
    is_windows: bool = False  # its paths have backslashes
    before: str = ""  # what its cells lack at the beginning


def file_columns(
    values: dict[str, list[str]], code: str | None, programs: Iterable[str]
) -> dict[str, FileColumn]:
    """Map code and reference_code to columns that name files: the most varied is the program.

    ``code`` is the column that may hold the program. Files that are not there are looked for only
    where nothing else is the program.
    """
    files = {tail: name for name in programs if name.endswith(PROGRAMS) for tail in _tails(name)}
    naming: list[FileColumn] = []
    for name, cells in values.items():
        may_miss = code in (None, name) or is_reference(name)
        column = _file_column(name, cells, files, may_miss=may_miss)
        if column is not None:
            naming.append(column)
    n_values = {column.name: len(set(values[column.name])) for column in naming}
    naming.sort(key=lambda c: (c.found is None, -n_values[c.name], c.ending, is_reference(c.name)))
    columns: dict[str, FileColumn] = {}
    # Where a column holds the texts themselves, files can only be the reference's.
    if naming and (code is None or not any("\n" in text for text in values[code])):
        columns["code"] = naming.pop(0)
    if reference := next((column for column in naming if is_reference(column.name)), None):
        columns["reference_code"] = reference
    return columns


def _file_column(
    name: str, cells: list[str], files: dict[str, str], *, may_miss: bool
) -> FileColumn | None:
    """Tell whether most cells name ``files`` or, if they ``may_miss``, look like names of such."""
    names = [cell.strip() for cell in cells if "\n" not in cell and len(cell) < 300]
    is_windows = any("\\" in cell for cell in names)
    names = [cell.replace("\\", "/").removeprefix("./") for cell in names]
    there = [files[cell] for cell in names if cell in files]
    found = there[0] if len(there) > len(cells) / 2 else None
    n_paths = sum(cell.endswith(PROGRAMS[1:]) for cell in names)
    if found is None and not (may_miss and n_paths > len(cells) / 2):
        return None
    endings = {Path(cell).suffix for cell in names} & {*PROGRAMS}
    if found is not None and not endings:
        endings = {Path(found).suffix}
    patterns = f"[{sql_texts(f'**/*{ending}' for ending in sorted(endings))}]"
    missing = "" if names[0].endswith(tuple(endings)) else min(endings)
    return FileColumn(name, patterns, missing, found, is_windows)


def numbered_files(
    values: dict[str, list[str]], programs: Iterable[str], beside: Path
) -> FileColumn | None:
    """Find the column whose numbers are in the names of programs beside the table: sample_0.py.

    No number stands twice in it, or another column's would have to be in the names, too.
    """
    paths = (Path(name) for name in programs if name.endswith(PROGRAMS[1:]))
    below = [p.relative_to(beside).as_posix() for p in paths if p.is_relative_to(beside)]
    for column, cells in values.items():
        is_unique = len({*cells}) == len(cells) > 0
        if not is_unique or WORDS["sample"].isdisjoint(words_of(column)):
            continue
        number = re.compile(rf"(?<![A-Za-z0-9]){re.escape(cells[0])}(?![A-Za-z0-9])")
        for name in below:
            for match in reversed([*number.finditer(name, name.rfind("/") + 1)]):
                before, ending = name[: match.start()], name[match.end() :]
                if sum(f"{before}{cell}{ending}" in below for cell in cells) > len(cells) / 2:
                    place = f"{literal_path(name[: name.rfind('/') + 1])}*{Path(name).suffix}"
                    files, found = f"[{sql_texts([place])}]", str(beside / name)
                    return FileColumn(column, files, ending, found, before=before)
    return None


def _tails(name: str) -> set[str]:
    """List the parts of a path that a cell may name it by: a/b.py, b.py, a/b and b."""
    parts = Path(name).parts[-4:]
    tails = {"/".join(parts[i:]) for i in range(len(parts))}
    return tails | {tail.removesuffix(Path(name).suffix) for tail in tails}
