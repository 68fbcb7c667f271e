"""The page's data: complete, compact, and unable to end its element."""

import base64
import re
import unicodedata

import numpy as np
import pytest
from support.boards import DRAWS, page_data

from kernel_archive.board.build import build_board
from kernel_archive.board.payload import packed
from kernel_archive.board.texts import visible


@pytest.fixture
def data(archive, board):
    """The payload of a board of both splits, packed and unpacked."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    return page_data((board / "index.html").read_text())


def test_it_survives_any_text():
    """Base64 alone reaches the page, whatever is in the data."""
    text = packed({"a": "</script><!-- \u2028 \U0001f680"})
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert page_data(f'id="payload">{text}<') == {"a": "</script><!-- ⟦U+2028⟧ \U0001f680"}


@pytest.mark.parametrize(
    "text", ["a\u202eb\u2066 \u2028\ufeff", "\x00\x1b[2J\x9b", "\ud800x\U000e0041"]
)
def test_what_cannot_be_seen_is_named(text):
    """No control, format, private or surrogate character is left; programs keep their lines."""
    shown = visible(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co")]
    ordinary = "def f(x):\n\treturn 'Größe 模型 \U0001f680'\n"
    assert visible(shown + ordinary) == shown + ordinary


def test_every_row_has_its_programs_and_measurement(data, archive):
    """Rows in the order of the split, programs once each, the bin that was measured."""
    rows = data["boards"][0]["rows"]
    table = archive.arrow("eval").to_pylist()
    assert rows["id"] == [r["row_id"] for r in table]
    assert [data["codes"][i] for i in rows["code"]] == [r["candidate_code"] for r in table]
    assert [data["codes"][i] for i in rows["anchor"]] == [r["reference_code"] for r in table]
    assert rows["bin"] == [r["bin"] for r in table]
    assert rows["speedup"] == pytest.approx([r["speedup"] for r in table], rel=1e-5)
    assert len(set(data["codes"])) == len(data["codes"])


def test_figures_and_pairs_are_those_of_the_standings(data, archive, board):
    """Six digits of every figure; a pair for every two ranked entries."""
    standings = build_board(archive, board, draws=DRAWS, jobs=1).boards[0]
    shown = data["boards"][0]
    for line, entry in zip(standings.entries, shown["entries"], strict=True):
        crps = line.score.metrics["crps"]
        figures = [crps.mean, crps.low, crps.high]
        assert entry["m"]["crps"] == pytest.approx(figures, rel=1e-5)
    low, high, real = shown["pairs"]["crps"]
    assert len(low) == len(high) == len(real) == 6
    upper = standings.pairs["crps"].low[np.triu_indices(4, 1)]
    assert low == pytest.approx(upper.tolist(), rel=1e-5)
    quantised = standings.entries[0].quantised
    packed = base64.b64decode(shown["entries"][0]["p"])
    assert (np.frombuffer(packed, np.uint8).reshape(quantised.shape) == quantised).all()
    by_slug = {entry.slug: entry for entry in standings.entries}
    assert by_slug["fair"].quantised.shape == (3, len(standings.split), 8)
    assert abs(by_slug["fair"].quantised.astype(int).sum(axis=-1) - 255).max() <= 4
    half = by_slug["half"]
    assert (half.states > 0).sum() == 10
    assert ((half.predicted == 0) == (half.states == 0)).all()
