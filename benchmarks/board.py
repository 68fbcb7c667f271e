"""Fifty entries of three repeats on the evaluation split: how long the board takes, how big and how fast its page is.

    python benchmarks/board.py [--archive DIR] [--entries 50] [--chromium PATH] [--draws 10000] [--engines local dask]

Bars: build under 60 s on two cores, page under 15 MB, interactive in under 2 s. Entries are noisy copies
of real baselines, each with a rationale and token counts for every row. The ratio is the build's time over the time of
scoring one entry after the other in one process. With two engines the boards must be the same, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kernel_archive.archive.open import open_archive
from kernel_archive.board import add_submission, build_board
from kernel_archive.forecasters import make_baseline
from kernel_archive.scoring import load_target, read_forecasts, score

WORDS = [
    "the",
    "candidate",
    "fuses",
    "loads",
    "of",
    "the",
    "row",
    "into",
    "one",
    "pass",
    "so",
    "that",
    "memory",
    "traffic",
    "halves",
    "while",
    "occupancy",
    "stays",
]


def write_entry(path: Path, row_ids: tuple[str, ...], base: np.ndarray, repeats: int, rng: np.random.Generator) -> None:
    """A forecast file: the base with noise, a rationale and token counts."""
    sharpness = rng.uniform(2, 60)
    with path.open("w") as out:
        for repeat in range(repeats):
            for row_id, row in zip(row_ids, base, strict=True):
                line = {
                    "row_id": row_id,
                    "repeat": repeat,
                    "probabilities": rng.dirichlet(row * sharpness + 0.05).round(5).tolist(),
                    "rationale": " ".join(rng.choice(WORDS, 60)),
                    "input_tokens": int(rng.integers(800, 4000)),
                    "output_tokens": int(rng.integers(60, 900)),
                    "latency_s": round(float(rng.uniform(0.5, 9)), 2),
                }
                out.write(json.dumps(line) + "\n")


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has waited for: what a busy machine does not change."""
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def page_timing(page: Path, chromium: str, driver: str) -> dict[str, float]:
    """Milliseconds until the page's script is done, in headless Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.get(page.resolve().as_uri())
        for _ in range(400):
            if browser.execute_script("return document.documentElement.dataset.ready"):
                break
            time.sleep(0.02)
        ready = browser.execute_script("return performance.getEntriesByName('ready')[0].startTime")
        first = browser.execute_script(
            "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
        )
        return {"first_paint_ms": first, "interactive_ms": ready}
    finally:
        browser.quit()


def main() -> None:
    """Build a board and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", default=None)
    parser.add_argument("--entries", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--engines", nargs="+", default=["local"])
    parser.add_argument("--keep", default=None, help="folder to leave the board in")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--chromedriver", default=shutil.which("chromedriver"))
    options = parser.parse_args()
    archive = open_archive(options.archive)
    target = load_target(archive, "eval")
    rng = np.random.default_rng(0)
    bases = [make_baseline(name, archive).probabilities for name in ("uniform", "prior", "nearest", "boosted")]
    with tempfile.TemporaryDirectory() as scratch:
        board = Path(options.keep or scratch) / "board"
        for i in range(options.entries):
            file = Path(scratch) / "forecasts.jsonl"
            write_entry(file, target.row_ids, bases[i % len(bases)], options.repeats, rng)
            add_submission(file, target, name=f"Entry {i:04d}", model=f"model-{i % 7}", board=board, draws=100)
        stored = sorted((board / "submissions").iterdir())
        start = time.perf_counter()
        for folder in stored[:3]:
            score(target, read_forecasts(folder / "forecasts.jsonl.zst", target))
        single = (time.perf_counter() - start) / 3
        made = {}
        for engine in options.engines:
            start, cpu = time.perf_counter(), cpu_seconds()
            result = build_board(archive, board, jobs=options.jobs, draws=options.draws, engine=engine)
            seconds = time.perf_counter() - start
            made[engine] = (board / "standings.json").read_bytes()
            print(
                f"{engine}: {seconds:.1f} s, {cpu_seconds() - cpu:.1f} s of processor time, peak so far "
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB here, "
                f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MB in a process",
                file=sys.stderr,
                flush=True,
            )
        assert len(set(made.values())) == 1, "another board by another engine"
        figures = {
            "rows": len(target),
            "entries": options.entries,
            "repeats": options.repeats,
            "draws": options.draws,
            "build_s": round(seconds, 1),
            "over_sequential_scoring": round(seconds / (single * options.entries), 2),
            "page_mb": round(result.page_bytes / 1e6, 2),
        }
        if options.chromium and options.chromedriver:
            figures |= {
                k: round(v)
                for k, v in page_timing(board / "index.html", options.chromium, options.chromedriver).items()
            }
        json.dump(figures, sys.stdout, indent=1)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
