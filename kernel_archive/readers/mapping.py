"""How a table of others becomes rows of ours: which column, file or constant each of our columns is read from.

A recipe's ``columns`` has an entry for each of our columns (:data:`COLUMNS`): the name of theirs, or a small table
(:class:`From`) where a name is not enough. A name may be a dotted path into nested JSON (``metrics.runtime.mean``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from kernel_archive.errors import Finding, printable, suggestion
from kernel_archive.readers.values import ABSENT, lookup

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Our columns that a table can have, and what each means.
COLUMNS: Final[dict[str, str]] = {
    "code": "the program: its text, or with `file` the file that holds it; needed",
    "speedup": "reference time / candidate time, x; without it the ratio of the two times counts",
    "runtime": "time of the candidate, with its `unit`",
    "reference_runtime": "time of the reference, with its `unit`",
    "runtime_us": "short for `runtime` in microseconds",
    "reference_runtime_us": "short for `reference_runtime` in microseconds",
    "outcome": "how it ended: one of our outcomes, or true and false (an incorrect result); other words with `values`",
    "compiled": "whether it compiled: false is a `compile_failed`",
    "correct": "whether its result was right: false is an `incorrect`",
    "node_id": "the row's own name; `row-LINE` where it has none",
    "parent_node_id": "the row that it was made from",
    "is_root": "whether it is the program that the search began with",
    "kept": "whether a loop went on from it: a row that names no parent was made from the last kept row before it",
    "search": "the search that it belongs to, where one table holds several",
    "step": "step of the search, from 0",
    "problem": "what the program computes",
    "level": "level of a KernelBench problem, with `number`",
    "number": "number of a KernelBench problem, with `level`",
    "gpu": "the GPU that the candidate was timed on",
    "reference_gpu": "the GPU that the reference was timed on: of two GPUs no ratio is taken",
    "reference_code": "the reference program: its text, or with `file` the file that holds it",
    "model": "the language model that wrote it",
    "error_type": "name of the error of a failure",
    "error_text": "message of the error",
    "started_at": "begin of the evaluation, ISO 8601",
    "completed_at": "its end, ISO 8601",
    "gpu_seconds": "GPU time of the evaluation, s, or in another `unit`",
    "input_tokens": "tokens sent to the model for it",
    "output_tokens": "tokens answered",
}  # fmt: skip

US_PER_UNIT: Final = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_TIMES: Final = ("runtime", "reference_runtime")
_PLACE: Final = re.compile(r"\{([^{}:]+)(?::0?(\d))?\}")


class From(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where one of our columns comes from: of ``column``, ``file`` and ``value`` exactly one.

    Attributes:
        column: their column, or a dotted path into nested JSON.
        unit: unit of a time: s, ms, us or ns.
        values: their words to ours, for an outcome.
        file: the file with a program, relative to the table's folder; ``{name}`` stands for the row's column of that name,
            ``{name:3}`` for it with zeros in front to three digits. A name without braces is that of the one row beside it.
        value: the same for every row; ``{name}`` stands for a part of the path that the recipe names so, or for the row's column of
            that name, lists with an ``x`` between: ``{operator}_{shape}`` is ``softmax_1024x1024``.
    """

    column: str | None = None
    unit: Literal["s", "ms", "us", "ns"] | None = None
    values: dict[str, str] | None = None
    file: str | None = None
    value: str | int | float | bool | None = None

    @property
    def wanted(self) -> list[str]:
        """The columns of theirs that it reads."""
        template = self.file if self.file is not None else self.value
        return [self.column] if self.column is not None else names_in(template) if isinstance(template, str) else []


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A second table, a row of which is added to every row of the first where the keys are equal.

    Attributes:
        name: the added row stands under this name: ``NAME.column``.
        path: the second table, relative to the folder of the first.
        on: columns of the first to those of the second; all must be equal.
        rows: where its rows are, as for the first.
    """

    name: str
    path: str
    on: dict[str, str]
    rows: str | None = None


def names_in(template: str) -> list[str]:
    """The names in braces of a template.

    >>> names_in("kernels/{task}/{id}.cu")
    ['task', 'id']
    """
    return [name for name, _ in _PLACE.findall(template)]


def filled(template: str, values: Mapping[str, Any]) -> str | None:
    """A template with every ``{name}`` replaced by the value of that name; ``None`` where one is missing.

    >>> filled("k{n:3}.cu", {"n": 7}), filled("gemm_{shape}", {"shape": [64, 32]})
    ('k007.cu', 'gemm_64x32')
    """
    found = {name: lookup(values, name) for name in names_in(template)}
    for name, value in found.items():
        if isinstance(value, list) and value and all(isinstance(item, int | str) for item in value):
            found[name] = "x".join(map(str, value))
    if any(value is None or value is ABSENT or isinstance(value, list | dict) for value in found.values()):
        return None
    return _PLACE.sub(lambda match: str(found[match[1]]).strip().zfill(int(match[2] or 0)), template)


def columns_of(given: Any, place: str, reference: str | None = None) -> dict[str, From] | Finding:
    """A recipe's mapping of columns as it is meant, or what is wrong with it.

    ``place`` is the table, for the finding. Where the recipe says that the reference is the ``root``, the candidate's time is enough.
    """
    example = 'say in the recipe: columns = { code = "...", speedup = "...", problem = "..." }'

    def bad(message: str, fix: str | None, field: str = "columns") -> Finding:
        return Finding(code="bad-columns", message=message, file=place, field=field, fix=fix)

    if not isinstance(given, dict) or not given:
        return bad("the format 'measurements' needs columns for code and speedup", example)
    out: dict[str, From] = {}
    for name, entry in given.items():
        field = f"columns.{printable(name)}"
        if name not in COLUMNS:
            fix = f"{suggestion(name, COLUMNS)} (kernel-archive readers --columns)"
            return bad("no such column of ours", fix, field)
        try:
            rule = From(column=entry) if isinstance(entry, str) else msgspec.convert(msgspec.to_builtins(entry), From)
        except msgspec.ValidationError as error:
            return bad(str(error), f"Its keys are: {', '.join(From.__struct_fields__)}", field)
        fault = _fault(name, rule)
        if fault is not None:
            return bad(*fault, field)
        plain = name.removesuffix("_us")
        if plain in _TIMES and plain != name:
            rule = msgspec.structs.replace(rule, unit=rule.unit or "us")
        if plain in out:
            return bad("stands twice, with and without _us", None, field)
        out[plain if plain in _TIMES else name] = rule
    if all(name in out for name in _TIMES) and out["runtime"] == out["reference_runtime"]:
        message = "the candidate's time and the reference's are the same column: every speedup would be 1"
        return bad(message, "Name the column with the reference's time", "columns.reference_runtime")
    times = _TIMES[: 1 if reference == "root" else 2]
    judged = {"speedup", "outcome", "compiled", "correct"} & out.keys() or set(times) <= out.keys()
    if "code" not in out or not judged:
        what = "code" if "code" not in out else "a speedup, its two times, or an outcome"
        return bad(f"the format 'measurements' needs columns for code and speedup; {what} is missing", example)
    return out


def _fault(name: str, rule: From) -> tuple[str, str] | None:
    """What is wrong with one entry, and the way out."""
    sources = [key for key in ("column", "file", "value") if getattr(rule, key) is not None]
    if len(sources) != 1:
        return "exactly one of column, file and value says where it comes from", 'For example { column = "name" }'
    if rule.file is not None and name not in ("code", "reference_code"):
        return "only code and reference_code come from files", '{ file = "kernels/{column}" }'
    if rule.unit is not None and name.removesuffix("_us") not in (*_TIMES, "gpu_seconds"):
        return "only times have a unit", "Take the unit out"
    if name in _TIMES and rule.unit is None:
        return "a time needs its unit", f'{name} = {{ column = "{rule.column or name}", unit = "ms" }}'
    if rule.values is not None and name != "outcome":
        return "only an outcome has values", "Take them out"
    return None


def inside(folder: Path, template: str, row: Mapping[str, Any]) -> Path | None:
    """The file that a template names for a row; ``None`` where it names none, or one outside the template's own folder.

    The names come from a table that somebody else wrote: they may not lead out of the folder that the recipe states.
    """
    name = filled(template, row)
    if name is None or "\0" in name:
        return None
    fixed = template.split("{", 1)[0].rpartition("/")[0]
    top = (folder / fixed).resolve()
    path = (folder / name).resolve()
    return path if path.is_relative_to(top) and path != top else None
