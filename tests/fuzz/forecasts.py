"""Fuzz the forecast reader: every accepted form, mutated, with the verdict that is right.

``run(seed, count)`` makes that many files of two kinds:

* a *harmless* change (order of fields, white space, compression, form): the same arrays come out;
* *damage* of the bytes: whatever comes out is a report; what is accepted holds distributions, and
  an accepted compressed file says what it said before.

No file may raise, and no file may take a gigabyte.
"""

import gzip
import io
import json
import random
import resource
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.damage import mutate_bytes, zstd

from kernel_archive.scoring import Split, check_forecasts, score
from kernel_archive.scoring.formats import TOOL_FIELDS

MAX_GROWTH_KB = 1 << 20
IDS = [f"{n:032x}" for n in range(7)]
TARGET = Split.from_arrays(
    row_ids=IDS,
    tasks=["a", "a", "a", "b", "b", "b", "b"],
    speedups=[0.2, 0.6, 0.9, 1.1, 1.6, 2.5, 5.0],
)
COLUMNS = {
    "row_id": pa.string(),
    "comparison_id": pa.string(),
    "repeat": pa.int64(),
    "probabilities": pa.list_(pa.float64()),
    "bin_probabilities": pa.list_(pa.struct([("bin", pa.int64()), ("p", pa.float64())])),
    **dict.fromkeys(TOOL_FIELDS, pa.float64()),
}


# --- forms: (row id, probabilities) -> the fields of a line beside repeat ---

FORMS = (
    lambda name, p: {"row_id": name, "probabilities": p},
    lambda name, p: {"row_id": name, **dict(zip(TOOL_FIELDS, p, strict=True))},
    lambda name, p: {
        "comparison_id": name,
        "bin_probabilities": [{"bin": b, "p": v} for b, v in enumerate(p, 1)],
    },
    lambda name, p: {
        "comparison_id": name,
        "bin_probabilities": {str(b): v for b, v in enumerate(p, 1)},
    },
)
TABULAR = FORMS[:3]


def made(rng, form):
    """A whole file's rows in a form, and the arrays that they mean."""
    repeats = rng.choice((1, 1, 2))
    drawn = [[[rng.random() + 0.01 for _ in range(8)] for _ in IDS] for _ in range(repeats)]
    p = np.round(drawn, 4)
    p /= p.sum(axis=-1, keepdims=True)
    cells = [(r, i) for r in range(repeats) for i in range(len(IDS))]
    rng.shuffle(cells)
    return [form(IDS[i], p[r, i].tolist()) | {"repeat": r} for r, i in cells], p


def lines(rows):
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rng, rows):
    """Rows as a Parquet file, in row groups of any size."""
    columns = {key: pa.array([row[key] for row in rows], COLUMNS[key]) for key in rows[0]}
    out = io.BytesIO()
    pq.write_table(
        pa.table(columns),
        out,
        row_group_size=rng.choice((1, 3, 1000)),
        compression=rng.choice(("none", "zstd", "snappy", "gzip")),
        use_dictionary=rng.random() < 0.7,
    )
    return out.getvalue()


# --- harmless changes ---


def harmless(rng):
    """A file that means what its rows mean, written in an unusual way."""
    form = rng.choice(FORMS)
    rows, p = made(rng, form)
    if form in TABULAR and rng.random() < 0.3:
        return table(rng, rows), p
    for row in rows:
        if rng.random() < 0.3:
            more = ({"defer": False}, {"model": "x" * 50}, {"rationale": "é\u2028\0"})
            row.update(rng.choice(more))
        if rng.random() < 0.2:
            row["repeat"] = float(row["repeat"])
        if rng.random() < 0.1 and row["repeat"] == 0:
            del row["repeat"]
    text = "".join(
        json.dumps(
            dict(rng.sample(list(row.items()), len(row))),
            ensure_ascii=rng.random() < 0.5,
            separators=rng.choice(((",", ":"), (", ", ": "), (" ,\t", " :\r"))),
        )
        + rng.choice(("\n", "\r\n", "\n\n", " \n"))
        for row in rows
    )
    text = "\ufeff" * (rng.random() < 0.2) + (text.rstrip() if rng.random() < 0.2 else text)
    data = text.encode()
    return rng.choice((bytes, gzip.compress, zstd, split_gzip))(data), p


def split_gzip(data):
    """Two members, one after the other."""
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


# --- damage ---


def damaged(rng):
    """A good file with bytes changed, taken out, put in or doubled."""
    form = rng.choice(FORMS)
    rows, p = made(rng, form)
    pack = rng.choice((bytes, gzip.compress, zstd))
    data = table(rng, rows) if form in TABULAR and rng.random() < 0.5 else pack(lines(rows))
    protected = p if data.startswith(b"\x1f\x8b") else None
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data = mutate_bytes(rng, data)
    return data, protected


def same(forecasts, p):
    """Whether the arrays are those, to the rounding of the renormalisation."""
    return forecasts.probabilities.shape == p.shape and np.allclose(
        forecasts.probabilities, p, rtol=1e-12, atol=0
    )


def run(seed, count):
    """Make and read that many files; count what was accepted and refused of each kind.

    Raises:
        AssertionError: a verdict is wrong, a file took too much memory, or something was raised;
            the message names the seed and the number of the file.
    """
    seen = Counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f")
        for number in range(count):
            rng = random.Random(f"{seed}/{number}")
            kind, make = rng.choice((("harmless", harmless), ("damage", damaged)))
            data, expected = make(rng)
            path.write_bytes(data)
            place = f"seed {seed}, file {number}, {make.__name__}"
            try:
                forecasts, report = check_forecasts(path, TARGET)
            except Exception as error:
                raise AssertionError(f"{place}: {type(error).__name__}: {error}") from error
            assert (forecasts is None) == (not report.ok) == bool(report.n_errors), place
            assert all(finding.render().isprintable() for finding in report.findings), place
            if kind == "harmless":
                assert forecasts is not None, f"{place}: {report.counts}"
                assert same(forecasts, expected), place
            elif forecasts is not None:
                assert np.isfinite(forecasts.probabilities).all(), place
                assert np.allclose(forecasts.probabilities.sum(axis=-1), 1.0), place
                assert expected is None or same(forecasts, expected), place
                if number % 10 == 0:
                    recovered = score(TARGET, forecasts, draws=0).metrics["speedup_recovered"]
                    assert 0 <= recovered.mean <= 100, place
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < MAX_GROWTH_KB, f"{place}: {grown >> 10} MB"
            seen[f"{kind} {'accepted' if forecasts is not None else 'refused'}"] += 1
    return seen
