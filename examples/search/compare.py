"""Forecasts made ahead for the arms of ``compare.toml``, and the figures of what was recorded.

python examples/search/compare.py forecasts gpu-forecasters/kernels   # writes forecasts/boosted.jsonl beside the plan
python examples/search/compare.py figures RUNS                        # tables in Markdown, from the logs alone
python examples/search/compare.py picture RUNS curves.svg             # the curves, by task (needs matplotlib)
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from kernel_archive.ids import program_id
from kernel_archive.measure.logs import read_lines
from kernel_archive.measure.providers import Templates
from kernel_archive.measure.runs import feedback_of
from kernel_archive.measure.surrogate import Surrogate, SurrogatePlan
from kernel_archive.measure.tasks import get_task
from kernel_archive.readers.events import EvaluationCompleted, Event, SearchInitialized

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


# ---------------------------------------------------------------- figures of what was recorded
def measured(run: Path) -> list[float]:
    """Speedups of a run in the order in which they were measured, the start first; 0 for a failure."""
    found = []
    for event in read_lines(run / "events.jsonl", Event):
        if isinstance(event, SearchInitialized):
            found.append(feedback_of(event.root.evaluation).aggregated_speedup or 0.0)
        elif isinstance(event, EvaluationCompleted):
            found.append(feedback_of(event.evaluation).aggregated_speedup or 0.0)
    return found


def chance(differences: np.ndarray) -> float:
    """Two-sided p of paired differences by exchanging signs, all of them."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = np.abs(signs @ differences)
    return float((means >= abs(differences.sum()) - 1e-12).mean())


ARMS = ("plain", "boosted", "keywords")
Curves = dict[tuple[str, int], dict[str, np.ndarray]]


def read(runs: Path) -> tuple[Curves, dict[str, float], list[str]]:
    """Best so far after each measurement by task and seed and arm, as long as all arms have; best of each task; the arms."""
    speeds: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(dict)
    for run in sorted((runs / "tree_search").iterdir()):
        task, _, name = run.name.partition("__")
        arm, _, seed = name.rpartition("_s")
        speeds[task, int(seed)][arm] = measured(run)
    arms = sorted({arm for found in speeds.values() for arm in found}, key=ARMS.index)
    top = {
        t: max(max(s) for (task, _), found in speeds.items() if task == t for s in found.values()) for t, _ in speeds
    }
    curves = {
        key: {arm: np.maximum.accumulate(s)[: min(map(len, found.values()))] for arm, s in found.items()}
        for key, found in speeds.items()
    }
    return curves, top, arms


def picture(runs: Path, path: Path) -> None:
    """The curves, a panel for each task: mean over the seeds, and from the least to the largest of them."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernel_archive"
    from matplotlib import pyplot as plt

    curves, top, arms = read(runs)
    columns = min(3, len(top))
    lines = -(-len(top) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.4 * columns, 2.8 * lines), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes.flat, top, strict=False):
        for arm in arms:
            mine = [c[arm] for (t, _), c in curves.items() if t == task]
            n = min(map(len, mine))
            rows = np.array([c[:n] for c in mine])
            (line,) = axis.plot(np.arange(1, n + 1), rows.mean(0), label=arm, linewidth=1.4)
            axis.fill_between(
                np.arange(1, n + 1), rows.min(0), rows.max(0), color=line.get_color(), alpha=0.18, linewidth=0
            )
        axis.set_title(task, fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("programs measured", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("best speedup so far, x", fontsize=9)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def figures(runs: Path) -> None:
    """Tables in Markdown: curves, final bests, measurements to reach the best of the search without a forecaster."""
    curves, top, arms = read(runs)
    common = min(len(c) for found in curves.values() for c in found.values())
    points = [m for m in (1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 60, 80, 100) if m <= common]
    print(
        "Best so far over the best of any run of the task, percent, mean over tasks (least and largest of the seeds):\n"
    )
    print("| measured |", " | ".join(arms), "|\n| ---: |" + " --- |" * len(arms))
    for m in points:
        cells = []
        for arm in arms:
            by_seed = [
                np.mean([100 * c[arm][m - 1] / top[t] for (t, s), c in curves.items() if s == seed])
                for seed in sorted({s for _, s in curves})
            ]
            cells.append(f"{np.mean(by_seed):.0f} ({min(by_seed):.0f} to {max(by_seed):.0f})")
        print(f"| {m} |", " | ".join(cells), "|")
    later = [f"{a}: measured until the best of plain (plain itself), by seed" for a in arms[1:]]
    print("\n| task | measured in each run |", " | ".join([*(f"{a}: best, x" for a in arms), *later]), "|")
    print("| --- | ---: |" + " --- |" * (2 * len(arms) - 1))
    for task in top:
        mine = {s: c for (t, s), c in curves.items() if t == task}
        n = [min(map(len, c.values())) for c in mine.values()]
        cells = [f"{min(n)} to {max(n)}" if min(n) < max(n) else str(n[0])]
        for arm in arms:
            best = [c[arm][-1] for c in mine.values()]
            cells.append(f"{np.mean(best):.2f} ({min(best):.2f} to {max(best):.2f})")
        for arm in arms[1:]:
            reached = []
            for c in mine.values():
                aim = c["plain"][-1]
                first = [str(int(np.argmax(c[a] >= aim)) + 1) if c[a][-1] >= aim else "not" for a in (arm, "plain")]
                reached.append(f"{first[0]} ({first[1]})")
            cells.append(", ".join(reached))
        print(f"| {task} |", " | ".join(cells), "|")
    keys = sorted(curves)
    for arm in arms[1:]:
        final = np.array([np.log2(curves[k][arm][-1] / curves[k]["plain"][-1]) for k in keys])
        area = np.array([np.mean(np.log2(curves[k][arm]) - np.log2(curves[k]["plain"])) for k in keys])
        by_task = [
            np.array([v[[i for i, k in enumerate(keys) if k[0] == t]].mean() for t in top]) for v in (final, area)
        ]
        print(f"\n{arm} over plain, {len(keys)} pairs of task and seed; p by exchanging signs of pairs, and of tasks:")
        for what, values, means in (
            ("final best", final, by_task[0]),
            ("best so far, mean over measurements", area, by_task[1]),
        ):
            print(
                f"- {what}: {2 ** values.mean():.3f}x (p {chance(values):.3f}, {chance(means):.3f}), better in "
                f"{int((values > 0).sum())}, worse in {int((values < 0).sum())}"
            )


if __name__ == "__main__":
    {"forecasts": forecasts, "figures": figures, "picture": picture}[sys.argv[1]](*map(Path, sys.argv[2:]))
