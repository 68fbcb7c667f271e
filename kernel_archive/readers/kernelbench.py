"""``kernelbench``: runs of KernelBench, ``eval_results.json`` with the programs beside it and the timing baselines of the GPU.

Facts of the format, from its public code: ``runs/NAME/eval_results.json`` maps a problem's number to a list of results (one
result in earlier versions) with ``sample_id``, ``compiled``, ``correctness``, ``metadata`` (``hardware``, errors) and
``runtime`` in ms, -1 where nothing was timed. Its relatives write problem -> sample -> result, level -> problem -> sample ->
result, or a file for each result, ``level_L_problem_P_sample_S_eval_result.json``. The programs are ``level_L_problem_P_sample_S_kernel.py`` beside it. Baselines are
``results/timing/GPU/NAME.json``: level -> name of the problem's file, which begins with its number -> ``mean`` in ms and
``hardware``. A runtime without a baseline of the same GPU gives no speedup.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding, printable
from kernel_archive.readers.doubts import DOUBTFUL_RATIO
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.mapping import From
from kernel_archive.readers.measurements import Judged
from kernel_archive.readers.salvage import Report
from kernel_archive.readers.sniff import wrong_format
from kernel_archive.readers.values import natural, object_of, positive, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

_RESULTS: Final = "eval_results.json"
_ALONE: Final = "level_*_problem_*_sample_*_eval_result.json"
#: Keys of which a result has one.
_RESULT_KEYS: Final = frozenset({"compiled", "correctness", "runtime"})
#: Keys that lead to a result at most: level, problem, sample.
_MOST_KEYS: Final = 3
_PROGRAM: Final = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_(?:kernel\.py|eval_result\.json(?:\.gz|\.zst)?)")
#: Columns of ours that a row as :func:`_rows` makes it has under the same name.
_SAME: Final = (
    "node_id", "level", "number", "compiled", "correct", "outcome", "gpu", "reference_gpu", "error_type", "error_text",
)  # fmt: skip
_COLUMNS: Final[dict[str, From]] = {
    **{name: From(column=name) for name in _SAME},
    "code": From(file="{program}"),
    "runtime": From(column="runtime", unit="ms"),
    "reference_runtime": From(column="reference", unit="ms"),
    "reference_code": From(column="reference_program"),
}
#: Keys of the metadata that hold the text of an error, and the outcome that they tell; the first that is there counts.
_ERRORS: Final = {
    "compilation_error": "compile_failed",
    "cuda_error": "runtime_error",
    "runtime_error": "runtime_error",
    "gpu_error": "infrastructure_failure",
    "other_error": "infrastructure_failure",
    "correctness_issue": "incorrect",
}


def _stated(run: RunFiles, key: str) -> Path | None:
    """A path that the recipe states, relative to its own folder."""
    value = run.settings.get(key)
    return Path(run.settings.get("recipe_directory") or run.base) / value if value else None


def _also(run: RunFiles) -> Iterator[Path]:
    """The baselines and the reference programs, which lie elsewhere."""
    baseline, problems = _stated(run, "baseline"), _stated(run, "problems")
    if baseline is not None and baseline.is_file():
        yield baseline
    if problems is not None:
        yield from sorted(problems.glob("level*/*.py"))


def _baselines(run: RunFiles, report: Report) -> dict[tuple[int, int], tuple[float | None, str | None]]:
    """Level and number of a problem -> the reference's time in ms, and its GPU."""
    path = _stated(run, "baseline")
    if path is None:
        return {}
    if path.is_dir():
        below = [p.relative_to(path).as_posix() for p in islice(sorted(path.rglob("baseline_time_*.json")), 3)]
        fix = f"Name the file: {', '.join(printable(name) for name in below) or 'none is'} below it"
        report.error("bad-baseline", "a folder, not a timing baseline", file=run.name(path), field="baseline", fix=fix)
        return {}
    value = run.json(path)
    if isinstance(value, Finding):
        report.add(value)
    found = {}
    for level, problems in object_of(value).items():
        for name, timing in object_of(problems).items():
            numbers = re.search(r"(\d+)$", level), re.match(r"(\d+)_", name)
            if numbers[0] and numbers[1]:
                mean, gpu = (object_of(timing).get(key) for key in ("mean", "hardware"))
                found[int(numbers[0][1]), int(numbers[1][1])] = positive(mean), text_of(gpu)
    if not found:
        message = "no timing baseline in it: level1, ... -> NUMBER_NAME.py -> mean"
        report.error("bad-baseline", message, file=run.name(path), field="baseline")
    return found


def _level(run: RunFiles) -> int | None:
    """The level of a run: of its programs' names, else of the settings of its generation."""
    levels = {int(match[1]) for path in run.files if (match := _PROGRAM.fullmatch(path.name))}
    if len(levels) == 1:
        return levels.pop()
    for name in ("generation_config.yaml", "eval_config.yaml"):
        path = run.find(name)
        text = run.head(path, 1 << 16).decode("utf-8", "replace") if path is not None else ""
        if match := re.search(r"^\s*level\s*:\s*(\d+)\s*$", text, re.MULTILINE):
            return int(match[1])
    return None


def _results(run: RunFiles, report: Report) -> Iterator[tuple[Path, tuple[str, ...], dict[str, Any]]]:
    """Every result with its file and the keys that lead to it: (level,) problem, sample."""
    path = run.log(_RESULTS)
    alone = [p for p in run.files if _PROGRAM.fullmatch(p.name) and p.suffix != ".py"]
    for file in dict.fromkeys([*([path] if path is not None else []), *alone]):
        match, value, wrong = _PROGRAM.fullmatch(file.name), run.json(file), []
        if isinstance(value, Finding):
            report.add(value)
            continue
        for keys, result in _inside(value, match.groups() if match is not None else ()):
            if result is None or not keys:
                wrong.append(".".join(keys))
            else:
                yield file, keys, result
        if wrong:
            message = "neither compiled, correctness nor runtime is in it: no result of KernelBench; left out"
            message += f", as are {len(wrong) - 1:,} others" if len(wrong) > 1 else ""
            fix = "Expected is problem -> [results], problem -> sample -> result, or level -> problem -> sample -> result; else try the format measurements"
            report.error("no-result", message, file=run.name(file), field=wrong[0] or None, fix=fix)


def _inside(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any] | None]]:
    """The results in a document with the keys that lead to each; ``None`` for what is none."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict) and not value.keys() & _RESULT_KEYS and len(keys) < _MOST_KEYS:
        inner = value.items()
    elif isinstance(value, list) and 0 < len(keys) < _MOST_KEYS:
        inner = ((str(object_of(result).get("sample_id", i)), result) for i, result in enumerate(value))
    else:
        yield keys, value if isinstance(value, dict) and value.keys() & _RESULT_KEYS else None
    for key, each in inner:
        yield from _inside(each, (*keys, key))


def _rows(run: RunFiles, report: Report) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A row per result, with what belongs to it from the other files. Results stand on no lines of their own."""
    baselines, references, run_level = _baselines(run, report), _stated(run, "problems"), _level(run)
    given = run.settings.get("level")
    run_level = int(given) if given is not None else run_level
    seen: set[str] = set()
    for path, keys, facts in _results(run, report):
        if len(keys) == 1 or (len(keys) == 2 and keys[0].startswith("level")):  # one result of a problem
            keys = (*keys, str(natural(facts.get("sample_id")) or 0))  # noqa: PLW2901
        level = _number(keys[-3]) if len(keys) == _MOST_KEYS else natural(facts.get("level"))
        level, number, key, sample = run_level if level is None else level, _number(keys[-2]), keys[-2], keys[-1]
        node = f"{level}/{key}/{sample}"
        if node in seen and _PROGRAM.fullmatch(path.name):
            continue  # it stands in eval_results.json, too
        seen.add(node)
        metadata = object_of(facts.get("metadata"))
        reference, gpu = baselines.get((level or -1, number or -1), (None, None))
        error = next((name for name in _ERRORS if metadata.get(name)), None)
        failed = facts.get("compiled") is False or facts.get("correctness") is False
        own = positive(facts.get("ref_runtime"))
        runtime, mean = positive(facts.get("runtime")), positive(object_of(facts.get("runtime_stats")).get("mean"))
        if runtime is not None and mean is not None and max(runtime / mean, mean / runtime) > DOUBTFUL_RATIO:
            message = "runtime is not the mean of the result's own runtime_stats; it is left out"
            where = {"file": run.name(path), "field": f"{key}.{sample}.runtime"}
            report.error("runtime-contradicted", message, value=f"{runtime:g}, mean {mean:g}", **where)
            runtime = None
        row = {
            "node_id": node,
            "level": level,
            "number": number,
            "compiled": facts.get("compiled"),
            "correct": facts.get("correctness"),
            "outcome": _ERRORS[error] if failed and error is not None else None,
            "runtime": runtime,
            "reference": own if own is not None else reference,
            "gpu": metadata.get("hardware") or object_of(facts.get("runtime_stats")).get("hardware"),
            "reference_gpu": None if own is not None else gpu,
            "error_type": metadata.get(f"{error}_name"),
            "error_text": str(metadata[error]) if error is not None else None,
            "program": f"level_{level}_problem_{key if number is None else number}_sample_{_number(sample) or 0}_kernel.py",
            "reference_program": _text_of(run, references, level, number),
        }
        yield path, row


def _number(key: str) -> int | None:
    """The number of a key such as ``3``, ``problem_3`` or ``level3``."""
    match = re.fullmatch(r"(?:level|problem|sample)?_?(\d{1,6})", key)
    return int(match[1]) if match is not None else None


def _text_of(run: RunFiles, folder: Path | None, level: int | None, number: int | None) -> str | None:
    """The reference program of a problem."""
    found = [] if folder is None else sorted(folder.glob(f"level{level}/{number}_*.py"))
    data = run.whole(found[0]) if found else None
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else None


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per result."""
    path = run.log(_RESULTS) or next((p for p in run.files if "_eval_result.json" in p.name), None)
    if path is None:
        yield wrong_format(run, KERNELBENCH)
        return
    report = Report()
    rows = list(_rows(run, report))
    if not rows:
        yield from report
        yield wrong_format(run, KERNELBENCH, path)
        return
    if run.settings.get("baseline") is None and not any(row["reference"] for _, row in rows):
        message = "runtimes alone give no speedup: the recipe names no timing baseline of the same GPU"
        fix = 'baseline = "results/timing/GPU/baseline_time_torch.json" in the [[source]]'
        report.warning("no-baseline", message, file=run.name(path), field="baseline", fix=fix)
    if any(row["level"] is None for _, row in rows):
        message = "nothing says which level the run is of"
        report.error("no-level", message, file=run.name(path), fix="level = 1 in the [[source]]")
    yield from Judged(run, path, report, _COLUMNS).judge(rows)


KERNELBENCH: Final = ReaderSpec(
    name="kernelbench",
    title="Runs of KernelBench and its relatives: eval_results.json with the programs beside it",
    expects="run directories with eval_results.json, or a *_eval_result.json for each sample; baseline: timing of the same GPU, "
    "problems: folder with level1/*.py",
    files=(_RESULTS, "level_*_kernel.py", _ALONE, "generation_config.yaml", "eval_config.yaml"),
    version=4,
    records=_records,
    also=_also,
    foreign=True,
)
