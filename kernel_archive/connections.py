"""Requests to a Hub that is not trusted: each ends in bounded time, however little comes, and leads nowhere it should not.

The Hub's client itself would wait for ever for an answer, and makes file names of what headers say.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import HubError, printable

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds without a byte after which a request counts as broken.
TIMEOUT: Final = 60.0
#: Bytes a second: what comes slower may keep a connection waiting for :data:`TIMEOUT` in all.
LEAST_RATE: Final = 1000
#: Seconds that the client waits at most when the Hub asks it to wait, each of five times.
LONGEST_WAIT: Final = 60
_ETAG: Final = re.compile(r"(?:W/)?\"?[\w.:+=-]{1,200}\"?")


def endpoint() -> str:
    """The Hub's address."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


class _SteadyRead:
    """Reads from a connection, and gives up where so little comes that the waits between the bytes add up."""

    def __init__(self, read: Callable[..., bytes]) -> None:
        self._read = read
        self._waited = 0.0

    def __call__(self, max_bytes: int, timeout: float | None = None) -> bytes:
        started = time.monotonic()
        data = self._read(max_bytes, timeout)
        # Time that so many bytes may take is not waited; what a connection saved up earlier does not count.
        self._waited = max(0.0, self._waited + time.monotonic() - started - len(data) / LEAST_RATE)
        if self._waited > TIMEOUT:
            raise HubError(f"{endpoint()} sends less than {LEAST_RATE:,} bytes a second, for {TIMEOUT:.0f} s")
        return data


def _watch(event: str, info: dict[str, Any]) -> None:
    """Called by the client's transport with every step of a request: what it connects is read steadily from then on."""
    if event.endswith(("connect_tcp.complete", "start_tls.complete")):
        connection = info["return_value"]
        connection.read = _SteadyRead(connection.read)


def _limit_time(request: Any) -> None:
    """Give a request the time limits that it lacks: several calls of the Hub's client ask for none, explicitly."""
    limits = request.extensions.get("timeout") or {}
    steps = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {step: limits.get(step) or TIMEOUT for step in steps}
    request.extensions["trace"] = _watch


def _refuse_answer(response: Any) -> None:
    """Refuse an answer whose headers would lead the Hub's client astray, and bound the wait that it asks for."""
    for name in ("etag", "x-linked-etag"):
        value = response.headers.get(name)
        # The client's cache makes a file of this name.
        if value is not None and (".." in value or not _ETAG.fullmatch(value)):
            raise HubError(f"{endpoint()} calls a file {printable(value)}, which can't be the name of one")
    # It offers a transfer by other means (Xet), for which none of these limits holds; without it the file comes by this one.
    response.headers.pop("x-xet-hash", None)
    if response.status_code == 429:
        asked = response.headers.get("retry-after", "")
        response.headers.pop("ratelimit", None)
        response.headers["retry-after"] = str(min(int(asked[:9]), LONGEST_WAIT) if asked.isdecimal() else 5)


def _new_client() -> Any:
    """A client of the Hub's library with our limits; it makes one when it starts, and again after a broken connection."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks.get("request", []), _limit_time],
        "response": [*hooks.get("response", []), _refuse_answer],
    }
    return client


def bound_requests() -> None:
    """Bound every request that the Hub's library makes in this process from now on.

    Once is enough: a new client reads all certificates of this machine, which takes longer than most requests.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    if _http._GLOBAL_CLIENT_FACTORY is not _new_client:  # noqa: SLF001 - no public name says whose factory is set
        set_client_factory(_new_client)
