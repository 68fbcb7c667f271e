"""Asking a model: runs the Inspect task, and goes on where a run was stopped.

The logs are the state: what stands in them is not asked again, whatever ended the run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import KernelArchiveError, MissingExtraError, UsageError, printable
from kernel_archive.llm.logs import from_logs, read_log, run_of
from kernel_archive.storage import locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernel_archive.archive.open import Archive
    from kernel_archive.llm.answers import Forecasted
    from kernel_archive.llm.batch import Settings
    from kernel_archive.llm.prompts import AnswerForm

#: Marks for a terminal in Inspect's messages.
_MARKUP: Final = re.compile(r"\[/?[a-z ]+\]")


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

    Args:
        archive: the archive.
        split: name of the split.
        model: name of the model, as Inspect has it: ``provider/name``.
        logs: folder for the logs; the run goes on where those that are in it end.
        answer: form of the answer.
        bins: bin scheme to ask in; the split's own when not given.
        defer: whether the model may leave a candidate to a measurement.
        repeats: how often each row is asked about.
        limit: ask about so many rows only.
        settings: what the model is told beside the prompt.
        connections: requests at the same time; Inspect's default when not given.
        max_retries: how often a request that failed is sent again.
        timeout: seconds of one attempt.
        advance: called after every answer.

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
        wanted = {**run_of(asked.metadata or {}, model, told), "rows": limit, "repeats": repeats}
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
    found = {
        **run_of(log.eval.metadata or {}, log.eval.model, log.plan.config.model_dump(exclude_none=True)),
        "rows": log.eval.config.limit,
        "repeats": log.eval.config.epochs or 1,
    }
    other = [
        f"{name} {printable(found[name])} instead of {printable(wanted[name])}"
        for name in wanted
        if wanted[name] != found[name]
    ]
    if other:
        raise UsageError(
            f"the logs in {printable(str(path.parent), 300)} are of another run: {', '.join(other)}. Give another -o, or "
            "remove that folder"
        )
