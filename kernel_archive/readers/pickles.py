"""Python pickles as plain data: nothing that a pickle names is imported, called or made.

Python's own unpickler does what the opcodes of a pickle say. Here it knows only the opcodes that Python writes for data and
objects; in the place of every class stands a stub, and an object of it is an inert note of how it would have been made. Sets
come out as lists and only texts are keys, so that no values of a stranger are hashed. Work and size are bounded.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kernel_archive.readers.values import safe_text, storable

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every pickle of protocol 2 or later begins so.
PICKLE_MAGIC: Final = b"\x80"
#: Opcodes carried out; each makes one object at most.
MAX_OPCODES: Final = 5_000_000
#: Values and characters of text when shared parts are written out: a small pickle can name a huge tree.
MAX_VALUES: Final = 2_000_000
MAX_CHARACTERS: Final = 256 << 20
_MAX_DEPTH: Final = 100
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: What Python writes, in protocols 2 to 5, for plain data, and for objects with their fields.
_OPCODES: Final = (
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST",
    "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "GLOBAL", "STACK_GLOBAL",
)  # fmt: skip


class _Stub(msgspec.Struct, frozen=True):
    """Stands for a class or function that a pickle names."""

    module: str
    name: str


class _Inert(msgspec.Struct, eq=False):
    """Stands for an object: what it would be of, what it would be made with, and the state it would get."""

    stub: _Stub
    arguments: Any = None
    state: Any = None


class _Opcodes(dict[int, Any]):
    """The opcodes that are known, each a function of the unpickler; looking one up counts it."""

    left = MAX_OPCODES

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("too many opcodes")
        found = self.get(code)
        if found is None:
            raise ValueError(f"the opcode {bytes([code])!r} has no place in a checkpoint")
        return found


class _Unpickler(pickle._Unpickler):  # noqa: SLF001 - the one in Python: that in C can't be told what to leave out
    """Makes lists, dictionaries, tuples, texts, bytes and numbers, and notes of everything else."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.stubs: set[_Stub] = set()
        own = {
            "REDUCE": _made, "NEWOBJ": _made, "NEWOBJ_EX": _made_ex, "BUILD": _build, "APPEND": _append,
            "APPENDS": _appends, "SETITEM": _set_item, "SETITEMS": _set_items, "EMPTY_SET": _empty_set,
            "ADDITEMS": _appends, "FROZENSET": _frozen_set,
        }  # fmt: skip
        codes = {name: getattr(pickle, name)[0] for name in (*_OPCODES, *own)}
        known = {codes[name]: own.get(name) or self.dispatch[codes[name]] for name in codes}
        self.dispatch = _Opcodes(known)  # type: ignore[misc] # one for each pickle: it counts

    def find_class(self, module: str, name: str) -> _Stub:
        """A stub: nothing is imported."""
        stub = _Stub(safe_text(module), safe_text(name))
        self.stubs.add(stub)
        return stub

    def top(self, kind: type) -> Any:
        """The top of the stack, which must be of a kind."""
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"{type(self.stack[-1]).__name__} where {kind.__name__} should be")
        return self.stack[-1]


def _made(self: _Unpickler) -> None:
    arguments = self.stack.pop()
    self.stack[-1] = _Inert(self.top(_Stub), arguments)


def _made_ex(self: _Unpickler) -> None:
    self.stack.pop()  # keywords
    _made(self)


def _build(self: _Unpickler) -> None:
    state = self.stack.pop()
    self.top(_Inert).state = state


def _append(self: _Unpickler) -> None:
    value = self.stack.pop()
    self.top(list).append(value)


def _appends(self: _Unpickler) -> None:
    values = self.pop_mark()
    self.top(list).extend(values)


def _set_item(self: _Unpickler) -> None:
    value, key = self.stack.pop(), self.stack.pop()
    if isinstance(key, str):
        self.top(dict)[key] = value


def _set_items(self: _Unpickler) -> None:
    items = self.pop_mark()
    pairs = zip(items[::2], items[1::2], strict=True)
    self.top(dict).update({key: value for key, value in pairs if isinstance(key, str)})


def _empty_set(self: _Unpickler) -> None:
    self.stack.append([])


def _frozen_set(self: _Unpickler) -> None:
    values = self.pop_mark()  # brings the stack below the mark back
    self.stack.append(values)


class _Plain:
    """Writes an inert tree out as JSON-like data."""

    def __init__(self) -> None:
        self.values, self.characters = MAX_VALUES, MAX_CHARACTERS

    def of(self, value: Any, depth: int) -> Any:
        self.values -= 1
        if isinstance(value, str | bytes):
            self.characters -= len(value)
        if self.values < 0 or self.characters < 0 or depth > _MAX_DEPTH:
            raise ValueError("too large or too deep once written out")
        if isinstance(value, list | tuple):
            return [self.of(v, depth + 1) for v in value]
        if isinstance(value, dict):
            return {safe_text(k): self.of(v, depth + 1) for k, v in value.items()}
        if isinstance(value, _Inert):
            return self.of(self.content(value), depth + 1)
        return None if isinstance(value, _Stub) else storable(value)

    def content(self, value: _Inert) -> Any:
        """What is kept of an object: its fields; of an enumeration's member or a wrapped value, that value."""
        state = value.state
        if isinstance(state, tuple) and len(state) == 2:  # dictionary and slots
            state = {k: v for part in state if isinstance(part, dict) for k, v in part.items()}
        if isinstance(state, dict):
            inner = state.get("__dict__")
            fields = inner if isinstance(inner, dict) else state
            raw = fields.get("bytes")
            if value.stub.name == "ULID" and isinstance(raw, bytes) and len(raw) == 16:
                number = int.from_bytes(raw, "big")
                return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))
            return fields
        single = isinstance(value.arguments, tuple) and len(value.arguments) == 1
        return value.arguments[0] if single else None


def plain_pickle(data: bytes) -> tuple[Any, frozenset[tuple[str, str]]]:
    """What a pickle holds as plain data, and module and name of everything that it would have imported.

    Objects are their fields, sets are lists, ULIDs are texts; what is neither text, number, bytes nor one of these is
    ``None``.

    Raises:
        ValueError: it is no pickle, is broken, names what has no place in data, or goes over a limit.
    """
    unpickler = _Unpickler(data)
    try:
        tree = unpickler.load()
    except (pickle.UnpicklingError, struct.error, EOFError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"broken ({type(error).__name__})") from error
    except (OverflowError, MemoryError) as error:
        raise ValueError(f"over a limit ({type(error).__name__})") from error
    return _Plain().of(tree, 0), frozenset((stub.module, stub.name) for stub in unpickler.stubs)
