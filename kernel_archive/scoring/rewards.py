"""Rewards for training a forecaster: on arrays, on the texts of a model, and in TRL's form.

The reward is 1 for the right bin and 0 else; ``brier`` adds one minus the Brier score, ``crps`` one
minus the ranked probability score. ``log`` is the log score alone. What gives no distribution earns
0 in all of them.

>>> answer = '{"probabilities": [0, 0, 0, 0, 0, 1, 0, 0]}'
>>> of_completions([answer, "no idea"], bins=[6, 6], kind="brier")
[2.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from kernel_archive.bins import N_BINS
from kernel_archive.errors import UsageError, counted, printable
from kernel_archive.scoring import rules
from kernel_archive.scoring.arrays import Floats
from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS
from kernel_archive.scoring.rules import normalise, predicted_bins

RewardKind = Literal["correctness", "brier", "crps", "log"]
#: The rewards by name.
KINDS: Final[tuple[RewardKind, ...]] = get_args(RewardKind)
#: Rewards that add one minus a score -> the score.
_SCORES: Final = {"brier": rules.brier, "crps": rules.crps}


def reward(
    kind: RewardKind,
    *,
    probabilities: ArrayLike,
    bins: ArrayLike,
    parsed: ArrayLike | None = None,
    stated_bins: ArrayLike | None = None,
) -> Floats:
    """Reward forecasts of n rows: shape (..., n).

    ``correctness`` is 1 where the predicted bin is the true one; ``brier`` and ``crps`` add one
    minus the score, 0 to 2. ``log`` is one minus the negative log likelihood over its largest
    value, 0 to 1.

    ``probabilities``, shape (..., n, 8), are raw. Where one is negative or not a number, or their
    sum is outside 0.5 to 1.5, or ``parsed`` is false, there is no forecast and the reward is 0.
    ``stated_bins`` (0: none) only break ties.

    >>> p = [[0, 0, 0, 0, 0.2, 0.8, 0, 0]]
    >>> reward("correctness", probabilities=p * 2, bins=[6, 5]).tolist()
    [1.0, 0.0]
    """
    raw, y = np.asarray(probabilities, dtype=np.float64), np.asarray(bins)
    with np.errstate(over="ignore", invalid="ignore"):
        total = raw.sum(axis=-1)  # NaN and infinities stay in it
    low, high = RAW_SUM_BOUNDS
    usable = (raw >= 0).all(axis=-1) & (total >= low) & (total <= high)
    usable &= True if parsed is None else np.asarray(parsed, bool)
    p = normalise(raw=np.where(usable[..., None], raw, 1.0 / N_BINS))
    if kind == "log":
        value = 1.0 + rules.nll(probabilities=p, bins=y) / np.log(rules.MIN_PROBABILITY)
    else:
        named = None if stated_bins is None else np.asarray(stated_bins)
        value = (predicted_bins(probabilities=p, stated_bins=named) == y).astype(float)
    if kind in _SCORES:
        value += 1.0 - _SCORES[kind](probabilities=p, bins=y)
    return np.where(usable, value, 0.0)


#: The rewards alone; arguments as of :func:`reward`.
correctness = partial(reward, "correctness")
brier = partial(reward, "brier")
crps = partial(reward, "crps")
log_score = partial(reward, "log")


def of_completions(
    completions: Sequence[Any], *, bins: Sequence[int], kind: RewardKind = "correctness"
) -> list[float]:
    """Reward every completion by its true bin, 1 to 8: a reward function for a trainer.

    Completions are texts, tool-call arguments as objects, or chats, of which the last message
    counts.

    Raises:
        UsageError: the lengths differ, a bin is not 1 to 8, or the kind is not known.
    """
    _check_kind(kind)
    if len(completions) != len(bins) or not all(b in range(1, N_BINS + 1) for b in bins):
        given = f"{counted(len(bins), 'bin')} for {counted(len(completions), 'completion')}"
        raise UsageError(f"give one true bin from 1 to 8 for every completion (got {given})")
    answers = [read_completion(completion) for completion in completions]
    p = np.reshape([answer.probabilities or (0.0,) * N_BINS for answer in answers], (-1, N_BINS))
    stated = [answer.predicted_bin or 0 for answer in answers]
    rewards: list[float] = reward(kind, probabilities=p, bins=bins, stated_bins=stated).tolist()
    return rewards


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"unknown reward {printable(kind)!r}; choose one of: {', '.join(KINDS)}")


def trl_reward(kind: RewardKind = "crps", column: str = "bin") -> Callable[..., list[float]]:
    """Make a reward function as TRL calls it: ``reward(completions=..., **columns)``.

    ``column`` holds the true bins. The prompts are not looked at: what a program in one says can
    move no reward.

    >>> answer = '{"probabilities": [0, 0, 0, 0, 0, 1, 0, 0]}'
    >>> trl_reward("brier")(prompts=["?"], completions=[answer], bin=[6])
    [2.0]
    """
    _check_kind(kind)

    def reward_of(*, completions: Sequence[Any], **columns: Any) -> list[float]:
        if column not in columns:
            message = f"the training data have no column {printable(column)!r} with the true bins"
            names = ", ".join(sorted(columns))
            fix = f"Name it with trl_reward({kind!r}, column=...)"
            raise UsageError(f"{message}; they have: {names}. {fix}")
        return of_completions(completions, bins=columns[column], kind=kind)

    reward_of.__name__ = f"{kind}_reward"
    return reward_of
