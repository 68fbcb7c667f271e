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
from kernel_archive.selection.similarity import (
    Neighbours,
    token_grams,
    token_sets,
)


def one_set(name, problem, code):
    """The token set of one program."""
    return token_sets([(name, problem, code)])[0]


def near(rows, programs, limit=0.7):
    """Near copies of programs in a list, by name."""
    return Neighbours(lambda problem: [p for p in programs if p.problem == problem]).near_copies(
        rows, limit
    )


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
    """Token 5-grams, found with a regular expression."""
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
        made.append((f"p{i:03}", "trimul" if i % 2 else "fp8_quant", "\n".join(lines)))
    return made


def test_near_rows_are_those_that_comparing_all_finds():
    """Rows with a similar program of their problem are found."""
    programs = corpus(120)
    rows, training = programs[:40], programs[40:]
    found = near(token_sets(rows), token_sets(training))
    for name, problem, code in rows:
        values = {n: expected(code, c) for n, p, c in training if p == problem}
        best = max(values.values())
        assert (name in found) == (best >= 0.7), (name, best)
        if name in found:
            assert found[name].similarity == pytest.approx(best, abs=1e-6)
            assert values[found[name].program] == best
    assert 0 < len(found) < len(rows)


def test_a_text_is_compared_once_whatever_it_is_called():
    """Asking again, under other names too, reads no training program again."""
    read = []

    def training(problem):
        read.append(problem)
        return [one_set("t", problem, program("same"))]

    found = Neighbours(training)
    assert found.near_copies([one_set("a", "trimul", program("same"))], 0.7)["a"].similarity == 1.0
    sets = [one_set(name, "trimul", program("same")) for name in "bc"]
    again = found.near_copies(sets, 0.7)
    assert {name: n.program for name, n in again.items()} == {"b": "t", "c": "t"}
    assert read == ["trimul"]
    found.near_copies([one_set("b", "fp8_quant", program("same"))], 0.7)
    assert read == ["trimul", "fp8_quant"]
