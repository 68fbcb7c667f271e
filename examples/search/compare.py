"""Forecasts made ahead for the arms of ``compare.toml``.

python examples/search/compare.py forecasts gpu-forecasters/kernels   # writes forecasts/boosted.jsonl beside the plan
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from kernel_archive.ids import program_id
from kernel_archive.measure.providers import Templates
from kernel_archive.measure.surrogate import Surrogate, SurrogatePlan
from kernel_archive.measure.tasks import get_task

HERE = Path(__file__).parent


def programs(task: str) -> list[str]:
    """Every program that the templates of a task can give."""
    templates = Templates(HERE / "programs" / task)
    codes = []
    for name, knobs in templates.algorithms.items():
        for values in itertools.product(*(dict.fromkeys(choices) for choices in knobs.values())):
            codes.append(templates.render({"algo": name, "knobs": dict(zip(knobs, values, strict=True))}))
    return codes


def forecasts(archive: Path) -> None:
    """Forecast every program of every task, so that the machine with the GPU needs neither archive nor scikit-learn."""
    folder = HERE / "forecasts"
    folder.mkdir(exist_ok=True)
    plan = SurrogatePlan(forecaster="boosted", archive=str(archive.resolve()))
    with (folder / "boosted.jsonl").open("w") as file:
        for task in sorted(p.name for p in (HERE / "programs").iterdir()):
            codes = programs(task)
            model = Surrogate(plan, HERE, task=task, gpu="H200", reference=get_task(task).reference)
            for code, cast in zip(codes, model.forecast(codes), strict=True):
                file.write(json.dumps({"row_id": program_id(code), "probabilities": cast.probabilities}) + "\n")
            print(f"{task}: {len(codes)} programs; learnt from {model.saw}")


if __name__ == "__main__":
    {"forecasts": forecasts}[sys.argv[1]](Path(sys.argv[2]))
