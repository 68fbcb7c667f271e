"""Messages about the Hub: nothing secret in them, and our own errors left as they are."""

import pytest

from kernel_archive.errors import HubError, UsageError
from kernel_archive.publishing.hub import check_name, hub_errors, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token hf_abcDEF0123456789 refused", "token *** refused"),
        ("Authorization: Bearer s3cr3t-token", "Authorization: Bearer ***"),
        ("PUT https://store/x?X-Amz-Signature=abc&y=1 failed", "PUT https://store/x?*** failed"),
        ("https://user:secret@hub.example/api", "https://***@hub.example/api"),
        ("plain\ntext\x1b[31m", "plain text\\x1b[31m"),
    ],
)
def test_redact(text, shown):
    """Tokens, signatures and passwords are replaced, escapes shown, wherever they stand."""
    assert redact(text) == shown


def test_client_errors_become_hub_errors_without_their_cause():
    """Errors that come from each other become one HubError; a cause may hold a secret, and goes."""
    first, second = ConnectionResetError("https://s/x?X-Amz-Signature=abc"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    message = r"\(https://s/x\?\*\*\*: second\), while pushing to a/b\. .* Nothing was sent"
    with (
        pytest.raises(HubError, match=message) as caught,
        hub_errors("pushing to a/b", state="Nothing was sent"),
    ):
        raise first
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(UsageError), hub_errors("pulling a/b"):
        raise UsageError("mine")


@pytest.mark.parametrize(
    "name", ["a", "a/b/c", "a/..", "../x", "a/b.git", "", "a b/c", "-a/b", "a/b\n"]
)
def test_bad_repository_names(name):
    """What can't be a dataset's name on the Hub is refused."""
    with pytest.raises(UsageError):
        check_name(name)
