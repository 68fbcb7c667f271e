"""Hostile files in bounded memory and time: streams and lines."""

import gzip
import os
import tracemalloc

import pyarrow as pa
import pytest

from kernel_archive.errors import Finding
from kernel_archive.scoring import Target
from kernel_archive.untrusted import (
    MAX_LINE_BYTES,
    Lines,
    UntrustedFileError,
    allowance,
    lacks_checksum,
    open_bounded,
    read_whole,
    regular_file,
)

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


@pytest.fixture
def target():
    """Two rows."""
    return Target.from_arrays(row_ids=["a1b2c3d4", "b1b2c3d4"], tasks=["t", "t"], speedups=[0.5, 2])


def read(path, max_bytes=1 << 30, max_lines=10**6):
    """Lines as text, findings as their code."""
    source = Lines(path, max_bytes=max_bytes, max_lines=max_lines)
    return [item.code if isinstance(item, Finding) else item[1].decode(errors="replace") for item in source], source


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
    assert source.lines == 5
    assert source.ended_mid_line
    plain = tmp_path / "plain"
    plain.write_bytes(b"one\n\n  \r\ntwo\r\nthree")
    assert source.digest == read(plain)[1].digest


def test_line_numbers_count_empty_lines(tmp_path):
    """A finding names the line that an editor shows."""
    path = tmp_path / "f"
    path.write_bytes(b"\n\nx\n")
    assert list(Lines(path, max_bytes=100, max_lines=100)) == [(3, b"x")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    """UTF-8 with the mark is read, UTF-16 is named."""
    path = tmp_path / "f"
    path.write_bytes("\ufeffone\n".encode())
    assert read(path)[0] == ["one"]
    path.write_bytes("one\n".encode("utf-16"))
    assert read(path)[0] == ["bad-utf8"]


def test_a_long_line_is_skipped_without_being_held(tmp_path):
    """Forty megabytes without a line end: one finding, the line after it is read, little memory."""
    path = tmp_path / "f.zst"
    path.write_bytes(zstd(b"a\n" + b"x" * (40 << 20) + b"\nb\n"))
    tracemalloc.start()
    lines, source = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == ["a", "line-too-long", "b"]
    assert source.lines == 3
    assert peak < 12 << 20


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_bomb_stops_at_the_bound(tmp_path, pack):
    """Eighty megabytes out of a few kilobytes: reading ends soon after the bound."""
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"0" * (80 << 20)))
    lines, source = read(path, max_bytes=8 << 20)
    assert lines == ["line-too-long", "file-too-large"]
    assert source.bytes <= (8 << 20) + 2 * MAX_LINE_BYTES + 2


def test_more_lines_than_forecasts_could_be_stop_the_reading(tmp_path):
    """A file of short lines is bounded, too."""
    path = tmp_path / "f"
    path.write_bytes(b"x\n" * 1000)
    lines, source = read(path, max_lines=10)
    assert lines == ["x"] * 11 + ["file-too-large"]
    assert source.lines == 11


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_file_that_breaks_off_keeps_what_it_had(tmp_path, pack):
    """A truncated stream ends with a finding that says where."""
    whole = pack(os.urandom(300_000).hex().encode())
    path = tmp_path / "f"
    path.write_bytes(whole[: len(whole) // 2])
    assert read(path)[0][-1] == "unreadable"


def test_junk_after_the_stream_is_a_finding(tmp_path):
    """Nothing after the compressed text is silently dropped."""
    path = tmp_path / "f"
    path.write_bytes(zstd(b"a\n") + b"more")
    assert read(path)[0][-1] == "unreadable"


def test_what_is_no_regular_file_is_refused_without_opening_it(tmp_path):
    """A missing file, a directory, a pipe that would block, a device, a name with a NUL."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cases = {
        "no such file": tmp_path / "x",
        "directory": tmp_path,
        "pipe": pipe,
        "device": "/dev/zero",
        "cannot": "a\0b",
    }
    for message, path in cases.items():
        with pytest.raises(UntrustedFileError, match=message):
            regular_file(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    """The reason of the system is in the message."""
    path = tmp_path / "f"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(UntrustedFileError, match="Permission denied"):
        regular_file(path)


#: A deflate block of a type that does not exist.
CORRUPT = b"\x1f\x8b\x08\0\0\0\0\0\0\3\xff\xff\xff\xff\xff"


def test_a_corrupt_deflate_stream_is_a_finding(tmp_path):
    """Zlib has an error of its own, which is no OSError."""
    path = tmp_path / "x.gz"
    path.write_bytes(CORRUPT)
    assert read(path)[0] == ["unreadable"]
    with pytest.raises(UntrustedFileError, match="invalid"), open_bounded(path, max_bytes=100) as stream:
        stream.read()


def test_a_flipped_bit_is_noticed_where_the_stream_ends(tmp_path):
    """Lines before it are salvage; the checksum says that they are no more than that."""
    data = bytearray(gzip.compress(b"".join(b"%d\n" % i for i in range(50_000))))
    data[len(data) // 2] ^= 16
    path = tmp_path / "f"
    path.write_bytes(data)
    assert read(path)[0][-1] == "unreadable"


def test_a_bounded_stream_ends_with_an_error(tmp_path):
    """A hundred bytes pass, one more does not."""
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(bytes(200)))
    with open_bounded(path, max_bytes=200) as stream:
        assert len(stream.read()) == 200
    with pytest.raises(UntrustedFileError, match="uncompressed") as raised, open_bounded(path, max_bytes=199) as stream:
        stream.read()
    assert raised.value.finding("f").code == "file-too-large"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16"])
def test_other_encodings_are_named_with_and_without_a_mark(tmp_path, encoding):
    """A zero byte among the first four is no UTF-8 text."""
    path = tmp_path / "f"
    path.write_bytes('{"row_id": "a"}\n'.encode(encoding))
    assert read(path)[0] == ["bad-utf8"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_small_compressed_files_may_not_come_to_much(tmp_path, pack):
    """What a compressed file may come to grows with its size; read whole, one that comes to more is an error."""
    path = tmp_path / "f"
    path.write_bytes(pack(b"x" * (40 << 20)))
    allowed = allowance(path, 1 << 30)
    assert 32 << 20 < allowed < 40 << 20
    with pytest.raises(UntrustedFileError, match="more than"):
        read_whole(path, max_bytes=allowed)
    path.write_bytes(b"plain")
    assert allowance(path, 1 << 30) == 1 << 30
    assert read_whole(path, max_bytes=5) == b"plain"
    with pytest.raises(UntrustedFileError, match="cannot be read"):
        read_whole(tmp_path / "gone", max_bytes=5)


def test_flipped_bits_of_gzip_never_go_unnoticed(tmp_path):
    """Whatever bit behind its magic is flipped: only a file that was read to its end as it was written counts as such."""
    path = tmp_path / "f"
    rows = [f'{{"n": {n}, "t": "{n * 7919 % 1000}"}}' for n in range(60)]
    packed = gzip.compress("\n".join(rows).encode())
    for bit in range(16, 8 * len(packed), 3):
        data = bytearray(packed)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        lines, source = read(path)
        assert source.at_end == (lines == rows)


@pytest.mark.parametrize(
    ("start", "lacks"),
    [
        (zstd(b"text"), True),
        (bytes.fromhex("28b52ffd24"), False),  # as the command-line tool writes it
        (bytes.fromhex("28b52ffd20"), True),
        (bytes.fromhex("28b52ffd"), False),  # not even a frame: reading it fails anyway
        (gzip.compress(b"text", mtime=0), False),
        (b"text", False),
        (b"", False),
    ],
)
def test_zstd_without_a_checksum_is_told_by_its_first_frame(tmp_path, start, lacks):
    """One bit of the frame's header says whether a checksum stands at its end."""
    (tmp_path / "f").write_bytes(start)
    assert lacks_checksum(tmp_path / "f") == lacks
