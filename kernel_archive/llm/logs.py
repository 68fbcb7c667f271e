"""Logs of the Inspect task -> forecasts: also of runs that were stopped, and of several that belong together."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import DataError, MissingExtraError, UsageError, printable
from kernel_archive.llm.answers import STOPS, Answered, Forecasted
from kernel_archive.llm.prompts import known_prompts, load_questions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ModelOutput

    from kernel_archive.archive.open import Archive

#: Settings that bear on what a model answers.
_TOLD: Final = frozenset(
    {"temperature", "max_tokens", "reasoning_effort", "reasoning_tokens", "seed", "top_p", "top_k", "system_message"}
)
#: What is left of an exception after all retries: the name of the last one.
_RETRIED: Final = re.compile(r"RetryError\(.*raised (\w+)")


def answered_of(output: ModelOutput, row_id: str, repeat: int) -> Answered | str:
    """What a model gave out, or why there is no answer.

    Args:
        output: as Inspect has it, whatever the provider.
        row_id: the row.
        repeat: number of the repeat.
    """
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
        stop_reason=STOPS.get(stop, printable(stop, 40)),
        input_tokens=None
        if usage is None
        else usage.input_tokens + (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0),
        output_tokens=None if usage is None else usage.output_tokens,
        latency_s=None if output.time is None else round(output.time, 3),
    )


def read_log(path: str | Path) -> EvalLog:
    """A log with its samples; of a run that was killed, what had been written.

    Raises:
        MissingExtraError: Inspect is not installed.
        DataError: the file is no log of Inspect.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise MissingExtraError("logs of Inspect need Inspect: pip install 'kernel-archive[llm]'") from None
    try:
        return read_eval_log(str(path))
    except Exception as error:  # noqa: BLE001 - whatever a file that is none makes of it
        shown = printable(str(path), 300)
        message = f"not a log of Inspect: {printable(str(error), 200)}"
        raise DataError.of(code="bad-log", message=message, file=shown, fix="Name a file that ends in .eval") from None


def from_logs(paths: Iterable[str | Path], archive: Archive, split: str | None = None) -> Forecasted:
    """The answers in logs of one run of the task, ready to be written as forecasts.

    Several logs are one run: what failed in one and was asked again stands answered in the other.

    Args:
        paths: log files.
        archive: the archive that was asked about.
        split: name of the split, where it should be checked against the logs.

    Raises:
        UsageError: no log is named, or they are of different runs.
        DataError: a file is no log of the task, or two logs answer a question differently.
    """
    made: Forecasted | None = None
    first: dict[str, Any] = {}
    for path in paths:
        log = read_log(path)
        shown = printable(str(path), 300)
        facts = _facts(log, shown)
        if split is not None and facts["split"] != split:
            raise UsageError(f"{shown} is of split {printable(facts['split'])}: name it with --split")
        if made is None:
            prompt = known_prompts().get(facts["prompt"].rpartition("@")[2])
            if prompt is None:
                raise UsageError(
                    f"{shown} answers {printable(facts['prompt'])}, which this version of the package does not have. Convert it with the version that made it"
                )
            questions = load_questions(
                archive, facts["split"], answer=prompt.answer, bins=prompt.scheme, defer=prompt.ask == "defer",
                limit=_asked(log), version=prompt.version,
            )  # fmt: skip
            made, first = Forecasted(questions=questions, repeats=max(1, log.eval.config.epochs or 1)), facts
        elif facts != first:
            raise UsageError(f"{shown} is of another run than the logs before it: {_difference(facts, first)}")
        _take(made, log, shown)
    if made is None:
        raise UsageError("there is no log to read: name a file that ends in .eval")
    return made


def run_of(metadata: dict[str, Any], model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes two logs one run: the same question, the same model, told the same.

    Args:
        metadata: what the task noted.
        model: name of the model.
        settings: how it generates; what does not bear on the answers is left out.
    """
    told = {name: value for name, value in sorted(settings.items()) if name in _TOLD and value is not None}
    return {
        **{name: metadata.get(name) for name in ("prompt", "split", "split_digest")},
        "model": model,
        "settings": json.dumps(told),
    }


def _facts(log: EvalLog, shown: str) -> dict[str, Any]:
    """What a log says of the run that it is of."""
    facts = run_of(log.eval.metadata or {}, log.eval.model, log.plan.config.model_dump(exclude_none=True))
    if not all(isinstance(value, str) for value in facts.values()):
        raise DataError.of(
            code="other-task", message="not a log of this package's task", file=shown, field="task",
            value=printable(log.eval.task), fix="Make one with: inspect eval kernel_archive/forecast --model MODEL",
        )  # fmt: skip
    return facts


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {printable(one[name])} and {printable(other[name])}" for name in one if one[name] != other[name]
    )


def _asked(log: EvalLog) -> int | None:
    """How many rows were asked about; Inspect's limit takes the first ones, as ours does."""
    limit = log.eval.config.limit
    # Of a selection of the user's own, what is missing is counted against the whole split.
    return limit if isinstance(limit, int) else None


def _take(made: Forecasted, log: EvalLog, shown: str) -> None:
    """The samples of a log."""
    wanted = set(made.cells())
    for sample in log.samples or ():
        cell = (str(sample.id), sample.epoch - 1)
        if cell not in wanted:
            raise DataError.of(
                code="unknown-row", message="this row was not asked about, or is of another version of the archive",
                file=shown, field="sample", value=printable(str(sample.id)),
            )  # fmt: skip
        got = _of_sample(sample, *cell)
        if isinstance(got, str):
            made.failures[cell] = got
        elif made.answers.setdefault(cell, got) != got:
            raise DataError.of(
                code="repeated-answer", message="another log answers this question differently", file=shown, field="sample",
                value=printable(str(sample.id)), fix="Convert the two logs into files of their own",
            )  # fmt: skip


def _of_sample(sample: EvalSample, row_id: str, repeat: int) -> Answered | str:
    if sample.error is not None and not sample.output.choices:
        return _error(sample.error.message)
    return answered_of(sample.output, row_id, repeat)


def _error(message: str) -> str:
    """The kind of an error, without what differs from one request to the next."""
    retried = _RETRIED.search(message)
    if retried:
        return f"failed: {retried[1]}, also when asked again"
    return "failed: " + printable(message.partition("(")[0].strip() or "unknown", 80)
