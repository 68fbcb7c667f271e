"""Show what a forecast file looks like: a template, its explanation, a JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.scoring.formats import FIELDS, TOOL_FIELDS, ForecastLine
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def json_schema() -> dict[str, Any]:
    """Make the JSON Schema (2020-12) of one line of a forecast file.

    It says what a line must look like. That ids are those of the split, that no forecast is there
    twice and that the sum is near 1 is for ``kernel-archive check``.
    """
    _, components = msgspec.json.schema_components((ForecastLine,))
    properties = {
        name: {**components["ForecastLine"]["properties"][name], "description": meaning}
        for name, meaning in FIELDS.items()
    }
    positive = {"type": "number", "exclusiveMinimum": 0}
    mass = {"type": "number", "minimum": 0}
    properties["probabilities"]["anyOf"][0]["contains"] = positive
    absent: dict[str, Any] = {"probabilities": {"type": "null"}}
    answered: dict[str, Any] = {"parse_failed": {"enum": [False, None]}}

    def form(title: str, required: Sequence[str], **properties: Any) -> dict[str, Any]:
        return {"title": title, "required": list(required), "properties": properties}

    tool = form(
        "the arguments of a tool call",
        TOOL_FIELDS,
        **dict.fromkeys(TOOL_FIELDS, mass),
        **absent,
        **answered,
    )
    tool["anyOf"] = [{"properties": {name: positive}} for name in TOOL_FIELDS]
    unparsed = "no distribution: the answer could not be parsed"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a forecast file of kernel_archive",
        "type": "object",
        "required": ["row_id"],
        "properties": properties,
        "anyOf": [
            form("a distribution", ["probabilities"], probabilities={"type": "array"}, **answered),
            tool,
            form("no distribution: deferred", ["defer"], defer={"const": True}, **absent),
            form(unparsed, ["parse_failed"], parse_failed={"const": True}, **absent),
        ],
    }
