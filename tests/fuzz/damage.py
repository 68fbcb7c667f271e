"""Damage of bytes, and compression that hides it."""

from __future__ import annotations

import random

import pyarrow as pa

#: Bytes that mean something to a reader of JSON, or break one.
JSON_BYTES = b'\0\xff"{}[],:\n\\09eE-'


def zstd(data: bytes) -> bytes:
    """Compressed as one frame."""
    return pa.Codec("zstd").compress(data, asbytes=True)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """A bit flipped, a character of JSON put in its place, or bytes cut off, taken out, replaced or
    doubled.
    """
    if not data:
        return data
    at, what = rng.randrange(len(data)), rng.randrange(6)
    if what == 0:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if what == 1:
        return data[:at] + bytes([rng.choice(JSON_BYTES)]) + data[at + 1 :]
    if what == 2:
        return data[:at]
    until = min(len(data), at + rng.randint(1, 40))
    middle = (b"", rng.randbytes(until - at), data[at:until] * 2)[what - 3]
    return data[:at] + middle + data[until:]
