"""What one block of a Triton kernel does: a walk over its syntax tree that counts.

Every name stands for the axes of its tile (each ``tl.arange`` is one) and those along which
neighbours are next to each other in memory; loops multiply what is in them. Sizes are those that
literals of the program state. Programs are untrusted: they are parsed, never run, and a walk has
limits.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kernel_archive.arithmetic import NO_VALUE, called_name, evaluate, range_trips
from kernel_archive.baselines.features import MAX_CHARACTERS
from kernel_archive.ids import by_digest

#: Size of an axis that no literal states.
UNKNOWN_SIZE: Final = 64.0
#: Trips of a loop that no literal states: the dry run's count decides between them.
UNKNOWN_TRIPS: Final = (1.0, 4.0, 16.0, 64.0, 256.0)
#: Statements and expressions of one kernel that are looked at; then it counts as unknown.
MAX_STEPS: Final = 20_000
#: Of a whole program; kernels after that are not looked at.
MAX_PROGRAM_STEPS: Final = 200_000
_MAX_DEPTH: Final = 4  # of functions in functions, and of loops of unknown trips
_MAX_AXES: Final = 8
_LARGEST: Final = 1e9
_REDUCTIONS: Final = frozenset({"sum", "max", "min", "reduce", "argmax", "argmin"})
_TRANSCENDENTALS: Final = frozenset(
    {"exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "div_rn"}
)


Axes = frozenset[tuple[int, int]]  # each by the line and column of its arange


class Tile(NamedTuple):
    """The axes that a value lies over, and those along which it is contiguous."""

    axes: Axes = frozenset()
    contiguous: Axes = frozenset()


class BlockWork(NamedTuple):
    """Counts of what one block does."""

    elements: float = 0.0  # loaded or stored
    sectors: float = 0.0  # bytes moved for that, 32 at least for every contiguous run
    waits: float = 0.0  # loads one after the other; a store or dot counts less
    flops: float = 0.0  # of dots
    reduced: float = 0.0  # elements
    transcendentals: float = 0.0  # elements
    atomics: float = 0.0  # elements
    scalars: float = 0.0  # loads and stores of a single element


def _number(node: ast.expr, sizes: Mapping[str, float]) -> float | None:
    """Evaluate an expression; ``None`` where it has no value, and for the huge."""
    try:
        value = float(evaluate(node, sizes))
    except NO_VALUE:
        return None
    return value if abs(value) <= _LARGEST else None


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pair the targets of an assignment with their values, those of tuples one by one."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _stated(
    nodes: list[ast.AST], functions: Mapping[str, ast.FunctionDef]
) -> Iterator[tuple[str, ast.expr]]:
    """List the names that a program gives values: variables, arguments, keys."""
    for node in nodes:
        for target, stated in _assigned(node):
            if isinstance(target, ast.Name):
                yield target.id, stated
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        elif isinstance(node, ast.Call):
            name = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            function = functions.get(getattr(name, "id", ""))
            if function is not None:
                names = [argument.arg for argument in function.args.args]
                yield from zip(names, node.args, strict=False)


@dataclass
class _Walk:
    """A walk through one kernel and the functions that it calls."""

    functions: Mapping[str, ast.FunctionDef]
    stated_sizes: Mapping[str, float]
    within: list[str]
    #: (field of :class:`BlockWork`, in how many loops of unknown trips) -> count.
    counts: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    sizes: dict[tuple[int, int], float] = field(default_factory=dict)
    names: dict[str, Tile] = field(default_factory=dict)
    times: float = 1.0  # how often what is looked at happens, in loops of unknown trips once
    unknown: int = 0  # how many of these loops it is in
    returned: Tile = field(default_factory=Tile)
    steps: int = 0

    def count(self, name: str, amount: float) -> None:
        """Count what happens here."""
        self.counts[name, self.unknown] += self.times * amount

    def block_work(self, trips: float) -> BlockWork:
        """Return the counts, with this for the trips that are unknown."""
        sums: defaultdict[str, float] = defaultdict(float)
        for (name, unknown), amount in self.counts.items():
            sums[name] += amount * trips**unknown
        return BlockWork(**sums)

    def size_of(self, axes: Axes) -> float:
        """Multiply the sizes of axes."""
        return min(_LARGEST, math.prod(self.sizes[axis] for axis in axes))

    def step(self) -> None:
        """Count what is looked at, and refuse too long a kernel."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ValueError("too long a kernel")

    def walk_statements(self, statements: list[ast.stmt]) -> None:
        """Walk through statements."""
        for node in statements:
            self.step()
            if isinstance(node, (ast.For, ast.While)):
                self.loop(node)
            elif isinstance(node, ast.If):
                share = 0.5 if node.orelse else 1.0  # of two branches each counts half
                self.tile_of(node.test)
                self.times *= share
                self.walk_statements(node.body)
                self.walk_statements(node.orelse)
                self.times /= share
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target, value in _assigned(node):
                    self.bind(target, self.tile_of(value))
            elif isinstance(node, ast.AugAssign):
                tiles = [self.tile_of(node.target), self.tile_of(node.value)]
                self.bind(node.target, _union(tiles))
            elif isinstance(node, ast.Return) and node.value is not None:
                self.returned = self.tile_of(node.value)
            elif isinstance(node, ast.Expr):
                self.tile_of(node.value)
            elif isinstance(node, ast.With):
                self.walk_statements(node.body)

    def loop(self, node: ast.For | ast.While) -> None:
        """Walk through the body of a loop, which counts as often as it runs."""
        times, unknown = self.times, self.unknown
        try:
            trips = range_trips(node, self.stated_sizes)
            self.times = min(1e15, times * max(1, trips))  # products of it stay finite
        except NO_VALUE:
            self.unknown = min(_MAX_DEPTH, unknown + 1)
        self.walk_statements(node.body)
        self.times, self.unknown = times, unknown

    def bind(self, target: ast.expr, tile: Tile) -> None:
        """Give one name, or each of several, a tile."""
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Name):
                self.names[each.id] = tile

    def tile_of(self, node: ast.expr) -> Tile:
        """Find the tile of an expression, and count what it does."""
        self.step()
        if isinstance(node, ast.Name):
            return self.names.get(node.id, Tile())
        if isinstance(node, ast.Subscript):
            return self.tile_of(node.value)
        if isinstance(node, ast.Call):
            return self.call(node)
        parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        union = _union([self.tile_of(each) for each in parts])
        spreads = isinstance(node, ast.BinOp) and not isinstance(
            node.op, (ast.Add, ast.Sub, ast.Mod)
        )
        return Tile(union.axes) if spreads else union

    def call(self, node: ast.Call) -> Tile:
        """Count what a call does."""
        name = called_name(node)
        if name == "arange":
            size = _number(node.args[-1], self.stated_sizes) if node.args else None
            axis = (node.lineno, node.col_offset)
            self.sizes[axis] = max(1.0, size or UNKNOWN_SIZE)
            return Tile(frozenset([axis]), frozenset([axis]))
        method = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        tiles = [self.tile_of(e) for e in [*node.args, *(k.value for k in node.keywords)]]
        union = _union([*tiles, *map(self.tile_of, method)])
        size = self.size_of(union.axes)
        if tiles and (name in ("load", "store") or name.startswith("atomic")):
            return self.access(name, tiles[0])
        if name in ("dot", "dot_scaled") and len(tiles) > 1:
            left, right = (max(256.0, self.size_of(t.axes)) for t in tiles[:2])  # 16 x 16 at least
            self.count("flops", 2 * (left * right) ** 0.75)  # m n k of square tiles
            self.count("waits", 0.5)
            return Tile((tiles[0].axes ^ tiles[1].axes) or union.axes)
        if name in _REDUCTIONS:
            self.count("reduced", size)
            return Tile(frozenset(sorted(union.axes)[1:]))
        if name in _TRANSCENDENTALS:
            self.count("transcendentals", size)
        function = self.functions.get(getattr(node.func, "id", ""))
        if function is None or name in self.within or len(self.within) > _MAX_DEPTH:
            return union
        outer, names = self.names, [argument.arg for argument in function.args.args]
        self.names, self.returned = dict(zip(names, tiles, strict=False)), union
        self.within.append(name)
        self.walk_statements(function.body)
        self.within.pop()
        self.names = outer
        return self.returned

    def access(self, name: str, pointer: Tile) -> Tile:
        """Count a load, a store or an atomic."""
        size, run = self.size_of(pointer.axes), self.size_of(pointer.contiguous & pointer.axes)
        self.count("elements", size)
        self.count("sectors", size / run * max(32.0, 4.0 * run))  # of 4 bytes an element
        self.count("waits", 0.2 if name == "store" else 1.0)
        self.count("scalars", size == 1.0)
        self.count("atomics", size * name.startswith("atomic"))
        return Tile(pointer.axes)


def _union(tiles: list[Tile]) -> Tile:
    axes = Axes(sorted(Axes().union(*(tile.axes for tile in tiles)))[:_MAX_AXES])
    return Tile(axes, axes & Axes().union(*(tile.contiguous for tile in tiles)))


def _defaults(function: ast.FunctionDef) -> dict[str, float]:
    """List the sizes that a kernel's signature states, for arguments that no call states."""
    arguments = function.args
    places = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    stated = [*places, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    values = {a.arg: _number(node, {}) for a, node in stated if node is not None}
    return {name: value for name, value in values.items() if value and value > 0}


@by_digest
def kernel_work(code: str) -> dict[str, tuple[BlockWork, ...]]:
    r"""Count what one block of each of a program's kernels does, for each of :data:`UNKNOWN_TRIPS`.

    Kernels that are not understood are absent.

    >>> code = "@triton.jit\ndef k(x):\n  for i in range(4):\n    tl.load(x + tl.arange(0, 32))"
    >>> [work.elements for work in kernel_work(code)["k"]]
    [128.0, 128.0, 128.0, 128.0, 128.0]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(code[:MAX_CHARACTERS])))
        functions = {
            node.name: node
            for node in nodes
            if isinstance(node, ast.FunctionDef)
            and any("jit" in ast.unparse(each) for each in node.decorator_list)
        }
        sizes: dict[str, float] = {}
        for name, node in [*_stated(nodes, functions)] * 2:  # some name others that come later
            value = _number(node, sizes)
            if value and value > 0:
                sizes.setdefault(name, value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    works, steps = {}, 0
    for name, function in functions.items():
        walk = _Walk(functions, _defaults(function) | sizes, [name])
        if steps > MAX_PROGRAM_STEPS:
            break
        try:
            walk.walk_statements(function.body)
        except (ValueError, RecursionError):
            continue
        finally:
            steps += walk.steps
        works[name] = tuple(map(walk.block_work, UNKNOWN_TRIPS))
    return works
