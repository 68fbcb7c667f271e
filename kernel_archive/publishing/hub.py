"""Talk to the Hugging Face Hub: one client, and a clear message without secrets for each failure.

The Hub is not trusted: its requests are bounded (:mod:`kernel_archive.connections`).
"""

from __future__ import annotations

import logging
import re
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kernel_archive._version import __version__
from kernel_archive.connections import bound_requests, endpoint
from kernel_archive.errors import HubError, KernelArchiveError, UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SECRETS: Final = (
    (re.compile(r"hf_[A-Za-z0-9_-]{8,}"), "hf_***"),
    (re.compile(r"(?i)\bbearer\s+[^\s'\"]+"), "Bearer ***"),
    (re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*"), r"\1?***"),
    (re.compile(r"(https?://)[^\s/@'\"]+@"), r"\1***@"),
)
_TRANSPORT: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
_CHANGED: Final = (
    "{repo} was changed by somebody else meanwhile ({status}), while {doing}. Look at it, then run "
    "the command again."
)
#: Status of a refused request -> what it means to its user.
_REFUSALS: Final = {
    401: "the Hub does not accept the login (401) for {doing}. Log in with 'hf auth login', or set "
    "HF_TOKEN to a valid token.",
    403: "the token may not do that (403): {doing}. Use one with write access to {owner}.",
    404: "the Hub has no such thing (404): {doing}. Check the name {repo}; a private one needs a "
    "login.",
    409: _CHANGED,
    412: _CHANGED,
    413: "the Hub refuses the size (413), while {doing}.",
    429: "the Hub asks to wait (429), while {doing}. Run the command again later.",
}
_TROUBLE: Final = (
    "the Hub has trouble of its own ({status}), while {doing}. Run the command again later."
)


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
        HubError: it is none; it would go into paths.
    """
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise HubError(f"{endpoint()} names no commit of {repo}")
    return value


def redact(text: object, limit: int = 300) -> str:
    """Remove tokens and the queries of addresses (signatures stand there); printable, bounded."""
    from huggingface_hub import get_token

    plain = str(text)
    if token := get_token():
        plain = plain.replace(token, "***")
    for pattern, replacement in _SECRETS:
        plain = pattern.sub(replacement, plain)
    return printable(" ".join(plain.split()), limit)


def _causes(error: BaseException) -> list[BaseException]:
    """List an error and its causes; each once, also when they come from each other."""
    chain = [error]
    cause = error.__cause__ or error.__context__
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def _refusal(error: HfHubHTTPError, repo: str, doing: str) -> str:
    """Explain a request that the Hub refused."""
    from huggingface_hub.errors import RepositoryNotFoundError

    status, answer = error.response.status_code, redact(error.server_message or "")
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"there is no dataset {repo} at {endpoint()} that this login can see ({status}), while "
            f"{doing}. Check the name; for a private one log in with 'hf auth login', or set "
            "HF_TOKEN"
        )
    other = _TROUBLE if status >= 500 else "the Hub refuses ({status}), while {doing}."
    owner = repo.split("/", maxsplit=1)[0]
    text = _REFUSALS.get(status, other).format(status=status, doing=doing, repo=repo, owner=owner)
    return f'{text} The Hub says: "{answer}"' if answer else text.rstrip(".")


def _raised_by_client(error: Exception) -> bool:
    """Whether a plain exception comes out of the Hub's client, not out of our own code."""
    owners = [
        str(frame.f_globals.get("__name__", "")).split(".")[0]
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    ours = [name for name in owners if name in {"kernel_archive", "huggingface_hub"}]
    return bool(ours) and ours[-1] == "huggingface_hub"


def _broke(error: BaseException) -> bool:
    """Whether an error is one of the connection."""
    module = type(error).__module__.split(".", maxsplit=1)[0]
    return module in _TRANSPORT or isinstance(error, (ConnectionError, TimeoutError))


def _explain(error: Exception, repo: str, doing: str) -> str | None:
    """Explain an error of the Hub's client; ``None`` for any other."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    chain = _causes(error)
    for cause in chain:
        if isinstance(cause, HfHubHTTPError):
            return _refusal(cause, repo, doing)
        if isinstance(cause, OfflineModeIsEnabled):
            return (
                "offline mode is on (HF_HUB_OFFLINE) and there is no local copy, while "
                f"{doing}. Unset it"
            )
    reason, again = next(filter(_broke, chain), None), "Run the command again"
    if reason is not None:
        shown = redact(reason) or type(reason).__name__
        text = f"the connection to {endpoint()} broke ({shown}), while {doing}. {again}"
    elif isinstance(error, OSError) and "Consistency check failed" in str(error):
        text = f"a download came incomplete, while {doing}. {again}"
    elif isinstance(error, LocalEntryNotFoundError):
        state = "cannot be reached and there is no local copy"
        text = f"{endpoint()} {state}, while {doing}. Check the network"
    elif type(error).__module__.startswith("huggingface_hub") or _raised_by_client(error):
        text = f"the Hub's client gave up ({redact(error)}), while {doing}"
    else:
        return None
    return text


@contextmanager
def hub_errors(repo: str, doing: str, *, state: str = "") -> Iterator[None]:
    """Turn whatever the Hub's client raises into a :class:`HubError`.

    ``doing`` ends a sentence, such as ``pushing to a/b``; ``state`` says what stands now and what
    the next call does.
    """

    def with_state(message: str) -> HubError:
        return HubError(f"{message}. {state}".rstrip(". ") if state else message)

    # The client's own log names signed addresses.
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except HubError as error:
        raise with_state(str(error)) from None
    except KernelArchiveError:
        raise
    except Exception as error:
        message = _explain(error, repo, doing)
        if message is None:
            raise
        # Without the cause: its text may hold what was redacted.
        raise with_state(message) from None
    finally:
        logger.setLevel(level)
