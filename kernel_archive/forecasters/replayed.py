"""Forecasts of recorded programs by the name of a forecaster: a baseline, or a cue on the surface as a control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import UsageError, suggestion
from kernel_archive.forecasters.baselines import BASELINES
from kernel_archive.forecasters.pairs import NOTHING, load_asked_pairs, load_training_pairs, recorded_pairs
from kernel_archive.scoring.controls import by_cue
from kernel_archive.scoring.forecasts import Forecasts
from kernel_archive.scoring.surface import CUES
from kernel_archive.splits import REPLAY

if TYPE_CHECKING:
    from kernel_archive.archive.open import Archive
    from kernel_archive.scoring.worlds import Worlds


def forecasts_by_name(name: str, archive: Archive, worlds: Worlds, *, seed: int = 0) -> Forecasts:
    """Forecasts of the rows of recorded worlds.

    A baseline learns from the archive's training pairs alone. A cue is spread over the bins as the controls of a score are:
    its direction and strength come from the other problems, with their labels.

    Raises:
        UsageError: there is no baseline and no cue of that name.
    """
    asked = recorded_pairs(archive, worlds) if worlds.split == REPLAY.name else load_asked_pairs(archive, worlds.split)
    at = {row: i for i, row in enumerate(asked.row_ids)}
    asked = asked.take([at[row] for row in worlds.row_ids])
    target = worlds.target()
    if name in CUES:
        values = np.array([CUES[name][1](code) for code in asked.candidates])
        counts = np.bincount(target.bins, minlength=N_BINS + 1)[1:]
        made = by_cue(values, target.bins, target.task_rows, np.cumsum(counts)[:-1] / len(target))
    elif name in BASELINES:
        training = load_training_pairs(archive) if BASELINES[name].learns else NOTHING
        made = BASELINES[name].forecast(asked, training, seed)
    else:
        raise UsageError(f"no forecaster {name!r} to replay. {suggestion(name, [*BASELINES, *CUES])}")
    return Forecasts.from_arrays(target, made, name=name)
