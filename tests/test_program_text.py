"""Tests of what is read off a program's text: language, patterns that only lose time, telling words, quantities."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel_archive import program_text
from kernel_archive.program_text import (
    QUANTITIES,
    SUSPECT,
    artificial_patterns,
    language_of,
    quantities,
    telling_words,
)


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("import triton\n@triton.jit\ndef k(): ...", "triton"),
        ("from triton.experimental import gluon\n@gluon.jit\ndef k(): ...", "gluon"),
        ("load_inline(cuda_sources='__global__ void k() {}')", "cuda"),
        ("import torch", "pytorch"),
        ("import numpy", "other"),
    ],
)
def test_language(code, language):
    """Gluon is a language of its own, also where Triton is imported beside it."""
    assert language_of(code) == language


@pytest.mark.parametrize(
    ("body", "patterns"),
    [
        ("    y = x.double()\n", ["double"]),
        ("    y = x.to(torch.float64)\n", ["double"]),
        ("    time.sleep(1)\n", ["sleep"]),
        ("    y = x.sort(dim=-1).values[..., -1]\n", ["sort"]),
        ("    for i in range(n):\n        s += x[i].item()\n", ["element_loop"]),
        ("    for _ in range(5):\n        y = f(x)\n", ["repeated_work"]),
        ("    probe = (x + 1).mean()\n    return x\n", ["dead_work"]),
        # What honest programs do.
        ("    for _ in range(5):\n        x = f(x)\n", []),
        ("    for _ in range(5):\n        y += f(x)\n", []),
        ("    for _ in range(5):\n        y.add_(x)\n", []),
        ("    for i in range(5):\n        y = f(x, i)\n", []),
        ("    for i in range(0, n, 16):\n        k[grid](x[i:i + 16])\n", []),
        ("    # in double precision this would be sorted\n    return x\n", []),
        ('    """Not x.double()."""\n    return x.mean()\n', []),
        ("    total = x.sum()\n    return total\n", []),
    ],
)
def test_artificial_patterns(body, patterns):
    """Each pattern is found where it is, and not in the loops and words of honest programs."""
    assert artificial_patterns(f"import torch\n\n\ndef custom_kernel(x, y, n, s):\n{body}    return y\n") == patterns


def test_pattern_of_the_reference_is_none():
    """Where the reference itself sorts or computes in 64 bits, a program may."""
    code = "def custom_kernel(x):\n    return x.double().sort(-1).values\n"
    assert artificial_patterns(code) == ["double", "sort"]
    assert artificial_patterns(code, "def reference(x):\n    return torch.topk(x.double(), 4)\n") == []


def test_telling_words():
    """Words that say how fast a program is are named; names of functions that contain one are not."""
    assert telling_words("# Optimized: beats the baseline\n__fast_expf(x); tl.fast_dividef; use_fast_math") == [
        "Optimized",
        "baseline",
    ]


def test_quantities_by_hand():
    """Counts of a small program, worked out by hand."""
    code = (
        '"""Doc."""\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p, N: tl.constexpr):\n    # a note\n'
        "    for i in range(4):\n        x = tl.load(p + i, mask=i < N)\n        tl.store(p, tl.dot(x, x))\n"
    )
    found = quantities(code)
    assert found["lines"] == 8
    assert found["comment_characters"] == len('"""Doc."""') + len("# a note")
    assert (found["loads"], found["stores"], found["dots"], found["loops"], found["kernels"]) == (1, 1, 1, 1, 1)
    assert (found["tl"], found["masks"], found["largest_number"], found["functions"]) == (4, 1, 4, 1)


_PIECES_OF_TEXT = [
    "x", " ", "    ", "\n", "(", ")", "[", "]", '"', "'", '"""', "'''", "#", "\\", "\\\n", "r", "f", "=", "!=", "!", '""', "x\n", "1", ":",
    "def f():\n", "  return 1\n", '"""Doc."""\n', "# note\n", "x = 'a'\n", "in ", "é", "∑", "\t", "\r", "\x0c", "$",
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES_OF_TEXT), max_size=25).map("".join))
@example('""\\\n')
@example('"""a\n"b""" \\\n\'\'\'c\'\'\'')
@example("if x:\n    y\n  z  # odd\n")
@example("x = (\n'a'\n)\n'b'\n")
@example("r'x'\nbr'''y'''\n''\n")
def test_prose_is_where_the_tokenizer_finds_it(code):
    """Comments and docstrings found by pieces are those of Python's own tokenizer, or the program is left to it."""
    found = program_text._prose_places(code)
    assert found is None or found == program_text._tokenized_prose_places(code)


def test_usual_programs_need_no_tokenizer():
    """Comments, docstrings, strings in brackets and continued lines are all found by pieces."""
    code = '"""Doc."""\nx = f(  # note\n    "a", [1]\n)\n\n\nclass A:\n    \'\'\'B.\'\'\'\n    y = 1 + \\\n        2\n# end'
    found = program_text._prose_places(code)
    assert [code[a:b] for a, b in found] == ['"""Doc."""', "# note", "'''B.'''", "# end"]
    assert found == program_text._tokenized_prose_places(code)


@given(st.text(max_size=300))
def test_any_text_has_quantities(code):
    """Programs are untrusted text: whatever it is, every quantity is a finite number and nothing is raised."""
    found = quantities(code)
    assert list(found) == list(QUANTITIES)
    assert all(0 <= value < 1e9 for value in found.values())
    artificial_patterns(code)
    telling_words(code)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "for _ in range(3):\n" * 200,
        "x = 1.0\x00",
        "#" * 100_000,
        "a.item(" * 20_000,
        "\n" * 100_000,
        "def " * 25_000,
        "a[" * 50_000,
        "num_warps=" * 10_000,
    ],
)
def test_hostile_text_is_read_in_time(text):
    """Nesting and repetition end in a verdict, soon: what grows with the square of the length takes minutes."""
    start = time.process_time()
    artificial_patterns(text + "double")
    quantities(text)
    assert time.process_time() - start < 5


PIECES = st.sampled_from(
    [
        "\n", "\n    ", "    ", "x", "é", "t", "tl", "tl.", " = ", " = t.sum(", " = tl.sum(", " = tl.load(p).sum(", " = x.sum(",
        ".mean(", "=", ".item(", ".tolist(", "double", ".double()", "float64", "fp64", "time.sleep(1)", "x.sort(0)",
        ".kthvalue(2)", "for i in range(3):", "for i in range(n):", "for _ in range(٣):", "y = f(x)", "return y", '"""', "#",
        "def f(x):", ")",
    ]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_whatever_has_a_pattern_is_suspect(code):
    """The expression that Arrow looks for is never narrower than the patterns."""
    if artificial_patterns(code):
        assert pc.match_substring_regex(pa.array([code]), SUSPECT)[0].as_py()
