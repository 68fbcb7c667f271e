"""What an entry says of the model behind it: enough to ask the same model the same question again."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from kernel_archive.errors import DataError, Finding, printable
from kernel_archive.scoring.formats import decode_line
from kernel_archive.untrusted import UntrustedFileError, read_whole, regular_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a model has seen of the archive that it forecasts.
Seen = Literal["yes", "no", "held-out", "unknown"]
#: A year, a month or a day.
_DATE: Final = re.compile(r"\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?)?")
#: Longest texts, in characters.
FACT_LIMITS: Final = {"revision": 120, "provider": 80, "reasoning_effort": 40, "prompt": 120, "training_cutoff": 10}


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facts of a model, each as far as its submitter states it.

    Attributes:
        revision: version, date or commit of the model.
        provider: who served it.
        temperature: of the sampling.
        reasoning_effort: as the service names it.
        prompt: name and digest of the prompt that the forecasts answer; read from the forecasts.
        open_weights: whether anybody can have the weights.
        training_cutoff: end of what it was trained on: a year, a month or a day.
        saw_archive: whether it was trained on this archive, as its submitter declares; ``held-out`` where on rows that
            are there to be forecast, too.
    """

    revision: str = ""
    provider: str = ""
    temperature: float | None = None
    reasoning_effort: str = ""
    prompt: str = ""
    open_weights: bool | None = None
    training_cutoff: str = ""
    saw_archive: Seen = "unknown"


def fact_faults(facts: ModelFacts, file: str | None = None) -> Iterator[Finding]:
    """What is wrong with stated facts, beside their types and their characters."""
    if facts.training_cutoff and not _DATE.fullmatch(facts.training_cutoff):
        yield Finding(
            code="bad-date", message="not a year, a month or a day", file=file, field="training_cutoff",
            value=printable(facts.training_cutoff), fix="Write 2026, 2026-03 or 2026-03-31",
        )  # fmt: skip
    if facts.temperature is not None and not 0 <= facts.temperature <= 100:
        yield Finding(
            code="out-of-range", message="must be a number from 0 to 100", file=file, field="temperature",
            value=repr(facts.temperature),
        )  # fmt: skip


def fact_rows(facts: ModelFacts | None) -> list[tuple[str, str]]:
    """The stated facts in words, for people; that nothing is declared of the archive is said, too."""
    if facts is None:
        return []
    weights = {True: "open", False: "closed", None: ""}[facts.open_weights]
    seen = {
        "yes": "yes",
        "no": "no, as declared",
        "held-out": "yes, and on held-out rows: its scores on them say nothing",
        "unknown": "not declared",
    }[facts.saw_archive]
    rows = [
        ("Revision", facts.revision),
        ("Provider", facts.provider),
        ("Temperature", "" if facts.temperature is None else f"{facts.temperature:g}"),
        ("Reasoning effort", facts.reasoning_effort),
        ("Prompt", facts.prompt),
        ("Weights", weights),
        ("Training cut-off", facts.training_cutoff),
        ("Trained on this archive", seen),
    ]
    return [(title, text) for title, text in rows if text]


def prompt_of(lines: bytes, name: str) -> str:
    """The prompt that forecast lines answer; empty where they name none.

    Args:
        lines: checked lines.
        name: the file, for the error.

    Raises:
        DataError: they answer several.
    """
    decoded = (decode_line(line, file=name, line=n) for n, line in enumerate(lines.splitlines(), 1) if line.strip())
    counts = Counter(line.get("prompt") for line in decoded if isinstance(line, dict))
    named = [prompt for prompt in counts if prompt]
    if len(named) > 1 or (named and len(counts) > 1):
        shown = ", ".join(f"{printable(prompt or 'none')} {n:,}" for prompt, n in counts.most_common(5))
        raise DataError.of(
            code="several-prompts", message="the forecasts answer several prompts", file=name, field="prompt", value=shown,
            fix="A changed prompt is another entry: give each a file of its own",
        )  # fmt: skip
    return named[0] if named else ""


def seen_of(path: str | Path) -> Seen:
    """What a model has seen, by the record that its training left (``Lessons.record``).

    Raises:
        DataError: the file is no such record.
    """
    shown = printable(str(path), 300)
    try:
        record = msgspec.json.decode(read_whole(regular_file(path), max_bytes=1 << 20))
    except UntrustedFileError as error:
        raise DataError.from_findings([error.finding(shown)]) from None
    except msgspec.DecodeError as error:
        raise DataError.of(code="bad-json", message=printable(str(error), 200), file=shown) from None
    held = record.get("held_out") if isinstance(record, dict) else None
    if not isinstance(held, bool):
        raise DataError.of(
            code="no-record", message="says not whether held-out rows were learnt from", file=shown, field="held_out",
            value=printable(held), fix="Give the record of the training: what Lessons.record() returns, as JSON",
        )  # fmt: skip
    return "held-out" if held else "yes"
