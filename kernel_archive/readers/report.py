"""Findings of one run, bounded: a file of junk must not become a million messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Findings of one code that are kept in full.
KEPT: Final = 50


class Report:
    """Collects findings; of each code the first ones in full, the rest as one count."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._counts: dict[str, int] = {}

    def add(self, finding: Finding) -> None:
        """Take a finding in."""
        if self._counted(finding.code):
            self._kept.append(finding)

    def _counted(self, code: str) -> bool:
        """Count one more of a code; whether it is to be kept."""
        self._counts[code] = self._counts.get(code, 0) + 1
        return self._counts[code] <= KEPT

    def error(self, code: str, message: str, **where: Any) -> None:
        """Take in a fault; ``value`` and ``field`` are made printable."""
        self._new(code, message, "error", where)

    def warning(self, code: str, message: str, **where: Any) -> None:
        """Take in something that was salvaged or left out."""
        self._new(code, message, "warning", where)

    def info(self, code: str, message: str, **where: Any) -> None:
        """Take in a remark."""
        self._new(code, message, "info", where)

    def _new(
        self, code: str, message: str, severity: Literal["error", "warning", "info"], where: dict[str, Any]
    ) -> None:
        if not self._counted(code):
            return
        for name in ("value", "field"):
            if where.get(name) is not None:
                where[name] = printable(where[name])
        self._kept.append(Finding(code=code, message=message, severity=severity, **where))

    def of(self, *codes: str) -> Iterator[Finding]:
        """The findings of these codes that were kept."""
        return (f for f in self._kept if f.code in codes)

    def __iter__(self) -> Iterator[Finding]:
        """The findings kept, then one line per code for those that were not."""
        yield from self._kept
        for code, n in self._counts.items():
            if n > KEPT:
                first = next(self.of(code))
                message = f"{n - KEPT} more of this kind"
                yield Finding(code=code, message=message, severity=first.severity, file=first.file)
