"""Facts of a search from the files beside its log, by one table: file -> column -> place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding
from kernel_archive.gpus import canonical_gpu
from kernel_archive.problems import normalise_problem
from kernel_archive.readers.values import (
    finite,
    inner_value,
    not_negative,
    object_of,
    objects_of,
    seconds_between,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import SearchFacts
    from kernel_archive.readers.salvage import FindingLog

#: File -> column of the facts -> places in the file; ``beside.toml`` says how to read it.
_FACTS: Final[dict[str, dict[str, str]]] = tomllib.loads(
    (Path(__file__).parent / "beside.toml").read_text(encoding="utf-8")
)
#: Files that a run writes last: one of them says that it came to its own end.
_LAST: Final = frozenset({"summary.json", "result.json", "eval_dataset_manifest.json", "DONE"})
#: Facts of which a log and the files beside it must agree -> how their spellings are compared.
_NORMALISE: Final = {"problem": normalise_problem, "gpu": canonical_gpu}
#: Column -> what makes a sound value of a stated one, or ``None``; all others are objects.
_SOUND: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("problem", "gpu", "reference_code", "model"), text_of),
    **dict.fromkeys(("gpu_seconds", "wall_seconds"), not_negative),
    **dict.fromkeys(("benchmark_cases", "correctness_cases"), objects_of),
    "tolerance": lambda v: {k: x for k, x in object_of(v).items() if finite(x) is not None} or None,
    "finished": lambda v: v if isinstance(v, bool) else None,
}


def add_facts(run: RunFiles, facts: SearchFacts, findings: FindingLog) -> None:
    """Add what the files beside a log state. Where they differ, the log counts."""
    names = {path.name.removesuffix(".zst").removesuffix(".gz"): path for path in run.files}
    for file, path in names.items():
        if file not in _FACTS or path == run.path:
            continue
        value, name = run.json(path), run.name(path)
        if isinstance(value, dict):
            add_stated(file, value, facts, findings, name)
        else:
            fault = value.message if isinstance(value, Finding) else "not a JSON object"
            findings.warning("bad-facts", f"{fault}; its facts are missing", file=name)
    if facts.finished is None and not names.keys().isdisjoint(_FACTS.keys() | _LAST):
        facts.finished = not names.keys().isdisjoint(_LAST)


def add_stated(
    file: str, data: dict[str, Any], facts: SearchFacts, findings: FindingLog, name: str
) -> None:
    """Add what a file of the table states; report what contradicts the log or an earlier file."""
    for column, places in _FACTS[file].items():
        value, before = _value(data, column, places.split()), getattr(facts, column)
        if before is None:
            setattr(facts, column, value)
        elif value is not None and column in _NORMALISE:
            normalise = _NORMALISE[column]
            if normalise(before) != normalise(value):
                message = f"the log says {column} {before!r}, {file} says {value!r}; the log counts"
                findings.error("facts-disagree", message, file=name, field=column)
    if file == "run.json" and facts.wall_seconds is None:
        facts.wall_seconds = seconds_between(text_of(data.get("start")), text_of(data.get("end")))


def _value(data: dict[str, Any], column: str, places: list[str]) -> Any:
    """Return what a file states of one column, or ``None``."""
    merged: dict[str, Any] = {}
    for place in places:
        value = data if place == "*" else inner_value(data, place.lstrip("="))
        if column in _SOUND:
            value = _SOUND[column](value)
            if value is not None:
                return value
        elif place.startswith("="):
            merged |= {place[1:]: value} if value else {}
        else:
            merged |= object_of(value)
    return merged or None
