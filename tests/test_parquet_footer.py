"""The sizes in the footer of a Parquet file."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernel_archive.scoring import Target, check_forecasts
from kernel_archive.untrusted_tables import chunk_sizes


def written(**options):
    """A Parquet file with several columns and row groups."""
    maps = pa.array([[("1", 0.5)], None, []] * 20, pa.map_(pa.string(), pa.float64()))
    table = pa.table({"row_id": [f"r{i}" for i in range(60)], "n": range(60), "maps": maps})
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=25, **options)
    return out.getvalue()


def footer_of(data):
    """The footer alone, and where it begins."""
    length = int.from_bytes(data[-8:-4], "little")
    return data[-8 - length : -8], len(data) - 8 - length


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zstd"}, {"use_dictionary": False, "write_statistics": False}, {"write_page_index": True}],
)
def test_sizes_are_those_that_arrow_reads(options):
    """Of every column in every row group, nested ones as well."""
    data = written(**options)
    meta = pq.ParquetFile(io.BytesIO(data)).metadata
    groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
    assert [[tuple(sizes) for sizes in columns] for columns in chunk_sizes(footer_of(data)[0])] == [
        [
            (c.num_values, c.total_uncompressed_size, c.total_compressed_size)
            for c in (group.column(i) for i in range(group.num_columns))
        ]
        for group in groups
    ]


def test_any_bytes_are_sizes_or_a_value_error():
    """Cut off, changed and made up: never another error, never a number below 0."""
    footer, _ = footer_of(written())
    rng = random.Random(0)
    for _ in range(2000):
        raw = bytearray(footer)
        raw[rng.randrange(len(raw))] = rng.randrange(256)
        for data in (bytes(raw), bytes(raw[: rng.randrange(len(raw))]), rng.randbytes(40), b"\x1c" * 200):
            try:
                found = chunk_sizes(data)
            except ValueError:
                continue
            assert all(number >= 0 for columns in found for sizes in columns for number in sizes)


def test_contradicting_size_statistics_do_not_end_the_process(tmp_path):
    """Arrow's own accessor aborts on one such byte; the reader says that the file can't be read, or reads it."""
    target = Target.from_arrays(row_ids=["r1"], tasks=["t"], speedups=[0.5])
    data = written()
    _, start = footer_of(data)
    path = tmp_path / "f"
    for at in range(start, len(data) - 8, 3):
        raw = bytearray(data)
        raw[at] ^= 16
        path.write_bytes(raw)
        forecasts, report = check_forecasts(path, target)
        assert forecasts is None
        assert report.n_errors
