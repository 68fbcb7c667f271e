"""Talking to the Hugging Face Hub: one client, and each way it can fail as a clear message without secrets.

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

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SECRETS: Final = (
    (re.compile(r"hf_[A-Za-z0-9_-]{8,}"), "hf_***"),
    (re.compile(r"(?i)\bbearer\s+[^\s'\"]+"), "Bearer ***"),
    (re.compile(r"(https?://[^\s'\"?]+)\?[^\s'\"]*"), r"\1?***"),
    (re.compile(r"(https?://)[^\s/@'\"]+@"), r"\1***@"),
)
_TRANSPORT: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})


def check_name(name: str) -> str:
    """The name of a dataset repository, ``owner/name``.

    Raises:
        UsageError: it is none.
    """
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".")):
        raise UsageError(f"{printable(name)!r} is not a dataset's name on the Hub; it looks like owner/name")
    return name


def tag_of(version: str) -> str:
    """The git tag of a version: ``v`` in front, once."""
    return version if version.startswith("v") else f"v{version}"


def connect() -> HfApi:
    """The Hub's client, with requests within bounds."""
    from huggingface_hub import HfApi

    bound_requests()
    return HfApi(library_name="kernel-archive", library_version=__version__)


def commit_id(value: object, repo: str) -> str:
    """The id of a commit as the Hub states it.

    Raises:
        HubError: it is none; it goes into paths.
    """
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise HubError(f"{endpoint()} names no commit of {repo}")
    return value


def redact(text: object, limit: int = 300) -> str:
    """Any text without tokens and without the query of an address (where signatures stand), printable and bounded."""
    from huggingface_hub import get_token

    plain = str(text)
    token = get_token()
    if token:
        plain = plain.replace(token, "***")
    for pattern, instead in _SECRETS:
        plain = pattern.sub(instead, plain)
    return printable(" ".join(plain.split()), limit)


def _chain(error: BaseException) -> list[BaseException]:
    """An error, what it comes from, and so on; once round where they come from each other."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return chain


_CHANGED: Final = (
    "{repo} was changed by somebody else meanwhile ({status}), while {doing}. Look at it, then run the command again."
)
#: Status of a refused request -> what it means to its user.
_REFUSALS: Final = {
    401: "the Hub does not accept the login (401) for {doing}. Log in with 'hf auth login', or set HF_TOKEN to a valid token.",
    403: "the token may not do that (403): {doing}. Use one with write access to {owner}.",
    404: "the Hub has no such thing (404): {doing}. Check the name {repo}; a private one needs a login.",
    409: _CHANGED,
    412: _CHANGED,
    413: "the Hub refuses the size (413), while {doing}.",
    429: "the Hub asks to wait (429), while {doing}. Run the command again later.",
}


def _refusal(status: int, said: str, repo: str, doing: str) -> str:
    """What a refused request means to its user."""
    trouble = "the Hub has trouble of its own ({status}), while {doing}. Run the command again later."
    other = trouble if status >= 500 else "the Hub refuses ({status}), while {doing}."
    owner = repo.split("/", maxsplit=1)[0]
    text = _REFUSALS.get(status, other).format(status=status, doing=doing, repo=repo, owner=owner)
    return f'{text} The Hub says: "{said}"' if said else text.rstrip(".")


def _raised_by_client(error: Exception) -> bool:
    """Whether a plain exception comes out of the Hub's client (or what it calls), not out of our own code."""
    frames = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__))
    owners = [name.split(".")[0] for name in frames]
    ours = [name for name in owners if name in {"kernel_archive", "huggingface_hub"}]
    return bool(ours) and ours[-1] == "huggingface_hub"


def _explain(error: Exception, repo: str, doing: str) -> str | None:
    """The message for an error of the Hub's client; ``None`` for any other."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    chain = _chain(error)
    for each in chain:
        if isinstance(each, RepositoryNotFoundError):
            status = each.response.status_code
            return (
                f"there is no dataset {repo} at {endpoint()} that this login can see ({status}), while {doing}. "
                "Check the name; for a private one log in with 'hf auth login' or set HF_TOKEN"
            )
        if isinstance(each, HfHubHTTPError):
            return _refusal(each.response.status_code, redact(each.server_message or ""), repo, doing)
        if isinstance(each, OfflineModeIsEnabled):
            return f"offline mode is on (HF_HUB_OFFLINE) and there is no local copy, while {doing}. Unset it"
    for each in chain:
        module = type(each).__module__.split(".", maxsplit=1)[0]
        if module in _TRANSPORT or isinstance(each, (ConnectionError, TimeoutError)):
            told = redact(each) or type(each).__name__
            return f"the connection to {endpoint()} broke ({told}), while {doing}. Run the command again"
    if isinstance(error, OSError) and "Consistency check failed" in str(error):
        return f"a download came incomplete, while {doing}. Run the command again"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{endpoint()} cannot be reached and there is no local copy, while {doing}. Check the network"
    if type(error).__module__.startswith("huggingface_hub") or _raised_by_client(error):
        return f"the Hub's client gave up ({redact(error)}), while {doing}"
    return None


def _with_state(message: str, state: str) -> str:
    return f"{message}. {state}".rstrip(". ") if state else message


@contextmanager
def hub_errors(repo: str, doing: str, *, state: str = "") -> Iterator[None]:
    """Turn whatever the Hub's client raises into a :class:`HubError` that says what happened and what stands.

    ``doing`` ends a sentence (``pushing to a/b``); ``state`` says what stands now and what the next call does.
    """
    # The client's own log names signed addresses.
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except HubError as error:
        raise HubError(_with_state(str(error), state)) from None
    except KernelArchiveError:
        raise
    except Exception as error:
        message = _explain(error, repo, doing)
        if message is None:
            raise
        # Without the cause: its text may hold what was redacted.
        raise HubError(_with_state(message, state)) from None
    finally:
        logger.setLevel(before)
