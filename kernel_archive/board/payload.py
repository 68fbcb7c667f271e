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
MAX_CODE: Final = 60_000
#: What the page says of a kernel.
_KERNEL: Final = ("src", "model", "lang", "how", "n", "flags")


def packed(payload: dict[str, Any]) -> str:
    """Pack data as deflated JSON in base64, so that no text in it can end its element."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(msgspec.json.encode(_shortened(payload))) + squeeze.flush()
    return base64.b64encode(data).decode("ascii")


def _shortened(value: Any) -> Any:
    """Round all floats to six digits, more than the page shows, and name hidden characters."""
    if isinstance(value, float):
        rounded = float(f"{value:.6g}") if math.isfinite(value) else None
        return int(rounded) if rounded is not None and rounded.is_integer() else rounded
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_shortened(key): _shortened(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).tobytes()
        return base64.b64encode(data).decode("ascii")
    return [_shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def _figures(metrics: dict[str, Metric]) -> dict[str, list[float | None]]:
    return {name: [m.mean, m.low, m.high] for name, m in metrics.items()}


def _entry(entry: Entry) -> dict[str, Any]:
    score, recovery, risk = entry.score, entry.score.recovery, entry.score.risk
    return {
        "slug": entry.slug,
        "name": entry.submission.name,
        "ranked": entry.ranked,
        "repeats": score.forecasts.n_repeats,
        "weak": [name for name in score.metrics if score.is_weak(name)],
        "m": _figures(score.metrics),
        "g": {task: _figures(metrics) for task, metrics in score.groups.items()},
        "r": {name: msgspec.structs.astuple(rank) for name, rank in entry.ranks.items()},
        "recovery": recovery and [recovery.mean, recovery.low, recovery.high],
        "buckets": [[b.count, b.confidence, b.accuracy, b.error] for b in score.buckets],
        "confusion": score.confusion,
        "risk": risk and risk.error_rate,
        "discovery": [[c.cutoff, c.base_rate, c.recall, c.precision] for c in score.discovery],
        "p": entry.masses,
        "y": entry.predicted,
        "s": entry.states,
        "why": {str(row): text for row, text in entry.rationales.items()},
    }


def _pairs(board: Standings) -> dict[str, list[Any]]:
    """Map each metric to low, high and verdict of each pair, upper triangle row by row."""
    packed_pairs = {}
    for name, pairs in board.pairs.items():
        upper = np.triu_indices(len(pairs.real), 1)
        columns = (pairs.low, pairs.high, pairs.real.astype(int))
        packed_pairs[name] = [column[upper].tolist() for column in columns]
    return packed_pairs


def _rows(archive: Archive, board: Standings, codes: dict[str, int]) -> dict[str, Any]:
    """List the rows of a split in its order; programs by their number in ``codes``."""
    split, spec = board.split, board.split.spec
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
        "anchor": [codes.setdefault(row["anchor"], len(codes)) for row in rows],
        "code": [codes.setdefault(row["code"], len(codes)) for row in rows],
        "kernel": [{key: row[key] for key in _KERNEL} if row["id"] else None for row in rows],
    }


def _bins(split: Split) -> dict[int, list[str]]:
    """Map the bins that forecasts of a split can name to their name and what is in them."""
    if split.spec.asks_outcome:
        return {1: ["fails", ""], N_BINS: ["passes", ""]}
    rule = SCHEMES[split.scheme]
    return {b: [name.replace("_", " "), rule.describe(b)] for b, name in enumerate(BIN_NAMES, 1)}


def _board(archive: Archive, board: Standings, codes: dict[str, int]) -> dict[str, Any]:
    split = board.split
    first = board.shown[0].score
    figures = {control.name: control.metrics for control in board.controls}
    return {
        "split": split.spec.name,
        "kind": split.kind,
        "title": split.spec.title,
        "bins": _bins(split),
        "paired": list(board.pairs),
        "rankings": board.rankings,
        "controls": [control.metrics for control in board.shown_controls],
        "bars": {name: figures[best].get(name) for name, best in board.best_controls.items()},
        "groups": first.group_rows,
        "random": first.recovery and first.recovery.random,
        "ranked": min(board.n_ranked, len(board.shown)),
        "entries": [_entry(entry) for entry in board.shown],
        "pairs": _pairs(board),
        "rows": _rows(archive, board, codes),
    }


def make_payload(archive: Archive, boards: Sequence[Standings]) -> dict[str, Any]:
    """Make the data of a page of boards, with programs and kernels from the archive."""
    numbers: dict[str, int] = {}  # program -> its number: each is in the page once
    payloads = [_board(archive, board, numbers) for board in boards]
    codes = list(numbers)
    return {
        "metrics": {
            name: [m.title, m.unit, m.better, m.decimals, m.meaning] for name, m in METRICS.items()
        },
        "boards": payloads,
        "codes": [code[:MAX_CODE] for code in codes],
        "cut": {str(i): len(code) for i, code in enumerate(codes) if len(code) > MAX_CODE},
        "limit": MAX_CODE,
    }
