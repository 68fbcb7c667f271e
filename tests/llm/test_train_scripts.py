"""The whole way of examples/train with a tiny random model on a CPU: data, both trainings, a stop
in between, forecasts.
"""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_archive.llm.answers import import_answers

SCRIPTS = Path(__file__).parents[2] / "examples" / "train"
CONFIG = """
[data]
folder = "data"
kinds = ["seed", "parent_edit"]
seed = 0
splits = ["eval", "discovery"]
[model]
folder = "model"
[supervised]
max_prompt_tokens = 9000
steps = 2
batch = 2
micro_batch = 1
learning_rate = 1e-3
lora_rank = 0
checkpoint_every = 1
[grpo]
rewards = ["crps"]
max_prompt_tokens = 9000
steps = 2
groups = 1
group = 2
micro_batch = 1
temperature = 1.0
max_new_tokens = 4
learning_rate = 1e-3
lora_rank = 2
checkpoint_every = 1
[forecast]
repeats = 2
temperature = 1.0
max_new_tokens = 4
tokens_in_batch = 20000
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("trl", "peft")),
        reason="needs: pip install trl peft",
    ),
]


def script(folder, line):
    """Run one of the scripts in a folder."""
    name, *arguments = line.split()
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS.parents[1]), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def lines(path):
    """The JSON lines of a compressed file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def steps(folder):
    """The steps that a run has logged."""
    logged = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line["step"] for line in logged if "loss" in line]


def test_the_whole_way_on_a_cpu(archive, tmp_path):
    """Both stages learn, go on where they were stopped, and make forecasts."""
    (tmp_path / "config.toml").write_text(CONFIG)
    script(tmp_path, f"prepare.py config.toml --archive {archive.path}")
    assert len(lines(tmp_path / "data/train.jsonl.gz")) == archive.arrow("train_pairs").num_rows
    assert not {"bin", "speedup", "g"} & set(lines(tmp_path / "data/questions.jsonl.gz")[0])
    script(tmp_path, "model.py tiny model")
    script(tmp_path, "train.py config.toml supervised --output supervised --seconds 0")
    assert steps(tmp_path / "supervised") == [1]
    script(tmp_path, "train.py config.toml supervised --output supervised")
    assert steps(tmp_path / "supervised") == [1, 2]
    script(tmp_path, "run.py config.toml --limit 2")
    record = json.loads((tmp_path / "grpo-crps/training.json").read_text())
    assert (record["split"], record["held_out"], record["reward"]) == ("train", False, "crps")
    assert len(steps(tmp_path / "grpo-crps")) == 2
    for name in ("base", "supervised", "crps"):
        answers = lines(tmp_path / f"results/answers-{name}.jsonl.gz")
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(a) + "\n" for a in answers if a["split"] == "eval"))
        _, counts = import_answers([path], archive, "eval").forecast_file()
        assert counts.answered == 4
