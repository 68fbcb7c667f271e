"""What is wrong with forecasts: the faults of a line, and those of a file, which may lie across its lines.

Nothing of a forecast is changed here: forecasts with a fault are refused, all others pass as they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.errors import Finding, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kernel_archive.scoring.target import Target

#: So many findings are kept in full; the rest is counted by code.
KEPT_FINDINGS: Final = 200_000
_HINTS: Final = 200
#: Characters in which an id may be off for another to be suggested.
_OFF: Final = 2


class LineFaults:
    """Collects the faults of one line."""

    def __init__(self, file: str, line: int) -> None:
        self.file = file
        self.line = line
        self.found: list[Finding] = []

    def add(
        self, code: str, message: str, field: str | None = None, value: object = None, fix: str | None = None
    ) -> None:
        """One more fault."""
        shown = None if value is None else printable(value if isinstance(value, str) else _short(value))
        self.found.append(
            Finding(code=code, message=message, file=self.file, line=self.line, field=field, value=shown, fix=fix)
        )


def _short(value: object) -> str:
    """A value as JSON-like text, bounded in length and in the work that it takes."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_short(v) for v in value[:12]) + (", ...]" if len(value) > 12 else "]")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{printable(str(k), 30)}: ..." for k in list(value)[:8]) + "}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a whole number of more than 60 digits"
    return repr(value)[:200]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a forecast file.

    Attributes:
        file: the file, made printable.
        ok: it can be scored.
        n_rows: rows of the split.
        n_repeats: repeats found.
        n_lines: forecasts found, faulty ones included.
        n_present: row and repeat cells with a good line.
        n_parsed: of those, with a distribution.
        n_deferred: of those, deferred.
        coverage: n_present over rows x repeats.
        parse_rate: share of the good lines that give a distribution, of those that don't defer without one.
        n_errors: number of faults.
        n_warnings: number of remarks.
        counts: code -> number of findings.
        findings: the findings in order of lines: all of them, or the first 200,000.
    """

    file: str
    ok: bool
    n_rows: int
    n_repeats: int
    n_lines: int
    n_present: int
    n_parsed: int
    n_deferred: int
    coverage: float
    parse_rate: float | None
    n_errors: int
    n_warnings: int
    counts: dict[str, int]
    findings: tuple[Finding, ...]


class FileFaults:
    """The faults of a file, as its lines come in, and what is to be said of it in the end.

    Args:
        name: of the file, for findings.
        target: the split that it is for.
        surrogate: only lines with this label are read; all when it is ``None``.
    """

    def __init__(self, name: str, target: Target, surrogate: str | None) -> None:
        self.name = name
        self.target = target
        self.surrogate = surrogate
        self.n_lines = 0
        self._findings: list[Finding] = []
        self._counts: Counter[str] = Counter()
        self._n_errors = 0
        self._folded: dict[str, str] = {}
        self._unknown = 0
        self._strangers: list[str] = []
        self._moved = False
        self._labels: dict[str, int] = {}
        self._unlabelled = 0
        self._taken = 0
        self._strange: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there is room."""
        self._counts[finding.code] += 1
        self._n_errors += finding.severity == "error"
        if len(self._findings) < KEPT_FINDINGS:
            self._findings.append(finding)

    def fault(self, code: str, message: str, **more: Any) -> None:
        """A fault of the whole file, or of the place that is given."""
        self.add(Finding(code=code, message=message, file=self.name, **more))

    def belongs(self, label: object, line: int) -> bool:
        """Whether a line with this label is one of the forecaster's that was asked for; all of them when none was."""
        if label is None:
            self._unlabelled += 1
        elif not isinstance(label, str):
            self.fault("not-text", "must be text", line=line, field="surrogate_label", value=printable(label))
        elif len(self._labels) < 100:
            self._labels.setdefault(label, line)
        belongs = self.surrogate is None or label == self.surrogate
        self._taken += belongs
        self.n_lines += belongs
        return belongs

    def strange(self, fields: Iterable[str]) -> None:
        """Count fields that nothing reads."""
        for name in fields:
            if name in self._strange or len(self._strange) < 100:
                self._strange[name] += 1

    def unknown_row(self, row_id: str, line: int) -> None:
        """A fault: no row of the split has this id."""
        self._unknown += 1
        hint = None
        if len(self._strangers) < _HINTS:
            self._strangers.append(row_id)
            hint = self._hint(row_id)
        self.fault(
            "unknown-row", "no row of this split has this id", line=line, field="row_id", value=printable(row_id), fix=hint
        )  # fmt: skip

    def _hint(self, unknown: str) -> str | None:
        """The known id that an unknown one is but for case, white space or its end: never a silent repair."""
        if not self._folded:
            self._folded = {name.casefold(): name for name in self.target.row_ids}
        folded = unknown.strip().casefold()
        near = self._folded.get(folded)
        if near is None and len(folded) >= 6:
            cut = [name for key, name in self._folded.items() if key.startswith(folded) or folded.startswith(key)]
            near = cut[0] if len(cut) == 1 else None
        if near is None and len(folded) >= 6:
            off = [name for key, name in self._folded.items() if _nearly(key, folded)]
            near = off[0] if len(off) == 1 else None
        return None if near is None else f"Did you mean {near!r}?"

    def report(self, cell: NDArray[Any], n_repeats: int) -> CheckReport:
        """All that is to be said, faults across lines among it.

        Args:
            cell: every forecast of a known row: its ``row``, ``repeat``, ``line`` and ``flags``.
            n_repeats: number of repeats.
        """
        n = len(self.target)
        self._of_another_split()
        self._labels_across()
        self._across(cell, n_repeats)
        for field, count in self._strange.items():
            self.fault(
                "unknown-field", f"nothing reads this field ({count} lines)", severity="warning", field=printable(field)
            )
        # Of a cell that was forecast twice (a fault) the first line counts here.
        kept = cell[np.unique(cell["repeat"] * n + cell["row"], return_index=True)[1]]
        parsed, deferred = (kept["flags"] & 1) > 0, (kept["flags"] & 2) > 0
        asked = parsed | ~deferred
        self._findings.sort(key=lambda f: f.line or 0)
        return CheckReport(
            file=self.name,
            ok=not self._n_errors,
            n_rows=n,
            n_repeats=n_repeats,
            n_lines=self.n_lines,
            n_present=len(kept),
            n_parsed=int(parsed.sum()),
            n_deferred=int(deferred.sum()),
            coverage=len(kept) / (n * max(n_repeats, 1)),
            parse_rate=float(parsed[asked].mean()) if asked.any() else None,
            n_errors=self._n_errors,
            n_warnings=sum(self._counts.values()) - self._n_errors,
            counts=dict(sorted(self._counts.items())),
            findings=tuple(self._findings),
        )

    def _of_another_split(self) -> None:
        """Where most ids are those of another split, one finding in the place of one a line."""
        if self._unknown * 2 <= self.n_lines or self.target.others is None:
            return
        for split, ids in self.target.others().items():
            n = len(ids.intersection(self._strangers))
            if n * 2 > len(self._strangers):
                self._findings = [f for f in self._findings if f.code != "unknown-row"]
                self._n_errors -= self._unknown - 1
                self._counts["unknown-row"] = 1
                self._moved = True
                message = f"these look like ids of {split}: {self._unknown:,} of {self.n_lines:,} lines have no row of {self.target.split.name}"
                self._findings.append(
                    Finding(
                        code="unknown-row", message=message, file=self.name, field="row_id", fix=f"Use --split {split}"
                    )
                )
                return

    def _labels_across(self) -> None:
        labels = [printable(label, 60) for label in self._labels]
        if self.surrogate is None and len(labels) > 1:
            self.fault(
                "several-forecasters", f"the file holds {len(labels)} forecasters: {', '.join(labels[:10])}",
                field="surrogate_label", fix=f"Choose one with --surrogate {labels[0]!r}",
            )  # fmt: skip
        elif self.surrogate is None and labels and self._unlabelled:
            self.fault(
                "several-forecasters",
                f"{self._unlabelled:,} lines have no surrogate_label and the others have {labels[0]!r}",
                field="surrogate_label",
                fix=f"Label every line or none, or choose those of one with --surrogate {labels[0]!r}",
            )
        elif self.surrogate is not None and self._taken and self._unlabelled:
            self.fault(
                "no-label",
                f"{self._unlabelled:,} lines have no surrogate_label: they are not read",
                severity="warning",
                field="surrogate_label",
            )
        elif self.surrogate is not None and not self._taken:
            self.fault(
                "no-such-forecaster", "no line has this surrogate_label", field="surrogate_label", value=self.surrogate,
                fix=f"The file has: {', '.join(labels[:10])}" if labels else None,
            )  # fmt: skip

    def _across(self, cell: NDArray[Any], n_repeats: int) -> None:
        """Repeated forecasts, gaps in the repeats, nothing at all."""
        if not self.n_lines and not self._n_errors:
            self.fault("no-forecasts", "the file holds no forecast", fix="See: kernel-archive template")
        if self._unknown and not len(cell) and not self._moved:
            self.fault(
                "wrong-split",
                f"no id in this file is one of the {self.target.facts.table} split "
                f"({printable(self.target.facts.archive_name)} {printable(self.target.facts.archive_version)})",
                fix="Is it for another split, or another version of the archive?",
            )
        several = self.surrogate is None and len(self._labels) + (self._unlabelled > 0) > 1
        key = cell["repeat"] * len(self.target) + cell["row"]
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero(np.diff(key[order]) == 0) + 1
        first: dict[int, int] = {}
        for position in [] if several else again.tolist():
            at, before = int(order[position]), int(order[position - 1])
            original = first.setdefault(int(key[at]), int(cell["line"][before]))
            self.fault(
                "repeated-forecast",
                f"repeat {int(cell['repeat'][at])} of this row was already forecast in line {original}",
                line=int(cell["line"][at]),
                field="row_id",
                value=printable(self.target.row_ids[int(cell["row"][at])]),
                fix="Number the repeats, or drop one of the lines",
            )
        found = set(np.unique(cell["repeat"]).tolist())
        for missing in [r for r in range(n_repeats) if r not in found]:
            self.fault(
                "repeat-gap",
                f"there is no forecast with repeat {missing}, but there are some with repeat {n_repeats - 1}",
                field="repeat",
                fix="Number the repeats 0, 1, 2, ... without a gap",
            )


def _nearly(one: str, other: str) -> bool:
    """Whether two ids differ in one or two places, or by one character more or less."""
    if len(one) == len(other):
        return sum(a != b for a, b in zip(one, other, strict=True)) <= _OFF
    short, long = sorted((one, other), key=len)
    return len(long) == len(short) + 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))
