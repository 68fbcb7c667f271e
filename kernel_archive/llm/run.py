"""What was asked of which model: ``FILE.run.json`` beside a forecast file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kernel_archive._version import __version__
from kernel_archive.llm.answers import Answers
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.storage import write_atomically


class ModelRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of which model, saved next to the forecasts; a board's entry copies it."""

    prompt: str  # name and digest
    model: str
    answer: str  # form of the answer
    settings: dict[str, Any] = {}  # empty where they are not known
    package: str = __version__
    date: str = ""  # empty where it is not known
    served_models: list[str] = []  # as the service names them
    input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, answers: Answers) -> ModelRun:
        """Say how which model was asked, and what the answers say and cost."""
        prompt, answered = answers.questions.prompt, answers.answered.values()
        return cls(
            prompt=prompt.name,
            model=answers.model,
            answer=prompt.answer,
            settings=msgspec.to_builtins(answers.settings),
            date=answers.date,
            served_models=sorted({a.model for a in answered if a.model is not None}),
            input_tokens=sum(a.input_tokens or 0 for a in answered),
            output_tokens=sum(a.output_tokens or 0 for a in answered),
        )

    def save(self, output: str | Path) -> None:
        """Write it beside a forecast file."""
        data = msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"
        write_atomically(run_path(output), data)


def run_path(output: str | Path) -> Path:
    """Return the file that says what was asked for a forecast file."""
    return Path(f"{output}.run.json")


def read_run(output: str | Path) -> ModelRun | None:
    """Read what was asked for a forecast file; ``None`` where that is not known."""
    try:
        return msgspec.json.decode(run_path(output).read_bytes(), type=ModelRun)
    except (OSError, *BAD_JSON):
        return None
