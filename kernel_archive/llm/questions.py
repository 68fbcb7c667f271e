"""Which rows of a split are asked about, in which order, under which names."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kernel_archive.bins import scheme as scheme_of
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.forecasters.pairs import load_asked_pairs
from kernel_archive.llm.prompts import PROMPT_VERSION, Prompt, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_archive.archive.open import Archive
    from kernel_archive.forecasters.pairs import AskedPairs
    from kernel_archive.llm.prompts import AnswerForm, Ask

#: Characters of program text that a token holds, at the least that tokenizers in use come to: an estimate errs upwards.
CHARACTERS_PER_TOKEN: Final = 2.5
_CUSTOM_ID: Final = re.compile(r"(?s)(.+)-(\d{1,2})-([0-9a-f]{16})")


@dataclass(frozen=True)
class Question:
    """One row to be asked about.

    Attributes:
        row_id: the row.
        text: the prompt, whole.
    """

    row_id: str
    text: str

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, estimated."""
        return math.ceil(len(self.text) / CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Rows of a split, and how they are asked.

    The order is that of a hash of the row id: a split is sorted by label, and who sees all questions must not learn
    anything from their order. The first N of it are a fair sample of the split.

    Attributes:
        asked: the rows, in that order.
        prompt: what is asked about each.
        n_rows: rows of the whole split.
    """

    asked: AskedPairs
    prompt: Prompt
    n_rows: int

    def __len__(self) -> int:
        return len(self.asked)

    def __iter__(self) -> Iterator[Question]:
        a = self.asked
        for row_id, problem, gpu, anchor, candidate in zip(
            a.row_ids, a.problems, a.gpus, a.anchors, a.candidates, strict=True
        ):
            rendered = render(
                self.prompt, problem=problem, gpu=gpu, anchor=anchor, candidate=candidate, stated_gpus=a.stated_gpus
            )
            yield Question(row_id, rendered)

    def fitting(self, context: int | None) -> tuple[Questions, tuple[str, ...]]:
        """The questions whose prompt comes to at most so many tokens, as estimated, and the ids of the other rows."""
        long = {q.row_id for q in self if context is not None and q.tokens > context}
        kept = [i for i, row_id in enumerate(self.asked.row_ids) if row_id not in long]
        return replace(self, asked=self.asked.take(kept)), tuple(sorted(long))

    def custom_id(self, row_id: str, repeat: int) -> str:
        """Name of one question and repeat in a batch file: row id, repeat, digest of the prompt."""
        return f"{row_id}-{repeat}-{self.prompt.digest}"


def read_custom_id(text: str) -> tuple[str, int, str] | None:
    """Row id, repeat and digest of the prompt of a name that :meth:`Questions.custom_id` made; ``None`` for another.

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
    bins: str | None = None,
    defer: bool = False,
    limit: int | None = None,
    version: str = PROMPT_VERSION,
) -> Questions:
    """The questions that a split asks.

    Args:
        archive: an opened archive.
        split: name of a split that is forecast.
        answer: form of the answer.
        bins: bin scheme to ask in; the split's own when not given.
        defer: whether the model may leave a candidate to a measurement.
        limit: ask about so many rows only, those with the smallest hash of their id.
        version: of the prompts.

    Raises:
        UsageError: unknown split, scheme or version, the archive has no such split, or nothing can be deferred in it.
        DataError: the split has no rows.
    """
    asked = load_asked_pairs(archive, split)
    if not len(asked):
        raise DataError(f"the {asked.split.name} split of this archive has no rows to ask about")
    if defer and asked.split.kind != "eval":
        raise UsageError(
            f"predict-or-defer asks about candidates against their reference; the {asked.split.rows} of split "
            f"{printable(asked.split.name)!r} are asked without --defer"
        )
    ask: Ask = "defer" if defer else "discovery" if asked.split.kind == "discovery" else "forecast"
    scheme = asked.scheme if bins is None else scheme_of(bins).name
    order = sorted(range(len(asked)), key=lambda i: _place(asked.row_ids[i]))[:limit]
    prompt = Prompt(ask=ask, answer=answer, scheme=scheme, version=version)
    return Questions(asked=asked.take(order), prompt=prompt, n_rows=len(asked))


def _place(row_id: str) -> bytes:
    """Where a row stands in the order of questions."""
    return hashlib.sha256(f"ask:{row_id}".encode()).digest()
