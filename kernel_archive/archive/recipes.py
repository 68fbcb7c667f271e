"""The recipes of a build: which are shipped, which are asked for, what they state together."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kernel_archive.archive.recipe import RECIPE_NAME, LoadedRecipe, load_recipe
from kernel_archive.errors import DataError, RecipeError, UsageError
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def shipped_recipes() -> dict[str, Path]:
    """Name -> ``builder.toml`` of the builders that ship with the package."""
    files = sorted(content_path("builders").glob(f"*/{RECIPE_NAME}"))
    return {path.parent.name: path for path in files}


def find_recipe(name: str) -> LoadedRecipe:
    """Load a recipe by a shipped builder's name, or the path of a ``builder.toml`` or its folder.

    Raises:
        UsageError: there is no such builder.
        RecipeError: the recipe is at fault.
    """
    shipped = shipped_recipes()
    path = shipped.get(name, Path(name))
    if path.is_dir() and (path / RECIPE_NAME).is_file():
        path /= RECIPE_NAME
    if path.is_file() or path.suffix == ".toml":
        return load_recipe(path)
    raise UsageError(
        f"no builder {name!r}: it is neither a shipped one ({', '.join(shipped)}) "
        f"nor the path of a {RECIPE_NAME}"
    )


def load_recipes(builders: Sequence[str]) -> list[LoadedRecipe]:
    """Load the named recipes, or the shipped default ones, sorted by name.

    Raises:
        RecipeError: a recipe is at fault, or two have one name.
    """
    recipes = [find_recipe(name) for name in builders or shipped_recipes()]
    if not builders:
        recipes = [loaded for loaded in recipes if loaded.recipe.default]
    by_name: dict[str, LoadedRecipe] = {}
    for loaded in recipes:
        other = by_name.setdefault(loaded.recipe.name, loaded)
        if other.file != loaded.file:
            message = f"two recipes are named alike: {other.file} and {loaded.file}"
            raise _fail(loaded, message, "name", "Rename one", code="duplicate-builder")
    return [by_name[name] for name in sorted(by_name)]


def _fail(
    loaded: LoadedRecipe, message: str, field: str, fix: str, *, code: str = "bad-recipe"
) -> RecipeError:
    return RecipeError.of(code=code, message=message, file=str(loaded.file), field=field, fix=fix)


def common_table(recipes: Iterable[LoadedRecipe], key: Literal["archive", "eval"]) -> Any:
    """Return the one ``[archive]`` or ``[eval]`` of several recipes; ``None`` if no recipe has it.

    Raises:
        RecipeError: two recipes state different ones.
    """
    stated: Any = None
    for loaded in recipes:
        own = getattr(loaded.recipe, key)
        if None not in (stated, own) and own != stated:
            message = f"two recipes that are built into one archive state a different [{key}]"
            raise _fail(loaded, message, key, "State it in one of them")
        stated = stated if own is None else own
    return stated


def local_copy(loaded: LoadedRecipe, directory: str | Path) -> LoadedRecipe:
    """Return the recipe with every URL source read from a local copy of the same layout.

    ``hf://datasets/<user>/<repo>/<path>`` is read from ``<directory>/<repo>/<path>``; where that is
    missing, from a file of the same name, whatever its ending, in the directory itself.

    Raises:
        DataError: the directory does not exist.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        message = "it is a file, not a directory" if root.exists() else "there is no such directory"
        place: dict[str, Any] = {"file": str(directory), "field": "--source"}
        raise DataError.of(code="missing-file", message=message, fix="Name the local copy", **place)

    def local(path: str) -> str:
        if "://" not in path:
            return path
        parts = path.split("://", 1)[1].removeprefix("datasets/").split("/")
        copied = str(root.joinpath(parts[1].split("@")[0], *parts[2:]))
        alone = str(root / f"{parts[-1].split('.')[0]}.*")
        is_alone = not glob.glob(copied) and glob.glob(alone)  # noqa: PTH207 - absolute patterns
        return alone if is_alone else copied

    replace = msgspec.structs.replace
    sources = [replace(source, path=local(source.path)) for source in loaded.recipe.source]
    return replace(loaded, recipe=replace(loaded.recipe, source=sources))


def supersession(recipes: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """List all pairs (new, old) of builders, also over several steps, by their recipes' facts.

    Raises:
        RecipeError: a builder supersedes itself, directly or in a circle.
    """
    pairs = {(str(recipe["name"]), str(old)) for recipe in recipes for old in recipe["supersedes"]}
    size = -1
    while len(pairs) != size:
        size = len(pairs)
        pairs |= {(new, older) for new, old in pairs for newer, older in pairs if old == newer}
    for new, old in sorted(pairs):
        if new == old:
            place: dict[str, Any] = {"field": "supersedes", "value": new, "fix": "Take it out"}
            message = "a builder supersedes itself"
            raise RecipeError.of(code="bad-recipe", message=message, **place)
    return sorted(pairs)
