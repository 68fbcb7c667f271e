"""Write questions and read answers in the batch form of OpenAI-compatible services.

One line is one request or response; ``vllm run-batch`` takes the same files. Plain lines are read
too: ``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.llm.answers import Answers, Cell, ModelAnswer
from kernel_archive.llm.chat import ModelSettings, read_answer, request_body
from kernel_archive.llm.prompts import Prompt, known_prompts
from kernel_archive.llm.questions import Questions, load_questions, questions_of, read_custom_id
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.archive.open import Archive

CHAT_URL: Final = "/v1/chat/completions"
#: Files of answers beyond this are refused.
MAX_ANSWER_BYTES: Final = 4 << 30


def export_lines(
    questions: Questions,
    *,
    model: str,
    repeats: int = 1,
    settings: ModelSettings | None = None,
    answered: Collection[Cell] = (),
) -> Iterator[bytes]:
    """Write the lines of a batch file: a request per question and repeat not yet ``answered``."""
    settings = settings or ModelSettings()
    for question in questions:
        for repeat in range(repeats):
            if (question.row_id, repeat) in answered:
                continue
            line = {
                "custom_id": questions.custom_id(question.row_id, repeat),
                "method": "POST",
                "url": CHAT_URL,
                "body": request_body(question.text, questions.prompt, model, settings),
            }
            yield msgspec.json.encode(line) + b"\n"


def import_answers(
    paths: Iterable[str | Path], archive: Archive, split: str = "eval", *, limit: int | None = None
) -> Answers:
    """Read answers from files.

    Several files are one run: what failed in one may stand answered in another. ``limit`` is that
    of the export, so that missing answers are counted right.

    Raises:
        ForecastError: something in the files is at fault; every fault is named.
        UsageError: no file is named.
    """
    reader = _AnswerReader(set(load_questions(archive, split).asked.row_ids))
    for path in paths:
        reader.read_file(path)
    if reader.unknown_rows and not reader.cells():
        # Whole files are of another split: that is said once.
        others = len(reader.unknown_rows) - 1
        message = f"no row of {split} has this id, nor any of the other {others:,} read"
        fix = "Name the split with --split, or import with the archive that was asked about"
        unknown = [fault for fault in reader.faults if fault.code == "unknown-row"]
        rest = [fault for fault in reader.faults if fault.code != "unknown-row"]
        reader.faults = [*rest, msgspec.structs.replace(unknown[0], message=message, fix=fix)]
    if reader.faults:
        n = len(reader.faults)
        summary = f"{n} faults in the answers" if n > 1 else None
        raise ForecastError.from_findings(reader.faults, summary)
    prompt = reader.prompt
    if prompt is None:
        raise UsageError("there is no answer to import: name a file with answers")
    questions = questions_of(prompt, archive, split, limit)
    if questions.prompt != prompt:
        raise UsageError(
            f"the answers are to {prompt.name}, and split {split} is asked with "
            f"{questions.prompt.name}"
        )
    cells = reader.cells()
    answers = Answers(questions=questions, repeats=1 + max(repeat for _, repeat in cells))
    extra = cells - set(answers.cells())
    if extra:
        raise UsageError(
            f"{len(extra)} answers are to rows that --limit {limit} does not ask about. Import "
            "with the limit of the export"
        )
    answers.given = reader.given
    answers.failures = {c: why for c, why in reader.failures.items() if c not in reader.given}
    return answers


@dataclass
class _AnswerReader:
    """Reads answers line by line; ``unknown_rows`` are answered and not of the split."""

    row_ids: set[str]
    prompts: dict[str, Prompt] = field(default_factory=known_prompts)
    prompt: Prompt | None = None
    given: dict[Cell, ModelAnswer] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)
    faults: list[Finding] = field(default_factory=list)
    unknown_rows: set[str] = field(default_factory=set)

    def cells(self) -> set[Cell]:
        """Give the questions that were read something of."""
        return {*self.given, *self.failures}

    def read_file(self, path: str | Path) -> None:
        shown = printable(str(path), 300)
        try:
            file = regular_file(path)
        except UntrustedFileError as error:
            raise ForecastError.from_findings([error.finding(shown)]) from None
        most_lines = 10_000 + len(self.row_ids) * MAX_REPEATS
        lines = Lines(file, max_bytes=MAX_ANSWER_BYTES, max_lines=most_lines)
        for item in lines:
            if isinstance(item, Finding):
                self.faults.append(item)
                continue
            number, text = item
            try:
                self._read_line(_json_object(text, cut=lines.ended_mid_line))
            except ForecastError as error:
                self.faults += [
                    msgspec.structs.replace(finding, file=shown, line=number)
                    for finding in error.findings
                ]

    def _read_line(self, line: dict[str, Any]) -> None:
        cell = self._cell(line.get("custom_id"))
        if "answer" not in line and "response" not in line and "error" not in line:
            raise ForecastError.of(
                code="no-answer",
                message="there is neither an answer nor a response",
                fix='Write {"custom_id": ..., "answer": "..."}',
            )
        answer = read_answer(line, *cell)
        if isinstance(answer, str):
            self.failures[cell] = answer
        elif self.given.setdefault(cell, answer) != answer:
            message = "another line answers this question differently"
            raise _bad_id("repeated-answer", message, line["custom_id"], "Drop one of the two")

    def _cell(self, custom_id: object) -> Cell:
        """Return row id and repeat of a line that answers the same prompt as the others."""
        parts = read_custom_id(custom_id) if isinstance(custom_id, str) else None
        if parts is None:
            message = "must be the custom_id of a question, as it was exported"
            raise _bad_id("bad-custom-id", message, custom_id)
        row_id, repeat, digest = parts
        prompt = self.prompts.get(digest)
        if prompt is None:
            message = "this version of the package has no prompt with this digest"
            fix = "Import with the version that exported the questions"
            raise _bad_id("unknown-prompt", message, custom_id, fix)
        if self.prompt is not None and prompt != self.prompt:
            message = f"answers {prompt.name}, and the lines before it {self.prompt.name}"
            fix = "Import the answers to each prompt into a file of its own"
            raise _bad_id("several-prompts", message, custom_id, fix)
        if row_id not in self.row_ids:
            self.unknown_rows.add(row_id)
            fix = "Is it of another split, or another version of the archive?"
            raise _bad_id("unknown-row", "no row of this split has this id", custom_id, fix)
        self.prompt = prompt
        return row_id, repeat


def _bad_id(code: str, message: str, value: object, fix: str | None = None) -> ForecastError:
    shown = None if value is None else printable(value)
    return ForecastError.of(code=code, message=message, field="custom_id", value=shown, fix=fix)


def _json_object(text: bytes, *, cut: bool) -> dict[str, Any]:
    """Decode a line's JSON object; ``cut`` where the file ends in the middle of the line."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        code, message = "bad-json", f"not a JSON line: {printable(str(error), 200)}"
        if cut:
            code, message = "cut-off", "the file ends in the middle of this line"
        fix = "Fetch the file again, or remove the line: its row stays unanswered"
        raise ForecastError.of(code=code, message=message, fix=fix) from None
    if not isinstance(value, dict):
        message = "a line must hold one JSON object"
        raise ForecastError.of(code="bad-json", message=message, value=printable(value))
    return value
