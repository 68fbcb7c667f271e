"""Tests of searches as folds over their logs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.answers import read_run

from kernel_archive.errors import DataError
from kernel_measure.logs import read_lines
from kernel_measure.questions import Proposal
from kernel_measure.search import Search
from kernel_measure.strategies import Puct
from kernel_measure.timing import CaseResult, Result, describe
from kernel_measure.verdict import Measurement, measurement_of

NOW = "2026-01-01T00:00:00.000000Z"


def measured(speedup):
    """A measurement of that speedup; a failure for ``None``."""
    if speedup is None:
        return Measurement(
            task="t", outcome="runtime_error", cases=[], error="boom", error_name="Boom"
        )
    case = CaseResult(
        shape={"n": 1}, candidate=describe([100.0 / speedup] * 3), reference=describe([100.0] * 3)
    )
    return measurement_of("t", Result(cases=[case], salt="s"), wall_s=0.01)


def speed_of(code):
    """A made-up speed that depends on the program alone; every seventh fails."""
    number = int(code.rsplit(" ", 1)[-1])
    return None if number % 7 == 3 else 0.3 + (number * 37 % 100) / 25


class Numbered:
    """A provider whose programs are numbered texts."""

    def __init__(self, start="program 0", pool=None):
        self.start, self._pool = start, pool

    def propose(self, question, parent, seen):
        """Another one: the first of the pool, or the next number after the parent's."""
        number = int(parent.code.rsplit(" ", 1)[-1])
        pool = self._pool or [f"program {number * 31 % 997 + i}" for i in range(len(seen) + 1)]
        left = [code for code in pool if code not in seen]
        return Proposal(code=left[0]) if left else Proposal(failed="none left")


def make(directory, *, steps=4, strategy=None, provider=None):
    """A search of made-up programs."""
    return Search(
        directory,
        strategy=strategy or Puct(batch_size=2, samples_per_parent=3, k_per_parent=2),
        provider=provider or Numbered(),
        steps=steps,
        seen=set(),
    )


def drive(search, limit=10**9):
    """Measure until the search has finished or ``limit`` results are in; the number measured."""
    done = 0
    while done < limit and (jobs := search.next_jobs()):
        for job in jobs:
            if done >= limit:
                break
            search.report(job, measured(speed_of(job.code)), NOW)
            done += 1
    return done


def searched(directory, **how):
    """Drive a whole search; the number measured."""
    search = make(directory, **how)
    count = drive(search)
    assert search.finished
    return count


def events(directory):
    """The log."""
    return list(read_lines(directory / "events.jsonl", Any))


def shape_of(log):
    """A log without what differs from run to run (ids and times)."""
    names, out = {}, []
    for e in log:
        if e["kind"] == "search_initialized":
            names[e["root"]["ulid"]] = e["root"]["program_code"]
        elif e["kind"] == "evaluation_requested":
            names[e["child_ulid"]] = e["code"]
        elif e["kind"] == "step_started":
            out.append(("step", sorted(names[p] for p in e["parent_ulids"])))
    return out


def test_log_is_complete(tmp_path):
    """Every request has one answer, every step its fence; no program is proposed twice."""
    count = searched(tmp_path / "run")
    log = events(tmp_path / "run")
    kinds = Counter(e["kind"] for e in log)
    assert kinds["search_initialized"] == 1
    assert kinds["step_started"] == kinds["step_completed"] == 4
    assert (
        kinds["mutation_requested"] == kinds["mutation_completed"] == kinds["evaluation_requested"]
    )
    assert kinds["evaluation_completed"] == kinds["evaluation_requested"] == count - 1
    codes = [e["code"] for e in log if e["kind"] == "mutation_completed"]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("cut", range(1, 93, 5))
def test_killed_at_any_line_goes_on_as_if_nothing_had_happened(tmp_path, cut):
    """The log torn within any line: between a proposal and its request, after any result.

    Nothing is glued, nothing asked or measured twice.
    """
    total = searched(tmp_path / "run")
    whole = shape_of(events(tmp_path / "run"))
    path = tmp_path / "run" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 93
    path.write_bytes(b"".join(lines[:cut]) + lines[cut][:60])
    searched(tmp_path / "run")
    evaluations = read_run(tmp_path / "run")[0]
    assert len(evaluations) == total
    assert all(e.n_logged == 1 for e in evaluations)
    log = events(tmp_path / "run")
    assert shape_of(log) == whole
    for kind in ("mutation_completed", "evaluation_requested", "evaluation_completed"):
        key = "from_mutation_request_id" if kind == "evaluation_requested" else "request_id"
        ids = [e[key] for e in log if e["kind"] == kind]
        assert len(ids) == len(set(ids)) == total - 1, kind


def test_failed_start_ends_the_search_with_a_readable_log(tmp_path):
    """A starting program that fails gives a finished search with one evaluation, no null scores."""
    search = make(tmp_path / "run")
    search.report(search.next_jobs()[0], measured(None), NOW)
    assert search.next_jobs() == []
    assert search.finished
    assert searched(tmp_path / "run") == 0
    assert [e["kind"] for e in events(tmp_path / "run")] == ["search_initialized"]
    assert [r.outcome for r in read_run(tmp_path / "run")[0]] == ["runtime_error"]


def test_directory_of_another_search_is_refused(tmp_path):
    """A log from another starting program is not continued."""
    drive(make(tmp_path / "run"), 3)
    with pytest.raises(DataError, match="another starting program"):
        make(tmp_path / "run", provider=Numbered("something else"))


def test_exhausted_pool_ends_in_failed_mutations(tmp_path):
    """A provider that has nothing new fails its proposals; the search still comes to its end."""
    provider = Numbered("program 0", ["program 1", "program 2", "program 4"])
    strategy = Puct(batch_size=1, samples_per_parent=2)
    assert searched(tmp_path / "run", strategy=strategy, provider=provider) == 4
    kinds = Counter(e["kind"] for e in events(tmp_path / "run"))
    assert (kinds["mutation_completed"], kinds["mutation_failed"]) == (3, 5)
