"""The page as text: complete without its script, closed to everything from outside."""

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from support.boards import DRAWS, with_figure, write_lines
from support.small_archive import write_archive

from kernel_archive.board import add_submission, build_board
from kernel_archive.board.page import LIBRARIES, SCRIPTS, render_entry, render_page
from kernel_archive.board.texts import page_file
from kernel_archive.scoring import load_split
from kernel_archive.scoring.split import Zero


class Page(HTMLParser):
    """Elements with their attributes, texts of table cells, scripts with theirs."""

    VOID = ("meta", "link", "input", "br", "img", "line", "circle", "rect", "col")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.cells, self.scripts, self.balanced = [], [], [], [], True
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in self.VOID else [tag]
        self.cells += [""] if tag in ("td", "th") else []
        self.scripts += [[dict(attrs), ""]] if tag == "script" else []

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in ("tr", "td", "th"):
            self.balanced = False

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif {"td", "th"} & set(self.open):
            self.cells[-1] += data


@pytest.fixture
def text(archive, board):
    """The page of a board of both splits."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    return (board / "index.html").read_text(encoding="utf-8")


def test_the_table_is_complete_without_a_script(text):
    """Names, ranks, figures and intervals stand in the HTML itself, best first, for both splits."""
    page = Page(text)
    names = [c.removesuffix("all figures") for c in page.cells if c.endswith("all figures")]
    assert names[0] == "good"
    assert len([e for e in page.elements if e[0] == "table"]) == 2
    assert any(re.fullmatch(r"\d+\.\d\u2009%\*?\d+\.\d–\d+\.\d", c) for c in page.cells)
    assert re.search(r"</b> leads\. CRPS skill 0\.\d+ \(95 % .*: it takes away \d+ % of the", text)
    assert " is the best cue on the surface of the programs. 0 is no better than that" in text
    assert "1 is knowing every bin" in text
    controls = [attrs for tag, attrs in page.elements if tag == "tr" and "data-control" in attrs]
    assert len(controls) > 10
    assert {c["class"].split()[0] for c in controls} == {"control"}
    assert sum("bound" in c["class"].split() for c in controls) == 4
    drawn = [attrs for tag, attrs in page.elements if attrs.get("class") == "js"]
    assert len(drawn) == 4
    assert all("hidden" in attrs for attrs in drawn)
    assert page.balanced
    assert page.open in ([], ["html"])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-1.38, -1.01, "worse than"), (-0.2, 0.1, "no better than")],
)
def test_a_skill_below_zero_is_called_what_it_is(archive, board, low, high, words):
    """In the units of the table: worse where the whole interval is negative, else no better."""
    standings = build_board(archive, board, draws=DRAWS, jobs=1).boards[0]
    first = standings.entries[0]
    mean = (low + high) / 2
    score = with_figure(first.score, "crps_skill", mean=mean, low=low, high=high, std=None)
    first = msgspec.structs.replace(first, score=score)
    fixed = Zero(name="dry-run", probabilities=np.full((len(standings.split), 8), 0.125))
    zeroed = dataclasses.replace(standings.split, zero=fixed)
    entries = [first, *standings.entries[1:]]
    standings = msgspec.structs.replace(standings, split=zeroed, entries=entries)
    figure = f"CRPS skill {mean:.3f} (95 % interval {low:.3f} to {high:.3f})"
    said = render_page(archive, [standings])
    best = f"The best of {standings.n_ranked} is <b>good</b>: {figure}."
    assert f"No entry beats dry-run, the zero of the scale. {best}" in said
    assert "Here dry-run is the best cheap forecast: no language model, statistics of" in said
    assert f"{figure}: {words} dry-run, the zero of the scale." in render_entry(standings, first)


def test_nothing_is_fetched_and_only_its_own_scripts_run(text):
    """No address is loaded; the policy names the digest of every script and no other source."""
    page = Page(text)
    for tag, attrs in page.elements:
        assert "src" not in attrs, tag
        assert not [name for name in attrs if name.startswith("on")]
        assert "style" not in attrs
        if tag == "link":
            assert attrs["href"] == "data:,"
    (policy,) = (a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert "unsafe-eval" not in policy
    run = [code for attrs, code in page.scripts if attrs.get("type") is None]
    assert len(run) == len(LIBRARIES) + 1
    for code in run:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "url(" not in page_file("style.css")
    assert "@import" not in page_file("style.css")


def test_bundled_libraries_are_those_that_the_readme_names():
    """Each file's digest is the one on record; none can end its own element."""
    readme = page_file("vendor/README.md")
    for library in LIBRARIES:
        content = page_file(f"vendor/{library}")
        assert f"`{hashlib.sha256(content.encode()).hexdigest()}`" in readme
        assert "</script" not in content.lower()
    for script in SCRIPTS:
        assert "</script" not in page_file(script).lower()
        assert ".innerHTML" not in page_file(script) or script == "code.js"


def test_licences_stand_in_the_page(text):
    """Whoever passes the page on passes the licences on."""
    assert text.count("Mike Bostock") >= 1
    for library in LIBRARIES:
        licence = page_file(f"vendor/LICENSE-{library.partition('.')[0]}.txt")
        assert "permission" in licence.lower()
        assert licence.splitlines()[0].strip() in text.replace("&quot;", '"')


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{7*7}}$title"


def test_hostile_names_are_text(tmp_path):
    """Markup in a name, a model, an address or a problem's id makes no element and no attribute."""
    archive = write_archive(
        tmp_path / "a", per_search=6, problems=("alpha", "</td><b onmouseover=x>")
    )
    split = load_split(archive, "eval")
    path = tmp_path / "f.jsonl"
    write_lines(path, split, [[0.125] * 8] * len(split))
    stated = {"model": EVIL, "url": f"https://example.org/?{EVIL.replace(' ', '')}"}
    add_submission(path, split, name=EVIL, **stated, board=tmp_path / "b", draws=DRAWS)
    build_board(archive, tmp_path / "b", draws=DRAWS, jobs=1)
    page = Page((tmp_path / "b/index.html").read_text(encoding="utf-8"))
    assert page.balanced
    assert not [e for e in page.elements if e[0] in ("img", "b") and (e[1])]
    assert not [a for _, attrs in page.elements for a in attrs if a.startswith("on")]
    assert any(EVIL in cell for cell in page.cells)
    assert len(page.scripts) == len(LIBRARIES) + 2
