"""Rewards for training a forecaster: on arrays, on the texts that a model answered, and in the form that TRL calls.

The reward is 1 for the right bin and 0 else; ``brier`` adds one minus the Brier score, ``crps`` one minus the ranked
probability score. ``log`` is the log score alone. What gives no distribution earns 0 in all of them.

>>> answer = '{"probabilities": [0, 0, 0, 0, 0, 1, 0, 0]}'
>>> of_completions([answer, "no idea"], bins=[6, 6], kind="brier")
[2.0, 0.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
import numpy as np

from kernel_archive.bins import N_BINS
from kernel_archive.errors import UsageError, printable
from kernel_archive.scoring import forecasts
from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.forecasts import RAW_SUM_BOUNDS, normalise, predicted_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

RewardKind = Literal["correctness", "brier", "crps", "log"]


class Answer(msgspec.Struct, frozen=True):
    """What a completion says: probabilities that sum to 1, and the stated bin (0 for none)."""

    probabilities: tuple[float, ...]
    stated: int


def _parts(
    probabilities: ArrayLike, bins: ArrayLike, parsed: ArrayLike | None, stated: ArrayLike | None
) -> tuple[Floats, Floats, NDArray[np.bool_], NDArray[np.integer[Any]]]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(bins)
    use = np.ones(p.shape[:-1], bool) if parsed is None else np.broadcast_to(np.asarray(parsed, bool), p.shape[:-1])
    # The rules of a forecast file: what it would count as a parse failure or refuse as a fault earns nothing here.
    with np.errstate(over="ignore", invalid="ignore"):
        total = p.sum(axis=-1)  # NaN and infinities stay in it
    use = use & (p >= 0).all(axis=-1) & (total >= RAW_SUM_BOUNDS[0]) & (total <= RAW_SUM_BOUNDS[1])
    normal = normalise(raw=np.where(use[..., None], p, 1.0 / N_BINS))
    predicted = predicted_bins(probabilities=normal, stated=None if stated is None else np.asarray(stated))
    return (predicted == y).astype(float), normal, use, y


def correctness(
    *, probabilities: ArrayLike, bins: ArrayLike, parsed: ArrayLike | None = None, stated: ArrayLike | None = None
) -> Floats:
    """1 where the predicted bin is the true one, else 0: shape (..., n).

    Args:
        probabilities: shape (..., n, 8), raw; they are renormalised. Where one is negative or not a number, or their
            sum is outside 0.5 to 1.5 (all 0 is), there is no forecast and the reward is 0, whatever ``parsed`` says.
        bins: shape (n,), true bins, 1 to 8.
        parsed: shape (..., n), where there is a distribution; everywhere when not given.
        stated: shape (..., n), bins that the forecaster named, 0 for none; they only break ties.

    >>> correctness(probabilities=[[0, 0, 0, 0, 0.2, 0.8, 0, 0]] * 2, bins=[6, 5]).tolist()
    [1.0, 0.0]
    """
    hit, _, use, _ = _parts(probabilities, bins, parsed, stated)
    return np.where(use, hit, 0.0)


def brier(
    *, probabilities: ArrayLike, bins: ArrayLike, parsed: ArrayLike | None = None, stated: ArrayLike | None = None
) -> Floats:
    """Correctness plus one minus the Brier score, 0 to 2: shape (..., n). Arguments as in :func:`correctness`.

    >>> brier(probabilities=[[0, 0, 0, 0, 0.2, 0.8, 0, 0]], bins=[6]).round(6).tolist()
    [1.96]
    """
    hit, p, use, y = _parts(probabilities, bins, parsed, stated)
    return np.where(use, hit + 1.0 - forecasts.brier(probabilities=p, bins=y), 0.0)


def crps(
    *, probabilities: ArrayLike, bins: ArrayLike, parsed: ArrayLike | None = None, stated: ArrayLike | None = None
) -> Floats:
    """Correctness plus one minus the ranked probability score, 0 to 2: shape (..., n).

    Arguments as in :func:`correctness`.

    >>> crps(probabilities=[[0, 0, 0, 0, 0.2, 0.8, 0, 0]], bins=[6]).round(6).tolist()
    [1.994286]
    """
    hit, p, use, y = _parts(probabilities, bins, parsed, stated)
    return np.where(use, hit + 1.0 - forecasts.crps(probabilities=p, bins=y), 0.0)


def log_score(
    *, probabilities: ArrayLike, bins: ArrayLike, parsed: ArrayLike | None = None, stated: ArrayLike | None = None
) -> Floats:
    """The log score, scaled to 0 (nothing for the true bin) to 1 (everything): shape (..., n).

    One minus the negative log likelihood over its largest value, which it has from 1e-12 down. It has no part for the
    right bin, so that what earns most is what is believed. Arguments as in :func:`correctness`.

    >>> log_score(probabilities=[[0, 0, 0, 0, 0.2, 0.8, 0, 0]], bins=[6]).round(6).tolist()
    [0.991924]
    """
    _, p, use, y = _parts(probabilities, bins, parsed, stated)
    return np.where(use, 1.0 + forecasts.nll(probabilities=p, bins=y) / np.log(forecasts.LEAST), 0.0)


_RULES: Final = {"correctness": correctness, "brier": brier, "crps": crps, "log": log_score}
#: The rewards by name.
KINDS: Final[tuple[RewardKind, ...]] = get_args(RewardKind)


def of_completions(completions: Sequence[Any], *, bins: Sequence[int], kind: RewardKind = "correctness") -> list[float]:
    """Reward of every completion: a reward function for a trainer.

    Args:
        completions: texts, tool-call arguments as objects, or chats (lists of messages, of which the last one counts).
        bins: true bin of every completion, 1 to 8.
        kind: ``correctness``, ``brier``, ``crps`` or ``log``.

    Raises:
        UsageError: the lengths differ, a bin is not 1 to 8, or the kind is not known.
    """
    rule = _rule(kind)
    if len(completions) != len(bins) or not all(b in range(1, N_BINS + 1) for b in bins):
        raise UsageError("give one true bin from 1 to 8 for every completion")
    if len(bins) == 0:
        return []
    nothing = Answer((0.0,) * N_BINS, 0)
    answers = [parse_completion(c) or nothing for c in completions]
    p, stated = np.array([a.probabilities for a in answers]), np.array([a.stated for a in answers])
    return [float(r) for r in rule(probabilities=p, bins=np.array(bins), stated=stated)]


def _rule(kind: str) -> Callable[..., Floats]:
    if kind not in _RULES:
        raise UsageError(f"unknown reward {printable(kind)!r}; choose one of: {', '.join(_RULES)}")
    return _RULES[kind]


def trl_reward(kind: RewardKind = "crps", column: str = "bin") -> Callable[..., list[float]]:
    """A reward function as TRL calls it: ``reward(prompts=..., completions=..., **columns) -> list[float]``.

    Completions may be texts or, where the prompts are chats, chats. The prompts are not looked at: what a program in one
    says can move no reward.

    Args:
        kind: which reward; the function is named after it in the trainer's log.
        column: column of the training data with the true bins.

    >>> trl_reward("brier")(prompts=["?"], completions=['{"probabilities": [0, 0, 0, 0, 0, 1, 0, 0]}'], bin=[6])
    [2.0]
    """
    _rule(kind)

    def reward(*, completions: Sequence[Any], **columns: Any) -> list[float]:
        if column not in columns:
            raise UsageError(
                f"the training data have no column {printable(column)!r} with the true bins; they have: "
                f"{', '.join(sorted(columns))}. Name it with trl_reward({kind!r}, column=...)"
            )
        return of_completions(completions, bins=columns[column], kind=kind)

    reward.__name__ = f"{kind}_reward"
    return reward


def parse_completion(completion: Any) -> Answer | None:
    r"""The forecast in a model's answer; ``None`` where there is none that could be scored.

    What is read, and how, is what :func:`kernel_archive.scoring.completions.read_completion` says.

    >>> parse_completion('I think: ```json\n{"probabilities": [0, 0, 0, 1, 0, 0, 0, 0]}\n```').probabilities[3]
    1.0
    >>> parse_completion("about 1.5x") is None
    True
    """
    read = read_completion(completion)
    if read.probabilities is None:
        return None
    p = normalise(raw=np.array(read.probabilities, dtype=np.float64))
    return Answer(tuple(p.tolist()), read.stated)
