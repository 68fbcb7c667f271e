"""Read what models answered, make a forecast file of it, and count what became of questions.

A line is a response in the batch form of OpenAI-compatible services, or a plain one:
``{"custom_id": ..., "answer": "the whole text of the answer"}``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.errors import Finding, ForecastError, KernelArchiveError, UsageError, printable
from kernel_archive.llm.prompts import Prompt, known_prompts
from kernel_archive.llm.questions import (
    ModelSettings,
    QuestionKey,
    Questions,
    load_questions,
    read_custom_id,
)
from kernel_archive.readers import values
from kernel_archive.scoring.completions import read_completion
from kernel_archive.scoring.formats import MAX_REPEATS
from kernel_archive.untrusted import Lines, UntrustedFileError, regular_file

#: Services' words for why a model stopped -> ours. Other words are kept; a normal end is "stop".
STOPS: Final[dict[str, str]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",  # the context was full before the answer ended
    "content_filter": "refused",
    "refusal": "refused",
}
#: Files of answers beyond this are refused.
MAX_ANSWER_BYTES: Final = 4 << 30
#: Characters of a rationale that a file keeps; a longer one is cut.
MAX_RATIONALE: Final = 16_000


class NoAnswer(NamedTuple):
    """Why a question has no answer."""

    reason: str


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one question; ``None`` is what the service does not say."""

    row_id: str
    repeat: int
    content: Any  # text, tool-call arguments as an object, or a message
    stop_reason: str = "stop"  # a value of STOPS, or the service's own word
    model: str | None = None  # as the service names it
    input_tokens: int | None = None
    output_tokens: int | None = None  # reasoning included
    latency_s: float | None = None

    def line(self, prompt: Prompt, question_digest: str) -> dict[str, Any]:
        """Make the line of a forecast file: the forecast, or why it is missing."""
        completion, is_validity = read_completion(self.content), prompt.ask == "validity"
        reason = completion.parse_error
        if reason:  # a refused or cut answer rarely holds a forecast: then that is the reason
            by_stop = {"refused": "refused", "max_tokens": "cut"}
            reason = by_stop.get(self.stop_reason, reason)
        elif (completion.p_passes is not None) != is_validity:
            reason = "missing-field"  # a forecast of something else than was asked
        field = "p_passes" if is_validity else "probabilities"
        line: dict[str, Any] = {
            "row_id": self.row_id,
            "repeat": self.repeat,
            field: None if reason else getattr(completion, field),
            "parse_failed": True if reason else None,
            "parse_error": reason,
            "predicted_bin": completion.predicted_bin,
            "expected_speedup": completion.expected_speedup,
            "defer": completion.defer if prompt.ask == "defer" else None,
            "rationale": (completion.rationale or "")[:MAX_RATIONALE] or None,
            "prompt": prompt.name,
            "question": question_digest,
            "stop_reason": None if self.stop_reason == "stop" else self.stop_reason,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "latency_s": self.latency_s,
        }
        return {name: value for name, value in line.items() if value is not None}


def read_answer(line: dict[str, Any], row_id: str, repeat: int) -> ModelAnswer | NoAnswer:
    """Read a plain answer line or a service's output line."""
    model: object = None
    if "answer" in line:
        content, stop = line["answer"], line.get("stop_reason")
        read, written = line.get("input_tokens"), line.get("output_tokens")
    else:
        response, error = line.get("response"), line.get("error")
        if not isinstance(response, dict) or error:
            return NoAnswer(f"failed{_said(error)}")
        body, status = response.get("body"), response.get("status_code", 200)
        if not isinstance(body, dict) or status != 200:
            failed = f"status {status}" if isinstance(status, int) else "failed"
            return NoAnswer(f"{failed}{_said(values.object_of(body).get('error', body))}")
        choice = (values.objects_of(body.get("choices")) or [{}])[0]
        message = choice.get("message")
        if not isinstance(message, dict):
            return NoAnswer("the response holds no message")
        content = {key: message.get(key) for key in ("content", "tool_calls")}
        stop = "refusal" if message.get("refusal") else choice.get("finish_reason")
        read, written = (
            values.inner_value(body, f"usage.{kind}_tokens") for kind in ("prompt", "completion")
        )
        model = body.get("model")
    seconds = values.not_negative(line.get("latency_s"))
    return ModelAnswer(
        row_id=row_id,
        repeat=repeat,
        content=content,
        stop_reason=STOPS.get(stop, printable(stop, 40)) if isinstance(stop, str) else "stop",
        model=printable(model, 200) if isinstance(model, str) else None,
        input_tokens=values.whole_number(read, 1 << 53),
        output_tokens=values.whole_number(written, 1 << 53),
        latency_s=seconds if seconds is not None and seconds < 1e9 else None,
    )


def _said(error: object) -> str:
    """Write behind a status what a service says of an error."""
    words = [values.object_of(error).get(key) for key in ("code", "type", "message")]
    message = next(filter(None, map(values.text_of, [*words, error])), "")
    return f": {printable(message, 200)}" if message else ""


class AnswerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the questions, each counted once."""

    asked: int  # rows x repeats
    answered: int  # parsed or not
    forecasts: int  # answers with a distribution, or deferred without one
    unparsed: dict[str, int]  # why an answer gave no distribution -> how many
    unanswered: dict[str, int]  # why there is no answer -> how many questions


def _counted(words: Iterable[str | None]) -> dict[str, int]:
    """Count how often each word occurs."""
    return dict(sorted(Counter(word for word in words if word is not None).items()))


@dataclass(kw_only=True)
class Answers:
    """Answers to the questions of one run, and why some are missing, where that is known."""

    questions: Questions
    repeats: int = 1
    answered: dict[QuestionKey, ModelAnswer] = field(default_factory=dict)
    failures: dict[QuestionKey, str] = field(default_factory=dict)
    model: str = ""  # as its user calls it
    settings: ModelSettings = field(default_factory=ModelSettings)  # as far as they are known
    date: str = ""  # of the first question, where it is known

    def question_keys(self) -> list[QuestionKey]:
        """List row id and repeat of every question, in the order of the file."""
        return [(row_id, n) for row_id in self.questions.by_id for n in range(self.repeats)]

    def unanswered_keys(self) -> list[QuestionKey]:
        """List the questions without an answer, in their order."""
        return [key for key in self.question_keys() if key not in self.answered]

    def unanswered_tokens(self) -> int:
        """Bound the tokens to read for the questions without an answer."""
        return sum(self.questions.by_id[row_id].tokens for row_id, _ in self.unanswered_keys())

    def forecast_file(self) -> tuple[bytes, AnswerCounts]:
        """Write the forecast file, and count what became of every question.

        Raises:
            KernelArchiveError: not one question was answered.
        """
        prompt, keys = self.questions.prompt, self.question_keys()
        answers = [self.answered[key] for key in keys if key in self.answered]
        unanswered = _counted(self.failures.get(key, "no answer") for key in self.unanswered_keys())
        if not answers:
            reasons = ", ".join(f"{printable(why, 200)} {n:,}" for why, n in unanswered.items())
            raise KernelArchiveError(
                f"no question was answered, of {len(keys):,} ({reasons}): no file is written"
            )
        by_id = self.questions.by_id
        lines = [answer.line(prompt, by_id[answer.row_id].digest) for answer in answers]
        counts = AnswerCounts(
            asked=len(keys),
            answered=len(answers),
            forecasts=sum("parse_failed" not in line for line in lines),
            unparsed=_counted(line.get("parse_error") for line in lines),
            unanswered=unanswered,
        )
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), counts


class _AnswerReader:
    """Reads answers to the rows of a split, all to one prompt, and lists what is at fault."""

    def __init__(self, split: str, row_ids: Iterable[str]) -> None:
        self.split, self.row_ids, self.prompts = split, frozenset(row_ids), known_prompts()
        self.prompt: Prompt | None = None
        self.answered: dict[QuestionKey, ModelAnswer] = {}
        self.failures: dict[QuestionKey, str] = {}

    def read(self, paths: Iterable[str | Path]) -> None:
        """Read the answers of files.

        Raises:
            ForecastError: with every fault.
        """
        faults: list[Finding] = []
        most_lines = 10_000 + len(self.row_ids) * MAX_REPEATS
        for path in paths:
            name = printable(path, 300)
            try:
                file = regular_file(path)
            except UntrustedFileError as error:
                raise ForecastError.from_findings([error.finding(name)]) from None
            for item in Lines(file, max_bytes=MAX_ANSWER_BYTES, max_lines=most_lines):
                if isinstance(item, Finding):
                    faults.append(item)
                elif fault := self._read_line(item[1]):
                    faults.append(msgspec.structs.replace(fault, file=name, line=item[0]))
        if faults:
            summary = f"{len(faults)} faults in the answers" if len(faults) > 1 else None
            raise ForecastError.from_findings(faults, summary)

    def _read_line(self, text: bytes) -> Finding | None:
        """Take the answer of a line; return what is wrong with it, if something is."""
        try:
            line = msgspec.json.decode(text, type=dict[str, Any])
        except values.BAD_JSON as error:
            message = f"not a line with a JSON object: {printable(error, 200)}"
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
        prompt, key = self.prompts.get(digest), (row_id, repeat)
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
        answer = read_answer(line, *key)
        if isinstance(answer, NoAnswer):
            self.failures[key] = answer.reason
        elif self.answered.setdefault(key, answer) != answer:
            message = "another line answers this question differently"
            return fault(code="repeated-answer", message=message, fix="Drop one of the two")
        return None


def import_answers(paths: Iterable[str | Path], archive: Archive, split: str = "eval") -> Answers:
    """Read answers from files.

    Several files are one run: what failed in one may stand answered in another. The answers say
    how rows were asked and how often, not which: every row of the split is counted.

    Raises:
        ForecastError: something in the files is at fault; every fault is named.
        UsageError: no file is named, or the answers are to other questions than the split's.
    """
    reader = _AnswerReader(split, load_questions(archive, split).asked.row_ids)
    reader.read(paths)
    prompt = reader.prompt
    if prompt is None:
        raise UsageError("the files of --import hold no answer. Name what the service sent back")
    questions = load_questions(archive, split, **prompt.options)
    if questions.prompt.digest != prompt.digest:
        raise UsageError(
            f"the answers are to {prompt.name}, and split {split} is asked with "
            f"{questions.prompt.name} here. Give --split as for the export"
        )
    # One wording has several names where it asks for no bins.
    questions = replace(questions, prompt=prompt)
    answered, failures = reader.answered, reader.failures
    repeats = 1 + max(repeat for _, repeat in [*answered, *failures])
    return Answers(questions=questions, repeats=repeats, answered=answered, failures=failures)
