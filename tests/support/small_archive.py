"""A small archive with its splits; a model can learn its speedups from the texts."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.archives import Run, Search, make_archive

from kernel_archive.archive.manifest import read_manifest, write_manifest
from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.evaluation import SplitNotMadeError
from kernel_archive.selection.make import make_splits

REFERENCE = (
    "import torch\n\n\ndef reference(data):\n    return torch.softmax(data.double(), -1).float()\n"
)
#: Every kernel and edge is in a split: what the shipped definitions leave out is let in.
EVERYTHING: dict[str, dict[str, Any]] = {
    "eval": {"gpu": "H200", "cap": 1000, "measured": 1, "near_copy": 1.0, "natural": False}
    | {"languages": []},
    "discovery_pairs": {"measured": 1, "natural": False},
    "train_pairs": {"pairs_per_task": 0},
}


def tuned_program(block: int, warps: int, passes: int, number: int) -> tuple[str, float]:
    """A program and the speedup that follows from its knobs."""
    loops = "".join(f"    y = y + tl.load(x_ptr + {i})\n" for i in range(passes))
    code = (
        f'"""Program {number}."""\nimport torch\nimport triton\nimport triton.language as tl\n\n\n'
        f"@triton.jit\ndef kernel_{number}(x_ptr, BLOCK: tl.constexpr):\n"
        f"    y = tl.load(x_ptr)\n{loops}    tl.store(x_ptr, y)\n\n\n"
        f"def custom_kernel(data):\n    kernel_{number}[(1,)](data, BLOCK={block}, "
        f"num_warps={warps})\n    return data"
    )
    return code, float(
        2.0 ** (np.log2(block / 256) * 0.5 + np.log2(warps / 4) * 0.5 - passes * 0.9 + 1.6)
    )


def write_archive(
    directory: Path,
    *,
    problems: tuple[str, ...] = ("alpha", "beta"),
    per_search: int = 24,
    training_searches: int = 3,
    seed: int = 0,
    hostile: str | None = None,
    train_pairs: bool = True,
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
    """
    rng = np.random.default_rng(seed)
    searches: list[Search] = []
    runs: list[Run] = []
    for problem in problems:
        for k in range(training_searches + 1):
            held = k == training_searches
            name = hashlib.sha256(f"{problem}-{k}".encode()).hexdigest()[:32]
            reference = f"# {problem}\n" + REFERENCE
            searches.append(
                Search(name, problem, "held_out" if held else "training", reference=reference)
            )
            for i in range(per_search):
                code, speedup = tuned_program(
                    int(2 ** rng.integers(5, 13)),
                    int(2 ** rng.integers(0, 5)),
                    int(rng.integers(0, 4)),
                    len(runs),
                )
                if hostile is not None and held and i == 0:
                    code = hostile + f"\n# {problem}"
                runs.append(Run(name, code, speedup, parent=f"n{i - 1}" if i else None))
    make_archive(directory, searches, runs, version="test-1")
    EVERYTHING["eval"]["tasks"] = list(problems)
    for table, changes in EVERYTHING.items():
        if table != "train_pairs" or train_pairs:
            definition = with_changes(load_definition(table), **changes)
            with suppress(SplitNotMadeError):
                make_splits(directory, split_tables=[table], definition=definition)
    manifest = read_manifest(directory)
    canonical = {
        table: msgspec.structs.replace(facts, name="canonical")  # a board takes no others
        for table, facts in manifest.splits.items()
    }
    write_manifest(directory, msgspec.structs.replace(manifest, splits=canonical))
    return open_archive(directory)
