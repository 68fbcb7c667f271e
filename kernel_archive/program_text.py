"""What the text of a program says by itself: its language, patterns that only lose time, and telling words.

Nothing here runs or imports a program. What can be counted in it stands in :mod:`kernel_archive.text_quantities`.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

#: Languages from the one that is usually slowest to the one that is usually fastest.
LANGUAGE_ORDER: Final = ("other", "pytorch", "triton", "gluon", "cuda")

#: Comments of C and C++.
C_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


#: Words of comments and names that say how fast a program is or is meant to be.
_TELLING: Final = re.compile(
    r"(?i)\b(naive\w*|slow\w*|fast\w*|optimi[sz]\w*|optimal\w*|efficien\w*|inefficien\w*|baseline\w*|better|worse|quick\w*"
    r"|bottleneck\w*|performan\w*|speed\w*|unoptimi\w*|latency|throughput|deliberate\w*|intentional\w*|wasteful\w*|expensive\w*"
    r"|cheap\w*|costly)\b"
)
#: One of these stands in every text that has one.
_STEMS: Final = tuple(re.findall("[a-z]{4,}", _TELLING.pattern))
#: Names of functions and compiler options that contain such a word and say nothing.
_TECHNICAL: Final = re.compile(
    r"(?i)fast_?math|libdevice\.fast_\w+|__fast\w*|fast_\w+f\b|fast_dividef|(?:use|enable|allow)_fast\w*"
)

_DOUBLE: Final = re.compile(r"\bfloat64\b|\.double\(|\btorch\.double\b|\bdouble\b|\bfp64\b")
_SLEEP: Final = re.compile(r"\btime\.sleep\b|\bnanosleep\b|__nanosleep|\btorch\.cuda\._sleep\b|\busleep\b")
_SORT: Final = re.compile(r"\.(?:arg)?sort\(|\btorch\.(?:arg)?sort\(|\btl\.sort\(|\.kthvalue\(")
_ORDERS: Final = re.compile(r"sort|topk|kthvalue|median|rank|unique")
_COMPUTES: Final = (
    r"\.(?:abs|amax|amin|bmm|clamp|clone|cumsum|einsum|exp|log|log_softmax|matmul|max|mean|min|mm|norm|softmax|sort|square"
    r"|sqrt|std|sum|var)\("
)
# A host statement that computes with a method and gives the result a name. It begins with a line end, not with ``^``: a
# character is looked for many times faster than a place. Nearly all that begins with ``tl.`` is left out here, since
# kernels have dozens of such lines.
_RESULT: Final = re.compile(r"\n[ \t]++(\w++) = (?!tl\.)[^\n=]*" + _COMPUTES)
_IN_KERNEL: Final = re.compile(r"= *tl\.|\btl\.\w+\(")
# Words of which one stands in every program with a pattern, and a loop that a syntax tree must be made for to judge it.
_SUSPECT_WORDS: Final = ("double", "float64", "fp64", "sleep", "sort", "kthvalue")
_LOOP: Final = re.compile(r" in range\(\d+\):")
_PROSE: Final = re.compile(r'"""[\s\S]*?"""|#[^\n]*')
_TO_HOST: Final = frozenset({"item", "tolist"})


def language_of(code: str) -> str:
    """The language of a program, from its text: ``gluon``, ``triton``, ``cuda``, ``pytorch`` or ``other``."""
    if "gluon" in code and ("@gluon.jit" in code or "triton.experimental.gluon" in code):
        return "gluon"
    if "@triton.jit" in code or "triton.language" in code:
        return "triton"
    if "__global__" in code or "load_inline" in code or "CUDAExtension" in code:
        return "cuda"
    return "pytorch" if "torch" in code else "other"


def telling_words(code: str) -> list[str]:
    r"""Words of the program's comments, texts and names that say how fast it is or is meant to be, each once.

    >>> telling_words("def fast_path(x):  # the naive way\n    return tl.math.fast_expf(x)\n")
    ['fast_path', 'naive']
    """
    if code.isascii():  # beyond, further letters are taken for one without regard to its case
        lower = code.lower()
        if not any(stem in lower for stem in _STEMS):
            return []
    return sorted({m[0] for m in _TELLING.finditer(_TECHNICAL.sub(" ", code))})


def artificial_patterns(code: str, reference: str = "") -> list[str]:
    r"""Patterns that nobody writes who wants a result: they only lose time. Empty for an honest program.

    ``double``: 64-bit floats where the reference has none. ``sleep``: waiting. ``sort``: sorting where the reference orders
    nothing (for a maximum, say). ``element_loop``: a loop on the host that fetches single numbers. ``repeated_work``: a
    loop on the host a fixed number of times whose passes don't depend on each other or on the count. ``dead_work``: a
    result that the host computes and never uses.

    Args:
        code: the program.
        reference: the reference's text, where known.

    >>> artificial_patterns("def custom_kernel(x):\n    for _ in range(4):\n        y = x.double().sum()\n    return y\n")
    ['double', 'repeated_work']
    """
    found = ["dead_work"] if _discards(code) else []
    if any(word in code for word in _SUSPECT_WORDS):
        bare = _PROSE.sub(" ", C_COMMENT.sub(" ", code) if "__global__" in code else code)
        if _DOUBLE.search(bare) and not _DOUBLE.search(reference):
            found.append("double")
        if _SLEEP.search(bare):
            found.append("sleep")
        if _SORT.search(bare) and not _ORDERS.search(reference):
            found.append("sort")
    if not (".item(" in code or ".tolist(" in code or (" in range(" in code and _LOOP.search(code))):
        return sorted(found)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return sorted(found)
    loops = _loops(tree)
    if any(_fetches(loop) for loop in loops):
        found.append("element_loop")
    if any(_repeats(loop) for loop in loops):
        found.append("repeated_work")
    return sorted(found)


def _loops(tree: ast.Module) -> list[ast.For]:
    """All ``for`` statements. Only statements are looked at: expressions, most of a tree, hold none."""
    found: list[ast.For] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.For):
            found.append(node)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes.extend(getattr(node, field, ()))
    return found


def _discards(code: str) -> bool:
    """Whether the host computes something, gives it a name and never uses it. Compilers of kernels drop such things."""
    text = f"\n{code}"
    return any(
        not ("tl." in found[0] and _IN_KERNEL.search(found[0])) and _stands_once(found[1], text, found.end())
        for found in _RESULT.finditer(text)
    )


def _stands_once(name: str, code: str, behind: int) -> bool:
    """Whether a name stands once as a whole word, given that it does before a place; behind it is the likelier one."""
    return _count_word(name, code, behind, len(code)) == 0 and _count_word(name, code, 0, behind) == 1


def _count_word(name: str, code: str, start: int, end: int) -> int:
    """How often a name stands as a whole word in a part of a program; 2 means at least twice."""
    seen, at = 0, code.find(name, start, end)
    while at >= 0 and seen < 2:
        before, after = code[at - 1 : at], code[at + len(name) : at + len(name) + 1]
        seen += not (before.isalnum() or before == "_" or after.isalnum() or after == "_")
        at = code.find(name, at + 1, end)
    return seen


def _fetches(loop: ast.For) -> bool:
    """Whether a loop brings numbers to the host, one by one."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TO_HOST
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _repeats(loop: ast.For) -> bool:
    """Whether a loop does the same a fixed number of times: its body uses neither the count nor what it made before."""
    call = loop.iter
    fixed = (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "range"
        and len(call.args) == 1
        and isinstance(call.args[0], ast.Constant)
    )
    if not fixed or not isinstance(loop.target, ast.Name):
        return False
    stored: set[str] = set()
    loaded: set[str] = set()
    written = False
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        # What is changed in place carries over to the next pass.
        written |= isinstance(node, ast.AugAssign | ast.Yield | ast.Break | ast.Return)
        written |= isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written |= node.func.attr in {"append", "add", "advance", "pop", "send"} or node.func.attr.endswith("_")
    return not written and bool(stored) and loop.target.id not in loaded and not stored & loaded
