"""Cross-references between the tables: the rules of ``crosschecks.toml``, as queries."""

from __future__ import annotations

import tomllib
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import msgspec

from kernel_archive.archive.labels import CONTESTED, SUPERSEDED, WITHHELD
from kernel_archive.schema import OUTCOMES, ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable


class CrossCheck(msgspec.Struct, frozen=True):
    """One rule."""

    code: str  # of the finding
    message: str  # what is wrong
    table: str  # whose rows are named
    query: str  # returns their keys


def cross_checks(unanimous: Iterable[str]) -> list[CrossCheck]:
    """Load the rules for an archive with these ``unanimous`` builders."""

    def quoted(names: Iterable[str]) -> str:
        return ", ".join("'" + name.replace("'", "''") + "'" for name in names) or "NULL"

    values = {
        "superseded": SUPERSEDED,
        "contested": CONTESTED,
        "withheld": WITHHELD,
        "outcomes": quoted(OUTCOMES),
        "roles": quoted(ROLES),
        "unanimous": quoted(unanimous),
    }
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return [
        CrossCheck(**{key: Template(value).substitute(values) for key, value in check.items()})
        for check in tomllib.loads(text)["check"]
    ]
