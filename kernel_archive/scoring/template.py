"""Write a template of a forecast file, and explain its format: what ``template`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kernel_archive.bins import BIN_NAMES, SCHEMES
from kernel_archive.schema import TABLES
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.formats import TOOL_FIELDS, fields_of
from kernel_archive.scoring.split import Split
from kernel_archive.splits import SplitSpec


def stated_forecast(spec: SplitSpec, probabilities: Floats) -> dict[str, Any]:
    """Write probabilities, shape (8,), as a line of a forecast file states them."""
    p = [round(value, 6) for value in probabilities.tolist()]
    if spec.asks_outcome:
        return {"p_passes": p[-1]}
    return {"probabilities": p}


def template_lines(split: Split, *, repeats: int = 1) -> Iterator[bytes]:
    """Give the lines of a valid file: the uniform distribution for every row and repeat."""
    for repeat in range(repeats):
        for row_id in split.row_ids:
            line = {"row_id": row_id, "repeat": repeat}
            yield msgspec.json.encode(line | stated_forecast(split.spec, split.uniform)) + b"\n"


def explanation(split: Split, named: str = "") -> list[str]:
    """Explain the format, as lines of text; ``named`` are the options that name the archive."""
    rule = SCHEMES[split.scheme]
    (field,) = stated_forecast(split.spec, split.uniform)
    lines = [f"One JSON object a line, one forecast each. Only row_id and {field} are needed:"]
    lines += [f"  {name:<16} {meaning}" for name, meaning in fields_of(split.spec).items()]
    if not split.spec.asks_outcome:
        lines += ["", f"The eight bins of S = {split.spec.ratio}, scheme {split.scheme}:"]
        lines += [f"  {b}  {name:<21} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)]
        tool = f"{TOOL_FIELDS[0]} ... {TOOL_FIELDS[-1]}"
        lines += ["", f"The arguments of a tool call are read, too: {tool}."]
    lines += ["gzip, zstd and Parquet are read, too. The texts to forecast are in the archive:"]
    return [*lines, f'  kernel-archive sql "SELECT {_inputs(split.spec)} LIMIT 1"{named}']


def _inputs(spec: SplitSpec) -> str:
    """Say from which columns and table the texts come without the answers."""
    if not spec.inputs:
        return f"row_id, {spec.anchor}, {spec.candidate} FROM {spec.table}"
    of_several = len(TABLES[spec.inputs].splits) > 1
    return f"* FROM {spec.inputs}" + (f" WHERE split = '{spec.table}'" if of_several else "")
