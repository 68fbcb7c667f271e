"""What is wrong with forecasts: the faults of a line, and those of a file, which may lie across its lines.

Nothing of a forecast is changed here: forecasts with a fault are refused, all others pass as they are.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
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

    Only lines with the label ``surrogate`` are read; all when it is ``None``.
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
        for alike in (_cut_off, _nearly):
            if near is None and len(folded) >= 6:
                found = [name for key, name in self._folded.items() if alike(key, folded)]
                near = found[0] if len(found) == 1 else None
        return None if near is None else f"Did you mean {near!r}?"

    def report(self, cell: NDArray[Any], n_repeats: int) -> CheckReport:
        """All that is to be said of every forecast of a known row (its ``row``, ``repeat``, ``line`` and ``flags``)."""
        n = len(self.target)
        self._of_another_split()
        self._labels_across()
        self._across(cell, n_repeats)
        for field, count in self._strange.items():
            what = f"nothing reads this field ({count} lines)"
            self.fault("unknown-field", what, severity="warning", field=printable(field))
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
                self._n_errors -= self._unknown
                self._counts["unknown-row"] = 0
                self._moved = True
                message = f"these look like ids of {split}: {self._unknown:,} of {self.n_lines:,} lines have no row of {self.target.split.name}"
                self.fault("unknown-row", message, field="row_id", fix=f"Use --split {split}")
                return

    def _labels_across(self) -> None:
        labels = [printable(label, 60) for label in self._labels]
        fault = partial(self.fault, field="surrogate_label")
        if self.surrogate is None and len(labels) > 1:
            what = f"the file holds {len(labels)} forecasters: {', '.join(labels[:10])}"
            fault("several-forecasters", what, fix=f"Choose one with --surrogate {labels[0]!r}")
        elif self.surrogate is None and labels and self._unlabelled:
            what = f"{self._unlabelled:,} lines have no surrogate_label and the others have {labels[0]!r}"
            fix = f"Label every line or none, or choose those of one with --surrogate {labels[0]!r}"
            fault("several-forecasters", what, fix=fix)
        elif self.surrogate is not None and self._taken and self._unlabelled:
            what = f"{self._unlabelled:,} lines have no surrogate_label: they are not read"
            fault("no-label", what, severity="warning")
        elif self.surrogate is not None and not self._taken:
            there = f"The file has: {', '.join(labels[:10])}" if labels else None
            fault("no-such-forecaster", "no line has this surrogate_label", value=self.surrogate, fix=there)

    def _across(self, cell: NDArray[Any], n_repeats: int) -> None:
        """Repeated forecasts, gaps in the repeats, nothing at all."""
        if not self.n_lines and not self._n_errors:
            self.fault("no-forecasts", "the file holds no forecast", fix="See: kernel-archive template")
        if self._unknown and not len(cell) and not self._moved:
            facts = self.target.facts
            version = f"{printable(facts.archive_name)} {printable(facts.archive_version)}"
            what = f"no id in this file is one of the {facts.table} split ({version})"
            self.fault("wrong-split", what, fix="Is it for another split, or another version of the archive?")
        several = self.surrogate is None and len(self._labels) + (self._unlabelled > 0) > 1
        key = cell["repeat"] * len(self.target) + cell["row"]
        order = np.argsort(key, kind="stable")
        again = np.flatnonzero(np.diff(key[order]) == 0) + 1
        first: dict[int, int] = {}
        for position in [] if several else again.tolist():
            at, before = cell[order[position]], cell[order[position - 1]]
            original = first.setdefault(int(key[order[position]]), int(before["line"]))
            what = f"repeat {at['repeat']} of this row was already forecast in line {original}"
            row_id = printable(self.target.row_ids[at["row"]])
            fix = "Number the repeats, or drop one of the lines"
            self.fault("repeated-forecast", what, line=int(at["line"]), field="row_id", value=row_id, fix=fix)
        for missing in sorted({*range(n_repeats)} - {*cell["repeat"].tolist()}):
            what = f"there is no forecast with repeat {missing}, but there are some with repeat {n_repeats - 1}"
            self.fault("repeat-gap", what, field="repeat", fix="Number the repeats 0, 1, 2, ... without a gap")


def _cut_off(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _nearly(one: str, other: str) -> bool:
    """Whether two ids differ in one or two places, or by one character more or less."""
    if len(one) == len(other):
        return sum(a != b for a, b in zip(one, other, strict=True)) <= _OFF
    short, long = sorted((one, other), key=len)
    return len(long) == len(short) + 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))
