"""Hand-made archives: from searches and their measurements to tables or a directory.

The consolidation here states the rules again (median of the measurements, held-out programs and
near duplicates out of train), independent of the package's own::

    make_archive(
        tmp_path / "a",
        [Search("s/1", "trimul"), Search("s/2", "trimul", role="training")],
        [Run("s/1", program(1), 1.7), Run("s/1", program(2), 2.1, parent="n0")],
    )
"""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from kernel_archive import __version__
from kernel_archive.archive.labels import WITHHELD
from kernel_archive.archive.manifest import (
    FORMAT,
    Manifest,
    TableFacts,
    read_manifest,
    write_manifest,
)
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import write_table, writer_version
from kernel_archive.archive.validate import validate_measured
from kernel_archive.bins import DEFAULT_SCHEME, bin_of
from kernel_archive.errors import Finding
from kernel_archive.gpus import is_known
from kernel_archive.ids import CANARY, evaluation_id, kernel_id, program_id, token_id
from kernel_archive.problems import GPU_MODE_TASKS, family_of
from kernel_archive.schema import OUTCOMES, TABLES
from kernel_archive.selection.inputs import write_inputs
from kernel_archive.selection.make import RemadeSplit, remade_split
from kernel_archive.selection.tables import ArchiveTables

Rows = dict[tuple[str, str], list[dict[str, Any]]]
#: What the manifest of a hand-made archive says of its recipe.
RECIPE: dict[str, Any] = {
    "name": "hand-made",
    "version": "1",
    "licence": "CC-BY-4.0",
    "description": "Made by hand.",
    "notes": [],
    "natural": True,
}
#: What a hand-made archive is asked about: the six tasks, of programs that were measured once.
EVALUATION: dict[str, Any] = {"tasks": list(GPU_MODE_TASKS), "gpu": "A100-80GB", "bins": 1}
_RANK = {"held_out": 0, "training": 1, "archive": 2}


def program(name: object, *, comment: str = "", size: int = 6) -> str:
    """A program text of its own for every name; a comment makes a near duplicate of it."""
    seed = int.from_bytes(hashlib.sha256(str(name).encode()).digest()[:6], "big")
    body = "\n".join(
        f"    v{i} = tl.load(x + {(seed >> i) % 9973} * pid + {i})" for i in range(size)
    )
    note = f"  # {comment}" if comment else ""
    return (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def kernel_{seed}(x, pid):{note}\n{body}\n    tl.store(x, v0)"
    )


def reference(problem: str, which: int = 0) -> str:
    """The text of a problem's reference program."""
    return f"import torch\n\n\ndef reference(x):\n    return torch.{problem}_{which}(x)"


@dataclass(frozen=True)
class Search:
    """One search; ``reference=None`` means that no log says what was timed beside the programs."""

    search_id: str
    problem: str = "trimul"
    role: str = "held_out"
    method: str = "tree_search"
    gpu: str = "H200"
    reference: str | None = ""
    finished: bool | None = True
    source_digest: str | None = None
    builder: str = "hand-made"

    @property
    def reference_code(self) -> str | None:
        """The reference's text; the problem's own one when none was given."""
        return reference(self.problem) if self.reference == "" else self.reference


@dataclass(frozen=True)
class Run:
    """One evaluation of a search: a success with its speedup, or a failure with ``speedup=None``.

    ``node`` is ``n0``, ``n1``, ... in the order of the search's runs when not given.
    ``cases`` are candidate times in us per case, against 100 us each.
    """

    search: str
    code: str
    speedup: float | None = 1.0
    node: str | None = None
    parent: str | None = None
    cases: tuple[float, ...] = ()
    excluded: str | None = None
    outcome: str = "incorrect"
    gpu: str | None = None
    reference: str | None = None
    flags: tuple[str, ...] = ()
    distance: int = 1


def six_tasks(n: int = 8) -> tuple[list[Search], list[Run]]:
    """A held-out and a training search per task, each a chain of ``n`` kernels over all bins."""
    roles = ("held_out", "training")
    searches = [Search(f"{task}/{role}", task, role) for task in GPU_MODE_TASKS for role in roles]
    speedups = [0.2, 0.3, 0.6, 0.9, 1.2, 1.7, 3.0, 5.0]
    runs = [
        Run(
            s.search_id,
            program(f"{s.search_id}{i}"),
            speedups[i % 8] * (1 + 0.01 * i),
            parent=f"n{i - 1}" if i else None,
        )
        for s in searches
        for i in range(n)
    ]
    return searches, runs


def kernel_ids(searches: Iterable[Search], runs: Iterable[Run]) -> list[str]:
    """Kernel id of every run, in order."""
    by_id = {s.search_id: s for s in searches}
    return [_row(by_id[run.search], run, 0)["kernel_id"] for run in runs]


def _row(search: Search, run: Run, position: int) -> dict[str, Any]:
    """All columns of one evaluation and of its program; a table takes those of its schema."""
    node = run.node or f"n{position}"
    good = run.speedup is not None
    code = run.reference if run.reference is not None else search.reference_code
    reference_id = "" if code is None else program_id(code)
    gpu = run.gpu or search.gpu
    runtime = 100.0 / run.speedup if run.speedup else None
    cases = [
        {"shape": json.dumps({"n": i}), "speedup": 100.0 / t, "runtime_us": t}
        | {"reference_runtime_us": 100.0}
        for i, t in enumerate(run.cases)
    ]
    kernel = kernel_id(
        problem=search.problem,
        reference_program_id=reference_id,
        gpu=gpu,
        program=program_id(run.code),
    )
    return {
        "evaluation_id": evaluation_id(search_id=run.search, node_id=node),
        "kernel_id": kernel,
        "program_id": program_id(run.code),
        "token_id": token_id(run.code),
        "problem": search.problem,
        "family": family_of(search.problem),
        "language": "triton",
        "generation_method": search.method,
        "gpu": gpu,
        "reference_id": reference_id,
        "search_id": run.search,
        "node_id": node,
        "parent_node_id": run.parent,
        "parent_distance": None if run.parent is None else run.distance,
        "step": position,
        "goal_bin": 4,
        "aim": "made by hand",
        "is_root": run.parent is None and position == 0,
        "outcome": "success" if good else run.outcome,
        "error_type": None if good else "MadeUp",
        "error_text": "made up",
        "speedup": run.speedup,
        "runtime_us": statistics.geometric_mean(run.cases) if good and run.cases else runtime,
        "reference_runtime_us": 100.0 if good else None,
        "cases": cases,
        "n_logged": 1,
        "excluded": run.excluded,
        "builder": search.builder,
        "source_file": f"{run.search}/events.jsonl",
        "source_line": position + 1,
        "source_digest": hashlib.sha256(run.search.encode()).hexdigest(),
        "code": run.code,
        "role": search.role,
        "flags": run.flags,
        "reference_code": code,
    }


def _evaluations(searches: Sequence[Search], runs: Sequence[Run]) -> list[dict[str, Any]]:
    by_id = {s.search_id: s for s in searches}
    counts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for run in runs:
        rows.append(_row(by_id[run.search], run, counts[run.search]))
        counts[run.search] += 1
    nodes = {(row["search_id"], row["node_id"]): row["kernel_id"] for row in rows}
    for row in rows:
        row["parent_kernel_id"] = nodes.get((row["search_id"], row["parent_node_id"]))
        if row["parent_kernel_id"] is None:
            row["parent_distance"] = None
    return rows


def make_rows(
    searches: Sequence[Search], runs: Sequence[Run], *, scheme: str = DEFAULT_SCHEME
) -> Rows:
    """Rows of the measured tables, without canary; keyed by table and split."""
    evaluations = _evaluations(searches, runs)
    passed = {r["kernel_id"] for r in evaluations if r["outcome"] == "success"}
    good: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(evaluations, key=lambda r: (_RANK[r["role"]], r["search_id"], r["step"])):
        if row["excluded"] is None and row["outcome"] == "success":
            good.setdefault(row["kernel_id"], []).append(row)
        elif row["excluded"] is None and row["kernel_id"] not in passed:
            failed.setdefault(row["kernel_id"], []).append(row)
    held = [rows[0] for rows in good.values() if any(r["role"] == "held_out" for r in rows)]
    held_out = {row[name] for row in held for name in ("kernel_id", "program_id", "token_id")}
    out: Rows = {(t.name, s): [] for t in TABLES.values() if not t.derived for s in t.splits}
    for name, rows in good.items():
        first = rows[0]
        if name not in held_out and held_out & {first["program_id"], first["token_id"]}:
            for row in evaluations:
                if row["kernel_id"] == name:
                    row["excluded"] = row["excluded"] or WITHHELD
            continue
        speedups = [r["speedup"] for r in rows]
        speedup = statistics.median_low(speedups)
        nearest = rows[speedups.index(speedup)]
        label = ("runtime_us", "reference_runtime_us", "cases")
        out["kernels", "test" if name in held_out else "train"].append(
            first
            | {column: nearest[column] for column in label}
            | {
                "speedup": speedup,
                "bin": bin_of(speedup, scheme),
                "bin_scheme": scheme,
                "n_measurements": len(rows),
                "speedup_min": min(speedups),
                "speedup_max": max(speedups),
                "flags": sorted({flag for r in rows for flag in r["flags"]}),
            }
        )
    out["failures", "train"] = [rows[0] | {"n_evaluations": len(rows)} for rows in failed.values()]
    out["evaluations", "train"] = evaluations
    out["searches", "train"] = [
        _search_row(s, evaluations) for s in sorted(searches, key=lambda s: s.search_id)
    ]
    references = {
        (row["problem"], row["reference_id"]): row
        | {"title": row["problem"], "code": row["reference_code"]}
        for row in evaluations
        if row["reference_code"] is not None
    }
    out["references", "train"] = [references[key] for key in sorted(references)]
    out["gpus", "train"] = [
        {"gpu": name, "known": is_known(name)} for name in sorted({r["gpu"] for r in evaluations})
    ]
    return out


def _search_row(search: Search, evaluations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = [r for r in evaluations if r["search_id"] == search.search_id]
    outcomes = [r["outcome"] for r in rows]
    code = search.reference_code
    log = hashlib.sha256(b"log of " + search.search_id.encode()).hexdigest()
    return {
        "search_id": search.search_id,
        "builder": search.builder,
        "format": "puct-events",
        "role": search.role,
        "generation_method": search.method,
        "problem": search.problem,
        "family": family_of(search.problem),
        "gpu": search.gpu,
        "reference_id": None if code is None else program_id(code),
        "finished": search.finished,
        "n_evaluations": len(rows),
        "n_successes": outcomes.count("success"),
        "n_kernels": len({r["kernel_id"] for r in rows if r["outcome"] == "success"}),
        **{f"n_{name}": outcomes.count(name) for name in OUTCOMES[1:]},
        **dict.fromkeys(("n_duplicates", "n_pending", "n_findings"), 0),
        "best_speedup": max((r["speedup"] for r in rows if r["speedup"]), default=None),
        "source_path": search.search_id,
        "source_digest": search.source_digest or log,
    }


def _table(name: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{**row, "canary": CANARY} for row in rows], schema=TABLES[name].schema
    )


def make_tables(
    searches: Sequence[Search], runs: Sequence[Run], *, scheme: str = DEFAULT_SCHEME
) -> dict[str, pa.Table]:
    """Measured tables in memory, by name; ``kernels`` by split, as ``kernels/train``."""
    rows = make_rows(searches, runs, scheme=scheme)
    return {f"{t}/{s}" if t == "kernels" else t: _table(t, part) for (t, s), part in rows.items()}


class MemoryArchive(Archive):
    """An archive without a directory: the tables of :func:`make_tables`, in groups of two rows."""

    def __init__(self, tables: dict[str, pa.Table], evaluation: dict[str, Any] | None) -> None:
        facts = {
            table.name: TableFacts(splits={name: [] for name in table.splits}, logical_digest="")
            for table in TABLES.values()
            if not table.derived
        }
        super().__init__(Path(), _manifest(facts, evaluation=evaluation))
        self.rows = tables

    def batches(
        self, table: str, split: str | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The whole of every split, at once."""
        for name in TABLES[table].splits:
            if split in (None, name):
                rows = self.rows[f"{table}/{name}" if table == "kernels" else table]
                yield rows.select(columns or rows.column_names)

    def row_groups(
        self, table: str, columns: Sequence[str], numbers: Collection[int] | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Groups of two rows, those of these numbers."""
        rows = self.arrow(table, columns=columns)
        for number in range((len(rows) + 1) // 2):
            if numbers is None or number in numbers:
                yield number, rows.slice(2 * number, 2)


def memory_tables(
    tables: dict[str, pa.Table],
    evaluation: dict[str, Any] | None = None,
    rng: random.Random | None = None,
) -> ArchiveTables:
    """Tables in memory as selection reads them, their rows shuffled where ``rng`` is given.

    ``evaluation`` is ``[eval]`` of an archive of one's own; the shipped definitions say what is
    asked about where it is ``None``.
    """
    if rng is not None:
        tables = {
            name: rows.take(pa.array(rng.sample(range(len(rows)), len(rows)), pa.int64()))
            for name, rows in tables.items()
        }
    return ArchiveTables(MemoryArchive(tables, evaluation))


def make_archive(
    directory: Path,
    searches: Sequence[Search],
    runs: Sequence[Run],
    *,
    scheme: str = DEFAULT_SCHEME,
    plant: Callable[[Rows], None] | None = None,
    **manifest: Any,
) -> Path:
    """Write an archive directory with its measured tables and manifest; no splits, no card.

    Args:
        directory: where.
        searches: the searches.
        runs: what they measured.
        scheme: bin scheme of the labels.
        plant: changes the rows before they are written (leaks, damage).
        manifest: fields of the manifest, among them the ``version``.
    """
    rows = make_rows(searches, runs, scheme=scheme)
    if plant is not None:
        plant(rows)
    tables = {}
    for table in TABLES.values():
        if not table.derived:
            tables[table.name] = write_table(
                directory,
                table.name,
                {s: _table(table.name, rows[table.name, s]) for s in table.splits},
            )
    stated: dict[str, Any] = {"bin_scheme": scheme, "evaluation": EVALUATION, **manifest}
    write_manifest(directory, _manifest(tables, **stated))
    return directory


def _manifest(tables: dict[str, TableFacts], **stated: Any) -> Manifest:
    """A manifest of these tables, which states nothing else but what is given."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "name": "gpu-forecasters/kernels",
        "version": "hand-made",
        "logical_digest": "",
        "package": __version__,
        "writer": writer_version(),
        "bin_scheme": DEFAULT_SCHEME,
        "builders": [RECIPE],
        "splits": {},
        "inputs": [],
        "findings": {"total": 0, "by_code": {}, "first": []},
        "reports": {},
        "canary": CANARY,
    }
    return Manifest(**{**fields, "tables": tables, **stated})


def replant(
    directory: Path,
    table: str,
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
    part: str | None = None,
    **facts: Any,
) -> None:
    """Change the rows of one part of a table, with a manifest that agrees with the new files.

    ``facts`` are further fields of the split's facts.
    """
    archive = Archive(directory, read_manifest(directory))  # labels too
    rows = {
        name: archive.arrow(table, name).to_pylist()
        for name in archive.manifest.tables[table].splits
    }
    part = part or next(iter(rows))
    rows[part] = change(rows[part])
    written = write_table(directory, table, {n: _table(table, r) for n, r in rows.items()})
    manifest = msgspec.structs.replace(
        archive.manifest, tables={**archive.manifest.tables, table: written}
    )
    if table in manifest.splits:
        stated = {"logical_digest": written.logical_digest, "rows": len(rows[part]), **facts}
        split = msgspec.structs.replace(manifest.splits[table], **stated)
        splits = {**manifest.splits, table: split}
        manifest = write_inputs(directory, msgspec.structs.replace(manifest, splits=splits))
    write_manifest(directory, manifest)


def remake(directory: Path, table: str, **options: Any) -> RemadeSplit:
    """Make a split anew, without a card."""
    with remade_split(directory, table, **options) as made:
        return made


def validate_archive(path: str | Path) -> list[Finding]:
    """Findings of all layers of the measured part of an archive directory."""
    return validate_measured(open_archive(path)).findings
