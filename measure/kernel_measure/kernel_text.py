"""What the text of a Triton kernel says: loads, stores and the like counted, and trips of loops.

Nothing here runs a program: its syntax tree is walked.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
import textwrap
from typing import Any, Final

#: Trips of a loop whose bounds can't be evaluated.
UNKNOWN_TRIPS: Final = 16.0
_REDUCTIONS: Final = ("sum", "max", "min", "reduce", "argmax", "argmin", "cumsum")
#: Names of calls in a kernel -> the column that counts them.
_COUNTED: Final = {
    "load": "loads",
    "store": "stores",
    **dict.fromkeys(("dot", "dot_scaled"), "dots"),
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


def _evaluate(node: ast.AST, names: dict[str, Any]) -> float | None:
    """Evaluate an expression of numbers and names; ``None`` where that is not possible."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
        return value if isinstance(value, (int, float)) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        function: Any = _OPERATORS[type(node.op)]
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and _called(node).removesuffix("imum") in _FUNCTIONS:
        function, parts = _FUNCTIONS[_called(node).removesuffix("imum")], node.args
    else:
        return None
    values = [_evaluate(part, names) for part in parts]
    if None in values or not values:
        return None
    try:
        return float(function(*values))
    except (ArithmeticError, TypeError, ValueError):
        return None


def _range_trips(call: ast.AST, names: dict[str, Any]) -> float:
    if not isinstance(call, ast.Call):
        return UNKNOWN_TRIPS
    values = [_evaluate(argument, names) for argument in call.args]
    if not values:
        return UNKNOWN_TRIPS
    start, stop, step = {1: [0, *values, 1], 2: [*values, 1]}.get(len(values), values[:3])
    if start is None or stop is None or not step:
        return UNKNOWN_TRIPS
    try:
        return max(0.0, math.ceil((stop - start) / step))
    except (ArithmeticError, ValueError):  # infinite, no number, huge
        return UNKNOWN_TRIPS


def _while_trips(loop: ast.While, names: dict[str, Any]) -> float:
    """Count the trips of ``while i < n`` whose body adds a number to ``i`` (or takes it off)."""
    test = loop.test
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name):
        return UNKNOWN_TRIPS
    if len(test.ops) > 1:
        return UNKNOWN_TRIPS
    counter, limit = test.left.id, _evaluate(test.comparators[0], names)
    start = names.pop(counter, None)  # within the loop it has no one value
    steps = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == counter
    ]
    counts = len(steps) == 1 and isinstance(steps[0].op, (ast.Add, ast.Sub))
    step = _evaluate(steps[0].value, names) if counts else None
    if limit is None or not isinstance(start, (int, float)) or not step:
        return UNKNOWN_TRIPS
    signed = step if isinstance(steps[0].op, ast.Add) else -step
    if isinstance(test.ops[0], (ast.Lt, ast.LtE)) != (signed > 0):
        return UNKNOWN_TRIPS
    inclusive = isinstance(test.ops[0], (ast.LtE, ast.GtE))
    try:
        passes = (limit - start) / signed
        return max(0.0, math.floor(passes) + 1 if inclusive else math.ceil(passes))
    except (ArithmeticError, ValueError):  # infinite, no number, huge
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
                value = _evaluate(node.value, names)
                if value is not None:
                    names[node.targets[0].id] = value
            elif isinstance(node, ast.For):
                total += _range_trips(node.iter, names) * max(1.0, trips(node.body))
            elif isinstance(node, ast.While):
                total += _while_trips(node, names) * max(1.0, trips(node.body))
            elif isinstance(node, ast.If):
                total += max(trips(node.body), trips(node.orelse))
            elif isinstance(node, ast.With):
                total += trips(node.body)
        return total

    return 1.0 if tree is None else max(1.0, trips(tree.body))
