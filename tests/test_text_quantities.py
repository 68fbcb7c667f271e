"""Tests of what can be counted in a program's text."""

from __future__ import annotations

import importlib.util
import io
import time
import tokenize
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive.archive.open import open_archive
from kernel_archive.program_text import artificial_patterns, telling_words
from kernel_archive.text_quantities import QUANTITIES, quantities

ROOT = Path(__file__).parents[1]


def assert_quantities(code, **expected):
    """Compare the quantities that are named with numbers worked out by hand."""
    assert quantities(code, list(expected)) == expected


def test_quantities_by_hand():
    """Counts of a small program."""
    code = (
        '"""Doc."""\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p, N: tl.constexpr):\n'
        "    # a note\n    for i in range(4):\n        x = tl.load(p + i, mask=i < N)\n"
        "        tl.store(p, tl.dot(x, x))\n"
    )
    assert_quantities(
        code, lines=8, comment_characters=len('"""Doc."""# a note'), loads=1, stores=1, dots=1
    )
    assert_quantities(code, loops=1, kernels=1, tl=4, masks=1, largest_number=4, functions=1)


def test_what_is_no_python_has_no_prose():
    """An open bracket or quote makes every mark doubtful; of all quantities the named ones come."""
    code = '"""Doc."""\nx = 1  # note\n'
    assert_quantities(code, lines=2, comment_characters=len('"""Doc."""# note'))
    assert_quantities(f"x = (  # note\n{code}", comment_characters=0)
    assert_quantities(f'{code}x = "open', comment_characters=0)


def tokenized_prose(code):
    """Comments, and strings that begin a statement, as Python's own tokenizer finds them."""
    found, fresh = [], True
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and fresh):
            found.append(token.string)
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            fresh = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    return "".join(found)


ODD = [
    'f(\n "a",\n "b")\n"c"\n',
    'x = 1; "s"\n',
    'Rb"""d"""\n',
    'if x: "y"\n',
    'a = [\n# c\n"q"]\n',
    '"a" "b"\n',
    'x = \\\n"s"\n',
    '# c\n\n"d # e"  # f\n',
    '"\\\n#"\n',
    "'''d'''; '''e'''\n",
    'x = {"#": 1}\n"b"\n',
    '"a"\\\n.join(x)\n',
    '"\\"#" # \\\' \n',
    '"""a\n"b"#"" \\""" """\n',
]


def test_prose_against_the_tokenizer():
    """Odd statements and modules of this package have the same prose under both."""
    modules = [path.read_text("utf-8") for path in sorted(ROOT.glob("kernel_archive/s*/*.py"))]
    for code in [*ODD, *modules]:
        assert quantities(code)["comment_characters"] == len(tokenized_prose(code)), code[:200]
    assert len(modules) > 10


def test_quantities_of_a_launch_by_hand():
    """What tunes a launch, numbers, heads of functions and single words."""
    code = (
        "def f(a, b, c, N: int):\n    if a is None:\n        return torch.zeros(64)\n\n"
        "    k[(7,)](a, b, num_warps=8, num_stages=5)\n    k[(4096,)](b, c, num_warps=2)\n"
        '    return tl.where(a, tl.exp2(b), tl.dot(a, b, input_precision="tf32x3"))'
        " * a.contiguous().to(tl.float32)\n"
    )
    assert_quantities(code, warps=8, stages=5, named_stages=5, most_arguments=3, definitions=1)
    # Whole numbers above 3: 64, 7, 8, 5, 4096. Powers of two from 16 on: 64, 4096.
    assert_quantities(code, median_number=8, powers_of_two=2, largest_power=4096, axes=0)
    assert_quantities(code, **{"if": 1, "for": 0}, none=1, zeros=1, blank_lines=1, casts=1)
    assert_quantities(code, wheres=1, exponentials=1, tf32=1, float32=1, elementary=2)
    assert_quantities(code, contiguous=1, stars=1, brackets=2, capitals=2)
    packed = len(zlib.compress(code.encode()))
    assert_quantities(code, compressed=packed, compressed_share=packed / len(code))
    assert_quantities(code, indentation=24 / 6, longest_line=len(code.splitlines()[-1]))
    assert_quantities("texp(x) + abs (x) + log", elementary=1)
    assert_quantities("tl.program_id(0), tl.program_id(axis=2), tl.program_id(n)", axes=2)
    assert_quantities("BLOCK_M = BLOCKS", blocks=2)
    assert_quantities("x", warps=4, stages=3, named_stages=0, median_number=0, largest_power=0)


@pytest.mark.parametrize(
    ("code", "deepest"),
    [
        ("for a in x:\n    # for b in y:\n    forward = 1\n    while a:\n        a -= 1\n", 2),
        (
            "for a in x:\n    for b in y:\n        pass\nif x:\n      for c in z:\n         f\n",
            2,
        ),
        ("for a in x:\n  for b in a:\n      while b:\n       b()\nfor c in x:\n  c()\n", 3),
        ("x = [a for a in b]\n", 0),
    ],
)
def test_nesting_by_hand(code, deepest):
    """A line that is indented no further than a loop ends it; a comment or a name is none."""
    assert_quantities(code, nesting=deepest)


@given(st.text(max_size=300))
def test_any_text_has_quantities(code):
    """Programs are untrusted text: every quantity is a finite number, nothing is raised."""
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
    """Nesting and repetition end soon: the square of the length would take minutes."""
    start = time.process_time()
    artificial_patterns(text + "double")
    quantities(text)
    assert time.process_time() - start < 5


def test_what_is_kept_apart_from_levelling_is_none_of_what_it_looks_at(shipped):
    """Quantities of `benchmarks/surface.py --others` differ from those that eval is levelled by."""
    specification = importlib.util.spec_from_file_location(
        "surface", ROOT / "benchmarks/surface.py"
    )
    surface = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(surface)
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    codes = archive.sql("SELECT candidate_code FROM eval ORDER BY row_id LIMIT 60")[
        "candidate_code"
    ].to_pylist()
    levelled = list(zip(*(quantities(code).values() for code in codes), strict=True))
    for name, count in surface.OTHERS.items():
        values = tuple(float(count(code)) for code in codes)
        assert len(set(values)) == 1 or values not in levelled, name
