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


def test_prose_is_what_the_tokenizer_calls_so():
    """Docstrings and comments count as prose; strings in brackets, continued lines and what is no Python don't."""
    code = '"""Doc."""\nx = f(  # note\n    "a", [1]\n)\n\n\nclass A:\n    \'\'\'B.\'\'\'\n    y = 1 + \\\n        2\n# end'
    assert quantities(code)["comment_characters"] == len("\"\"\"Doc.\"\"\"# note'''B.'''# end")
    assert quantities(f"x = (  # note\n{code}")["comment_characters"] == 0
    assert quantities(f'{code}\nx = "open')["comment_characters"] == 0
    assert list(quantities(code, ["lines", "characters"]).items()) == [("lines", 9), ("characters", len(code))]


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
    'f(\n "a",\n "b")\n"c"\n', 'x = 1; "s"\n', 'Rb"""d"""\n', 'if x: "y"\n', 'a = [\n# c\n"q"]\n', '"a" "b"\n', 'x = \\\n"s"\n',
    '# c\n\n"d # e"  # f\n', '"\\\n#"\n', "'''d'''; '''e'''\n", 'x = {"#": 1}\n"b"\n', '"a"\\\n.join(x)\n', '"\\"#" # \\\' \n',
    '"""a\n"b"#"" \\""" """\n',
]  # fmt: skip


def test_prose_against_the_tokenizer():
    """The one expression finds the same prose as the tokenizer, in odd statements and in modules of this package."""
    modules = [path.read_text("utf-8") for path in sorted(ROOT.glob("kernel_archive/s*/*.py"))]
    for code in [*ODD, *modules]:
        assert quantities(code)["comment_characters"] == len(tokenized_prose(code)), code[:200]
    assert len(modules) > 30


def test_quantities_of_a_launch_by_hand():
    """What tunes a launch, numbers, heads of functions and single words."""
    code = (
        "def f(a, b, c, N: int):\n    if a is None:\n        return torch.zeros(64)\n\n"
        "    k[(7,)](a, b, num_warps=8, num_stages=5)\n    k[(4096,)](b, c, num_warps=2)\n"
        '    return tl.where(a, tl.exp2(b), tl.dot(a, b, input_precision="tf32x3")) * a.contiguous().to(tl.float32)\n'
    )
    found = quantities(code)
    assert (found["warps"], found["stages"], found["most_arguments"], found["definitions"]) == (8, 5, 3, 1)
    # Whole numbers above 3 are 64, 7, 8, 5 and 4096; of them powers of two from 16 on are 64 and 4096.
    assert (found["median_number"], found["powers_of_two"], found["largest_power"]) == (8, 2, 4096)
    assert (found["if"], found["for"], found["none"], found["zeros"], found["blank_lines"]) == (1, 0, 1, 1, 1)
    assert (found["wheres"], found["exponentials"], found["tf32"], found["float32"]) == (1, 1, 1, 1)
    assert (found["contiguous"], found["stars"], found["brackets"], found["capitals"]) == (1, 1, 2, 2)
    assert found["longest_line"] == len(code.splitlines()[-1])
    assert found["indentation"] == (0 + 4 + 8 + 4 + 4 + 4) / 6
    assert found["compressed"] == len(zlib.compress(code.encode())) == found["compressed_share"] * len(code)
    # tl.where and tl.exp2; a name that only ends so is none.
    assert (found["elementary"], quantities("texp(x) + abs (x) + log")["elementary"], found["casts"]) == (2, 1, 1)
    axes = "tl.program_id(0), tl.program_id(axis=2), tl.program_id(n)"
    assert (quantities(axes)["axes"], found["axes"], found["named_stages"]) == (2, 0, 5)
    assert quantities("BLOCK_M = BLOCKS")["blocks"] == 2
    none = quantities("x")
    assert none["named_stages"] == 0
    assert (none["warps"], none["stages"], none["median_number"], none["largest_power"]) == (4, 3, 0, 0)


def test_nesting_by_hand():
    """A loop in a loop counts two, one behind it one; a line that is indented less ends them, a comment or a name is none."""
    code = (
        "for a in x:\n    # for b in y:\n    forward = 1\n    while a:\n        a -= 1\n    for b in y:\n        pass\n"
        "if x:\n        for c in z:\n            f(c)\n"
    )
    assert quantities(code)["nesting"] == 2
    assert quantities("for a in x:\n  for b in a:\n      while b:\n       b()\nfor c in x:\n  c()\n")["nesting"] == 3
    assert quantities("x = [a for a in b]\n")["nesting"] == 0


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


def test_what_is_kept_apart_from_levelling_is_none_of_what_it_looks_at(shipped):
    """On shipped rows no quantity of `benchmarks/surface.py --others` has the values of one that eval is levelled by."""
    specification = importlib.util.spec_from_file_location("surface", ROOT / "benchmarks/surface.py")
    surface = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(surface)
    archive = open_archive(shipped / "gpu-forecasters/kernels")
    codes = archive.sql("SELECT candidate_code FROM eval ORDER BY row_id LIMIT 60")["candidate_code"].to_pylist()
    levelled = list(zip(*(quantities(code).values() for code in codes), strict=True))
    for name, count in surface.OTHERS.items():
        values = tuple(float(count(code)) for code in codes)
        assert len(set(values)) == 1 or values not in levelled, name
