"""Similarity of programs against a plain computation with sets of tokens."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import program
from support.programs import jaccard

from kernel_archive.ids import token_text
from kernel_archive.selection import similarity
from kernel_archive.selection.similarity import Copies, Neighbours, Program, similarity_report, token_grams


def neighbours(rows, programs):
    """Name -> neighbour among programs in a list."""
    return Neighbours(lambda problem: [p for p in programs if p.problem == problem]).of(rows)


def near(rows, programs):
    """Those that are very near."""
    return [n for _, n in sorted(neighbours(rows, programs).items()) if n.similarity >= similarity.THRESHOLD]


WORDS = [
    "x",
    "y1",
    "tl.load(",
    ")",
    "+",
    " ",
    "\n    ",
    "0.5",
    "BLOCK",
    "[i]",
    "é",
    "→",
    "# note\n",
    "=",
    "\t",
    "_a",
    '"s"',
]


def plain(code):
    """Token 5-grams, found with a regular expression: words (with every byte above 127) and single marks."""
    text = token_text(code).encode().decode("latin-1")
    tokens = re.findall("(?:[0-9A-Za-z_]|[\x80-\xff])+|[^\\s\x80-\xff]", text)
    return {tuple(tokens[i : i + 5]) for i in range(len(tokens) - 4)}


def expected(a, b):
    """Jaccard index of two sets of 5-grams."""
    x, y = plain(a), plain(b)
    return len(x & y) / len(x | y) if x and y else 0.0


@settings(max_examples=150, deadline=None)
@given(
    a=st.lists(st.sampled_from(WORDS), max_size=40).map("".join),
    b=st.lists(st.sampled_from(WORDS), max_size=40).map("".join),
)
def test_jaccard_is_that_of_the_token_sets(a, b):
    """The hashed index is the index of the plain sets, for any text."""
    assert jaccard(a, b) == pytest.approx(expected(a, b), abs=1e-12)


def test_hand_computed():
    """Nine tokens give five 5-grams; one changed at the end leaves four of six in common."""
    assert jaccard("a b c d e f g h i", "a b c d e f g h j") == pytest.approx(4 / 6)
    assert jaccard("a b c d", "a b c d") == 0.0
    assert jaccard("", "") == 0.0


def test_white_space_comments_and_layout_do_not_count():
    """The same tokens in another layout are the same program; another name is not."""
    a = "def f(x):\n    return x + 1  # add\n"
    assert jaccard(a, 'def f( x ) :\n  """Doc."""\n  return x+1') == 1.0
    assert jaccard(a, a.replace("x", "z")) < 0.2


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=30).map("".join), max_size=6))
def test_grams_of_a_text_do_not_depend_on_its_neighbours(texts):
    """A text among others has the hashes that it has alone, none reaching over its end."""
    for together, text in zip(token_grams(texts), texts, strict=True):
        (alone,) = token_grams([text])
        assert together.tolist() == alone.tolist()


def corpus(n, seed=0):
    """Programs in families: members differ in a few numbers, families in everything."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        lines = program(f"family{i % 7}", size=30).splitlines()
        for _ in range(rng.randrange(16)):
            at = rng.randrange(8, len(lines) - 1)
            lines[at] = lines[at].replace("+ ", f"+ {rng.randrange(9)}")
        made.append(Program(f"p{i:03}", "trimul" if i % 2 else "fp8_quant", "\n".join(lines)))
    return made


@pytest.mark.parametrize(("chunk", "together"), [(similarity._CHUNK, similarity.TOGETHER), (1000, 7)])
def test_near_rows_are_those_that_comparing_all_finds(monkeypatch, chunk, together):
    """Rows with a similar program of their problem are found, each with the nearest, however many go at a time."""
    monkeypatch.setattr(similarity, "_CHUNK", chunk)
    monkeypatch.setattr(similarity, "TOGETHER", together)
    programs = corpus(120)
    rows, training = programs[:40], programs[40:]
    found = {n.row: n for n in near(rows, training)}
    for row in rows:
        values = {p.name: expected(row.code, p.code) for p in training if p.problem == row.problem}
        best = max(values.values())
        assert (row.name in found) == (best >= similarity.THRESHOLD), (row.name, best)
        if row.name in found:
            assert found[row.name].similarity == pytest.approx(best, abs=1e-6)
            assert values[found[row.name].program] == best
    assert 0 < len(found) < len(rows)


def test_other_problems_are_not_compared():
    """The same text under another problem is no neighbour here: exact copies are found by their ids."""
    one = program("same")
    assert near([Program("r", "trimul", one)], [Program("t", "fp8_quant", one)]) == []
    (one_near,) = near([Program("r", "trimul", one)], [Program("t", "trimul", one)])
    assert (one_near.row, one_near.program, one_near.similarity) == ("r", "t", 1.0)


def test_nothing_to_compare():
    """No rows, no programs, or programs too short for a 5-gram: nothing found, no error."""
    one = Program("r", "trimul", program("same"))
    short = Program("s", "trimul", "x = 1")
    assert near([], [one]) == near([one], []) == []
    assert near([short], [one, short]) == near([one], [short]) == []


def test_similarity_is_reported_with_examples():
    """Rows with a very similar training program are counted per task and named, most similar first."""
    long = program("long", size=40)
    changed = long.replace("+ 0)", "+ 1)", 1)
    training = [Program("t1", "trimul", changed), Program("t2", "fp8_quant", program("y"))]
    rows = [Program("r1", "trimul", long), Program("r2", "trimul", program("x")), Program("r3", "fp8_quant", long)]
    report = similarity_report(rows, neighbours(rows, training))
    assert (report["rows"], report["similar_rows"]) == (3, 1)
    assert report["per_task"] == {"fp8_quant": 0, "trimul": 1}
    (example,) = report["examples"]
    assert (example["row_id"], example["training"]) == ("r1", "t1")
    assert 0.9 <= example["similarity"] == report["largest"] < 1.0


def test_a_text_is_compared_once_whatever_it_is_called():
    """Asking again, under other names too, reads no training program again; another problem is another question."""
    read = []

    def training(problem):
        read.append(problem)
        return [Program("t", problem, program("same"))]

    found = Neighbours(training)
    assert found.of([Program("a", "trimul", program("same"))])["a"].similarity == 1.0
    again = found.of([Program("b", "trimul", program("same")), Program("c", "trimul", program("same"))])
    assert {name: n.program for name, n in again.items()} == {"b": "t", "c": "t"}
    assert read == ["trimul"]
    found.of([Program("b", "fp8_quant", program("same"))])
    assert read == ["trimul", "fp8_quant"]


def test_copies_are_pairs_at_or_above_the_threshold():
    """Four of six 5-grams in common: near copies at 2/3, not above it; comments count for nothing."""
    programs = [Program("a", "p", "a b c d e f g h i"), Program("b", "p", "a b c d e f g h j  # import x")]
    exact = 4 / 6
    assert Copies(programs, exact).near("a", ["b"])
    assert not Copies(programs, exact + 1e-9).near("a", ["b"])
    assert not Copies(programs, exact).near("a", [])
