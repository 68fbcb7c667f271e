"""Quantities of a program's text: what can be counted in it without understanding.

They are the controls of the benchmark. A forecast that only orders programs by one of them must
not score well; where it does, the programs give their speed away. Nothing here runs a program.
"""

from __future__ import annotations

import re
import zlib
from statistics import median
from typing import TYPE_CHECKING, Final

from kernel_archive.program_text import C_COMMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\w\s]")
_LOOP: Final = re.compile(r"(?:for|while)\b")
#: What tells where statements, strings and comments of a Python program begin and end.
_MARK: Final = re.compile(
    r"""#[^\n]*|\"""(?s:(?:[^"\\]++|\\.|"(?!""))*+)\"""|'''(?s:(?:[^'\\]++|\\.|'(?!''))*+)'''"""
    r"""|"(?:[^"\\\n]++|(?s:\\.))*+"|'(?:[^'\\\n]++|(?s:\\.))*+'|[()\[\]{}\"']|(?<!\\)\n"""
)
_PREFIX: Final = re.compile(r"[rRbBfFuU]{1,2}")


class _Text:
    """A program in the parts that are counted."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.bare, self.prose = _split(code)
        self.lines = [line for line in code.splitlines() if line.strip()]
        self.tokens = _TOKEN.findall(self.bare)
        self.words = _WORD.findall(self.bare)
        self.numbers = [t for t in self.tokens if t[0].isdigit()]
        self.whole = [int(t) for t in self.numbers if t.isdecimal() and t.isascii() and len(t) < 7]
        self.powers = [n for n in self.whole if n >= 16 and n & (n - 1) == 0]


def _split(code: str) -> tuple[str, str]:
    """Split a program into text without comments and docstrings, and these alone."""
    cuts = _prose_places(code)
    parts, at = [], 0
    for begin, end in cuts:
        parts.append(code[at:begin])
        at = end
    rest = "".join([*parts, code[at:]])
    prose = [code[begin:end] for begin, end in cuts]
    prose.extend(C_COMMENT.findall(rest) if "__global__" in rest else [])
    return (C_COMMENT.sub(" ", rest) if "__global__" in rest else rest), "".join(prose)


def _prose_places(code: str) -> list[tuple[int, int]]:
    """Find where comments and docstrings begin and end; none where a bracket or quote stays open.

    One expression searches for the marks: Python's tokenizer takes five times as long.
    """
    cuts: list[tuple[int, int]] = []
    depth, fresh, at = 0, True, 0
    for found in _MARK.finditer(code):
        mark, begin = found[0], found.start()
        before = code[at:begin].strip()
        if mark in "\"'":
            return []
        if mark[0] in "\"'" and fresh and (not before or _PREFIX.fullmatch(before)):
            cuts.append((begin - len(before), found.end()))
        elif mark[0] == "#":
            cuts.append((begin, found.end()))
        depth += (mark in "([{") - (mark in ")]}")
        fresh = depth == 0 and (mark == "\n" or (fresh and not before and mark[0] == "#"))
        at = found.end()
    return [] if depth else cuts


def _words(words: str, end: str = r"\b") -> str:
    r"""Make a pattern of whole words that takes a third of the time of ``\b(?:one|other)\b``.

    ``end`` is what must follow a word, where that is more than the word's end.

    >>> re.findall(_words("for while"), "for_ for x: meanwhile while")
    ['for', 'while']
    """
    return "|".join(rf"{word}(?<!\w{word}){end}" for word in words.split())


def _share(part: float, whole: int) -> float:
    return part / max(1, whole)


def _mean_length(texts: list[str]) -> float:
    return _share(sum(map(len, texts)), len(texts))


def _largest(pattern: str, default: int = 0) -> Callable[[_Text], float]:
    """The largest number that stands behind a pattern."""
    finds = re.compile(pattern + r"(\d{1,9})\b", re.ASCII)
    return lambda text: max(map(int, finds.findall(text.bare)), default=default)


def _packed(text: _Text) -> int:
    return len(zlib.compress(text.code.encode(errors="replace")))


def _nesting(text: _Text) -> int:
    """Count how many loops stand in one another at most, by their indentation."""
    columns: list[int] = []
    deepest = 0
    for line in text.bare.splitlines():
        statement = line.lstrip()
        column = len(line) - len(statement)
        while statement and columns and columns[-1] >= column:
            columns.pop()
        if _LOOP.match(statement):
            columns.append(column)
            deepest = max(deepest, len(columns))
    return deepest


def _most_arguments(text: _Text) -> int:
    heads = (head for head in text.bare.split(":")[:-1] if "def " in head)
    return max((head[head.find("def ") :].count(",") for head in heads), default=0)


#: Quantity -> what it counts, and how: a pattern to count outside comments, or a function.
_COUNTED: Final[dict[str, tuple[str, str | Callable[[_Text], float]]]] = {
    "characters": ("characters of the program", lambda t: len(t.code)),
    "lines": ("lines that are not blank", lambda t: len(t.lines)),
    "line_length": ("characters a line, mean", lambda t: _mean_length(t.lines)),
    "comment_characters": ("characters of comments and docstrings", lambda t: len(t.prose)),
    "comment_share": (
        "share of the characters that are comments and docstrings",
        lambda t: _share(len(t.prose), len(t.code)),
    ),
    "tokens": ("words, numbers and marks outside comments", lambda t: len(t.tokens)),
    "distinct_tokens": (
        "different words, numbers and marks outside comments",
        lambda t: len(set(t.tokens)),
    ),
    "distinct_share": (
        "distinct tokens over tokens",
        lambda t: _share(len(set(t.tokens)), len(t.tokens)),
    ),
    "name_length": ("characters a word, mean", lambda t: _mean_length(t.words)),
    "numbers": ("numbers", lambda t: len(t.numbers)),
    "largest_number": (
        "the largest whole number below a million",
        lambda t: max(t.whole, default=0),
    ),
    "functions": ("functions defined", _words("def void float int auto", end=r" \w+\(")),
    "kernels": ("functions that run on the GPU", r"@triton\.jit|__global__"),
    "launches": ("places that launch a kernel", r"\[(?<=\w\[)[^\]\n]{0,2000}\]\s*\(|<<<"),
    "loops": ("for and while", _words("for while")),
    "nesting": (
        "loops in loops, by the indentation of lines that begin with for or while: the deepest",
        _nesting,
    ),
    "branches": ("if, where and conditional marks", _words("if where") + r"|\?"),
    "tl": ("uses of tl.", _words("tl", end=r"\.")),
    "torch": ("uses of torch.", _words("torch", end=r"\.")),
    "loads": ("loads: tl.load, __ldg", _words("tl", end=r"\.load\b") + "|__ldg"),
    "stores": ("stores: tl.store", _words("tl", end=r"\.store\b")),
    "dots": (
        "matrix products: dot, matmul, einsum, wmma, @",
        _words("dot matmul bmatmul bmm mm einsum baddbmm addmm wmma") + "| @ ",
    ),
    "reductions": (
        "sums and maxima: sum, max, amax, shuffles",
        _words("sum max amax reduce") + "|__shfl",
    ),
    "atomics": ("the word atomic", "atomic"),
    "dtype_words": (
        "words that name a type of number",
        _words(
            "float float8 float16 float32 half half2 bfloat16 bf16 fp16 fp32 tf32 tf32x3 ieee"
            " int int8 int16 int32 int64 __nv_bfloat16"
        ),
    ),
    "warp_words": (
        "words that tune a launch: warps, stages, unroll, launch bounds, autotune",
        "num_warps|num_stages|__launch_bounds__|autotune|warp|" + _words("unroll"),
    ),
    "constexpr": (
        "constants of a kernel: constexpr, template, #define",
        _words("constexpr template") + "|#define",
    ),
    "masks": ("the words mask and other=", _words("mask") + "|" + _words("other", end="=")),
    "allocations": (
        "empty, zeros, ones and their likes",
        _words("empty zeros ones full new_empty new_zeros", end=r"(?:_like)?\("),
    ),
    "copies": (
        "contiguous, clone, copy, transpose, permute, to(",
        _words("contiguous clone copy_ transpose permute to", end=r"\("),
    ),
    "warps": (
        "the largest num_warps; 4 where none is named",
        _largest(r"num_warps\s*=\s*", default=4),
    ),
    "stages": (
        "the largest num_stages; 3 where none is named",
        _largest(r"num_stages\s*=\s*", default=3),
    ),
    "named_stages": (
        "the largest num_stages; 0 where none is named",
        _largest(r"num_stages\s*=\s*"),
    ),
    "axes": (
        "the largest axis of a program_id (Triton)",
        _largest(r"program_id\(\s*(?:axis\s*=\s*)?"),
    ),
    "median_number": (
        "the median of whole numbers above 3 and below a million",
        lambda t: median([n for n in t.whole if n > 3] or [0]),
    ),
    "powers_of_two": (
        "whole numbers that are a power of two, from 16 to 524288",
        lambda t: len(t.powers),
    ),
    "largest_power": (
        "the largest power of two from 16 to 8192",
        lambda t: max((n for n in t.powers if n <= 8192), default=0),
    ),
    "most_arguments": (
        "commas in the head of a function, up to its first colon; the most",
        _most_arguments,
    ),
    "compressed": ("bytes of the program, compressed", _packed),
    "compressed_share": ("the same over its characters", lambda t: _share(_packed(t), len(t.code))),
    "indentation": (
        "blanks before a line, mean",
        lambda t: _share(sum(len(line) - len(line.lstrip()) for line in t.lines), len(t.lines)),
    ),
    "longest_line": ("characters of the longest line", lambda t: max(map(len, t.lines), default=0)),
    "blank_lines": ("lines that are blank", lambda t: len(t.code.splitlines()) - len(t.lines)),
    "capitals": ("capital letters", "[A-Z]"),
    "for": ("statements that begin with for", r"(?m)^[ \t]*for "),
    "if": ("statements that begin with if", r"(?m)^[ \t]*if "),
    "while": ("the word while, also as a part", "while"),
    "definitions": ("def and a blank: functions of Python", "def "),
    "tf32": ("the word tf32, also as a part", "tf32"),
    "float32": ("the word float32, also as a part", "float32"),
    "bfloat16": ("the word bfloat16, also as a part", "bfloat16"),
    "exponentials": ("tl.exp and its likes", r"tl\.exp"),
    "wheres": ("tl.where", r"tl\.where"),
    "elementary": (
        "functions of single numbers by their names in Triton and torch: exp, log, sqrt, ...",
        _words(
            "exp exp2 log log2 sqrt rsqrt sigmoid tanh erf sin cos pow abs maximum minimum where",
            end=r"\s*\(",
        ),
    ),
    "casts": (".to(", r"\.to\("),
    "static_ranges": ("static_range", "static_range"),
    "evictions": ("the word eviction, as a part", "eviction"),
    "autotune": ("the word autotune, also as a part", "autotune"),
    "block_pointers": ("make_block_ptr", "make_block_ptr"),
    "lambdas": ("the word lambda, also as a part", "lambda"),
    "none": ("the word None, also as a part", "None"),
    "zeros": ("zeros, also as a part", "zeros"),
    "empties": ("torch.empty and its likes", r"torch\.empty"),
    "contiguous": ("the word contiguous, also as a part", "contiguous"),
    "program_ids": ("program_id", "program_id"),
    "stars": ("*", r"\*"),
    "brackets": ("[", r"\["),
    "blocks": ("the word BLOCK, also as a part", "BLOCK"),
    "underscores": ("_", "_"),
}
#: Every quantity with what it counts.
QUANTITIES: Final[dict[str, str]] = {name: meaning for name, (meaning, _) in _COUNTED.items()}


def quantities(code: str, names: Collection[str] = QUANTITIES) -> dict[str, float]:
    r"""Compute the quantities of a program: all of them, or those that are named.

    >>> code = "import torch  # two words\n\ndef custom_kernel(x):\n    return torch.relu(x)\n"
    >>> [*quantities(code, ["lines", "comment_characters", "functions", "torch"]).values()]
    [3.0, 11.0, 1.0, 1.0]
    """
    text = _Text(code)

    def count(how: str | Callable[[_Text], float]) -> float:
        return float(len(re.findall(how, text.bare)) if isinstance(how, str) else how(text))

    return {name: count(_COUNTED[name][1]) for name in names}
