"""Decide which forecast that reads nothing is best, on the training programs alone.

    python benchmarks/zero.py ARCHIVE [--baselines dry-run] [--write] [--curve]

The candidates are the controls and the baselines that count or run dry. They forecast training
programs of authors that were left out (problems for ``eval_problems``), five folds, and the one
with the least CRPS is the zero of CRPS skill. Rows of an evaluation split are weighted so that
every bin counts alike, as the split has them; those of searches are not. ``--write`` stores the
winner's forecasts of the present rows in ``splits/zero``. Where a control wins, there or on the
split itself, the best control of the split is the zero: nothing that reads nothing is above 0.
``--curve`` scores `dry-run` on `eval` with 24, 48, ... natural programs.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.launches import load_launch_features
from kernel_archive.baselines.pairs import load_training_pairs
from kernel_archive.baselines.registry import BASELINES, make_baseline
from kernel_archive.program_text import language_of
from kernel_archive.scoring import Forecasts, Split, load_split, score
from kernel_archive.scoring.asked import AskedPairs, load_asked_pairs
from kernel_archive.scoring.controls import best_cue, controls_of
from kernel_archive.scoring.cues import read_cues
from kernel_archive.scoring.rules import crps
from kernel_archive.scoring.split import RowFacts
from kernel_archive.selection.definitions import load_definition
from kernel_archive.splits import FORECAST_SPLITS

FOLDS = 5
#: Of a split of outcomes the base rate is the zero, and no archive has transfers yet.
DECIDED = [
    name for name, spec in FORECAST_SPLITS.items() if not spec.asks_outcome and not spec.known
]
LANGUAGES = {"eval": ("triton",), "eval_cuda": ("cuda",)}


def asked_of(training, rows, spec):
    """Ask for training rows as a split asks for its own."""
    part = training.take(rows)
    shared = ["problems", "gpus", "anchors", "candidates", "row_ids"]
    shared += ["stated_gpus", "launch_features"]
    shown = {name: getattr(part, name) for name in shared}
    return AskedPairs(split=spec, scheme="paper", known=(None,) * len(rows), **shown)


def compared(archive, training, spec, baselines):
    """Weighted CRPS of every candidate on authors or problems that were left out."""
    training = training.of_builders(spec)
    languages = LANGUAGES.get(spec.name, ("triton", "cuda", "pytorch"))
    comparable = training.comparable_rows(spec)
    of_languages = [i for i in comparable if language_of(training.candidates[i]) in languages]
    if not of_languages:
        raise SystemExit(f"{spec.name}: no training pair is of its kind")
    rows = np.array(of_languages, dtype=np.intp)
    of_searches = bool(load_definition(spec.name).builders)
    by_problem = spec.name == "eval_problems" or of_searches
    units = np.array(training.problems if by_problem else training.authors)
    names = sorted(set(units[rows]))
    split = Split.from_arrays(
        row_ids=[training.row_ids[i] for i in rows],
        tasks=[training.problems[i] for i in rows],
        speedups=training.speedups[rows],
        split=spec.name,
        row_facts=_row_facts(archive, training.take(rows), spec),
    )
    counts = np.bincount(split.bins, minlength=9)
    even_bins = spec.kind == "eval" and not of_searches
    weights = 1.0 / counts[split.bins] if even_bins else np.ones(len(rows))

    def mean(p):
        return float(np.average(crps(probabilities=p, bins=split.bins), weights=weights))

    found = {c.name: mean(c.forecasts.probabilities[0]) for c in controls_of(split) if not c.bound}
    for name in baselines:
        p = np.empty((len(rows), 8))
        for fold in range(FOLDS):
            left = np.isin(units, names[fold::FOLDS])
            test = np.flatnonzero(left[rows])
            if not len(test):
                continue
            learn = training.take(np.flatnonzero(~left))
            asked = asked_of(training, rows[test], spec)
            p[test] = BASELINES[name].forecast(asked, learn, 0)
        found[name] = mean(p)
        print(f"  {spec.name} {name} {found[name]:.4f}", flush=True)
    return len(rows), dict(sorted(found.items(), key=lambda pair: pair[1]))


def _row_facts(archive, part, spec):
    where = part.problems, part.gpus
    cues = read_cues(archive, part.candidates, *where)
    if spec.kind == "close":
        first = read_cues(archive, part.anchors, *where)
        cues = {name: values - first[name] for name, values in cues.items()}
    return replace(RowFacts.plain(len(part)), cues=cues)


def curve(archive, training, features):
    """Pair accuracy and CRPS skill of `dry-run` on `eval` with some of the natural programs."""
    split, asked = load_split(archive, "eval"), load_asked_pairs(archive, "eval")
    asked = replace(asked, launch_features=features)
    rows = training.comparable_rows(asked.split)
    rows = rows[[language_of(training.candidates[i]) == "triton" for i in rows]]
    rows = rows[[training.problems[i] in set(asked.problems) for i in rows]]
    order = np.random.default_rng(0).permutation(rows)
    print("| programs | CRPS | pair accuracy | close pairs |\n| --- | --- | --- | --- |")
    doubled = (24 * 2**k for k in range(10))
    for n in [*(n for n in doubled if n < len(order)), len(order)]:
        p = BASELINES["dry-run"].forecast(asked, training.take(np.sort(order[:n])), 0)
        figures = score(split, Forecasts.from_arrays(split, p), draws=0).metrics
        cells = [f"{figures[name].mean:.3f}" for name in ("crps", "pair_accuracy", "close_pairs")]
        print(f"| {n} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--splits", nargs="*", default=DECIDED)
    parser.add_argument("--baselines", nargs="*", default=["prior", "trees", "dry-run"])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--curve", action="store_true")
    options = parser.parse_args()
    archive = open_archive(options.archive)
    training = load_training_pairs(archive)
    codes, gpus = {*training.anchors, *training.candidates}, {*training.gpus}
    if options.curve:
        asked = load_asked_pairs(archive, "eval")
        codes |= {*asked.candidates}
        gpus |= {*asked.gpus}
    features = load_launch_features(archive, codes, gpus)
    training = replace(training, launch_features=features)
    if options.curve:
        curve(archive, training, features)
        return
    for name in options.splits:
        n, found = compared(archive, training, FORECAST_SPLITS[name], options.baselines)
        best = next(iter(found))
        print(f"{name}, {n} programs: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()))
        if options.write and best in BASELINES:
            _write(archive, name, best, found)


def _write(archive, name, best, found):
    split = load_split(archive, name)
    made = make_baseline(best, archive, name)
    folder = Path(__file__).parent.parent / "splits" / "zero" / archive.manifest.version
    path = folder / f"{name}.json.gz"
    control, losses = best_cue(split)
    if losses.mean() < crps(probabilities=made.probabilities, bins=split.bins).mean():
        print(f"{name}: the control {control} is better on the split itself, and stays the zero")
        path.unlink(missing_ok=True)
        return
    record = {
        "split_digest": split.identity.split_digest,
        "forecast": best,
        "crps_on_training": {k: round(v, 4) for k, v in found.items()},
        "probabilities": dict(zip(made.row_ids, made.probabilities.round(6).tolist(), strict=True)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(record, indent=1).encode(), mtime=0))


if __name__ == "__main__":
    main()
