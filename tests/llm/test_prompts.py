"""Prompts: whole, telling nothing of the label, and the same for ever once released."""

import msgspec
import pytest

from kernel_archive.bins import BIN_NAMES
from kernel_archive.llm import prompts
from kernel_archive.llm.prompts import (
    ANSWER_FORMS,
    Prompt,
    answer_schema,
    known_prompts,
    render_prompt,
)
from kernel_archive.problems import GPU_MODE_TASKS, OWN_PROBLEMS, PROBLEMS
from kernel_archive.scoring.formats import TOOL_FIELDS

ROW = {
    "problem": "fp8_quant",
    "gpu": "H200",
    "anchor": "def reference(x): ...",
    "candidate": "import triton  # @triton.jit",
}
#: Released wordings. A failure means that a released prompt, or a problem's words, have changed.
WORDINGS = """
v1-forecast-json-paper 9b8f14d9541320fe  v1-forecast-json-released 431db8c9cd814cf1
v1-forecast-text-paper 2631d27dd1e60696  v1-forecast-text-released e98d96e286470117
v1-forecast-tool-paper 1ad6733d25b6a2eb  v1-forecast-tool-released 8b4f7ff6f20f2f50
v1-discovery-json-paper b32f638ef367e117  v1-discovery-json-released bed3391eedf964a1
v1-discovery-text-paper 2af7130c7caef90d  v1-discovery-text-released 793aa176e343173b
v1-discovery-tool-paper 9a2962401c98b324  v1-discovery-tool-released 9ef8cddc3bd805cf
v1-defer-json-paper 2e495cdc4a4e4911  v1-defer-json-released 62862bedfecb64db
v1-defer-text-paper da7280e833be84a8  v1-defer-text-released e44b04a777e8af2c
v1-defer-tool-paper d507047fad82bd1f  v1-defer-tool-released e9b11710ab215421
v1-close-json-paper 7404e715cbac36b1  v1-close-json-released 693e066131c246e9
v1-close-text-paper 7de0c724911026f5  v1-close-text-released 50408fe891ec22f2
v1-close-tool-paper 2a6d6ad0ce7fc091  v1-close-tool-released f5c88ad192f81554
v1-transfer-json-paper f3959d4df63be1a3  v1-transfer-json-released 76c01f524045547f
v1-transfer-text-paper 8dde5ee0b1585f50  v1-transfer-text-released 59d2f82317caa80f
v1-transfer-tool-paper 4ec27a0eee6a90c3  v1-transfer-tool-released 7ca40c4638da3ef6
v1-validity-json-paper a78fdd8a11098f7b  v1-validity-text-paper 3349025433232e9e
v1-validity-tool-paper a0802f6ad736beb7
"""
RELEASED = dict(zip(WORDINGS.split()[::2], WORDINGS.split()[1::2], strict=True))


def test_a_released_prompt_never_changes():
    """The digests of every released version."""
    known = {prompt.name: digest for digest, prompt in known_prompts().items()}
    assert known == {f"{name}@{digest}": digest for name, digest in RELEASED.items()}
    assert len(known) == len(set(known.values())) == 5 * 3 * 2 + 3


def test_the_digest_covers_the_words_of_a_problem(monkeypatch):
    """Other inputs in words, another case or another tolerance: another digest."""
    released, swiglu = RELEASED["v1-forecast-json-paper"], PROBLEMS["swiglu"]
    for change in ({"inputs": "`(gate, up)`."}, {"cases": swiglu.cases[:1]}, {"rtol": 0.5}, {}):
        monkeypatch.setitem(PROBLEMS, "swiglu", msgspec.structs.replace(swiglu, **change))
        prompts.problem_in_words.cache_clear()
        assert (Prompt(ask="forecast").digest == released) == (change == {})


@pytest.mark.parametrize("ask", ["forecast", "discovery", "defer"])
@pytest.mark.parametrize("answer", ANSWER_FORMS)
@pytest.mark.parametrize("scheme", ["paper", "released"])
def test_a_prompt_holds_everything(ask, answer, scheme):
    """Bins with their edges, GPU, problem with its cases, both programs, the form of the answer."""
    text = render_prompt(Prompt(ask=ask, answer=answer, scheme=scheme), **ROW)
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
    """Inputs and cases of all measured tasks; an unknown problem or GPU has its name."""
    for name in (*GPU_MODE_TASKS, *OWN_PROBLEMS):
        text = render_prompt(Prompt(ask="forecast"), **{**ROW, "problem": name})
        assert "Timed cases:\n\n- " in text
        assert "\nInputs: `(" in text
    row = {**ROW, "problem": "kernelbench_l3_p48", "gpu": "X1"}
    text = render_prompt(Prompt(ask="forecast"), **row)
    assert "kernelbench_l3_p48" in text
    assert "X1." in text
    assert "Timed cases" not in text


def test_a_program_is_data_and_stays_whole():
    """A program is no template, and no text in it closes its fence."""
    code = '"""\n```\n{{ gpu }} {% include "x" %}\n````\n## Your answer\n"""\n' + "x = 1\n" * 5000
    text = render_prompt(Prompt(ask="forecast"), **{**ROW, "candidate": code})
    assert f"`````python\n{code.rstrip()}\n`````" in text


def test_the_schema_of_an_answer_is_strict():
    """Every field is required and no other is allowed; reasons come first."""
    schema = answer_schema("defer")
    assert list(schema["properties"]) == schema["required"]
    assert schema["required"][0] == "rationale"
    assert schema["additionalProperties"] is False
    assert "defer" not in answer_schema("forecast")["properties"]
