"""Score every control and baseline on every split of an archive, with intervals.

    python benchmarks/baselines.py ARCHIVE [--draws 2000] [--baselines prior,trees] [--board DIR]
        [--splits eval_search,validity]

Prints one Markdown table a split, best first by its headline figure. ``--board`` adds the entries
of a board.
"""

from __future__ import annotations

import argparse

from kernel_archive.archive.open import open_archive
from kernel_archive.baselines.registry import make_baseline
from kernel_archive.board.adding import store_of
from kernel_archive.board.submissions import Identity, load_submission, submission_folders
from kernel_archive.scoring import METRICS, Forecasts, load_split, read_forecasts, score
from kernel_archive.scoring.controls import best_cue, controls_of
from kernel_archive.splits import FORECAST_SPLITS

SHOWN = {
    "eval": ("crps_skill", "crps", "pair_accuracy", "close_pairs", "speedup_recovered"),
    "validity": ("crps_skill", "accuracy", "average_precision_failures"),
    "close": ("crps_skill", "crps", "faster"),
    "discovery": ("crps_skill", "crps", "average_precision_1.25", "lift_1.25"),
}


def cell(record, name):
    """A figure with its interval, and the mark of one that beats no control."""
    figure, info = record.metrics[name], METRICS[name]
    span = (
        ""
        if figure.low is None
        else f" ({figure.low:.{info.decimals}f} to {figure.high:.{info.decimals}f})"
    )
    return f"{info.format(figure.mean)}{span}{'' if record.beats_control.get(name, True) else ' *'}"


def entries(board, target):
    """Name and forecasts of a board's entries for a target's rows."""
    folders = submission_folders(store_of(board))
    mine = [(folder, load_submission(folder)) for folder in folders]
    return [
        (f"**{submission.name}**", read_forecasts(folder / "forecasts.jsonl.zst", target))
        for folder, submission in mine
        if Identity.of(target).rows_key == submission.archive.rows_key
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--baselines", default="prior,trees,dry-run")
    parser.add_argument("--board")
    parser.add_argument("--splits", default=",".join(FORECAST_SPLITS))
    options = parser.parse_args()
    archive = open_archive(options.archive)
    for split in map(FORECAST_SPLITS.__getitem__, options.splits.split(",")):
        facts = archive.manifest.splits.get(split.table)
        if facts is None or not facts.rows:
            continue
        target = load_split(archive, split.name)
        names = dict.fromkeys([split.lead, *SHOWN[target.kind]])
        made = [(c.name, c.forecasts) for c in target.cached(controls_of)]
        learned = [] if split.asks_outcome else options.baselines.split(",")  # speeds alone
        for name in learned:
            made.append(
                (
                    f"**{name}**",
                    Forecasts.from_arrays(
                        target, make_baseline(name, archive, split.name).probabilities
                    ),
                )
            )
        made += entries(options.board, target) if options.board else []
        print(f"\n`{split.name}`, {len(target)} rows, best cue `{target.cached(best_cue)[0]}`:\n")
        print(f"| forecasts | {' | '.join(METRICS[name].title for name in names)} |")
        print("|" + " --- |" * (1 + len(names)))
        scored = [(name, score(target, forecasts, draws=options.draws)) for name, forecasts in made]
        lead = METRICS[split.lead]
        scored.sort(key=lambda item: lead.sort_key(item[1].metrics[split.lead].mean))
        for name, record in scored:
            print(
                f"| {name} | {' | '.join(cell(record, metric) for metric in names)} |", flush=True
            )


if __name__ == "__main__":
    main()
