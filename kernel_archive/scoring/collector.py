"""Collecting the forecasts of a file one by one into arrays, with everything that is wrong with them."""

from __future__ import annotations

import math
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import Finding, printable
from kernel_archive.scoring import rowwise
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.formats import WrittenForecast, read_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kernel_archive.scoring.target import Target

#: So many findings are kept in full; the rest is counted by code.
KEPT_FINDINGS: Final = 200_000
_HINTS: Final = 200
#: Characters in which an id may be off for another to be suggested.
_OFF: Final = 2
#: One stored forecast: row, repeat, line, flags (1 parsed, 2 deferred), stated bin, raw sum, amounts, probabilities.
_CELL: Final = np.dtype(
    [
        ("row", "<i8"), ("repeat", "<i8"), ("line", "<i8"), ("flags", "i1"), ("stated", "i1"), ("sum", "<f8"),
        ("in", "<f8"), ("out", "<f8"), ("latency", "<f8"), ("expected", "<f8"), ("p", "<f8", (N_BINS,)),
    ]
)  # fmt: skip
_PACK: Final = struct.Struct("<qqqbb5d8d").pack
_UNIFORM: Final = (1.0 / N_BINS,) * N_BINS


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


def _nearly(one: str, other: str) -> bool:
    """Whether two ids differ in one or two places, or by one character more or less."""
    if len(one) == len(other):
        return sum(a != b for a, b in zip(one, other, strict=True)) <= _OFF
    short, long = sorted((one, other), key=len)
    return len(long) == len(short) + 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


class Collector:
    """Takes rows one by one, then makes arrays of them."""

    def __init__(
        self, name: str, target: Target, surrogate: str | None, bounds: tuple[float, float], *, keep_rationales: bool
    ) -> None:
        self.name = name
        self.target = target
        self.bounds = bounds
        self.surrogate = surrogate
        self.rationales: dict[tuple[int, int], str] | None = {} if keep_rationales else None
        self.n_lines = 0
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self.n_errors = 0
        self._index = target.index
        self._folded: dict[str, str] = {}
        self._unknown = 0
        self._strangers: list[str] = []
        self._moved = False
        self._labels: dict[str, int] = {}
        self._unlabelled = 0
        self._taken = 0
        self._strange: Counter[str] = Counter()
        self._cells = bytearray()

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there is room."""
        self.counts[finding.code] += 1
        self.n_errors += finding.severity == "error"
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(finding)

    def fault(self, code: str, message: str, **more: Any) -> None:
        """A fault of the whole file, or of the place that is given."""
        self.add(Finding(code=code, message=message, file=self.name, **more))

    def take(self, row: Mapping[str, Any], line: int) -> None:
        """One forecast, as a JSON object or a row of a table."""
        if not self._belongs(row.get("surrogate_label"), line):
            return
        entry, faults, strange = read_entry(row, file=self.name, line=line)
        for name in strange:
            if name in self._strange or len(self._strange) < 100:
                self._strange[name] += 1
        for finding in faults:
            self.add(finding)
        text = row.get("rationale") or row.get("reasoning")
        self._store(entry, text if isinstance(text, str) else None, line)

    def take_entry(self, entry: WrittenForecast, rationale: str | None, line: int) -> None:
        """One forecast without a fault of its own, and without a label."""
        if self._belongs(None, line):
            self._store(entry, rationale, line)

    def _belongs(self, label: object, line: int) -> bool:
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

    def _store(self, entry: WrittenForecast | None, rationale: str | None, line: int) -> None:
        if entry is None:
            return
        at = self._index.get(entry.row_id)
        if at is None:
            self._unknown += 1
            if len(self._strangers) < _HINTS:
                self._strangers.append(entry.row_id)
            self.fault(
                "unknown-row", "no row of this split has this id", line=line, field="row_id",
                value=printable(entry.row_id), fix=self._hint(entry.row_id) if self._unknown <= _HINTS else None,
            )  # fmt: skip
            return
        p = entry.probabilities
        low, high = self.bounds
        # The sum of the numbers that are there is always bounded; a stated one (of published tables) in addition.
        raw_sum = entry.raw_sum
        if low <= raw_sum <= high and not math.isnan(entry.before_sum):
            raw_sum = entry.before_sum
        if p is not None and not low <= raw_sum <= high:
            what = "the probabilities sum" if raw_sum == entry.raw_sum else "before renormalisation they summed"
            self.fault(
                "raw-sum",
                f"{what} to {raw_sum:.4g}, not {low:g} to {high:g}: it counts as no forecast",
                severity="warning",
                line=line,
                field="probabilities",
            )
            p = None
        self._cells += _PACK(
            at, entry.repeat, line, (p is not None) + 2 * entry.defer, entry.stated, raw_sum,
            entry.input_tokens, entry.output_tokens, entry.latency_s, entry.expected_speedup,
            *(_UNIFORM if p is None else p),
        )  # fmt: skip
        if self.rationales is not None and rationale is not None:
            self.rationales[entry.repeat, at] = rationale

    def finish(self, name: str, source: str, digest: str) -> tuple[Forecasts | None, CheckReport]:
        """Faults across lines, the report, and the forecasts when there is no fault."""
        n = len(self.target)
        cell = np.frombuffer(self._cells, dtype=_CELL)
        n_repeats = int(cell["repeat"].max()) + 1 if len(cell) else 0
        self._of_another_split()
        self._labels_across()
        self._across(cell, n_repeats)
        self._remarks()
        # Of a cell that was forecast twice (a fault) the first line counts here.
        kept = cell[np.unique(cell["repeat"] * n + cell["row"], return_index=True)[1]]
        parsed, deferred = (kept["flags"] & 1) > 0, (kept["flags"] & 2) > 0
        asked = parsed | ~deferred
        self.findings.sort(key=lambda f: f.line or 0)
        report = CheckReport(
            file=self.name,
            ok=not self.n_errors,
            n_rows=n,
            n_repeats=n_repeats,
            n_lines=self.n_lines,
            n_present=len(kept),
            n_parsed=int(parsed.sum()),
            n_deferred=int(deferred.sum()),
            coverage=len(kept) / (n * max(n_repeats, 1)),
            parse_rate=float(parsed[asked].mean()) if asked.any() else None,
            n_errors=self.n_errors,
            n_warnings=sum(self.counts.values()) - self.n_errors,
            counts=dict(sorted(self.counts.items())),
            findings=tuple(self.findings),
        )
        if self.n_errors:
            return None, report
        made = Forecasts(
            name=name,
            source=source,
            digest=digest,
            remarks=report.findings,
            rationales=self.rationales,
            **self._arrays(cell, n_repeats),
        )
        return made, report

    def _of_another_split(self) -> None:
        """Where most ids are those of another split, one finding in the place of one a line."""
        if self._unknown * 2 <= self.n_lines or self.target.others is None:
            return
        for split, ids in self.target.others().items():
            n = len(ids.intersection(self._strangers))
            if n * 2 > len(self._strangers):
                self.findings = [f for f in self.findings if f.code != "unknown-row"]
                self.n_errors -= self._unknown - 1
                self.counts["unknown-row"] = 1
                self._moved = True
                message = f"these look like ids of {split}: {self._unknown:,} of {self.n_lines:,} lines have no row of {self.target.split.name}"
                self.findings.append(
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
        if not self.n_lines and not self.n_errors:
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

    def _remarks(self) -> None:
        for field, count in self._strange.items():
            self.fault(
                "unknown-field", f"nothing reads this field ({count} lines)", severity="warning", field=printable(field)
            )

    def _arrays(self, cell: NDArray[Any], n_repeats: int) -> dict[str, Any]:
        shape = (n_repeats, len(self.target))
        r, i = cell["repeat"], cell["row"]

        def spread(values: Any, default: float | bool, dtype: Any) -> Any:
            out = np.full(shape, default, dtype=dtype)
            out[r, i] = values
            return out

        parsed = spread((cell["flags"] & 1) > 0, False, bool)
        p = np.full((*shape, N_BINS), 1.0 / N_BINS)
        p[r, i] = rowwise.normalise(raw=cell["p"])
        return {
            "probabilities": p,
            "parsed": parsed,
            "present": spread(True, False, bool),
            "deferred": spread((cell["flags"] & 2) > 0, False, bool),
            "stated": spread(cell["stated"], 0, np.int8),
            "expected_speedups": spread(cell["expected"], math.nan, np.float64),
            "raw_sums": spread(cell["sum"], math.nan, np.float64),
            "input_tokens": spread(cell["in"], math.nan, np.float64),
            "output_tokens": spread(cell["out"], math.nan, np.float64),
            "latency_s": spread(cell["latency"], math.nan, np.float64),
        }
