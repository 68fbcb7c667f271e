"""A small made-up archive with every table, valid in all layers, for tests of what is made from an archive."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kernel_archive import __version__
from kernel_archive.archive.manifest import FORMAT, Manifest, SplitFacts, write_manifest
from kernel_archive.archive.shards import write_table, writer_version
from kernel_archive.bins import assign_bins, bin_of, representatives
from kernel_archive.ids import CANARY, canonical_text, kernel_id, program_id, token_id
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from kernel_archive.schema import Column

__all__ = ["BUILDER", "Rows", "made_up_rows", "write_archive"]

Rows = dict[tuple[str, str], list[dict[str, Any]]]
BUILDER: dict[str, Any] = {
    "name": "made-up",
    "version": "1",
    "licence": "CC-BY-4.0",
    "description": "Made-up kernels.",
    "url": None,
    "citation": None,
    "notes": ["Nothing was measured."],
    "digest": "sha256:" + "0" * 64,
}
_METHODS = ("tree_search", "bin_filling", "local_search", "agentic")
_ROLES = ("held_out", "training", "archive")


def _default(column: Column) -> Any:
    if column.name == "canary":
        return CANARY
    if column.nullable:
        return None
    if pa.types.is_list(column.type):
        return []
    if pa.types.is_boolean(column.type):
        return False
    if pa.types.is_floating(column.type):
        return 1.0
    return 0 if pa.types.is_integer(column.type) else ""


def _speedup(target: int, rng: np.random.Generator) -> float:
    """A speedup inside bin ``target`` of the paper's scheme."""
    factor = {1: 0.4, 8: 1.6}.get(target, 1.0)
    return float(2.0 ** ((target - 5) / 2 + 0.25 + 0.2 * (rng.random() - 0.5)) * factor)


def made_up_rows(n: int = 72, seed: int = 0, gpus: tuple[str, ...] = ("H200",)) -> Rows:
    """Rows of every table: ``n`` kernels over the six tasks and eight bins, a third of them held out."""
    rng = np.random.default_rng(seed)
    rows: Rows = {(t.name, s): [] for t in TABLES.values() for s in t.splits}
    searches: dict[str, dict[str, Any]] = {}
    last_of: dict[str, dict[str, Any]] = {}
    references = {task: f"import torch\n\ndef reference(x):\n    return x  # {task}" for task in GPU_MODE_TASKS}
    for task, code in references.items():
        facts = {"reference_id": program_id(code), "problem": task, "family": "gpu_mode", "title": task, "code": code}
        rows["references", "train"].append(facts)
    rows["gpus", "train"] = [{"gpu": gpu, "known": True} for gpu in gpus]
    for i in range(n):
        task, gpu = GPU_MODE_TASKS[i % 6], gpus[(i // 6) % len(gpus)]
        role, method = _ROLES[(i // 6) % 3], _METHODS[(i // 36) % 4]
        speedup = _speedup((i // 6) % 8 + 1, rng)
        padding = "# pad\n" * (i % 7)
        code = canonical_text(
            f"import triton\n\ndef kernel_{seed}_{i}(x):\n    return x + {rng.integers(1 << 30)}\n{padding}"
        )
        search = f"made-up/{method}/{task}__{role}"
        reference = program_id(references[task])
        where = {
            "problem": task,
            "gpu": gpu,
            "reference_id": reference,
            "search_id": search,
            "generation_method": method,
            "family": "gpu_mode",
            "language": "triton",
            "source_file": f"logs/{method}/{task}__{role}/events.jsonl",
        }
        facts = searches.setdefault(
            search,
            {
                **where,
                "builder": "made-up",
                "format": "puct-events",
                "role": role,
                "gpu_seconds": 2.5,
                "source_path": f"logs/{method}/{task}__{role}",
                "source_digest": "0" * 64,
            },
        )
        for name in ("n_evaluations", "n_successes", "n_kernels"):
            facts[name] = facts.get(name, 0) + 1

        def program(text: str, line: int, where: dict[str, Any] = where) -> dict[str, Any]:
            ids = {
                "kernel_id": kernel_id(
                    problem=where["problem"],
                    reference_program_id=where["reference_id"],
                    gpu=where["gpu"],
                    program=program_id(text),
                ),
                "program_id": program_id(text),
                "token_id": token_id(text),
            }
            return {**where, **ids, "code": text, "source_line": line}

        kernel = {
            **program(code, 2 * i + 1),
            "speedup": speedup,
            "bin": bin_of(speedup),
            "bin_scheme": "paper",
            "runtime_us": 100.0 / speedup,
            "reference_runtime_us": 100.0,
            "n_measurements": 1,
            "speedup_min": speedup,
            "speedup_max": speedup,
            "flags": ["reference_drift"] if i % 11 == 0 else [],
            "step": i,
            "cases": [{"shape": '{"n":1}', "speedup": speedup, "runtime_us": 1.0, "reference_runtime_us": speedup}],
        }
        rows["kernels", "test" if role == "held_out" else "train"].append(kernel)
        tried = [(kernel, "success")]
        if i % 9 == 0:
            broken = {
                **program(code + "\nraise SystemError", 2 * i + 2),
                "outcome": "incorrect",
                "error_text": "mismatch",
                "n_evaluations": 1,
            }
            rows["failures", "train"].append(broken)
            tried.append((broken, "incorrect"))
        for each, outcome in tried:
            node = f"{i}-{outcome}"
            rows["evaluations", "train"].append(
                {
                    **{k: v for k, v in each.items() if outcome == "success" or k != "speedup"},
                    "evaluation_id": hashlib.sha256(f"{search}{node}".encode()).hexdigest()[:32],
                    "node_id": node,
                    "outcome": outcome,
                    "n_logged": 1,
                    "gpu_seconds": 0.5,
                    "builder": "made-up",
                    "source_digest": "0" * 64,
                }
            )
        labels = {"problem": task, "family": "gpu_mode", "gpu": gpu, "search_id": search, "bin_scheme": "paper"}
        if role == "held_out":
            rows["eval", "test"].append(
                {
                    **{k: kernel[k] for k in ("gpu", "speedup", "bin", "bin_scheme", "kernel_id", "search_id")},
                    "row_id": kernel["kernel_id"],
                    "task": task,
                    "reference_code": references[task],
                    "candidate_code": code,
                }
            )
            before = last_of.get(search)
            if before is not None and method in ("tree_search", "bin_filling"):
                g = speedup / before["speedup"]
                rows["discovery_pairs", "test"].append(
                    {
                        **labels,
                        "row_id": f"pair-{i}",
                        "g": g,
                        "bin": bin_of(g),
                        "parent_kernel_id": before["kernel_id"],
                        "child_kernel_id": kernel["kernel_id"],
                        "parent_code": before["code"],
                        "child_code": code,
                    }
                )
            last_of[search] = kernel
        if role == "training":
            rows["train_pairs", "train"].append(
                {
                    **labels,
                    "row_id": f"train-{i}",
                    "pair_type": "seed",
                    "speedup": speedup,
                    "bin": bin_of(speedup),
                    "anchor_program_id": reference,
                    "candidate_kernel_id": kernel["kernel_id"],
                    "anchor_code": references[task],
                    "candidate_code": code,
                }
            )
    rows["searches", "train"] = [searches[k] for k in sorted(searches)]
    return rows


def write_archive(directory: Path, rows: Rows | None = None, *, version: str | None = "1.0.0", **manifest: Any) -> Path:
    """Write rows as an archive directory with its manifest; no card. ``version=None``: named by its digest."""
    rows = made_up_rows() if rows is None else rows
    directory.mkdir(parents=True, exist_ok=True)
    tables, splits = {}, {}
    for table in TABLES.values():
        if table.derived and not any(rows.get((table.name, s)) for s in table.splits):
            continue
        full = {
            s: [{c.name: row.get(c.name, _default(c)) for c in table.columns} for row in rows.get((table.name, s), [])]
            for s in table.splits
        }
        parts = {split: pa.Table.from_pylist(given, schema=table.schema) for split, given in full.items()}
        tables[table.name] = facts = write_table(directory, table.name, parts)
        if table.derived:
            speedups = [row["g" if table.name == "discovery_pairs" else "speedup"] for r in full.values() for row in r]
            m = representatives(speedups, assign_bins(speedups))
            splits[table.name] = SplitFacts(
                name="canonical",
                origin="selected",
                scheme="paper",
                logical_digest=facts.logical_digest,
                rows=len(speedups),
                parameters={"cap": 10} if table.name == "eval" else {},
                facts={"m_1": float(m[0]), "m_8": float(m[7])},
            )
    made: dict[str, Any] = {
        "format": FORMAT,
        "name": "gpu-forecasters/kernels",
        "version": version or "",
        "logical_digest": "",
        "package": __version__,
        "writer": writer_version(),
        "bin_scheme": "paper",
        "builders": [BUILDER],
        "tables": tables,
        "splits": splits,
        "inputs": [],
        "findings": {"total": 0, "by_code": {}, "first": []},
        "reports": {},
        "canary": CANARY,
    }
    write_manifest(directory, Manifest(**{**made, **manifest}))
    return directory
