"""A run of questions to one model: what is asked, what was answered, and the files beside them.

Beside the forecast file FILE stand ``FILE.answers.jsonl``, every response as it came (the batch
form, so that ``--import`` reads it too), and ``FILE.run.json``, what was asked (:class:`ModelRun`).
Answers that stand there are never asked again.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from kernel_archive._version import __version__
from kernel_archive.errors import KernelArchiveError, UsageError, printable
from kernel_archive.llm.answers import Answers, Cell, ModelAnswer
from kernel_archive.llm.chat import ModelSettings, read_answer
from kernel_archive.llm.questions import Questions, estimated_tokens, read_custom_id
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.storage import locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.service import Service

#: Tokens of an answer when ``--max-tokens`` is not given: without and with a reasoning effort.
DEFAULT_MAX_TOKENS: Final = (2_000, 32_000)
#: What a run may not change.
_FIXED: Final = ("archive", "split", "prompt", "model", "settings", "answer")


class ModelRun(msgspec.Struct, kw_only=True):
    """What was asked, of which model: stands beside the answers and goes into a board's entry."""

    archive: str  # name, version and logical digest
    split: str
    prompt: str  # name and digest
    model: str
    answer: str  # form of the answer
    settings: dict[str, Any]
    package: str = __version__
    date: str = ""  # of the first question
    served_models: list[str] = []  # as the service names them
    host: str | None = None  # only where the user asked to name it
    rows: int = 0
    repeats: int = 1
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    failures: dict[str, int] = {}  # kind -> questions that are without an answer for it


def answers_path(output: str | Path) -> Path:
    """Return the file of the answers to a forecast file."""
    return Path(f"{output}.answers.jsonl")


def run_path(output: str | Path) -> Path:
    """Return the file that says what was asked for a forecast file."""
    return Path(f"{output}.run.json")


def read_run(output: str | Path) -> ModelRun | None:
    """Read what was asked for a forecast file; ``None`` where that is not known."""
    try:
        return msgspec.json.decode(run_path(output).read_bytes(), type=ModelRun)
    except (OSError, *BAD_JSON):
        return None


class Run:
    """One run: the questions, who answers them, and the files beside the forecast file."""

    def __init__(
        self,
        archive: Archive,
        questions: Questions,
        service: Service,
        output: str | Path,
        *,
        settings: ModelSettings,
        repeats: int = 1,
        name_host: bool = False,
    ) -> None:
        """Prepare a run; nothing is read, sent or written."""
        self.questions, self.service = questions, service
        default = DEFAULT_MAX_TOKENS[settings.reasoning_effort is not None]
        most = settings.max_tokens or default
        self.settings = msgspec.structs.replace(settings, max_tokens=most)
        self.output = Path(output)
        self.answers = Answers(questions=questions, repeats=repeats)
        self.reused = 0  # answers that stood in the file before
        self.retries = 0  # requests that were sent again
        self.failures: Counter[str] = Counter()  # kind -> questions
        self.examples: dict[str, str] = {}  # kind of failure -> what the server said
        self.input_tokens = self.output_tokens = 0
        self.stopped_by = ""  # the bound that ended the run, if one did
        manifest = archive.manifest
        self.record = ModelRun(
            archive=f"{manifest.name} {manifest.version} {manifest.logical_digest}",
            split=questions.asked.split.name,
            prompt=questions.prompt.name,
            model=service.model,
            answer=questions.prompt.answer,
            settings=msgspec.to_builtins(self.settings),
            date=datetime.now(UTC).date().isoformat(),
            host=urlsplit(service.url).netloc.rpartition("@")[2] if name_host else None,
        )

    def load(self) -> None:
        """Take the answers that stand beside the forecast file.

        Raises:
            UsageError: they are answers to another question.
        """
        path, before = answers_path(self.output), read_run(self.output)
        if before is None and not path.exists():
            return
        shown = f"the answers in {printable(str(path), 300)} are of another run"
        fix = f"Give another -o, or remove them and {run_path(self.output).name}"
        if before is None:
            raise UsageError(f"{shown}, or of an unknown one. {fix}")
        for name in _FIXED:
            old, new = getattr(before, name), getattr(self.record, name)
            if old != new:
                raise UsageError(
                    f"{shown}: {name} {printable(old)} instead of {printable(new)}. {fix}"
                )
        self.record.date, self.record.retries = before.date, before.retries
        cells = set(self.answers.cells())
        for line in _whole_lines(path):
            parts = read_custom_id(str(line.get("custom_id")))
            if parts is not None and parts[:2] in cells:
                answer = read_answer(line, *parts[:2])
                if isinstance(answer, ModelAnswer):
                    self.answers.given.setdefault(parts[:2], answer)
        self.reused = len(self.answers.given)

    def open_cells(self) -> list[Cell]:
        """List the questions without an answer, in their order."""
        return [cell for cell in self.answers.cells() if cell not in self.answers.given]

    def estimate(self) -> dict[str, int]:
        """Bound what the open questions will cost, in tokens read and written."""
        tokens = {q.row_id: estimated_tokens(q.text) for q in self.questions}
        cells = self.open_cells()
        return {
            "questions": len(cells),
            "reused": self.reused,
            "input_tokens": sum(tokens[row_id] for row_id, _ in cells),
            "output_tokens": len(cells) * (self.settings.max_tokens or 0),
        }

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs from writing beside the same forecast file while a block runs."""
        busy = f"another run is writing beside {printable(str(self.output), 300)}"
        return locked(Path(f"{self.output}.lock"), busy=busy)

    def save(self) -> None:
        """Write what was asked, and what became of it, beside the answers."""
        given = self.answers.given.values()
        record = self.record
        record.rows, record.repeats = len(self.questions), self.answers.repeats
        record.answers = len(given)
        record.served_models = sorted({a.model for a in given if a.model is not None})
        record.input_tokens = sum(answer.input_tokens or 0 for answer in given)
        record.output_tokens = sum(answer.output_tokens or 0 for answer in given)
        record.failures = dict(sorted(self.failures.items()))
        data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        write_atomically(run_path(self.output), data)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of an answer file; cut off what a killed run left of its last one."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    for number, text in enumerate(data[:whole].splitlines(), 1):
        try:
            yield msgspec.json.decode(text, type=dict[str, Any])
        except BAD_JSON as error:
            raise KernelArchiveError(
                f"{printable(str(path), 300)}:{number}: not a JSON line "
                f"({printable(str(error))}). Remove the line; its question is asked again"
            ) from None
