"""What a language model is asked: the templates of ``prompts/``, filled in for the rows of a split, and the form of its answer.

A prompt is named by what it is made of: version of the templates, what they ask, form of the answer, bin scheme. Its
digest covers the wording. Both stand in every forecast, so that forecasts under two wordings are never mixed up. Which rows
are asked about, in which order and under which names, is said by :class:`Questions`.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import msgspec

from kernel_archive.bins import BIN_NAMES, N_BINS, SCHEMES
from kernel_archive.bins import scheme as scheme_of
from kernel_archive.errors import DataError, UsageError, printable
from kernel_archive.forecasters.pairs import load_asked_pairs
from kernel_archive.gpus import gpu_facts, gpu_lines
from kernel_archive.problems import problem_facts
from kernel_archive.program_text import language_of
from kernel_archive.scoring.formats import TOOL_FIELDS
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import jinja2

    from kernel_archive.archive.open import Archive
    from kernel_archive.bins import Scheme
    from kernel_archive.forecasters.pairs import AskedPairs
    from kernel_archive.gpus import Gpu

#: How the model answers: by calling a tool, with a JSON object, or in a text that ends with one.
AnswerForm = Literal["tool", "json", "text"]
ANSWER_FORMS: Final[tuple[AnswerForm, ...]] = get_args(AnswerForm)
#: What a template asks: candidate against reference, child against parent, or candidate with leave to defer.
Ask = Literal["forecast", "discovery", "defer"]
#: The templates that are used unless another version is named.
PROMPT_VERSION: Final = "v1"
TOOL_NAME: Final = "forecast"
#: A row in which nothing is real: the digest covers the prompt that it gives.
_PROBE: Final[dict[str, Any]] = {"problem": "probe", "gpu": "probe", "anchor": "anchor", "candidate": "candidate"}


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: everything about it but the row; ``version`` is the folder of the templates."""

    ask: Ask
    answer: AnswerForm = "json"
    scheme: Scheme = "paper"
    version: str = PROMPT_VERSION

    @property
    def digest(self) -> str:
        """Sixteen hex digits over the templates, the bins and the form of the answer."""
        return _digest(self)

    @property
    def name(self) -> str:
        """What forecasts and entries call it, for example ``v1-forecast-json-paper@0123456789abcdef``."""
        return f"{self.version}-{self.ask}-{self.answer}-{self.scheme}@{self.digest}"


@cache
def _digest(prompt: Prompt) -> str:
    folder = content_path("prompts") / prompt.version
    parts = [f"{path.name}\0{path.read_text(encoding='utf-8')}" for path in sorted(folder.glob("*.j2"))]
    schema = msgspec.json.encode(answer_schema(prompt.ask)).decode()
    parts += [schema, prompt.answer, render(prompt, **_PROBE)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def versions() -> tuple[str, ...]:
    """The versions that there are templates of."""
    return tuple(sorted(path.name for path in content_path("prompts").iterdir() if (path / "base.md.j2").is_file()))


def known_prompts() -> dict[str, Prompt]:
    """Digest -> prompt, of everything that this version of the package can ask."""
    made = (
        Prompt(ask=ask, answer=answer, scheme=scheme, version=version)
        for version in versions()
        for ask in get_args(Ask)
        for answer in ANSWER_FORMS
        for scheme in SCHEMES
    )
    return {prompt.digest: prompt for prompt in made}


def _fields(ask: Ask) -> dict[str, tuple[str, dict[str, Any]]]:
    """Field of the answer -> what it means, and its JSON Schema; reasons first, so that they come before the numbers."""
    out: dict[str, tuple[str, dict[str, Any]]] = {
        "rationale": ("what decides it, in at most 60 words", {"type": "string"})
    }
    for number, name in enumerate(TOOL_FIELDS, 1):
        more = ", from 0 to 1" if number < len(TOOL_FIELDS) else "; the eight sum to 1"
        out[name] = (f"probability of bin {number}{more}", {"type": "number"})
    out["predicted_bin"] = (
        "number of the bin that you would name, 1 to 8",
        {"type": "integer", "enum": [*range(1, N_BINS + 1)]},
    )
    out["expected_speedup"] = ("the S that you expect, as a number, or null", {"type": ["number", "null"]})
    if ask == "defer":
        out["defer"] = ("true: measure this candidate; false: use the forecast", {"type": "boolean"})
    return out


def answer_schema(ask: Ask) -> dict[str, Any]:
    """JSON Schema of an answer: arguments of the tool, or the object. Every field is required, as strict modes want it."""
    fields = _fields(ask)
    return {
        "type": "object",
        "properties": {name: {"description": meaning, **kind} for name, (meaning, kind) in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def render(
    prompt: Prompt, *, problem: str, gpu: str, anchor: str, candidate: str, stated_gpus: Mapping[str, Gpu] | None = None
) -> str:
    """The text of a prompt about one row, whole: nothing of a program is left out.

    Raises:
        UsageError: there are no templates of that version.
    """
    if prompt.version not in versions():
        raise UsageError(f"no prompts of version {prompt.version!r}. Choose one of: {', '.join(versions())}")
    rule, facts = SCHEMES[prompt.scheme], gpu_facts(gpu, stated_gpus)
    text = _environment().get_template(f"{prompt.version}/{prompt.ask}.md.j2").render(
        version=prompt.version,
        answer=prompt.answer,
        tool=TOOL_NAME,
        bins=[{"number": b, "name": name, "interval": rule.describe(b)} for b, name in enumerate(BIN_NAMES, 1)],
        fields=[(name, meaning) for name, (meaning, _) in _fields(prompt.ask).items()],
        gpu={"name": facts.name, "facts": list(gpu_lines(facts))},
        problem=_problem(problem),
        anchor=anchor,
        anchor_language=language_of(anchor),
        candidate=candidate,
        language=language_of(candidate),
    )  # fmt: skip
    return text.strip() + "\n"


@cache
def _problem(name: str) -> dict[str, Any]:
    """A problem in words: title, inputs, timed cases, tolerance; what is not known is left out."""
    from kernel_archive.measure.tasks import TASK_NAMES, get_task

    facts = problem_facts(name)
    task = get_task(facts.name) if facts.name in TASK_NAMES else None
    # What the task says of its inputs; from "Structured" on it is about inputs that are checked and not timed.
    stated = "" if task is None else task.make_input.__doc__ or ""
    inputs = re.split(r"\b(?:Structured|Stress):", stated)[0].replace("``", "`")
    cases = [", ".join(f"{key} = {value}" for key, value in case.items()) for case in facts.benchmark_cases]
    if task is not None:
        least = [task.work(case) for case in facts.benchmark_cases]
        cases = [
            f"{case} (at least {_amount(w.bytes_read)}B read, {_amount(w.bytes_written)}B written"
            + (f", {_amount(w.flops)}FLOP)" if w.flops else ")")
            for case, w in zip(cases, least, strict=True)
        ]
    return {
        "name": facts.name,
        "title": facts.title,
        "inputs": " ".join(inputs.split()),
        "cases": cases,
        "tolerance": ""
        if facts.rtol is None or facts.atol is None
        else f"a relative tolerance of {facts.rtol:g} and an absolute one of {facts.atol:g}",
    }


def _amount(value: float) -> str:
    """A number with three digits and its prefix, for a unit to follow: ``262 M``."""
    for prefix in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} T"


def _fenced(code: str) -> str:
    """A program in a code fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(content_path("prompts"))),
        autoescape=False,  # noqa: S701 - the text goes to a model, not to a browser
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["fenced"] = _fenced
    return made


#: Characters of program text that a token holds, at the least that tokenizers in use come to: an estimate errs upwards.
CHARACTERS_PER_TOKEN: Final = 2.5
_CUSTOM_ID: Final = re.compile(r"(?s)(.+)-(\d{1,2})-([0-9a-f]{16})")


class Question(NamedTuple):
    """One row to be asked about: its id, and the prompt, whole."""

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
