"""Send chat requests to a service that speaks the OpenAI protocol: one place retries and counts."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import httpx
import msgspec

from kernel_archive.errors import UsageError, printable
from kernel_archive.readers.values import BAD_JSON

#: Failures that may pass, beside statuses of 500 and more: the same request is sent again.
RETRIED: Final = frozenset(
    {"status 408", "status 409", "status 429", "timeout", "connection broken", "bad answer"}
)
#: Bytes of a response; a longer one is a failure.
MAX_RESPONSE: Final = 16 << 20
#: Seconds within which a connection must stand.
MAX_CONNECT: Final = 15.0
#: Longest pause before a request is sent again, unless the server asks for a longer one, s.
MAX_PAUSE: Final = 60
#: Longest pause that a server may ask for, s.
MAX_RETRY_AFTER: Final = 3600


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model answers."""

    url: str  # base address, for example http://127.0.0.1:8000/v1
    model: str
    key: str | None = None
    timeout: float = 600.0  # of one attempt, s
    max_retries: int = 3  # further attempts per question

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


class ServiceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one question: a response body, or the kind of failure and its message."""

    body: dict[str, Any] | None = None
    failure: str = ""  # for example "status 404", "no connection"
    message: str = ""  # what the server, or the system, says of it
    retry_after: int | None = None  # the pause that the server asks for, s
    retries: int = 0
    latency_s: float = 0.0


def check_url(url: str) -> str:
    """Return a base address without a slash at its end.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in {"http", "https"} or not parts.host or " " in url:
        raise UsageError(
            f"--url {printable(url)} is no address; it looks like http://127.0.0.1:8000/v1"
        )
    return url.rstrip("/").removesuffix("/chat/completions")


async def send(client: httpx.AsyncClient, service: Service, body: dict[str, Any]) -> ServiceReply:
    """Send one request; send it again, after a pause, where the failure may pass."""
    started, retries = time.monotonic(), 0
    while True:
        reply = await _attempt(client, service, body)
        may_pass = reply.failure in RETRIED or reply.failure.startswith("status 5")
        if not may_pass or retries == service.max_retries:
            seconds = round(time.monotonic() - started, 3)
            return msgspec.structs.replace(reply, retries=retries, latency_s=seconds)
        pause = reply.retry_after
        await asyncio.sleep(min(MAX_PAUSE, 2**retries) if pause is None else pause)
        retries += 1


async def _attempt(
    client: httpx.AsyncClient, service: Service, body: dict[str, Any]
) -> ServiceReply:
    address, data = f"{service.url}/chat/completions", b""
    try:
        async with (
            asyncio.timeout(service.timeout),
            client.stream("POST", address, content=msgspec.json.encode(body)) as response,
        ):
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MAX_RESPONSE:
                    message = f"more than {MAX_RESPONSE >> 20} MiB"
                    return ServiceReply(failure="response too long", message=message)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        message = printable(str(error) or "nobody answers", 200)
        return ServiceReply(failure="no connection", message=message)
    except (TimeoutError, httpx.TimeoutException):
        message = f"no answer within {service.timeout:g} s"
        return ServiceReply(failure="timeout", message=message)
    except httpx.RequestError as error:
        message = printable(str(error) or type(error).__name__, 200)
        return ServiceReply(failure="connection broken", message=message)
    if response.status_code != 200:
        pause = response.headers.get("Retry-After", "").strip()
        return ServiceReply(
            failure=f"status {response.status_code}",
            message=_server_message(data),
            retry_after=min(int(pause), MAX_RETRY_AFTER) if pause.isdecimal() else None,
        )
    try:
        return ServiceReply(body=msgspec.json.decode(data, type=dict[str, Any]))
    except BAD_JSON as error:
        message = f"the response is no JSON object: {printable(str(error))}"
        return ServiceReply(failure="bad answer", message=message)


def _server_message(data: bytes) -> str:
    """Return what a server says of a refusal, bounded and printable."""
    try:
        content = msgspec.json.decode(data)
    except BAD_JSON:
        content = data[:1000].decode("utf-8", "replace")
    inner = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(inner, dict):
        words = [inner.get(key) for key in ("message", "detail", "code", "type")]
        inner = next((word for word in words if isinstance(word, str) and word), inner)
    return printable(" ".join(str(inner).split()), 300)
