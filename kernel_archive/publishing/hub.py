"""Talk to the Hugging Face Hub: one client, and a clear message without secrets for each failure.

The Hub is not trusted: its requests are bounded (:mod:`kernel_archive.connections`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kernel_archive._version import __version__
from kernel_archive.connections import bound_requests, endpoint
from kernel_archive.errors import HubError, KernelArchiveError, UsageError, printable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SECRETS: Final = (
    (re.compile(r"hf_[A-Za-z0-9_-]{8,}"), "hf_***"),
    (re.compile(r"(?i)\bbearer\s+[^\s'\"]+"), "Bearer ***"),
    (re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*"), r"\1?***"),
    (re.compile(r"(https?://)[^\s/@'\"]+@"), r"\1***@"),
)
_TRANSPORT: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
_LOGIN: Final = (
    "Check the name; log in with 'hf auth login', or set HF_TOKEN to a token that may do it"
)
_CHANGED: Final = "Somebody else changed it meanwhile. Look at it, then run the command again"
#: Status of a refused request -> what its user can do.
_WAYS_OUT: Final = {
    **dict.fromkeys((401, 403, 404), _LOGIN),
    **dict.fromkeys((409, 412), _CHANGED),
    **dict.fromkeys((429, 500, 502, 503, 504), "Run the command again later"),
}


def check_name(name: str) -> str:
    """Return the name of a dataset repository, ``owner/name``.

    Raises:
        UsageError: it can't be one.
    """
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".")):
        raise UsageError(
            f"{printable(name)!r} is not a dataset's name on the Hub; it looks like owner/name"
        )
    return name


def tag_of(version: str) -> str:
    """Return the git tag of a version: ``v`` in front, once."""
    return version if version.startswith("v") else f"v{version}"


def connect() -> HfApi:
    """Return the Hub's client, with requests within bounds."""
    from huggingface_hub import HfApi

    bound_requests()
    return HfApi(library_name="kernel-archive", library_version=__version__)


def commit_id(value: object, repo: str) -> str:
    """Return a commit's id as the Hub states it.

    Raises:
        HubError: it isn't a commit's id, and would go into paths.
    """
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise HubError(f"{endpoint()} names no commit of {repo}: check HF_ENDPOINT")
    return value


def redact(text: object) -> str:
    """Remove tokens and the queries of addresses (signatures stand there); printable, bounded."""
    from huggingface_hub import get_token

    plain = str(text)
    if token := get_token():
        plain = plain.replace(token, "***")
    for pattern, replacement in _SECRETS:
        plain = pattern.sub(replacement, plain)
    return printable(" ".join(plain.split()), 300)


def _causes(error: BaseException) -> list[BaseException]:
    """List an error and its causes; each once, also when they come from each other."""
    chain = [error]
    cause = error.__cause__ or error.__context__
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def _explain(error: Exception, doing: str) -> str:
    """Explain an error of the Hub's client."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    chain = _causes(error)
    for cause in chain:
        if isinstance(cause, HfHubHTTPError):
            status, answer = cause.response.status_code, redact(cause.server_message or "")
            quoted = f': "{answer}"' if answer else ""
            way_out = f". {_WAYS_OUT[status]}" if status in _WAYS_OUT else ""
            lacking = isinstance(cause, RepositoryNotFoundError)
            verdict = "has no such dataset that this login can see" if lacking else "refuses"
            return f"{endpoint()} {verdict} ({status}{quoted}), while {doing}{way_out}"
    for cause in chain:
        transport = type(cause).__module__.split(".", maxsplit=1)[0] in _TRANSPORT
        if transport or isinstance(cause, (ConnectionError, TimeoutError)):
            shown = redact(cause) or type(cause).__name__
            return (
                f"the connection to {endpoint()} broke ({shown}), while {doing}. "
                "Run the command again"
            )
    return f"the Hub's client gave up ({redact(error) or type(error).__name__}), while {doing}"


@contextmanager
def hub_errors(doing: str, *, state: str = "") -> Iterator[None]:
    """Turn whatever the Hub's client raises into a :class:`HubError`.

    ``doing`` ends a sentence, such as ``pushing to a/b``; ``state`` says what stands now and what
    the next call does.
    """
    # The client's own log names signed addresses.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except Exception as error:
        if isinstance(error, KernelArchiveError) and not isinstance(error, HubError):
            raise
        message = str(error) if isinstance(error, HubError) else _explain(error, doing)
        # Without the cause: its text may hold what was redacted.
        raise HubError(f"{message}. {state}" if state else message) from None
    finally:
        logger.setLevel(level)
