"""Read from the text of a program its language, patterns that only lose time, and telling words.

Nothing here runs or imports a program.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from typing import Final

from kernel_archive.ids import by_digest

#: Languages from the one that is usually slowest to the one that is usually fastest.
LANGUAGE_ORDER: Final = ("other", "pytorch", "triton", "gluon", "cuda")

_C_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)  # comments of C and C++
_DOUBLE: Final = re.compile(r"\bfloat64\b|\.double\(|\btorch\.double\b|\bdouble\b|\bfp64\b")
_SLEEP: Final = re.compile(
    r"\btime\.sleep\b|\bnanosleep\b|__nanosleep|\btorch\.cuda\._sleep\b|\busleep\b"
)
_SORT: Final = re.compile(r"\.(?:arg)?sort\(|\btorch\.(?:arg)?sort\(|\btl\.sort\(|\.kthvalue\(")
_WORD_PATTERNS: Final = {"double": _DOUBLE, "sleep": _SLEEP, "sort": _SORT}
_ORDERING: Final = re.compile(r"sort|topk|kthvalue|median|rank|unique")
#: Patterns of which a program is excused where the reference has this.
_EXCUSES: Final = {"double": _DOUBLE, "sort": _ORDERING}
# A host statement that computes with a method and gives the result a name. It begins with a line
# end, not with ``^``, as a character is searched for many times faster. Lines of kernels, which
# begin with ``tl.``, are left out.
_RESULT_NAME: Final = re.compile(
    r"\n[ \t]++(\w++) = (?!tl\.)[^\n=]*\.(?:abs|amax|amin|bmm|clamp|clone|cumsum|einsum|exp|log"
    r"|log_softmax|matmul|max|mean|min|mm|norm|softmax|sort|square|sqrt|std|sum|var)\("
)
#: CUDA C++ has one of these; with CUTLASS a program may hold no kernel of its own.
_CUDA: Final = ("__global__", "load_inline", "CUDAExtension", "#include <cu", '#include "cu')
_IN_KERNEL: Final = re.compile(r"= *tl\.|\btl\.\w+\(")
#: A loop that only a syntax tree can judge.
_LOOP: Final = re.compile(r" in range\(\d+\):|\.(?:item|tolist)\(")
#: Every program with one of the patterns in words has one of these.
_SUSPECT_WORDS: Final = ("double", "float64", "fp64", "sleep", "sort", "kthvalue")
#: Every program with a loop to judge has one of these.
_LOOP_WORDS: Final = (" in range(", ".item(", ".tolist(")
_DOCSTRING_OR_COMMENT: Final = re.compile(r'"""[\s\S]*?"""|#[^\n]*')
#: Fields of a syntax tree's statements, handlers and cases that hold statements.
_STATEMENT_FIELDS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_TO_HOST: Final = frozenset({"item", "tolist"})
#: Methods that change their object, beside those of torch, which end in an underscore.
_CHANGING: Final = frozenset({"append", "add", "advance", "pop", "send"})


def language_of(code: str) -> str:
    """Tell the language of a program: ``gluon``, ``triton``, ``cuda``, ``pytorch`` or ``other``."""
    if "gluon" in code and ("@gluon.jit" in code or "triton.experimental.gluon" in code):
        return "gluon"
    if "@triton.jit" in code or "triton.language" in code:
        return "triton"
    if any(mark in code for mark in _CUDA):
        return "cuda"
    return "pytorch" if "torch" in code else "other"


def artificial_patterns(code: str, reference: str = "") -> list[str]:
    r"""List patterns that only lose time; an honest program has none.

    ``double``: 64-bit floats where the reference has none. ``sleep``: waiting. ``sort``: sorting
    where the reference orders nothing. ``element_loop``: a loop on the host that fetches single
    numbers. ``repeated_work``: a loop on the host a fixed number of times whose passes are all the
    same. ``dead_work``: a result that the host computes and never uses.

    >>> artificial_patterns("def f(x):\n  for _ in range(4):\n    y = x.double()\n  return y")
    ['double', 'repeated_work']
    """
    return [
        pattern
        for pattern in _all_patterns(code)
        if pattern not in _EXCUSES or not _EXCUSES[pattern].search(reference)
    ]


@by_digest
def _all_patterns(code: str) -> list[str]:
    """List patterns whatever the reference has."""
    patterns = ["dead_work"] if _has_dead_work(code) else []
    if any(word in code for word in _SUSPECT_WORDS):
        text = _C_COMMENT.sub(" ", code) if "__global__" in code else code
        text = _DOCSTRING_OR_COMMENT.sub(" ", text)
        patterns += [name for name, words in _WORD_PATTERNS.items() if words.search(text)]
    loops = [node for node in _statements(code) if isinstance(node, ast.For)]
    if any(_is_element_loop(loop) for loop in loops):
        patterns.append("element_loop")
    if any(_is_repeated_work(loop) for loop in loops):
        patterns.append("repeated_work")
    return sorted(patterns)


def _statements(code: str) -> list[ast.AST]:
    """Return the statements of a program that may have a loop to judge; nothing of others."""
    # Plain texts first: a search for the pattern is far slower, parsing a hundred times as slow.
    if not any(word in code for word in _LOOP_WORDS) or not _LOOP.search(code):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes: list[ast.AST] = [ast.parse(code)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for node in nodes:  # the list grows meanwhile; no expression holds a statement
        for field in _STATEMENT_FIELDS:
            nodes += getattr(node, field, ())
    return nodes


def _has_dead_work(code: str) -> bool:
    """Tell whether the host computes something, gives it a name and never uses it."""
    text = f"\n{code}"
    results = [
        m[1] for m in _RESULT_NAME.finditer(text) if not ("tl." in m[0] and _IN_KERNEL.search(m[0]))
    ]
    counts = Counter(re.findall(r"\w+", text)) if results else Counter()
    return any(counts[name] == 1 for name in results)


def _is_element_loop(loop: ast.For) -> bool:
    """Tell whether a loop brings numbers to the host, one by one."""
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", None) in _TO_HOST
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _is_repeated_work(loop: ast.For) -> bool:
    """Tell whether a loop does the same a fixed number of times."""
    match loop:
        case ast.For(
            target=ast.Name(id=index),
            iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant()]),
        ):
            pass
        case _:
            return False
    stored: set[str] = set()
    loaded: set[str] = set()
    changes_state = False
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        match node:
            case ast.Name(id=name):
                names = loaded if isinstance(node.ctx, ast.Load) else stored
                names.add(name)
            # What is changed in place carries over to the next pass.
            case ast.AugAssign() | ast.Yield() | ast.Break() | ast.Return():
                changes_state = True
            case ast.Subscript(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                changes_state = True
            case ast.Call(func=ast.Attribute(attr=method)):
                changes_state |= method in _CHANGING or method.endswith("_")
    return not changes_state and bool(stored) and index not in loaded and not stored & loaded
