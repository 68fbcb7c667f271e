"""``kernelbench``: runs of KernelBench, ``eval_results.json`` with the programs beside it and the timing baselines of the GPU.

Facts of the format, from its public code: ``runs/NAME/eval_results.json`` maps a problem's number to a list of results (one
result in earlier versions) with ``sample_id``, ``compiled``, ``correctness``, ``metadata`` (``hardware``, errors) and
``runtime`` in ms, -1 where nothing was timed. The programs are ``level_L_problem_P_sample_S_kernel.py`` beside it. Baselines are
``results/timing/GPU/NAME.json``: level -> name of the problem's file, which begins with its number -> ``mean`` in ms and
``hardware``. A runtime without a baseline of the same GPU gives no speedup.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import Finding
from kernel_archive.readers.files import ReaderSpec
from kernel_archive.readers.judged import DOUBTFUL_RATIO, judged
from kernel_archive.readers.mapping import columns_of
from kernel_archive.readers.report import Report
from kernel_archive.readers.sniff import wrong_format
from kernel_archive.readers.values import natural, object_of, positive, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.readers.files import RunFiles
    from kernel_archive.readers.records import Record

__all__ = ["KERNELBENCH"]

_RESULTS: Final = "eval_results.json"
_PROGRAM: Final = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")
#: Our columns of a row as :func:`_rows` makes it; times in ms.
_COLUMNS: Final[dict[str, Any]] = {
    **{
        name: name
        for name in (
            "node_id", "level", "number", "compiled", "correct", "outcome", "gpu", "reference_gpu", "error_type", "error_text",
        )
    },
    "code": {"file": "{program}"},
    "runtime": {"column": "runtime", "unit": "ms"},
    "reference_runtime": {"column": "reference", "unit": "ms"},
}  # fmt: skip
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
    value = run.json(path)
    if isinstance(value, Finding):
        report.add(value)
    found = {}
    for level, problems in object_of(value).items():
        for name, timing in object_of(problems).items():
            numbers = re.search(r"(\d+)$", level), re.match(r"(\d+)_", name)
            if numbers[0] and numbers[1]:
                facts = object_of(timing)
                found[int(numbers[0][1]), int(numbers[1][1])] = (
                    positive(facts.get("mean")),
                    text_of(facts.get("hardware")),
                )
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


def _rows(run: RunFiles, results: dict[str, Any], report: Report) -> Iterator[dict[str, Any]]:
    """A row per result, with what belongs to it from the other files. Results stand on no lines of their own."""
    baselines, references, level = _baselines(run, report), _stated(run, "problems"), _level(run)
    given = run.settings.get("level")
    level = int(given) if given is not None else level
    for key, value in results.items():
        for result in value if isinstance(value, list) else [value]:
            number, facts = natural(int(key) if key.isdigit() else None), object_of(result)
            sample, metadata = natural(facts.get("sample_id")) or 0, object_of(facts.get("metadata"))
            reference, gpu = baselines.get((level or -1, number or -1), (None, None))
            error = next((name for name in _ERRORS if metadata.get(name)), None)
            failed = facts.get("compiled") is False or facts.get("correctness") is False
            own = positive(facts.get("ref_runtime"))
            runtime, mean = positive(facts.get("runtime")), positive(object_of(facts.get("runtime_stats")).get("mean"))
            if runtime is not None and mean is not None and max(runtime / mean, mean / runtime) > DOUBTFUL_RATIO:
                message = "runtime is not the mean of the result's own runtime_stats; it is left out"
                where = {"file": run.name(run.log(_RESULTS) or run.path), "field": f"{key}.{sample}.runtime"}
                report.error("runtime-contradicted", message, value=f"{runtime:g}, mean {mean:g}", **where)
                runtime = None
            row = {
                "node_id": f"{level}/{key}/{sample}",
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
                "program": f"level_{level}_problem_{key}_sample_{sample}_kernel.py",
                "reference_program": _text_of(run, references, level, number),
            }
            yield row


def _text_of(run: RunFiles, folder: Path | None, level: int | None, number: int | None) -> str | None:
    """The reference program of a problem."""
    found = [] if folder is None else sorted(folder.glob(f"level{level}/{number}_*.py"))
    data = run.whole(found[0]) if found else None
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else None


def _records(run: RunFiles) -> Iterator[Record]:
    """An evaluation per result."""
    path = run.log(_RESULTS)
    results = run.json(path) if path is not None else None
    if path is None or not isinstance(results, dict):
        if isinstance(results, Finding):
            yield results
        yield wrong_format(run, KERNELBENCH, path)
        return
    report = Report()
    columns = columns_of({**_COLUMNS, "reference_code": "reference_program"}, run.name(path))
    assert not isinstance(columns, Finding)  # noqa: S101 - the mapping is ours
    if run.settings.get("baseline") is None and not any(
        "ref_runtime" in object_of(r) for v in results.values() for r in (v if isinstance(v, list) else [v])
    ):
        message = "runtimes alone give no speedup: the recipe names no timing baseline of the same GPU"
        fix = 'baseline = "results/timing/GPU/baseline_time_torch.json" in the [[source]]'
        report.warning("no-baseline", message, file=run.name(path), field="baseline", fix=fix)
    if _level(run) is None and run.settings.get("level") is None:
        report.error(
            "no-level", "nothing says which level the run is of", file=run.name(path), fix="level = 1 in the [[source]]"
        )
    yield from judged(run, path, report, columns, ((path, row) for row in _rows(run, results, report)))


KERNELBENCH: Final = ReaderSpec(
    name="kernelbench",
    title="Runs of KernelBench: eval_results.json with the programs beside it",
    expects="run directories with eval_results.json; baseline names the timing file of the same GPU, problems the folder with "
    "level1/*.py and so on",
    files=(_RESULTS, "level_*_kernel.py", "generation_config.yaml", "eval_config.yaml"),
    version=2,
    records=_records,
    also=_also,
    foreign=True,
)
