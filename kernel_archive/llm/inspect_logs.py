"""Read the logs of ``inspect eval kernel_archive/forecast`` as answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import DataError, MissingExtraError, UsageError, printable
from kernel_archive.llm.answers import Answers, ModelAnswer, stop_reason
from kernel_archive.llm.prompts import known_prompts
from kernel_archive.llm.questions import load_questions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from inspect_ai.log import EvalLog
    from inspect_ai.model import ModelOutput

    from kernel_archive.archive.open import Archive

#: What is left of an exception after all retries: the name of the last one.
_RETRIED: Final = re.compile(r"RetryError\(.*raised (\w+)")
#: What must be equal in the logs of one run, from the task's metadata.
_RUN_FIELDS: Final = ("prompt", "split", "split_digest")


def read_log(path: str | Path) -> EvalLog:
    """Read a log with its samples; of a run that was killed, what had been written.

    Raises:
        MissingExtraError: Inspect is not installed.
        DataError: the file is no log of Inspect.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise MissingExtraError(
            "logs of Inspect need Inspect: pip install 'kernel-archive[llm]'"
        ) from None
    try:
        return read_eval_log(str(path))
    except Exception as error:  # noqa: BLE001 - Inspect raises many kinds for a file that is no log
        raise DataError.of(
            code="bad-log",
            message=f"not a log of Inspect: {printable(str(error), 200)}",
            file=printable(str(path), 300),
            fix="Name a file that ends in .eval",
        ) from None


def from_logs(paths: Iterable[str | Path], archive: Archive, split: str | None = None) -> Answers:
    """Read the answers in logs of one run of the task.

    What failed in one log and was asked again may stand answered in another.

    Raises:
        UsageError: no log is named, they are of different runs, or of another split.
        DataError: a file is no log of the task, or two logs answer a question differently.
    """
    answers: Answers | None = None
    first: dict[str, Any] = {}
    for path in paths:
        log, shown = read_log(path), printable(str(path), 300)
        facts = _run_facts(log, shown)
        if split is not None and facts["split"] != split:
            raise UsageError(
                f"{shown} is of split {printable(facts['split'])}, not of {split}: name that "
                "split, or leave --split out"
            )
        if answers is None:
            answers, first = _empty_answers(log, facts, archive, shown), facts
        elif facts != first:
            differing = [name for name in facts if facts[name] != first[name]]
            values = ", ".join(
                f"{name} {printable(facts[name])} and {printable(first[name])}"
                for name in differing
            )
            raise UsageError(f"{shown} is of another run than the logs before it: {values}")
        _add_samples(answers, log, shown)
    if answers is None:
        raise UsageError("there is no log to read: name a file that ends in .eval")
    return answers


def _run_facts(log: EvalLog, shown: str) -> dict[str, Any]:
    """Return what tells one run of the task from another."""
    metadata = log.eval.metadata or {}
    facts = {**{name: metadata.get(name) for name in _RUN_FIELDS}, "model": log.eval.model}
    if not all(isinstance(value, str) for value in facts.values()):
        raise DataError.of(
            code="other-task",
            message="not a log of this package's task",
            file=shown,
            field="task",
            value=printable(log.eval.task),
            fix="Make one with: inspect eval kernel_archive/forecast --model MODEL",
        )
    return facts


def _empty_answers(log: EvalLog, facts: dict[str, Any], archive: Archive, shown: str) -> Answers:
    """Prepare the questions that a log answers."""
    prompt = known_prompts().get(facts["prompt"].rpartition("@")[2])
    if prompt is None:
        raise UsageError(
            f"{shown} answers {printable(facts['prompt'])}, which this version of the package "
            "does not have. Convert it with the version that made it"
        )
    limit = log.eval.config.limit  # Inspect's limit takes the first rows, as ours does
    questions = load_questions(
        archive,
        facts["split"],
        answer=prompt.answer,
        bins=prompt.scheme,
        defer=prompt.ask == "defer",
        limit=limit if isinstance(limit, int) else None,
        version=prompt.version,
    )
    return Answers(questions=questions, repeats=max(1, log.eval.config.epochs or 1))


def _add_samples(answers: Answers, log: EvalLog, shown: str) -> None:
    """Take the samples of a log."""
    wanted = set(answers.cells())
    for sample in log.samples or ():
        cell = (str(sample.id), sample.epoch - 1)
        sample_id = printable(str(sample.id))
        if cell not in wanted:
            raise DataError.of(
                code="unknown-row",
                message="this row was not asked about, or is of another version of the archive",
                file=shown,
                field="sample",
                value=sample_id,
            )
        answer: ModelAnswer | str
        if sample.error is not None and not sample.output.choices:
            answer = _error_kind(sample.error.message)
        else:
            answer = answer_of(sample.output, *cell)
        if isinstance(answer, str):
            answers.failures[cell] = answer
        elif answers.given.setdefault(cell, answer) != answer:
            raise DataError.of(
                code="repeated-answer",
                message="another log answers this question differently",
                file=shown,
                field="sample",
                value=sample_id,
                fix="Convert the two logs into files of their own",
            )


def _error_kind(message: str) -> str:
    """Name the kind of an error, without what differs from one request to the next."""
    retried = _RETRIED.search(message)
    if retried:
        return f"failed: {retried[1]}, also when asked again"
    return "failed: " + printable(message.partition("(")[0].strip() or "unknown", 80)


def answer_of(output: ModelOutput, row_id: str, repeat: int) -> ModelAnswer | str:
    """Read a model's output as Inspect has it; a text says why there is no answer."""
    if output.error:
        return f"failed: {printable(output.error, 80)}"
    if not output.choices:
        return "the response holds no message"
    choice, usage = output.choices[0], output.usage
    stop = str(choice.stop_reason)
    if stop == "model_length" and (usage is None or not usage.output_tokens):
        return "the prompt does not fit the model's context"
    message = choice.message
    parts = message.content if isinstance(message.content, list) else []
    if any(getattr(part, "refusal", None) for part in parts):
        stop = "content_filter"
    # Where arguments are no JSON object, Inspect keeps their text in the message of the error.
    calls = [
        {"function": {"name": call.function, "arguments": call.arguments or call.parse_error or {}}}
        for call in message.tool_calls or ()
    ]
    read = written = None
    if usage is not None:
        cached = (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
        read, written = usage.input_tokens + cached, usage.output_tokens
    return ModelAnswer(
        row_id=row_id,
        repeat=repeat,
        content={"content": message.text, "tool_calls": calls},
        stop_reason=stop_reason(stop),
        model=output.model or None,
        input_tokens=read,
        output_tokens=written,
        latency_s=None if output.time is None else round(output.time, 3),
    )
