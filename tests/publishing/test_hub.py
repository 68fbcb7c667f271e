"""Messages about the Hub: nothing secret in them, and our own errors left as they are."""

from __future__ import annotations

import pytest

from kernel_archive.errors import HubError, UsageError
from kernel_archive.publishing.hub import hub_errors, redact, tag_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token hf_abcDEF0123456789 refused", "token hf_*** refused"),
        ("Authorization: Bearer s3cr3t-token", "Authorization: Bearer ***"),
        (
            "PUT https://store.example/x?X-Amz-Signature=abc&y=1 failed",
            "PUT https://store.example/x?*** failed",
        ),
        ("https://user:secret@hub.example/api", "https://***@hub.example/api"),
        ("plain\ntext\x1b[31m", "plain text\\x1b[31m"),
    ],
)
def test_redact(text, shown):
    """Tokens, signatures and passwords are replaced, escapes shown, wherever they stand."""
    assert redact(text) == shown


def test_redact_replaces_the_login_in_use(monkeypatch):
    """The token of the environment is replaced whatever it looks like."""
    monkeypatch.setenv("HF_TOKEN", "an-odd-looking-token")
    assert redact("with an-odd-looking-token in it") == "with *** in it"


def test_client_errors_become_hub_errors_without_their_cause():
    """A broken connection becomes a HubError; its cause may hold a secret and is not shown."""
    message = r"broke .* while pushing to a/b\. .* Nothing was sent"
    with (
        pytest.raises(HubError, match=message) as caught,
        hub_errors("pushing to a/b", state="Nothing was sent"),
    ):
        raise ConnectionResetError("PUT https://store.example/x?X-Amz-Signature=abc")
    assert "Signature" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_errors_that_come_from_each_other_are_explained_once():
    """A client that raises an error again from one that came from it: an end is found."""
    first, second = ConnectionResetError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(HubError, match="first"), hub_errors("pushing to a/b"):
        raise first


def test_our_own_errors_pass_and_others_are_the_clients():
    """A UsageError stays one; whatever else comes out of the client's code is named by its text."""
    with pytest.raises(UsageError), hub_errors("pulling a/b"):
        raise UsageError("mine")
    said = r"gave up \(impossible\), while pulling a/b"
    with pytest.raises(HubError, match=said), hub_errors("pulling a/b"):
        raise ValueError("impossible")


def test_tag_of():
    """A version's tag has one v in front."""
    assert (tag_of("1.2.0"), tag_of("v1.2.0")) == ("v1.2.0", "v1.2.0")
