"""Ask a service the questions of a run: stop early where it fails, and within the bounds given."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import KernelArchiveError, printable
from kernel_archive.llm.answers import ModelAnswer
from kernel_archive.llm.chat import read_answer, request_body
from kernel_archive.llm.questions import estimated_tokens
from kernel_archive.llm.run import answers_path
from kernel_archive.llm.service import send

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    import httpx

    from kernel_archive.llm.answers import Cell
    from kernel_archive.llm.run import Run
    from kernel_archive.llm.service import Service, ServiceReply

#: Failures of one kind in a row that end a run.
MAX_FAILURES_IN_A_ROW: Final = 10
#: Kind of failure -> what to do.
_WAYS_OUT: Final = {
    "no connection": "Start the server, or correct --url",
    "timeout": "Raise --timeout, or look at the server's log",
    "status 400": "Try another form of answer (--answer text) or fewer settings",
    "status 401": "Give the service's key: set OPENAI_API_KEY, or name its variable (--key-env)",
    "status 403": "Give a key that may use {model}: set OPENAI_API_KEY, or --key-env",
    "status 404": "Correct --model {model} or --url; {url}/models lists what there is",
    "status 422": "Try another form of answer (--answer text) or fewer settings",
    "bad answer": "Does --url name the base address of an OpenAI-compatible service?",
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a run; ``price`` is that of a million tokens read and written."""

    connections: int = 8
    max_tokens_total: int | None = None
    max_cost: float | None = None
    price: tuple[float, float] = (0.0, 0.0)

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """Price of some tokens."""
        return (self.price[0] * input_tokens + self.price[1] * output_tokens) / 1e6

    def exceeded_by(self, input_tokens: int, output_tokens: int) -> str:
        """Name the option whose bound a total exceeds; empty where it is within all."""
        tokens, cost = input_tokens + output_tokens, self.cost(input_tokens, output_tokens)
        if self.max_tokens_total is not None and tokens > self.max_tokens_total:
            return "--max-tokens-total"
        return "--max-cost" if self.max_cost is not None and cost > self.max_cost else ""


def ask(
    run: Run, limits: Limits, *, trial: bool = True, watch: Callable[[], None] = lambda: None
) -> None:
    """Ask the open questions of a run; answers are kept as they come.

    The first question is asked alone. Where it fails, or its answer holds no forecast, nothing
    else is sent (``trial=False`` accepts answers without a forecast).

    Raises:
        KernelArchiveError: the first question failed, or ten in a row failed in one way. What was
            answered is kept, and the same run goes on from there.
    """
    run.save()
    try:
        with answers_path(run.output).open("ab") as file:
            asyncio.run(_Asking(run, limits, watch, file).ask(trial=trial))
    finally:
        run.record.retries += run.retries
        run.save()


class _Asking:
    """The part of a run that sends: several workers take the questions that are waiting."""

    def __init__(self, run: Run, limits: Limits, watch: Callable[[], None], file: BinaryIO) -> None:
        self.run, self.limits, self.watch, self.file = run, limits, watch, file
        self.texts = {question.row_id: question.text for question in run.questions}
        self.waiting = deque(run.open_cells())
        self.reserved: dict[Cell, int] = {}  # input tokens of questions under way
        self.last_failures: deque[str] = deque(maxlen=MAX_FAILURES_IN_A_ROW)

    async def ask(self, *, trial: bool) -> None:
        """Ask the first question, and then the others, several at a time."""
        async with self.run.service.client() as client:
            if self.waiting and self.reserve(self.waiting[0]):
                reply, answer = await self.ask_next(client)
                if isinstance(answer, str):
                    raise KernelArchiveError(_explain(reply, answer, self.run.service))
                if trial and answer.unparsed():
                    raise _unusable(answer, self.run)
            await asyncio.gather(*(self.work(client) for _ in range(self.limits.connections)))

    async def work(self, client: httpx.AsyncClient) -> None:
        """Ask until no question is waiting, a bound leaves no room, or ten in a row failed."""
        while self.waiting and self.reserve(self.waiting[0]):
            reply, answer = await self.ask_next(client)
            self.watch()
            if isinstance(answer, ModelAnswer):
                self.last_failures.clear()
                continue
            self.last_failures.append(reply.failure or answer)
            if self.last_failures.count(self.last_failures[0]) == MAX_FAILURES_IN_A_ROW:
                raise KernelArchiveError(
                    f"{MAX_FAILURES_IN_A_ROW} questions in a row failed: "
                    f"{_explain(reply, answer, self.run.service)}. "
                    f"{len(self.run.answers.given):,} answers are kept; the same command goes on"
                )

    async def ask_next(self, client: httpx.AsyncClient) -> tuple[ServiceReply, ModelAnswer | str]:
        """Ask the question that waits longest, and keep what came back."""
        cell, run = self.waiting.popleft(), self.run
        prompt, model = run.questions.prompt, run.service.model
        body = request_body(self.texts[cell[0]], prompt, model, run.settings)
        reply = await send(client, run.service, body)
        return reply, self.keep(cell, reply)

    def reserve(self, cell: Cell) -> bool:
        """Set the tokens of a question aside; ``False`` where a bound leaves no room for it."""
        tokens, run = estimated_tokens(self.texts[cell[0]]), self.run
        read = run.input_tokens + sum(self.reserved.values()) + tokens
        most = (len(self.reserved) + 1) * (run.settings.max_tokens or 0)
        # Cleared again where answers that came cheaper than feared leave room after all.
        run.stopped_by = self.limits.exceeded_by(read, run.output_tokens + most)
        if not run.stopped_by:
            self.reserved[cell] = tokens
        return not run.stopped_by

    def keep(self, cell: Cell, reply: ServiceReply) -> ModelAnswer | str:
        """Write a reply down and count it; return the answer, or why there is none."""
        line: dict[str, Any] = {"custom_id": self.run.questions.custom_id(*cell), "error": None}
        if reply.body is not None:
            line["response"] = {"status_code": 200, "body": reply.body}
            line["latency_s"] = reply.latency_s
        else:
            line["error"] = {"code": reply.failure, "message": reply.message}
        self.file.write(msgspec.json.encode(line) + b"\n")
        self.file.flush()
        answer, run = read_answer(line, *cell), self.run
        reserved = self.reserved.pop(cell)
        run.retries += reply.retries
        if isinstance(answer, str):
            kind = reply.failure or answer
            run.failures[kind] += 1
            run.examples.setdefault(kind, reply.message or answer)
            run.answers.failures[cell] = f"{kind}: {reply.message}" if reply.message else kind
            return answer
        run.answers.given[cell] = answer
        # Where the service does not say what an answer cost, it is estimated.
        read, written = answer.input_tokens, answer.output_tokens
        run.input_tokens += reserved if read is None else read
        estimate = estimated_tokens(str(answer.content))
        run.output_tokens += estimate if written is None else written
        return answer


def _explain(reply: ServiceReply, failure: str, service: Service) -> str:
    """Say in one line where a question failed, what the server said, and the way out."""
    kind = reply.failure or failure
    message = f' and says: "{reply.message}"' if reply.message else ""
    text = f"{service.url} answers with {kind}{message}. "
    if kind in {"no connection", "timeout", "connection broken"}:
        text = f"{service.url} can't be asked: {kind} ({reply.message}). "
    way_out = _WAYS_OUT.get(kind, "Run the same command again later: answers are kept")
    return text + way_out.format(model=printable(service.model), url=service.url)


def _unusable(answer: ModelAnswer, run: Run) -> KernelArchiveError:
    """Return the error that ends a run whose first answer holds no forecast."""
    way_out = "Try --answer text or --answer tool; --no-trial asks on whatever the answers hold"
    if answer.unparsed() == "cut":
        way_out = f"Raise --max-tokens (now {run.settings.max_tokens:,})"
    return KernelArchiveError(
        f"the first answer of {printable(run.service.model)} holds no forecast "
        f"({answer.unparsed()}): {printable(str(answer.content), 160)}. Nothing else was sent. "
        f"{way_out}"
    )
