"""Files beside a recipe, one JSON object a line: readings of its programs, and dry runs of them.

No pattern in a text sees every program that was written to lose time. So a recipe may name a file
of readings, done by people or models without the measurements. A program that such a reader finds
unfit to be asked about gets the flag ``unfit``; it keeps its label, and splits may leave it out.

``kernel-measure dry-run`` follows the host code of programs on tensors without values and writes
one line per launch or torch operator. The lines of programs that the archive holds become the table
``launches``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import duckdb
import msgspec
import pyarrow as pa

from kernel_archive.archive.manifest import Manifest
from kernel_archive.archive.open import Archive
from kernel_archive.archive.recipe import LoadedRecipe
from kernel_archive.archive.shards import write_table
from kernel_archive.errors import RecipeError
from kernel_archive.ids import CANARY, ID_LENGTH, sha256_hex
from kernel_archive.schema import TABLES
from kernel_archive.untrusted import Lines, misfit

#: Refuse a file beside a recipe with more lines, or more bytes.
MAX_LINES: Final = 20_000_000
MAX_BYTES: Final = 4 << 30
_READ: Final = "One JSON object a line (docs/recipes.md); the program's id is kernels.program_id"
_RUN: Final = "Make the file with: kernel-measure dry-run"
READING_SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ("builder", "program_id", "file")]
    + [("unfit", pa.bool_()), ("line", pa.int64())]
)
Line = TypeVar("Line")
_ProgramId = Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{ID_LENGTH}}}$")]
_Text = Annotated[str, msgspec.Meta(max_length=2000)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one reader found in one program; ``keys.toml`` explains the keys."""

    program: _ProgramId
    useless: Literal["no", "slight", "yes"]
    submit: Literal["yes", "doubtful", "no"]
    launches: bool = False
    tells: _Text = ""
    reader: Annotated[str, msgspec.Meta(max_length=200)] = ""
    why: _Text = ""

    @property
    def unfit(self) -> bool:
        """Whether it does useless work, nobody would submit it, or its words tell its speed."""
        return self.useless == "yes" or self.submit == "no" or bool(self.tells.strip())


class LaunchLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one case of a program that are alike: the columns that every line has."""

    program_id: _ProgramId
    problem: Annotated[str, msgspec.Meta(max_length=300)]
    case: _Small
    kind: Literal["launch", "operator", "kernel", "not_followed"]
    name: Annotated[str, msgspec.Meta(max_length=300)]
    n: _Small = 1
    bytes: _Count = 0


#: Type of a column -> what its number may be.
_NUMBERS: Final[dict[pa.DataType, Any]] = {
    pa.int32(): _Small,
    pa.int64(): _Count,
    pa.float64(): Annotated[float, msgspec.Meta(ge=0, lt=1e18)],
}
#: A line with all columns of the table: those that may be missing are numbers (``schema.toml``).
FULL_LAUNCH_LINE: Final[Any] = msgspec.defstruct(
    "FullLaunchLine",
    [
        (column.name, _NUMBERS[column.type] | None, None)
        for column in TABLES["launches"].columns
        if column.nullable
    ],
    bases=(LaunchLine,),
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


def _lines(path: Path, kind: type[Line], code: str, fix: str) -> Iterator[tuple[int, Line]]:
    """Decode the lines of a file, each with its number."""
    fail = partial(RecipeError.of, code=code, file=str(path), fix=fix)
    decode = msgspec.json.Decoder(kind).decode
    for line in Lines(path, max_bytes=MAX_BYTES, max_lines=MAX_LINES):
        if not isinstance(line, tuple):
            raise RecipeError.from_findings([line])
        number, text = line
        try:
            yield number, decode(text)
        except msgspec.ValidationError as error:
            message, field = misfit(error)
            raise fail(message=message, line=number, field=field) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise fail(message=f"not valid JSON: {error}", line=number) from None


def reading_rows(recipes: Iterable[LoadedRecipe]) -> list[dict[str, Any]]:
    """Read the readings that recipes name: where each stands, and what it says."""
    return [
        {
            "builder": loaded.recipe.name,
            "program_id": reading.program,
            "unfit": reading.unfit,
            "file": str(path),
            "line": line,
        }
        for loaded in recipes
        for path in loaded.files_beside("readings")
        for line, reading in _lines(path, Reading, "bad-reading", _READ)
    ]


def refuse_stray_readings(connection: duckdb.DuckDBPyConnection) -> None:
    """Refuse a row of ``reading`` whose program no row of ``logged`` has: it was changed."""
    missing = connection.execute(
        "SELECT program_id, file, line FROM reading ANTI JOIN logged USING (builder, program_id) "
        "ORDER BY file, line LIMIT 1"
    ).fetchone()
    if missing is not None:
        program, file, line = missing
        raise RecipeError.of(
            code="bad-reading",
            message="a reading names a program that no log of its recipe has",
            file=file,
            line=line,
            field="program",
            value=program,
            fix="Take the line out, or read the program that was measured",
        )


def write_launches(
    directory: Path, manifest: Manifest, recipes: Sequence[LoadedRecipe]
) -> Manifest:
    """Write the table ``launches`` of an archive; none where no recipe names such a file.

    Lines of programs that the archive lacks are left out; what the first recipe says of a program
    counts.
    """
    followed: dict[tuple[str, str], list[LaunchLine]] = {}  # by program and problem
    for loaded in recipes:
        of_recipe: dict[tuple[str, str], list[LaunchLine]] = {}
        for path in loaded.files_beside("launches"):
            for _, line in _lines(path, FULL_LAUNCH_LINE, "bad-launch", _RUN):
                of_recipe.setdefault((line.program_id, line.problem), []).append(line)
        followed = of_recipe | followed
    if not followed:
        return manifest
    archive = Archive(directory, manifest)
    query = "SELECT program_id, problem FROM kernels UNION SELECT program_id, problem FROM failures"
    programs = {tuple(row.values()) for row in archive.sql(query).to_pylist()}
    kept = [lines for key, lines in followed.items() if key in programs]
    lines = [line for group in kept for line in group]
    names = FULL_LAUNCH_LINE.__struct_fields__
    columns = {name: list(map(attrgetter(name), lines)) for name in names}
    columns |= {"launch_id": _launch_ids(lines), "canary": [CANARY] * len(lines)}
    table = pa.table(columns, TABLES["launches"].schema).sort_by("launch_id")
    facts = write_table(directory, "launches", {"train": table})
    tables = {**manifest.tables, "launches": facts}
    counts = {
        "programs": len(kept),
        "not_followed": sum(line.kind == "not_followed" for line in lines),
        "without": len(programs) - len(kept),
    }
    return msgspec.structs.replace(
        manifest,
        tables={name: tables[name] for name in TABLES if name in tables},
        reports={**manifest.reports, "dry_runs": counts},
    )


def _launch_ids(lines: Iterable[LaunchLine]) -> list[str]:
    """Make the ids of lines: each by its program and case, and by its order among theirs."""
    ordinals: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    keys = [f"{line.program_id}\0{line.problem}\0{line.case}" for line in lines]
    return [sha256_hex(f"{key}\0{next(ordinals[key])}".encode())[:ID_LENGTH] for key in keys]
