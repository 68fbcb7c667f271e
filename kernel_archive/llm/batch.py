"""Write questions and read answers in the batch form of OpenAI-compatible services.

One line is one request or response; ``vllm run-batch`` takes the same files. Plain lines are read
too: ``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.llm.answers import Answers, ModelAnswer, stop_reason
from kernel_archive.llm.prompts import TOOL_NAME, Prompt, answer_schema, known_prompts
from kernel_archive.llm.questions import Questions, load_questions, read_custom_id
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from kernel_archive.archive.open import Archive

CHAT_URL: Final = "/v1/chat/completions"
#: Files of answers beyond this are refused.
MAX_ANSWER_BYTES: Final = 4 << 30


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is told beside the prompt; the service decides what is not given.

    ``max_tokens`` counts an answer's tokens, reasoning included.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None


def request_body(text: str, prompt: Prompt, model: str, settings: ModelSettings) -> dict[str, Any]:
    """Make the chat request of one question."""
    options = msgspec.to_builtins(settings)
    if "max_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_tokens")
    messages = [{"role": "user", "content": text}]
    return {"model": model, "messages": messages, **_answer_form(prompt), **options}


def _answer_form(prompt: Prompt) -> dict[str, Any]:
    """Say in a request which form the answer has."""
    schema = answer_schema(prompt.ask)
    if prompt.answer == "tool":
        function = {"name": TOOL_NAME, "description": "Give the forecast.", "strict": True}
        return {
            "tools": [{"type": "function", "function": {**function, "parameters": schema}}],
            "tool_choice": {"type": "function", "function": {"name": TOOL_NAME}},
        }
    if prompt.answer == "json":
        json_schema = {"name": TOOL_NAME, "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": json_schema}}
    return {}


def export_lines(
    questions: Questions,
    *,
    model: str,
    repeats: int = 1,
    settings: ModelSettings | None = None,
    answered: Collection[tuple[str, int]] = (),
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
    _name_other_split(reader, archive, split)
    if reader.faults:
        n = len(reader.faults)
        summary = f"{n} faults in the answers" if n > 1 else None
        raise ForecastError.from_findings(reader.faults, summary)
    prompt = reader.prompt
    if prompt is None:
        raise UsageError("there is no answer to import: name a file with answers")
    questions = load_questions(
        archive,
        split,
        answer=prompt.answer,
        bins=prompt.scheme,
        defer=prompt.ask == "defer",
        limit=limit,
        version=prompt.version,
    )
    if questions.prompt != prompt:
        raise UsageError(
            f"the answers are to {prompt.name}, and split {split} is asked with "
            f"{questions.prompt.name}"
        )
    cells = {*reader.given, *reader.failures}
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


def _name_other_split(reader: _AnswerReader, archive: Archive, split: str) -> None:
    """Where whole files answer for another split, say that once, and which one it is."""
    if not reader.unknown_rows or reader.given or reader.failures:
        return
    fitting = [
        name
        for name, other in FORECAST_SPLITS.items()
        if name != split
        and other.table in archive.manifest.splits
        and reader.unknown_rows
        <= set(archive.arrow(other.table, columns=["row_id"])[0].to_pylist())
    ]
    guess, fix = (
        "is it of another version of the archive?",
        "Import with the archive that the questions were made from",
    )
    if fitting:
        guess, fix = f"these are ids of {fitting[0]}", f"Import them with --split {fitting[0]}"
    others = len(reader.unknown_rows) - 1
    message = f"no row of {split} has this id, nor any of the other {others:,} answered: {guess}"
    first = next(fault for fault in reader.faults if fault.code == "unknown-row")
    rest = [fault for fault in reader.faults if fault.code != "unknown-row"]
    reader.faults = [*rest, msgspec.structs.replace(first, message=message, fix=fix)]


@dataclass
class _AnswerReader:
    """Reads answers line by line; ``unknown_rows`` are answered and not of the split."""

    row_ids: set[str]
    prompts: dict[str, Prompt] = field(default_factory=known_prompts)
    prompt: Prompt | None = None
    given: dict[tuple[str, int], ModelAnswer] = field(default_factory=dict)
    failures: dict[tuple[str, int], str] = field(default_factory=dict)
    faults: list[Finding] = field(default_factory=list)
    unknown_rows: set[str] = field(default_factory=set)

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

    def _cell(self, custom_id: object) -> tuple[str, int]:
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


def read_answer(line: dict[str, Any], row_id: str, repeat: int) -> ModelAnswer | str:
    """Read a plain answer line or a service's output line; a text says why there is no answer."""
    seconds = line.get("latency_s")
    in_range = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    latency = float(seconds) if seconds is not None and in_range else None
    if "answer" in line:
        return ModelAnswer(
            row_id=row_id,
            repeat=repeat,
            content=line["answer"],
            stop_reason=stop_reason(line.get("stop_reason")),
            input_tokens=_count(line.get("input_tokens")),
            output_tokens=_count(line.get("output_tokens")),
            latency_s=latency,
        )
    response = line.get("response")
    if not isinstance(response, dict) or line.get("error"):
        return _failure(line.get("error"), "failed")
    body, status = response.get("body"), response.get("status_code", 200)
    if not isinstance(body, dict) or status != 200:
        inner = body.get("error", body) if isinstance(body, dict) else None
        return _failure(inner, f"status {status}" if isinstance(status, int) else "failed")
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return "the response holds no message"
    stated = body.get("usage")
    usage: dict[str, Any] = stated if isinstance(stated, dict) else {}
    stop = "refused" if message.get("refusal") else stop_reason(choice.get("finish_reason"))
    return ModelAnswer(
        row_id=row_id,
        repeat=repeat,
        content={key: message.get(key) for key in ("content", "tool_calls")},
        stop_reason=stop,
        model=printable(body["model"], 200) if isinstance(body.get("model"), str) else None,
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        latency_s=latency,
    )


def _failure(error: object, status: str) -> str:
    """Say why a request has no answer: the status, and what the service says of it."""
    message = error if isinstance(error, str) else ""
    if isinstance(error, dict):
        words = [error.get(key) for key in ("code", "type", "message")]
        message = next((word for word in words if isinstance(word, str) and word), "")
    return f"{status}: {printable(message, 200)}" if message else status


def _count(value: object) -> int | None:
    """Return a count of tokens, ``None`` for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count else None  # type: ignore[return-value] # checked above
