"""Ask a service the questions of a run: stop early where it fails, and within the bounds given."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import KernelArchiveError, printable
from kernel_archive.llm.chat import read_answer, request_body
from kernel_archive.llm.questions import estimated_tokens
from kernel_archive.llm.run import RunProgress, answers_path
from kernel_archive.llm.service import ServiceReply, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from kernel_archive.llm.answers import Cell, ModelAnswer
    from kernel_archive.llm.run import Run

#: Failures of one kind in a row that end a run.
MAX_FAILURES_IN_A_ROW: Final = 10


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
    run: Run,
    limits: Limits,
    *,
    trial: bool = True,
    watch: Callable[[RunProgress], None] = lambda _: None,
) -> RunProgress:
    """Ask the open questions of a run; answers are kept as they come.

    The first question is asked alone. Where it fails, or its answer holds no forecast, nothing
    else is sent (``trial=False`` accepts answers without a forecast).

    Raises:
        KernelArchiveError: the first question failed, or ten in a row failed in one way. What was
            answered is kept, and the same run goes on from there.
    """
    progress = RunProgress(
        total=len(run.answers.cells()),
        answered=len(run.answers.given),
        reused=len(run.answers.given),
    )
    cells = run.open_cells()
    if not cells:
        return progress
    run.save(progress)
    asking = _Asking(run, limits, progress, watch)
    try:
        with answers_path(run.output).open("ab") as file:
            asking.ask_first(cells[0], file, trial=trial)
            asking.ask_rest(cells[1:], file)
    finally:
        asking.stopped.set()
        run.record.retries += progress.retries
        run.save(progress)
    return progress


class _Asking:
    """The part of a run that sends: daemon threads send, one thread keeps what comes back."""

    def __init__(
        self,
        run: Run,
        limits: Limits,
        progress: RunProgress,
        watch: Callable[[RunProgress], None],
    ) -> None:
        self.run, self.limits, self.progress, self.watch = run, limits, progress, watch
        self.stopped = threading.Event()
        self.texts = {question.row_id: question.text for question in run.questions}
        self.spent = [0, 0]  # tokens read and written in this run, estimated where not stated
        self.reserved: dict[Cell, int] = {}  # input tokens of questions under way
        self.last_failures: deque[str] = deque(maxlen=MAX_FAILURES_IN_A_ROW)

    def send(self, cell: Cell) -> ServiceReply:
        """Ask one question."""
        run = self.run
        text = self.texts[cell[0]]
        body = request_body(text, run.questions.prompt, run.service.model, run.settings)
        return send(run.service, body, self.stopped)

    def ask_first(self, cell: Cell, file: BinaryIO, *, trial: bool) -> None:
        """Ask one question, and end the run where it fails."""
        if not self.reserve(cell):
            return
        reply = self.send(cell)
        answer = self.keep(cell, reply, file)
        if isinstance(answer, str):
            raise KernelArchiveError(self.explain(reply, answer))
        reason = answer.unparsed()
        if trial and reason:
            raise KernelArchiveError(_explain_unparsed(reason, answer, self.run))

    def ask_rest(self, cells: list[Cell], file: BinaryIO) -> None:
        """Ask the other questions, several at a time, within the bounds of the run."""
        waiting, most = deque(cells), MAX_FAILURES_IN_A_ROW
        tasks: queue.SimpleQueue[Cell | None] = queue.SimpleQueue()
        replies: queue.SimpleQueue[tuple[Cell, ServiceReply]] = queue.SimpleQueue()

        def work() -> None:
            while (cell := tasks.get()) is not None and not self.stopped.is_set():
                replies.put((cell, self.send(cell)))

        workers = min(self.limits.connections, len(cells))
        for _ in range(workers):
            threading.Thread(target=work, daemon=True).start()
        while waiting or self.reserved:
            while waiting and len(self.reserved) < workers and self.reserve(waiting[0]):
                tasks.put(waiting.popleft())
            if not self.reserved:
                break  # a bound was reached
            cell, reply = replies.get()
            answer = self.keep(cell, reply, file)
            self.watch(self.progress)
            if reply.failure:
                self.last_failures.append(reply.failure)
            else:
                self.last_failures.clear()
            if len(set(self.last_failures)) == 1 and len(self.last_failures) == most:
                raise KernelArchiveError(
                    f"{most} questions in a row failed: "
                    f"{self.explain(reply, str(answer))}. {self.progress.answered:,} answers are "
                    "kept; the same command goes on"
                )
        for _ in range(workers):
            tasks.put(None)

    def reserve(self, cell: Cell) -> bool:
        """Set the tokens of a question aside; ``False`` where a bound leaves no room for it."""
        tokens = estimated_tokens(self.texts[cell[0]])
        most = self.run.settings.max_tokens or 0
        under_way = len(self.reserved) + 1
        read = self.spent[0] + sum(self.reserved.values()) + tokens
        # Cleared again where answers that came cheaper than feared leave room after all.
        self.progress.stopped_by = self.limits.exceeded_by(read, self.spent[1] + under_way * most)
        if self.progress.stopped_by:
            return False
        self.reserved[cell] = tokens
        return True

    def keep(self, cell: Cell, reply: ServiceReply, file: BinaryIO) -> ModelAnswer | str:
        """Write a reply down and count it; the answer, or why there is none."""
        line: dict[str, Any] = {"custom_id": self.run.questions.custom_id(*cell)}
        if reply.body is not None:
            line |= {"response": {"status_code": 200, "body": reply.body}, "error": None}
            line["latency_s"] = reply.latency_s
        else:
            line["error"] = {"code": reply.failure, "message": reply.message}
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        answer, progress = read_answer(line, *cell), self.progress
        reserved = self.reserved.pop(cell)
        progress.retries += reply.retries
        if isinstance(answer, str):
            kind = reply.failure or answer
            progress.failed += 1
            progress.failures[kind] += 1
            progress.examples.setdefault(kind, reply.message or answer)
            self.run.answers.failures[cell] = f"{kind}: {reply.message}" if reply.message else kind
            return answer
        self.run.answers.given[cell] = answer
        self.run.answers.failures.pop(cell, None)
        progress.answered += 1
        progress.input_tokens += answer.input_tokens or 0
        progress.output_tokens += answer.output_tokens or 0
        written = estimated_tokens(str(answer.content))
        self.spent[0] += reserved if answer.input_tokens is None else answer.input_tokens
        self.spent[1] += written if answer.output_tokens is None else answer.output_tokens
        return answer

    def explain(self, reply: ServiceReply, failure: str) -> str:
        """Say in one line where a question failed, what the server said, and the way out."""
        service = self.run.service
        kind = reply.failure or failure
        message = f' and says: "{reply.message}"' if reply.message else ""
        if kind in {"connection refused", "unreachable", "timeout", "connection broken"}:
            text = f"{service.url} can't be asked: {kind} ({reply.message}). "
        else:
            text = f"{service.url} answers with {kind}{message}. "
        return text + _WAYS_OUT.get(kind, _OTHER_WAY_OUT).format(
            model=printable(service.model), url=service.url
        )


_OTHER_WAY_OUT: Final = "Run the same command again later: answers are kept"
#: Kind of failure -> what to do.
_WAYS_OUT: Final = {
    "connection refused": "Start the server, or correct --url",
    "unreachable": "Correct --url",
    "timeout": "Raise --timeout, or look at the server's log",
    "status 400": "Try another form of answer (--answer text) or fewer settings",
    "status 401": "Give the service's key: set OPENAI_API_KEY, or name its variable (--key-env)",
    "status 403": "Give a key that may use {model}: set OPENAI_API_KEY, or --key-env",
    "status 404": "Correct --model {model} or --url; {url}/models lists what there is",
    "status 422": "Try another form of answer (--answer text) or fewer settings",
    "bad answer": "Does --url name the base address of an OpenAI-compatible service?",
}


def _explain_unparsed(reason: str, answer: ModelAnswer, run: Run) -> str:
    start = printable(str(answer.content), 160)
    ways_out = "Try --answer text or --answer tool; --no-trial asks on whatever the answers hold"
    if reason == "cut":
        ways_out = f"Raise --max-tokens (now {run.settings.max_tokens:,})"
    return (
        f"the first answer of {printable(run.service.model)} holds no forecast ({reason}): "
        f"{start}. Nothing else was sent. {ways_out}"
    )
