"""What every key of a recipe means, from the docstrings of the recipe's own types: for the terminal and for the documentation."""

from __future__ import annotations

import inspect
import re
from typing import Final

import msgspec

from kernel_archive.archive.recipe import About, Evaluation, Exclude, Recipe, Source
from kernel_archive.gpus import GpuFacts
from kernel_archive.readers.mapping import From, Join

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
