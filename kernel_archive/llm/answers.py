"""What models answered, as a forecast file: one line per answer, in the order of the questions, and a tally of all."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import printable
from kernel_archive.scoring.completions import read_completion

if TYPE_CHECKING:
    from inspect_ai.model import ModelOutput

    from kernel_archive.llm.prompts import Prompt, Questions

#: Words of services for why a model stopped -> ours; any other word is kept as it is. A model's own end is "stop".
STOPS: Final[dict[str, str]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "end_turn": "stop",
    "tool_use": "stop",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",  # the context was full before the answer ended
    "content_filter": "refused",
    "refusal": "refused",
}
#: So much of a rationale goes into a file; a longer one says that it was cut, and where.
MAX_RATIONALE: Final = 16_000


def stop_reason(word: object) -> str:
    """A service's word for why a model stopped, as a value of :data:`STOPS` or printable as it is."""
    return STOPS.get(word, printable(word, 40)) if isinstance(word, str) else "stop"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, whoever brought it.

    Attributes:
        answer: text, tool-call arguments as an object, or a message.
        stop_reason: a value of :data:`STOPS`, or the service's own word.
        input_tokens: tokens read; ``None`` where the service does not say.
        output_tokens: tokens written, reasoning included.
        latency_s: seconds.
    """

    row_id: str
    repeat: int
    answer: Any
    stop_reason: str = "stop"
    input_tokens: int | None = None
    output_tokens: int | None = None
    latency_s: float | None = None

    def line(self, prompt: Prompt) -> dict[str, Any]:
        """The line of a forecast file: what the answer says, or why it says nothing."""
        read = read_completion(self.answer)
        out: dict[str, Any] = {"row_id": self.row_id, "repeat": self.repeat}
        if read.probabilities is not None:
            out["probabilities"] = list(read.probabilities)
        elif read.unparsed:
            # A refusal or a cut answer rarely holds a forecast; then that is the reason, whatever its text looks like.
            reason = {"refused": "refused", "max_tokens": "cut"}.get(self.stop_reason, read.unparsed)
            out |= {"parse_failed": True, "parse_error": reason}
        if read.stated:
            out["predicted_bin"] = read.stated
        if read.expected_speedup is not None:
            out["expected_speedup"] = read.expected_speedup
        if prompt.ask == "defer":
            out["defer"] = read.defer
        if read.rationale:
            cut = len(read.rationale) > MAX_RATIONALE
            out["rationale"] = read.rationale[:MAX_RATIONALE] + (
                f" [cut after {MAX_RATIONALE:,} characters]" if cut else ""
            )
        out["prompt"] = prompt.name
        if self.stop_reason != "stop":
            out["stop_reason"] = self.stop_reason
        for name in ("input_tokens", "output_tokens", "latency_s"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        return out


def answered_of(output: ModelOutput, row_id: str, repeat: int) -> Answered | str:
    """What a model gave out, as Inspect has it whatever the provider, or why there is no answer."""
    if output.error:
        return f"failed: {printable(output.error, 80)}"
    if not output.choices:
        return "the response holds no message"
    message, usage = output.choices[0].message, output.usage
    stop = str(output.choices[0].stop_reason)
    if stop == "model_length" and (usage is None or not usage.output_tokens):
        return "the prompt does not fit the model's context"
    parts = message.content if isinstance(message.content, list) else []
    if any(getattr(part, "refusal", None) for part in parts):
        stop = "content_filter"
    calls = [
        # Where the arguments are no JSON object, Inspect keeps their text in the message of the error.
        {"function": {"name": call.function, "arguments": call.arguments or call.parse_error or {}}}
        for call in message.tool_calls or ()
    ]
    return Answered(
        row_id=row_id,
        repeat=repeat,
        answer={"content": message.text, "tool_calls": calls},
        stop_reason=stop_reason(stop),
        input_tokens=None
        if usage is None
        else usage.input_tokens + (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0),
        output_tokens=None if usage is None else usage.output_tokens,
        latency_s=None if output.time is None else round(output.time, 3),
    )


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the questions, every one counted once.

    Attributes:
        asked: questions: rows x repeats.
        forecasts: answers with a distribution, or deferred without one.
        deferred: answers that defer.
        unparsed: why an answer gave no distribution -> how many.
        stopped: why a model stopped before its own end -> how many answers.
        unanswered: why there is no answer -> how many questions.
        input_tokens: tokens read, of the answers that say.
        output_tokens: tokens written, of the answers that say.
        without_usage: answers that don't say what they cost.
    """

    prompt: str
    rows: int
    asked: int
    forecasts: int
    deferred: int
    unparsed: dict[str, int]
    stopped: dict[str, int]
    unanswered: dict[str, int]
    input_tokens: int
    output_tokens: int
    without_usage: int

    @property
    def answered(self) -> int:
        """Questions with an answer, parsed or not."""
        return self.forecasts + sum(self.unparsed.values())


@dataclass(kw_only=True)
class Forecasted:
    """Answers on their way into a forecast file; each row and repeat has one.

    Attributes:
        repeats: how often each question was asked.
        answers: (row id, repeat) -> its answer.
        failures: (row id, repeat) -> why there is no answer, for those of which something is known.
    """

    questions: Questions
    repeats: int
    answers: dict[tuple[str, int], Answered] = field(default_factory=dict)
    failures: dict[tuple[str, int], str] = field(default_factory=dict)

    def cells(self) -> list[tuple[str, int]]:
        """Row id and repeat of every question, in the order of the file."""
        return [(row_id, repeat) for row_id in self.questions.asked.row_ids for repeat in range(self.repeats)]

    def pending(self) -> list[tuple[str, int]]:
        """The questions without an answer."""
        return [cell for cell in self.cells() if cell not in self.answers]

    def finish(self) -> tuple[bytes, Tally]:
        """The forecast file, and what became of every question."""
        prompt = self.questions.prompt
        lines: list[dict[str, Any]] = []
        unanswered: Counter[str] = Counter()
        for cell in self.cells():
            if cell in self.answers:
                lines.append(self.answers[cell].line(prompt))
            else:
                unanswered[self.failures.get(cell, "no answer")] += 1
        given = list(self.answers.values())
        tally = Tally(
            prompt=prompt.name,
            rows=self.questions.n_rows,
            asked=len(self.questions) * self.repeats,
            forecasts=sum("parse_failed" not in line for line in lines),
            deferred=sum(line.get("defer", False) for line in lines),
            unparsed=dict(sorted(Counter(line["parse_error"] for line in lines if "parse_error" in line).items())),
            stopped=dict(sorted(Counter(line["stop_reason"] for line in lines if "stop_reason" in line).items())),
            unanswered=dict(sorted(unanswered.items())),
            input_tokens=sum(a.input_tokens or 0 for a in given),
            output_tokens=sum(a.output_tokens or 0 for a in given),
            without_usage=sum(a.input_tokens is None or a.output_tokens is None for a in given),
        )
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), tally
