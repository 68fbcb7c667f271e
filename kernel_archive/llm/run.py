"""Asking a model: runs the Inspect task, goes on where a run was stopped, and makes forecasts of the logs.

The logs are the state: what stands in them is not asked again, whatever ended the run. Several that belong together are one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import DataError, KernelArchiveError, MissingExtraError, UsageError, printable
from kernel_archive.llm.answers import Answered, Forecasted, answered_of
from kernel_archive.llm.prompts import known_prompts, load_questions
from kernel_archive.storage import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from inspect_ai.log import EvalLog

    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.batch import Settings
    from kernel_archive.llm.prompts import AnswerForm

#: Settings that bear on what a model answers.
_TOLD: Final = frozenset(
    {"temperature", "max_tokens", "reasoning_effort", "reasoning_tokens", "seed", "top_p", "top_k", "system_message"}
)
#: What is left of an exception after all retries: the name of the last one.
_RETRIED: Final = re.compile(r"RetryError\(.*raised (\w+)")
#: Marks for a terminal in Inspect's messages.
_MARKUP: Final = re.compile(r"\[/?[a-z ]+\]")


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

    Raises:
        UsageError: no log is named, they are of different runs, or of another split than the one that is named.
        DataError: a file is no log of the task, or two logs answer a question differently.
    """
    made: Forecasted | None = None
    first: dict[str, Any] = {}
    for path in paths:
        log = read_log(path)
        shown = printable(str(path), 300)
        facts = _facts(log, shown)
        if split is not None and facts["split"] != split:
            raise UsageError(
                f"{shown} is of split {printable(facts['split'])}, not of {split}: name that split, or leave --split out"
            )
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
            raise UsageError(f"{shown} is of another run than the logs before it: {_difference(facts, first, 'and')}")
        _take(made, log, shown)
    if made is None:
        raise UsageError("there is no log to read: name a file that ends in .eval")
    return made


def _run_of(metadata: dict[str, Any], model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes two logs one run: the same question, the same model, told the same of what bears on its answers."""
    told = {name: value for name, value in sorted(settings.items()) if name in _TOLD and value is not None}
    return {
        **{name: metadata.get(name) for name in ("prompt", "split", "split_digest")},
        "model": model,
        "settings": json.dumps(told),
    }


def _run_of_log(log: EvalLog) -> dict[str, Any]:
    return _run_of(log.eval.metadata or {}, log.eval.model, log.plan.config.model_dump(exclude_none=True))


def _facts(log: EvalLog, shown: str) -> dict[str, Any]:
    """What a log says of the run that it is of."""
    facts = _run_of_log(log)
    if not all(isinstance(value, str) for value in facts.values()):
        raise DataError.of(
            code="other-task", message="not a log of this package's task", file=shown, field="task",
            value=printable(log.eval.task), fix="Make one with: inspect eval kernel_archive/forecast --model MODEL",
        )  # fmt: skip
    return facts


def _difference(one: dict[str, Any], other: dict[str, Any], between: str) -> str:
    """The fields that differ, with both values."""
    differing = [name for name in one if one[name] != other[name]]
    return ", ".join(f"{name} {printable(one[name])} {between} {printable(other[name])}" for name in differing)


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
        got: Answered | str
        if sample.error is not None and not sample.output.choices:
            got = _error(sample.error.message)
        else:
            got = answered_of(sample.output, *cell)
        if isinstance(got, str):
            made.failures[cell] = got
        elif made.answers.setdefault(cell, got) != got:
            raise DataError.of(
                code="repeated-answer", message="another log answers this question differently", file=shown, field="sample",
                value=printable(str(sample.id)), fix="Convert the two logs into files of their own",
            )  # fmt: skip


def _error(message: str) -> str:
    """The kind of an error, without what differs from one request to the next."""
    retried = _RETRIED.search(message)
    if retried:
        return f"failed: {retried[1]}, also when asked again"
    return "failed: " + printable(message.partition("(")[0].strip() or "unknown", 80)


def log_folder(output: str | Path) -> Path:
    """Where the logs of the run that makes this forecast file are kept."""
    return Path(f"{output}.logs")


def log_files(folder: Path) -> list[Path]:
    """The logs in a folder, the oldest first; none where there is no folder."""
    return sorted(folder.glob("*.eval"))


def ask_model(
    archive: Archive,
    split: str,
    *,
    model: str,
    logs: Path,
    answer: AnswerForm = "tool",
    bins: str | None = None,
    defer: bool = False,
    repeats: int = 1,
    limit: int | None = None,
    settings: Settings,
    connections: int | None = None,
    max_retries: int | None = None,
    timeout: int | None = None,
    advance: Callable[[], None] | None = None,
) -> Forecasted:
    """Ask a model about the rows of a split, and bring in what it answers.

    The run goes on where the logs in that folder end. ``model`` is ``provider/name``; ``connections``, ``max_retries`` and ``timeout``
    (seconds of one attempt) are Inspect's own where not given; ``advance`` is called after every answer.

    Raises:
        MissingExtraError: Inspect, or what the provider needs beside it, is not installed.
        UsageError: the logs are of another run, or Inspect does not know the model.
        KernelArchiveError: the run ended in an error of its own.
    """
    try:
        from inspect_ai import eval as inspect_eval
        from inspect_ai import eval_retry

        from kernel_archive.llm import task as tasks
    except ImportError as error:
        raise MissingExtraError(
            f"asking a model needs Inspect: pip install 'kernel-archive[llm]' ({printable(str(error), 200)})"
        ) from None
    logs.mkdir(exist_ok=True)
    told: dict[str, Any] = msgspec.to_builtins(settings)
    calls: dict[str, Any] = {"max_connections": connections, "max_retries": max_retries, "attempt_timeout": timeout}
    with locked(logs / ".lock", busy=f"another run is writing to {printable(str(logs), 300)}"):
        before = log_files(logs)
        make = tasks.defer if defer else tasks.forecast
        asked = make(split=split, answer=answer, archive=str(archive.path), bins=bins)
        total = min(limit or len(asked.dataset), len(asked.dataset)) * repeats
        # An answer reaches the log at once, in a long run every hundredth of them: what a killed run has paid for is kept.
        ways: dict[str, Any] = {
            "display": "none", "log_dir": str(logs), "log_format": "eval", "log_buffer": max(1, total // 100), "log_realtime": False,
            "score_display": False, "fail_on_error": False,
        }  # fmt: skip
        wanted = {**_run_of(asked.metadata or {}, model, told), "rows": limit, "repeats": repeats}
        if before:
            _refuse_another(before[-1], wanted)
            made = from_logs(before, archive)
            if not made.pending():
                return made
        if advance is not None:
            tasks.watchers.append(advance)
        try:
            if before:
                done = eval_retry(str(before[-1]), **ways, **calls)
            else:
                done = inspect_eval(asked, model=model, limit=limit, epochs=repeats, **ways, **calls, **told)
        except (ImportError, ModuleNotFoundError) as error:
            raise MissingExtraError(
                f"the provider of {printable(model)} needs more: {printable(str(error), 300)}"
            ) from None
        except Exception as error:
            if type(error).__name__ in {"PrerequisiteError", "ValueError", "SampleNotFoundError"}:
                said = " ".join(_MARKUP.sub("", str(error)).split())
                raise UsageError(f"Inspect refuses {printable(model)}: {printable(said, 400)}") from error
            raise
        finally:
            tasks.watchers.clear()
        # Ctrl-C before the first answer leaves Inspect with nothing to give back.
        if not done or done[0].status == "cancelled":
            raise KeyboardInterrupt
        ended = done[0]
        if ended.status == "error":
            reason = ended.error.message if ended.error is not None else "no reason given"
            raise KernelArchiveError(
                f"the run ended: {printable(reason, 400)}. What was answered is in {printable(str(logs), 300)}; the same "
                "command goes on"
            )
        return from_logs(log_files(logs), archive)


def _refuse_another(path: Path, wanted: dict[str, Any]) -> None:
    """The logs that are there must be of the run that is asked for."""
    log = read_log(path)
    found = {**_run_of_log(log), "rows": log.eval.config.limit, "repeats": log.eval.config.epochs or 1}
    if found != wanted:
        raise UsageError(
            f"the logs in {printable(str(path.parent), 300)} are of another run: {_difference(found, wanted, 'instead of')}. "
            "Give another -o, or remove that folder"
        )
