"""Identity of programs and rows."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_archive import ids


def test_canonical_text_unifies_line_ends_and_drops_trailing_space():
    """Line ends and white space at the end make no other program; inside lines they do."""
    assert ids.canonical_text("a \r\nb\rc\n\n ") == "a \nb\nc"
    assert ids.program_id("x\n") == ids.program_id("x")
    assert ids.program_id("x \ny") != ids.program_id("x\ny")


def test_program_id_is_sha256_of_the_canonical_text():
    """First 32 hex digits, computed independently."""
    assert ids.program_id("import torch\n") == hashlib.sha256(b"import torch").hexdigest()[:32]


def test_kernel_id_separates_its_parts():
    """NUL between problem, reference, GPU and program: no two splits of one text collide."""
    given_ = {"problem": "p", "reference_program_id": "r", "gpu": "H200", "program": "q"}
    assert ids.kernel_id(**given_) == hashlib.sha256(b"p\0r\0H200\0q").hexdigest()[:32]
    shifted = given_ | {"problem": "pr", "reference_program_id": ""}
    assert ids.kernel_id(**shifted) != ids.kernel_id(**given_)


CUDA = (
    'import torch\nSRC = r"""\n#include <x.h>\n// a note\n'
    '__global__ void k() { /* why\nnot */ int a = 7; }\n"""\n'
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("import a\nx = 1  # note\n", "import a\nx=1"),
        ("import a\ndef f():\n    '''Doc.'''\n    return 1\n", "import a\ndef f():\n\treturn 1"),
        (CUDA, CUDA.replace("// a note", "// another").replace("/* why\nnot */", "")),
        ("#include <a>\nint x; // c", "#include <a>\nint x;"),
        # a quote in a comment opens nothing
        ('import a\nv = 1  # it is """ odd\nw = 2\n', "import a\nv = 1\nw = 2"),
        ('import a\ndef f():\n    "Doc."\n    return 1', "import a\ndef f():\n    return 1"),
        ("\ufeffimport a\nx = 1", "import a\nx = 1"),
        ("import a\nx = 1 + \\\n    2", "import a\nx = 1 + 2"),
    ],
)
def test_near_duplicates_share_the_token_id(one, other):
    """Comments, docstrings and white space don't count, in Python, CUDA inside Python, and C++."""
    assert ids.token_id(one) == ids.token_id(other)
    assert ids.program_id(one) != ids.program_id(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # floor division is no comment in Python
        ("import a\nx = n // 64\n", "import a\nx = n // 32\n"),
        ('import a\nx = "# 1"\n', 'import a\nx = "# 2"\n'),  # a mark inside a string is text
        ("import a\nx = 'it\\'s # 1'\n", "import a\nx = 'it\\'s # 2'\n"),
        (CUDA, CUDA.replace("a = 7", "a = 8")),
        (CUDA, CUDA.replace("<x.h>", "<y.h>")),
        ("import a\nf('''x1''')", "import a\nf('''x2''')"),  # a triple-quoted value is no docstring
        # nor do two of them hide code
        ('import a\n# """\nv = 1\n# """\n', 'import a\n# """\nv = 2\n# """\n'),
        ('import a\nx = \'"""\'\nv = 1\ny = \'"""\'', 'import a\nx = \'"""\'\nv = 2\ny = \'"""\''),
        # a string on its own line can be a value
        ('import a\nx = [\n    "one",\n]', 'import a\nx = [\n    "two",\n]'),
        ("import a\nrows = 1", "import a\ncols = 1"),  # names count
    ],
)
def test_different_programs_keep_different_token_ids(one, other):
    """What changes the program changes the token id."""
    assert ids.token_id(one) != ids.token_id(other)


@given(st.text())
def test_token_text_takes_any_text(text):
    """No text makes it fail, and doing it twice changes nothing but what became a comment."""
    assert isinstance(ids.token_text("import x\n" + text), str)
    assert len(ids.token_id(text)) == 32


def test_logical_digest_does_not_depend_on_row_order():
    """Rows in any order give one digest; any change gives another."""
    rows = [ids.keyed_digest(str(i), {"id": str(i), "v": i / 3}) for i in range(5)]
    assert ids.logical_digest(rows) == ids.logical_digest(reversed(rows))
    assert ids.logical_digest(rows) != ids.logical_digest(rows[:4])
    assert ids.logical_digest([]) == "sha256:" + hashlib.sha256(b"").hexdigest()


def test_canonical_json_is_sorted_and_compact():
    """Key order of the input does not matter; floats have their shortest form."""
    assert ids.canonical_json({"b": 0.1, "a": [1, None, True]}) == b'{"a":[1,null,true],"b":0.1}'
