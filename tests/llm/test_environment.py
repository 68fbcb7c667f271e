"""The environment for verifiers: its rows, its rewards, and verifiers' own checks."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_archive.errors import UsageError
from kernel_archive.llm.training import load_training_examples
from kernel_archive.scoring.rewards import KINDS, of_completions

NEEDED = ("verifiers", "kernel_forecasts")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED),
        reason="needs: pip install environments/kernel_forecasts",
    ),
]
P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]
ANSWERS = [
    json.dumps({"probabilities": P}),
    "no idea",
    f"<think>{json.dumps({'probabilities': P})}</think>",
    "",
]


def environment(archive, **more):
    """The environment on the small archive."""
    from kernel_forecasts import load_environment

    return load_environment(archive=str(archive.path), **more)


def judged(task, text):
    """What a task says of an answer: its reward and its metrics."""
    import verifiers.v1 as vf
    from verifiers.v1.graph import MessageNode

    trace = vf.Trace(
        task=vf.TraceTask(type="ForecastTask", data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[MessageNode(message=vf.AssistantMessage(content=text), sampled=True)],
    )
    asyncio.run(task.score(trace))
    return trace


def test_rows_are_the_training_examples(archive):
    """Prompts, labels and order; held-out rows on request only."""
    examples = load_training_examples(archive)
    tasks = list(environment(archive).taskset)
    assert [(t.key, t.data.prompt, t.data.bin) for t in tasks] == [
        (row.row_id, examples.text(row), row.bin) for row in examples.rows
    ]
    with pytest.raises(UsageError, match="held_out=True"):
        list(environment(archive, split="eval").taskset)
    assert len(list(environment(archive, split="eval", held_out=True).taskset)) == 48
    assert not list(environment(archive, max_prompt_tokens=10).taskset)


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_are_those_of_the_archive(archive, kind):
    """Letter by letter the same figures, whatever is answered; all four are logged."""
    task = next(iter(environment(archive, reward=kind).taskset))
    for text in ANSWERS:
        trace = judged(task, text)
        assert trace.reward == of_completions([text], bins=[task.data.bin], kind=kind)[0]
        for other in KINDS:
            assert (
                trace.metrics[f"reward_{other}"]
                == of_completions([text], bins=[task.data.bin], kind=other)[0]
            )
        assert trace.metrics["parsed"] == (text == ANSWERS[0])


def test_the_checks_of_verifiers_pass(archive, tmp_path):
    """vf-validate: the ground truth earns all there is, an untouched task nothing."""
    program = str(Path(sys.executable).with_name("vf-validate"))
    options = "kernel-forecasts -n 3 --runtime.type subprocess --no-rich -o"
    command = [program, *options.split(), str(tmp_path), "--taskset.archive", str(archive.path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert (summary["total"], summary["outcomes"]["valid"]) == (3, 3)
