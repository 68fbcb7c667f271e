"""Identity: canonical program text, and the ids and digests derived from it.

No id depends on Arrow or Parquet bytes, a machine, or an order of rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, TypeVar

import msgspec

Result = TypeVar("Result")

ID_LENGTH: Final = 32
#: Texts of which :func:`by_digest` remembers a result.
MOST_REMEMBERED: Final = 20_000
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
#: A text in every table and in the card: a training corpus that holds it has swallowed the archive.
CANARY: Final = (
    "kernel-archive canary 5b1f0c36-8a77-4d1e-9f52-6c0d3e1b7a94: "
    "benchmark data, keep out of training corpora"
)


def sha256_hex(data: bytes) -> str:
    """Digest bytes: sha256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def canonical_text(text: str) -> str:
    r"""Make every line end ``\n`` and remove white space at the end of the whole text."""
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip()


def _utf8(text: str) -> bytes:
    # Lone surrogates come out of JSON escapes; a replacement mark would make texts equal.
    return text.encode("utf-8", "surrogatepass")


def by_digest(function: Callable[[str], Result]) -> Callable[[str], Result]:
    """Remember what follows from a text by its digest: programs are measured again and again.

    Only digests and results are kept, since a text may have megabytes. After
    :data:`MOST_REMEMBERED` texts the memory starts again from nothing.
    """
    results: dict[bytes, Result] = {}

    @wraps(function)
    def remembered(text: str) -> Result:
        key = hashlib.sha256(_utf8(text)).digest()
        if key not in results:
            if len(results) >= MOST_REMEMBERED:
                results.clear()
            results[key] = function(text)
        return results[key]

    return remembered


def program_id(code: str) -> str:
    """Make the id of a program: 32 hex digits of sha256 of its canonical text in UTF-8."""
    return sha256_hex(_utf8(canonical_text(code)))[:ID_LENGTH]


def kernel_id(*, problem: str, reference_program_id: str, gpu: str, program: str) -> str:
    """Make the id of a program measured for a problem against a reference on a GPU.

    First 32 hex digits of sha256 over problem, reference program id (empty where the reference is
    unknown), GPU and program id, separated by NUL.
    """
    parts = f"{problem}\0{reference_program_id}\0{gpu}\0{program}"
    return sha256_hex(parts.encode())[:ID_LENGTH]


def evaluation_id(*, search_id: str, node_id: str) -> str:
    """Make the id of an evaluation from its search and the id that its log gives it."""
    return sha256_hex(_utf8(f"evaluation\0{search_id}\0{node_id}"))[:ID_LENGTH]


_CPP_MARKS: Final = ("#include", "__global__", "__device__", "{", ";")
_BLANKS: Final = b" \t\n\r\f\v"
_STRING_PREFIX: Final = "rRbBfFuU"
#: What stands before a string that is a value; another string at a line's start is a docstring.
_BEFORE_VALUE: Final = ("(", ",", "=", "[", "{", "+", "%", "|")
#: What can stand right before a docstring.
_LINE_STARTS: Final = frozenset(" \t\n" + _STRING_PREFIX) | {""}
# Each pattern begins with the class of characters that can open something, which is fast to search
# for. A short string that is not closed ends with its line, a long one or a comment with the text.
_SHORT_STRING: Final = r"""(?<=")(?:[^"\\\n]++|\\.)*+"?|(?<=')(?:[^'\\\n]++|\\.)*+'?"""
_LONG_STRING: Final = r"""(?<=")""(?s:.*?)(?:\"""|\Z)|(?<=')''(?s:.*?)(?:'''|\Z)"""
_IN_CPP: Final = re.compile(
    rf"""[/"'](?:(?P<comment>(?<=/)/[^\n]*|(?<=/)\*(?s:.*?)(?:\*/|\Z))|{_SHORT_STRING})"""
)
_IN_PYTHON: Final = re.compile(
    rf"""[#"'](?:(?P<comment>(?<=#)[^\n]*)|(?P<long>{_LONG_STRING})|(?P<short>{_SHORT_STRING}))"""
)


def without_cpp_comments(text: str) -> str:
    """Remove C++ comments of both kinds."""
    return _IN_CPP.sub(lambda match: match[0] if match["comment"] is None else " ", text)


def _is_docstring(code: str, position: int) -> bool:
    """Tell whether the string that opens at a position is a statement of its own."""
    # Only so far back, so that a line of megabytes costs no more than others.
    near = code[max(0, position - 400) : position].rstrip(_STRING_PREFIX)
    starts_line = not near[near.rfind("\n") + 1 :].strip()
    return starts_line and near.rstrip()[-1:] not in _BEFORE_VALUE


def _drop_comments(code: str) -> str:
    """Remove Python comments, docstrings, and C++ comments inside triple-quoted sources.

    Lexical rules, not a parser: the texts are untrusted, in two languages at once, and often do not
    parse. One scan from left to right: a quote in a comment, or a mark in a string, opens nothing.
    """
    code = code.removeprefix("\ufeff").replace("\\\n", " ")
    if "import" not in code and "def " not in code:
        return without_cpp_comments(code)

    def replacement(match: re.Match[str]) -> str:
        text, position = match[0], match.start()
        if match.lastgroup == "comment":
            return ""
        if match.lastgroup == "long":
            inside = text[3:].removesuffix(text[:3])
            if any(mark in inside for mark in _CPP_MARKS):
                return without_cpp_comments(inside)
        elif code[position - 1 : position] not in _LINE_STARTS:
            return text
        return "" if _is_docstring(code, position) else text

    return _IN_PYTHON.sub(replacement, code)


def token_text(code: str) -> str:
    """Write a program without comments and docstrings, every run of white space one blank."""
    return " ".join(_drop_comments(code).split())


@by_digest
def token_id(code: str) -> str:
    """Make an id that near duplicates share: 32 hex digits of sha256.

    Programs share it that differ only in comments and ASCII white space, also inside a string
    literal; names count.
    """
    return sha256_hex(_utf8(_drop_comments(code)).translate(None, _BLANKS))[:ID_LENGTH]


def canonical_json(value: Any) -> bytes:
    """Encode a value as its only JSON text: keys sorted, shortest floats, non-finite as null."""
    return _ENCODER.encode(value)


def keyed_digest(key: str, row: Any) -> bytes:
    """Digest one row: ``id NUL digest``, the digest being sha256 (32 bytes) of its canonical JSON.

    They are one bytes object, since a table may have millions of rows.
    """
    return _utf8(key) + b"\0" + hashlib.sha256(canonical_json(row)).digest()


def logical_digest(rows: Iterable[bytes]) -> str:
    """Digest a table: sha256 over ``id NUL row digest`` of every row, sorted by id.

    Made from :func:`keyed_digest`, in any order and in parallel. Equal on every machine and for
    every version of the Parquet writer. ``sha256:`` and 64 hex digits.
    """
    total = hashlib.sha256()
    for row in sorted(rows):
        total.update(row)
    return f"sha256:{total.hexdigest()}"
