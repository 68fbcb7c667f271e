"""What was asked of which model: ``FILE.run.json`` beside a forecast file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.open import Archive
from kernel_archive.llm.answers import Answers
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.storage import write_atomically


class ModelRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of which model, saved next to the forecasts; a board's entry copies it."""

    archive: str  # name, version and logical digest
    split: str
    prompt: str  # name and digest
    model: str
    answer: str  # form of the answer
    settings: dict[str, Any] = {}  # empty where they are not known
    package: str = __version__
    date: str = ""  # empty where it is not known
    served_models: list[str] = []  # as the service names them
    rows: int = 0
    repeats: int = 1
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, archive: Archive, answers: Answers) -> ModelRun:
        """Say which questions were asked of which model, and what the answers say and cost."""
        manifest, questions = archive.manifest, answers.questions
        answered = answers.answered.values()
        return cls(
            archive=f"{manifest.name} {manifest.version} {manifest.logical_digest}",
            split=questions.asked.split.name,
            prompt=questions.prompt.name,
            model=answers.model,
            answer=questions.prompt.answer,
            settings=msgspec.to_builtins(answers.settings),
            date=answers.date,
            served_models=sorted({a.model for a in answered if a.model is not None}),
            rows=len(questions),
            repeats=answers.repeats,
            answers=len(answered),
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
