"""Recipes in words: the commented one that a first look writes, and every key explained."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.archive.recipe import About, Evaluation, Exclude, Recipe, Source
from kernel_archive.errors import printable
from kernel_archive.gpus import GpuFacts, is_known
from kernel_archive.readers.mapping import From, Join

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernel_archive.archive.seen import Look


def recipe_text(found: Look, folder: Path, *, name: str, answers: Mapping[str, str]) -> str:
    """A commented ``builder.toml`` for a folder.

    Args:
        found: what was recognised.
        folder: where the recipe will be; paths are relative to it.
        name: name of the archive, ``owner/dataset``.
        answers: keys of the sources that a person said (gpu, problem, role, reference, ...).
    """
    licence = answers.get("licence") or found.licence
    lines = [
        f"# {found.found}",
        "# Written by kernel-archive init; kernel-archive readers --keys explains every key.",
        "",
        f"name = {_toml(re.sub(r'[^A-Za-z0-9._-]+', '-', name.rsplit('/', maxsplit=1)[-1]) or 'mine')}",
        f"licence = {_toml(licence or 'other')}"
        + ("" if licence else "  # NEEDED before you publish: the SPDX name of the data's licence"),
        'description = "What these measurements are, who made them and how."  # NEEDED before you publish: in your words',
        "",
        "[archive]",
        f"name = {_toml(name)}",
        f"title = {_toml(name.rsplit('/', maxsplit=1)[-1])}",
        '# description = "..."  # NEEDED before you publish: what is in it, in a few sentences; the card begins with it',
        "",
    ]
    for gpu in sorted(
        {*found.gpus, *([answers["gpu"]] if answers.get("gpu") and not is_known(answers["gpu"]) else [])}
    ):
        lines += [f"[gpu.{_toml(gpu)}]  # not known to this package: state its facts, or leave the table empty", ""]
    lines += [
        "[eval]  # what the evaluation split asks about; by default every problem with kernels in enough bins",
        "# cap = 10                                     # kernels per problem and speedup bin",
        '# roles = { training = ["conv_*"] }            # problems to train on; all others are asked about',
        "",
    ]
    for source in found.sources:
        stated = {
            **source,
            **{
                key: value
                for key, value in answers.items()
                if value
                and (key in found.open or key in ("reference", "baseline", "problems"))
                # What one of several files says of itself is not overruled by what is said of all.
                and not (key == "gpu" and key in source and len(found.sources) > 1)
            },
        }
        stated["role"] = answers.get("role") or "held_out"
        lines += ["[[source]]", *_source_lines(stated, folder, found, answers), ""]
    if found.unused:
        lines.append(f"# Columns that nothing is read from: {', '.join(printable(name, 40) for name in found.unused)}")
    return "\n".join(lines).rstrip() + "\n"


_ORDER: Final = (
    "path",
    "format",
    "role",
    "generation_method",
    "gpu",
    "problem",
    "reference",
    "baseline",
    "problems",
    "level",
    "model",
    "rows",
)


def _source_lines(source: dict[str, Any], folder: Path, found: Look, answers: Mapping[str, str]) -> Iterable[str]:
    remarks = {
        "role": "  # held_out: asked about | training: to train on | archive: neither",
        "generation_method": "  # how the programs were made, in your words",
        "path": "  # every match is one search",
    }
    for key in _ORDER:
        if key in source:
            value = source[key]
            if key in ("path", "baseline", "problems") or (key == "reference" and Path(str(value)).is_absolute()):
                value = _relative(str(value), folder)
            yield f"{key} = {_toml(value)}{remarks.get(key, '')}"
    for key, text in found.open.items():
        if key not in answers or not answers[key]:
            if key == "gpu" and key not in source:
                text = f'{text}; one that kernel-archive does not know gets a table, too: [gpu."NAME"]'  # noqa: PLW2901
            yield f"# {key} = ...  # NEEDED: {text}" if key in _ORDER and key not in source else f"# LOOK: {text}"
    if source.get("columns"):
        yield ""
        yield "[source.columns]  # our column = theirs; kernel-archive readers --columns lists ours"
        for ours, rule in source["columns"].items():
            yield f"{ours} = {_toml(rule)}"
    for join in source.get("join", ()):
        yield ""
        yield "[[source.join]]  # a second table: NAME.column above is its column"
        yield from (f"{key} = {_toml(value)}" for key, value in join.items())


def _relative(path: str, folder: Path) -> str:
    """A path relative to the recipe's folder where it is below it, else as it is."""
    place = Path(path)
    try:
        return place.relative_to(folder.absolute()).as_posix() or "."
    except ValueError:
        return place.as_posix()


def _toml(value: Any) -> str:
    """A value as TOML: texts, numbers, booleans, and tables in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


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
