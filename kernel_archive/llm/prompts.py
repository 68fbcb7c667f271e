"""Word what a language model is asked: the templates of ``prompts/`` and the form of an answer.

A prompt is named by the version of its templates, what they ask, the form of the answer and the
bin scheme. Its digest covers the whole wording, the problems' words included. Both are in every
forecast, so that forecasts under two wordings are never mixed up.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from kernel_archive.bins import BIN_NAMES, SCHEMES, Scheme
from kernel_archive.gpus import Gpu, gpu_facts, gpu_lines
from kernel_archive.ids import sha256_hex
from kernel_archive.problems import PROBLEMS, get_problem
from kernel_archive.program_text import language_of
from kernel_archive.scoring.formats import TOOL_FIELDS
from kernel_archive.storage import content_path, templates_in

if TYPE_CHECKING:
    import jinja2

#: How the model answers: by calling a tool, with a JSON object, or in a text that ends with one.
AnswerForm = Literal["tool", "json", "text"]
ANSWER_FORMS: Final[tuple[AnswerForm, ...]] = get_args(AnswerForm)
#: What a template asks: candidate against reference, second against first program, child against
#: parent, the first with leave to defer, the first given the speedup on another GPU, or whether the
#: candidate passes.
Ask = Literal["forecast", "close", "discovery", "defer", "transfer", "validity"]
#: Folder of the templates; a changed wording gets a new one.
PROMPT_VERSION: Final = "v1"
TOOL_NAME: Final = "forecast"
#: Templates that were added to a released version.
_LATER: Final = {"close.md.j2", "transfer.md.j2", "validity.md.j2"}


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Everything about a prompt but the row."""

    ask: Ask
    answer: AnswerForm = "json"
    scheme: Scheme = "paper"

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits over templates, bins, form of the answer and words of problems."""
        # A question that came later leaves the digests of the others as they were.
        later = _LATER - {f"{self.ask}.md.j2"}
        templates = sorted((content_path("prompts") / PROMPT_VERSION).glob("*.j2"))
        parts = [
            f"{path.name}\0{path.read_text(encoding='utf-8')}"
            for path in templates
            if path.name not in later
        ]
        schema = msgspec.json.encode(answer_schema(self.ask)).decode()
        problems = msgspec.json.encode([problem_in_words(name) for name in PROBLEMS]).decode()
        # The bins are covered by the prompt of a row in which nothing is real.
        probe = render_prompt(self, "probe", "probe", anchor="anchor", candidate="candidate")
        parts += [schema, self.answer, probe, problems]
        return sha256_hex("\0".join(parts).encode())[:16]

    @property
    def name(self) -> str:
        """Name in forecasts and entries: ``v1-forecast-json-paper@0123456789abcdef``."""
        return f"{PROMPT_VERSION}-{self.ask}-{self.answer}-{self.scheme}@{self.digest}"

    @property
    def options(self) -> dict[str, Any]:
        """Return it as arguments of ``load_questions``."""
        return {"answer": self.answer, "scheme": self.scheme, "defer": self.ask == "defer"}


def known_prompts() -> dict[str, Prompt]:
    """Map digest to prompt, for everything that this version of the package can ask."""
    every = itertools.product(get_args(Ask), ANSWER_FORMS, SCHEMES)
    prompts = [Prompt(ask=ask, answer=answer, scheme=scheme) for ask, answer, scheme in every]
    # Where no bins are asked for, the wording is that of all schemes, and the first one names it.
    return {prompt.digest: prompt for prompt in reversed(prompts)}


def answer_schema(ask: Ask) -> dict[str, Any]:
    """Return the JSON Schema of an answer: reasons first, and every field is required."""
    names = ["rationale", "p_passes"]
    if ask != "validity":
        names = ["rationale", *TOOL_FIELDS, "predicted_bin", "expected_speedup"]
    if ask == "defer":
        names.append("defer")
    fields = {name: _answer_fields()[name] for name in names}
    schema = {"type": "object", "properties": fields, "required": names}
    return schema | {"additionalProperties": False}


@cache
def _answer_fields() -> dict[str, dict[str, Any]]:
    text = (content_path("prompts") / PROMPT_VERSION / "fields.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def render_prompt(
    prompt: Prompt,
    problem: str,
    gpu: str,
    anchor: str,
    candidate: str,
    known: tuple[str, float] | None = None,
    stated_gpus: Mapping[str, Gpu] | None = None,
) -> str:
    """Write the prompt about one row; nothing of a program is left out.

    ``known`` is another GPU and the measured speedup on it, for the question of a transfer.
    """
    known_gpu, known_speedup = known or ("probe", 1.0)
    gpus = [gpu_facts(name, stated_gpus) for name in (gpu, known_gpu)]
    shown_gpu, shown_known = ({"name": g.name, "facts": list(gpu_lines(g))} for g in gpus)
    fields = answer_schema(prompt.ask)["properties"]
    rule = SCHEMES[prompt.scheme]
    bins = [
        {"number": b, "name": name, "interval": rule.describe(b)}
        for b, name in enumerate(BIN_NAMES, 1)
    ]
    template = _templates().get_template(f"{PROMPT_VERSION}/{prompt.ask}.md.j2")
    text = template.render(
        version=PROMPT_VERSION,
        answer=prompt.answer,
        tool=TOOL_NAME,
        bins=bins,
        fields=[(name, field["description"]) for name, field in fields.items()],
        gpu=shown_gpu,
        known_gpu=shown_known,
        known_speedup=f"{known_speedup:.4g}",
        problem=problem_in_words(problem),
        anchor=anchor,
        anchor_language=language_of(anchor),
        candidate=candidate,
        language=language_of(candidate),
    )
    return text.strip() + "\n"


@cache
def problem_in_words(name: str) -> dict[str, Any]:
    """Put a problem into words: title, inputs, timed cases, tolerance, as far as known.

    A case: ``rows = 8 (at least 64 B read, 32 B written, 80 FLOP)``.
    """
    problem, tolerance, cases = get_problem(name), "", []
    if problem.rtol is not None and problem.atol is not None:
        tolerance = (
            f"a relative tolerance of {problem.rtol:g} and an absolute one of {problem.atol:g}"
        )
    for case in problem.cases:
        shape = ", ".join(f"{key} = {value}" for key, value in case.shape.items())
        work = case.least_work
        amounts = f"{_amount(work.bytes_read)}B read, {_amount(work.bytes_written)}B written"
        amounts += f", {_amount(work.flops)}FLOP" if work.flops else ""
        cases.append(f"{shape} (at least {amounts})")
    facts = {field: getattr(problem, field) for field in ("name", "title", "inputs")}
    return {**facts, "cases": cases, "tolerance": tolerance}


def _amount(value: float) -> str:
    """Write a number with three digits and a prefix, for a unit to follow: ``262 M``."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5 or prefix == "T":
            break
        value /= 1000
    return f"{value:.3g} {prefix}"


def _fenced(code: str) -> str:
    """Put a program into a code fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}python\n{code.rstrip()}\n{fence}"


@cache
def _templates() -> jinja2.Environment:
    templates = templates_in(content_path("prompts"))
    templates.filters["fenced"] = _fenced
    return templates
