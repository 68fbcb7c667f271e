"""Hostile files in bounded memory and time: streams and lines."""

import gzip
import os
import tracemalloc

import pyarrow as pa
import pytest

from kernel_archive.errors import Finding
from kernel_archive.untrusted import (
    MAX_LINE_BYTES,
    Lines,
    UntrustedFileError,
    decompressed_limit,
    read_whole,
    regular_file,
)


def read(path, max_bytes=1 << 30, max_lines=10**6):
    """Lines as text, findings as their code."""
    source = Lines(path, max_bytes=max_bytes, max_lines=max_lines)
    items = [item.code if isinstance(item, Finding) else item[1].decode() for item in source]
    return items, source


def zstd(data):
    """Compressed as one frame."""
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_compression_is_told_by_the_content(tmp_path, pack):
    """Whatever the file is called; the digest is that of the text."""
    path = tmp_path / "forecasts.txt"
    path.write_bytes(pack(b"one\n\n  \r\ntwo\r\nthree"))
    lines, source = read(path)
    assert lines == ["one", "two", "three"]
    assert source.n_lines == 5
    assert source.ended_mid_line
    plain = tmp_path / "plain"
    plain.write_bytes(b"one\n\n  \r\ntwo\r\nthree")
    assert source.digest == read(plain)[1].digest


def test_utf8_with_a_mark_is_read_and_lines_are_counted(tmp_path):
    """A finding names the line that an editor shows, empty ones included."""
    path = tmp_path / "f"
    path.write_bytes("\ufeff\n\nx\n".encode())
    assert list(Lines(path, max_bytes=100, max_lines=100)) == [(3, b"x")]


def test_a_long_line_is_skipped_without_being_held(tmp_path):
    """Forty megabytes without a line end: one finding, the line after it is read, little memory."""
    path = tmp_path / "f.zst"
    path.write_bytes(zstd(b"a\n" + b"x" * (40 << 20) + b"\nb\n"))
    tracemalloc.start()
    lines, source = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == ["a", "line-too-long", "b"]
    assert source.n_lines == 3
    assert peak < 12 << 20


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_bomb_stops_at_the_bound(tmp_path, pack):
    """Eighty megabytes out of a few kilobytes, or many short lines: reading ends soon after."""
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"0" * (80 << 20)))
    lines, source = read(path, max_bytes=8 << 20)
    assert lines == ["line-too-long", "file-too-large"]
    assert source.n_bytes <= (8 << 20) + 2 * MAX_LINE_BYTES + 2
    path.write_bytes(pack(b"x\n" * 1000))
    assert read(path, max_lines=10)[0] == ["x"] * 11 + ["file-too-large"]


TEXT = "".join(f'{{"n": {n}, "t": "{n * 7919 % 1000}"}}\n' for n in range(60)).encode()
#: A deflate block of a type that does not exist.
CORRUPT = b"\x1f\x8b\x08\0\0\0\0\0\0\3\xff\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "data", [gzip.compress(TEXT)[:-20], zstd(TEXT)[:-20], zstd(TEXT) + b"more", CORRUPT]
)
def test_a_damaged_stream_ends_with_a_finding(tmp_path, data):
    """Cut off, with junk behind it, or corrupt: what came before it is only salvage."""
    path = tmp_path / "f"
    path.write_bytes(data)
    lines, source = read(path)
    assert lines[-1] == "unreadable"
    assert not source.at_end
    with pytest.raises(UntrustedFileError, match="reading stopped here"):
        read_whole(path, max_bytes=1 << 20)


def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path):
    """A missing file, a directory, a pipe that would block, a device, a name with a NUL."""
    os.mkfifo(tmp_path / "pipe")
    cases = {"no such file": tmp_path / "x", "directory": tmp_path, "pipe": tmp_path / "pipe"}
    for message, path in (*cases.items(), ("device", "/dev/zero"), ("cannot", "a\0b")):
        with pytest.raises(UntrustedFileError, match=message):
            regular_file(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-be", "utf-16"])
def test_other_encodings_are_named_with_and_without_a_mark(tmp_path, encoding):
    """A zero byte among the first four is no UTF-8 text."""
    path = tmp_path / "f"
    path.write_bytes('{"row_id": "a"}\n'.encode(encoding))
    assert read(path)[0] == ["bad-utf8"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_small_compressed_files_may_not_come_to_much(tmp_path, pack):
    """What a compressed file may come to grows with its size; more is an error."""
    path = tmp_path / "f"
    path.write_bytes(pack(b"x" * (40 << 20)))
    allowed = decompressed_limit(path, 1 << 30)
    assert 32 << 20 < allowed < 40 << 20
    with pytest.raises(UntrustedFileError, match="more than"):
        read_whole(path, max_bytes=allowed)
    path.write_bytes(b"plain")
    assert decompressed_limit(path, 1 << 30) == 1 << 30
    assert read_whole(path, max_bytes=5) == b"plain"
    with pytest.raises(UntrustedFileError, match="cannot be read"):
        read_whole(tmp_path / "gone", max_bytes=5)


def test_flipped_bits_of_gzip_never_go_unnoticed(tmp_path):
    """Only a file that was read as it was written counts as read to its end."""
    path, text = tmp_path / "f", TEXT[:400]
    packed, rows = gzip.compress(text), text.decode().splitlines()
    for bit in range(16, 8 * len(packed), 3):
        data = bytearray(packed)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        lines, source = read(path)
        assert source.at_end == (lines == rows)
