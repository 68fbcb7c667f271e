"""Choose the rows that a model is asked about, and turn each into a chat request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.bins import checked_scheme
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.ids import sha256_hex
from kernel_archive.llm.prompts import TOOL_NAME, AnswerForm, Prompt, answer_schema, render_prompt
from kernel_archive.scoring.asked import AskedPairs, load_asked_pairs

#: Characters of program text in a token, at the least: an estimate errs upwards.
CHARACTERS_PER_TOKEN: Final = 2.5
CHAT_URL: Final = "/v1/chat/completions"
#: A question of a run: row id and repeat.
QuestionKey: TypeAlias = tuple[str, int]
_CUSTOM_ID: Final = re.compile(r"(?s)(.+)-(\d{1,3})-([0-9a-f]{16})")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model is told beside the prompt; the service decides what is not given.

    ``max_tokens`` counts an answer's tokens, reasoning included.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None


class Question(NamedTuple):
    """One row to be asked about: its id, and the whole prompt."""

    row_id: str
    text: str

    @property
    def digest(self) -> str:
        """Sixteen hex digits of the sha256 of the very text that is asked."""
        return sha256_hex(self.text.encode())[:16]

    @property
    def tokens(self) -> int:
        """Estimated tokens of the prompt."""
        return estimated_tokens(self.text)


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Rows of a split, and how they are asked.

    The order is by a hash of the row id, so that it tells nothing of the labels and the first N
    rows are a fair sample of the split.
    """

    asked: AskedPairs
    prompt: Prompt

    @cached_property
    def by_id(self) -> dict[str, Question]:
        """Row id -> question, in the order in which they are asked."""
        a = self.asked
        rows = zip(a.problems, a.gpus, a.anchors, a.candidates, a.known, strict=True)
        texts = [render_prompt(self.prompt, *row, stated_gpus=a.stated_gpus) for row in rows]
        return dict(zip(a.row_ids, map(Question, a.row_ids, texts), strict=True))

    def __len__(self) -> int:
        return len(self.asked)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.by_id.values())

    def custom_id(self, row_id: str, repeat: int) -> str:
        """Name one question and repeat in a file: row id, repeat, digest of the prompt."""
        return f"{row_id}-{repeat}-{self.prompt.digest}"


def request_body(text: str, prompt: Prompt, model: str, settings: ModelSettings) -> dict[str, Any]:
    """Make the chat request of one question."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
    schema, named_schema = answer_schema(prompt.ask), {"name": TOOL_NAME, "strict": True}
    if prompt.answer == "tool":
        function = {**named_schema, "description": "Give the forecast.", "parameters": schema}
        body["tools"] = [{"type": "function", "function": function}]
        body["tool_choice"] = {"type": "function", "function": {"name": TOOL_NAME}}
    elif prompt.answer == "json":
        form = named_schema | {"schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    options: dict[str, Any] = msgspec.to_builtins(settings)
    if "max_tokens" in options:
        options["max_completion_tokens"] = options.pop("max_tokens")
    return body | options


def export_lines(
    questions: Questions, keys: Iterable[QuestionKey], model: str, settings: ModelSettings
) -> Iterator[bytes]:
    """Write the lines of a batch file, one request each; ``vllm run-batch`` takes it, too."""
    for row_id, repeat in keys:
        line = {
            "custom_id": questions.custom_id(row_id, repeat),
            "method": "POST",
            "url": CHAT_URL,
            "body": request_body(questions.by_id[row_id].text, questions.prompt, model, settings),
        }
        yield msgspec.json.encode(line) + b"\n"


def read_custom_id(text: str) -> tuple[str, int, str] | None:
    """Take a name of :meth:`Questions.custom_id` apart; ``None`` for any other text.

    >>> read_custom_id("1f0c-2-0123456789abcdef")
    ('1f0c', 2, '0123456789abcdef')
    """
    match = _CUSTOM_ID.fullmatch(text)
    return (match[1], int(match[2]), match[3]) if match else None


def load_questions(
    archive: Archive,
    split: str = "eval",
    *,
    answer: AnswerForm = "json",
    scheme: str | None = None,
    defer: bool = False,
    limit: int | None = None,
) -> Questions:
    """Load the questions that a split asks.

    ``scheme`` is the bin scheme to ask in, the split's own when not given. With ``defer`` the model
    may leave a candidate to a measurement. ``limit`` takes the rows with the smallest hash.

    Raises:
        UsageError: unknown split or scheme, or nothing can be deferred in the split.
        DataError: the split has no rows.
    """
    asked = load_asked_pairs(archive, split)
    if not len(asked):
        raise DataError(
            f"the {asked.split.name} split of this archive has no rows to ask about; see "
            "docs/splits.md for what leaves them out"
        )
    if defer and asked.split.ask != "forecast":
        raise UsageError(
            "predict-or-defer asks about candidates against their reference; ask about the "
            f"{asked.split.rows} of split {printable(asked.split.name)!r} without --defer"
        )
    ask: Any = "defer" if defer else asked.split.ask
    prompt = Prompt(
        ask=ask, answer=answer, scheme=asked.scheme if scheme is None else checked_scheme(scheme)
    )
    hashes = [sha256_hex(f"ask:{row_id}".encode()) for row_id in asked.row_ids]
    chosen = sorted(range(len(asked)), key=hashes.__getitem__)[:limit]
    return Questions(asked=asked.take(chosen), prompt=prompt)
