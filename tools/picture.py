"""Draw the picture of the README: two programs, a forecast for each, and their measurements.

    python tools/picture.py ARCHIVE > docs/assets/forecast.svg

Programs and speedups come from the split ``eval`` of the archive, the forecasts from the entry
``claude-read-blind`` of the board.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import kernel_archive
from kernel_archive.bins import SCHEMES

ENTRY: Final = Path(__file__).parent.parent / "leaderboard/submissions/claude-read-blind"
#: The rows that are shown: short programs of ``fp8_quant``; their speedups differ sixfold.
ROWS: Final = ("6b4bb018e39571fd6efbefa7a7bbace8", "12508d9084d174ca5651ec776cb56796")
TITLES: Final = ("one launch over all groups", "sixteen launches, one after another")
LETTER, LINE, PANEL, GAP = 6.05, 13.5, 384, 32  #: width of a letter, height of a line, panels
MAX_LETTERS: Final = 61  #: longer lines of a program are wrapped
STYLE: Final = """
.page{fill:#fff;stroke:#d5dbe1}.panel{fill:#f4f6f8}
text{fill:#1d2830;font-family:system-ui,sans-serif;font-size:13px}
.code{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:10px}.note{fill:#52616d;font-size:11.5px}
.head{font-weight:600;font-size:14px}.bar{fill:#8fa9c4}.true{fill:#c2410c}.mark{fill:#c2410c;font-weight:600}
.axis{stroke:#9aa7b3}
@media (prefers-color-scheme:dark){.page{fill:#0d1117;stroke:#30363d}
.panel{fill:#161b22}text{fill:#e6edf3}
.note{fill:#a2adb8}.bar{fill:#4f7096}.true{fill:#fb923c}.mark{fill:#fb923c}.axis{stroke:#5b6672}}
"""


class Example(NamedTuple):
    """One program of the picture."""

    title: str
    code: list[str]
    speedup: float
    bin: int
    probabilities: list[float]


def read_examples(archive: str) -> list[Example]:
    """Read the rows and their forecasts."""
    split = kernel_archive.load_split(archive)
    forecasts = kernel_archive.read_forecasts(ENTRY / "forecasts.jsonl.zst", split)
    rows = kernel_archive.open_archive(archive).arrow("eval").to_pylist()
    by_id = {row["row_id"]: row for row in rows}
    examples = []
    for row_id, title in zip(ROWS, TITLES, strict=True):
        row = by_id[row_id]
        code = row["candidate_code"][row["candidate_code"].index("@triton.jit") :]
        code = code.replace("\n\n\n", "\n\n").splitlines()
        p = forecasts.probabilities[0, list(split.row_ids).index(row_id)].tolist()
        examples.append(Example(title, code, row["speedup"], row["bin"], p))
    return examples


def wrap(line: str) -> list[str]:
    """Break a line of a program at spaces where it is too wide for the panel."""
    if len(line) <= MAX_LETTERS:
        return [line]
    end = line.rfind(" ", 0, MAX_LETTERS)
    indent = len(line) - len(line.lstrip()) + 8
    return [line[:end], *wrap(" " * indent + line[end + 1 :])]


def draw_code(lines: list[str], x: float, y: float) -> list[str]:
    """Draw the lines of a program; leading spaces become an offset."""
    parts = []
    for i, line in enumerate(lines):
        left = x + LETTER * (len(line) - len(line.lstrip()))
        parts.append(
            f'<text class="code" x="{left:.1f}" y="{y + i * LINE:.1f}">'
            f"{escape(line.strip())}</text>"
        )
    return parts


def draw_bars(example: Example, x: float, y: float) -> list[str]:
    """Draw eight probabilities as bars, and mark the bin of the measurement."""
    edges = ["", *(f"{edge:.3g}" for edge in SCHEMES["paper"].edges), ""]
    width = (PANEL - 24) / 8
    parts = []
    for b, p in enumerate(example.probabilities, 1):
        left = x + (b - 1) * width
        kind = "true" if b == example.bin else "bar"
        height = max(100 * p, 1.5)
        parts.append(
            f'<rect class="{kind}" x="{left + 3:.1f}" y="{y - height:.1f}" '
            f'width="{width - 6:.1f}" '
            f'height="{height:.1f}"/>'
        )
        if p >= 0.005:
            parts.append(
                f'<text class="note" x="{left + width / 2:.1f}" y="{y - height - 4:.1f}" '
                f'text-anchor="middle">{100 * p:.0f}</text>'
            )
        if edges[b]:
            parts.append(
                f'<text class="note" x="{left + width:.1f}" y="{y + 15}" text-anchor="middle">'
                f"{edges[b]}x</text>"
            )
    middle = x + (example.bin - 0.5) * width
    parts.append(f'<path class="axis" d="M{x} {y + 0.5}h{PANEL - 24}"/>')
    parts.append(
        f'<path class="true" d="M{middle - 6:.1f} {y + 32}h12l-6 -10z"/>'
        f'<text class="mark" x="{middle:.1f}" y="{y + 47}" text-anchor="middle">'
        f"measured: {example.speedup:.2f}x</text>"
    )
    return parts


def draw(examples: list[Example]) -> str:
    """Draw the whole picture."""
    programs = [[w for line in e.code for w in wrap(line)] for e in examples]
    code_height = max(map(len, programs)) * LINE + 16
    top, bars = 58, 58 + code_height + 122
    height = bars + 62
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height:.0f}"',
        f'width="800" height="{height:.0f}" role="img" aria-labelledby="t d">',
        '<title id="t">Two programs, a forecast for each, and what was measured</title>',
        '<desc id="d">'
        + escape(
            "; ".join(
                f"{e.title}: measured {e.speedup:.2f}x, forecast "
                f"{100 * e.probabilities[e.bin - 1]:.0f} percent for that bin"
                for e in examples
            )
        )
        + "</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x=".5" y=".5" width="799" height="{height - 1:.0f}" rx="8"/>',
        '<text class="head" x="16" y="26">Which of these two kernels is faster, and by how much?',
        "</text>",
        '<text class="note" x="784" y="26" text-anchor="end">task fp8_quant, Triton, H200</text>',
    ]
    for i, (example, lines) in enumerate(zip(examples, programs, strict=True)):
        left = 10 + i * (PANEL + GAP - 20)
        parts.append(f'<text class="head" x="{left + 6}" y="50">{"AB"[i]}: {example.title}</text>')
        parts.append(
            f'<rect class="panel" x="{left}" y="{top}" width="{PANEL}" '
            f'height="{code_height:.1f}" rx="6"/>'
        )
        parts += draw_code(lines, left + 8, top + 18)
        parts.append(
            f'<text class="note" x="{left + 6}" y="{top + code_height + 20:.0f}">'
            "Forecast from the text alone: chance of each speedup, in percent</text>"
        )
        parts += draw_bars(example, left + 12, bars)
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(draw(read_examples(sys.argv[1])))
