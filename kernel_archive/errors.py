"""Faults as records, which print, go to JSON and can be filtered, and exceptions that carry them.

``raise DataError.of(code="bad-row", message="...", file=..., line=...)`` raises one finding,
``raise DataError.from_findings(findings)`` several.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any, Literal, Self

import msgspec


def printable(text: object, limit: int = 120) -> str:
    """Make text safe for a terminal: shorten it, and show control and bidirectional characters.

    Of a path or an exception it shows the text, of any other object what ``repr`` gives.
    """
    raw = str(text) if isinstance(text, str | PurePath | BaseException) else repr(text)
    shown = raw[: limit + 1]
    safe = "".join(
        c if c == " " or (unicodedata.category(c)[0] not in "CZ") else repr(c)[1:-1]
        for c in shown[:limit]
    )
    return safe + "…" if len(shown) > limit else safe


def counted(n: int, noun: str) -> str:
    """Count in words: ``1 row``, ``1,234 rows``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def suggestion(name: object, known: Iterable[str]) -> str:
    """Suggest the nearest known name for an unknown one, or all of them.

    >>> suggestion("evl", ["eval", "discovery"]), suggestion("x", ["eval", "discovery"])
    ("Did you mean 'eval'?", 'Choose one of: eval, discovery')
    """
    names = list(known)
    near = difflib.get_close_matches(str(name)[:200], names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Choose one of: {', '.join(names) or 'none'}"


def place_of(file: str, line: int | None) -> str:
    """Name a place as editors do; a row where the file has no lines of text.

    >>> place_of("a.csv", 3), place_of("b.parquet", 3), place_of("c.csv", None)
    ('a.csv:3', 'b.parquet row 3', 'c.csv')
    """
    is_rows = file.removesuffix(".gz").removesuffix(".zst").endswith((".parquet", ".json"))
    return file if line is None else f"{file}{' row ' if is_rows else ':'}{line}"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One fault or remark about one place."""

    code: str  # stable kebab-case name of the rule, for example ``bad-json``
    message: str  # what is wrong, one sentence without a final stop
    severity: Literal["error", "warning", "info"] = "error"
    file: str | None = None  # as the user named it or relative to the builder
    line: int | None = None  # from 1
    field: str | None = None  # as a dotted path
    value: str | None = None  # the offending value, already made printable
    fix: str | None = None  # the way out

    def render(self) -> str:
        """Write one line: ``file:line: field: message (got value). fix``."""
        location = "" if self.line is None else f"line {self.line}"
        if self.file is not None:
            location = place_of(printable(self.file, 300), self.line)
        field = "" if self.field is None else printable(self.field)
        text = ": ".join(part for part in (location, field, self.message) if part)
        if self.value is not None:
            text += f" (got {printable(self.value)})"
        return f"{text}. {self.fix}" if self.fix else text


class KernelArchiveError(Exception):
    """Raised when a command can't do what it was asked: exit status 1; base of all errors."""

    exit_status = 1

    def __init__(self, message: str, *, findings: Sequence[Finding] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)

    @classmethod
    def of(cls, *, code: str, message: str, **fields: Any) -> Self:
        """Make an error of one finding; ``fields`` are its further ones."""
        return cls.from_findings([Finding(code=code, message=message, **fields)])

    @classmethod
    def from_findings(cls, findings: Iterable[Finding], summary: str | None = None) -> Self:
        """Make an error that carries findings; its message is ``summary`` or the first of them."""
        findings = tuple(findings)
        first = findings[0].render() if findings else "unknown fault"
        return cls(summary or first, findings=findings)


class DataError(KernelArchiveError):
    """Raised when data given to the package is at fault."""


class RecipeError(DataError):
    """Raised when a builder recipe has an unknown key, a wrong value, or contradicts its logs."""


class LogError(DataError):
    """Raised when nothing of a raw log can be read, or it is damaged and the build is strict."""


class ForecastError(DataError):
    """Raised when a forecast file has a fault."""


class LeakageError(DataError):
    """Raised when a training table would hold something of an evaluation table."""


class ArchiveNotFoundError(KernelArchiveError):
    """Raised when there is no archive where one was named."""


class ArchiveMismatchError(KernelArchiveError):
    """Raised when an archive is not the one that its manifest, a version or a score file names."""


class TargetExistsError(KernelArchiveError):
    """Raised when an output would overwrite a version or something that is not ours."""


class HubError(KernelArchiveError):
    """Raised when the Hugging Face Hub refuses, can't be reached, or sends something else."""


def install_of(extra: str) -> str:
    """Write the command that installs an extra, from an index and in a checkout."""
    return f"pip install 'kernel-archive[{extra}]' (in a checkout: pip install '.[{extra}]')"


class MissingExtraError(KernelArchiveError):
    """Raised when a feature needs an optional dependency that is not installed."""


class UsageError(KernelArchiveError):
    """Raised when a command or function was called wrongly: exit status 2."""

    exit_status = 2
