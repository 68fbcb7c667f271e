"""Talk to the Hugging Face Hub: one client, and a clear message without secrets for each failure.

The Hub is not trusted: its texts are made printable, and what is fetched is verified.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kernel_archive._version import __version__
from kernel_archive.errors import HubError, KernelArchiveError, UsageError, printable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Seconds without an answer after which a question about a repository counts as broken.
_TIMEOUT: Final = 60.0
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
#: Tokens, passwords, and the queries of addresses: signatures stand there.
_SECRETS: Final = re.compile(
    r"(?i)\bhf_[\w-]{8,}|(?<=\bbearer )[^\s'\"]+|(?<=\?)[^\s'\"]+|(?<=://)[^\s/@'\"]+(?=@)"
)
_LOGIN: Final = (
    "Check the name; log in with 'hf auth login', or set HF_TOKEN to a token that may do it"
)
_CHANGED: Final = "Somebody else changed it meanwhile. Look at it, then run the command again"
#: Status of a refused request -> what its user can do.
_FIXES: Final = {
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
    """Return the Hub's client."""
    from huggingface_hub import HfApi

    return HfApi(library_name="kernel-archive", library_version=__version__)


def commit_at(api: HfApi, repo: str, revision: str = "main") -> str:
    """Ask for the commit that a tag or branch names now.

    Raises:
        HubError: the answer isn't a commit's id, and would go into paths.
    """
    commit = api.dataset_info(repo, revision=revision, timeout=_TIMEOUT).sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubError(f"{api.endpoint} names no commit of {repo}: check HF_ENDPOINT")
    return commit


def redact(text: object) -> str:
    """Remove what is secret, and make the rest printable and short."""
    return printable(" ".join(_SECRETS.sub("***", str(text)).split()), 300)


def _explain(error: Exception, doing: str) -> str:
    """Explain an error of the Hub's client: by the refused request behind it, if there is one."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for cause in causes:
        if isinstance(cause, HfHubHTTPError):
            status, answer = cause.response.status_code, redact(cause.server_message or "")
            quoted = f': "{answer}"' if answer else ""
            fix = f". {_FIXES[status]}" if status in _FIXES else ""
            return f"{constants.ENDPOINT} refuses ({status}{quoted}), while {doing}{fix}"
    shown = ": ".join(dict.fromkeys(redact(e) or type(e).__name__ for e in (error, causes[-1])))
    return (
        f"no answer of {constants.ENDPOINT} that can be used ({shown}), while {doing}. Check the "
        "network, then run the command again"
    )


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
