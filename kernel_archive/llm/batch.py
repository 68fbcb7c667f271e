"""The batch form of OpenAI-compatible services, and of ``vllm run-batch``: questions out, answers in.

So a model behind any wall can take part: its owner gets a file of questions and sends back a file of answers. Beside the
output lines of such services, plain lines are read: ``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import Finding, ForecastError, UsageError, printable
from kernel_archive.llm.answers import Answered, Forecasted, stop_reason
from kernel_archive.llm.prompts import (
    TOOL_NAME,
    Prompt,
    Questions,
    answer_schema,
    known_prompts,
    load_questions,
    read_custom_id,
)
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.splits import FORECAST_SPLITS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kernel_archive.archive.open import Archive

_URL: Final = "/v1/chat/completions"


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is told beside the prompt; what is not given is left to the service. An answer's tokens include reasoning."""

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None


def export_lines(
    questions: Questions, *, model: str, repeats: int = 1, settings: Settings | None = None
) -> Iterator[bytes]:
    """The lines of a batch file: one request for every question and repeat."""
    told = msgspec.to_builtins(settings or Settings())
    if "max_tokens" in told:
        told["max_completion_tokens"] = told.pop("max_tokens")
    form = _form(questions.prompt)
    for question in questions:
        for repeat in range(repeats):
            body = {"model": model, "messages": [{"role": "user", "content": question.text}], **form, **told}
            line = {
                "custom_id": questions.custom_id(question.row_id, repeat),
                "method": "POST",
                "url": _URL,
                "body": body,
            }
            yield msgspec.json.encode(line) + b"\n"


def _form(prompt: Prompt) -> dict[str, Any]:
    """What a request says of the form of its answer."""
    schema = answer_schema(prompt.ask)
    if prompt.answer == "tool":
        function = {"name": TOOL_NAME, "description": "Give the forecast.", "parameters": schema, "strict": True}
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": TOOL_NAME}},
        }
    if prompt.answer == "json":
        return {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": TOOL_NAME, "strict": True, "schema": schema},
            }
        }
    return {}


def import_answers(
    paths: Iterable[str | Path], archive: Archive, split: str = "eval", *, limit: int | None = None
) -> Forecasted:
    """Answers out of files, ready to be written as forecasts.

    Several files are one: what failed in the first and was asked again stands answered in the second.

    ``limit`` is that of the export, so that what is missing is counted right.

    Raises:
        ForecastError: something in the files is at fault; every fault is named.
        UsageError: no file is named.
    """
    reading = _Reading(load_questions(archive, split).asked.row_ids)
    for path in paths:
        reading.read(path)
    _name_the_split(reading, archive, split)
    if reading.faults:
        n = len(reading.faults)
        raise ForecastError.from_findings(reading.faults, f"{n} faults in the answers" if n > 1 else None)
    if reading.prompt is None:
        raise UsageError("there is no answer to import: name a file with answers")
    prompt = reading.prompt
    questions = load_questions(
        archive, split, answer=prompt.answer, bins=prompt.scheme, defer=prompt.ask == "defer", limit=limit, version=prompt.version,
    )  # fmt: skip
    if questions.prompt != prompt:
        raise UsageError(f"the answers are to {prompt.name}, and split {split} is asked with {questions.prompt.name}")
    cells = [*reading.answers, *reading.failures]
    made = Forecasted(questions=questions, repeats=1 + max(repeat for _, repeat in cells))
    wanted = set(made.cells())
    extra = [cell for cell in cells if cell not in wanted]
    if extra:
        raise UsageError(
            f"{len(extra)} answers are to rows that --limit {limit} does not ask about. Import with the limit of the export"
        )
    made.answers.update(reading.answers)
    made.failures.update({cell: why for cell, why in reading.failures.items() if cell not in reading.answers})
    return made


def _name_the_split(reading: _Reading, archive: Archive, split: str) -> None:
    """Where whole files answer for another split, say that once, and which one it is."""
    if not reading.strangers or reading.answers or reading.failures:
        return
    found = [
        name
        for name, other in FORECAST_SPLITS.items()
        if name != split
        and other.table in archive.manifest.splits
        and reading.strangers <= set(archive.arrow(other.table, columns=["row_id"])["row_id"].to_pylist())
    ]
    whose, fix = "is it of another version of the archive?", "Import with the archive that the questions were made from"
    if found:
        whose, fix = f"these are ids of {found[0]}", f"Import them with --split {found[0]}"
    others = len(reading.strangers) - 1
    message = f"no row of {split} has this id, nor any of the other {others:,} that are answered: {whose}"
    first = next(fault for fault in reading.faults if fault.code == "unknown-row")
    rest = [fault for fault in reading.faults if fault.code != "unknown-row"]
    reading.faults = [*rest, msgspec.structs.replace(first, message=message, fix=fix)]


class _Reading:
    """Answers as they are read, line by line; ``strangers`` are rows that are answered and are not of the split."""

    def __init__(self, row_ids: Iterable[str]) -> None:
        self.known = set(row_ids)
        self.prompts = known_prompts()
        self.prompt: Prompt | None = None
        self.answers: dict[tuple[str, int], Answered] = {}
        self.failures: dict[tuple[str, int], str] = {}
        self.faults: list[Finding] = []
        self.strangers: set[str] = set()

    def read(self, path: str | Path) -> None:
        """Take the lines of a file."""
        shown = printable(str(path), 300)
        try:
            file = regular_file(path)
        except UntrustedFileError as error:
            raise ForecastError.from_findings([error.finding(shown)]) from None
        lines = Lines(file, max_bytes=4 << 30, max_lines=10_000 + len(self.known) * MAX_REPEATS)
        for item in lines:
            if isinstance(item, Finding):
                self.faults.append(item)
                continue
            number, text = item
            try:
                self._take(_object(text, cut=lines.ended_mid_line))
            except ForecastError as error:
                self.faults += [msgspec.structs.replace(found, file=shown, line=number) for found in error.findings]

    def _take(self, line: dict[str, Any]) -> None:
        cell = self._cell(line.get("custom_id"))
        if "answer" in line:
            got: Answered | str = _plain(line, *cell)
        elif "response" in line or "error" in line:
            got = _served(line, *cell)
        else:
            message = "there is neither an answer nor a response"
            raise ForecastError.of(code="no-answer", message=message, fix='Write {"custom_id": ..., "answer": "..."}')
        if isinstance(got, str):
            self.failures[cell] = got
        elif self.answers.setdefault(cell, got) != got:
            message = "another line answers this question differently"
            raise _misnamed("repeated-answer", message, line["custom_id"], "Drop one of the two")

    def _cell(self, given: object) -> tuple[str, int]:
        """Row id and repeat that a line names, one of ours, to the prompt of the others."""
        read = read_custom_id(given) if isinstance(given, str) else None
        if read is None:
            raise _misnamed("bad-custom-id", "must be the custom_id of a question, as it was exported", given)
        row_id, repeat, digest = read
        prompt = self.prompts.get(digest)
        if prompt is None:
            message = "this version of the package has no prompt with this digest"
            raise _misnamed("unknown-prompt", message, given, "Import with the version that exported the questions")
        if self.prompt is not None and prompt != self.prompt:
            message = f"answers {prompt.name}, and the lines before it {self.prompt.name}"
            raise _misnamed(
                "several-prompts", message, given, "Import the answers to each prompt into a file of its own"
            )
        if row_id not in self.known:
            self.strangers.add(row_id)
            fix = "Is it of another split, or another version of the archive?"
            raise _misnamed("unknown-row", "no row of this split has this id", given, fix)
        self.prompt = prompt
        return row_id, repeat


def _misnamed(code: str, message: str, given: object, fix: str | None = None) -> ForecastError:
    """What is wrong with a line that names this question."""
    return ForecastError.of(code=code, message=message, field="custom_id", value=_shown(given), fix=fix)


def _shown(value: object) -> str | None:
    return None if value is None else printable(value)


def _object(text: bytes, *, cut: bool) -> dict[str, Any]:
    """The JSON object of a line; ``cut`` where the file ends in the middle of it."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ForecastError.of(
            code="cut-off" if cut else "bad-json",
            message="the file ends in the middle of this line"
            if cut
            else f"not a JSON line: {printable(str(error), 200)}",
            fix="Was the download stopped? Fetch the file again, or remove the line: its row stays unanswered",
        ) from None
    if not isinstance(value, dict):
        raise ForecastError.of(code="bad-json", message="a line must hold one JSON object", value=_shown(value))
    return value


def _plain(line: dict[str, Any], row_id: str, repeat: int) -> Answered:
    """A line that states the answer itself."""
    seconds = line.get("latency_s")
    return Answered(
        row_id=row_id,
        repeat=repeat,
        answer=line["answer"],
        stop_reason=stop_reason(line.get("stop_reason")),
        input_tokens=_count(line.get("input_tokens")),
        output_tokens=_count(line.get("output_tokens")),
        latency_s=float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else None,
    )


def _served(line: dict[str, Any], row_id: str, repeat: int) -> Answered | str:
    """A service's output line: the answer, or why there is none."""
    response = line.get("response")
    if not isinstance(response, dict) or line.get("error"):
        return _failure(line.get("error"), "failed")
    body = response.get("body")
    status = response.get("status_code", 200)
    if not isinstance(body, dict) or status != 200:
        inner = body.get("error", body) if isinstance(body, dict) else None
        return _failure(inner, f"status {status}" if isinstance(status, int) else "failed")
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return "the response holds no message"
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Answered(
        row_id=row_id,
        repeat=repeat,
        answer={key: message.get(key) for key in ("content", "tool_calls")},
        stop_reason="refused" if message.get("refusal") else stop_reason(choice.get("finish_reason")),
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _failure(error: object, otherwise: str) -> str:
    """Why a request has no answer, in a word or two of the service."""
    if isinstance(error, dict):
        words = [error.get(key) for key in ("code", "type", "message")]
        text = next((str(word) for word in words if isinstance(word, str) and word), "")
        return f"{otherwise}: {printable(text, 80)}" if text else otherwise
    return f"{otherwise}: {printable(error, 80)}" if isinstance(error, str) and error else otherwise


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
