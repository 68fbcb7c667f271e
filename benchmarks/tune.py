"""Choose the settings of the boosted baseline by what it says of naturally written training programs that were left out.

    python benchmarks/tune.py ARCHIVE [--folds 4]

Training rows alone: authors are left out in turn (as ``eval`` has new authors of known problems), then problems (as
``eval_problems`` has new ones), and every time whatever shares a program with them. Prints CRPS of the rows left out, every bin
weighing the same, for the settings as they are and each of them changed; beside it that of even bins.
"""

from __future__ import annotations

import argparse

import numpy as np

from kernel_archive.archive.open import open_archive
from kernel_archive.bins import N_BINS, assign_bins
from kernel_archive.forecasters import boosted
from kernel_archive.forecasters.features import pair_features
from kernel_archive.forecasters.pairs import load_training_pairs
from kernel_archive.splits import SPLITS

GRID = {
    "natural": (None, 0.3, 0.6, 0.9),
    "max_iter": (60, 150),
    "max_leaf_nodes": (4, 8),
    "min_samples_leaf": (20, 60),
}


def crps(forecasts, bins):
    """CRPS over the eight bins, divided by 7, every bin weighing the same."""
    below = (np.arange(1, N_BINS)[None, :] >= bins[:, None]).astype(float)
    each = ((np.cumsum(forecasts, axis=1)[:, :-1] - below) ** 2).mean(axis=1)
    return float(np.mean([each[bins == b].mean() for b in np.unique(bins)]))


def portions(training, rows, by, folds):
    """(rows to learn from, rows to ask), a portion of the authors or problems left out at a time."""
    authors = np.asarray([s.rsplit("_", 1)[-1] for s in training.searches])
    unit = authors if by == "authors" else np.asarray(training.problems)
    names = sorted(set(unit[rows]))
    anchors, candidates = np.asarray(training.anchors), np.asarray(training.candidates)
    for start in range(min(folds, len(names))):
        out = np.isin(unit, names[start::folds]) & (training.natural if by == "authors" else True)
        seen = candidates[out]
        yield np.flatnonzero(~out & ~np.isin(candidates, seen) & ~np.isin(anchors, seen)), rows[out[rows]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--folds", type=int, default=4)
    options = parser.parse_args()
    split = SPLITS["eval"]
    training = load_training_pairs(open_archive(options.archive))
    rows = training.alike(split)
    bins = assign_bins(training.speedups, "paper")
    known = tuple(sorted(set(training.problems)))
    features = {by: pair_features(training, names) for by, names in (("authors", known), ("problems", ()))}
    edges = boosted.log_edges("paper")
    print(
        f"{len(training)} pairs, {len(rows)} rows to leave out; even bins: {crps(np.full((len(rows), 8), 1 / 8), bins[rows]):.4f}"
    )
    chosen = {**boosted.SETTINGS, "natural": boosted.NATURAL_SHARE}
    changes = [{}] + [{k: v} for k, values in GRID.items() for v in values if chosen[k] != v]
    for change in changes:
        settings = chosen | change
        share = settings.pop("natural")
        said = []
        for by in ("authors", "problems"):
            asked, answers = [], []
            for learn, ask in portions(training, rows, by, options.folds):
                part = training.take(learn)
                weights = boosted.pair_weights(part, split, "paper", natural_share=share)
                above = boosted.fit_above(features[by][learn], part.log_speedups, weights, edges, 0, settings)
                asked.append(bins[ask])
                answers.append(boosted.bins_of(above(features[by][ask])))
            said.append(crps(np.concatenate(answers), np.concatenate(asked)))
        print(f"{change or 'as they are'}: authors {said[0]:.4f}, problems {said[1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
