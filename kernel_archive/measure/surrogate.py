"""A forecaster in a search: more programs are proposed than measured, and forecasts say which.

``[search.surrogate]`` of a plan names the forecaster and the share. A forecast is never taken for a measurement: it stands
in events of its own beside the candidate, and what was not measured stays in the log as deferred, without a result.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kernel_archive.errors import RecipeError, UsageError, suggestion
from kernel_archive.ids import program_id
from kernel_archive.measure.logs import read_lines
from kernel_archive.scoring.controls import CUES
from kernel_archive.scoring.replay import Rank, entropy, rank_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kernel_archive.forecasters.pairs import ProgramPairs
    from kernel_archive.scoring.arrays import Floats


class SurrogatePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[search.surrogate]`` as written.

    Attributes:
        forecaster: ``boosted``, learnt from the training pairs of ``archive``; a file (``.jsonl``) of forecasts made ahead,
            whose ``row_id`` are program ids, relative to the plan; or a cue on the surface of programs, such as
            ``code_length``, larger first, or with a minus before it smaller first.
        archive: directory of the archive to learn from, relative to the plan.
        without_task: learn from no pair of the task that is searched.
        proposals: programs proposed per parent and step.
        share: share of a step's proposals that is measured.
        rank: ``expected`` speedup, or the probability to ``beat`` the best so far.
        unsure: entropy of a forecast, bits, above which its program is measured whatever its rank.
    """

    forecaster: str
    archive: str = ""
    without_task: bool = False
    proposals: int = 8
    share: float = 0.25
    rank: Rank = "expected"
    unsure: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no search."""
        if self.proposals < 1 or not 0.0 < self.share <= 1.0:
            raise ValueError("a surrogate needs proposals of at least 1, and a share above 0 and at most 1")

    def budget(self, proposed: int) -> int:
        """How many of so many proposals are measured."""
        return math.ceil(self.share * proposed - 1e-9)


class Forecast(msgspec.Struct, omit_defaults=True):
    """A forecast as the log has it: bin probabilities, or the value of a cue."""

    probabilities: list[float] | None = None
    cue: float | None = None


class _Line(msgspec.Struct):
    """A line of a forecast file, of which only this is read."""

    row_id: str
    probabilities: list[float]


class Surrogate:
    """A forecaster that is asked about the candidates of one search.

    A plan's paths are relative to ``base``; ``reference`` is the task's reference program. ``saw`` is what the forecaster was
    made from, for ``run.json``; ``forecast`` gives the forecast of every program, ``None`` where there is none.

    Raises:
        UsageError: no such forecaster, or it can't be had.
    """

    forecast: Callable[[Sequence[str]], list[Forecast | None]]

    def __init__(self, plan: SurrogatePlan, base: Path, *, task: str, gpu: str, reference: str) -> None:
        self.plan = plan
        self.saw: dict[str, Any] = {}
        cue = plan.forecaster.removeprefix("-")
        if plan.forecaster.endswith(".jsonl"):
            path = base / plan.forecaster
            if not path.is_file():
                raise UsageError(f"{path}: no such file of forecasts; a plan names it relative to itself")
            made = {line.row_id: Forecast(line.probabilities) for line in read_lines(path, _Line)}
            self.saw = {"forecasts": len(made)}
            self.forecast = lambda codes: [made.get(program_id(code)) for code in codes]
        elif plan.forecaster == "boosted":
            model, self.saw = _learnt(str(base / plan.archive), task if plan.without_task else None)
            self.forecast = lambda codes: [
                Forecast([round(float(p), 6) for p in row]) for row in model(_pairs(codes, task, gpu, reference))
            ]
        elif cue in CUES:
            sign = -1.0 if plan.forecaster.startswith("-") else 1.0
            self.forecast = lambda codes: [Forecast(cue=sign * CUES[cue][1](code)) for code in codes]
        else:
            hint = suggestion(plan.forecaster, ["boosted", *CUES])
            raise UsageError(
                f"no surrogate {plan.forecaster!r}: a file of forecasts (.jsonl), boosted, or a cue. {hint}"
            )

    def choose(self, forecasts: Sequence[Forecast], best: float | None) -> tuple[list[float], set[int]]:
        """Scores, and positions of what is to be measured: those of the largest scores, and the unsure ones."""
        if not forecasts:
            return [], set()
        cues = [f.cue for f in forecasts if f.cue is not None]
        rows = np.array([f.probabilities for f in forecasts if f.probabilities is not None])
        scores = cues or rank_scores(rows, self.plan.rank, best).tolist()
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        chosen = set(order[: self.plan.budget(len(scores))])
        if self.plan.unsure is not None and not cues:
            chosen |= set(np.flatnonzero(entropy(rows) > self.plan.unsure).tolist())
        return scores, chosen


def _pairs(codes: Sequence[str], task: str, gpu: str, reference: str) -> ProgramPairs:
    from kernel_archive.forecasters.pairs import ProgramPairs

    n = len(codes)
    return ProgramPairs(problems=(task,) * n, gpus=(gpu,) * n, anchors=(reference,) * n, candidates=tuple(codes))


@lru_cache(maxsize=8)
def _learnt(archive: str, without: str | None) -> tuple[Callable[[ProgramPairs], Floats], dict[str, Any]]:
    """The boosted model of an archive's training pairs, and what it saw: no held-out search is among them."""
    from kernel_archive.archive.open import open_archive
    from kernel_archive.bins import DEFAULT_SCHEME
    from kernel_archive.forecasters.boosted import boosted_model
    from kernel_archive.forecasters.pairs import load_training_pairs
    from kernel_archive.splits import SPLITS

    opened = open_archive(archive)
    pairs = load_training_pairs(opened)
    if without is not None:
        pairs = pairs.take(np.flatnonzero(np.asarray(pairs.problems) != without))
    if not len(pairs):
        raise RecipeError(f"{archive}: no training pairs are left to learn from")
    saw = {
        "archive": opened.manifest.version,
        "training_pairs": len(pairs),
        "training_searches": len(set(pairs.searches)),
        "tasks": sorted(set(pairs.problems)),
    }
    return boosted_model(pairs, SPLITS["eval"], DEFAULT_SCHEME), saw
