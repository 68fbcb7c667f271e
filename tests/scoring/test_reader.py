"""Forecast files, whole: good ones, faulty ones and hostile ones; the reader and its collector."""

import gzip
import json
import math

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.made_forecasts import make_forecasts, make_split

from kernel_archive.errors import ForecastError, UsageError
from kernel_archive.scoring import (
    Split,
    check_forecasts,
    compare,
    load_split,
    read_forecasts,
    score_file,
)

P = [0, 0, 0, 0.1, 0.2, 0.7, 0, 0]


@pytest.fixture
def split():
    """Three rows."""
    return Split.from_arrays(
        row_ids=["a1b2c3d4", "b1b2c3d4", "c1b2c3d4"], tasks=["t", "t", "u"], speedups=[0.5, 1, 2]
    )


@pytest.fixture
def write(tmp_path):
    """Writes rows (objects or raw bytes) as JSON lines."""

    def to_file(*rows, name="mine.jsonl", end="\n"):
        path = tmp_path / name
        path.write_bytes(
            b"".join(r if isinstance(r, bytes) else (json.dumps(r) + end).encode() for r in rows)
        )
        return path

    return to_file


def row(row_id="a1b2c3d4", repeat=0, p=P, **more):
    """A canonical line."""
    return {"row_id": row_id, "repeat": repeat, "probabilities": p, **more}


def codes(path, split, **options):
    """Finding codes with their lines."""
    forecasts, report = check_forecasts(path, split, **options)
    assert (forecasts is None) == (not report.ok)
    assert sum(report.counts.values()) == report.n_errors + report.n_warnings
    return [(f.code, f.line) for f in report.findings]


def test_a_good_file_is_read_into_arrays(write, split):
    """Rows find their place, whatever their order; what is missing is uniform and not present."""
    path = write(
        row(
            "c1b2c3d4",
            1,
            predicted_bin=6,
            input_tokens=10,
            output_tokens=2,
            latency_s=0.5,
            rationale="why",
        ),
        row("a1b2c3d4", 0, [0.8, 0, 0, 0, 0, 0, 0, 0]),
        row("b1b2c3d4", 0, defer=True),
    )
    f = read_forecasts(path, split)
    assert f.name == "mine"
    assert f.present.tolist() == [[True, True, False], [False, False, True]]
    assert f.parsed.tolist() == f.present.tolist()
    assert f.deferred.tolist() == [[False, True, False], [False] * 3]
    assert f.stated_bins.tolist() == [[0, 0, 0], [0, 0, 6]]
    assert f.probabilities[1, 2].tolist() == pytest.approx(P)
    assert f.probabilities[0, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert f.probabilities[0, 2].tolist() == [0.125] * 8
    assert f.raw_sums[0, 0] == 0.8
    assert (f.input_tokens[1, 2], f.output_tokens[1, 2], f.latency_s[1, 2]) == (10, 2, 0.5)
    assert math.isnan(f.input_tokens[0, 0])
    assert f.coverage == 0.5
    assert f.rationales == {(1, 2): "why"}


def test_the_published_predictions_table(tmp_path, split):
    """Lists of {bin, p}, failures with an empty list, the raw sum; several forecasters in one."""
    full = [{"bin": b, "p": p} for b, p in enumerate(P, 1)]
    rows = [
        {
            "comparison_id": name,
            "pack": "t",
            "surrogate_label": label,
            "predicted_bin": 6 if probabilities else None,
            "bin_probabilities": probabilities,
            "raw_probability_sum": total,
            "parse_failed": not probabilities,
            "elapsed_s": 1.5,
        }
        for label in ("gemini", "other")
        for name, probabilities, total in zip(
            split.row_ids, (full, [], full), (1.0, None, 80.0), strict=True
        )
    ]
    path = tmp_path / "predictions.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    _, report = check_forecasts(path, split)
    assert report.counts == {"raw-sum": 1, "several-forecasters": 1}

    one = pq.read_table(path).slice(0, 3)
    f = read_forecasts(one, split)
    assert f.parsed.tolist() == [[True, False, False]]
    assert f.present.all()
    assert f.stated_bins.tolist() == [[6, 0, 6]]
    assert (f.raw_sums[0, 2], f.latency_s[0, 0]) == (80.0, 1.5)
    all_sums = read_forecasts(one, split, raw_sum_bounds=(0.0, math.inf))
    assert all_sums.parsed.tolist() == [[True, False, True]]


def test_raw_sums_far_from_one_are_parse_failures(write, split):
    """Whatever raw_probability_sum says of eight numbers that sum to 80; a stated 80 counts, too.
    They are one warning, percentages another; each names its first line and the count.
    """
    path = write(
        row(p=[10.0] * 8, raw_probability_sum=1.0),
        row("b1b2c3d4", raw_probability_sum=80.0),
        row("c1b2c3d4", raw_probability_sum=1.2),
        *(row(name, 1, p=[12.5] * 8) for name in split.row_ids),
    )
    f, report = check_forecasts(path, split)
    assert report.ok
    assert [(r.code, r.line, r.severity) for r in f.remarks] == [
        ("raw-sum", 1, "warning"),
        ("percent", 4, "warning"),
    ]
    assert "of 2 of 6 lines sum to 80 on average, first in this one" in f.remarks[0].message
    assert "of 3 of 6 lines sum to about 100, first in this one" in f.remarks[1].message
    assert f.parsed.tolist() == [[False, False, True], [False] * 3]
    assert f.raw_sums[0].tolist() == pytest.approx([80.0, 80.0, 1.2])


@pytest.mark.parametrize(
    ("lines", "code", "seen"),
    [
        (({"p": [12.5] * 8}, {"p": [12.5] * 8}), "percent", "2 of 2 lines sum to about 100"),
        (
            ({"p": [5] * 8}, {"p": [5] * 8, "defer": True}),
            "raw-sum",
            "2 of 2 lines sum to 40 on average",
        ),
        (({"p": None, "parse_failed": True},), "no-forecasts", "they say parse_failed"),
        (({"p": None, "defer": True},) * 3, None, ""),
    ],
)
def test_a_file_without_a_forecast_is_refused(write, split, lines, code, seen):
    """With one fault that says what was seen; leaving all to a measurement is an answer."""
    names = ("a1b2c3d4", "b1b2c3d4", "c1b2c3d4")
    rows = [row(name, **line) for name, line in zip(names, lines, strict=False)]
    forecasts, report = check_forecasts(write(*rows), split)
    assert (forecasts is None, report.n_errors) == (code is not None, int(code is not None))
    assert [finding.code for finding in report.findings] == ([code] if code else [])
    assert all(seen in finding.message and finding.fix for finding in report.findings)


@pytest.mark.parametrize(
    ("failed", "off", "cause", "seen"),
    [
        (479, 1, "no-forecasts", "none of 480 lines can be read as a forecast: 479 of them say"),
        (1, 479, "raw-sum", "the probabilities of 479 of 480 lines sum to 2.4 on average"),
    ],
)
def test_a_refusal_names_the_cause_of_most_lines(write, failed, off, cause, seen):
    """Only that cause is a fault: sums in few lines stay a warning beside it."""
    names = [f"{n:08x}" for n in range(failed + off)]
    many = Split.from_arrays(row_ids=names, tasks=["t"] * len(names), speedups=[1] * len(names))
    rows = [row(name, p=None, parse_failed=True) for name in names[:failed]]
    rows += [row(name, p=[0.3] * 8) for name in names[failed:]]
    forecasts, report = check_forecasts(write(*rows), many)
    (error,) = (finding for finding in report.findings if finding.severity == "error")
    assert (forecasts, report.n_errors, error.code) == (None, 1, cause)
    assert seen in error.message
    assert report.counts["raw-sum"] == 1


def test_sums_off_1_and_rows_without_a_forecast_are_one_warning_each(write, split):
    """With their number, the mean sum and the first rows; a sum of 1.01 is rounding."""
    p = [0, 0, 0, 0.1, 0.2, 0.5, 0, 0]
    _, report = check_forecasts(write(row(p=p), row("b1b2c3d4", p=[*p[:7], 0.1])), split)
    scaled, missing = sorted(report.findings, key=lambda f: f.code, reverse=True)
    assert scaled.message.startswith("the probabilities of 2 of 2 lines sum to 0.85 on average")
    assert (scaled.line, scaled.severity, report.ok) == (1, "warning", True)
    assert missing.message == "1 of 3 rows have no forecast"
    assert missing.fix == "Each counts as even odds; template lists every row. The first: c1b2c3d4"
    rounded = [row(name, p=[*P[:5], 0.71, 0, 0]) for name in split.row_ids]
    assert codes(write(*rounded), split) == []
    (gap,) = check_forecasts(write(*rounded, row(repeat=1)), split)[1].findings
    assert gap.message == "2 of 3 rows lack a forecast in some repeat"


def test_every_fault_of_a_file_is_listed_in_one_pass(write, split):
    """With its line, in order of lines; faults across lines among them."""
    path = write(
        row(p=[math.nan, *P[1:]]),
        row("A1b2c3d4"),
        row("b1b2c3d4"),
        b"{broken\n",
        row("b1b2c3d4"),
        row("b1b2c3d4", 2),
        b'{"row_id": "c1b2c3d4", "probabilities": [0.5, 1e400, 0, 0, 0, 0, 0, 0]}\n',
        b'{"row_id": "\xff"}\n',
        b'{"a":' * 50_000 + b"\n",
        row("nobody"),
        row("c1b2c3d4", -1, ["0.5"] * 8),
    )
    _, report = check_forecasts(path, split)
    assert not report.ok
    assert [(f.code, f.line) for f in report.findings] == [
        ("repeat-gap", None),
        ("not-finite", 1),
        ("unknown-row", 2),
        ("bad-json", 4),
        ("repeated-forecast", 5),
        ("not-finite", 7),
        ("bad-utf8", 8),
        ("bad-json", 9),
        ("unknown-row", 10),
        ("out-of-range", 11),
        *[("not-a-number", 11)] * 8,
    ]
    assert report.n_errors == 18
    assert "line 3" in report.findings[4].message
    with pytest.raises(ForecastError, match="18 faults") as raised:
        read_forecasts(path, split)
    assert len(raised.value.findings) == 18


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([row(surrogate_label="x"), row("b1b2c3d4"), row()], [("several-forecasters", None)]),
        ([row(surrogate_label=5)], [("missing-rows", None)]),
        ([row(), json.dumps(row("b1b2c3d4")).encode()[:40]], [("bad-json", 2)]),
        ([json.dumps([row(), row("b1b2c3d4")]).encode()], [("wrong-shape", 1)]),
        ([row(), row(repeat=3)], [("repeat-gap", None)] * 2),
        ([row(repeat=99)], [("repeat-gap", None)] * 99),
    ],
)
def test_faults_of_a_whole_file(write, split, lines, found):
    """Lines of two forecasters, a writer that was stopped, an array, repeats with gaps: each gap is
    named, and repeat 99 does not make a hundred arrays.
    """
    assert codes(write(*lines), split) == found


def test_fields_that_nothing_reads_are_remarked(write, split):
    """A misspelt optional field is a warning, once for all lines, in the order of the lines."""
    more = dict.fromkeys(["deferred", "z", "b", "y", "a", "x"], 1)
    rows = (row(name, **more) for name in split.row_ids)
    f, report = check_forecasts(write(*rows), split)
    assert report.counts == {"unknown-field": 6}
    assert [finding.field for finding in report.findings] == list(more)
    assert "3 lines" in report.findings[0].message
    assert f is not None
    assert f.remarks == report.findings


def test_findings_are_bounded_and_all_counted(write, split, monkeypatch):
    """More faults than are kept are counted."""
    monkeypatch.setattr("kernel_archive.scoring.reader.KEPT_FINDINGS", 10)
    _, report = check_forecasts(write(row(), *[row("nobody")] * 50), split)
    assert report.counts == {"unknown-row": 50}
    assert len(report.findings) == 10


def packed(lines, how, tmp_path):
    """The lines as another kind of file."""
    path = tmp_path / "packed"
    if how == "parquet":
        rows = [json.loads(line) for line in lines.splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
    else:
        compressed = how == "gzip" and gzip.compress(lines)
        path.write_bytes(compressed or pa.Codec("zstd").compress(lines, asbytes=True))
    return path


FORMS = {
    "objects": lambda rows: rows,
    "generator": iter,
    "numpy": lambda rows: [r | {"probabilities": np.array(r["probabilities"])} for r in rows],
    "tuples": lambda rows: [
        r | {"probabilities": tuple(r["probabilities"]), "repeat": np.int64(r["repeat"])}
        for r in rows
    ],
    "arrow": pa.Table.from_pylist,
    "polars": pl.DataFrame,
}


@pytest.mark.parametrize("form", [*FORMS, "gzip", "zstd", "parquet"])
def test_forecasts_are_read_alike_from_every_kind_of_source(write, rng, tmp_path, form):
    """Objects, data frames and packed files give the figures of the file with the same lines."""
    split = make_split(rng)
    made = make_forecasts(rng, split)
    cells = [(r, i) for r in range(made.n_repeats) for i in range(len(split))]
    rows = [row(split.row_ids[i], r, made.probabilities[r, i].tolist()) for r, i in cells]
    path = write(*rows)
    other = FORMS[form](rows) if form in FORMS else packed(path.read_bytes(), form, tmp_path)
    one, two = read_forecasts(path, split), read_forecasts(other, split, name="mine")
    np.testing.assert_array_equal(one.probabilities, two.probabilities)
    assert (one.digest == two.digest) == (form in {"gzip", "zstd"})
    assert bool(two.digest) == (form not in FORMS)
    expected, got = (score_file(f, split, draws=20) for f in (one, two))
    assert (got.metrics, got.groups) == (expected.metrics, expected.groups)
    both = compare(two, path, split, draws=20)
    assert all(d.difference == 0 for d in both.differences.values())


def test_faults_of_objects_name_their_number(split):
    """As the faults of a file do; an object that is no object is one of them."""
    rows = [row(), row("b1b2c3d4", p=[math.nan, *P[1:]]), 5, row("nobody"), row(rationale="\ud800")]
    expected = [("not-a-number", 2), ("wrong-shape", 3), ("unknown-row", 4), ("bad-json", 5)]
    assert codes(rows, split) == expected
    with pytest.raises(ForecastError, match="rows:1"):
        read_forecasts([row("nobody"), row()], split)


@pytest.mark.parametrize("source", [5, None, b"bytes", {"row_id": "a1b2c3d4"}])
def test_what_forecasts_can_not_be_read_from_is_a_wrong_call(split, source):
    """No internal error: the message says what can be given."""
    with pytest.raises(
        UsageError, match="Give a file, a data frame, a list of objects, or Forecasts"
    ):
        check_forecasts(source, split)


@pytest.mark.parametrize("known", [0, 2])
def test_a_file_for_another_split_is_one_line(archive, known):
    """It names the split that most rows are from; ids of nowhere are single faults."""
    split = load_split(archive, "eval")
    pairs = archive.arrow("discovery_pairs")["row_id"].to_pylist()
    nowhere = [f"nobody{i}" for i in range(20)]
    for ids, name, fix in (
        (pairs, "they are of discovery", "Use --split discovery"),
        (nowhere, "eval split (gpu-forecasters/kernels test-1)", "Name its split"),
    ):
        _, report = check_forecasts([row(i) for i in (*ids, *split.row_ids[:known])], split)
        if ids is nowhere and known:
            assert report.counts == {"unknown-row": 20}
            continue
        (finding,) = report.findings
        assert (finding.code, report.n_errors) == ("wrong-split", 1)
        assert f"{len(ids):,} of {len(ids) + known:,} ids are not of" in finding.message
        assert finding.message.endswith(name)
        assert finding.fix.startswith(fix)
