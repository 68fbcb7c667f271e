"""The data of the page: everything that its script draws, as one JSON text, compressed and in base64."""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.board.texts import visible
from kernel_archive.scoring import HEADLINE, METRICS
from kernel_archive.scoring.metrics import RANKINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kernel_archive.archive.open import Archive
    from kernel_archive.board.entries import Entry
    from kernel_archive.board.standings import Standings
    from kernel_archive.scoring import Metric

#: Longer programs are cut on the page, and it says so. The archive has them whole.
MAX_CODE: Final = 60_000
#: All rationales of a page together, in characters: beyond it they are cut shorter.
MAX_RATIONALES: Final = 8_000_000
#: A lineage is followed so far.
MAX_ANCESTORS: Final = 200


def packed(payload: dict[str, Any]) -> str:
    """JSON, deflated (raw), in base64: letters, digits, ``+``, ``/`` and ``=`` only, so that no text can end its element."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(msgspec.json.encode(payload)) + squeeze.flush()
    return base64.b64encode(data).decode("ascii")


def _short(value: float | None) -> float | int | None:
    """Six significant digits: more than any figure of the page shows."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def _list(values: Sequence[float | None]) -> list[float | int | None]:
    return [_short(v) for v in values]


def _bytes(array: NDArray[np.uint8]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _figure(metric: Metric) -> list[float | int | None]:
    return _list([metric.mean, metric.std, metric.low, metric.high])


def _entry(entry: Entry, allowance: int) -> dict[str, Any]:
    record, stated, facts = entry.record, entry.submission, entry.record.forecasts
    if (shown := entry.shown) is None:
        raise ValueError(f"the forecasts of {entry.slug} were not kept")
    group_metrics = [name for name in METRICS if all(name in values for values in record.groups.values())]
    return {
        "slug": entry.slug, "name": visible(stated.name), "model": visible(stated.model), "url": stated.url, "notes": visible(stated.notes),
        "ranked": entry.ranked, "reason": entry.reason, "repeats": facts.n_repeats, "coverage": _short(facts.coverage),
        "parse": _short(facts.parse_rate), "defer": _short(facts.deferral_rate), "tokens": _short(facts.tokens_per_forecast),
        "latency": _short(facts.latency_s), "weak": [name for name, beats in record.beats_control.items() if not beats], "scheme": list(record.other_scheme.turned),
        "m": {name: _figure(m) for name, m in record.metrics.items()},
        "rep": {name: _list(record.metrics[name].repeats) for name in HEADLINE[record.kind] if name in record.metrics},
        "g": {visible(task): {name: _figure(values[name]) for name in group_metrics} for task, values in record.groups.items()},
        "r": {name: [r.rank, r.best, r.worst, list(r.tied_with)] for name, r in entry.ranks.items()},
        "recovery": None if record.recovery is None else [_list(v) for v in (record.recovery.mean, record.recovery.low, record.recovery.high)],
        "buckets": [[b.count, _short(b.confidence), _short(b.accuracy), _short(b.error)] for b in record.buckets],
        "confusion": record.confusion,
        "risk": None if record.risk is None else [_list(record.risk.error), _list(record.risk.error_rate)],
        "discovery": [[_short(c.cutoff), _short(c.base_rate), _list(c.recall), _list(c.precision)] for c in record.discovery],
        "p": _bytes(shown.masses), "y": _bytes(shown.predicted), "s": _bytes(shown.states),
        "why": {str(row): visible(text[:allowance]) for row, text in shown.rationales.items()},
    }  # fmt: skip


def _pairs(standings: Standings) -> dict[str, list[Any]]:
    """Metric -> low, high and verdict of each pair, upper triangle row by row; differences follow from the figures."""
    out: dict[str, list[Any]] = {}
    for name, pairs in standings.pairs.items():
        upper = np.triu_indices(len(pairs.real), 1)
        out[name] = [
            _list(pairs.low[upper].tolist()),
            _list(pairs.high[upper].tolist()),
            [int(v) for v in pairs.real[upper]],
        ]
    return out


def _rows(archive: Archive, standings: Standings, codes: dict[str, int], lineage: _Lineage) -> dict[str, Any]:
    target, spec = standings.target, standings.target.split
    names = ("row_id", "gpu", spec.task, spec.anchor, spec.candidate, spec.kernel)
    known = {row["row_id"]: row for row in archive.arrow(spec.table, columns=list(names)).to_pylist()}
    rows = [known[row_id] for row_id in target.row_ids]
    tasks = list(dict.fromkeys(row[spec.task] for row in rows))
    return {
        "id": [visible(row_id) for row_id in target.row_ids],
        "tasks": [visible(task) for task in tasks],
        "task": [tasks.index(row[spec.task]) for row in rows],
        "gpu": [visible(row["gpu"]) for row in rows],
        # The page is public: withheld labels are scored with and shown in sums alone.
        "speedup": None if target.withheld else _list(target.speedups.tolist()),
        "bin": None if target.withheld else target.bins.tolist(),
        "anchor": [codes.setdefault(row[spec.anchor], len(codes)) for row in rows],
        "code": [codes.setdefault(row[spec.candidate], len(codes)) for row in rows],
        "kernel": [lineage.add(row[spec.kernel]) for row in rows],
    }


class _Lineage:
    """Kernels and their ancestors, each once, as far as the archive's tables know them."""

    _COLUMNS: Final = (
        "kernel_id", "parent_kernel_id", "language", "generation_method", "step", "source_file", "source_line", "search_id", "model",
    )  # fmt: skip

    def __init__(self, archive: Archive) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        for table, more in (("kernels", ("speedup", "n_measurements", "flags")), ("failures", ("outcome",))):
            if table in archive.tables:
                for row in archive.arrow(table, columns=[*self._COLUMNS, *more]).to_pylist():
                    self.known.setdefault(row["kernel_id"], row)
        self.place: dict[str, int] = {}
        self.nodes: list[dict[str, Any]] = []

    def add(self, kernel_id: str | None, generation: int = 0) -> int:
        """The number of a kernel, after its ancestors have theirs; -1 for one that no table has."""
        if kernel_id in self.place:
            return self.place[kernel_id]
        if kernel_id not in self.known or generation == MAX_ANCESTORS:
            return -1
        row = self.known[kernel_id]
        self.place[kernel_id] = -1  # until its ancestors have theirs: one of them may descend from it
        up = self.add(row["parent_kernel_id"], generation + 1)
        self.place[kernel_id] = len(self.nodes)
        self.nodes.append(
            {
                "id": visible(kernel_id),
                "up": up,
                "s": _short(row.get("speedup")),
                "out": row.get("outcome"),
                "lang": visible(row["language"]),
                "how": visible(row["generation_method"]),
                "step": row["step"],
                "model": row["model"] and visible(row["model"]),
                "src": visible(row["source_file"]) + (f":{row['source_line']}" if row["source_line"] else ""),
                "search": visible(row["search_id"]),
                "n": row.get("n_measurements"),
                "flags": row.get("flags") or [],
            }
        )
        return self.place[kernel_id]


def make_payload(archive: Archive, shown: Sequence[Standings]) -> dict[str, Any]:
    """The data of a page of boards, one a split, with programs and lineage from the archive: of each the entries that are shown in whole."""
    codes: dict[str, int] = {}  # program -> its number
    lineage = _Lineage(archive)
    lengths = [len(text) for s in shown for e in s.entries if e.shown for text in e.shown.rationales.values()]
    total, longest = sum(lengths), max(lengths, default=0)
    allowance = longest if total <= MAX_RATIONALES else max(40, longest * MAX_RATIONALES // total)
    boards = []
    for standings in shown:
        target = standings.target
        rule = SCHEMES[target.scheme]
        whole = standings.entries[: standings.whole]
        sample = whole[0].record if whole else None
        boards.append(
            {
                "split": target.split.name,
                "kind": target.kind,
                "title": target.split.title,
                "scheme": target.scheme,
                "intervals": [rule.describe(b) for b in range(1, N_BINS + 1)],
                "edges": list(rule.edges),
                "headline": list(HEADLINE[target.kind]),
                "metrics": [name for name in METRICS if sample is not None and name in sample.metrics],
                "paired": list(standings.pairs),
                "rankings": [name for name in RANKINGS[target.kind] if name in standings.pairs],
                "controls": [
                    [c.name, int(c.bound), {name: _short(v) for name, v in c.metrics.items()}]
                    for c in standings.controls
                ],
                "best": standings.best_controls,
                "groups": {visible(g): n for g, n in sample.group_rows.items()} if sample is not None else {},
                "uniform": {name: _short(v) for name, v in sample.uniform.items()} if sample is not None else {},
                "random": _list(sample.recovery.random) if sample is not None and sample.recovery is not None else None,
                "ranked": min(standings.n_ranked, len(whole)),
                "entries": [_entry(entry, allowance) for entry in whole],
                "pairs": _pairs(standings),
                "rows": _rows(archive, standings, codes, lineage),
            }
        )
    return {
        "archive": {
            "name": archive.manifest.name,
            "version": archive.manifest.version,
            "digest": archive.manifest.logical_digest,
        },
        "bins": [name.replace("_", " ") for name in BIN_NAMES],
        "metrics": {name: [m.title, m.unit, m.better, m.decimals, m.meaning] for name, m in METRICS.items()},
        "boards": boards,
        "codes": [visible(code[:MAX_CODE]) for code in codes],
        "cut": {str(i): len(code) for code, i in codes.items() if len(code) > MAX_CODE},
        "limit": MAX_CODE,
        "nodes": lineage.nodes,
    }
