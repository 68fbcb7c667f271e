"""What a run gave: forecast files, tables and curves for a page, and, with ``--board``.

The entries.

Reads what run.py left (``answers-NAME.jsonl.gz``, ``logs.tar.gz``) and the archive that was asked
about. Answers to rows that the archive does not have are counted and left out, so that a run can be
scored on a later version; rows without an answer count as even bins, and the entries say how many.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from lines import read_lines

import kernel_archive
from kernel_archive.board import add_submission
from kernel_archive.board.submissions import ModelFacts
from kernel_archive.llm.answers import import_answers
from kernel_archive.llm.questions import load_questions
from kernel_archive.scoring import METRICS, load_split, read_forecasts, score
from kernel_archive.storage import write_atomically

#: Name of a run -> its title, in the order of the tables.
TITLES = {
    "base": "base",
    "supervised": "supervised",
    "correctness": "GRPO, correctness",
    "brier": "GRPO, +Brier",
    "crps": "GRPO, +CRPS",
    "log": "GRPO, log score",
}
COLUMNS = {
    "eval": (
        "crps_skill",
        "pair_accuracy",
        "speedup_recovered",
        "ece",
        "forecast_error",
        "confidence_monotonicity",
    ),
    "discovery": (
        "crps_skill",
        "average_precision_1.25",
        "lift_1.25",
        "ece",
        "forecast_error",
        "confidence_monotonicity",
    ),
}
#: Curve -> fields of a logged step, the first that is there.
CURVES = {
    "mean reward": ("reward",),
    "CRPS of the answers": ("forecast/crps",),
    "confidence": ("forecast/confidence",),
    "accuracy": ("forecast/accuracy",),
    "answers that parse": ("forecast/parsed",),
    "groups of one reward": ("frac_reward_zero_std",),
}


def forecasts(archive: Any, answers: Path, split: str, out: Path) -> tuple[Path, int, int]:
    """The forecast file of a split, how many answers were to rows that are gone.

    How many rows have none.
    """
    known = set(load_questions(archive, split).asked.row_ids)
    given = [line for line in read_lines(answers) if line["split"] == split]
    mine = [line for line in given if line["custom_id"].rsplit("-", 2)[0] in known]
    unasked = known - {line["custom_id"].rsplit("-", 2)[0] for line in mine}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "answers.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in mine))
        made, _ = import_answers([path], archive, split).forecast_file()
    write_atomically(out, made)
    return out, len(given) - len(mine), len(unasked)


def cell(record: Any, name: str) -> str:
    """A figure with its interval; a star where it does not beat the best control by it."""
    figure, info = record.metrics[name], METRICS[name]
    if figure.mean is None:
        return "-"
    span = (
        ""
        if figure.low is None
        else f" ({figure.low:.{info.decimals}f} to {figure.high:.{info.decimals}f})"
    )
    return f"{info.format(figure.mean)}{span}{'' if record.beats_control.get(name, True) else ' *'}"


def table(split: str, target: Any, scored: dict[str, Any]) -> str:
    """One row for each run, and the best control's figures above them."""
    names = COLUMNS[target.kind]
    record = next(iter(scored.values()))
    control = next(c for c in record.controls if c.name == record.best_controls["crps"])
    heads = [METRICS[name].title for name in names] + [
        "tokens of an answer",
        "GPU ms an answer",
        "parsed",
    ]
    lines = [
        f"`{split}`, {len(target)} rows, best control `{control.name}`:",
        "",
        f"| model | {' | '.join(heads)} |",
        "|" + " --- |" * (len(heads) + 1),
        f"| *{control.name}* | "
        + " | ".join(
            "-" if control.metrics.get(n) is None else METRICS[n].format(control.metrics[n])
            for n in names
        )
        + " | - | - | - |",
    ]
    for run, record in scored.items():
        facts = record.forecasts
        lines.append(
            f"| **{TITLES[run]}** | {' | '.join(cell(record, name) for name in names)} | "
            f"{facts.output_tokens / facts.n_present:.0f} | {1000 * facts.latency_s:.0f} | "
            f"{100 * facts.parse_rate:.1f} % |"
        )
    return "\n".join(lines)


def verdict(split: str, scored: dict[str, Any]) -> str:
    """What was learned beyond the best control, in words that follow from the intervals."""
    better = [
        TITLES[run]
        for run, record in scored.items()
        if (record.metrics["crps_skill"].low or -1) > 0
    ]
    if better:
        return (
            f"On `{split}` the CRPS beats the best control by its interval for: "
            f"{', '.join(better)}."
        )
    best, record = max(scored.items(), key=lambda item: item[1].metrics["crps_skill"].mean)
    skill = record.metrics["crps_skill"]
    return (
        f"On `{split}` no run beats the best control by CRPS; the nearest, {TITLES[best]}, has "
        "skill "
        f"{skill.mean:.3f} ({skill.low:.3f} to {skill.high:.3f})."
    )


def curves(logs: Path) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Name of a run -> its logged steps; and the step of GRPO that forecast."""
    made: dict[str, list[dict[str, Any]]] = {}
    step = 0
    with tarfile.open(logs) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None and member.name == "step.txt":
                step = int(file.read())
            elif file is not None and member.name.endswith("/log.jsonl"):
                steps = [json.loads(line) for line in file.read().splitlines()]
                made[member.name.split("/")[0].removeprefix("grpo-")] = steps
    return {run: made[run] for run in TITLES if run in made}, step


def plain(logged: dict[str, list[dict[str, Any]]]) -> str:
    """The logged steps as lines, with what is drawn and what shows whether learning went well."""
    fields = [
        "step",
        "seconds",
        "loss",
        "reward",
        "reward_std",
        "grad_norm",
        "entropy",
        "completions/mean_length",
    ]
    fields += [name for names in CURVES.values() for name in names if name not in fields]
    lines = [
        json.dumps({"run": run} | {f: round(s[f], 5) for f in fields if s.get(f) is not None})
        for run, steps in logged.items()
        for s in steps
        if "loss" in s
    ]
    return "\n".join(lines) + "\n"


def draw(logged: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Reward and calibration by step, one line for each reward."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernel_archive"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.6), sharex=True, layout="constrained")
    for axis, (title, fields) in zip(axes.flat, CURVES.items(), strict=True):
        for run, steps in logged.items():
            points = [(s["step"], s[f]) for s in steps for f in fields if f in s]
            if run in TITLES and points and run != "supervised":
                axis.plot(*zip(*points, strict=True), label=TITLES[run], linewidth=1.2)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
    for axis in axes[1]:
        axis.set_xlabel("step", fontsize=9)
    figure.legend(
        *axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Score every run on every split and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="Folder with answers and logs.")
    parser.add_argument(
        "--archive", help="Directory of the archive.  [default: gpu-forecasters/kernels]"
    )
    parser.add_argument(
        "--page", type=Path, help="Page whose part between the two marks is written anew."
    )
    parser.add_argument("--curves", type=Path, help="Picture of the curves, .svg.")
    parser.add_argument("--steps", type=Path, help="File for the figures of every step, .jsonl.")
    parser.add_argument("--board", type=Path, help="Add the entries to this board.")
    parser.add_argument("--draws", type=int, default=10_000)
    given = parser.parse_args()
    archive = kernel_archive.open_archive(given.archive)
    logged, step = curves(given.results / "logs.tar.gz")
    parts: list[str] = []
    runs = [run for run in TITLES if (given.results / f"answers-{run}.jsonl.gz").exists()]
    for split in ("eval", "eval_problems", "eval_cuda", "discovery"):
        target, scored = load_split(archive, split), {}
        for run in runs:
            path, gone, unasked = forecasts(
                archive,
                given.results / f"answers-{run}.jsonl.gz",
                split,
                given.results / f"{run}-{split}.jsonl",
            )
            scored[run] = score(target, read_forecasts(path, target), draws=given.draws)
            print(
                f"{run} {split}: {gone} answers to rows that are gone, {unasked} rows without "
                f"any; CRPS skill {cell(scored[run], 'crps_skill')}",
                flush=True,
            )
            if given.board:
                enter(run, path, target, given.board, step, unasked)
        parts += ["## " + split, "", verdict(split, scored), "", table(split, target, scored), ""]
    parts += [
        "## Steps",
        "",
        f"The rewards forecast after step {step}, the last that all of them reached.",
        "",
        "| run | steps | seconds | reward, first 5 steps | reward, last 5 steps |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run, lines in logged.items():
        rewards = [s["reward"] for s in lines if "reward" in s]
        ends = [
            f"{sum(part) / len(part):.3f}" if part else "-" for part in (rewards[:5], rewards[-5:])
        ]
        steps, seconds = (max((s[key] for s in lines), default=0) for key in ("step", "seconds"))
        parts.append(f"| {TITLES[run]} | {steps} | {seconds:.0f} | {ends[0]} | {ends[1]} |")
    if given.curves:
        draw(logged, given.curves)
    if given.steps:
        given.steps.write_text(plain(logged))
    if given.page:
        text = given.page.read_text()
        before, _, rest = text.partition("<!-- results -->\n")
        after = rest.partition("<!-- end of results -->")[2]
        made = "\n".join(parts)
        given.page.write_text(
            f"{before}<!-- results -->\n\n{made}\n\n<!-- end of results -->{after}"
        )


def enter(run: str, path: Path, target: Any, board: Path, step: int, unasked: int) -> None:
    """Add the entry of a run."""
    trained = run != "base"
    facts = ModelFacts(
        open_weights=True,
        saw_archive="yes" if trained else "no",
    )
    notes = "A small model, to show that the rewards train: examples/train." + (
        (
            " Supervised on the training "
            f"pairs{'' if run == 'supervised' else f', then {step} steps of GRPO ({run} reward)'}."
        )
        if trained
        else ""
    )
    if unasked:
        notes += (
            f" {unasked} rows have no answer and count as even bins: they came to the "
            "archive after the run, or it was cut off before them."
        )
    add_submission(
        path,
        target,
        name=f"Gemma 3 270M, {TITLES[run]}",
        model="gemma-3-270m",
        notes=notes,
        facts=facts,
        board=board,
    )


if __name__ == "__main__":
    main()
