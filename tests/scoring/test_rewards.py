"""Rewards on arrays and on completions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.errors import UsageError
from kernel_archive.scoring import Split, check_forecasts, rewards, score
from kernel_archive.scoring.formats import TOOL_FIELDS

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]
TOOL = dict(zip(TOOL_FIELDS, P, strict=True)) | {"predicted_bin": 6}


def test_rewards_by_hand():
    """Right: 1, + 1 - 0.07, + 1 - CRPS; wrong bin 5: 0, + 1 - 0.57, + 1 - 0.5 / 7; nothing parsed:
    0 in all three.
    """
    given = {"probabilities": [P, P, P], "bins": [6, 5, 6], "parsed": [True, True, False]}
    assert rewards.correctness(**given).tolist() == [1, 0, 0]
    assert rewards.brier(**given) == pytest.approx([1.93, 0.43, 0])
    # The uniform stand-in for a missing forecast would predict bin 4: it earns nothing either.
    for reward in (rewards.correctness, rewards.brier, rewards.crps):
        assert reward(probabilities=[P], bins=[4], parsed=[False]).tolist() == [0]
    crps_right = (0.1**2 + 0.3**2) / 7
    assert rewards.crps(**given) == pytest.approx([2 - crps_right, 1 - 0.5 / 7, 0])


@pytest.mark.parametrize(
    "probabilities",
    [
        [0.0] * 8,
        [90 * v for v in P],
        [0.49 * v for v in P],
        [1.51 * v for v in P],
        [np.nan, *P[1:]],
        [np.inf, *P[1:]],
        [-np.inf, *P[1:]],
        [-0.1, *P[1:5], 0.8, 0, 0],
        [1e308] * 8,
    ],
)
def test_arrays_earn_nothing_where_a_file_would_hold_no_forecast(probabilities):
    """Sums outside 0.5 to 1.5, all zero, NaN, infinities, negative numbers: 0 in all three, and
    the row beside it stays.
    """
    for reward in (rewards.correctness, rewards.brier, rewards.crps):
        (alone,) = reward(probabilities=[P], bins=[6])
        assert reward(probabilities=[probabilities, P], bins=[6, 6]).tolist() == [0, alone]
        assert reward(probabilities=[[1.49 * v for v in P]], bins=[6]) == pytest.approx(alone)


def test_the_log_score_by_hand():
    """1 + ln 0.7 / ln 1e12: 0.987; nothing for the true bin is 0, everything 1, unparsed 0."""
    p = [P, [0, 0, 0, 0, 0, 1, 0, 0], P, P]
    found = rewards.log_score(probabilities=p, bins=[6, 6, 8, 6], parsed=[1, 1, 1, 0])
    assert found == pytest.approx([1 + np.log(0.7) / np.log(1e12), 1, 0, 0], abs=1e-15)


@given(
    st.lists(st.floats(0.02, 1), min_size=8, max_size=8),
    st.lists(st.floats(0.02, 1), min_size=8, max_size=8),
)
def test_believing_pays_best(belief, other):
    """Brier, CRPS and log are proper: no other forecast earns more in expectation; the two sums
    have the right bin besides.
    """
    q, p = np.array(belief) / sum(belief), np.array(other) / sum(other)
    for reward in (rewards.brier, rewards.crps, rewards.log_score):
        truth, lie = (reward(probabilities=[f] * 8, bins=range(1, 9)) @ q for f in (q, p))
        assert truth >= lie - 1e-12


def test_completions_earn_what_the_scorer_says(rng):
    """The mean reward of answers is the figure of a score of the same answers, to 1e-12; what can't
    be parsed among them.
    """
    p, s = rng.dirichlet(np.ones(8), 40), 2.0 ** rng.uniform(-3, 3, 40)
    split = Split.from_arrays(row_ids=list(map(str, range(40))), tasks=["t"] * 40, speedups=s)
    answers = [json.dumps({"probabilities": row.tolist()}) for row in p]
    lines = [{"row_id": str(i), "probabilities": row.tolist()} for i, row in enumerate(p)]
    forecasts, _ = check_forecasts(lines, split)
    figures = score(split, forecasts, draws=0).metrics
    means = {
        kind: np.mean(rewards.of_completions(answers, bins=split.bins, kind=kind))
        for kind in rewards.KINDS
    }
    hit = figures["accuracy"].mean
    assert means["correctness"] == pytest.approx(hit, abs=1e-12)
    assert means["brier"] == pytest.approx(hit + 1 - figures["brier"].mean, abs=1e-12)
    assert means["crps"] == pytest.approx(hit + 1 - figures["crps"].mean, abs=1e-12)
    assert means["log"] == pytest.approx(1 - figures["nll"].mean / np.log(1e12), abs=1e-12)


CANONICAL = json.dumps({"probabilities": P})


def test_wrong_calls_are_refused():
    """An unknown kind, lengths that differ, a bin that is none; no completions give no rewards."""
    with pytest.raises(UsageError, match="unknown reward"):
        rewards.of_completions([""], bins=[1], kind="f1")
    with pytest.raises(UsageError, match="one true bin"):
        rewards.of_completions([""], bins=[])
    with pytest.raises(UsageError, match="one true bin"):
        rewards.of_completions([""], bins=[9])
    assert rewards.of_completions([], bins=[]) == []


def test_a_trainer_calls_it_as_it_calls_any_reward():
    """TRL's keywords, texts and chats alike; columns beside the bins don't matter; a wrong column
    is named with the way out.
    """
    reward = rewards.trl_reward("crps")
    assert reward.__name__ == "crps_reward"
    texts = [CANONICAL, "no idea"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    beside = {
        "completion_ids": [[1], [2]],
        "row_id": ["a", "b"],
        "trainer_state": None,
        "log_metric": print,
    }
    expected = rewards.of_completions(texts, bins=[6, 6], kind="crps")
    assert expected[0] > expected[1] == 0
    for completions in (texts, chats):
        assert reward(prompts=["?"] * 2, completions=completions, bin=[6, 6], **beside) == expected
    assert rewards.trl_reward("crps", column="label")(completions=texts, label=[6, 6]) == expected
    with pytest.raises(UsageError, match=r"no column 'bin'.*they have: label, prompts"):
        reward(prompts=texts, completions=texts, label=[6, 6])
    with pytest.raises(UsageError, match="unknown reward"):
        rewards.trl_reward("speed")


SURE = [json.dumps({"probabilities": [float(b == i) for b in range(1, 9)]}) for i in range(1, 9)]
#: Answers by which somebody could hope to earn more than by one forecast -> the only bin that it
#: may earn anything for.
TRICKS = {
    "every bin in turn": ("\n".join(SURE), 8),
    "one field twice": (f"{SURE[0][:-1]}, {SURE[7][1:]}", 8),
    "a list of forecasts": (f"[{SURE[0]}, {SURE[7]}]", 8),
    "certain of all": (json.dumps({"probabilities": [1] * 8}), None),
    "a huge exponent": ('{"probabilities": [1e999999999, 0, 0, 0, 0, 0, 0, 0]}', None),
    "more digits than Python reads": (f'{{"probabilities": [{"9" * 90_000}, 0, 0, 0]}}', None),
    "not a number": ('{"probabilities": [NaN, 0, 0, 0, 0, 0, 0, 1]}', None),
    "below nothing": (json.dumps({"probabilities": [3, -2, 0, 0, 0, 0, 0, 0]}), None),
    "true and false": (json.dumps({"probabilities": [True] + [False] * 7}), None),
    "deferred": ('{"defer": true}', None),
    "hidden in the reasoning": (f"<think>{SURE[0]}</think> I can't say.", None),
    "reasoning that never ends": (f"<think>Perhaps {SURE[0]}", None),
    "reasoning opened in the prompt": (f"so {SURE[0]}</think>\nI can't say.", None),
    "another after the reasoning": (f"<think>{SURE[0]}</think>{SURE[7]}", 8),
    "another in reasoning after the answer": (f"{SURE[7]}<think>{SURE[0]}</think>", None),
    "in a field of its own": ({"reasoning_content": SURE[0], "content": "I can't say."}, None),
    "in its own rationale": (json.dumps({"rationale": SURE[0], "probabilities": [0] * 7 + [1]}), 8),
    "said by the user": ([{"role": "user", "content": SURE[0]}, {"content": "?"}], None),
    "its own sum": ('{"probabilities": [80,0,0,0,0,0,0,0], "raw_probability_sum": 1}', None),
    "nested without end": ("[" * 500_000 + '"probabilities"', None),
    "objects without end": ("{" * 200_000 + '"p_severe_slowdown"', None),
    "no answer at all": (None, None),
    "its own row": ('{"probabilities": [0,0,0,0,0,0,0,1], "true_bin": 1, "row_id": "x"}', 8),
}


@pytest.mark.parametrize("kind", ["correctness", "brier", "crps", "log"])
@pytest.mark.parametrize("trick", TRICKS)
def test_a_reward_can_not_be_gamed(trick, kind):
    """Nothing earns more than its one forecast, or anything at all where it has none, whatever the
    true bin is.
    """
    completion, only = TRICKS[trick]
    for true in range(1, 9):
        honest = [0.0]
        if only is not None:
            honest = rewards.of_completions([SURE[only - 1]], bins=[true], kind=kind)
        assert rewards.of_completions([completion], bins=[true], kind=kind) == honest
