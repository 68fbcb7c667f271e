"""Make the data of the page, which its script draws, as one JSON text, compressed, in base64."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from kernel_archive.archive.open import Archive
from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.board.entries import Entry
from kernel_archive.board.standings import Standings
from kernel_archive.board.texts import visible
from kernel_archive.scoring import METRICS, Metric, Split

#: Longer programs are cut on the page, and it says so. The archive has them whole.
CODE_CHARACTERS: Final = 60_000
#: What the page says of a kernel.
_KERNEL: Final = ("src", "model", "lang", "how", "n", "flags")


def packed(payload: dict[str, Any]) -> str:
    """Pack data as deflated JSON in base64, so that no text in it can end its element."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(msgspec.json.encode(_page_value(payload))) + squeeze.flush()
    return base64.b64encode(data).decode("ascii")


def _page_value(value: Any) -> Any:
    """Round floats to six digits (the page shows fewer), name hidden characters, encode arrays."""
    if isinstance(value, float):
        rounded = float(f"{value:.6g}") if math.isfinite(value) else None
        return int(rounded) if rounded is not None and rounded.is_integer() else rounded
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_page_value(key): _page_value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).tobytes()
        return base64.b64encode(data).decode("ascii")
    return [_page_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def _figures(metrics: dict[str, Metric]) -> dict[str, list[float | None]]:
    return {name: [m.mean, m.low, m.high] for name, m in metrics.items()}


def _entry(entry: Entry) -> dict[str, Any]:
    """List what the page says of an entry; R repeats, n rows."""
    score, recovery, risk = entry.score, entry.score.recovery, entry.score.risk
    return {
        "slug": entry.slug,
        "name": entry.submission.name,
        "ranked": entry.ranked,
        "repeats": score.forecasts.n_repeats,
        "weak": [name for name in score.metrics if score.is_weak(name)],
        "m": _figures(score.metrics),  # metric -> mean, low, high
        "g": {group: _figures(metrics) for group, metrics in score.groups.items()},
        # metric -> rank, best, worst, positions of ties
        "r": {name: msgspec.structs.astuple(rank) for name, rank in entry.ranks.items()},
        "recovery": recovery and [recovery.mean, recovery.low, recovery.high],
        "buckets": [[b.count, b.confidence, b.accuracy, b.error] for b in score.buckets],
        "confusion": score.confusion,
        "risk": risk and risk.error_rate,
        "discovery": [[c.cutoff, c.base_rate, c.recall, c.precision] for c in score.discovery],
        "p": entry.quantised,  # probabilities x 255, (R, n, 8)
        "y": entry.predicted,  # bins, (R, n)
        "s": entry.states,  # bits of what became of a row, (R, n)
        "why": {str(row): text for row, text in entry.rationales.items()},
    }


def _pairs(standings: Standings) -> dict[str, list[Any]]:
    """Map each metric to low, high and verdict of each pair, upper triangle row by row."""
    packed_pairs = {}
    for name, pairs in standings.pairs.items():
        upper = np.triu_indices(len(pairs.real), 1)
        columns = (pairs.low, pairs.high, pairs.real.astype(int))
        packed_pairs[name] = [column[upper].tolist() for column in columns]
    return packed_pairs


def _rows(archive: Archive, standings: Standings, numbers: dict[str, int]) -> dict[str, Any]:
    """List the rows of a split in its order; a program that ``numbers`` lacks is added to them."""
    split, spec = standings.split, standings.split.spec
    table = archive.sql(
        f"""
        SELECT s.row_id, s.gpu, s.{spec.task} AS task, s.{spec.anchor} AS anchor,
               s.{spec.candidate} AS code, k.kernel_id AS id, k.language AS lang, k.model,
               k.generation_method AS how, k.n_measurements AS n,
               coalesce(k.flags, []) AS flags,
               concat(k.source_file, ':' || k.source_line) AS src
        FROM {spec.table} s
        LEFT JOIN (FROM kernels UNION ALL BY NAME FROM failures) k ON k.kernel_id = s.{spec.kernel}
        """
    )
    by_id = {row["row_id"]: row for row in table.to_pylist()}
    rows = [by_id[row_id] for row_id in split.row_ids]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    return {
        "id": split.row_ids,
        "tasks": tasks,
        "task": [tasks.index(row["task"]) for row in rows],
        "gpu": [row["gpu"] for row in rows],
        "speedup": None if spec.asks_outcome else split.speedups.tolist(),
        "bin": split.bins.tolist(),
        "anchor": [numbers.setdefault(row["anchor"], len(numbers)) for row in rows],
        "code": [numbers.setdefault(row["code"], len(numbers)) for row in rows],
        "kernel": [{key: row[key] for key in _KERNEL} if row["id"] else None for row in rows],
    }


def _bins(split: Split) -> dict[int, list[str]]:
    """Map the bins that forecasts of a split can name to their name and what is in them."""
    if split.spec.asks_outcome:
        return {1: ["fails", ""], N_BINS: ["passes", ""]}
    rule = SCHEMES[split.scheme]
    return {b: [name.replace("_", " "), rule.describe(b)] for b, name in enumerate(BIN_NAMES, 1)}


def _split_data(archive: Archive, standings: Standings, numbers: dict[str, int]) -> dict[str, Any]:
    """Make the data of one split; programs by their ``numbers``, to which new ones are added."""
    split = standings.split
    first = standings.shown[0].score
    figures = {control.name: control.metrics for control in standings.controls}
    return {
        "split": split.spec.name,
        "kind": split.kind,
        "title": split.spec.title,
        "bins": _bins(split),
        "paired": list(standings.pairs),
        "rankings": standings.rankings,
        "controls": [control.metrics for control in standings.shown_controls],
        "bars": {name: figures[best].get(name) for name, best in standings.best_controls.items()},
        "groups": first.group_rows,
        "random": first.recovery and first.recovery.random,
        "ranked": min(standings.n_ranked, len(standings.shown)),
        "entries": [_entry(entry) for entry in standings.shown],
        "pairs": _pairs(standings),
        "rows": _rows(archive, standings, numbers),
    }


def make_payload(archive: Archive, all_standings: Sequence[Standings]) -> dict[str, Any]:
    """Make the data of a page of several splits, with programs and kernels from the archive."""
    numbers: dict[str, int] = {}  # program -> its number: each is in the page once
    payloads = [_split_data(archive, standings, numbers) for standings in all_standings]
    codes = list(numbers)
    return {
        "metrics": {
            name: [m.title, m.unit, m.better, m.decimals, m.meaning] for name, m in METRICS.items()
        },
        "boards": payloads,
        "codes": [code[:CODE_CHARACTERS] for code in codes],
        "cut": {str(i): len(code) for i, code in enumerate(codes) if len(code) > CODE_CHARACTERS},
        "limit": CODE_CHARACTERS,
    }
