"""A small archive with its splits; a model can learn its speedups from the texts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from support.archives import Run, Search, make_archive

from kernel_archive import bins, ids
from kernel_archive.archive.manifest import SplitFacts, write_manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.schema import TABLES

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = (
    "import torch\n\n\ndef reference(data):\n    return torch.softmax(data.double(), -1).float()\n"
)


def program(block: int, warps: int, passes: int, number: int) -> tuple[str, float]:
    """A program and the speedup that follows from its knobs."""
    loops = "".join(f"    y = y + tl.load(x_ptr + {i})\n" for i in range(passes))
    code = (
        f'"""Program {number}."""\nimport torch\nimport triton\nimport triton.language as tl\n\n\n'
        f"@triton.jit\ndef kernel_{number}(x_ptr, BLOCK: tl.constexpr):\n"
        f"    y = tl.load(x_ptr)\n{loops}    tl.store(x_ptr, y)\n\n\n"
        f"def custom_kernel(data):\n    kernel_{number}[(1,)](data, BLOCK={block}, "
        f"num_warps={warps})\n    return data\n"
    )
    return code, float(
        2.0 ** (np.log2(block / 256) * 0.5 + np.log2(warps / 4) * 0.5 - passes * 0.9 + 1.6)
    )


def digest(text: str) -> str:
    """Name of something, 32 hex digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_archive(
    directory: Path,
    *,
    problems: tuple[str, ...] = ("alpha", "beta"),
    per_search: int = 24,
    training_searches: int = 3,
    seed: int = 0,
    hostile: str | None = None,
    train_pairs: bool = True,
    version: str = "test-1",
    digest_salt: str = "",
) -> Archive:
    """Write the archive and open it.

    Args:
        directory: where.
        problems: problem ids, one held-out search each.
        per_search: kernels of every search.
        training_searches: training searches per problem.
        seed: of the knobs.
        hostile: a text that replaces the program of the first held-out kernel.
        train_pairs: whether there are training pairs.
        version: version in the manifest.
        digest_salt: changes the archive's logical digest.
    """
    rng = np.random.default_rng(seed)
    searches: list[Search] = []
    runs: list[Run] = []
    for problem in problems:
        for k in range(training_searches + 1):
            held = k == training_searches
            name = digest(f"{problem}-{k}")
            reference = f"# {problem}\n" + REFERENCE
            searches.append(
                Search(name, problem, "held_out" if held else "training", reference=reference)
            )
            for i in range(per_search):
                code, speedup = program(
                    int(2 ** rng.integers(5, 13)),
                    int(2 ** rng.integers(0, 5)),
                    int(rng.integers(0, 4)),
                    len(runs),
                )
                if hostile is not None and held and i == 0:
                    code = hostile + f"\n# {problem}"
                runs.append(
                    Run(name, ids.canonical_text(code), speedup, parent=f"n{i - 1}" if i else None)
                )
    make_archive(directory, searches, runs, version=version)
    archive = open_archive(directory)
    code_of = {r["problem"]: r["code"] for r in archive.arrow("references").to_pylist()}
    order = {run.code: i for i, run in enumerate(runs)}
    train, test = (
        sorted(archive.arrow("kernels", split).to_pylist(), key=lambda row: order[row["code"]])
        for split in ("train", "test")
    )
    rows = {
        "eval": sorted(
            (_eval_row(r, code_of) for r in test), key=lambda r: (r["task"], r["bin"], r["row_id"])
        ),
        "discovery_pairs": [_edge(r, test) for r in test if r["parent_kernel_id"]],
        "train_pairs": _training(train, code_of) if train_pairs else [],
    }
    tables, splits = dict(archive.manifest.tables), {}
    for name, given in rows.items():
        if name != "train_pairs" or train_pairs:
            (split,) = TABLES[name].splits
            tables[name] = write_table(
                directory, name, {split: pa.Table.from_pylist(given, schema=TABLES[name].schema)}
            )
            value = "g" if name == "discovery_pairs" else "speedup"
            m = bins.representatives([r[value] for r in given], [r["bin"] for r in given])
            splits[name] = SplitFacts(
                name="canonical",
                origin="selected",
                scheme="paper",
                logical_digest=tables[name].logical_digest,
                rows=len(given),
                parameters={"salt": digest_salt},
                facts={"m_1": float(m[0]), "m_8": float(m[7])},
            )
    write_manifest(
        directory, msgspec.structs.replace(archive.manifest, tables=tables, splits=splits)
    )
    return open_archive(directory)


def _eval_row(row: dict[str, Any], code_of: dict[str, str]) -> dict[str, Any]:
    return row | {
        "row_id": row["kernel_id"],
        "task": row["problem"],
        "reference_code": code_of[row["problem"]],
        "candidate_code": row["code"],
    }


def _edge(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    parent = next(r for r in rows if r["kernel_id"] == row["parent_kernel_id"])
    g = row["speedup"] / parent["speedup"]
    return row | {
        "row_id": digest(parent["kernel_id"] + row["kernel_id"]),
        "g": g,
        "parent_speedup": parent["speedup"],
        "parent_language": parent["language"],
        "child_language": row["language"],
        "bin": bins.bin_of(g),
        "child_kernel_id": row["kernel_id"],
        "parent_code": parent["code"],
        "child_code": row["code"],
    }


def _training(train: list[dict[str, Any]], code_of: dict[str, str]) -> list[dict[str, Any]]:
    by_id = {r["kernel_id"]: r for r in train}
    pairs = []
    for row in train:
        pairs.append((row, "seed", code_of[row["problem"]], 1.0))
        if parent := by_id.get(row["parent_kernel_id"] or ""):
            pairs.append((row, "parent_edit", parent["code"], parent["speedup"]))
    return [
        row
        | {
            "row_id": digest(ids.program_id(anchor) + row["kernel_id"]),
            "pair_type": kind,
            "speedup": row["speedup"] / speed,
            "bin": bins.bin_of(row["speedup"] / speed),
            "anchor_program_id": ids.program_id(anchor),
            "candidate_kernel_id": row["kernel_id"],
            "anchor_code": anchor,
            "candidate_code": row["code"],
        }
        for row, kind, anchor, speed in pairs
    ]
