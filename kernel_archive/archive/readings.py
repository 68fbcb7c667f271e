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
import pyarrow.compute as pc
import pyarrow.dataset

from kernel_archive.errors import RecipeError
from kernel_archive.ids import ID_LENGTH
from kernel_archive.storage import file_sha256
from kernel_archive.untrusted import Lines, UntrustedFileError, misfit, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kernel_archive.archive.recipe import LoadedRecipe

#: Refuse a file beside a recipe with more lines, or more bytes.
MAX_LINES: Final = 20_000_000
MAX_BYTES: Final = 4 << 30
_FIX: Final = "One JSON object a line (docs/recipes.md); the program's id is kernels.program_id"
Line = TypeVar("Line")
_Text = Annotated[str, msgspec.Meta(max_length=2000)]


class HumanReading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one reader found in one program.

    Attributes:
        program: the program, as ``kernels.program_id`` has it.
        useless: whether it does work that serves nothing: ``no``; ``slight``, as real code often
            has it; ``yes``.
        submit: whether a competent programmer could submit it, for whatever motive.
        launches: whether independent pieces are launched one by one from the host; decides nothing.
        tells: words in it that tell how fast it is or is meant to be; empty where there are none.
        reader: who read it; several readers may read one program.
        why: in a few words.
    """

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
    """Read the readings that a recipe names, each with its line; none where it names no file.

    Raises:
        RecipeError: a line is no reading, or the file can't be read.
    """
    return list(lines_beside(loaded, "readings", HumanReading, "bad-reading", _FIX))


def lines_beside(
    loaded: LoadedRecipe, field: str, kind: type[Line], code: str, fix: str
) -> Iterator[tuple[int, Line]]:
    """Decode the lines of a JSON file that a recipe names, each with its number.

    Raises:
        RecipeError: a line is at fault, or the file can't be read.
    """
    path = file_beside(loaded, field)
    if path is None:
        return
    fail = partial(RecipeError.of, code=code, file=str(path), fix=fix)
    decode = msgspec.json.Decoder(kind).decode
    for line in Lines(path, max_bytes=MAX_BYTES, max_lines=MAX_LINES, hashed=False):
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


def file_beside(loaded: LoadedRecipe, field: str) -> Path | None:
    """Return the file that a recipe names in a field, if it does.

    Raises:
        RecipeError: the path leaves the recipe's folder, or there is no file that can be read.
    """
    name = getattr(loaded.recipe, field)
    if name is None:
        return None
    try:
        path = regular_file(loaded.directory / name)
        if path.resolve().is_relative_to(loaded.directory.resolve()):
            return path
        message = "the file lies outside of the recipe's folder"
    except UntrustedFileError as error:
        message = str(error)
    raise RecipeError.of(
        code="bad-recipe",
        message=message,
        file=str(loaded.file),
        field=field,
        value=name,
        fix="Name a file beside the recipe",
    )


def digest_beside(loaded: LoadedRecipe, field: str) -> str | None:
    """Return the digest of a file that a recipe names, ``None`` where it names none."""
    path = file_beside(loaded, field)
    return None if path is None else f"sha256:{file_sha256(path)}"


def unfit_programs(recipes: Iterable[LoadedRecipe]) -> list[str]:
    """List the ids of the programs that a reader found unfit."""
    return sorted({r.program for loaded in recipes for _, r in readings_of(loaded) if r.unfit})


def check_readings(recipes: Sequence[LoadedRecipe], directory: Path, shards: Sequence[str]) -> None:
    """Refuse readings of programs that no log of their recipe has; a changed program is another.

    ``shards`` are the files of ``evaluations`` of the archive that is made in ``directory``.

    Raises:
        RecipeError: a reading names no program of its recipe's logs.
    """
    for loaded in recipes:
        readings = readings_of(loaded)
        if not readings:
            continue
        rows = pyarrow.dataset.dataset([str(directory / name) for name in shards], format="parquet")
        of_recipe = pc.field("builder") == loaded.recipe.name
        programs = {*rows.to_table(["program_id"], filter=of_recipe)["program_id"].to_pylist()}
        for line, reading in readings:
            if reading.program not in programs:
                raise RecipeError.of(
                    code="bad-reading",
                    message="a reading names a program that no log of its recipe has",
                    file=str(file_beside(loaded, "readings")),
                    line=line,
                    field="program",
                    value=reading.program,
                    fix="Take the line out, or read the program that was measured",
                )
