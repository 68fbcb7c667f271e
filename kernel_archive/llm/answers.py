"""Turn what models answered into a forecast file, and count what became of every question."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from kernel_archive.errors import printable
from kernel_archive.scoring.completions import read_completion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernel_archive.llm.prompts import Prompt
    from kernel_archive.llm.questions import Questions

#: Services' words for why a model stopped -> ours. Other words are kept; a normal end is "stop".
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
#: Characters of a rationale that a file keeps; a longer one is cut.
MAX_RATIONALE: Final = 16_000


#: A question of a run: row id and repeat.
Cell: TypeAlias = tuple[str, int]


def stop_reason(word: object) -> str:
    """Translate a service's word for why a model stopped; unknown words stay, made printable."""
    return STOPS.get(word, printable(word, 40)) if isinstance(word, str) else "stop"


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

    def unparsed(self) -> str:
        """Say in a word why no forecast can be read from it; empty where one can."""
        completion = read_completion(self.content)
        if completion.probabilities is not None or not completion.unparsed:
            return ""
        # A refused or cut answer rarely holds a forecast: then that is the reason.
        by_stop = {"refused": "refused", "max_tokens": "cut"}
        return by_stop.get(self.stop_reason, completion.unparsed)

    def line(self, prompt: Prompt, question_digest: str) -> dict[str, Any]:
        """Make the line of a forecast file: the forecast, or why there is none."""
        completion = read_completion(self.content)
        line: dict[str, Any] = {"row_id": self.row_id, "repeat": self.repeat}
        if completion.probabilities is not None:
            line["probabilities"] = list(completion.probabilities)
        elif reason := self.unparsed():
            line |= {"parse_failed": True, "parse_error": reason}
        if completion.stated:
            line["predicted_bin"] = completion.stated
        if completion.expected_speedup is not None:
            line["expected_speedup"] = completion.expected_speedup
        if prompt.ask == "defer":
            line["defer"] = completion.defer
        if completion.rationale:
            line["rationale"] = completion.rationale[:MAX_RATIONALE]
        line |= {"prompt": prompt.name, "question": question_digest}
        if self.stop_reason != "stop":
            line["stop_reason"] = self.stop_reason
        costs = {n: getattr(self, n) for n in ("input_tokens", "output_tokens", "latency_s")}
        return line | {name: cost for name, cost in costs.items() if cost is not None}


class AnswerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the questions, each counted once."""

    prompt: str
    rows: int  # of the whole split
    asked: int  # rows x repeats
    forecasts: int  # answers with a distribution, or deferred without one
    unparsed: dict[str, int]  # why an answer gave no distribution -> how many
    stopped: dict[str, int]  # why a model stopped before its own end -> how many answers
    unanswered: dict[str, int]  # why there is no answer -> how many questions
    input_tokens: int  # of the answers that say
    output_tokens: int
    without_usage: int  # answers that don't say what they cost

    @property
    def answered(self) -> int:
        """Questions with an answer, parsed or not."""
        return self.forecasts + sum(self.unparsed.values())


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


@dataclass(kw_only=True)
class Answers:
    """Answers to the questions of one run, and why there is none where that is known."""

    questions: Questions
    repeats: int = 1
    given: dict[Cell, ModelAnswer] = field(default_factory=dict)
    failures: dict[Cell, str] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """List row id and repeat of every question, in the order of the file."""
        ids = self.questions.asked.row_ids
        return [(row_id, repeat) for row_id in ids for repeat in range(self.repeats)]

    def forecast_file(self) -> tuple[bytes, AnswerCounts]:
        """Write the forecast file, and count what became of every question."""
        prompt = self.questions.prompt
        digests = {question.row_id: question.digest for question in self.questions}
        cells = self.cells()
        given = [self.given[cell] for cell in cells if cell in self.given]
        lines = [answer.line(prompt, digests[answer.row_id]) for answer in given]
        missing = [self.failures.get(cell, "no answer") for cell in cells if cell not in self.given]
        counts = AnswerCounts(
            prompt=prompt.name,
            rows=self.questions.n_rows,
            asked=len(cells),
            forecasts=sum("parse_failed" not in line for line in lines),
            unparsed=_counted(line["parse_error"] for line in lines if "parse_error" in line),
            stopped=_counted(line["stop_reason"] for line in lines if "stop_reason" in line),
            unanswered=_counted(missing),
            input_tokens=sum(answer.input_tokens or 0 for answer in given),
            output_tokens=sum(answer.output_tokens or 0 for answer in given),
            without_usage=sum(None in (a.input_tokens, a.output_tokens) for a in given),
        )
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines), counts
