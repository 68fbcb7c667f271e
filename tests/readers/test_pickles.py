"""Pickles are read without importing or running anything, within bounds."""

from __future__ import annotations

import collections
import copyreg
import os
import pickle
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
from readers.reading import gpu_mode, read, ulid

from kernel_archive.readers import pickles
from kernel_archive.readers.pickles import plain_pickle

if TYPE_CHECKING:
    from pathlib import Path


class Attack:
    """Runs a command when a common unpickler loads it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


class Point:
    """An object with a dictionary."""

    def __init__(self) -> None:
        self.x = 1
        self.tags = {"a"}


class Slotted:
    """An object with slots."""

    __slots__ = ("y",)

    def __init__(self) -> None:
        self.y = 2


class Trap:
    """Every hook that Python's own unpickler would call; each leaves a mark."""

    called: list[str] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, *_: Any) -> None:
        self.called.append("init")

    def __new__(cls, *_: Any) -> Self:
        cls.called.append("new")
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        self.called.append("setstate")

    def append(self, _: Any) -> None:
        """For APPEND."""
        self.called.append("append")

    extend = append

    def __setitem__(self, _: Any, __: Any) -> None:
        self.called.append("setitem")


def checkpoint(**more: Any) -> dict[str, Any]:
    """A hill-climbing checkpoint as plain data."""
    node = {"program_code": "a = 1", "ancestors": [], "evaluation": gpu_mode(1.5), "ulid": ulid(1), "is_seed": True}
    return {"archive": [node], "visited": {"a = 1"}, "current_step": 3, **more}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol(protocol: int) -> None:
    """Numbers, texts and containers come out as Python's own unpickler gives them, tuples and sets as lists."""
    shared = [1, 2]
    value = {
        "n": [0, 1, -1, 255, 65536, 2**31, -(2**40), 1.5, -0.0, True, False, None],
        "t": ["", "x" * 300, "π🙂", "line\nline"],
        "c": [[], {}, [[[]]], list(range(3000)), {str(i): i for i in range(3000)}],
        "shared": [shared, shared],
    }
    more = {"tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "sets": [{7}, set(), frozenset({8})]}
    plain, names = plain_pickle(pickle.dumps(value | more, protocol=protocol))
    expected = {"tuples": [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]], "sets": [[7], [], [8]]}
    if protocol < 4:  # sets are written as calls of a class
        plain["sets"] = expected["sets"]
    else:
        assert not names
    assert plain == value | expected


def test_numbers_and_texts_that_no_table_holds() -> None:
    """Integers beyond 64 bits become floats, keys that are no texts go, lone surrogates are spelled out."""
    plain, _ = plain_pickle(pickle.dumps({"n": 2**100, 5: 1, (1, 2): 2, "\ud800": "\udfff", "b": b"\xff"}))
    assert plain == {"n": 2.0**100, "\\ud800": "\\udfff", "b": b"\xff"}


def test_objects_are_their_fields() -> None:
    """Objects with dictionaries or slots come out as their fields, wrapped values as the value, and no class is made."""
    plain, names = plain_pickle(pickle.dumps([Point(), Slotted(), collections.Counter()], protocol=4))
    assert plain == [{"x": 1, "tags": ["a"]}, {"y": 2}, {}]
    assert {name for _, name in names} == {"Point", "Slotted", "Counter"}


def test_ulids_become_text() -> None:
    """A ULID's 16 bytes become its 26 characters."""
    raw = bytes(15) + b"\x21"
    data = b"\x80\x04\x8c\x04ulid\x8c\x04ULID\x93)\x81}\x8c\x05bytesC\x10" + raw + b"sb."
    assert plain_pickle(data) == ("0" * 24 + "11", {("ulid", "ULID")})


def test_nothing_is_run(tmp_path: Path) -> None:
    """Trap 12: a pickle that would run a command is read as data, the command is not run, and its name is reported."""
    mark = tmp_path / "ran"
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(pickle.dumps(checkpoint(extra=Attack(mark))))
    before = set(sys.modules)
    result = read("hill-climbing-checkpoint", path)
    assert not mark.exists()
    assert [e.speedup for e in result.evaluations] == [1.5]
    (finding,) = result.findings
    assert (finding.code, finding.severity) == ("pickle-global", "warning")
    assert "system" in (finding.value or "")
    path.write_bytes(b"cthis_module_is_not_there\nboom\n(S'x'\ntR.")
    assert not read("hill-climbing-checkpoint", path).evaluations
    assert not {m for m in set(sys.modules) - before if "boom" in m or "not_there" in m}


_HERE = __name__.encode()
_TRAP = b"\x8c" + bytes([len(_HERE)]) + _HERE + b"\x8c\x04Trap\x93"
_SYSTEM = b"\x8c\x02os\x8c\x06system\x93"


@pytest.mark.parametrize(
    "data",
    {
        "reduce": b"\x80\x04" + _TRAP + b"K\x01\x85R.",
        "newobj": b"\x80\x04" + _TRAP + b")\x81.",
        "newobj_ex": b"\x80\x04" + _TRAP + b")}\x92.",
        "build": b"\x80\x04" + _TRAP + b")\x81}b.",
        "build on the class": b"\x80\x04" + _TRAP + b"}\x8c\x06called]sb.",
        "build on data": b"\x80\x04]}b.",
        "inst": b"\x80\x04(i" + _HERE + b"\nTrap\n.",
        "obj": b"\x80\x04(" + _TRAP + b"o.",
        "global": b"\x80\x04c" + _HERE + b"\nTrap\n)R.",
        "global with dots": b"\x80\x04c" + _HERE + b"\nTrap.append\n)R.",
        "append to an object": b"\x80\x04" + _TRAP + b")\x81K\x01a.",
        "appends to an object": b"\x80\x04" + _TRAP + b")\x81(K\x01e.",
        "setitem of an object": b"\x80\x04" + _TRAP + b")\x81\x8c\x01aK\x01s.",
        "setitems of an object": b"\x80\x04" + _TRAP + b")\x81(\x8c\x01aK\x01u.",
        "additems to an object": b"\x80\x04" + _TRAP + b")\x81(K\x01\x90.",
        "class from texts off the stack": b"\x80\x04K\x01K\x02\x93.",
        "call of a text": b"\x80\x04\x8c\x01x)R.",
        "call of a result": b"\x80\x04" + _TRAP + b")R)R.",
        "ext1": b"\x80\x04\x82\x01.",
        "ext2": b"\x80\x04\x83\x01\x00.",
        "ext4": b"\x80\x04\x84\x01\x00\x00\x00.",
        "persid": b"\x80\x04Px\n.",
        "binpersid": b"\x80\x04K\x01Q.",
        "next buffer": b"\x80\x05\x97.",
        "read-only buffer": b"\x80\x05K\x01\x98.",
        "system": b"\x80\x04" + _SYSTEM + b"\x8c\x04true\x85R.",
    }.items(),
    ids=lambda item: item[0],
)
def test_no_opcode_makes_an_object(data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a pickle makes or changes an object: the result is plain data, or the pickle is refused."""
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    monkeypatch.setitem(copyreg._inverted_registry, 1, (__name__, "Trap"))
    monkeypatch.setitem(copyreg._extension_cache, 1, Trap)
    Trap.called.clear()
    try:
        plain, _ = plain_pickle(data[1])
    except ValueError:
        pass
    else:
        assert type(plain) in (type(None), dict, list, str, int)
    assert not Trap.called
    assert not ran


def _bomb() -> bytes:
    """Two kilobytes that are 2**200 objects when written out."""
    value: Any = []
    for _ in range(200):
        value = [value, value]
    return pickle.dumps({"archive": value})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x04.",
        b"\x80\x04\x95",
        b"\x80\x04]\x94h\xff.",
        b"\x80\x04e.",
        b"\x80\x04(l.",
        b"\x80\x04u.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
        b"\x80\x04X" + struct.pack("<I", 2**31) + b"x.",
        b"\x80\x04j\xff\xff\xff\x7f.",
        b"\x80\x04r\xff\xff\xff\x7f.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
        b"\x80\x02Pnobody\n.",
        b"\x80\x04K\x01K\x02R.",
        b"\x80\x04K\x01}b.",
        b"\x80\x05\x97.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04\x8b" + struct.pack("<I", 5000) + b"\x7f" * 5000 + b".",
        b"\x80\x04I" + b"9" * 5000 + b"\n.",
        b"\x80\x04" + b"]" * 2000 + b"a" * 1999 + b".",
        _bomb(),
    ],
    ids=lambda data: data[:8].hex(),
)
def test_broken_and_hostile_pickles(tmp_path: Path, data: bytes) -> None:
    """What is no checkpoint is one error, at once, within memory."""
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(data)
    begin = time.monotonic()
    result = read("hill-climbing-checkpoint", path)
    assert time.monotonic() - begin < 20
    assert not result.evaluations
    assert [f.severity for f in result.findings] == ["error"]


def test_self_reference_ends(tmp_path: Path) -> None:
    """A list that holds itself is too deep, not endless."""
    value: list[Any] = []
    value.append(value)
    path = tmp_path / "checkpoint.pkl"
    path.write_bytes(pickle.dumps({"archive": value}))
    assert read("hill-climbing-checkpoint", path).codes == ["bad-pickle"]


@pytest.mark.parametrize("kind", ["dictionary", "set", "memo"])
def test_colliding_keys_cost_nothing(kind: str) -> None:
    """Tens of thousands of integers of one hash, as keys, in a set, or as places of the memo, take no quadratic time."""
    colliding = [i * sys.hash_info.modulus for i in range(1, 40_000)]
    if kind == "memo":
        places = b"".join(b"r" + struct.pack("<I", i << 16 & 0xFFFFFFFF) for i in range(65_536))
        data = b"\x80\x04K\x01" + places + b"."
    else:
        numbers = b"".join(b"\x8a\x0c" + n.to_bytes(12, "little") + b"N" * (kind == "dictionary") for n in colliding)
        data = b"\x80\x04" + (b"}(" + numbers + b"u." if kind == "dictionary" else b"\x8f(" + numbers + b"\x90.")
    begin = time.monotonic()
    plain, _ = plain_pickle(data)
    assert time.monotonic() - begin < 2
    assert plain == (
        1 if kind == "memo" else {} if kind == "dictionary" else pytest.approx([float(n) for n in colliding])
    )


def test_shared_arguments_are_not_copied() -> None:
    """A list that a hundred thousand calls refer to is never unpacked."""
    data = b"\x80\x04]\x94(" + b"N" * 100_000 + b"e" + _SYSTEM + b"\x94(" + b"h\x01h\x00R" * 50_000 + b"t."
    begin = time.monotonic()
    assert plain_pickle(data)[0] == [None] * 50_000
    assert time.monotonic() - begin < 5


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opcodes, values and text are bounded."""
    data = pickle.dumps(list(range(1000)))
    monkeypatch.setattr(pickles._Opcodes, "left", 100)
    with pytest.raises(ValueError, match="too many"):
        plain_pickle(data)
    monkeypatch.undo()
    monkeypatch.setattr(pickles, "MAX_VALUES", 100)
    with pytest.raises(ValueError, match="too large"):
        plain_pickle(data)
    monkeypatch.undo()
    monkeypatch.setattr(pickles, "MAX_CHARACTERS", 1000)
    with pytest.raises(ValueError, match="too large"):
        plain_pickle(pickle.dumps(["x" * 600] * 2))
