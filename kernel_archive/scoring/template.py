"""Show what a forecast file looks like: a template and its explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.scoring.formats import FIELDS, TOOL_FIELDS
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.scoring.split import Split

_EXAMPLE: Final = 1.0 / N_BINS


def template_lines(split: Split, *, repeats: int = 1) -> Iterator[bytes]:
    """Give the lines of a valid file: the uniform distribution for every row and repeat."""
    for repeat in range(repeats):
        for row_id in split.row_ids:
            line = {"row_id": row_id, "repeat": repeat, "probabilities": [_EXAMPLE] * N_BINS}
            yield msgspec.json.encode(line) + b"\n"


def explanation(split: Split) -> list[str]:
    """Explain the format in words, as lines of text."""
    rule = SCHEMES[split.scheme]
    lines = ["One JSON object a line, one forecast each. Only row_id and probabilities are needed:"]
    lines += [f"  {name:<16} {meaning}" for name, meaning in FIELDS.items()]
    lines += ["", f"The eight bins of S = {split.spec.ratio}, scheme {split.scheme}:"]
    lines += [f"  {b}  {name:<21} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)]
    lines += [
        "",
        f"The arguments of a tool call are read, too: {TOOL_FIELDS[0]} ... {TOOL_FIELDS[-1]}.",
        "gzip, zstd and Parquet are read, too. The texts to forecast are in the archive:",
    ]
    if split.spec.name == REPLAY.name:
        return [*lines, "  kernel-archive forecast --split replay --export questions.jsonl"]
    return [*lines, f'  kernel-archive sql "SELECT * FROM {split.facts.table} LIMIT 1"']
