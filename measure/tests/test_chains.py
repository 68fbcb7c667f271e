"""Tests of chains."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.answers import run_json, run_plan
from support.chains import AUTHOR, FACTS, write
from support.cheats import NO_MAXIMUM, NUMPY_HONEST

from kernel_archive.errors import DataError
from kernel_measure.chains import read_chain
from kernel_measure.logs import read_lines

SOFTMAX = NUMPY_HONEST
OTHER = SOFTMAX + "# another\n"


@pytest.fixture
def plan(tmp_path):
    """A plan of all chains under ``chains``."""
    path = tmp_path / "plan.toml"
    path.write_text(
        'name = "p"\ngpu = "H200"\n[settings]\ncases = "small"\nmax_runs = 3\nmax_case_seconds = 0.05\n'  # noqa: E501
        '[[search]]\nmethod = "agentic"\nchains = "chains/*/*"\n'
    )
    return path


def test_chain_is_recorded_and_goes_on(plan, tmp_path):
    """The second call measures only what was added."""
    folder = tmp_path / "chains" / "a01" / "rehearsal"
    write(folder, 1, SOFTMAX)
    run_plan(plan, tmp_path / "out", compilers=0)
    write(folder, 2, OTHER, parent=1, expected_speedup=0.9)
    write(folder, 3, NO_MAXIMUM, parent=1)
    done = run_plan(plan, tmp_path / "out", compilers=0)
    assert done.evaluations == 2
    directory = tmp_path / "out" / "agentic" / "rehearsal__h_a01"
    rows = list(read_lines(directory / "attempts.jsonl", Any))
    assert [(r["attempt"], r.get("parent_attempt")) for r in rows] == [(0, None), (1, 0), (2, 0)]
    assert rows[1]["forecast"] == {"expected_speedup": 0.9, "probabilities": FACTS["probabilities"]}
    feedback = [r["evaluation"]["observation"]["feedback"] for r in rows]
    assert [f["kind"] for f in feedback] == ["success"] * 3
    assert ["narrow_domain" in f for f in feedback] == [False, False, True]
    run = run_json(directory)
    assert (run["mutator"], run["search"]["author"]) == ("language model", "a01")
    assert run["search"]["brief"] == {"goal_bin": 4}
    assert run["checks"]["distributions"] == ["standard", "structured", "stress"]


def test_everything_is_compiled_first(plan, tmp_path):
    """A host that compiles launches kernels more slowly; then chain by chain."""
    authors = ("a01", "a02", "a03")
    for author in authors:
        folder = tmp_path / "chains" / author
        for number in (1, 2):
            write(folder / "rehearsal", number, f"{SOFTMAX}# {author}, {number}\n")
        (folder / "author.json").write_text(json.dumps({**AUTHOR, "author": author}))
    said = []
    done = run_plan(plan, tmp_path / "out", compilers=1, advance=lambda *a: said.append(a))
    runs = [f"agentic/rehearsal__h_{author}" for author in authors]
    assert said[:6] == [(i, 6, "compiling") for i in range(1, 7)]
    assert said[6:] == [(i, 6, runs[(i - 1) // 2]) for i in range(1, 7)]
    assert [row["run"] for row in done.runs] == runs
    assert (done.evaluations, done.unfinished) == (6, 0)


def test_measured_program_must_not_change(plan, tmp_path):
    """A file that was edited after it was measured is refused with the log's line."""
    folder = tmp_path / "chains" / "a01" / "rehearsal"
    write(folder, 1, SOFTMAX)
    run_plan(plan, tmp_path / "out", compilers=0)
    write(folder, 1, OTHER)
    with pytest.raises(
        DataError,
        match=r"attempts.jsonl:1: the directory holds attempts that this agent did not make",
    ):
        run_plan(plan, tmp_path / "out", compilers=0)


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"probabilities": [1.0]}, r"01\.json: probabilities are eight numbers"),
        ({"expected_speedup": 0}, r"01\.json: expected_speedup: Expected `float` > 0"),
        ({"parent": 1}, r"01\.json: parent: a program builds on an earlier one"),
        ({"guess": 1}, r"01\.json: .*unknown field `guess`"),
    ],
)
def test_faulty_facts_name_file_and_field(tmp_path, facts, match):
    """One clear sentence for each fault of what lies beside a program."""
    folder = tmp_path / "a01" / "rehearsal"
    write(folder, 1, SOFTMAX, **facts)
    with pytest.raises(DataError, match=match):
        read_chain(folder)


def test_gap_in_the_numbers_and_a_program_that_is_no_text_are_refused(tmp_path):
    """Parents are numbers, so that a missing program would shift them; bytes are named."""
    folder = tmp_path / "a01" / "rehearsal"
    write(folder, 2, SOFTMAX)
    with pytest.raises(DataError, match=r"02\.py: program 1 of a chain is called 01\.py"):
        read_chain(folder)
    write(folder, 1, SOFTMAX)
    (folder / "01.py").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"01\.py: not UTF-8"):
        read_chain(folder)
