"""Bound requests to a Hub that is not trusted, in their time and in where they lead.

The Hub's client itself would wait for ever for an answer, and makes file names of headers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

from kernel_archive.errors import HubError, printable

TIMEOUT: Final = 60.0  # seconds without a byte after which a request counts as broken
#: Bytes a second: an answer that comes slower is broken off after :data:`TIMEOUT` of waiting.
LEAST_RATE: Final = 1000
#: Seconds that the client waits at most, each of five times, when the Hub asks it to wait.
LONGEST_WAIT: Final = 60
_ETAG: Final = re.compile(r"(?:W/)?\"?[\w.:+=-]{1,200}\"?")


def endpoint() -> str:
    """Name the Hub's address."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _steady(read: Callable[..., bytes]) -> Callable[..., bytes]:
    """Make the reading of a connection give up where the waits between its bytes add up."""
    waited = 0.0

    def steady_read(max_bytes: int, timeout: float | None = None) -> bytes:
        nonlocal waited
        started = time.monotonic()
        data = read(max_bytes, timeout)
        # Bytes at the least rate cost no waiting; a fast start is no credit for later.
        waited = max(0.0, waited + time.monotonic() - started - len(data) / LEAST_RATE)
        if waited > TIMEOUT:
            rate = f"less than {LEAST_RATE:,} bytes a second, for {TIMEOUT:.0f} s"
            raise HubError(f"{endpoint()} sends {rate}. Check the network, then try again")
        return data

    return steady_read


def _watch(event: str, info: dict[str, Any]) -> None:
    """Bound the reading of every connection that the client's transport reports as made."""
    if event.endswith(("connect_tcp.complete", "start_tls.complete")):
        connection = info["return_value"]
        connection.read = _steady(connection.read)


def _limit_time(request: Any) -> None:
    """Give a request the time limits that it lacks; several calls of the client ask for none."""
    limits = request.extensions.get("timeout") or {}
    steps = ("connect", "read", "write", "pool")
    request.extensions["timeout"] = {step: limits.get(step) or TIMEOUT for step in steps}
    request.extensions["trace"] = _watch


def _check_answer(response: Any) -> None:
    """Refuse headers that would lead the client astray, and bound the wait that they ask for."""
    headers = response.headers
    for value in filter(None, (headers.get("etag"), headers.get("x-linked-etag"))):
        if ".." in value or not _ETAG.fullmatch(value):  # the client's cache makes a file of it
            shown = printable(value)
            raise HubError(f"{endpoint()} sends the ETag {shown}. No Hub does: check HF_ENDPOINT")
    # The Hub offers a transfer for which none of these limits holds; without it this one is used.
    headers.pop("x-xet-hash", None)
    if response.status_code == 429:
        asked = headers.get("retry-after", "")
        headers.pop("ratelimit", None)
        headers["retry-after"] = str(min(int(asked[:9]) if asked.isdecimal() else 5, LONGEST_WAIT))


def _new_client() -> Any:
    """Make a client of the Hub's library with our limits."""
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks["request"].append(_limit_time)
    client.event_hooks["response"].append(_check_answer)
    return client


def bound_requests() -> None:
    """Bound every request that the Hub's library makes in this process from now on.

    Done once: a new client reads all certificates of this machine, which takes long.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    if _http._GLOBAL_CLIENT_FACTORY is not _new_client:  # noqa: SLF001 - has no public name
        set_client_factory(_new_client)
