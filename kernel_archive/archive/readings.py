"""What people found who read the programs of a builder, from the file that its recipe names.

No pattern in a text sees every program that was written to lose time. So a recipe may name a file
with one JSON line per reading of a program, done without its measurements at hand. A program that
a reader finds unfit to be asked about gets the flag ``unfit``; it keeps its label, and split
definitions may leave it out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec
import pyarrow as pa

from kernel_archive.errors import RecipeError
from kernel_archive.ids import ID_LENGTH
from kernel_archive.untrusted import Lines, misfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import duckdb

    from kernel_archive.archive.recipe import LoadedRecipe

#: Refuse a file beside a recipe with more lines, or more bytes.
MAX_LINES: Final = 20_000_000
MAX_BYTES: Final = 4 << 30
_FIX: Final = "One JSON object a line (docs/recipes.md); the program's id is kernels.program_id"
_SCHEMA: Final = pa.schema(
    {
        "builder": pa.string(),
        "program_id": pa.string(),
        "unfit": pa.bool_(),
        "file": pa.string(),
        "line": pa.int64(),
    }
)
Line = TypeVar("Line")
_Text = Annotated[str, msgspec.Meta(max_length=2000)]


class HumanReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one reader found in one program; ``keys.toml`` explains the keys."""

    program: Annotated[str, msgspec.Meta(pattern=rf"^[0-9a-f]{{{ID_LENGTH}}}$")]
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


def readings_of(loaded: LoadedRecipe) -> list[tuple[int, HumanReading]]:
    """Read the readings that a recipe names, each with its line; none where it names no file."""
    return list(lines_beside(loaded, "readings", HumanReading, "bad-reading", _FIX))


def lines_beside(
    loaded: LoadedRecipe,
    field: Literal["readings", "launches"],
    kind: type[Line],
    code: str,
    fix: str,
) -> Iterator[tuple[int, Line]]:
    """Decode the lines of a JSON file that a recipe names, each with its number."""
    name: str | None = getattr(loaded.recipe, field)
    if name is None:
        return
    path = loaded.beside(name, field)
    fail = partial(RecipeError.of, code=code, file=str(path), fix=fix)
    decode = msgspec.json.Decoder(kind).decode
    for line in Lines(path, max_bytes=MAX_BYTES, max_lines=MAX_LINES):
        if not isinstance(line, tuple):
            raise RecipeError.from_findings([line])
        number, text = line
        try:
            yield number, decode(text)
        except msgspec.ValidationError as error:
            message, place = misfit(error)
            raise fail(message=message, line=number, field=place) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise fail(message=f"not valid JSON: {error}", line=number) from None


def reading_table(recipes: Iterable[LoadedRecipe]) -> pa.Table:
    """Put the readings of all recipes into a table: where each stands, and what it says."""
    rows = [
        {
            "builder": loaded.recipe.name,
            "program_id": reading.program,
            "unfit": reading.unfit,
            "file": str(loaded.directory / str(loaded.recipe.readings)),
            "line": line,
        }
        for loaded in recipes
        for line, reading in readings_of(loaded)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def refuse_unknown(connection: duckdb.DuckDBPyConnection) -> None:
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
