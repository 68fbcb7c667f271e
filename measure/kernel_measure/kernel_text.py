"""What the text of a Triton kernel says: loads, stores and the like counted, and trips of loops.

Nothing here runs a program: its syntax tree is walked.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import textwrap
from typing import Any, Final

from kernel_archive.arithmetic import NO_VALUE, called_name, evaluate, range_trips

#: Trips of a loop whose bounds can't be evaluated.
UNKNOWN_TRIPS: Final = 16.0
_REDUCTIONS: Final = ("sum", "max", "min", "reduce", "argmax", "argmin", "cumsum")
#: Names of calls in a kernel, of Triton and of Gluon -> the column that counts them.
_COUNTED: Final = {
    **dict.fromkeys(("load", "async_copy_global_to_shared"), "loads"),
    **dict.fromkeys(("store", "async_copy_shared_to_global"), "stores"),
    **dict.fromkeys(("dot", "dot_scaled", "mma_v2", "warpgroup_mma"), "dots"),
    **dict.fromkeys((*_REDUCTIONS, "associative_scan"), "reductions"),
    **dict.fromkeys(("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid"), "transcendentals"),
}
_COUNTS: Final = (*dict.fromkeys(_COUNTED.values()), "atomics", "loops")


@functools.cache
def _function_tree(fn: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
    except (OSError, SyntaxError, IndexError, TypeError, RecursionError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


@functools.cache
def static_counts(fn: Any) -> dict[str, int]:
    """Count loads, stores, products and the like in a kernel's text."""
    counts, tree = dict.fromkeys(_COUNTS, 0), _function_tree(fn)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.For, ast.While)):
            counts["loops"] += 1
        elif isinstance(node, ast.Call):
            name = called_name(node)
            column = "atomics" if name.startswith("atomic") else _COUNTED.get(name)
            if column is not None:
                counts[column] += 1
    return counts


#: What loops' ends may call, of Python and of Triton.
_FUNCTIONS: Final[dict[str, Any]] = {
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "minimum": min,
    "max": max,
    "maximum": max,
}
_evaluate = functools.partial(evaluate, functions=_FUNCTIONS)


def _while_trips(loop: ast.While, names: dict[str, Any]) -> int:
    """Trips of ``while i < n`` that adds to ``i`` (or takes it off)."""
    match loop:
        case ast.While(
            test=ast.Compare(left=ast.Name(id=counter), ops=[compare], comparators=[end])
        ):
            try:
                limit = _evaluate(end, names)
            finally:
                start = names.pop(counter, None)  # within the loop it has no one value
            (added,) = (
                node
                for node in ast.walk(loop)
                if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == counter
            )
            signs = {ast.Add: 1, ast.Sub: -1}
            signed = signs[type(added.op)] * _evaluate(added.value, names)
            if isinstance(compare, (ast.Lt, ast.LtE)) == (signed > 0):
                passes: float = (limit - start) / signed
                inclusive = isinstance(compare, (ast.LtE, ast.GtE))
                return max(0, math.floor(passes) + 1 if inclusive else math.ceil(passes))
    raise LookupError


def _trips(loop: ast.For | ast.While, names: dict[str, Any]) -> float:
    try:
        if isinstance(loop, ast.While):
            return float(_while_trips(loop, names))
        return float(range_trips(loop, names, _FUNCTIONS))
    except NO_VALUE:
        return UNKNOWN_TRIPS


def loop_trips(fn: Any, arguments: dict[str, Any]) -> float:
    """Multiply trip counts down a kernel's nested loops and add those of loops side by side."""
    tree = _function_tree(fn)
    names = {n: v for n, v in fn.__globals__.items() if isinstance(v, (int, float))} | arguments

    def trips(body: list[ast.stmt]) -> float:
        """Count the trips of the loops in ``body``: 0 where there is none."""
        total = 0.0
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                with contextlib.suppress(*NO_VALUE):
                    names[node.targets[0].id] = _evaluate(node.value, names)
            elif isinstance(node, (ast.For, ast.While)):
                total += _trips(node, names) * max(1.0, trips(node.body))
            elif isinstance(node, ast.If):
                total += max(trips(node.body), trips(node.orelse))
            elif isinstance(node, ast.With):
                total += trips(node.body)
        return total

    return 1.0 if tree is None else max(1.0, trips(tree.body))
