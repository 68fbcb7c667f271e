"""Forecast a stranger's archive with baselines that learned from the shipped one.

    python benchmarks/outside.py SHIPPED STRANGER [SPLIT] --out FOLDER

Writes a forecast file for each baseline, to be scored with
``kernel-archive score FOLDER/trees.jsonl --archive STRANGER``. ``dry-run`` needs the table
``launches`` in both archives: name the file of ``kernel-measure dry-run`` in the stranger's recipe.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.launches import load_launch_features
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.baselines.registry import BASELINES, BaselineForecasts, forecast_lines
from kernel_archive.scoring.asked import load_asked_pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shipped", type=Path)
    parser.add_argument("stranger", type=Path)
    parser.add_argument("split", nargs="?", default="eval")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shipped, stranger = open_archive(arguments.shipped), open_archive(arguments.stranger)
    training = load_training_pairs(shipped)
    asked = load_asked_pairs(stranger, arguments.split)
    features = load_launch_features(
        shipped, [*training.anchors, *training.candidates], training.gpus
    )
    theirs = load_launch_features(stranger, [*asked.anchors, *asked.candidates], asked.gpus)
    training = replace(training, launch_features=features)
    asked = replace(asked, launch_features=theirs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, baseline in BASELINES.items():
        if baseline.reads_launches and not theirs:
            print(f"{name}: the stranger's archive has no dry runs")
            continue
        masses = baseline.forecast(asked, training, 0)
        forecasts = BaselineForecasts(asked.split, asked.row_ids, masses, len(training))
        path = arguments.out / f"{name}.jsonl"
        path.write_bytes(b"".join(forecast_lines(forecasts)))
        print(f"{path}: {len(asked.row_ids)} rows, {len(training)} training pairs")


if __name__ == "__main__":
    main()
