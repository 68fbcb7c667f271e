"""A large archive is looked at in parts: what is selected and what is found are those of one part."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import MemoryTables, Run, Search, make_archive, make_tables, program

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.team import team
from kernel_archive.errors import LeakageError
from kernel_archive.ids import program_id, token_id
from kernel_archive.problems import HELD_OUT_PROBLEMS
from kernel_archive.selection import tables as module
from kernel_archive.selection.make import Rules, make_splits, select_split
from kernel_archive.selection.tables import ArchiveTables
from kernel_archive.splits import SPLIT_TABLES

PROBLEMS = ("trimul", "fp8_quant", "cross_entropy", *sorted(HELD_OUT_PROBLEMS)[:2])
SEARCHES = [
    *(Search(f"{p}-{role}", p, role, gpu=gpu) for p in PROBLEMS[:3] for role, gpu in (("held_out", "H200"), ("training", "L40S"))),
    *(Search(f"{p}-held_out", p) for p in PROBLEMS[3:]),
    Search("two-held_out", "trimul"), Search("two-training", "trimul", "training"),
]  # fmt: skip
#: Near copies of each other, others, and another language.
POOL = [*(program("long", size=30).replace("+ 0)", f"+ {i})", 1) for i in range(6)), *map(program, "abcdef")]
POOL += [f"// {i}\n#include <cuda.h>\n__global__ void k{i}() {{ int a = {i}; }}" for i in range(3)]


@st.composite
def archives(draw):
    """Tables in memory: any mixture, with searches that have the programs of two problems."""
    runs = []
    for i in range(draw(st.integers(4, 40))):
        search = draw(st.sampled_from(SEARCHES)).search_id
        parent = f"n{draw(st.integers(0, max(0, i - 1)))}" if i else None
        speedup = draw(st.sampled_from([None, 0.3, 0.7, 1.1, 1.2, 3.0]))
        runs.append(Run(search, draw(st.sampled_from(POOL)), speedup, node=f"n{i}", parent=parent))
    tables = make_tables(SEARCHES, runs)
    rows = tables["evaluations"].to_pylist()
    for row in rows:
        for role in ("held_out", "training"):
            if row["search_id"] == f"fp8_quant-{role}" and row["step"] != 1:
                row["search_id"] = f"two-{role}"
    tables["evaluations"] = type(tables["evaluations"]).from_pylist(rows, schema=tables["evaluations"].schema)
    return tables


def selected(tables, most):
    """What is selected of every split, in parts of at most so many rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_ROWS", most)
        tables, members, found = MemoryTables(tables), {}, {}
        for name, split in SPLIT_TABLES.items():
            selection = select_split(split, tables, Rules(gpu=None), members)
            members[name] = selection.members
            found[name] = (selection.table, selection.facts, selection.members)
        return found, len(list(tables.parts()))


@settings(max_examples=12, deadline=None)
@given(tables=archives())
def test_parts_select_what_the_whole_selects(tables):
    """Rows, labels, order, facts and members of every split are the same, however small the parts."""
    whole, one = selected(tables, 10**9)
    for most in (1, 20):
        cut, several = selected(tables, most)
        assert cut == whole
        assert one <= several <= len(PROBLEMS)


def test_problems_of_one_search_stay_together():
    """An edge may lead to a program of another problem, which is counted: both are looked at together."""
    runs = [Run(s.search_id, POOL[i]) for i, s in enumerate(SEARCHES)]
    tables = MemoryTables(make_tables(SEARCHES, runs))
    rows = tables.tables["evaluations"].to_pylist()
    rows[0]["search_id"] = "fp8_quant-training"  # a row of trimul
    tables.tables["evaluations"] = type(tables.tables["evaluations"]).from_pylist(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_ROWS", 1)
        assert [p.problems for p in tables.parts()] == [
            frozenset(names) for names in (["cross_entropy"], ["fp8_quant", "trimul"], *([p] for p in PROBLEMS[3:]))
        ]


def test_findings_and_files_are_those_of_one_part(tmp_path, monkeypatch):
    """Leaks across problems are found in the same order, with the same words; and files have the same bytes."""
    speeds = (0.2, 0.7, 1.2, 3.0)
    runs = [
        Run(s.search_id, program(f"{s.search_id}{i}"), speeds[i % 4], parent=f"n{i - 1}" if i else None)
        for s in SEARCHES
        for i in range(4)
    ]

    def plant(rows):
        held = [row for row in rows["kernels", "test"] if row["problem"] == "trimul"]
        template = rows["kernels", "train"][-1]
        for i, row in enumerate(held):
            code = f"{row['code']}# {i}\n"
            ids = {"program_id": program_id(code), "token_id": token_id(code), "kernel_id": f"planted-{i}"}
            rows["kernels", "train"].append(
                {**template, **ids, "code": code, "problem": ("fp8_quant", "trimul")[i % 2]}
            )

    found, files = [], []
    # Further processes would not see the patched number, and need not: what they are given is a part already.
    for name, most, size in (("one", 10**9, 1), ("many", 1, 1), ("processes", 1, 2)):
        monkeypatch.setattr(module, "MOST_ROWS", most)
        with pytest.raises(LeakageError) as error:
            make_splits(make_archive(tmp_path / f"{name}-leaks", SEARCHES, runs, plant=plant))
        found.append(error.value.findings)
        place = make_archive(tmp_path / name, SEARCHES, runs)
        with team(size) as workers:
            make_splits(place, workers=workers)
        files.append({p.relative_to(place): p.read_bytes() for p in place.rglob("*") if p.is_file()})
        assert len(list(ArchiveTables(open_archive(place)).parts())) == (1 if most > 1 else len(PROBLEMS))
    assert found[0] == found[1] == found[2]
    assert "near-duplicate-leak" in {finding.code for finding in found[0]}
    assert files[0] == files[1] == files[2]
