"""Do forecasts choose better edits? Compares the two arms of recorded searches.

    python benchmarks/searches.py builders/h200-search-2026-12/logs [--archive DIR]

The folder holds ``all/`` and ``forecast/``, the searches of the two arms, and ``unchosen/``, the
proposals that the forecaster passed over, measured afterwards. Prints Markdown: natural rates, the
best program over the measurements, and what other ways of choosing would have chosen. With an
archive that holds the searches, a program's speedup is its label, the median of all its
measurements, and the baseline `dry-run` chooses as well.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from kernel_archive.archive.open import Archive, open_archive
from kernel_archive.baselines.launches import load_launch_features
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.baselines.registry import BASELINES
from kernel_archive.ids import program_id
from kernel_archive.scoring.asked import load_asked_pairs
from kernel_archive.splits import SPLITS

#: A program that failed is worth nothing to a search.
FAILED = 0.0
ARMS = ("all", "forecast")


@dataclass
class Proposal:
    """One program that was proposed for a parent; ``speedup`` is 0 for a failure, x."""

    arm: str
    task: str
    step: int
    parent: str
    code: str
    chosen: bool = True
    expected: float | None = None
    guess: float | None = None
    dry_run: float | None = None
    outcome: str | None = None
    speedup: float | None = None
    parent_beside: float | None = None  # of the parent, where it was measured in the same log
    order: int = 0


@dataclass
class Search:
    """One arm on one task: the proposals, and the speedups and programs of nodes by id."""

    arm: str
    task: str
    proposals: list[Proposal]
    nodes: dict[str, float]
    codes: dict[str, str]

    def measured(self) -> list[Proposal]:
        """What the search itself measured, in order."""
        return sorted((p for p in self.proposals if p.order), key=lambda p: p.order)

    def best_after(self, count: int) -> float:
        """The best speedup after so many measurements, the starting program included."""
        root = next(iter(self.nodes.values()))
        return max([root, *(p.speedup or FAILED for p in self.measured()[:count])])


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a log, packed or not; none when there is no such file."""
    for name in (path, path.with_name(path.name + ".zst")):
        if name.exists():
            with pa.input_stream(str(name)) as stream:
                return [msgspec.json.decode(line) for line in stream.read().splitlines()]
    return []


def result(evaluation: dict[str, Any]) -> tuple[str, float]:
    """Outcome and speedup of a logged evaluation."""
    feedback = evaluation["observation"]["feedback"]
    return feedback["kind"], feedback.get("aggregated_speedup") or FAILED


def read_search(
    folder: Path, arm: str, later: dict[str, tuple[str, float, float | None]]
) -> Search:
    """Read one search.

    ``later`` are measurements of proposals that it passed over, by program, and of their parents.
    """
    task = folder.name.split("__")[0]
    guesses = {
        row["request_id"]: row["expected_speedup"] for row in lines(folder / "guesses.jsonl")
    }
    search, step, order = Search(arm, task, [], {}, {}), 0, itertools.count(1)
    asked: dict[str, str] = {}
    proposals: dict[str, Proposal] = {}
    requests: dict[str, tuple[str, str]] = {}
    for event in lines(folder / "events.jsonl"):
        key = event.get("request_id", "")
        match event["kind"]:
            case "search_initialized":
                root = event["root"]
                search.nodes[root["ulid"]] = result(root["evaluation"])[1]
                search.codes[root["ulid"]] = root["program_code"]
            case "step_started":
                step = event["step"]
            case "mutation_requested":
                asked[key] = event["parent_ulid"]
            case "mutation_completed":
                proposals[key] = Proposal(arm, task, step, asked[key], event["code"])
                proposals[key].guess = guesses.get(key)
            case "forecast_completed":
                proposals[key].expected = event["forecast"]["expected_speedup"]
            case "candidate_deferred":
                proposals[key].chosen = False
            case "evaluation_requested":
                requests[key] = event["from_mutation_request_id"], event["child_ulid"]
            case "evaluation_completed":
                proposal = proposals[requests[key][0]]
                proposal.outcome, proposal.speedup = result(event["evaluation"])
                proposal.order = next(order)
                search.nodes[requests[key][1]] = proposal.speedup
                search.codes[requests[key][1]] = proposal.code
    for proposal in proposals.values():
        if not proposal.chosen and proposal.code in later:
            proposal.outcome, proposal.speedup, proposal.parent_beside = later[proposal.code]
    search.proposals = list(proposals.values())
    return search


def read(folder: Path) -> list[Search]:
    """Read the arms of every task, of which there may be one alone.

    Of a program that was measured twice afterwards, the measurement with its parent counts.
    """
    later: dict[str, tuple[str, float, float | None]] = {}
    for run in sorted((folder / "unchosen").glob("*/*")):
        rows = lines(run / "attempts.jsonl")
        found = {row["attempt"]: result(row["evaluation"]) for row in rows}
        for row in rows:
            parent = found.get(row.get("parent_attempt"))
            if parent or row["code"] not in later:
                later[row["code"]] = *found[row["attempt"]], parent[1] if parent else None
    return [
        read_search(run, arm, later)
        for arm in ARMS
        for run in sorted((folder / arm / "tree_search").glob("*__*"))
    ]


def table(columns: list[str], rows: list[list[Any]]) -> None:
    """Print a Markdown table; numbers with three digits."""
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        cells = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        print("| " + " | ".join(cells) + " |")
    print()


def rates(searches: list[Search]) -> None:
    """Natural rates: what share of the measured children passes and beats its parent.

    First of each arm, then of both together, where the children that they share count once.
    """
    of_arm: dict[tuple[str, ...], dict[str, float]] = {}
    pooled: dict[tuple[str, ...], dict[str, float]] = {}
    for search in searches:
        for p in (p for p in search.proposals if p.outcome is not None):
            gain = (p.speedup or FAILED) / (p.parent_beside or search.nodes[p.parent])
            of_arm.setdefault((search.task, search.arm), {})[p.code] = gain
            pooled.setdefault((search.task,), {}).setdefault(p.code, gain)
    for columns, groups in ((["task", "arm"], of_arm), (["problem"], pooled)):
        rows = []
        for names, gains in sorted(groups.items()):
            shares = (
                sum(gain > over for gain in gains.values()) / len(gains)
                for over in (0.0, 1.05, 1.25, 1.5, 2.0)
            )
            rows.append([*names, len(gains), *(f"{share:.0%}" for share in shares)])
        table([*columns, "children", "pass", "> 1.05x", "> 1.25x", "> 1.5x", "> 2x"], rows)


def progress(searches: list[Search]) -> None:
    """The best program after so many measurements, x over the reference."""
    counts = [0, 4, 8, 12, 16, 20, 28, 36]
    longest = max(len(s.measured()) for s in searches)
    counts = [n for n in counts if n <= longest]
    rows: list[list[Any]] = []
    for s in searches:
        known = [s.best_after(n) if n <= len(s.measured()) else "" for n in counts]
        rows.append([s.task, s.arm, *known, len(s.proposals)])
    table(["task", "arm", *(f"after {n}" for n in counts), "proposals"], rows)
    ratios = []
    arms = {(s.task, s.arm): s for s in searches}
    for task in sorted({s.task for s in searches}):
        if not all((task, arm) in arms for arm in ARMS):
            continue
        one, other = (arms[task, arm] for arm in ARMS)
        count = min(len(one.measured()), len(other.measured()))
        ratios.append(other.best_after(count) / one.best_after(count))
        print(f"{task}: forecast / all after {count} measurements = {ratios[-1]:.3f}")
    if not ratios:
        return
    logs = [math.log(r) for r in ratios]
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(10_000))
    low, high = (math.exp(means[round(share * len(means))]) for share in (0.025, 0.975))
    print(
        f"geometric mean over {len(ratios)} tasks: {statistics.geometric_mean(ratios):.3f} "
        f"({low:.3f} to {high:.3f}, bootstrap over tasks)\n"
    )


def ranked(group: list[Proposal], value: str) -> list[float]:
    """Speedups of a group in the order in which a number of the proposals puts them."""
    order = sorted(group, key=lambda p: -(getattr(p, value) or 0.0))
    return [p.speedup or FAILED for p in order]


def judge(order: list[float], best: list[float], count: int) -> tuple[float, float, float]:
    """Best of the chosen over the best of all, share of the best among them, shares that pass."""
    chosen = order[:count]
    regret = max(chosen) / best[0] if best[0] else 1.0
    hits = sum(speedup >= best[count - 1] and speedup > 0 for speedup in chosen) / count
    return regret, min(hits, 1.0), sum(s > 0 for s in chosen) / count


def siblings_in_order(group: list[Proposal], value: str) -> tuple[float, int]:
    """Pairs of a group that a number puts in the right order (a tie half), and all that count.

    Pairs count whose speedups differ by more than 1.05x, failures included.
    """
    right, n = 0.0, 0
    for one, other in itertools.combinations(group, 2):
        slow, fast = sorted((one, other), key=lambda p: p.speedup or FAILED)
        if (fast.speedup or FAILED) > 1.05 * (slow.speedup or FAILED):
            n += 1
            apart = (getattr(fast, value) or 0.0) - (getattr(slow, value) or 0.0)
            right += 1.0 if apart > 0 else 0.5 if apart == 0 else 0.0
    return right, n


def take_labels(searches: list[Search], archive: Archive) -> None:
    """Take the archive's label of each program for its speedup; one without a label failed."""
    rows = archive.sql("SELECT problem, program_id, speedup FROM kernels").to_pylist()
    labels = {(row["problem"], row["program_id"]): row["speedup"] for row in rows}
    for search in searches:
        for node, code in search.codes.items():
            search.nodes[node] = labels.get((search.task, program_id(code)), FAILED)
        for p in search.proposals:
            p.parent_beside = None
            if p.outcome is not None:
                p.speedup = labels.get((search.task, program_id(p.code)), FAILED)


def dry_run(searches: list[Search], archive: Archive) -> None:
    """Have the baseline forecast every proposal of both arms, those that failed included."""
    asked = load_asked_pairs(archive, "eval_search")
    anchors = dict(zip(asked.problems, asked.anchors, strict=True))
    proposals = [p for s in searches for p in s.proposals if s.task in anchors]
    n = len(proposals)
    every = replace(
        asked,
        problems=tuple(p.task for p in proposals),
        gpus=(asked.gpus[0],) * n,
        anchors=tuple(anchors[p.task] for p in proposals),
        candidates=tuple(p.code for p in proposals),
        row_ids=tuple(str(i) for i in range(n)),
        known=(None,) * n,
    )
    training = load_training_pairs(archive).of_builders(SPLITS["eval_search"])
    features = load_launch_features(
        archive, {*every.candidates, *training.candidates}, (*every.gpus, *training.gpus)
    )
    every = replace(every, launch_features=features)
    training = replace(training, launch_features=features)
    expected = BASELINES["dry-run"].forecast(every, training, 0) @ np.exp2(np.arange(8) / 2)
    for proposal, value in zip(proposals, expected.tolist(), strict=True):
        proposal.dry_run = value


def decisions(searches: list[Search], draws: int = 2000) -> None:
    """What else could have chosen four of the same sixteen."""
    groups: dict[tuple[str, int, str], list[Proposal]] = {}
    for search in searches:
        for p in search.proposals:
            if p.expected is not None:
                groups.setdefault((p.task, p.step, p.parent), []).append(p)
    known = [g for g in groups.values() if all(p.speedup is not None for p in g) and len(g) > 4]
    print(f"{len(known)} of {len(groups)} choices have every proposal measured.\n")
    if not known:
        return
    rng = random.Random(0)
    verdicts: dict[str, list[tuple[float, float, float]]] = {}
    for group in known:
        best = sorted((p.speedup or FAILED for p in group), reverse=True)
        ways = {
            "forecaster": ranked(group, "expected"),
            "mutator's own guess": ranked(group, "guess"),
            "dry-run": ranked(group, "dry_run"),
            "perfect": best,
        }
        if group[0].dry_run is None:
            ways.pop("dry-run")
        for name, order in ways.items():
            verdicts.setdefault(name, []).append(judge(order, best, 4))
        shuffled = [judge(rng.sample(best, len(best)), best, 4) for _ in range(draws)]
        mean = tuple(statistics.fmean(column) for column in zip(*shuffled, strict=True))
        verdicts.setdefault("random", []).append(mean)  # type: ignore[arg-type]
    rows = []
    for name, values in verdicts.items():
        regret, hits, passed = (list(column) for column in zip(*values, strict=True))
        spread = statistics.stdev(regret) / math.sqrt(len(regret)) if len(regret) > 1 else 0.0
        shares = (f"{statistics.fmean(column):.0%}" for column in (hits, passed))
        more = [a[0] - b[0] for a, b in zip(values, verdicts["random"], strict=True)]
        spread_more = statistics.stdev(more) / math.sqrt(len(more)) if len(more) > 1 else 0.0
        over = f"{statistics.fmean(more):+.3f} +- {spread_more:.3f}"
        rows.append([name, f"{statistics.fmean(regret):.3f} +- {spread:.3f}", over, *shares])
    heads = ["chooses", "best chosen / best of 16", "over random", "of the best four", "pass"]
    table(heads, rows)
    for value in ("expected", "guess", *(["dry_run"] if known[0][0].dry_run is not None else [])):
        counts = [siblings_in_order(group, value) for group in known]
        right, n = (sum(column) for column in zip(*counts, strict=True))
        print(f"siblings in the right order by {value}: {right / n:.3f} of {n} pairs")


def main() -> None:
    """Print the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--archive")
    options = parser.parse_args()
    searches = read(options.logs)
    if options.archive:
        archive = open_archive(options.archive)
        take_labels(searches, archive)
        dry_run(searches, archive)
    rates(searches)
    progress(searches)
    decisions(searches)


if __name__ == "__main__":
    main()
