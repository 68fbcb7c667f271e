"""Builder recipes: one ``builder.toml`` says which logs are read, how, and what they are for.

``keys.toml`` says what each key means.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from kernel_archive.errors import DataError, RecipeError, UsageError, printable, suggestion
from kernel_archive.gpus import GPUS, GpuFacts, is_known
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.sql import QueryError, parse_query
from kernel_archive.schema import ROLES, Role
from kernel_archive.storage import content_path, file_sha256
from kernel_archive.toml_files import toml_beside
from kernel_archive.untrusted import (
    UntrustedFileError,
    misfit,
    read_toml,
    read_whole,
    regular_file,
)

RECIPE_NAME: Final = "builder.toml"
#: Name of an archive: ``owner/dataset``, as on the Hub.
ARCHIVE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
#: Refuse a query of more bytes.
_MAX_QUERY: Final = 1 << 20
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe: unknown keys are errors."""


class Source(_Table, frozen=True, kw_only=True):
    """One ``[[source]]``: logs of one format."""

    path: str = "."
    format: str
    role: Role
    generation_method: str
    gpu: str | None = None
    problem: str | None = None
    model: str | None = None
    reference: str | None = None
    query: str | None = None


class Exclude(_Table, frozen=True):
    """One ``[[exclude]]``: a measured row that stays in ``evaluations`` and enters nothing else."""

    search: str
    node: str
    reason: str


class About(_Table, frozen=True):
    """``[archive]``: name and description of a user's own archive."""

    name: Annotated[str, msgspec.Meta(pattern=ARCHIVE_NAME)]
    title: str | None = None
    description: str | None = None
    citation: str | None = None


class EvaluationRules(_Table, frozen=True, omit_defaults=True):
    """``[eval]``: what the evaluation split of a user's own archive asks about."""

    tasks: list[str] | None = None
    bins: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    cap: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    gpu: str | None = None
    languages: list[str] | None = None
    roles: dict[Role, list[str]] = {}


class Recipe(_Table, frozen=True):
    """A ``builder.toml``."""

    name: _Name
    licence: str
    description: str
    source: Annotated[list[Source], msgspec.Meta(min_length=1)]
    version: str = "1"
    default: bool = False
    natural: bool = False
    url: str | None = None
    citation: str | None = None
    notes: list[str] = []
    supersedes: list[_Name] = []
    unanimous: bool = False
    exclude: list[Exclude] = []
    readings: str | None = None
    launches: str | list[str] = []
    archive: About | None = None
    gpu: dict[str, GpuFacts] = {}
    eval: EvaluationRules | None = None


#: Table of a recipe -> its type; ``recipe`` is the file itself.
_TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "recipe": Recipe,
    "archive": About,
    "eval": EvaluationRules,
    "gpu": GpuFacts,
    "source": Source,
    "exclude": Exclude,
}


class LoadedRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe with its file."""

    recipe: Recipe
    file: Path

    @property
    def directory(self) -> Path:
        """The folder of the recipe, to which its paths are relative."""
        return self.file.parent

    def error(self, code: str, message: str, field: str, **details: str | None) -> RecipeError:
        """Make an error of a field of the recipe; ``details`` are value and fix."""
        where: dict[str, Any] = {"file": str(self.file), "field": field, **details}
        return RecipeError.of(code=code, message=message, **where)

    def files_beside(self, field: str) -> list[Path]:
        """Find the files that a field names: none, one or several."""
        named = getattr(self.recipe, field)
        names = [named] if isinstance(named, str) else named or []
        return [self.beside(name, field) for name in names]

    def beside(self, name: str, field: str) -> Path:
        """Find the file that a field names; no link or path leads out of the recipe's folder."""
        message = "the file lies outside of the recipe's folder"
        try:
            path = regular_file(self.directory / name)
            if path.resolve().is_relative_to(self.directory.resolve()):
                return path
        except UntrustedFileError as error:
            message = str(error)
        fix = f"Name a file in the recipe's folder, {printable(self.directory.resolve(), 200)}"
        raise self.error("bad-recipe", message, field, value=name, fix=fix)


def load_recipe(path: Path) -> LoadedRecipe:
    """Read and check a recipe; a RecipeError names the key or value at fault, and a right one."""
    fail = partial(RecipeError.of, code="bad-recipe", file=str(path))
    fix = "Name a shipped builder or the path of a builder.toml"
    data = read_toml(path, fail, "there is no such recipe", fix)
    try:
        recipe = msgspec.convert(data, Recipe)
    except msgspec.ValidationError as error:
        text, field = misfit(error)
        raise fail(message=text, field=field, fix=_fix_of(text, field or "")) from None
    loaded = LoadedRecipe(recipe=recipe, file=path)
    for index, source in enumerate(recipe.source):
        query = _check_source(loaded, index)
        recipe.source[index] = msgspec.structs.replace(source, query=query)
    return loaded


def _check_source(loaded: LoadedRecipe, index: int) -> str | None:
    """Check a source beyond its types; return the text of its query, if it has one."""
    source, gpus = loaded.recipe.source[index], loaded.recipe.gpu

    def fail(key: str, message: str, value: str | None, fix: str | None) -> RecipeError:
        field = f"source[{index}].{key}"
        return loaded.error("bad-recipe", message, field, value=value, fix=fix)

    if source.format not in READERS:
        fix = f'{suggestion(source.format, READERS)} Any table: format = "sql" (docs/own-data.md)'
        raise fail("format", "unknown reader", source.format, fix)
    gpu = source.gpu
    if gpu is not None and gpu not in gpus and not is_known(gpu):
        table = f'its own table, which may be empty: [gpu."{printable(gpu, 60)}"]'
        fix = f"{suggestion(gpu, (*GPUS, *gpus))} Or give it {table}"
        raise fail("gpu", "unknown GPU", gpu, fix)
    if source.format != "sql":
        if source.query is not None:
            raise fail("query", "only the format 'sql' takes query", None, None)
        if source.path == ".":
            raise fail("path", "the logs of a search need a path", None, 'Add path = "logs/*"')
        return None
    if source.query is None:
        fix = 'Add query = "import.sql"; kernel-archive init FOLDER writes one'
        raise fail("query", "the format 'sql' needs a query", None, fix)
    query = source.query
    if query.endswith(".sql") and "\n" not in query:
        file = loaded.beside(query, f"source[{index}].query")
        try:
            query = read_whole(file, max_bytes=_MAX_QUERY).decode()
        except (UntrustedFileError, UnicodeDecodeError) as error:
            raise fail("query", f"cannot be read: {error}", query, None) from None
    try:
        parse_query(query)
    except QueryError as error:
        raise fail("query", str(error), None, error.fix) from None
    return query


def _fix_of(text: str, field: str) -> str:
    """Give the fix of a wrong key or value: the nearest right one."""
    if unknown := re.search(r"unknown field `([^`]*)`", text):
        table = _TABLES.get(re.split(r"[\[.]", field)[0], Recipe)
        return suggestion(unknown[1], table.__struct_fields__)
    if wrong := re.search(r"Invalid enum value '([^']*)'", text):
        return suggestion(wrong[1], ROLES)
    return "See docs/recipes.md"


_FACTS: Final = "name version licence description url citation notes natural supersedes unanimous"


def recipe_facts(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return what the manifest keeps of a recipe, with digests of it and the files it names."""
    facts = {key: getattr(loaded.recipe, key) for key in _FACTS.split()}
    facts["digest"] = f"sha256:{sha256_hex(canonical_json(loaded.recipe))}"
    facts["readings"] = None
    for field in ("readings", "launches"):
        digests = [file_sha256(path) for path in loaded.files_beside(field)]
        if digests:
            one = digests[0] if len(digests) == 1 else sha256_hex("".join(digests).encode())
            facts[field] = f"sha256:{one}"
    return facts


def key_meanings() -> dict[str, dict[str, str]]:
    """Read what the keys of each table mean."""
    return toml_beside(__file__, "keys.toml")


def shipped_recipes() -> dict[str, Path]:
    """Map the builders that ship with the package to their ``builder.toml``."""
    files = sorted(content_path("builders").glob(f"*/{RECIPE_NAME}"))
    return {path.parent.name: path for path in files}


def find_recipe(name: str) -> LoadedRecipe:
    """Load a recipe by a shipped builder's name, or the path of a file or of its folder."""
    shipped = shipped_recipes()
    path = shipped.get(name, Path(name))
    path = path / RECIPE_NAME if (path / RECIPE_NAME).is_file() else path
    if path.is_file() or path.suffix == ".toml":
        return load_recipe(path)
    raise UsageError(
        f"no builder {name!r}: it is neither a shipped one ({', '.join(shipped)}) "
        f"nor the path of a {RECIPE_NAME}"
    )


def load_recipes(builders: Sequence[str]) -> list[LoadedRecipe]:
    """Load the named recipes, or the shipped default ones, sorted by name."""
    recipes = [find_recipe(name) for name in builders or shipped_recipes()]
    if not builders:
        recipes = [loaded for loaded in recipes if loaded.recipe.default]
    by_name: dict[str, LoadedRecipe] = {}
    for loaded in recipes:
        other = by_name.setdefault(loaded.recipe.name, loaded)
        if other.file != loaded.file:
            message = f"two recipes are named alike: {other.file} and {loaded.file}"
            raise loaded.error("duplicate-builder", message, "name", fix="Rename one")
    return [by_name[name] for name in sorted(by_name)]


def common_table(recipes: Iterable[LoadedRecipe], key: Literal["archive", "eval"]) -> Any:
    """Return the one ``[archive]`` or ``[eval]`` of several recipes, if any; two are an error."""
    common: Any = None
    for loaded in recipes:
        value = getattr(loaded.recipe, key)
        if None not in (common, value) and value != common:
            message = f"two recipes that are built into one archive state a different [{key}]"
            raise loaded.error("bad-recipe", message, key, fix="State it in one of them")
        common = common if value is None else value
    return common


def local_copy(loaded: LoadedRecipe, directory: str | Path) -> LoadedRecipe:
    """Return the recipe with every URL source read from a local copy of the same layout.

    ``hf://datasets/<user>/<repo>/<path>`` is ``<directory>/<repo>/<path>``, and of
    ``git+https://...@<commit>#<path>`` it is ``<directory>/<path>``; or a file of its name.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise DataError(f"--source {printable(directory)}: there is no such directory")

    def local(path: str) -> str:
        if "://" not in path:
            return path
        parts = path.split("://", 1)[1].removeprefix("datasets/").split("/")
        inside = [parts[1].split("@")[0], *parts[2:]]
        copied = str(root.joinpath(*(path.split("#")[1:] if path.startswith("git+") else inside)))
        alone = str(root / f"{parts[-1].split('.')[0]}.*")
        is_alone = not glob.glob(copied) and glob.glob(alone)  # noqa: PTH207 - absolute patterns
        return alone if is_alone else copied

    replace = msgspec.structs.replace
    sources = [replace(source, path=local(source.path)) for source in loaded.recipe.source]
    return replace(loaded, recipe=replace(loaded.recipe, source=sources))
