"""For ``kernel-archive init``: runs of KernelBench, OpenEvolve and our own formats, recognised by names and contents of their files."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from kernel_archive.archive import seen
from kernel_archive.archive.guess import guess
from kernel_archive.errors import printable
from kernel_archive.gpus import canonical_gpu
from kernel_archive.readers import READERS
from kernel_archive.readers.measurements import MEASUREMENTS
from kernel_archive.readers.openevolve import OPENEVOLVE
from kernel_archive.readers.sniff import looks_like
from kernel_archive.readers.values import object_of

if TYPE_CHECKING:
    from pathlib import Path


def kernelbench(files: list[Path]) -> seen.Look | None:
    """Runs of KernelBench among some files, with the baselines and reference programs that belong to them."""
    results = list(_kernelbench_runs(files).values())
    if not results:
        return None
    sources: list[dict[str, Any]] = []
    open_: dict[str, str] = {}
    problems = next(
        (p.parent.parent for p in files if p.suffix == ".py" and re.fullmatch(r"level\d", p.parent.name)), None
    )
    baselines = {path: gpu for path in files if path.suffix == ".json" and (gpu := _baseline_gpu(path)) is not None}
    for path in results:
        data = seen.run_of(path, "kernelbench").json(path)
        if not isinstance(data, dict):
            open_[f"run {path.parent.name}"] = (
                f"{path.name} of this run cannot be read: get it again, or take its [[source]] out"
            )
        hardware = re.search(r'"hardware":\s*"([^"]+)"', json.dumps(data)) if isinstance(data, dict) else None
        gpu = canonical_gpu(hardware[1]) if hardware else None
        known = seen.plain_name(path) == "eval_results.json" or "_eval_result.json" in path.name
        source: dict[str, Any] = {"path": str(path.parent if known else path), "format": "kernelbench"}
        results_of = [path, *islice(path.parent.glob("*_eval_result.json"), seen.HEAD)]
        own = any(
            re.search(rb'"ref_runtime":\s*0*\.?0*[1-9]', seen.run_of(p, "kernelbench").head(p, 1 << 20))
            for p in results_of
        )
        fitting = [p for p, g in baselines.items() if gpu is None or canonical_gpu(g) == gpu]
        if fitting:
            source["baseline"] = str(
                min(fitting, key=lambda p: ("compile" in p.name, p.name != "baseline_time_torch.json", p.name))
            )
        elif not own:
            of = f" of {gpu}" if gpu else ""
            open_["baseline"] = (
                f"runtimes alone give no speedup: name the timing baseline{of} (results/timing/GPU/baseline_time_torch.json)"
            )
        if problems is not None:
            source["problems"] = str(problems)
        else:
            open_["problems"] = (
                "the folder with the reference programs (level1/1_*.py ...): without them forecasters see the candidate alone"
            )
        if not any(path.parent.glob("level_*_problem_*_kernel.py")):
            open_["programs"] = (
                f"no level_*_problem_*_sample_*_kernel.py beside {path.name}: the programs themselves are missing"
            )
        if hardware is None and isinstance(data, dict):
            open_["gpu"] = "the GPU, which the results do not name"
        sources.append({**source, "generation_method": "sampling"})
    return seen.Look(found=f"{len(results)} run(s) of KernelBench ({_listed(results)})", sources=sources, open=open_)


def _kernelbench_runs(files: list[Path]) -> dict[Path, Path]:
    """Folder -> the file with its results: of the known name, else one for each sample, else one beside the programs."""
    runs = {path.parent: path for path in files if seen.plain_name(path) == "eval_results.json"}
    beside = {path.parent for path in files if re.fullmatch(r"level_\d+_problem_\d+_sample_\d+_kernel\.py", path.name)}
    for path in files:
        if re.fullmatch(r"level_\d+_problem_\d+_sample_\d+_eval_result\.json", seen.plain_name(path)):
            runs.setdefault(path.parent, path)
    for path in files:
        if path.suffix == ".json" and path.parent in beside - runs.keys():
            head = seen.run_of(path, "kernelbench").head(path, 1 << 16)
            if b'"compiled"' in head and b'"correctness"' in head:
                runs[path.parent] = path
    return runs


def _listed(paths: list[Path]) -> str:
    """The names of some files, each once."""
    names = list(dict.fromkeys("*_eval_result.json" if "_eval_result.json" in p.name else p.name for p in paths))
    return ", ".join(printable(name, 40) for name in names[:3])


def _baseline_gpu(path: Path) -> str | None:
    """The GPU of a timing baseline, empty where it names none; ``None`` for what is no baseline."""
    try:
        head = path.read_bytes()[: 1 << 20] if path.stat().st_size < 1 << 24 else b""
    except OSError:
        return None
    if not re.match(rb'\s*\{\s*"level\d"', head):
        return None
    found = re.search(rb'"hardware":\s*"([^"]+)"', head)
    return found[1].decode("utf-8", "replace") if found else ""


def openevolve(files: list[Path]) -> seen.Look | None:
    """Runs of OpenEvolve and its relatives among some files."""
    programs = [path for path in files if path.parent.name == "programs" and path.suffix == ".json"]
    runs = sorted({_evolution_root(path) for path in programs})
    if not runs:
        return None
    rows = [
        row for path in programs[-seen.HEAD :] if isinstance(row := seen.run_of(path, "openevolve").json(path), dict)
    ]
    if not any("code" in row and "metrics" in row for row in rows):
        return None
    metrics = [object_of(row.get("metrics")) for row in rows]
    guessed = guess([{"metrics": each} for each in metrics])
    columns = {
        ours: rule
        for ours, rule in guessed.columns.items()
        if ours in ("speedup", "runtime", "reference_runtime", "correct", "compiled")
    }
    if "speedup" in columns and "." in str(columns["speedup"]) and columns["speedup"].endswith(("score", ".x")):
        del columns["speedup"]
    open_ = {key: text for key, text in guessed.open.items() if "metrics" in key}
    source: dict[str, Any] = {"format": "openevolve", "columns": columns, "generation_method": "evolution"}
    if "speedup" not in columns and "reference_runtime" not in columns:
        source["reference"] = "root"
        if "runtime" not in columns:
            names = sorted({str(name) for each in metrics for name in each})
            open_["columns"] = (
                f"which metric is the speedup or a time: {', '.join(names[:15])} (a combined_score is neither)"
            )
    elif "reference_runtime" not in columns:
        open_["reference"] = (
            'the file with the reference program, or "root" where the first program is it; without one forecasters see the candidate alone'
        )
    open_ |= {"gpu": "the GPU, which checkpoints do not name", "problem": "what the programs compute"}
    sources = [{"path": str(run), **source} for run in runs]
    if len(runs) > 1 and (one := seen.common_pattern(runs, "p")) is not None:
        pattern, folders = one
        sources = [{"path": pattern, **source}]
        if seen.are_problems(folders.values()):
            sources[0]["problem"] = "{p}"
            open_["problem"] = seen.taken_for_problems(folders.values(), "folders' names")
    return seen.Look(
        found=f"{len(programs):,} program files of OpenEvolve checkpoints in {len(runs)} run(s)",
        sources=sources,
        open=open_,
        unused=sorted(
            {*guessed.unused}
            - {rule if isinstance(rule, str) else str(rule.get("column")) for rule in columns.values()}
        ),
    )


def _evolution_root(path: Path) -> Path:
    """The run that a program's file belongs to, as the reader expects it."""
    checkpoint = path.parent.parent
    outer = checkpoint.parent if checkpoint.name.startswith("checkpoint_") else None
    return checkpoint if outer is None else outer.parent if outer.name == "checkpoints" else outer


def own_format(place: Path, files: list[Path]) -> seen.Look | None:
    """A format of which a single file tells what it is: the logs of searches."""
    others = {name: spec for name, spec in READERS.items() if spec not in (MEASUREMENTS, OPENEVOLVE)}
    for path in files[:200]:
        if not seen.plain_name(path).endswith(seen.TABLES):
            continue
        said = looks_like(seen.run_of(path), path).split(" ")[0]
        spec = others.get(said)
        if spec is None:
            continue
        named = [p for p in files if p.name == path.name]
        in_runs = bool(spec.files) and seen.plain_name(path) in spec.files
        if place.is_file() or not in_runs:
            pattern = str(path) if place.is_file() else str(path.parent / f"*{path.suffix}")
        else:
            pattern = str(path.parent if len(named) == 1 else path.parent.parent / "*")
        source = {"path": pattern, "format": said, "generation_method": "tree_search"}
        return seen.Look(
            found=f"{spec.title} ({path.name})",
            sources=[source],
            open={"gpu": "the GPU, where the logs do not name it"},
        )
    return None
