"""Evaluate arithmetic in a syntax tree: expressions of numbers and names, and trips of loops.

Programs are untrusted: their trees are read, and nothing runs.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

#: What evaluating raises where there is no value: infinite, no number, huge, or unknown.
NO_VALUE: Final = (ArithmeticError, LookupError, TypeError, ValueError)
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def called_name(call: ast.Call) -> str:
    """Name the function or method that is called; empty where an expression is."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def evaluate(
    node: ast.AST,
    names: Mapping[str, Any],
    functions: Mapping[str, Callable[..., float]] | None = None,
) -> float:
    """Evaluate an expression; ``names`` and ``functions`` are those that it may use.

    Raises:
        NO_VALUE: it has no value, or none that is known.

    >>> evaluate(ast.parse("2 * n - 1", mode="eval").body, {"n": 3})
    5.0
    """
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            known = names[name]
            if isinstance(known, (int, float)):
                return known
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand, names, functions)
        case ast.BinOp(left=left, op=op, right=right):
            sides = evaluate(left, names, functions), evaluate(right, names, functions)
            return float(_OPERATORS[type(op)](*sides))
        case ast.Call(args=arguments) if functions:
            function = functions[called_name(node)]
            return float(function(*(evaluate(each, names, functions) for each in arguments)))
    raise LookupError


def range_trips(
    loop: ast.For | ast.While,
    names: Mapping[str, Any],
    functions: Mapping[str, Callable[..., float]] | None = None,
) -> int:
    """Count the trips of a loop over a range, of Python or of Triton.

    Raises:
        NO_VALUE: it is over something else, or an end is not known or not there.
    """
    match loop:
        case ast.For(iter=ast.Call(args=arguments)):
            values = [evaluate(argument, names, functions) for argument in arguments[:3]]
            start, stop, step = {1: [0, *values, 1], 2: [*values, 1]}.get(len(values), values)
            return max(0, math.ceil((stop - start) / step))
    raise LookupError
