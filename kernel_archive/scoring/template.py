"""What a forecast file looks like: a template that can be scored as it is, its explanation, and a JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.scoring.formats import FIELDS, MAX_REPEATS, TOOL_FIELDS
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernel_archive.scoring.target import Target

_EXAMPLE: Final = 1.0 / N_BINS


def template_lines(target: Target, *, repeats: int = 1) -> Iterator[bytes]:
    """Lines of a valid forecast file for a split: the uniform distribution for every row and repeat."""
    for repeat in range(repeats):
        for row_id in target.row_ids:
            line = {"row_id": row_id, "repeat": repeat, "probabilities": [_EXAMPLE] * N_BINS}
            yield msgspec.json.encode(line) + b"\n"


def explanation(target: Target) -> list[str]:
    """The format in words, for people: lines of text."""
    rule = SCHEMES[target.scheme]
    lines = ["One JSON object a line, one forecast each. Fields (only row_id and probabilities are needed):"]
    lines += [f"  {name:<16} {meaning}" for name, meaning in FIELDS.items()]
    lines += ["", f"The eight bins of S = {target.split.ratio}, scheme {target.scheme}:"]
    lines += [f"  {b}  {name:<21} {rule.describe(b)}" for b, name in enumerate(BIN_NAMES, 1)]
    lines += [
        "",
        f"Instead of probabilities, the arguments of a tool call are read: {TOOL_FIELDS[0]} ... {TOOL_FIELDS[-1]}.",
        "gzip, zstd and Parquet are read, too. The texts to forecast are in the archive:",
    ]
    if target.split.name == REPLAY.name:
        return [*lines, "  kernel-archive forecast --split replay --export questions.jsonl"]
    return [*lines, f'  kernel-archive sql "SELECT * FROM {target.facts.table} LIMIT 1"']


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a forecast file.

    It says what a line must look like; that ids are those of the split, that no forecast is there twice and that the
    sum is near 1 is for ``kernel-archive check``.
    """
    probability = {"type": "number", "minimum": 0}
    eight = {"minItems": N_BINS, "maxItems": N_BINS}
    whole = {"type": ["integer", "null"]}
    amount = {"type": ["number", "null"], "minimum": 0}
    text = {"type": ["string", "null"]}
    positive = {"type": "number", "exclusiveMinimum": 0}
    properties: dict[str, Any] = {
        "row_id": {"type": "string", "minLength": 1},
        "repeat": {**whole, "minimum": 0, "maximum": MAX_REPEATS - 1},
        "probabilities": {"type": "array", "items": probability, **eight, "contains": positive},
        "predicted_bin": {**whole, "minimum": 1, "maximum": N_BINS},
        "expected_speedup": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "defer": {"type": ["boolean", "null"]},
        "parse_failed": {"type": ["boolean", "null"]},
        "parse_error": text,
        "rationale": text,
        "prompt": text,
        "stop_reason": text,
        "input_tokens": amount,
        "output_tokens": amount,
        "latency_s": amount,
    }
    for name, meaning in FIELDS.items():
        properties[name] = {**properties[name], "description": meaning}
    absent = {"type": "null"}
    answered = {"parse_failed": {"enum": [False, None]}}

    def form(title: str, required: Sequence[str], **properties: Any) -> dict[str, Any]:
        return {"title": title, "required": list(required), "properties": properties}

    masses = dict.fromkeys(TOOL_FIELDS, probability)
    tool = form("the arguments of a tool call", TOOL_FIELDS, **masses, probabilities=absent, **answered)
    tool["anyOf"] = [{"properties": {name: positive}} for name in TOOL_FIELDS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a forecast file of kernel_archive",
        "type": "object",
        "required": ["row_id"],
        "properties": {**properties, "probabilities": {"anyOf": [properties["probabilities"], absent]}},
        "anyOf": [
            form("a distribution", ["probabilities"], probabilities={"type": "array"}, **answered),
            tool,
            form("no distribution: deferred", ["defer"], defer={"const": True}, probabilities=absent),
            form(
                "no distribution: the answer could not be parsed",
                ["parse_failed"],
                parse_failed={"const": True},
                probabilities=absent,
            ),
        ],
    }
