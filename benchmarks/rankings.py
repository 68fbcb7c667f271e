"""Every baseline, every control and the entries of a board in replay.

Whether that ranks them as their scores do.

    python benchmarks/rankings.py ARCHIVE [--board leaderboard] [--split eval]

For each forecaster of a split's rows: CRPS, pair accuracy, speedup recovered, and replay
(`kernel-archive replay --split ...`): the area between random and oracle by policy. Then Spearman's
rank correlation between the columns, over all forecasters and over those that are no control. A
bootstrap over worlds is behind the intervals of the replay.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from kernel_archive.archive.natural import rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.registry import BASELINES, forecasts_by_name
from kernel_archive.scoring import load_split, read_forecasts, score
from kernel_archive.scoring.controls import CUES
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.metrics import METRICS
from kernel_archive.scoring.replay import ReplayOptions, replay
from kernel_archive.scoring.worlds import load_worlds

SCORED = ("crps", "pair_accuracy", "speedup_recovered")
REPLAYED = ("expected",)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--board", type=Path, default=Path("leaderboard"))
    parser.add_argument("--split", default="eval")
    args = parser.parse_args()
    archive = open_archive(args.archive)
    worlds = load_worlds(archive, split=args.split)
    target, rows = load_split(archive, args.split), worlds.target()
    at = [rows.index[row] for row in target.row_ids]
    lines: dict[str, tuple[bool, list[float], list[str]]] = {}

    def add(name: str, replayed: Forecasts, *, control: bool) -> None:
        cast = Forecasts.from_arrays(target, replayed.probabilities[:, at], name=name)
        metrics = score(target, cast, draws=0).metrics
        done = {
            p.policy: p
            for p in replay(worlds, replayed, ReplayOptions(policies=REPLAYED, draws=1000)).policies
        }
        values = [metrics[m].mean for m in SCORED] + [done[p].rescaled.mean for p in REPLAYED]
        texts = [f"{v:.3f}" for v in values[:2]] + [f"{values[2]:.1f}"]
        texts += [
            f"{f.mean:.0f} ({f.low:.0f} to {f.high:.0f})"
            for f in (done[p].rescaled for p in REPLAYED)
        ]
        lines[name] = (control, values, [*texts, f"{done['expected'].to_near.mean:.0f} %"])

    for name in [*BASELINES, *CUES]:
        add(name, forecasts_by_name(name, archive, worlds), control=name in CUES)
    for folder in sorted((args.board / "submissions").iterdir()):
        if f'split = "{args.split}"' in (folder / "submission.toml").read_text():
            add(
                folder.name,
                read_forecasts(folder / "forecasts.jsonl.zst", rows, name=folder.name),
                control=False,
            )
    print(
        "| forecasts |",
        " | ".join([*SCORED, *(f"replay: {p}" for p in REPLAYED), "measured until 95 %"]),
        "|",
    )
    print("| --- |" + " ---: |" * (len(SCORED) + len(REPLAYED) + 1))
    for name, (control, _, texts) in sorted(lines.items(), key=lambda item: -item[1][1][3]):
        print("|", name if control else f"**{name}**", "|", " | ".join(texts), "|")
    signs = [1 if METRICS[m].better == "higher" else -1 for m in SCORED] + [1] * len(REPLAYED)
    columns = [*SCORED, *REPLAYED]
    for title, wanted in (("all", (True, False)), ("no controls", (False,))):
        values = np.array([v for c, v, _ in lines.values() if c in wanted]) * signs
        found = [
            f"{c} {rank_correlation(values[:, i], values[:, 3]):.2f}"
            for i, c in enumerate(columns)
            if i != 3
        ]
        print(
            f"\nSpearman with replay (expected), {title}, {len(values)} forecasters: "
            f"{', '.join(found)}"
        )


if __name__ == "__main__":
    main()
