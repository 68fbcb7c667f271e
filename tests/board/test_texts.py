"""Strangers' text: what cannot be seen is named, all else stays as it is."""

import unicodedata

import pytest

from kernel_archive.board.texts import visible


@pytest.mark.parametrize(
    "text",
    [
        "a\u202eb\u2066c\u2069 \u2028\u2029\ufeff",
        "\x00\x08\x1b[2J\x9b",
        "\ud800x\udfff \U000e0041",
    ],
)
def test_what_cannot_be_seen_is_named(text):
    """No control, format, private or surrogate character is left."""
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co")]
    shown.encode("utf-8")
    assert visible(shown) == shown


def test_ordinary_text_is_left_alone():
    """Programs keep their tabs and lines, names their script."""
    text = "def f(x):\n\treturn 'Größe 模型 \U0001f680'\n"
    assert visible(text) == text
