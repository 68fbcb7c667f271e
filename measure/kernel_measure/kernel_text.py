"""What the text of a Triton kernel says: loads, stores and the like counted, and trips of loops.

Nothing here runs a program: its syntax tree is walked.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import math
import operator
import textwrap
from typing import Any, Final

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


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@functools.cache
def static_counts(fn: Any) -> dict[str, int]:
    """Count loads, stores, products and the like in a kernel's text."""
    counts, tree = dict.fromkeys(_COUNTS, 0), _function_tree(fn)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.For, ast.While)):
            counts["loops"] += 1
        elif isinstance(node, ast.Call):
            name = _called(node)
            column = "atomics" if name.startswith("atomic") else _COUNTED.get(name)
            if column is not None:
                counts[column] += 1
    return counts


_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[dict[str, Any]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}


#: What evaluating raises where there is no value: infinite, no number, huge, or unknown.
_NO_VALUE: Final = (ArithmeticError, LookupError, TypeError, ValueError)


def _evaluate(node: ast.AST, names: dict[str, Any]) -> float:
    """Evaluate an expression of numbers and names; raises ``_NO_VALUE`` where that can't be."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            value = names[name]
            if isinstance(value, (int, float)):
                return value
        case ast.BinOp(left=left, op=op, right=right):
            operate: Any = _OPERATORS[type(op)]
            return float(operate(_evaluate(left, names), _evaluate(right, names)))
        case ast.Call(args=arguments):
            function = _FUNCTIONS[_called(node).removesuffix("imum")]
            return float(function(*(_evaluate(argument, names) for argument in arguments)))
    raise LookupError


def _passes(loop: ast.For | ast.While, names: dict[str, Any]) -> Any:
    """Trips of a loop over a range, or ``while i < n`` that adds to ``i`` (or takes it off)."""
    match loop:
        case ast.For(iter=ast.Call(args=arguments)):
            values = [_evaluate(argument, names) for argument in arguments[:3]]
            start, stop, step = {1: [0, *values, 1], 2: [*values, 1]}.get(len(values), values)
            return (stop - start) / step
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
                passes = (limit - start) / signed
                inclusive = isinstance(compare, (ast.LtE, ast.GtE))
                return math.floor(passes) + 1 if inclusive else passes
    raise LookupError


def _trips(loop: ast.For | ast.While, names: dict[str, Any]) -> float:
    try:
        return float(max(0, math.ceil(_passes(loop, names))))
    except _NO_VALUE:
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
                with contextlib.suppress(*_NO_VALUE):
                    names[node.targets[0].id] = _evaluate(node.value, names)
            elif isinstance(node, (ast.For, ast.While)):
                total += _trips(node, names) * max(1.0, trips(node.body))
            elif isinstance(node, ast.If):
                total += max(trips(node.body), trips(node.orelse))
            elif isinstance(node, ast.With):
                total += trips(node.body)
        return total

    return 1.0 if tree is None else max(1.0, trips(tree.body))
