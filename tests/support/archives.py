"""Hand-made archives: from searches and their measurements to tables or a directory.

The merge here states its rules again (median of the measurements, held-out programs and near
duplicates out of train), in a hundredth of the time that a build takes;
tests/archive/test_hand_made.py compares the two::

    make_archive(
        tmp_path / "a",
        [Search("s/1", "trimul"), Search("s/2", "trimul", role="training")],
        [Run("s/1", program(1), 1.7), Run("s/1", program(2), 2.1, parent="n0")],
    )
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import asdict
from support.programs import program

from kernel_archive import __version__
from kernel_archive.archive.fragments import json_text
from kernel_archive.archive.jobs import RunJob
from kernel_archive.archive.labels import WITHHELD
from kernel_archive.archive.manifest import (
    FORMAT,
    Manifest,
    TableFacts,
    read_manifest,
    write_manifest,
)
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.recipe import LoadedRecipe, Recipe, Source
from kernel_archive.archive.search_rows import SearchRows
from kernel_archive.archive.shards import write_table, writer_version
from kernel_archive.archive.validate import validate_measured
from kernel_archive.bins import DEFAULT_SCHEME, bin_of
from kernel_archive.errors import Finding
from kernel_archive.gpus import is_known
from kernel_archive.ids import CANARY, sha256_hex
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.readers.records import Case, Evaluation, SearchFacts
from kernel_archive.schema import TABLES
from kernel_archive.selection.inputs import write_inputs
from kernel_archive.selection.make import RemadeSplit, remade_split
from kernel_archive.selection.tables import ArchiveTables

Row = dict[str, Any]
Rows = dict[tuple[str, str], list[Row]]
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


def six_tasks() -> tuple[list[Search], list[Run]]:
    """A held-out and a training search per task, each a chain of 8 kernels over all bins."""
    roles = ("held_out", "training")
    searches = [Search(f"{task}/{role}", task, role) for task in GPU_MODE_TASKS for role in roles]
    speedups = [0.2, 0.3, 0.6, 0.9, 1.2, 1.7, 3.0, 5.0]
    runs = [
        Run(
            s.search_id,
            program(f"{s.search_id}{i}"),
            speedup * (1 + 0.01 * i),
            parent=f"n{i - 1}" if i else None,
        )
        for s in searches
        for i, speedup in enumerate(speedups)
    ]
    return searches, runs


def kernel_ids(searches: Sequence[Search], runs: Sequence[Run]) -> list[str]:
    """Kernel id of every run, in order."""
    return [row["kernel_id"] for row in _logged(searches, runs).evaluations]


class Logged(NamedTuple):
    """What a build makes of hand-made logs before it merges them."""

    evaluations: list[Row]  # in the order of the runs, with their flags
    searches: list[Row]
    references: dict[tuple[str, str], Row]  # by problem and id


def _logged(searches: Sequence[Search], runs: Sequence[Run]) -> Logged:
    """Make the rows of runs and their searches as those of logs are made."""
    logged = Logged([{} for _ in runs], [], {})
    for search in sorted(searches, key=lambda search: search.search_id):
        source = Source(format="puct-events", role=search.role, generation_method=search.method)
        recipe = Recipe(name=search.builder, licence="", description="", source=[source])
        job = RunJob(
            run_id=search.search_id,
            loaded=LoadedRecipe(recipe=recipe, file=Path("builder.toml")),
            index=0,
            path=Path(search.search_id),
            base=Path(),
        )
        digest = search.source_digest or sha256_hex(search.search_id.encode())
        vars(job).update(digest=digest, source_digests={})  # of files that nobody wrote
        rows = SearchRows(job, search.search_id)
        rows.facts = SearchFacts(
            problem=search.problem,
            gpu=search.gpu,
            reference_code=search.reference_code,
            finished=search.finished,
        )
        places = [i for i, run in enumerate(runs) if run.search == search.search_id]
        rows.evaluations += [_evaluation(runs[i], position) for position, i in enumerate(places)]
        own = rows.rows(0)
        for i, row in zip(places, own, strict=True):
            shapes = [{**asdict(case), "shape": json_text(case.shape)} for case in row["cases"]]
            logged.evaluations[i] = row | {"cases": shapes, "flags": runs[i].flags}
        logged.searches.append(rows.search_row(own))
        logged.references.update(rows.references)
    return logged


def _evaluation(run: Run, position: int) -> Evaluation:
    """What a reader would yield of a run."""
    good = run.speedup is not None
    parent, ancestors = run.parent, ()
    if run.parent is not None and run.distance > 1:
        parent, ancestors = "gone", (run.parent,)
    return Evaluation(
        node_id=run.node or f"n{position}",
        code=run.code,
        source_file=f"{run.search}/events.jsonl",
        source_line=position + 1,
        outcome="success" if good else run.outcome,
        parent_node_id=parent,
        ancestor_node_ids=ancestors,
        step=position,
        is_root=run.parent is None and position == 0,
        speedup=run.speedup,
        runtime_us=100.0 / run.speedup if run.speedup else None,
        reference_runtime_us=100.0 if good else None,
        cases=tuple(Case({"n": i}, 100.0 / t, t, 100.0) for i, t in enumerate(run.cases)),
        error_type=None if good else "MadeUp",
        error_text=None if good else "made up",
        gpu=run.gpu,
        reference_code=run.reference,
        excluded=run.excluded,
        goal_bin=4,
        aim="made by hand",
    )


def make_rows(searches: Sequence[Search], runs: Sequence[Run]) -> Rows:
    """Rows of the measured tables, without canary; keyed by table and split."""
    logged = _logged(searches, runs)
    evaluations = logged.evaluations
    passed = {r["kernel_id"] for r in evaluations if r["outcome"] == "success"}
    good: dict[str, list[Row]] = {}
    failed: dict[str, list[Row]] = {}
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
                "bin": bin_of(speedup),
                "bin_scheme": DEFAULT_SCHEME,
                "n_measurements": len(rows),
                "speedup_min": min(speedups),
                "speedup_max": max(speedups),
                "flags": sorted({flag for r in rows for flag in r["flags"]}),
            }
        )
    out["failures", "train"] = [rows[0] | {"n_evaluations": len(rows)} for rows in failed.values()]
    out["evaluations", "train"] = evaluations
    out["searches", "train"] = logged.searches
    out["references", "train"] = [row for _, row in sorted(logged.references.items())]
    out["gpus", "train"] = [
        {"gpu": name, "known": is_known(name)} for name in sorted({r["gpu"] for r in evaluations})
    ]
    return out


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [{**row, "canary": CANARY} for row in rows], schema=TABLES[name].schema
    )


def with_column(table: pa.Table, name: str, values: Sequence[Any]) -> pa.Table:
    """A table with other values of a column."""
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, pa.array(values, field.type))


def make_tables(searches: Sequence[Search], runs: Sequence[Run]) -> dict[str, pa.Table]:
    """Measured tables in memory, by name; ``kernels`` by split, as ``kernels/train``."""
    rows = make_rows(searches, runs)
    return {f"{t}/{s}" if t == "kernels" else t: _table(t, part) for (t, s), part in rows.items()}


class MemoryArchive(Archive):
    """An archive without a directory: the tables of :func:`make_tables`, in groups of two rows."""

    def __init__(self, tables: dict[str, pa.Table], eval_rules: dict[str, Any] | None) -> None:
        facts = {
            table.name: TableFacts(splits={name: [] for name in table.splits}, logical_digest="")
            for table in TABLES.values()
            if not table.derived
        }
        super().__init__(Path(), _manifest(facts, eval_rules=eval_rules))
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
    eval_rules: dict[str, Any] | None = None,
    rng: random.Random | None = None,
) -> ArchiveTables:
    """Tables in memory as selection reads them, their rows shuffled where ``rng`` is given.

    ``eval_rules`` are ``[eval]`` of an archive of one's own; the shipped definitions say what is
    asked about where there are none.
    """
    if rng is not None:
        tables = {
            name: rows.take(pa.array(rng.sample(range(len(rows)), len(rows)), pa.int64()))
            for name, rows in tables.items()
        }
    return ArchiveTables(MemoryArchive(tables, eval_rules))


def make_archive(
    directory: Path,
    searches: Sequence[Search],
    runs: Sequence[Run],
    *,
    plant: Callable[[Rows], None] | None = None,
    **manifest: Any,
) -> Path:
    """Write an archive directory with its measured tables and manifest; no splits, no card.

    Args:
        directory: where.
        searches: the searches.
        runs: what they measured.
        plant: changes the rows before they are written (leaks, damage).
        manifest: fields of the manifest, among them the ``version``.
    """
    rows = make_rows(searches, runs)
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
    write_manifest(directory, _manifest(tables, **{"eval_rules": EVALUATION, **manifest}))
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
    change: Callable[[list[Row]], list[Row]],
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
