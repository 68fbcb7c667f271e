"""A mutator outside the process, for tests: answers the questions of searches by rule."""

from __future__ import annotations

from pathlib import Path

import msgspec
from support.cheats import NUMPY_HONEST

from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles
from kernel_measure.plan import read_plan
from kernel_measure.record import record
from kernel_measure.station import StationOptions

__all__ = ["answer", "read_run", "run_answered", "run_json", "run_plan"]


def answer(out) -> int:
    """Answer every open question under a directory; every fourth program is wrong, every fifth missing."""  # noqa: E501
    count = 0
    for question in sorted(out.rglob("questions/*.json")):
        folder = question.parents[1] / "proposals"
        folder.mkdir(exist_ok=True)
        if any(folder.glob(f"{question.stem}.*")):
            continue
        number = sum(1 for _ in folder.iterdir())
        code = NUMPY_HONEST + f"\n# {question.parents[1].name} {number}\n"
        if number % 4 == 3:
            code = code.replace("z[:, None], z", "z[:, None], z + 1")
        if number % 5 == 4:
            (folder / f"{question.stem}.json").write_bytes(msgspec.json.encode({"failed": "idle"}))
        else:
            (folder / f"{question.stem}.py").write_text(code)
        count += 1
    return count


def run_plan(plan, out, **how):
    """Record the plan in a file, or a plan, on the stand-in device; nobody answers."""
    places = {name: how.pop(name) for name in ("compilers", "cache") if name in how}
    plan = read_plan(plan) if isinstance(plan, Path) else plan
    return record(plan, out, StationOptions(device="standin", **places), wait=False, **how)


def run_answered(plan, out, **how):
    """Record and answer in turn until nothing is asked any more; counts all evaluations."""
    done = run_plan(plan, out, **how)
    while answer(out):
        more = run_plan(plan, out, **how)
        more.evaluations += done.evaluations
        done = more
    return done


def run_json(directory):
    """What ``run.json`` says."""
    return msgspec.json.decode((directory / "run.json").read_bytes())


def read_run(directory):
    """A run through the package's own reader, without findings: its evaluations, and the run."""
    spec = READERS["attempts" if (directory / "attempts.jsonl").exists() else "puct-events"]
    records = list(spec.read(RunFiles(directory, directory.parents[1], spec)))
    assert [r for r in records if type(r).__name__ == "Finding"] == []
    return [r for r in records if type(r).__name__ == "Evaluation"], records[-1]
