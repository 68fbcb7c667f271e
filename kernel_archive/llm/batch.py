"""Write questions and read answers in the batch form of OpenAI-compatible services.

One line is one request or response; ``vllm run-batch`` takes the same files. Plain lines are read
too: ``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.llm.answers import Answers, Cell, ModelAnswer, read_answer
from kernel_archive.llm.prompts import Prompt, known_prompts
from kernel_archive.llm.questions import (
    ModelSettings,
    load_questions,
    questions_of,
    read_custom_id,
    request_body,
)
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

CHAT_URL: Final = "/v1/chat/completions"
#: Files of answers beyond this are refused.
MAX_ANSWER_BYTES: Final = 4 << 30
#: Code of the fault that a row is not of the split.
UNKNOWN: Final = "unknown-row"


def export_lines(answers: Answers, *, model: str, settings: ModelSettings) -> Iterator[bytes]:
    """Write the lines of a batch file: a request per question and repeat not yet answered."""
    questions = answers.questions
    for row_id, repeat in answers.open_cells():
        text = questions.by_id[row_id].text
        line = {
            "custom_id": questions.custom_id(row_id, repeat),
            "method": "POST",
            "url": CHAT_URL,
            "body": request_body(text, questions.prompt, model, settings),
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
        UsageError: no file is named, or the answers are to other questions than the split's.
    """
    reader = AnswerReader(split, load_questions(archive, split).asked.row_ids)
    for path in paths:
        reader.read_file(path)
    reader.check()
    if reader.prompt is None:
        raise UsageError("the files of --import hold no answer. Name what the service sent back")
    questions = questions_of(reader.prompt, archive, split, limit)
    if questions.prompt != reader.prompt:
        raise UsageError(
            f"the answers are to {reader.prompt.name}, and split {split} is asked with "
            f"{questions.prompt.name}"
        )
    answered, failures = reader.answered, reader.failures
    repeats = 1 + max(repeat for _, repeat in [*answered, *failures])
    answers = Answers(questions=questions, repeats=repeats, answered=answered, failures=failures)
    left_out = {*answered, *failures} - set(answers.cells())
    if left_out:
        raise UsageError(
            f"--limit {limit} leaves out rows that were answered: {len(left_out):,}. Import with "
            "the --limit of the export"
        )
    return answers


class AnswerReader:
    """Reads answers to the rows of a split, all to one prompt, and lists what is at fault."""

    def __init__(self, split: str, row_ids: Iterable[str]) -> None:
        self.split, self.row_ids, self.prompts = split, frozenset(row_ids), known_prompts()
        self.prompt: Prompt | None = None
        self.answered: dict[Cell, ModelAnswer] = {}
        self.failures: dict[Cell, str] = {}
        self.faults: list[Finding] = []
        self.unknown_rows: set[str] = set()  # answered, and not of the split

    def check(self) -> None:
        """Raise what was at fault; rows that are unknown are one fault, however many."""
        more = len(self.unknown_rows) - 1
        message = f"no row of {self.split} has this id, nor {more:,} more"
        for i, fault in enumerate(self.faults):
            if fault.code == UNKNOWN and more:
                self.faults[i] = msgspec.structs.replace(fault, message=message)
        summary = f"{len(self.faults)} faults in the answers" if len(self.faults) > 1 else None
        if self.faults:
            raise ForecastError.from_findings(self.faults, summary)

    def read_file(self, path: str | Path) -> None:
        """Read the answers of a file."""
        name = printable(str(path), 300)
        try:
            file = regular_file(path)
        except UntrustedFileError as error:
            raise ForecastError.from_findings([error.finding(name)]) from None
        most_lines = 10_000 + len(self.row_ids) * MAX_REPEATS
        for item in Lines(file, max_bytes=MAX_ANSWER_BYTES, max_lines=most_lines):
            if isinstance(item, Finding):
                self.faults.append(item)
            elif (fault := self._read_line(item[1])) is not None:
                self.faults.append(msgspec.structs.replace(fault, file=name, line=item[0]))

    def _read_line(self, text: bytes) -> Finding | None:
        """Take the answer of a line; return what is wrong with it, if something is."""
        try:
            line = msgspec.json.decode(text, type=dict[str, Any])
        except BAD_JSON as error:
            message = f"not a line with a JSON object: {printable(str(error), 200)}"
            fix = "Fetch the file again, or remove the line: its question is unanswered then"
            return Finding(code="bad-json", message=message, fix=fix)
        name = line.get("custom_id")
        parts = read_custom_id(name) if isinstance(name, str) else None
        if parts is None:
            message = "must be the custom_id of a question, as it was exported"
            return _bad_id("bad-custom-id", message, name)
        row_id, repeat, digest = parts
        prompt, cell = self.prompts.get(digest), (row_id, repeat)
        if prompt is None:
            message = "this version of the package has no prompt with this digest"
            fix = "Import with the version that exported the questions"
            return _bad_id("unknown-prompt", message, name, fix)
        if self.prompt is not None and prompt != self.prompt:
            message = f"answers {prompt.name}, and the lines before it {self.prompt.name}"
            fix = "Import the answers to each prompt into a file of its own"
            return _bad_id("several-prompts", message, name, fix)
        if row_id not in self.row_ids:
            first = not self.unknown_rows
            self.unknown_rows.add(row_id)
            fix = "Name the split with --split, or import with the archive that was asked about"
            fault = _bad_id(UNKNOWN, "no row of this split has this id", name, fix)
            return fault if first else None
        self.prompt = prompt
        if not line.keys() & {"answer", "response", "error"}:
            message = "there is neither an answer nor a response"
            fix = 'Write {"custom_id": ..., "answer": "..."}'
            return Finding(code="no-answer", message=message, fix=fix)
        answer = read_answer(line, *cell)
        if isinstance(answer, str):
            self.failures[cell] = answer
        elif self.answered.setdefault(cell, answer) != answer:
            message = "another line answers this question differently"
            return _bad_id("repeated-answer", message, name, "Drop one of the two")
        return None


def _bad_id(code: str, message: str, value: object, fix: str | None = None) -> Finding:
    shown = None if value is None else printable(value)
    return Finding(code=code, message=message, field="custom_id", value=shown, fix=fix)
