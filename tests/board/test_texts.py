"""Strangers' text on a page."""

import unicodedata
from html.parser import HTMLParser

import jinja2
import pytest

from kernel_archive.board import texts
from kernel_archive.board.texts import render, visible

HOSTILE = (
    "</td><svg onload=alert(1)> {{ 7 * 7 }} {% x %}",
    "\" onclick='x'",
    "&lt;b&gt; & &#60; <!-- --!>",
    "a\u202eb\u2066c\u2069 \u2028\u2029\ufeff",
    "\x00\x08\x1b[2J\x9b",
    "\ud800x\udfff \U000e0041",
)


class Texts(HTMLParser):
    """Tags and text of a fragment, as a browser would see them."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def template(monkeypatch):
    """Makes a template of a text, in the environment of the page."""
    texts._environment.cache_clear()
    yield lambda text: monkeypatch.setattr(texts, "page_file", lambda _: text)
    texts._environment.cache_clear()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text(template, text):
    """Nothing of it becomes a tag or an attribute, and all of it is there."""
    parser = Texts()
    template('<a href="{{ url }}" rel="nofollow">{{ text }}</a>')
    parser.feed(render("link.html", url=text, text=text))
    assert [tag for tag, _ in parser.tags] == ["a"]
    assert set(parser.tags[0][1]) == {"href", "rel"}
    assert parser.text == visible(unicodedata.normalize("NFC", text))
    assert parser.tags[0][1]["href"] == parser.text


@pytest.mark.parametrize("text", HOSTILE)
def test_what_cannot_be_seen_is_named(text):
    """No control, format, private or surrogate character is left.

    What is visible stays as it is.
    """
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co")]
    shown.encode("utf-8")
    assert visible(shown) == shown


def test_ordinary_text_is_left_alone():
    """Programs keep their tabs and lines, names their script."""
    text = "def f(x):\n\treturn 'Größe 模型 \U0001f680'\n"
    assert visible(text) == text


def test_a_missing_value_is_an_error(template):
    """It is not printed as nothing."""
    template("{{ text }}")
    with pytest.raises(jinja2.UndefinedError):
        render("text.html")
