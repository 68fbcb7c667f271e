"""Identity: canonical program text, and the ids and digests derived from it.

No id depends on Arrow or Parquet bytes, a machine, or an order of rows.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

ID_LENGTH: Final = 32
#: Stands in every table and in the card, so that a training corpus that swallowed the archive can be recognised.
CANARY: Final = (
    "kernel-archive canary 5b1f0c36-8a77-4d1e-9f52-6c0d3e1b7a94: benchmark data, keep out of training corpora"
)


def sha256_hex(data: bytes) -> str:
    """All 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def canonical_text(text: str) -> str:
    r"""Program text with line ends ``\n`` and the trailing white space of the whole text removed."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.rstrip()


def _utf8(text: str) -> bytes:
    # Lone surrogates can come out of JSON escapes; they are kept apart, never merged into a replacement mark.
    return text.encode("utf-8", "surrogatepass")


def program_id(code: str) -> str:
    """First 32 hex digits of sha256 of the canonical text (UTF-8). The argument need not be canonical yet."""
    return hashlib.sha256(_utf8(canonical_text(code))).hexdigest()[:ID_LENGTH]


def kernel_id(*, problem: str, reference_program_id: str, gpu: str, program: str) -> str:
    """Id of a program measured for a problem against a reference on a GPU.

    First 32 hex digits of sha256 over problem, reference program id (empty where the reference is unknown),
    GPU and program id, separated by NUL.
    """
    joined = f"{problem}\x00{reference_program_id}\x00{gpu}\x00{program}"
    return hashlib.sha256(joined.encode()).hexdigest()[:ID_LENGTH]


def evaluation_id(*, search_id: str, node_id: str) -> str:
    """Id of one evaluation: its search and the id that its log gives it."""
    return hashlib.sha256(f"evaluation\0{search_id}\0{node_id}".encode("utf-8", "surrogatepass")).hexdigest()[
        :ID_LENGTH
    ]


_CPP_MARKS: Final = ("#include", "__global__", "__device__", "{", ";")
_BLANKS: Final = b" \t\n\r\f\v"
_STRING_PREFIX: Final = "rRbBfFuU"
#: What stands before a string that is a value; after anything else at the start of a line it is a docstring.
_BEFORE_VALUE: Final = ("(", ",", "=", "[", "{", "+", "%", "|")
#: What can stand right before a docstring.
_LINE_STARTS: Final = frozenset(" \t\n" + _STRING_PREFIX) | {""}
_SHORT_STRING: Final = re.compile(r""""(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""")


def _after_string(text: str, at: int) -> int:
    """End of the short string literal that opens at a position; of the line where it is not closed."""
    end = text.find(text[at], at + 1) + 1
    if end and (inside := text[at:end]).isprintable() and "\\" not in inside:
        return end
    found = _SHORT_STRING.match(text, at)
    return found.end() if found is not None else at + 1


def without_cpp_comments(text: str) -> str:
    """C++ comments of both kinds removed."""
    find, length = text.find, len(text)
    # Where each opening mark stands next; looked for one by one, which is many times faster than a character class.
    line, block = find("//"), find("/*")
    if line < 0 and block < 0:
        return text
    double = single = -1
    out: list[str] = []
    start = position = 0
    while True:
        if line < position and (line := find("//", position)) < 0:
            line = length
        if block < position and (block := find("/*", position)) < 0:
            block = length
        if double < position and (double := find('"', position)) < 0:
            double = length
        if single < position and (single := find("'", position)) < 0:
            single = length
        at, quote = min(line, block), min(double, single)
        if at == length:
            break
        if quote < at:
            position = _after_string(text, quote)
            continue
        end = find("\n", at) if at == line else find("*/", at + 2)
        out.append(text[start:at])
        start = position = length if end < 0 else end if at == line else end + 2
    out.append(text[start:])
    return " ".join(out)


def _is_docstring(code: str, at: int) -> bool:
    """Whether the string that opens at a position is a statement of its own."""
    # Only so far back, so that a line of megabytes costs no more than others.
    near = code[max(0, at - 400) : at].rstrip(_STRING_PREFIX)
    line = near[near.rfind("\n") + 1 :]
    if line and not line.isspace():
        return False
    return near.rstrip()[-1:] not in _BEFORE_VALUE


def _drop_comments(code: str) -> str:
    """Python comments, docstrings, and C++ comments inside triple-quoted sources removed.

    Lexical rules, not a parser: the texts are untrusted, in two languages at once, and often do not parse. One scan from
    left to right: what opens first wins, so that a quote in a comment or a mark in a string opens nothing.
    """
    code = code.removeprefix("\ufeff")
    if "\\" in code:  # a single character is looked for many times faster than two
        code = code.replace("\\\n", " ")
    if "import" not in code and "def " not in code:
        return without_cpp_comments(code)
    find, length = code.find, len(code)
    # Where each opening mark stands next; looked for one by one, which is many times faster than a character class.
    hash_mark = double = single = -1
    out: list[str] = []
    start = position = 0
    while True:
        if hash_mark < position and (hash_mark := find("#", position)) < 0:
            hash_mark = length
        if double < position and (double := find('"', position)) < 0:
            double = length
        if single < position and (single := find("'", position)) < 0:
            single = length
        at = double if double < single else single  # noqa: FURB136 - a call would take a tenth of the time
        if hash_mark <= at:
            if hash_mark == length:
                break
            out.append(code[start:hash_mark])
            end = find("\n", hash_mark)
            start = position = end if end >= 0 else length
            continue
        inside = ""
        if code.startswith(quotes := code[at] * 3, at):
            close = find(quotes, at + 3)
            end = close + 3 if close >= 0 else length
            inside = code[at + 3 : close] if close >= 0 else code[at + 3 :]
            if any(mark in inside for mark in _CPP_MARKS):
                inside = without_cpp_comments(inside)
            elif _is_docstring(code, at):
                inside = ""
            else:
                position = end
                continue
        else:
            end = _after_string(code, at)
            if code[at - 1 : at] not in _LINE_STARTS or not _is_docstring(code, at):
                position = end
                continue
        out += (code[start:at], inside)
        start = position = end
    out.append(code[start:])
    return "".join(out)


def token_text(code: str) -> str:
    """The program without comments and docstrings, every run of white space one blank."""
    return " ".join(_drop_comments(code).split())


def token_id(code: str) -> str:
    """First 32 hex digits of sha256 of the program without comments and ASCII white space: equal for near duplicates.

    Two programs that differ only in comments and white space (also inside a string literal) share it; names count.
    """
    return hashlib.sha256(_utf8(_drop_comments(code)).translate(None, _BLANKS)).hexdigest()[:ID_LENGTH]


def canonical_json(value: Any) -> bytes:
    """One JSON text per value: keys sorted, no white space, UTF-8, shortest float form, non-finite as null."""
    return msgspec.json.encode(value, order="deterministic")


def row_digest(row: Any) -> bytes:
    """sha256 (32 bytes) of the canonical JSON of one row."""
    return hashlib.sha256(canonical_json(row)).digest()


def logical_digest(rows: Iterable[tuple[str, bytes]]) -> str:
    """Digest of a table: sha256 over ``id NUL row digest`` of every row, sorted by id; ``sha256:`` and 64 hex digits.

    Made from :func:`row_digest`, so that it can be computed over a table in any order and in parallel. Equal on every
    machine and for every version of the Parquet writer.
    """
    total = hashlib.sha256()
    for key, digest in sorted(rows):
        total.update(key.encode("utf-8", "surrogatepass"))
        total.update(b"\0")
        total.update(digest)
    return f"sha256:{total.hexdigest()}"
