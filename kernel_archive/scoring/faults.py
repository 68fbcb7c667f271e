"""What is wrong with forecasts: the faults of one line, and the report on a whole file."""

from __future__ import annotations

import difflib
import reprlib
from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Ids longer than this get no suggestion: comparing them with every row takes too long.
_MAX_ID: Final = 200
#: Similarity (0 to 1) from which an unknown id may be a misspelt one.
_SIMILAR: Final = 0.8


class LineFaults:
    """Collect the faults of one line."""

    def __init__(self, file: str, line: int) -> None:
        self.file = file
        self.line = line
        self.findings: list[Finding] = []

    def add(
        self,
        code: str,
        message: str,
        field: str | None = None,
        value: object = None,
        fix: str | None = None,
    ) -> None:
        """Add one fault."""
        shown = None if value is None else printable(_short(value))
        self.findings.append(
            Finding(
                code=code,
                message=message,
                file=self.file,
                line=self.line,
                field=field,
                value=shown,
                fix=fix,
            )
        )


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report what is in a forecast file and what is wrong with it."""

    #: The file, made printable.
    file: str
    #: It can be scored.
    ok: bool
    n_rows: int
    n_repeats: int
    #: Lines with a forecast, faulty ones included.
    n_lines: int
    #: Row and repeat cells with a good line.
    n_present: int
    #: Of those, cells with a distribution.
    n_parsed: int
    n_deferred: int
    #: n_present over rows x repeats.
    coverage: float
    #: Share of the good lines with a distribution, of those that don't defer without one.
    parse_rate: float | None
    n_errors: int
    n_warnings: int
    #: Code -> number of findings.
    counts: dict[str, int]
    #: In order of lines: all, or the first ``KEPT_FINDINGS`` of the reader.
    findings: tuple[Finding, ...]


def near_id(unknown: str, row_ids: Iterable[str]) -> str | None:
    """Suggest the one known id that an unknown one resembles; nothing is repaired silently.

    >>> near_id("A1B2C3D ", ["a1b2c3d4", "ffffffff"])
    "Did you mean 'a1b2c3d4'?"
    """
    if len(unknown) > _MAX_ID:
        return None
    folded = {name.casefold(): name for name in row_ids}
    word = unknown.strip().casefold()
    near = [word] if word in folded else difflib.get_close_matches(word, folded, 2, _SIMILAR)
    return f"Did you mean {folded[near[0]]!r}?" if len(near) == 1 else None


def _short(value: object) -> str:
    """Show a value in bounded length and time; whole numbers can have millions of digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number of more than 60 digits"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_short, value[:12]))}{', ...' if len(value) > 12 else ''}]"
    return reprlib.repr(value)
