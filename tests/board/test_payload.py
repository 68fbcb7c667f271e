"""The page's data: complete, compact, and unable to end its element."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from support.boards import DRAWS
from support.small_archive import write_archive

from kernel_archive.board import payload as module
from kernel_archive.board.build import build_board
from kernel_archive.board.payload import make_payload, packed
from kernel_archive.board.store import add_submission
from kernel_archive.scoring import load_split


def unpacked(text):
    """The data as the page's script reads it."""
    return json.loads(zlib.decompress(base64.b64decode(text), -15))


@pytest.fixture
def data(archive, board):
    """The payload of a board of both splits, packed and unpacked."""
    return unpacked(
        packed(make_payload(archive, build_board(archive, board, draws=DRAWS, jobs=1).boards))
    )


def test_it_survives_any_text():
    """Base64 alone reaches the page, whatever is in the data."""
    text = packed({"a": "</script><!-- \u2028 \U0001f680"})
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert unpacked(text) == {"a": "</script><!-- ⟦U+2028⟧ \U0001f680"}


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
        assert entry["m"]["crps"] == pytest.approx(
            [
                line.record.metrics["crps"].mean,
                line.record.metrics["crps"].std,
                line.record.metrics["crps"].low,
                line.record.metrics["crps"].high,
            ],
            rel=1e-5,
        )
    low, high, real = shown["pairs"]["crps"]
    assert len(low) == len(high) == len(real) == 6
    assert low == pytest.approx(
        standings.pairs["crps"].low[np.triu_indices(4, 1)].tolist(), rel=1e-5
    )
    first = standings.entries[0].masses
    assert (
        np.frombuffer(base64.b64decode(shown["entries"][0]["p"]), np.uint8).reshape(first.shape)
        == first
    ).all()


def test_hostile_and_huge_programs_are_cut_and_shown(tmp_path, files):
    """Five megabytes of a program: its beginning, its full length, and no invisible character."""
    archive = write_archive(
        tmp_path / "a", per_search=3, hostile="\u202e</script>" + "x" * 5_000_000
    )
    target = load_split(archive, "eval")
    path = tmp_path / "f.jsonl"
    path.write_text(
        "".join(
            json.dumps({"row_id": r, "probabilities": [1] * 8, "rationale": "\u2066"}) + "\n"
            for r in target.row_ids
        )
    )
    path.write_text(path.read_text().replace("[1, 1, 1, 1, 1, 1, 1, 1]", str([0.125] * 8)))
    add_submission(path, target, name="x", board=tmp_path / "b", draws=DRAWS)
    text = packed(
        make_payload(archive, build_board(archive, tmp_path / "b", draws=DRAWS, jobs=1).boards)
    )
    data = unpacked(text)
    assert len(text) < 200_000
    assert max(data["cut"].values()) > 5_000_000
    assert max(map(len, data["codes"])) < module.MAX_CODE + 100
    assert any(c.startswith("⟦U+202E⟧</script>") for c in data["codes"])
    assert data["boards"][0]["entries"][0]["why"]["0"] == "⟦U+2066⟧"
