"""A run of questions to one model: what is asked, who answers, and the files beside the forecasts.

Beside the forecast file FILE stand ``FILE.answers.jsonl``, every response as it came (the batch
form, so that ``--import`` reads it too), and ``FILE.run.json``, what was asked (:class:`ModelRun`).
Answers that stand there are never asked again. Where none holds a forecast, as after a failed first
question, another run may follow: they go to ``FILE.answers.old.jsonl``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from kernel_archive._version import __version__
from kernel_archive.archive.build import Advance
from kernel_archive.archive.open import Archive
from kernel_archive.errors import KernelArchiveError, UsageError, counted, printable
from kernel_archive.llm.answers import AnswerReader, Answers, ModelAnswer, read_answer
from kernel_archive.llm.questions import (
    Cell,
    ModelSettings,
    Questions,
    estimated_tokens,
    request_body,
)
from kernel_archive.llm.service import Failure, Service, send
from kernel_archive.readers.values import BAD_JSON
from kernel_archive.storage import locked, write_atomically

#: Tokens of an answer when ``--max-tokens`` is not given: without and with a reasoning effort.
DEFAULT_MAX_TOKENS: Final = (2_000, 32_000)
#: Failures of one kind in a row, or answers without a forecast, that end a run.
MAX_FAILURES_IN_A_ROW: Final = 10
#: What a run may not change.
_FIXED: Final = ("archive", "split", "prompt", "model", "settings", "answer")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a run; ``price`` is that of a million tokens read and written.

    Raises:
        UsageError: a bound on money without a price.
    """

    connections: int = 8
    max_tokens_total: int | None = None
    max_cost: float | None = None
    price: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.price is None:
            raise UsageError("--max-cost needs the price of tokens: --price IN OUT, per million")

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Price some tokens; ``None`` where no price is known."""
        if self.price is None:
            return None
        return (self.price[0] * input_tokens + self.price[1] * output_tokens) / 1e6

    def exceeded_by(self, input_tokens: int, output_tokens: int) -> str:
        """Name the option whose bound a total exceeds; empty where it is within all."""
        tokens, cost = input_tokens + output_tokens, self.cost(input_tokens, output_tokens)
        if self.max_tokens_total is not None and tokens > self.max_tokens_total:
            return "--max-tokens-total"
        return "--max-cost" if self.max_cost is not None and (cost or 0) > self.max_cost else ""


class ModelRun(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, of which model: stands beside the answers and goes into a board's entry."""

    archive: str  # name, version and logical digest
    split: str
    prompt: str  # name and digest
    model: str
    answer: str  # form of the answer
    settings: dict[str, Any] = {}  # empty where another program asked
    package: str = __version__
    date: str = ""  # of the first question
    served_models: list[str] = []  # as the service names them
    host: str | None = None  # only where the user asked to name it
    rows: int = 0
    repeats: int = 1
    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    failures: dict[str, int] = {}  # kind -> questions that are without an answer for it

    @classmethod
    def of(cls, archive: Archive, answers: Answers, *, model: str, **more: Any) -> ModelRun:
        """Say which questions were asked of a model, and what the answers say and cost."""
        manifest, questions = archive.manifest, answers.questions
        answered = answers.answered.values()
        return cls(
            archive=f"{manifest.name} {manifest.version} {manifest.logical_digest}",
            split=questions.asked.split.name,
            prompt=questions.prompt.name,
            model=model,
            answer=questions.prompt.answer,
            served_models=sorted({a.model for a in answered if a.model is not None}),
            rows=len(questions),
            repeats=answers.repeats,
            answers=len(answered),
            input_tokens=sum(a.input_tokens or 0 for a in answered),
            output_tokens=sum(a.output_tokens or 0 for a in answered),
            **more,
        )

    def save(self, output: str | Path) -> None:
        """Write it beside a forecast file."""
        data = msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"
        write_atomically(run_path(output), data)


def answers_path(output: str | Path) -> Path:
    """Return the file of the answers to a forecast file."""
    return Path(f"{output}.answers.jsonl")


def run_path(output: str | Path) -> Path:
    """Return the file that says what was asked for a forecast file."""
    return Path(f"{output}.run.json")


def read_run(output: str | Path) -> ModelRun | None:
    """Read what was asked for a forecast file; ``None`` where that is not known."""
    try:
        return msgspec.json.decode(run_path(output).read_bytes(), type=ModelRun)
    except (OSError, *BAD_JSON):
        return None


def _holds_forecast(line: bytes) -> bool:
    """Tell whether a forecast can be read from a line of answers."""
    with suppress(*BAD_JSON):
        answer = read_answer(msgspec.json.decode(line, type=dict[str, Any]), "", 0)
        return isinstance(answer, ModelAnswer) and not answer.unparsed()
    return False


@dataclass(kw_only=True)
class Run:
    """One run: the questions, who answers them, and the files beside the forecast file."""

    archive: Archive
    questions: Questions
    service: Service
    output: str
    settings: ModelSettings
    limits: Limits
    repeats: int = 1

    reused: int = 0  # answers that stood in the file before
    set_aside: bool = False  # whether answers to another question make room
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    earlier_retries: int = 0  # in runs that this one goes on with
    retries: int = 0  # requests that were sent again
    last_retry: str = ""  # the kind of failure after which the last one was
    failures: dict[str, list[str]] = field(default_factory=dict)  # kind -> what the server said
    input_tokens: int = 0  # of all answers of the file
    output_tokens: int = 0
    stopped_by: str = ""  # the bound that ended the run, if one did
    waiting: deque[Cell] = field(default_factory=deque)
    reserved: dict[Cell, int] = field(default_factory=dict)  # input tokens of what is under way

    def __post_init__(self) -> None:
        default = DEFAULT_MAX_TOKENS[self.settings.reasoning_effort is not None]
        self.max_tokens = self.settings.max_tokens or default  # of an answer
        self.settings = msgspec.structs.replace(self.settings, max_tokens=self.max_tokens)
        self.answers = Answers(questions=self.questions, repeats=self.repeats)
        self.last_failures = deque[str](maxlen=MAX_FAILURES_IN_A_ROW)

    def record(self) -> ModelRun:
        """Say what was asked, and what became of it."""
        failures = {kind: len(self.failures[kind]) for kind in sorted(self.failures)}
        host = urlsplit(self.service.url).netloc.rpartition("@")[2]
        return ModelRun.of(
            self.archive,
            self.answers,
            model=self.service.model,
            settings=msgspec.to_builtins(self.settings),
            date=self.date,
            host=host if self.service.name_host else None,
            retries=self.earlier_retries + self.retries,
            failures=failures,
        )

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs from writing beside the same forecast file while a block runs."""
        busy = f"another run is writing beside {printable(str(self.output), 300)}"
        return locked(Path(f"{self.output}.lock"), busy=busy)

    def load(self) -> None:
        """Take the answers that stand beside the forecast file.

        Raises:
            UsageError: they are answers to another question.
        """
        path, earlier = answers_path(self.output), read_run(self.output)
        data = path.read_bytes() if path.exists() else b""
        if earlier is None and not path.exists():
            return
        conflict = f"the answers in {printable(str(path), 300)} are of another run"
        fix = f"Give another -o, or remove them and {run_path(self.output).name}"
        if earlier is None:
            raise UsageError(f"{conflict}, or of an unknown one. {fix}")
        for name in _FIXED:
            old, new = getattr(earlier, name), getattr(self.record(), name)
            if old != new:
                if not any(map(_holds_forecast, data.splitlines())):
                    self.set_aside = True
                    return
                change = f"{name} {printable(old)} instead of {printable(new)}"
                raise UsageError(f"{conflict}: {change}. {fix}")
        self.date, self.earlier_retries = earlier.date, earlier.retries
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # what a killed run left of its last line
            os.truncate(path, whole)
        if whole:
            reader = AnswerReader(self.questions.asked.split.name, self.questions.all_ids)
            reader.read([path])
            cells = [cell for cell in self.answers.cells() if cell in reader.answered]
            self.answers.answered = {cell: reader.answered[cell] for cell in cells}
            for answer in reader.answered.values():
                self._count_tokens(answer)
        self.reused = len(self.answers.answered)

    def estimate(self) -> dict[str, int]:
        """Bound what the open questions will cost, in tokens read and written."""
        n, read = len(self.answers.open_cells()), self.answers.open_tokens()
        counts = {"questions": n, "reused": self.reused}
        return counts | {"input_tokens": read, "output_tokens": n * self.max_tokens}

    def ask(self, advance: Advance, *, trial: bool = True) -> None:
        """Ask the open questions; answers are kept as they come.

        The first question is asked alone. Where it fails, or its answer holds no forecast, nothing
        else is sent (``trial=False`` accepts answers without a forecast).

        Raises:
            KernelArchiveError: the first question failed, or ten in a row failed in one way or
                brought no forecast. What was answered is kept, and the same run goes on from there.
        """
        path = answers_path(self.output)
        if self.set_aside and path.exists():
            with Path(f"{self.output}.answers.old.jsonl").open("ab") as file:
                file.write(path.read_bytes())
            path.unlink()
        self.advance, self.trial, self.started = advance, trial, time.monotonic()
        self.record().save(self.output)
        self.waiting.extend(self.answers.open_cells())
        try:
            with path.open("ab") as file:
                asyncio.run(self._ask_all(file))
        finally:
            self.record().save(self.output)

    async def _ask_all(self, file: BinaryIO) -> None:
        """Ask the first question, and then the others, several at a time."""

        async def work() -> None:
            while self._reserve():
                self._end_in_a_row(await self._ask_next(client, file), MAX_FAILURES_IN_A_ROW)

        async with self.service.client() as client:
            if self._reserve():
                self._end_in_a_row(await self._ask_next(client, file), 1)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.limits.connections):
                        group.create_task(work())
            except ExceptionGroup as group_error:  # the others were told to stop
                raise group_error.exceptions[0] from None

    def _reserve(self) -> bool:
        """Set the tokens of the next question aside; ``False`` where there is no room, or none."""
        if not self.waiting:
            return False
        tokens = self.questions.by_id[self.waiting[0][0]].tokens
        read = self.input_tokens + sum(self.reserved.values()) + tokens
        most = self.output_tokens + (len(self.reserved) + 1) * self.max_tokens
        # Cleared again where answers that came cheaper than feared leave room after all.
        self.stopped_by = self.limits.exceeded_by(read, most)
        if not self.stopped_by:
            self.reserved[self.waiting[0]] = tokens
        return not self.stopped_by

    async def _ask_next(self, client: httpx.AsyncClient, file: BinaryIO) -> ModelAnswer | Failure:
        """Ask the question that waits longest, write the reply down, and count it."""
        cell = self.waiting.popleft()
        text, prompt = self.questions.by_id[cell[0]].text, self.questions.prompt
        body = request_body(text, prompt, self.service.model, self.settings)
        started = time.monotonic()
        result = await send(client, self.service, body, self._count_retry)
        line: dict[str, Any] = {"custom_id": self.questions.custom_id(*cell), "error": None}
        if isinstance(result, Failure):
            line["error"] = {"code": result.kind, "message": result.message}
        else:
            line["response"] = {"status_code": 200, "body": result}
            line["latency_s"] = round(time.monotonic() - started, 3)
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        del self.reserved[cell]
        answer = read_answer(line, *cell)
        if isinstance(answer, str):
            failure = result if isinstance(result, Failure) else Failure(answer)
            self.failures.setdefault(failure.kind, []).append(failure.message or failure.kind)
            self.answers.failures[cell] = ": ".join(filter(None, failure[:2]))
        else:
            self.answers.answered[cell] = answer
            self._count_tokens(answer)
        self._show_progress()
        return failure if isinstance(answer, str) else answer

    def _count_retry(self, failure: Failure) -> None:
        """Count a request that is sent again."""
        self.retries += 1
        self.last_retry = failure.kind
        self._show_progress()

    def _count_tokens(self, answer: ModelAnswer) -> None:
        """Count what an answer cost, an estimate where the service does not say."""
        read, written = answer.input_tokens, answer.output_tokens
        if read is None:
            questions = self.questions.by_id
            asked = questions.get(answer.row_id)  # none where --limit leaves it out
            read = asked.tokens if asked else max(q.tokens for q in questions.values())
        self.input_tokens += read
        self.output_tokens += estimated_tokens(str(answer.content)) if written is None else written

    def _end_in_a_row(self, answer: ModelAnswer | Failure, most: int) -> None:
        """End the run at so many failures of one kind in a row, or answers without a forecast."""
        if isinstance(answer, Failure):
            kind: str = answer.kind
        else:
            kind = answer.unparsed(self.questions.prompt.ask) if self.trial else ""
        if not kind:
            self.last_failures.clear()
            return
        self.last_failures.append(kind)
        if self.last_failures.count(kind) < most:
            return
        kept = f"Kept: {counted(len(self.answers.answered), 'answer')}"
        if isinstance(answer, Failure):
            if most == 1:
                raise KernelArchiveError(answer.explain(self.service, 1 + self.retries))
            reason = answer.explain(self.service)
            raise KernelArchiveError(
                f"{most} questions in a row failed: {reason}. {kept}. The same command goes on"
            )
        parts = answer.content if isinstance(answer.content, dict) else {"answer": answer.content}
        words = printable(" ".join(str(part) for part in parts.values() if part), 160)
        model = printable(self.service.model)
        if most > 1:
            raise KernelArchiveError(
                f'{most} answers in a row of {model} hold no forecast ({kind}): "{words}". {kept}. '
                "With --no-trial the same command goes on; other settings need another -o"
            )
        forms = (
            f"--answer {form}" for form in ("text", "tool") if form != self.questions.prompt.answer
        )
        way_out = f"Try {' or '.join(forms)}; --no-trial asks on whatever the answers hold"
        if kind == "cut":
            way_out = f"Raise --max-tokens (now {self.max_tokens:,})"
        raise KernelArchiveError(
            f'the first answer of {model} holds no forecast ({kind}): "{words}". Nothing else was '
            f"sent. {way_out}"
        )

    def _show_progress(self) -> None:
        """Show what the run has cost, how fast it is, and how long it may still take."""
        n, total = len(self.answers.answered), len(self.answers.cells())
        rate = (n - self.reused) / (time.monotonic() - self.started)
        minutes_left = f"{(total - n) / rate / 60:,.0f}" if rate else "unknown"
        failed = sum(map(len, self.failures.values()))
        what = (
            f"{failed:,} failed, {self.input_tokens:,} tokens read, {self.output_tokens:,} written"
        )
        what += f", {60 * rate:,.1f} a minute, {minutes_left} minutes left"
        if self.retries:
            what += f"; {self.retries:,} sent again, last for {self.last_retry}"
        self.advance(n, total, what)

    def remarks(self) -> Iterator[str]:
        """Say what failed, per kind with a count and an example, and what was sent again."""
        for kind, messages in sorted(self.failures.items(), key=lambda item: -len(item[1])):
            yield f"failed {len(messages):,}x: {kind}, for example: {printable(messages[0], 300)}"
        if self.retries:
            yield f"requests sent again: {self.retries:,}"
        other_names = [name for name in self.record().served_models if name != self.service.model]
        if other_names:
            model, listed = printable(self.service.model), ", ".join(map(printable, other_names))
            yield f"asked for {model}; the service names {listed}"
        if self.stopped_by:
            yield (
                f"Stopped by {self.stopped_by}, after answer {len(self.answers.answered):,}; the "
                "same command with a higher bound goes on"
            )
