"""Hostile Parquet files, read in a child process with limits."""

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernel_archive import untrusted_tables
from kernel_archive.errors import Finding
from kernel_archive.scoring import Split, check_forecasts
from kernel_archive.untrusted_tables import parquet_rows

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


@pytest.fixture
def path(tmp_path):
    """Name a file."""
    return tmp_path / "t.parquet"


def write(path, columns, **options):
    """Write a table."""
    pq.write_table(pa.table(columns), path, **{"compression": "zstd", **options})


def read(path, wanted=None, max_rows=10**7, max_bytes=64 << 20):
    """Read all rows and findings."""
    return list(parquet_rows(path, name="f", wanted=wanted, max_rows=max_rows, max_bytes=max_bytes))


def codes(items):
    """List the codes of the findings."""
    return [item.code for item in items if isinstance(item, Finding)]


def repeated(text, times):
    """Make a column whose file holds the text once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), [text])


def empties(n):
    """Make a column with one list of n empty values, which take no bytes in the file."""
    return pa.ListArray.from_arrays(pa.array([0, n], pa.int32()), pa.nulls(n))


@pytest.mark.parametrize(
    ("column", "options", "expected"),
    [
        (repeated("x" * 2_000_000, 20), {}, ["line-too-long"] * 20),
        (empties(3_000_000), {}, ["line-too-long"]),
        (repeated("x" * 900_000, 100), {"max_bytes": 4 << 20}, ["file-too-large"]),
        (range(20), {"max_rows": 19}, ["file-too-large"]),
    ],
)
def test_what_claims_to_be_large_is_refused(path, column, options, expected):
    """Long texts behind a dictionary, lists of nothing, too many rows: refused, no memory taken."""
    write(path, {"a": column})
    assert path.stat().st_size < 20_000
    before = pa.total_allocated_bytes()
    items = read(path, **options)
    assert codes(items) == expected
    lines = [item.line for item in items if codes([item]) == ["line-too-long"]]
    assert lines == list(range(1, len(lines) + 1))
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_CHILD_BYTES", 1 << 20), ("MAX_CHILD_BYTES", 500 << 20), ("MAX_CHILD_SECONDS", 0)],
)
def test_a_child_that_is_killed_is_a_finding(path, monkeypatch, limit, value):
    """A process without memory or time ends, and its reader says so."""
    write(path, {"a": empties(40_000_000)})
    monkeypatch.setattr(untrusted_tables, limit, value)
    (finding,) = read(path)
    assert finding.code in {"unreadable", "file-too-large"}


def test_an_abandoned_reading_ends_its_child(path, monkeypatch):
    """A caller that takes one row leaves no process."""
    children = []
    popen = untrusted_tables.subprocess.Popen

    def start(*args, **options):
        children.append(popen(*args, **options))
        return children[-1]

    monkeypatch.setattr(untrusted_tables.subprocess, "Popen", start)
    write(path, {"a": ["x" * 1000] * 5000})
    rows = parquet_rows(path, name="f", wanted=None, max_rows=5000, max_bytes=64 << 20)
    next(rows)
    rows.close()
    assert children[0].returncode is not None


def test_only_wanted_columns_are_read_and_the_others_named(path):
    """An unwanted column may be large; a misspelt one is still remarked."""
    columns = {"row_id": ["a1b2c3d4", "b1b2c3d4"], "probabilities": [P, P], "repeats": [0, 1]}
    write(path, {**columns, "pack": repeated("x" * 10**8, 2)})
    names = [*columns, "pack"]
    assert read(path, wanted=["row_id"])[0] == (1, dict.fromkeys(names) | {"row_id": "a1b2c3d4"})
    split = Split.from_arrays(row_ids=["a1b2c3d4", "b1b2c3d4"], tasks=["t", "t"], speedups=[0.5, 2])
    forecasts, report = check_forecasts(path, split)
    assert forecasts is not None
    assert report.counts == {"unknown-field": 1}
    assert read(path, wanted=()) == [(n, dict.fromkeys(names)) for n in (1, 2)]


def test_two_columns_of_one_name_are_a_fault(path):
    """Which of them counts would be chance."""
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["row_id", "row_id"]), path)
    assert codes(read(path)) == ["repeated-field"]


def test_rows_come_as_they_were_written(path):
    """All kinds of values over several row groups."""
    fixed = {"x": float("inf"), "s": {"x": "y", "z": None}}
    rows = [{"a": None if i % 3 else f"é{i}", "n": i, "l": [i, i], **fixed} for i in range(700)]
    maps = pa.array([[(str(b), 0.5)] for b in range(700)], pa.map_(pa.string(), pa.float64()))
    pq.write_table(pa.Table.from_pylist(rows).append_column("m", maps), path, row_group_size=300)
    assert read(path) == [(i + 1, {**row, "m": {str(i): 0.5}}) for i, row in enumerate(rows)]


def test_damaged_pages_are_found_by_their_checksums(path):
    """Where the writer left checksums of pages, a flipped byte of a page is a finding."""
    plain = {"use_dictionary": False, "compression": "none"}
    write(path, {"n": pa.array(range(2000), pa.int64())}, write_page_checksum=True, **plain)
    data = bytearray(path.read_bytes())
    data[8000] ^= 1
    path.write_bytes(data)
    assert codes(read(path)) == ["unreadable"]


def test_a_damaged_footer_never_ends_this_process(path):
    """Arrow aborts on some flipped bytes; here any bytes give rows or a finding."""
    out = io.BytesIO()
    pq.write_table(pa.table({"row_id": ["a", "b"], "l": [[1.0], None]}), out)
    whole = out.getvalue()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = [b"", b"PAR1", b"PAR1" + os.urandom(100) + b"PAR1", whole[:-9], b"text\n" * 20]
    for place in range(footer, len(whole), 120):
        raw = bytearray(whole)
        raw[place] ^= 16
        damaged.append(bytes(raw))
    for data in damaged:
        path.write_bytes(data)
        items = read(path)
        assert codes(items) or len(items) == 2
    path.unlink()
    assert codes(read(path)) == ["unreadable"]
