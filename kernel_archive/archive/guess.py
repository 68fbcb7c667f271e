"""What the columns of somebody's table mean, guessed from their names and values, for a recipe that a person then reads."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.gpus import gpu_in
from kernel_archive.readers.files import is_file
from kernel_archive.readers.mapping import inside, names_in
from kernel_archive.readers.values import (
    BAD_JSON,
    any_json,
    failure_of,
    finite,
    from_text,
    is_missing,
    lookup,
    quantity,
    truth,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PROGRAM_ENDINGS: Final = (".py", ".cu", ".cuh", ".cpp", ".hip", ".triton", ".txt")
#: Our columns and how others call them, patterns with the best name first; a column of theirs is taken once.
_NAMES: Final[dict[str, str]] = {
    "code": r"(custom|candidate|generated|cuda|triton|hip|kernel|optimi[sz]ed|best)_(code|source|src|kernel) code program source(_code)? src kernel solution "
    r"text .*_code",
    "reference_code": r"(ref|reference|baseline|original|py_?torch|torch|py)_?(arch_)?(code|source|src|program)(_module)? reference ref original",
    "speedup": r"speed_?up(_(vs|over)_(torch|pytorch|eager|baseline|reference|native))?(_native)? .*speed_?up_native .*speed_?up.* x score_default ratio "
    r"(x_)?faster",
    "correct": r"correct(ness)? is_correct passed pass valid is_valid ok .*_(correct|passed|valid)",
    "compiled": r"(is_)?compiled compiles built",
    "outcome": r"outcome status verdict result state",
    "kept": r"(is_|was_)?(kept|keep|retained)",
    "problem": r"problem(_(name|id))? task(_(name|id))? op(_name)? operator kernel_name workload benchmark name leaderboard(_id)? key",
    "level": r"level(_id)?",
    "number": r"(problem|task)(_(id|number|no))? number",
    "gpu": r"gpu(_(name|type|model))? device(_name)? hardware card accelerator",
    "node_id": r"(node|program|candidate|kernel|sample|run|attempt|eval(uation)?)_?id id uuid commit hash iter(ation)? step experiment round attempt",
    "parent_node_id": r"parent(_(node|program|kernel|id|commit))* from based_on",
    "step": r"step iter(ation)?(_found)? generation round turn trial experiment attempt",
    "model": r"model(_(name|id|slug))? llm author",
    "search": r"(search|session|experiment|trajectory)(_(id|name))? run(_name)?",
    "error_text": r"error(_(text|message|msg))? message stderr traceback exception log",
    "error_type": r"error_(type|name|kind|class)",
    "input_tokens": r"(input|prompt)_tokens",
    "output_tokens": r"(output|completion)_tokens",
    "started_at": r"(started|created|submitted|submission)(_at|_time) timestamp date(time)?",
}  # fmt: skip
_REFERENCE: Final = frozenset(
    ["ref", "reference", "baseline", "base", "torch", "pytorch", "eager", "native", "original", "naive"]
)
_TIME: Final = frozenset(["time", "runtime", "latency", "duration", "elapsed"])
_UNITS: Final = {
    **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds", "msec"), "ms"),
    **dict.fromkeys(("us", "usec", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
}
#: Words of a column of times that is none, or not the one to take.
_WORSE: Final = re.compile(
    r"std|var|min|max|p50|p9[059]|compiled?|wall|total|start|end|begin|stamp|timestamp|created|eval"
)
_WORDS: Final = {
    "success": "success succeeded passed pass ok correct keep kept discard discarded accepted accept baseline improved best reverted revert slower "
    "reject rejected",
    "compile_failed": "compile_failed compile_error compilation_error compilation_failed ce build_failed build_error syntax_error",
    "runtime_error": "runtime_error crash crashed error timeout timed_out oom re exception illegal_memory_access",
    "incorrect": "incorrect wrong wrong_answer wrong_result mismatch wa failed fail failure invalid",
    "infrastructure_failure": "infrastructure_failure infra_error lost cancelled",
}
_OURS: Final = {word: outcome for outcome, known in _WORDS.items() for word in known.split()}
#: Words of a loop that says which programs it went on from.
_KEPT_WORDS: Final = frozenset(["keep", "kept", "discard", "discarded", "revert", "reverted", "reject", "rejected"])
_SAMPLE: Final = 50


class Guess(msgspec.Struct):
    """A mapping, and what it leaves open."""

    columns: dict[str, Any] = {}  # as a recipe has them
    open: dict[str, str] = {}  # what a person must say or look at, by key
    unused: list[str] = []  # columns of theirs that nothing is read from

    @property
    def worth(self) -> int:
        """How much of a row it makes: a program, and something that was measured of it."""
        return 2 * ("code" in self.columns) + bool({"speedup", "runtime", "correct", "outcome"} & self.columns.keys())


def _plain(name: str) -> str:
    """A name in lower case with single underscores: ``CUDA_Runtime``, ``cudaRuntime`` and ``cuda runtime (ms)`` alike."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", split.lower().replace("µs", "us")).strip("_")


def _flat(row: dict[str, Any], depth: int = 3, head: str = "") -> dict[str, Any]:
    """The values of a row by dotted path, into objects and texts that are objects."""
    out: dict[str, Any] = {}
    for key, value in row.items():
        name, inner = f"{head}{key}", value
        if isinstance(value, str) and value.lstrip()[:1] == "{" and len(value) < 1 << 16:
            try:
                inner = any_json(value.encode())
            except BAD_JSON:
                inner = value
        if isinstance(inner, dict) and depth and inner and "." not in str(key):
            out |= _flat(inner, depth - 1, f"{name}.")
        else:
            out[name] = value
    return out


def _all(kind: Callable[[Any], bool]) -> Callable[[list[Any]], bool]:
    return lambda values: bool(values) and sum(map(kind, values)) >= 0.9 * len(values)


def _is_program(value: Any) -> bool:
    return isinstance(value, str) and (
        value.strip().count("\n") > 0 or (len(value) > 60 and not value.strip().isalnum())
    )


_number: Final = _all(lambda v: finite(quantity(v)[0]) is not None)
_whole: Final = _all(lambda v: isinstance(from_text(v), int) or (isinstance(v, float) and v.is_integer()))
_text: Final = _all(lambda v: isinstance(v, str | int) and not isinstance(v, bool))
_program: Final = _all(_is_program)
_looks: Final = _all(
    lambda v: (
        re.search(r"^\s*(?:def |class |import |from |#include|@triton|__global__|template)", v, re.MULTILINE)
        is not None
    )
)
_truth: Final = _all(lambda v: truth(v) is not None)
_KINDS: Final[dict[str, Callable[[list[Any]], bool]]] = {
    **dict.fromkeys(("code", "reference_code"), _program),
    **dict.fromkeys(("correct", "compiled", "kept"), _truth),
    **dict.fromkeys(("level", "number", "step", "input_tokens", "output_tokens"), _whole),
    "speedup": _number,
    "gpu": _all(lambda v: isinstance(v, str)),
    "outcome": _all(lambda v: isinstance(v, bool | str) and len(str(v)) < 40),
}


def guess(rows: Sequence[dict[str, Any]], folder: Path | None = None, files: Sequence[str] = ()) -> Guess:
    """Guess which column is what, from the first rows of a table; ``files`` are names below its folder that may hold programs."""
    values: dict[str, list[Any]] = {}
    for row in rows[:_SAMPLE]:
        for name, value in _flat(row).items():
            values.setdefault(name, [])
            if not is_missing(value):
                values[name].append(value)
    found = Guess()
    taken: set[str] = set()
    called = {name: {_plain(name), _plain(name.rsplit(".", 1)[-1])} for name in values}
    _times(values, found, taken)
    for ours, pattern in _NAMES.items():
        if ours == "number" and "level" not in found.columns:
            continue
        fits = _KINDS.get(ours, _text)
        free = {name: both for name, both in called.items() if name not in taken}
        named = (n for part in pattern.split() for n, both in free.items() if any(re.fullmatch(part, p) for p in both))
        best = next((name for name in named if fits(values[name])), None)
        if best is not None:
            found.columns[ours] = best
            if ours not in ("step", "node_id"):
                taken.add(best)
    if "level" in found.columns and "number" not in found.columns:
        _whole_problem = found.columns.get("problem")
        if _whole_problem is not None and _whole(values[_whole_problem]):
            found.columns["number"] = found.columns.pop("problem")
    if "number" in found.columns and found.columns.get("problem") == found.columns["number"]:
        del found.columns["problem"]
    nodes = values.get(found.columns.get("node_id", ""), [])
    if len(set(map(str, nodes))) < len(nodes):
        found.columns.pop("node_id", None)  # a name that stands twice names nothing
    _outcomes(values, found)
    if "code" not in found.columns and folder is not None:
        _programs_in_files(rows, values, folder, files, found)
    programs = [name for name, sample in values.items() if name not in taken and _program(sample) and _looks(sample)]
    if "code" not in found.columns and len(programs) == 1:
        found.columns["code"] = programs[0]
        found.open["programs"] = f"taken from {programs[0]}, the only column with programs"
    used: set[str] = set()
    for rule in found.columns.values():
        used.update([rule] if isinstance(rule, str) else [str(rule.get("column", "")), *names_in(rule.get("file", ""))])
    found.unused = [name for name in values if name not in used][:40]
    return found


def _times(values: dict[str, list[Any]], found: Guess, taken: set[str]) -> None:
    """The candidate's time and the reference's, with their units."""
    ranked: dict[str, list[tuple[int, int, str, str | None]]] = {"runtime": [], "reference_runtime": []}
    for name, cells in values.items():
        words = _plain(name).split("_")
        sample = [v for v in cells if quantity(v)[0] != 0]  # failures have 0 where nothing was timed
        stated = Counter(unit for v in sample if (unit := quantity(v)[1]))  # "12.3 us"
        unit = next((_UNITS[w] for w in reversed(words) if w in _UNITS), None)
        unit = stated.most_common(1)[0][0] if stated else unit
        if "x" in stated or (stated and not words):
            continue
        if not _number(sample) or not (_TIME.intersection(words) or (unit is not None and unit != "s")):
            continue
        if any(w in ("speedup", "tokens", "gpu_seconds") for w in words):
            continue
        ours = "reference_runtime" if _REFERENCE.intersection(words) else "runtime"
        worse = len(set(filter(_WORSE.fullmatch, words))) * 2 - bool({"mean", "median", "avg"}.intersection(words))
        ranked[ours].append((worse, len(words), name, unit))
    for ours, options in ranked.items():
        card = gpu_in(str(found.columns["runtime"]["column"])) if "runtime" in found.columns else None
        if card is not None:  # the reference's time of another GPU is none
            options = [option for option in options if gpu_in(option[2]) in (None, card)]  # noqa: PLW2901
        if options:
            _, _, name, unit = min(options, key=lambda option: option[:3])
            found.columns[ours] = {"column": name, "unit": unit or "ms"}
            taken.add(name)
            if unit is None:
                found.open[f"unit of {name}"] = f"the unit of {name} is not in its name; ms is a guess: s, ms, us or ns"


def _outcomes(values: dict[str, list[Any]], found: Guess) -> None:
    """The words of an outcome, and of what a loop went on from: by the column's name, else by the words in it."""
    words = {name: Counter(str(value).strip().casefold() for value in sample) for name, sample in values.items()}
    loops = [name for name, each in words.items() if _KEPT_WORDS.intersection(map(_plain, each)) and len(each) < 12]
    loops = [name for name in loops if sum(_means(word) is not None for word in words[name]) >= len(words[name]) / 2]
    name = found.columns.pop("outcome", None)
    if name is not None:
        boolean = all(truth(word) is not None for word in words[name]) and "correct" in found.columns
        if boolean or not any(map(_means, words[name])):
            name = None
    if name is None and loops:
        name = loops[0]
    if loops:
        found.columns["kept"] = name if name in loops else loops[0]
        taken = ", ".join(f"{word} is {outcome}" for word in words[loops[0]] if (outcome := _means(word)))
        found.open["kept"] = (
            f"{loops[0]} is taken for what the loop said of each program: {taken}; kept ones are parents"
        )
    elif "kept" in found.columns:
        found.open["kept"] = (
            f"{found.columns['kept']} says what the loop went on from, but not what failed: "
            "a row without a time is left out; write a column with its outcome to have it as a failure"
        )
    if name is None:
        return
    mapped = {word: outcome for word in words[name] if (outcome := _means(word))}
    unknown = [word for word in words[name] if word not in mapped and truth(word) is None]
    found.columns["outcome"] = {"column": name, "values": mapped}
    loose = ", ".join(f"{word} is {outcome}" for word, outcome in mapped.items() if _plain(word) not in _OURS)
    if loose:
        found.open[f"failures in {name}"] = f"words of {name} are taken for what they seem to say: {loose}"
    if unknown:
        found.open[f"words of {name}"] = f"what these words of {name} mean is not known: {', '.join(unknown[:10])}"


def _means(word: str) -> str | None:
    """The outcome that a word stands for; ``None`` for one that is not known."""
    return _OURS.get(_plain(word)) or failure_of(word)


def _programs_in_files(
    rows: Sequence[dict[str, Any]], values: dict[str, list[Any]], folder: Path, files: Sequence[str], found: Guess
) -> None:
    """The column that names a row's file, from the files that there are: in full, in part, or by number."""
    sample = [row for row in rows[:_SAMPLE] if isinstance(row, dict)]
    best: tuple[float, int, str] = (0.5, 0, "")
    for name, held in values.items():
        if not _text(held) or len(set(map(str, held))) < 0.8 * len(held):
            continue
        for template in _templates(name, [str(value).strip() for value in held[:3]], files):
            there = [
                path
                for row in sample
                if lookup(row, name) not in (None, "") and (path := inside(folder, template, row))
            ]
            share = sum(map(is_file, there)) / max(len(sample), 1)
            best = max(best, (share, -len(template), template))
    if best[2]:
        found.columns["code"] = {"file": best[2]}


def _templates(name: str, texts: Sequence[str], files: Sequence[str]) -> set[str]:
    """Names of files with a value of a column in them, the value replaced by the column's name."""
    found: set[str] = set()
    for text in texts:
        for width in (0, 2, 3, 4, 5, 6):
            value = text.zfill(width) if text.isdigit() else text
            if width and (not text.isdigit() or len(text) >= width):
                continue
            place = f"{{{name}:{width}}}" if width else f"{{{name}}}"
            for file in files:
                if value and value in file and len(found) < 200:
                    head, _, tail = file.rpartition(value)
                    if not (value.isdigit() and (head[-1:].isdigit() or tail[:1].isdigit())):
                        found.add(f"{head}{place}{tail}")
    return found
