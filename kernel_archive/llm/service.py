"""Send chat requests to a service that speaks the OpenAI protocol: one place retries and counts."""

from __future__ import annotations

import email.utils
import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.errors import UsageError, printable

if TYPE_CHECKING:
    import threading

#: Statuses and failures that may pass: the same request is sent again.
RETRIED: Final = frozenset(
    {"status 408", "status 409", "status 429", "timeout", "connection broken", "bad answer"}
)
#: Bytes of a response; a longer one is a failure.
MAX_RESPONSE: Final = 16 << 20
#: Longest pause before a request is sent again, unless the server asks for a longer one, s.
MAX_PAUSE: Final = 60.0
#: Longest pause that a server may ask for, s.
MAX_RETRY_AFTER: Final = 3600.0


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


class ServiceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one question: a response body, or the kind of failure and its message."""

    body: dict[str, Any] | None = None
    failure: str = ""  # for example "status 404", "connection refused"
    message: str = ""  # what the server, or the system, says of it
    retries: int = 0
    latency_s: float = 0.0


class _Failed(Exception):  # noqa: N818 - never leaves this module
    """Raised when one attempt fails."""

    def __init__(self, kind: str, message: str, pause: float | None = None) -> None:
        super().__init__(kind)
        self.kind, self.message, self.pause = kind, message, pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a key is sent to the address that was named, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


def check_url(url: str) -> str:
    """Return a base address without a slash at its end.

    Raises:
        UsageError: it is none.
    """
    if not url.startswith(("http://", "https://")) or any(c.isspace() for c in url):
        raise UsageError(
            f"--url {printable(url)} is no address; it looks like http://127.0.0.1:8000/v1"
        )
    return url.rstrip("/").removesuffix("/chat/completions")


def send(service: Service, body: dict[str, Any], stopped: threading.Event) -> ServiceReply:
    """Send one request; send it again, after a pause, where the failure may pass."""
    started = time.monotonic()
    retries = 0
    while True:
        try:
            answer = _attempt(service, body)
            seconds = round(time.monotonic() - started, 3)
            return ServiceReply(body=answer, retries=retries, latency_s=seconds)
        except _Failed as failure:
            may_pass = failure.kind in RETRIED or failure.kind.startswith("status 5")
            if not may_pass or retries == service.max_retries or stopped.is_set():
                return ServiceReply(failure=failure.kind, message=failure.message, retries=retries)
            pause = failure.pause
            if pause is None:
                pause = min(MAX_PAUSE, 2.0**retries)
            retries += 1
            stopped.wait(pause)


def _attempt(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "User-Agent": "kernel-archive"}
    if service.key:
        headers["Authorization"] = f"Bearer {service.key}"
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked by check_url
        f"{service.url}/chat/completions", data=msgspec.json.encode(body), headers=headers
    )
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(request, timeout=service.timeout) as response:
            data = response.read(MAX_RESPONSE + 1)
    except urllib.error.HTTPError as error:
        pause = _retry_after(error.headers.get("Retry-After"))
        raise _Failed(f"status {error.code}", _server_message(error), pause) from None
    except TimeoutError:
        message = f"no answer within {service.timeout:g} s"
        raise _Failed("timeout", message) from None
    except (OSError, http.client.HTTPException) as error:
        raise _connection_failure(error, service) from None
    if len(data) > MAX_RESPONSE:
        raise _Failed("response too long", f"more than {MAX_RESPONSE >> 20} MiB")
    try:
        answer = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Failed("bad answer", f"the response is no JSON: {printable(str(error))}") from None
    if not isinstance(answer, dict):
        raise _Failed("bad answer", "the response is no JSON object")
    return answer


def _connection_failure(error: Exception, service: Service) -> _Failed:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return _Failed("timeout", f"no answer within {service.timeout:g} s")
    if isinstance(reason, ConnectionRefusedError):
        return _Failed("connection refused", "nothing listens at this address")
    if isinstance(reason, OSError) and not isinstance(reason, ConnectionError):
        return _Failed("unreachable", printable(str(reason), 200))  # no such host, certificate
    return _Failed("connection broken", printable(str(reason) or type(reason).__name__, 200))


def _server_message(error: urllib.error.HTTPError) -> str:
    """Return what a server says of a refusal, bounded and printable."""
    try:
        data = error.read(64 << 10)
    except (OSError, http.client.HTTPException):
        return ""
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return printable(" ".join(data.decode("utf-8", "replace").split()), 300)
    inner = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(inner, dict):
        words = [inner.get(key) for key in ("message", "detail", "code", "type")]
        inner = next((word for word in words if isinstance(word, str) and word), inner)
    return printable(" ".join(str(inner).split()), 300)


def _retry_after(header: str | None) -> float | None:
    """Return the pause that a server asks for: seconds, or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(header)
        except ValueError:
            return None
        seconds = moment.timestamp() - time.time()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
