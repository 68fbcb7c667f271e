"""Hostile files in bounded memory and time: streams, lines and Parquet tables."""

import gzip
import os
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernel_archive.errors import Finding
from kernel_archive.scoring import Target, check_forecasts
from kernel_archive.untrusted import (
    MAX_LINE_BYTES,
    Lines,
    UntrustedFileError,
    allowance,
    open_bounded,
    parquet_rows,
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


def rows_of(path, wanted=("row_id", "bin_probabilities", "rationale"), max_rows=5000, max_bytes=64 << 20):
    """All rows and findings."""
    return list(parquet_rows(path, name="f", wanted=wanted, max_rows=max_rows, max_bytes=max_bytes))


def repeated(text, times):
    """A column whose file holds the text once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), [text])


def codes(items):
    """Codes of the findings."""
    return [item.code for item in items if not isinstance(item, tuple)]


def test_a_long_text_that_every_row_refers_to_is_never_multiplied(tmp_path, target):
    """Twenty megabytes in a dictionary, a thousand rows: 20 GB when decoded. Refused by the size of its column."""
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"row_id": repeated("x" * 20_000_000, 1000)}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    before = pa.total_allocated_bytes()
    forecasts, report = check_forecasts(path, target)
    assert forecasts is None
    assert report.counts == {"file-too-large": 1}
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_rows_with_too_much_text_are_refused_one_by_one(tmp_path):
    """A text of two megabytes is a fault of its row and is not made an object; nested texts as well."""
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table({"row_id": repeated("x" * 2_000_000, 20)}), path, compression="zstd")
    found = rows_of(path)
    assert codes(found) == ["line-too-long"] * 20
    assert [f.line for f in found] == list(range(1, 21))
    nested = pa.array([[("x" * 2_000_000, 1.0)]] * 3, pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.table({"row_id": ["a", "b", "c"], "bin_probabilities": nested}), path, compression="zstd")
    assert codes(rows_of(path)) == ["line-too-long"] * 3


def test_the_text_of_all_rows_together_is_bounded(tmp_path):
    """Each row is short enough, all of them together are not."""
    path = tmp_path / "much.parquet"
    pq.write_table(pa.table({"row_id": repeated("x" * 900_000, 100)}), path, compression="zstd")
    found = rows_of(path, max_bytes=4 << 20)
    assert len(found) == 5
    assert codes(found) == ["file-too-large"]
    assert "more than 4 MiB of text" in found[-1].message


def test_a_table_of_very_many_columns_is_refused(tmp_path):
    """Before they are looked at."""
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"c{i}": [1] for i in range(1200)}), path)
    (found,) = rows_of(path)
    assert "1,200 columns" in found.message
    pq.write_table(pa.table({f"c{i:02000d}": [1] for i in range(1_100)}), path)
    (found,) = rows_of(path)
    assert (found.code, "description of its columns" in found.message) == ("file-too-large", True)


def test_values_of_huge_fixed_length_are_refused(tmp_path):
    """No field of a forecast is a block of bytes."""
    path = tmp_path / "fixed.parquet"
    pq.write_table(pa.table({"row_id": pa.array([b"x" * 5000] * 9, pa.binary(5000))}), path)
    assert codes(rows_of(path)) == ["file-too-large"]


def test_only_wanted_columns_are_read_and_the_others_named(tmp_path, target):
    """An unwanted column may be large; a misspelt one is still remarked."""
    path = tmp_path / "p.parquet"
    table = pa.table(
        {
            "row_id": ["a1b2c3d4", "b1b2c3d4"],
            "probabilities": [P, P],
            "repeats": [0, 1],
            "pack": repeated("x" * 10**8, 2),
        }
    )
    pq.write_table(table, path, compression="zstd")
    forecasts, report = check_forecasts(path, target)
    assert forecasts is not None
    assert report.counts == {"unknown-field": 1}
    assert (report.findings[0].field, "2 lines" in report.findings[0].message) == ("repeats", True)


def test_two_columns_of_one_name_are_a_fault(tmp_path):
    """Which of them counts would be chance."""
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["row_id", "row_id"]), path)
    assert codes(rows_of(path)) == ["repeated-field"]


@pytest.mark.parametrize("row_group_size", [5000, 1000, 7])
def test_maps_are_read_from_several_row_groups(tmp_path, row_group_size):
    """Arrow joins no dictionaries of nested texts: the row groups are read one by one."""
    maps = pa.array([[(str(b), 0.125) for b in range(1, 9)]] * 3000, pa.map_(pa.string(), pa.float64()))
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"bin_probabilities": maps}), path, row_group_size=row_group_size)
    found = rows_of(path)
    assert codes(found) == []
    assert [line for line, _ in found] == list(range(1, 3001))


def test_rows_come_as_they_were_written(tmp_path):
    """Texts, lists of structs and maps over several row groups, with their numbers."""
    path = tmp_path / "p.parquet"
    maps = pa.array([[("1", 0.5)], None, []], pa.map_(pa.string(), pa.float64()))
    table = pa.table(
        {"row_id": ["a", None, "c"], "bin_probabilities": maps, "rationale": ["é", "x" * 700_000, "y" * 700_000]}
    )
    pq.write_table(table, path, row_group_size=2)
    assert rows_of(path) == list(enumerate(table.to_pylist(), 1))


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


def test_lists_of_nothing_are_counted(tmp_path):
    """A list of three million empty values takes no bytes in the file, and is a fault of its row."""
    path = tmp_path / "t.parquet"
    nulls = pa.ListArray.from_arrays(pa.array([0, 3_000_000], pa.int32()), pa.nulls(3_000_000))
    pq.write_table(pa.table({"l": nulls}), path)
    assert codes(rows_of(path, wanted=None)) == ["file-too-large"]
    assert codes(rows_of(path, wanted=None, max_rows=10**6)) == ["line-too-long"]


def test_damaged_pages_are_found_by_their_checksums(tmp_path):
    """Where the writer left checksums of pages, a flipped byte of a page is a finding."""
    path = tmp_path / "t.parquet"
    table = pa.table({"n": pa.array(range(2000), pa.int64())})
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    data[8000] ^= 1
    path.write_bytes(data)
    assert codes(rows_of(path, wanted=None)) == ["unreadable"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_compressed_table(tmp_path, pack):
    """A Parquet file inside gzip or zstd is read like the plain one; all columns when none are named."""
    rows = [{"a": f"t{i}", "n": i, "l": [i, i], "s": {"x": "y", "z": None}} for i in range(3000)]
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    path.write_bytes(pack(path.read_bytes()))
    assert [row for _, row in rows_of(path, wanted=None)] == rows
