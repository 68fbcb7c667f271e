"""Send chat requests to a service that speaks the OpenAI protocol: one place retries and counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from kernel_archive.errors import UsageError, printable
from kernel_archive.readers.values import BAD_JSON, object_of, text_of

#: Failures that may pass, beside statuses of 500 and more: the same request is sent again.
RETRIED: Final = frozenset(
    {"status 408", "status 409", "status 429", "timeout", "connection broken", "cut response"}
)
#: Bytes of a response; a longer one is a failure.
MAX_RESPONSE: Final = 16 << 20
#: Seconds within which a connection must stand.
MAX_CONNECT: Final = 15.0
#: Longest pause before a request is sent again, unless the server asks for a longer one, s.
MAX_PAUSE: Final = 60
#: Longest pause that a server may ask for, s.
MAX_RETRY_AFTER: Final = 3600.0
_MOVED: Final = "Give that address as --url, up to /chat/completions"
_FORM: Final = "Try another form of answer (--answer text) or fewer settings"
#: Kind of failure -> what to do.
_WAYS_OUT: Final = {
    "no connection": "Start the server, or correct --url",
    "timeout": "Raise --timeout, or look at the server's log",
    **dict.fromkeys(("status 301", "status 302", "status 307", "status 308"), _MOVED),
    "status 400": _FORM,
    "status 401": "Give the service's key: set OPENAI_API_KEY, or name its variable (--key-env)",
    "status 403": "Give a key that may use {model}: set OPENAI_API_KEY, or --key-env",
    "status 404": "Correct --model {model} or --url; {url}/models lists what there is",
    "status 405": "Correct --url: it usually ends in /v1",
    "status 422": _FORM,
    "status 429": "Run the same command again later, or with fewer --connections",
    "bad answer": "Does --url name the base address of an OpenAI-compatible service?",
}


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model answers.

    Raises:
        UsageError: the address can't be one of a service.
    """

    url: str  # base address, for example http://127.0.0.1:8000/v1
    model: str
    key: str | None = None
    timeout: float = 600.0  # of one attempt, s
    max_retries: int = 3  # further attempts per question
    name_host: bool = False  # whether its host name is recorded

    def __post_init__(self) -> None:
        try:
            parts = httpx.URL(self.url)
        except httpx.InvalidURL:
            parts = httpx.URL()
        if parts.scheme not in {"http", "https"} or not parts.host or " " in self.url:
            raise UsageError(
                f"--url {printable(self.url)} is no address; it looks like http://127.0.0.1:8000/v1"
            )
        base = self.url.rstrip("/").removesuffix("/chat/completions")
        msgspec.structs.force_setattr(self, "url", base)

    def __repr__(self) -> str:
        """Show everything but the key."""
        return f"Service({self.model} at {self.url})"

    def client(self) -> httpx.AsyncClient:
        """Open a client; it follows no redirect: the key goes to the named address alone."""
        headers = {"Content-Type": "application/json", "User-Agent": "kernel-archive"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        timeout = httpx.Timeout(self.timeout, connect=MAX_CONNECT, pool=None)
        return httpx.AsyncClient(headers=headers, timeout=timeout)


class Failure(NamedTuple):
    """Why a question has no answer."""

    kind: str  # for example "status 404", "no connection"
    message: str = ""  # what the server, or the system, says of it
    retry_after: float | None = None  # the pause that the server asks for, s

    def explain(self, service: Service, requests: int = 1) -> str:
        """Say in one line where a question failed, what the server said, and the way out.

        ``requests`` is how many were sent, where it is more than one.
        """
        said = f' and says: "{self.message}"' if self.message else ""
        text = f"{service.url} answers with {self.kind}{said}"
        if self.kind in {"no connection", "timeout", "connection broken"}:
            text = f"{service.url} can't be asked: {self.kind} ({self.message})"
        tried = f", {requests} times" if requests > 1 else ""
        way_out = _WAYS_OUT.get(self.kind, "Run the same command again later")
        way_out = way_out.format(model=printable(service.model), url=service.url)
        return f"{text}{tried}. {way_out}"


async def send(
    client: httpx.AsyncClient,
    service: Service,
    body: dict[str, Any],
    failed: Callable[[Failure], None],
) -> dict[str, Any] | Failure:
    """Send one request, again after a pause where the failure may pass.

    ``failed`` is told before each pause why there is one.
    """
    retries = 0
    while True:
        result = await _attempt(client, service, body)
        if not isinstance(result, Failure) or retries == service.max_retries:
            return result
        if result.kind not in RETRIED and not result.kind.startswith("status 5"):
            return result
        failed(result)
        own = min(MAX_PAUSE, 2**retries)
        await asyncio.sleep(own if result.retry_after is None else result.retry_after)
        retries += 1


async def _attempt(
    client: httpx.AsyncClient, service: Service, body: dict[str, Any]
) -> dict[str, Any] | Failure:
    address, content, data = f"{service.url}/chat/completions", msgspec.json.encode(body), b""
    try:
        async with (
            asyncio.timeout(service.timeout),
            client.stream("POST", address, content=content) as response,
        ):
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MAX_RESPONSE:
                    return Failure("response too long", f"more than {MAX_RESPONSE >> 20} MiB")
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return Failure("no connection", printable(str(error) or "nobody answers", 200))
    except (TimeoutError, httpx.TimeoutException):
        return Failure("timeout", f"no answer within {service.timeout:g} s")
    except httpx.RequestError as error:
        return Failure("connection broken", printable(str(error) or type(error).__name__, 200))
    if response.status_code != 200:
        pause = retry_after(response.headers.get("Retry-After", ""))
        message = _server_message(data)
        if response.has_redirect_location:
            message = f"look at {printable(response.headers['Location'], 200)}"
        return Failure(f"status {response.status_code}", message, pause)
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except BAD_JSON as error:
        kind = "cut response" if "truncated" in str(error) else "bad answer"
        return Failure(kind, f"the response is no JSON object: {printable(str(error))}")


def retry_after(header: str) -> float | None:
    """Read the pause that a server asks for, as seconds or as an HTTP date; ``None`` for no pause.

    >>> retry_after("120"), retry_after("Thu, 01 Jan 1970 00:00:00 GMT"), retry_after("soon")
    (120.0, 0.0, None)
    """
    with suppress(ValueError, OverflowError):
        if header.strip().isdecimal():
            return min(float(header), MAX_RETRY_AFTER)
        date = parsedate_to_datetime(header)
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    return None


def _server_message(data: bytes) -> str:
    """Return what a server says of a refusal, bounded and printable."""
    try:
        content = msgspec.json.decode(data)
    except BAD_JSON:
        content = data[:1000].decode("utf-8", "replace")
    error = object_of(content).get("error", content)
    words = [text_of(object_of(error).get(key)) for key in ("message", "detail", "code", "type")]
    said = next(filter(None, words), error)
    return printable(" ".join(str(said).split()), 300)
