"""Tests of the audit of natural programs: words that tell, and lengths that go with speed."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import RECIPE, Run, Search, make_archive

from kernel_archive.archive.manifest import SplitFacts, write_manifest
from kernel_archive.archive.natural import natural_faults, rank_correlation
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.shards import write_table
from kernel_archive.schema import TABLES


def code(number, *, body="", padding=0):
    """A program of a given length."""
    lines = "\n".join(f"    step_{number}_{i} = x" for i in range(40 + padding))
    return f"def custom_kernel(x):\n{lines}\n{body}    return x + {number}\n"


@pytest.fixture
def archive(tmp_path):
    """Makes an archive with an evaluation split from ``(code, speedup)`` pairs; ``None`` fails."""

    def made(programs, *, natural=True):
        search = Search("hand-made/s")
        runs = [Run(search.search_id, text, speedup) for text, speedup in programs]
        builders = [{**RECIPE, "natural": natural}]
        make_archive(tmp_path, [search], runs, builders=builders)
        opened = open_archive(tmp_path)
        schema = TABLES["eval"].schema
        empty = {field.name: "" for field in schema if pa.types.is_string(field.type)}
        rows = [
            {
                **empty,
                **{name: row[name] for name in schema.names if name in row},
                "row_id": row["kernel_id"],
                "task": row["problem"],
                "candidate_code": row["code"],
            }
            for row in opened.arrow("kernels").to_pylist()
        ]
        facts = write_table(
            tmp_path, "eval", {"test": pa.Table.from_pylist(rows, schema=TABLES["eval"].schema)}
        )
        split = SplitFacts(
            name="canonical",
            origin="selected",
            scheme="paper",
            logical_digest=facts.logical_digest,
            rows=len(rows),
            parameters={"natural": True},
            facts={},
        )
        tables = {**opened.manifest.tables, "eval": facts}
        write_manifest(
            tmp_path,
            msgspec.structs.replace(opened.manifest, tables=tables, splits={"eval": split}),
        )
        return open_archive(tmp_path)

    return made


def test_telling_words_are_named_in_successes_and_failures(archive):
    """The kernel, the word and the table; a technical name is none; without promise no audit."""
    programs = [
        (code(0), 1.0),
        (code(1, body="    # the slow way\n"), 0.5),
        (code(2, body="    baseline_x = x\n"), None),
        (code(3, body="    y = fast_expf(x)\n"), 1.0),
    ]
    assert [(f.code, f.field, f.value, f.severity) for f in natural_faults(archive(programs))] == [
        ("telling-word", "kernels.code", "slow", "error"),
        ("telling-word", "failures.code", "baseline_x", "error"),
    ]
    assert list(natural_faults(archive(programs, natural=False))) == []


@pytest.mark.parametrize(
    ("padding", "number", "value"),
    [
        (lambda i: i, 50, "+1.00"),
        (lambda i: 50 - i, 50, "-1.00"),
        (lambda i: i * 29 % 50, 50, None),
        (lambda i: i, 20, None),
    ],
)
def test_length_that_goes_with_speed_is_a_warning(archive, padding, number, value):
    """Programs that grow with the speedup, against it or neither; few rows say nothing."""
    speedups = np.geomspace(0.15, 6.0, number).tolist()
    programs = [(code(i, padding=padding(i)), speedup) for i, speedup in enumerate(speedups)]
    lengths = [f for f in natural_faults(archive(programs)) if f.code == "telling-length"]
    assert {f.severity for f in lengths} <= {"warning"}
    assert {f.value for f in lengths} == ({value} if value else set())
    names = {f.message.split(" go ")[0] for f in lengths}
    assert names == ({"characters", "lines"} if value else set())


@settings(deadline=None)  # the first call imports
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_that_of_scipy(pairs):
    """An independent library as oracle; where one side is constant, 0."""
    stats = pytest.importorskip("scipy.stats")
    a, b = (np.array(values, float) for values in zip(*pairs, strict=True))
    varied = len(set(a)) > 1 and len(set(b)) > 1
    expected = stats.spearmanr(a, b).statistic if varied else 0.0
    assert rank_correlation(a, b) == pytest.approx(expected, abs=1e-12)
