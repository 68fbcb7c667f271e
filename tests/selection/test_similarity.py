"""Similarity of programs against a plain computation with sets of tokens."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import jaccard, program

from kernel_archive.ids import token_text
from kernel_archive.selection.similarity import near_copies, near_copy_classes, token_grams

WORDS = [
    *("x", "y1", "tl.load(", ")", "+", " ", "\n    ", "0.5", "BLOCK", "[i]", "é", "→"),
    *("# note\n", "=", "\t", "_a", '"s"'),
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
    """Nine tokens give five 5-grams; one changed at the end leaves four of six in common.

    White space, comments and layout do not count.
    """
    assert jaccard("a b c d e f g h i", "a b c d e f g h j") == pytest.approx(4 / 6)
    assert jaccard("a b c d", "a b c d") == jaccard("", "") == 0.0
    code = "def f(x):\n    return x + 1  # add\n"
    assert jaccard(code, 'def f( x ) :\n  """Doc."""\n  return x+1') == 1.0
    assert jaccard(code, code.replace("x", "z")) < 0.2


@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=30).map("".join), max_size=6))
def test_grams_of_a_text_do_not_depend_on_its_neighbours(texts):
    """A text among others has the hashes that it has alone, none reaching over its end."""
    for together, text in zip(token_grams(texts), texts, strict=True):
        assert together.tolist() == token_grams([text])[0].tolist()


def corpus(n):
    """Programs in families: members differ in a few numbers, families in everything."""
    rng = random.Random(0)
    codes = {}
    for i in range(n):
        lines = program(f"family{i % 7}", size=30).splitlines()
        for _ in range(rng.randrange(16)):
            at = rng.randrange(8, len(lines) - 1)
            lines[at] = lines[at].replace("+ ", f"+ {rng.randrange(9)}")
        codes[f"p{i:03}"] = "\n".join(lines)
    return codes


def test_near_copies_are_those_that_comparing_all_finds():
    """Programs with a similar one are found with the nearest; classes are what links them."""
    codes = corpus(120)
    grams = dict(zip(codes, token_grams(list(codes.values())), strict=True))
    names = list(codes)
    near = near_copies({n: grams[n] for n in names[:40]}, {n: grams[n] for n in names[40:]}, 0.7)
    for name in names[:40]:
        values = {other: expected(codes[name], codes[other]) for other in names[40:]}
        assert (name in near) == (max(values.values()) >= 0.7)
        if name in near:
            nearest, similarity = near[name]
            assert similarity == pytest.approx(max(values.values()), abs=1e-6)
            assert values[nearest] == max(values.values())
    assert 0 < len(near) < 40
    classes = near_copy_classes(grams, 0.7)
    for a in names[:30]:
        for b in names[:30]:
            if expected(codes[a], codes[b]) >= 0.7:
                assert classes[a] == classes[b] <= min(a, b)
    assert 7 <= len(set(classes.values())) < 120
