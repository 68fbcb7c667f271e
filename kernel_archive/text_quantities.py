"""Quantities of a program's text: what can be counted in it without understanding.

They are the controls of the benchmark. A forecast that only orders programs by one of them must not score well; where it
does, the programs give their speed away. Nothing here runs or imports a program.
"""

from __future__ import annotations

import io
import re
import tokenize
import zlib
from functools import lru_cache
from statistics import median
from typing import Final

from kernel_archive.program_text import C_COMMENT

#: Every quantity with what it counts.
QUANTITIES: Final[dict[str, str]] = {
    "characters": "characters of the program",
    "lines": "lines that are not blank",
    "line_length": "characters a line, mean",
    "comment_characters": "characters of comments and docstrings",
    "comment_share": "share of the characters that are comments and docstrings",
    "tokens": "words, numbers and marks outside comments",
    "distinct_tokens": "different words, numbers and marks outside comments",
    "distinct_share": "distinct tokens over tokens",
    "name_length": "characters a word, mean",
    "numbers": "numbers",
    "largest_number": "the largest whole number below a million",
    "functions": "functions defined",
    "kernels": "functions that run on the GPU",
    "launches": "places that launch a kernel",
    "loops": "for and while",
    "nesting": "loops in loops, by the indentation of lines that begin with for or while: the deepest",
    "branches": "if, where and conditional marks",
    "tl": "uses of tl.",
    "torch": "uses of torch.",
    "loads": "loads: tl.load, __ldg",
    "stores": "stores: tl.store",
    "dots": "matrix products: dot, matmul, einsum, wmma, @",
    "reductions": "sums and maxima: sum, max, amax, shuffles",
    "atomics": "the word atomic",
    "dtype_words": "words that name a type of number",
    "warp_words": "words that tune a launch: warps, stages, unroll, launch bounds, autotune",
    "constexpr": "constants of a kernel: constexpr, template, #define",
    "masks": "the words mask and other=",
    "allocations": "empty, zeros, ones and their likes",
    "copies": "contiguous, clone, copy, transpose, permute, to(",
    "warps": "the largest num_warps; 4 where none is named",
    "stages": "the largest num_stages; 3 where none is named",
    "named_stages": "the largest num_stages; 0 where none is named",
    "axes": "the largest axis of a program_id (Triton)",
    "median_number": "the median of whole numbers above 3 and below a million",
    "powers_of_two": "whole numbers that are a power of two, from 16 to 524288",
    "largest_power": "the largest power of two from 16 to 8192",
    "most_arguments": "commas in the head of a function, up to its first colon; the most",
    "compressed": "bytes of the program, compressed",
    "compressed_share": "the same over its characters",
    "indentation": "blanks before a line, mean",
    "longest_line": "characters of the longest line",
    "blank_lines": "lines that are blank",
    "capitals": "capital letters",
    "for": "statements that begin with for",
    "if": "statements that begin with if",
    "while": "the word while, also as a part",
    "definitions": "def and a blank: functions of Python",
    "tf32": "the word tf32, also as a part",
    "float32": "the word float32, also as a part",
    "bfloat16": "the word bfloat16, also as a part",
    "exponentials": "tl.exp and its likes",
    "wheres": "tl.where",
    "elementary": "functions of single numbers by their names in Triton and torch: exp, log, sqrt, abs, maximum, where, ...",
    "casts": ".to(",
    "static_ranges": "static_range",
    "evictions": "the word eviction, as a part",
    "autotune": "the word autotune, also as a part",
    "block_pointers": "make_block_ptr",
    "lambdas": "the word lambda, also as a part",
    "none": "the word None, also as a part",
    "zeros": "zeros, also as a part",
    "empties": "torch.empty and its likes",
    "contiguous": "the word contiguous, also as a part",
    "program_ids": "program_id",
    "stars": "*",
    "brackets": "[",
    "blocks": "the word BLOCK, also as a part",
    "underscores": "_",
}

_WORD = re.compile(r"[A-Za-z_]\w*")
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\w\s]")
# A program in pieces, as far as comments and docstrings need it; and what is left to the tokenizer of Python.
_PIECE: Final = re.compile(
    r"(?P<comment>#[^\n]*)|(?P<newline>\n)|(?P<opens>[(\[{])|(?P<closes>[)\]}])|(?P<continued>\\\n)"
    r'|(?P<string>"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""|"(?!"")[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''|'(?!'')[^'\\\n]*(?:\\.[^'\\\n]*)*')"
    r"|(?P<run>(?:[^\n#()\[\]{}\\\"'$?!`]|!=)+)",
    re.DOTALL,
)
_PREFIX: Final = re.compile(r"[A-Za-z]{1,2}")
_UNUSUAL: Final = re.compile(r"[\x00-\x08\t\x0b-\x1f\x7f\x85\u2028\u2029]")


def _words(*words: str) -> str:
    r"""What finds whole words as ``\b(?:one|other)\b`` does, in a tenth of the time: it begins with what is looked for.

    >>> re.findall(_words("for", "while"), "for_ for x: meanwhile while")
    ['for', 'while']
    """
    return "|".join(rf"{word}\b(?<!\w{word})" for word in words)


def _begun(*words: str, end: str) -> str:
    """The same for words that go on with what a pattern says."""
    return "|".join(rf"{word}(?<!\w{word}){end}" for word in words)


_COUNTED: Final = {
    "functions": _begun("def", "void", "float", "int", "auto", end=r" \w+\("),
    "kernels": r"@triton\.jit|__global__",
    "launches": r"\[(?<=\w\[)[^\]\n]{0,2000}\]\s*\(|<<<",
    "loops": _words("for", "while"),
    "branches": _words("if", "where") + r"|\?",
    "tl": _begun("tl", end=r"\."),
    "torch": _begun("torch", end=r"\."),
    "loads": _begun("tl", end=r"\.load\b") + "|__ldg",
    "stores": _begun("tl", end=r"\.store\b"),
    "dots": _words("dot", "matmul", "bmatmul", "bmm", "mm", "einsum", "baddbmm", "addmm", "wmma") + "| @ ",
    "reductions": _words("sum", "max", "amax", "reduce") + "|__shfl",
    "atomics": r"atomic",
    "dtype_words": _words(
        "float", "float8", "float16", "float32", "half", "half2", "bfloat16", "bf16", "fp16", "fp32", "tf32", "tf32x3",
        "ieee", "int", "int8", "int16", "int32", "int64", "__nv_bfloat16",
    ),
    "warp_words": r"num_warps|num_stages|__launch_bounds__|autotune|warp|" + _words("unroll"),
    "constexpr": _words("constexpr", "template") + "|#define",
    "masks": _words("mask") + "|" + _begun("other", end="="),
    "allocations": _begun("empty", "zeros", "ones", "full", "new_empty", "new_zeros", end=r"(?:_like)?\("),
    "copies": _begun("contiguous", "clone", "copy_", "transpose", "permute", "to", end=r"\("),
    "capitals": "[A-Z]",
    "for": r"(?m)^[ \t]*for ",
    "if": r"(?m)^[ \t]*if ",
    "while": "while",
    "definitions": "def ",
    "tf32": "tf32",
    "float32": "float32",
    "bfloat16": "bfloat16",
    "exponentials": r"tl\.exp",
    "wheres": r"tl\.where",
    "elementary": _begun(
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "tanh", "erf", "sin", "cos", "pow", "abs", "maximum", "minimum",
        "where", end=r"\s*\(",
    ),
    "casts": r"\.to\(",
    "static_ranges": "static_range",
    "evictions": "eviction",
    "autotune": "autotune",
    "block_pointers": "make_block_ptr",
    "lambdas": "lambda",
    "none": "None",
    "zeros": "zeros",
    "empties": r"torch\.empty",
    "contiguous": "contiguous",
    "program_ids": "program_id",
    "stars": r"\*",
    "brackets": r"\[",
    "blocks": "BLOCK",
    "underscores": "_",
}  # fmt: skip
_WARPS: Final = re.compile(r"num_warps\s*=\s*(\d{1,9})\b", re.ASCII)
_STAGES: Final = re.compile(r"num_stages\s*=\s*(\d{1,9})\b", re.ASCII)
_LOOP: Final = re.compile(r"(?:for|while)\b")
_AXES: Final = re.compile(r"program_id\(\s*(?:axis\s*=\s*)?(\d{1,9})\b", re.ASCII)
_PATTERNS: Final = {name: re.compile(pattern) for name, pattern in _COUNTED.items()}


def _split(code: str) -> tuple[str, str]:
    """A program without its comments and docstrings, and those alone. A program that is no Python keeps its strings."""
    cuts = _prose_places(code)
    if cuts is None:
        cuts = _tokenized_prose_places(code)
    parts, at = [], 0
    for begin, end in cuts:
        parts.append(code[at:begin])
        at = end
    rest = "".join([*parts, code[at:]])
    prose = [code[begin:end] for begin, end in cuts]
    prose.extend(C_COMMENT.findall(rest) if "__global__" in rest else [])
    return (C_COMMENT.sub(" ", rest) if "__global__" in rest else rest), "".join(prose)


def _prose_places(code: str) -> list[tuple[int, int]] | None:
    """Where comments and docstrings begin and end, as :func:`_tokenized_prose_places` finds them in four times the time.

    ``None`` where a program has anything that only the tokenizer of Python can judge.
    """
    cuts: list[tuple[int, int]] = []
    if _UNUSUAL.search(code):
        return None
    # Whether a statement begins here, whether its indentation is still to be looked at, and how deep in brackets we are.
    fresh, unindented, depth = True, True, 0
    line, at, indents = 0, 0, [0]
    for found in _PIECE.finditer(code):
        kind, begin, end = found.lastgroup, found.start(), found.end()
        if begin != at:
            return None
        at = end
        if kind == "newline":
            line = end
            if depth == 0:
                fresh = unindented = True
            continue
        if kind == "comment":
            cuts.append((begin, end))
            continue
        if kind == "continued":
            if unindented or end == len(code):
                return None
            continue
        piece = found[0]
        start = begin
        if kind == "run":
            start = begin + len(piece) - len(piece.lstrip(" "))
            if start == end:
                continue
            if not piece.isascii() or (
                fresh and code[end : end + 1] in {'"', "'"} and _PREFIX.fullmatch(piece.strip(" "))
            ):
                return None
        if unindented:
            column = start - line
            if column > indents[-1]:
                indents.append(column)
            while column < indents[-1]:
                indents.pop()
            if column != indents[-1]:
                return None
            unindented = False
        if kind == "string" and fresh:
            cuts.append((begin, end))
        fresh = False
        depth += (kind == "opens") - (kind == "closes")
        if depth < 0:
            return None
    return cuts if at == len(code) and depth == 0 else None


def _tokenized_prose_places(code: str) -> list[tuple[int, int]]:
    """Where comments and docstrings begin and end; nowhere in what is no Python."""
    cuts: list[tuple[int, int]] = []
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    try:
        fresh = True
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            alone = token.type == tokenize.STRING and fresh
            if token.type == tokenize.COMMENT or alone:
                cuts.append((starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]))
            if token.type not in {tokenize.COMMENT, tokenize.NL}:
                fresh = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    except (tokenize.TokenError, SyntaxError):
        return []
    return cuts


def _nesting(lines: list[str]) -> int:
    """How many loops stand in one another at most; a line that is indented no further than a loop is not in it."""
    columns: list[int] = []
    deepest = 0
    for line in lines:
        text = line.lstrip()
        column = len(line) - len(text)
        while columns and columns[-1] >= column:
            columns.pop()
        if _LOOP.match(text):
            columns.append(column)
            deepest = max(deepest, len(columns))
    return deepest


def quantities(code: str) -> dict[str, float]:
    r"""All quantities of a program.

    >>> found = quantities("import torch  # two words\n\ndef custom_kernel(x):\n    return torch.relu(x)\n")
    >>> found["lines"], found["comment_characters"], found["functions"], found["torch"]
    (3.0, 11.0, 1.0, 1.0)
    """
    return dict(zip(QUANTITIES, _counted(code), strict=True))


# Whoever checks an archive counts the programs of its evaluation rows twice, at 2 ms a program.
@lru_cache(maxsize=1024)
def _counted(code: str) -> tuple[float, ...]:
    """The quantities of a program in their order."""
    bare, prose = _split(code)
    lines = [line for line in code.splitlines() if line.strip()]
    tokens = _TOKEN.findall(bare)
    words = _WORD.findall(bare)
    numbers = [t for t in tokens if t[0].isdigit()]
    whole = [int(t) for t in numbers if t.isdecimal() and t.isascii() and len(t) < 7]
    powers = [n for n in whole if n >= 16 and n & (n - 1) == 0]
    packed = zlib.compress(code.encode(errors="replace"))
    found = {
        "characters": len(code),
        "lines": len(lines),
        "line_length": sum(map(len, lines)) / max(1, len(lines)),
        "comment_characters": len(prose),
        "comment_share": len(prose) / max(1, len(code)),
        "tokens": len(tokens),
        "distinct_tokens": len(set(tokens)),
        "distinct_share": len(set(tokens)) / max(1, len(tokens)),
        "name_length": sum(map(len, words)) / max(1, len(words)),
        "numbers": len(numbers),
        "nesting": _nesting([line for line in bare.splitlines() if line.strip()]),
        "largest_number": max(whole, default=0),
        "warps": max(map(int, _WARPS.findall(bare)), default=4),
        "stages": max(map(int, _STAGES.findall(bare)), default=3),
        "named_stages": max(map(int, _STAGES.findall(bare)), default=0),
        "axes": max(map(int, _AXES.findall(bare)), default=0),
        "median_number": median(large) if (large := [n for n in whole if n > 3]) else 0,
        "powers_of_two": len(powers),
        "largest_power": max((n for n in powers if n <= 8192), default=0),
        "most_arguments": max(
            (head[head.find("def ") :].count(",") for head in bare.split(":")[:-1] if "def " in head), default=0
        ),
        "compressed": len(packed),
        "compressed_share": len(packed) / max(1, len(code)),
        "indentation": sum(len(line) - len(line.lstrip()) for line in lines) / max(1, len(lines)),
        "longest_line": max(map(len, lines), default=0),
        "blank_lines": len(code.splitlines()) - len(lines),
        **{name: len(pattern.findall(bare)) for name, pattern in _PATTERNS.items()},
    }
    return tuple(float(found[name]) for name in QUANTITIES)
