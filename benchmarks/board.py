"""Fifty entries of three repeats: how long the board takes, how big its page is.

    python benchmarks/board.py [--archive DIR] [--entries 50] [--draws 4000]

Bars: build under 60 s on two cores, page under 15 MB. Entries are noisy copies of baselines, each
with a rationale and token counts for every row. The ratio is the build's time over that of scoring
one entry after the other.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.registry import make_baseline
from kernel_archive.board import add_submission, build_board
from kernel_archive.board.submissions import (
    FORECASTS_FILE,
    SCORE_FILE,
    SUBMISSION_FILE,
    Identity,
    Submission,
    slug_of,
    to_toml,
)
from kernel_archive.scoring import load_split, read_forecasts, score

if TYPE_CHECKING:
    from kernel_archive.scoring import Split

WORDS = ["the", "candidate", "fuses", "loads", "of", "the", "row", "so", "traffic", "halves"]


def entry_lines(
    row_ids: tuple[str, ...], base: np.ndarray, repeats: int, rng: np.random.Generator
) -> bytes:
    """The lines of a forecast file: the base with noise, a rationale and token counts."""
    sharpness, n = rng.uniform(2, 60), len(row_ids)
    out = []
    for repeat in range(repeats):
        noisy = rng.standard_gamma(base * sharpness + 0.05)
        columns = zip(
            row_ids,
            (noisy / noisy.sum(axis=1, keepdims=True)).round(5).tolist(),
            rng.choice(WORDS, (n, 60)).tolist(),
            rng.integers(800, 4000, n).tolist(),
            rng.integers(60, 900, n).tolist(),
            rng.uniform(0.5, 9, n).round(2).tolist(),
            strict=True,
        )
        out += [
            json.dumps(
                {
                    "row_id": row_id,
                    "repeat": repeat,
                    "probabilities": masses,
                    "rationale": " ".join(words),
                    "input_tokens": read,
                    "output_tokens": written,
                    "latency_s": seconds,
                }
            )
            for row_id, masses, words, read, written, seconds in columns
        ]
    return ("\n".join(out) + "\n").encode()


def store_entries(
    board: Path, entries: int, target: Split, bases: list[np.ndarray], repeats: int
) -> list[Path]:
    """The first entry as a user adds it.

    The others written as it is, with its score beside them: a build reads no stored score.
    """
    rng = np.random.default_rng(0)
    submissions, codec = board / "submissions", pa.Codec("zstd")
    folders = []
    for i in range(entries):
        lines = entry_lines(target.row_ids, bases[i % len(bases)], repeats, rng)
        name, model = f"Entry {i:04d}", f"model-{i % 7}"
        if not i:
            with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
                Path(file.name).write_bytes(lines)
                added = add_submission(
                    file.name, target, name=name, model=model, board=board, draws=100
                )
            score_file = (added.folder / SCORE_FILE).read_bytes()
            folders.append(added.folder)
            continue
        folder = submissions / slug_of(name)
        folder.mkdir()
        sha256 = hashlib.sha256(lines).hexdigest()
        record = Submission(
            name=name, model=model, forecasts_sha256=sha256, archive=Identity.of(target)
        )
        (folder / FORECASTS_FILE).write_bytes(codec.compress(lines, asbytes=True))
        (folder / SUBMISSION_FILE).write_text(to_toml(record))
        (folder / SCORE_FILE).write_bytes(score_file)
        folders.append(folder)
    return folders


def main() -> None:
    """Build a board and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--archive", default=None)
    parser.add_argument("--entries", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--draws", type=int, default=4_000)
    parser.add_argument("--keep", default=None, help="folder to leave the board in")
    options = parser.parse_args()
    archive = open_archive(options.archive)
    target = load_split(archive, "eval")
    bases = [make_baseline(name, archive).probabilities for name in ("uniform", "prior", "trees")]
    with tempfile.TemporaryDirectory() as scratch:
        board = Path(options.keep or scratch) / "board"
        stored = store_entries(board, options.entries, target, bases, options.repeats)
        start = time.perf_counter()
        for folder in stored[:3]:
            score(
                target, read_forecasts(folder / "forecasts.jsonl.zst", target), draws=options.draws
            )
        single = (time.perf_counter() - start) / 3
        start = time.perf_counter()
        result = build_board(archive, board, jobs=options.jobs, draws=options.draws)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures = {
            "rows": len(target),
            "entries": options.entries,
            "repeats": options.repeats,
            "draws": options.draws,
            "build_s": round(seconds, 1),
            "over_sequential_scoring": round(seconds / (single * options.entries), 2),
            "peak_mb": round(peak),
            "page_mb": round(result.page_bytes / 1e6, 2),
        }
        json.dump(figures, sys.stdout, indent=1)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
