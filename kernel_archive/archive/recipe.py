"""Builder recipes: which logs, read how, meant for what, and every key explained. One ``builder.toml`` per source of raw logs."""

from __future__ import annotations

import glob
import inspect
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_type_hints

import msgspec

from kernel_archive.errors import DataError, RecipeError, UsageError, printable, suggestion
from kernel_archive.gpus import GPUS, GpuFacts, is_known
from kernel_archive.ids import canonical_json, sha256_hex
from kernel_archive.readers import READERS
from kernel_archive.readers.mapping import From, Join, names_in
from kernel_archive.storage import content_path
from kernel_archive.untrusted import misfit, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable

RECIPE_NAME: Final = "builder.toml"
#: Name of an archive: ``owner/dataset``, as the Hub has them.
ARCHIVE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$"
#: Keys of a source that only some formats take.
_ONLY_FOR: Final = {
    "columns": ("measurements", "openevolve"),
    **dict.fromkeys(("rows", "join"), ("measurements",)),
    "speedup_from": ("measurements", "openevolve"),
    **dict.fromkeys(("baseline", "problems", "level"), ("kernelbench",)),
}
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[source]]``: logs of one format.

    Attributes:
        path: glob relative to the recipe, absolute, or an fsspec URL; every match is one search. ``{name}`` stands for any
            text without a slash, and elsewhere in the source for what it was: ``results/{gpu}/*.csv`` with ``gpu = "{gpu}"``.
        format: name of the reader.
        role: ``held_out`` may enter eval, ``training`` may enter train_pairs, ``archive`` neither.
        generation_method: how the search made programs.
        gpu: the GPU, where the logs don't say.
        problem: the problem, where the logs don't say; ``{name}`` stands for the run's name up to ``__``.
        model: the model, where the logs don't say.
        reference: file with the reference program, ``{problem}`` allowed, where the logs don't hold it. ``root``: the first
            program of every search (problem, GPU) is the reference, for formats of others.
        columns: our names to those of a table (format ``measurements``): a name, or where a name is not enough a table with
            ``column``, ``unit``, ``values``, ``file`` or ``value``.
        rows: where the rows of a JSON document are, such as ``results.{task}`` (format ``measurements``).
        join: second tables by key (format ``measurements``).
        speedup_from: whether the ``column`` or the ratio of the ``times`` counts where they differ by more than 20 %
            (format ``measurements``).
        baseline: timing baselines of the same GPU, relative to the recipe (format ``kernelbench``).
        problems: folder with the reference programs, ``level1/*.py`` and so on, relative to the recipe (format ``kernelbench``).
        level: level of the run, where no file says it (format ``kernelbench``).
    """

    path: str
    format: str
    role: Literal["held_out", "training", "archive"]
    generation_method: str
    gpu: str | None = None
    problem: str | None = None
    model: str | None = None
    reference: str | None = None
    columns: dict[str, str | From] | None = None
    rows: str | None = None
    join: list[Join] | None = None
    speedup_from: Literal["column", "times"] | None = None
    baseline: str | None = None
    problems: str | None = None
    level: int | None = None


class Exclude(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[exclude]]``: a measured row that stays in ``evaluations`` with this reason and enters nothing else.

    Attributes:
        search: search id, with or without the builder's name in front.
        node: the node as the log names it (an attempt's number for ``attempts``).
        reason: why, one sentence.
    """

    search: str
    node: str
    reason: str


class About(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[archive]``: what an archive of one's own is called and says of itself.

    Attributes:
        name: ``owner/dataset``: the directory it is built in, and what ``load_dataset`` and the Hub call it.
        title: heading of the card; the name when not given.
        description: what it is, in a few sentences; the card begins with it.
        citation: how to cite the archive.
    """

    name: Annotated[str, msgspec.Meta(pattern=ARCHIVE_NAME)]
    title: str | None = None
    description: str | None = None
    citation: str | None = None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``[eval]``: what the evaluation split of an archive of one's own asks about.

    Attributes:
        tasks: problems; every one with kernels in enough bins when not given.
        bins: in how many of the eight bins a problem must have kernels, where ``tasks`` does not name it; three when not
            given, and any number where no problem has kernels in three.
        cap: kernels per task and bin, at most.
        gpu: the GPU; the one with the most kernels when not given.
        languages: languages of the programs; all when not given.
        roles: problems (``*`` stands for any text) by the role that their rows have whatever their source says:
            ``{ training = ["conv_*"] }`` asks about the others and trains on these.
    """

    tasks: list[str] | None = None
    bins: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    cap: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    gpu: str | None = None
    languages: list[str] | None = None
    roles: dict[Literal["held_out", "training", "archive"], list[str]] = {}


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``builder.toml``.

    Attributes:
        name: name of the builder, the first part of its search ids.
        licence: SPDX name of the data's licence.
        description: what these logs are.
        source: the sources.
        version: version of the source's content.
        default: whether ``kernel-archive build`` without names takes it.
        natural: every program was written whole, one by one, by somebody who wanted it to work: no template, no generator.
            Only such programs are asked about in the shipped evaluation and discovery splits.
        url: where the raw logs or their description are.
        citation: how to cite them.
        notes: what a user of the data must know; the card prints them.
        supersedes: builders whose measurements of a kernel no longer count once this one has judged it, well or ill.
        unanimous: a kernel that one of this builder's measurements refuses, or that has an excluded one, has no label from
            the others.
        exclude: rows kept out.
        readings: file beside the recipe with what people found who read the programs, a JSON line each.
        archive: name, title, description and citation of an archive of one's own.
        gpu: facts of GPUs that this package does not know, by name.
        eval: what the evaluation split of an archive of one's own asks about.
    """

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
    archive: About | None = None
    gpu: dict[str, GpuFacts] = {}
    eval: Evaluation | None = None


class LoadedRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe with the directory that its paths are relative to."""

    recipe: Recipe
    directory: Path
    file: Path


def load_recipe(path: Path) -> LoadedRecipe:
    """Read and check a recipe.

    Raises:
        RecipeError: it can't be read, has an unknown key, a wrong value, an unknown reader or GPU.
    """
    fail = partial(RecipeError.of, code="bad-recipe", file=str(path))
    data = read_toml(path, fail, "there is no such recipe", "Name a shipped builder or the path of a builder.toml")
    try:
        recipe = msgspec.convert(data, Recipe)
    except msgspec.ValidationError as error:
        text, field = misfit(error)
        raise fail(message=text, field=field, fix=_meant(text, field or "")) from None
    for i, source in enumerate(recipe.source):
        if source.format not in READERS:
            raise fail(
                message="unknown reader",
                field=f"source[{i}].format",
                value=source.format,
                fix=suggestion(source.format, READERS),
            )
        for name in names_in(source.path):
            if not name.isidentifier() or source.path.count(f"{{{name}}}") > 1:
                raise fail(
                    message="no name for a part of a path, or it stands twice", field=f"source[{i}].path", value=name
                )
        if (
            source.gpu is not None
            and "{" not in source.gpu
            and source.gpu not in recipe.gpu
            and not is_known(source.gpu)
        ):
            raise fail(
                message="unknown GPU",
                field=f"source[{i}].gpu",
                value=source.gpu,
                fix=_gpu_meant(source.gpu, (*GPUS, *recipe.gpu)),
            )
        for key, formats in _ONLY_FOR.items():
            if getattr(source, key) is not None and source.format not in formats:
                message = f"only the format {' or '.join(map(repr, formats))} takes {key}"
                raise fail(message=message, field=f"source[{i}].{key}")
    return LoadedRecipe(recipe=recipe, directory=path.parent, file=path)


def _gpu_meant(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown GPU: its own table, and a name only where letter and number of the model begin alike."""
    number = (re.findall(r"\d+", name) or [""])[0]
    near = [
        gpu
        for gpu in known
        if gpu[:1].casefold() == name[:1].casefold()
        and (theirs := re.search(r"\d+", gpu))
        and (theirs[0].startswith(number) or number.startswith(theirs[0]))
    ]
    table = f'its own table, which may be empty: [gpu."{printable(name, 60)}"]'
    return f"{suggestion(name, near)} Or give it {table}" if near else f"Give it {table}"


def _meant(text: str, field: str) -> str:
    """The way out of a wrong key or value: the nearest one that there is, or all of them."""
    kinds = {"source": Source, "exclude": Exclude, "archive": About, "eval": Evaluation, "gpu": GpuFacts}
    kind = kinds.get(re.split(r"[\[.]", field)[0], Recipe)
    if "columns" in field:
        kind = From
    elif "join" in field:
        kind = Join
    if unknown := re.search(r"unknown field `([^`]*)`", text):
        return suggestion(unknown[1], kind.__struct_fields__)
    if wrong := re.search(r"Invalid enum value '([^']*)'", text):
        name = re.sub(r"\[.*?\]", "", field).rsplit(".", 1)[-1].strip("`")
        hint = get_type_hints(kind, include_extras=True).get(name)
        known = [value for option in (hint, *get_args(hint)) for value in get_args(option) if isinstance(value, str)]
        known = known or [value for value in get_args(hint) if isinstance(value, str)]
        return suggestion(wrong[1], dict.fromkeys(known))
    if missing := re.search(r"missing required field `([^`]*)`", text):
        return f"Add {missing[1]} = ... (docs/recipes.md)"
    return "See docs/recipes.md"


def shipped_recipes() -> dict[str, Path]:
    """Name -> ``builder.toml`` of the builders that ship with the package."""
    return {path.parent.name: path for path in sorted(content_path("builders").glob(f"*/{RECIPE_NAME}"))}


def find_recipe(name: str) -> LoadedRecipe:
    """A recipe by the name of a shipped builder, or by the path of a ``builder.toml`` or its folder.

    Raises:
        UsageError: neither.
        RecipeError: the recipe is at fault.
    """
    shipped = shipped_recipes()
    if name in shipped:
        return load_recipe(shipped[name])
    path = Path(name)
    if path.is_dir() and (path / RECIPE_NAME).is_file():
        return load_recipe(path / RECIPE_NAME)
    if path.is_file() or path.suffix == ".toml":
        return load_recipe(path)
    raise UsageError(
        f"no builder {name!r}: it is neither a shipped one ({', '.join(shipped)}) nor the path of a {RECIPE_NAME}"
    )


def default_recipes() -> list[LoadedRecipe]:
    """The shipped builders that ``kernel-archive build`` takes when none is named."""
    return [loaded for loaded in map(load_recipe, shipped_recipes().values()) if loaded.recipe.default]


def stated_once(recipes: Iterable[LoadedRecipe], key: Literal["archive", "eval"]) -> Any:
    """What the recipes of one archive say of it, an :class:`About` or an :class:`Evaluation`; ``None`` where none says it.

    Raises:
        RecipeError: two recipes say different things.
    """
    found: Any = None
    for loaded in recipes:
        stated = getattr(loaded.recipe, key)
        if found is not None and stated is not None and stated != found:
            message = f"two recipes that are built into one archive state a different [{key}]"
            raise RecipeError.of(
                code="bad-recipe", message=message, file=str(loaded.file), field=key, fix="State it in one of them"
            )
        found = found if stated is None else stated
    return found


def unique_names(recipes: Iterable[LoadedRecipe]) -> None:
    """Refuse two recipes of one name.

    Raises:
        RecipeError: two recipes share a name.
    """
    seen: dict[str, Path] = {}
    for loaded in recipes:
        other = seen.setdefault(loaded.recipe.name, loaded.file)
        if other != loaded.file:
            raise RecipeError.of(
                code="duplicate-builder",
                message=f"two recipes are named alike: {other} and {loaded.file}",
                field="name",
                value=loaded.recipe.name,
                fix="Rename one",
            )


def local_copy(loaded: LoadedRecipe, directory: str | Path) -> LoadedRecipe:
    """The recipe with every URL source read from a local copy of the same layout.

    ``hf://datasets/<user>/<repo>/<path>`` is looked for as ``<directory>/<repo>/<path>``, and where that is not there as a file
    of that name, whatever its ending, in the directory itself.

    Raises:
        DataError: the directory does not exist.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        message = "there is no such directory" if not root.exists() else "it is a file, not a directory"
        raise DataError.of(
            code="missing-file", message=message, file=str(directory), field="--source", fix="Name the local copy"
        )
    sources = []
    for source in loaded.recipe.source:
        path = source.path
        if "://" in path:
            parts = path.split("://", 1)[1].split("/")
            parts = parts[1:] if parts[0] == "datasets" else parts
            path = str(root.joinpath(parts[1].split("@")[0], *parts[2:]))
            alone = str(root / f"{parts[-1].split('.')[0]}.*")  # the files without their folders, perhaps compressed
            path = alone if not glob.glob(path) and glob.glob(alone) else path  # noqa: PTH207 - absolute patterns
        sources.append(msgspec.structs.replace(source, path=path))
    return LoadedRecipe(
        recipe=msgspec.structs.replace(loaded.recipe, source=sources), directory=loaded.directory, file=loaded.file
    )


def recipe_facts(loaded: LoadedRecipe) -> dict[str, Any]:
    """What the manifest keeps of a recipe."""
    names = (
        "name", "version", "licence", "description", "url", "citation", "notes", "natural", "supersedes", "unanimous",
    )  # fmt: skip
    facts = {name: msgspec.to_builtins(getattr(loaded.recipe, name)) for name in names}
    return {**facts, "digest": "sha256:" + sha256_hex(canonical_json(loaded.recipe))}


def supersession(recipes: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """All pairs (new, old) of builders, by the facts of their recipes: what a builder supersedes, and what that one does.

    Raises:
        RecipeError: a builder supersedes itself, straight or in a circle.
    """
    pairs = {(str(recipe["name"]), str(old)) for recipe in recipes for old in recipe["supersedes"]}
    while more := {(new, older) for new, old in pairs for newer, older in pairs if old == newer} - pairs:
        pairs |= more
    for new, old in sorted(pairs):
        if new == old:
            raise RecipeError.of(
                code="bad-recipe",
                message="a builder supersedes itself",
                field="supersedes",
                value=new,
                fix="Take it out",
            )
    return sorted(pairs)


_TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "": Recipe,
    "archive.": About,
    "eval.": Evaluation,
    "gpu.NAME.": GpuFacts,
    "source.": Source,
    "source.columns.COLUMN.": From,
    "source.join.": Join,
    "exclude.": Exclude,
}


def attributes(kind: type) -> dict[str, str]:
    """Attribute -> what the docstring says of it, those of the base classes included."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        text = inspect.cleandoc(cls.__doc__ or "")
        _, _, listed = text.partition("Attributes:\n")
        for name, said in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE):
            found[name] = " ".join(said.split()).replace("``", "`")
    return found


def explained_keys() -> dict[str, str]:
    """Key of a recipe, with the table that it is in -> what it means."""
    return {
        f"{table}{field.encode_name}": attributes(kind).get(field.name, "")
        for table, kind in _TABLES.items()
        for field in msgspec.structs.fields(kind)
    }
