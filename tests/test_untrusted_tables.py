"""Hostile Parquet files in bounded memory and time."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernel_archive.scoring import Target, check_forecasts
from kernel_archive.untrusted_tables import parquet_rows

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


def zstd(data):
    """Compressed as one frame."""
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.fixture
def target():
    """Two rows."""
    return Target.from_arrays(row_ids=["a1b2c3d4", "b1b2c3d4"], tasks=["t", "t"], speedups=[0.5, 2])


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
