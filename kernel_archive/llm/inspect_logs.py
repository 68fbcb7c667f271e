"""Read the logs of ``inspect eval kernel_archive/forecast`` as answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernel_archive.archive.open import Archive
from kernel_archive.errors import DataError, MissingExtraError, UsageError, install_of, printable
from kernel_archive.llm.answers import Answers, ModelAnswer, NoAnswer, read_answer
from kernel_archive.llm.prompts import known_prompts
from kernel_archive.llm.questions import ModelSettings, load_questions

if TYPE_CHECKING:
    from inspect_ai.model import ModelOutput


def from_log(path: str | Path, archive: Archive, split: str) -> Answers:
    """Read the answers in a log of the task; of a run that was killed, what had been written.

    Raises:
        MissingExtraError: Inspect is not installed.
        UsageError: the log is of another split, or of a prompt of another version.
        DataError: the file is no log of the task, or of another version of the archive.
    """
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise MissingExtraError(f"logs of Inspect need Inspect: {install_of('llm')}") from None
    file = printable(path, 300)
    fault = partial(DataError.of, file=file)
    try:
        log = read_eval_log(str(path))
    except Exception as error:  # noqa: BLE001 - Inspect raises many kinds for a file that is no log
        fix, what = "Name a file that ends in .eval", printable(error, 200)
        raise fault(code="bad-log", message=f"not a log of Inspect: {what}", fix=fix) from None
    metadata = log.eval.metadata or {}
    name, logged = printable(metadata.get("prompt")), printable(metadata.get("split"))
    if "@" not in name:
        task = printable(log.eval.task)
        fix = "Make one with: inspect eval kernel_archive/forecast --model MODEL"
        raise fault(
            code="other-task", message=f"a log of {task}, not of this package's task", fix=fix
        )
    if split != logged:
        raise UsageError(f"{file} is of split {logged}, not {split}. Type --split {logged}")
    prompt = known_prompts().get(name.rpartition("@")[2])
    if prompt is None:
        raise UsageError(
            f"{file} answers {name}, which this version of the package does not have. Convert it "
            "with the version that made it"
        )
    limit: Any = log.eval.config.limit  # Inspect's limit takes the first rows, as ours does
    limit = limit if isinstance(limit, int) else None
    questions = load_questions(archive, split, limit=limit, **prompt.options)
    answers = Answers(
        questions=questions,
        repeats=max(1, log.eval.config.epochs or 1),
        model=printable(log.eval.model, 200),
        settings=msgspec.convert(log.plan.config.model_dump(), ModelSettings),
        date=str(log.eval.created)[:10],
    )
    wanted = set(answers.question_keys())
    for sample in log.samples or ():
        key = (str(sample.id), sample.epoch - 1)
        if key not in wanted:
            message = f"{printable(key[0])} is no row that this archive asks about"
            fix = "Name the archive that the task read: --archive DIR"
            raise fault(code="unknown-row", message=message, fix=fix)
        answer = answer_of(sample.output, *key)
        if not isinstance(answer, NoAnswer):
            answers.answered.setdefault(key, answer)
            continue
        reason = answer.reason
        if sample.error:  # without what differs from one request to the next
            reason = sample.error.message.partition("(")[0].strip()
        answers.failures[key] = printable(reason, 80)
    return answers


def answer_of(output: ModelOutput, row_id: str, repeat: int) -> ModelAnswer | NoAnswer:
    """Read a model's output as Inspect has it."""
    if output.error or not output.choices:
        return NoAnswer(f"failed: {printable(output.error or 'no message', 80)}")
    choice, usage, message = output.choices[0], output.usage, output.choices[0].message
    parts = message.content if isinstance(message.content, list) else []
    # Where arguments are no JSON object, Inspect keeps their text in the message of the error.
    calls = [
        {"function": {"name": call.function, "arguments": call.arguments or call.parse_error or {}}}
        for call in message.tool_calls or ()
    ]
    refused = any(getattr(part, "refusal", None) for part in parts)
    reply = {"content": message.text, "tool_calls": calls, "refusal": refused}
    choices = [{"message": reply, "finish_reason": str(choice.stop_reason)}]
    body: dict[str, Any] = {"model": output.model or None, "choices": choices}
    if usage is not None:
        cached = (usage.input_tokens_cache_read or 0) + (usage.input_tokens_cache_write or 0)
        read, written = usage.input_tokens + cached, usage.output_tokens
        body["usage"] = {"prompt_tokens": read, "completion_tokens": written}
    latency_s = None if output.time is None else round(output.time, 3)
    return read_answer({"response": {"body": body}, "latency_s": latency_s}, row_id, repeat)
