"""Plots from score records."""

import sys
import xml.etree.ElementTree as ET

import msgspec
import numpy as np
import pytest
from support.made_forecasts import make_forecasts, make_target

from kernel_archive.errors import DataError, MissingExtraError, UsageError
from kernel_archive.scoring import Forecasts, read_record, score
from kernel_archive.scoring.plots import KINDS, draw, file_name_for


@pytest.fixture(scope="module")
def records():
    """Two forecasters of one evaluation split, read back from JSON: plots need nothing else."""
    rng = np.random.default_rng(1)
    target = make_target(rng, sizes=(20, 20))
    return [
        read_record(score(target, make_forecasts(rng, target, noise=n, name=f"noise {n}"), draws=50).to_json())
        for n in (0.5, 1.5)
    ]


@pytest.fixture(scope="module")
def discovery():
    """One forecaster of discovery pairs."""
    rng = np.random.default_rng(1)
    target = make_target(rng, sizes=(20, 20), split="discovery")
    return score(target, make_forecasts(rng, target), draws=50)


def words(svg):
    """The titles that matplotlib leaves in an SVG's comments."""
    ET.fromstring(svg)
    return svg.decode()


@pytest.mark.parametrize("kind", ["all", *(k for k in KINDS if k != "precision-recall")])
@pytest.mark.parametrize("number", [1, 2])
def test_every_plot_of_an_evaluation_is_drawn(records, kind, number):
    """As well-formed SVG, for one record and for several."""
    svg = words(draw(records[:number], kind))
    assert "noise 0.5" in svg


@pytest.mark.parametrize("kind", ["all", "precision-recall", "groups", "reliability"])
def test_every_plot_of_discovery_pairs_is_drawn(discovery, kind):
    """Curves per cutoff for one record, one cutoff for several."""
    assert words(draw([discovery], kind))
    other = msgspec.structs.replace(discovery, forecasts=msgspec.structs.replace(discovery.forecasts, name="b"))
    assert words(draw([discovery, other], kind))


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".SVG", b"<?xml")])
def test_the_ending_gives_the_format(records, ending, magic):
    """PNG, PDF, SVG."""
    assert draw(records[:1], "recovery", ending).startswith(magic)


def test_the_same_record_gives_the_same_bytes(records):
    """No time and no random id is in a picture."""
    for ending in (".svg", ".png", ".pdf"):
        assert draw(records[:1], "recovery", ending) == draw(records[:1], "recovery", ending)


def test_an_svg_follows_a_dark_page(records):
    """Ink, axes, grid and background have a dark colour, and are written as the rules expect."""
    svg = words(draw(records[:1]))
    assert "prefers-color-scheme:dark" in svg
    body = svg[svg.index("</defs>") :]
    for colour in ("fill: #1f2933", "fill: #5b6770", "stroke: #5b6770", "stroke: #d5dbe1", "fill: #ffffff"):
        assert f'[style*="{colour}"]' in svg
        assert colour in body


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "$\\frac{1}{2}$", "\x1b[31m", "模型", "a" * 500, "_hidden"]
)
def test_any_name_can_be_drawn(records, name):
    """Mark-up is escaped, no formula is set, controls are shown, foreign scripts don't warn."""
    record = msgspec.structs.replace(records[0], forecasts=msgspec.structs.replace(records[0].forecasts, name=name))
    svg = words(draw([record, records[1]], "recovery"))
    assert "<script>" not in svg
    assert "\x1b" not in svg
    assert file_name_for([record], "all").endswith(".svg")
    assert "/" not in file_name_for([record], "all")


def test_a_record_with_holes_is_drawn(rng, target):
    """Nothing parsed: what can be drawn is drawn, the rest is refused with its reason."""
    nothing = score(target, Forecasts.from_arrays(target, np.zeros((28, 8)), parsed=np.zeros(28, bool)), draws=0)
    assert words(draw([nothing]))
    with pytest.raises(DataError, match="no forecast was parsed"):
        draw([nothing], "reliability")


def test_what_can_not_be_drawn_is_refused(records, discovery):
    """Unknown kind or ending, records of different splits, too many, nothing of that kind."""
    with pytest.raises(UsageError, match="unknown plot"):
        draw(records, "pie")
    with pytest.raises(UsageError, match=r"\.jpg"):
        draw(records, "all", ".jpg")
    with pytest.raises(DataError, match="different splits"):
        draw([records[0], discovery])
    with pytest.raises(UsageError, match="8 records"):
        draw(records * 4)
    with pytest.raises(DataError, match="discovery pairs"):
        draw(records, "precision-recall")
    with pytest.raises(DataError, match="no budgets"):
        draw([discovery], "recovery")


def test_without_matplotlib_the_extra_is_named(records, monkeypatch):
    """The way out is in the message."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"kernel-archive\[plots\]"):
        draw(records)
