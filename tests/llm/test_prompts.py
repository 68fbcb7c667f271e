"""Prompts: whole, telling nothing of the label, and the same for ever once released."""

import itertools

import pytest

from kernel_archive.bins import BIN_NAMES
from kernel_archive.errors import UsageError
from kernel_archive.llm.prompts import ANSWER_FORMS, Prompt, answer_schema, known_prompts, render
from kernel_archive.measure.tasks import TASK_NAMES
from kernel_archive.scoring.formats import TOOL_FIELDS

ROW = {
    "problem": "fp8_quant",
    "gpu": "H200",
    "anchor": "def reference(x): ...",
    "candidate": "import triton  # @triton.jit",
}
#: Released wordings. A failure here means that a released prompt has changed: put the new wording into another version.
RELEASED = {
    "v1-defer-json-paper": "3a58bdcb7f6dcc5d",
    "v1-defer-json-released": "faacef7bffa5c672",
    "v1-defer-text-paper": "f39161653d02d82a",
    "v1-defer-text-released": "3dfd2e4c808ecee2",
    "v1-defer-tool-paper": "528749f1f3fa40e4",
    "v1-defer-tool-released": "11c376af1bc5e866",
    "v1-discovery-json-paper": "00b2a6cba613dac4",
    "v1-discovery-json-released": "a8be828074231bbe",
    "v1-discovery-text-paper": "d6dbf72332a41ff0",
    "v1-discovery-text-released": "22b4e1c985bf6b58",
    "v1-discovery-tool-paper": "c4ed4a9e1c51f426",
    "v1-discovery-tool-released": "c6dfbed09d79d5ee",
    "v1-forecast-json-paper": "8b63d2006c54d50e",
    "v1-forecast-json-released": "b5fe04f8c4c47d17",
    "v1-forecast-text-paper": "e02daca9127c00e0",
    "v1-forecast-text-released": "e464dacd0b6ff872",
    "v1-forecast-tool-paper": "4cd3423e042e370b",
    "v1-forecast-tool-released": "21d1ae15f32b0946",
}


def test_a_released_prompt_never_changes():
    """The digests of every released version."""
    assert {name.name.partition("@")[0]: digest for digest, name in known_prompts().items()} == RELEASED


@pytest.mark.parametrize("ask", ["forecast", "discovery", "defer"])
@pytest.mark.parametrize("answer", ANSWER_FORMS)
@pytest.mark.parametrize("scheme", ["paper", "released"])
def test_a_prompt_holds_everything(ask, answer, scheme):
    """Bins with their edges, GPU, problem with its cases, both programs, the form of the answer."""
    text = render(Prompt(ask=ask, answer=answer, scheme=scheme), **ROW)
    assert all(f"| {name} |" in text for name in BIN_NAMES)
    assert ("0.25 < S <= 0.5" if scheme == "paper" else "0.5 <= S < 0.7071") in text
    assert "compute capability 9.0" in text
    assert "4,800 GB/s" in text
    assert "num_tokens = 256, hidden_dim = 4096, group_size = 128 (at least 4.19 MB read" in text
    assert "`(x f32 [tokens, hidden], x_q buffer" in text
    assert "Structured" not in text
    assert ROW["anchor"] in text
    assert ROW["candidate"] in text
    assert "(triton)" in text
    assert all(f"- `{name}`" in text for name in TOOL_FIELDS)
    assert ("`defer`" in text) == (ask == "defer")
    assert ("Call the tool" in text) == (answer == "tool")
    assert "\n\n\n\n" not in text


def test_every_problem_can_be_put_into_words():
    """Inputs and cases of all measured tasks; a problem that is not known has its name, a GPU likewise."""
    for name in TASK_NAMES:
        text = render(Prompt(ask="forecast"), **{**ROW, "problem": name})
        assert "Timed cases:\n\n- " in text
        assert "\nInputs: `(" in text
    text = render(Prompt(ask="forecast"), **{**ROW, "problem": "kernelbench_l3_p48", "gpu": "X1"})
    assert "kernelbench_l3_p48" in text
    assert "X1." in text
    assert "Timed cases" not in text


def test_a_program_is_data_and_stays_whole():
    """A program is no template, and no text in it closes its fence."""
    code = '"""\n```\n{{ gpu }} {% include "x" %}\n````\n## Your answer\n"""\n' + "x = 1\n" * 5000
    text = render(Prompt(ask="forecast"), **{**ROW, "candidate": code})
    assert f"`````python\n{code.rstrip()}\n`````" in text


def test_prompts_have_digests_of_their_own():
    """No two wordings share a digest; a name can be found again by it."""
    known = known_prompts()
    assert len(known) == 3 * 3 * 2
    assert all(prompt.digest == digest for digest, prompt in known.items())
    for one, other in itertools.combinations(known.values(), 2):
        assert render(one, **ROW) != render(other, **ROW) or one.answer != other.answer


def test_the_schema_of_an_answer_is_strict():
    """Every field is required and no other is allowed, as the strict modes of services want it; reasons come first."""
    schema = answer_schema("defer")
    assert list(schema["properties"]) == schema["required"]
    assert schema["required"][0] == "rationale"
    assert schema["additionalProperties"] is False
    assert "defer" not in answer_schema("forecast")["properties"]


def test_an_unknown_version_is_refused():
    """With those that there are."""
    with pytest.raises(UsageError, match="Choose one of: v1"):
        render(Prompt(ask="forecast", version="v0"), **ROW)
