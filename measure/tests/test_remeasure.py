"""Tests of measuring again: which kernels of an archive, and runs that go on where they ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.answers import read_run, run_json
from support.archives import Run, Search, make_archive
from support.cheats import NUMPY_HONEST
from support.programs import program

from kernel_archive.archive.open import open_archive
from kernel_archive.errors import DataError, UsageError
from kernel_measure.logs import read_lines
from kernel_measure.remeasure import (
    Program,
    Remeasured,
    RemeasureOptions,
    choose,
    remeasure_programs,
)
from kernel_measure.settings import Settings
from kernel_measure.station import StationOptions

SETTINGS = Settings(max_runs=4, candidates_per_worker=10, remeasure=0)


def measure(programs, out, repeat=1, settings=SETTINGS):
    """Measure programs again on the stand-in device."""
    station = StationOptions(device="standin")
    options = RemeasureOptions(repeat=repeat, station_options=station, settings=settings)
    return remeasure_programs(programs, out, options)


SPEEDS = {1: 0.9, 2: 1.02, 3: 1.2, 4: 2.05, 5: 3.0}


SEARCHES = [
    Search("s/1", "trimul"),
    Search("s/2", "trimul", gpu="A100-80GB"),
    Search("s/3", "kernelbench_l3_p48"),
]
RUNS = [
    *(Run("s/1", program(i), s, flags=("unstable",) if i == 5 else ()) for i, s in SPEEDS.items()),
    Run("s/2", program(6), 0.98),
    Run("s/3", program(7), 1.01),
]


@pytest.fixture
def archive(tmp_path):
    """Five kernels of one task on an H200, one on an A100, one of a problem that has no task."""
    return open_archive(make_archive(tmp_path / "a", SEARCHES, RUNS))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("all", {1, 2, 3, 4, 5, 6}),
        ("edge", {2, 4, 6}),
        ("flagged", {5}),
        ("speedup > 1.1 AND speedup < 2.5", {3, 4}),
    ],
)
def test_selection(archive, where, expected):
    """Edges within 5 %, flags, any condition; only problems that a task measures."""
    codes = {p.code for p in choose(archive, where)}
    assert codes == {program(i) for i in expected}


def test_gpus_are_named_by_alias(archive):
    """One GPU can be chosen by any of its names."""
    chosen = choose(archive, "edge", gpu="NVIDIA H200")
    assert chosen == [Program("trimul", program(i)) for i in (4, 2)]


def test_limit_takes_the_first_by_id(archive, tmp_path):
    """At most so many."""
    query = "SELECT code FROM kernels WHERE problem = 'trimul' ORDER BY kernel_id LIMIT 2"
    first = [row["code"] for row in archive.sql(query).to_pylist()]
    assert [p.code for p in choose(archive, "all", limit=2)] == first
    backwards = make_archive(tmp_path / "b", SEARCHES, RUNS[::-1])
    assert choose(open_archive(backwards), "all", limit=2) == choose(archive, "all", limit=2)


def test_wrong_condition_and_missing_split_are_usage_errors(archive):
    """A slip in the condition is said in DuckDB's words."""
    with pytest.raises(UsageError, match="spedup"):
        choose(archive, "spedup > 3")
    with pytest.raises(UsageError, match="build-eval"):
        choose(archive, "eval")


def test_measured_again_in_other_workers(tmp_path):
    """Every repetition has a run of its own from other inputs."""
    programs = [Program("rehearsal", NUMPY_HONEST), Program("rehearsal", "x =")]
    found = measure(programs, tmp_path, repeat=2)
    assert found == Remeasured(kernels=2, measurements=4, failed=1, unfinished_runs=0)
    salts = set()
    for r in (1, 2):
        directory = tmp_path / f"rehearsal__r{r}"
        evaluations, run = read_run(Path(directory))
        assert Counter(e.outcome for e in evaluations) == {"success": 1, "compile_failed": 1}
        assert run.problem == "rehearsal"
        timing = read_lines(directory / "timing.jsonl", Any)
        salts |= {line["salt"] for line in timing if line["kind"] == "success"}
    assert len(salts) == 2
    before = (tmp_path / "rehearsal__r1" / "attempts.jsonl").read_bytes()
    measure(programs, tmp_path, repeat=2)
    assert (tmp_path / "rehearsal__r1" / "attempts.jsonl").read_bytes() == before


def test_remeasuring_again_changes_nothing_that_stands(tmp_path):
    """A program named twice is measured once; what is there keeps its run.json."""
    good = Program("rehearsal", NUMPY_HONEST)
    other = Program("rehearsal", good.code + "\n# b")

    def again(programs, **changes):
        settings = msgspec.structs.replace(SETTINGS, **changes)
        return measure(programs, tmp_path, settings=settings)

    directory = tmp_path / "rehearsal__r1"
    assert again([good, good]).measurements == 1
    run = (directory / "run.json").read_bytes()
    again([good])
    assert (directory / "run.json").read_bytes() == run
    with pytest.raises(DataError, match="other settings"):
        again([good, other], max_runs=3)
    again([good, other, good])
    assert [row["attempt"] for row in read_lines(directory / "attempts.jsonl", Any)] == [0, 1]
    assert run_json(directory)["evaluations"] == 2
    stale = run_json(directory) | {"evaluations": 1, "end": "before the kill"}
    (directory / "run.json").write_bytes(msgspec.json.encode(stale))
    again([good, other])
    mended = run_json(directory)
    assert (mended["evaluations"], mended["finished"]) == (2, True)
    assert mended["end"] != "before the kill"
    whole = (directory / "attempts.jsonl").read_bytes()
    third = msgspec.json.decode(whole.splitlines()[1]) | {"attempt": 2}
    third["evaluation"]["observation"]["feedback"] = {"kind": "success"}
    for foreign in (b'{"attempt": 2}', msgspec.json.encode(third)):
        (directory / "attempts.jsonl").write_bytes(whole + foreign + b"\n")
        with pytest.raises(DataError, match=r":3"):
            again([good, other])
    (directory / "run.json").unlink()
    (directory / "attempts.jsonl").write_bytes(whole.splitlines(True)[0])
    with pytest.raises(DataError, match=r"no run.json"):
        again([good, other])
