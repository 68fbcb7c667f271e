"""Write questions and read answers in the batch form of OpenAI-compatible services.

One line is one request or response; ``vllm run-batch`` takes the same files. Plain lines are read
too: ``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.llm.answers import Answers, Cell, ModelAnswer, read_answer
from kernel_archive.llm.prompts import Prompt, known_prompts
from kernel_archive.llm.questions import ModelSettings, load_questions, read_custom_id, request_body
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

CHAT_URL: Final = "/v1/chat/completions"
#: Files of answers beyond this are refused.
MAX_ANSWER_BYTES: Final = 4 << 30


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
    reader = AnswerReader(split, load_questions(archive, split).all_ids)
    reader.read(paths)
    prompt = reader.prompt
    if prompt is None:
        raise UsageError("the files of --import hold no answer. Name what the service sent back")
    questions = load_questions(archive, split, limit=limit, **prompt.options)
    if questions.prompt != prompt:
        raise UsageError(
            f"the answers are to {prompt.name}, and split {split} is asked with "
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

    def read(self, paths: Iterable[str | Path]) -> None:
        """Read the answers of files.

        Raises:
            ForecastError: with every fault; rows that are unknown are one, however many.
        """
        faults: list[Finding] = []
        most_lines = 10_000 + len(self.row_ids) * MAX_REPEATS
        for path in paths:
            name = printable(str(path), 300)
            try:
                file = regular_file(path)
            except UntrustedFileError as error:
                raise ForecastError.from_findings([error.finding(name)]) from None
            for item in Lines(file, max_bytes=MAX_ANSWER_BYTES, max_lines=most_lines):
                if isinstance(item, Finding):
                    faults.append(item)
                elif fault := self._read_line(item[1]):
                    faults.append(msgspec.structs.replace(fault, file=name, line=item[0]))
        unknown = [fault for fault in faults if fault.code == "unknown-row"]
        more = len({str(fault.value).rsplit("-", 2)[0] for fault in unknown}) - 1
        if more > 0:
            message = f"no row of {self.split} has this id, nor {more:,} more"
            first = msgspec.structs.replace(unknown[0], message=message)
            faults = [first, *(fault for fault in faults if fault.code != "unknown-row")]
        if faults:
            summary = f"{len(faults)} faults in the answers" if len(faults) > 1 else None
            raise ForecastError.from_findings(faults, summary)

    def _read_line(self, text: bytes) -> Finding | None:
        """Take the answer of a line; return what is wrong with it, if something is."""
        try:
            line = msgspec.json.decode(text, type=dict[str, Any])
        except BAD_JSON as error:
            message = f"not a line with a JSON object: {printable(str(error), 200)}"
            fix = "Fetch the file again, or remove the line: its question is unanswered then"
            return Finding(code="bad-json", message=message, fix=fix)
        name = line.get("custom_id")
        shown = None if name is None else printable(name)
        fault = partial(Finding, field="custom_id", value=shown)
        parts = read_custom_id(name) if isinstance(name, str) else None
        if parts is None:
            message = "must be the custom_id of a question, as it was exported"
            return fault(code="bad-custom-id", message=message)
        row_id, repeat, digest = parts
        prompt, cell = self.prompts.get(digest), (row_id, repeat)
        if prompt is None:
            message = "this version of the package has no prompt with this digest"
            fix = "Import with the version that exported the questions"
            return fault(code="unknown-prompt", message=message, fix=fix)
        if self.prompt is not None and prompt != self.prompt:
            message = f"answers {prompt.name}, and the lines before it {self.prompt.name}"
            fix = "Import the answers to each prompt into a file of its own"
            return fault(code="several-prompts", message=message, fix=fix)
        if row_id not in self.row_ids:
            message = f"no row of {self.split} has this id"
            fix = "Name the split with --split, or import with the archive that was asked about"
            return fault(code="unknown-row", message=message, fix=fix)
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
            return fault(code="repeated-answer", message=message, fix="Drop one of the two")
        return None
