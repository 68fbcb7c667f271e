"""The evaluation split on archives whose right rows are known."""

from __future__ import annotations

import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import (
    EVALUATION,
    Run,
    Search,
    kernel_ids,
    make_tables,
    memory_tables,
    reference,
    with_column,
)
from support.programs import jaccard, program

from kernel_archive.bins import bin_of
from kernel_archive.errors import DataError
from kernel_archive.ids import program_id, sha256_hex
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.schema import TABLES
from kernel_archive.selection.definitions import load_definition, with_changes
from kernel_archive.selection.make import select_split
from kernel_archive.selection.own_archive import canonical_definition
from kernel_archive.splits import SPLITS

DEFINITION = with_changes(load_definition("eval"), measured=1)
S = Search("s")
# One program per run keeps what the examples cost small; texts are made once.
CODES = [program(f"e{i}") for i in range(64)]


def select(searches, runs, **options):
    """The split of a hand-made archive."""
    return select_tables(make_tables(searches, runs), **options)


def select_tables(tables, rng=None, gpu=None, **changes):
    """The split of an archive with these tables."""
    tables = memory_tables(tables, rng=rng)
    return select_split(SPLITS["eval"], tables, {}, with_changes(DEFINITION, **changes), gpu)


def excluded(selection):
    """Counts of what was left out, by reason."""
    return {name: n for name, n in selection.facts.facts["excluded"].items() if n}


def test_a_row_is_its_kernel_with_what_a_forecaster_may_see():
    """Both texts, the label and how sure it is; cases and tolerances are the reference's."""
    runs = [Run("s", CODES[0], s, node=f"n{s}") for s in (1.71, 1.6, 1.8)]
    tables = make_tables([S], runs)
    stated = {"benchmark_cases": '[{"n":1}]', "rtol": 0.01, "atol": 0.001}
    for name, value in stated.items():
        tables["references"] = with_column(tables["references"], name, [value])
    table = select_tables(tables).table
    assert table.schema == TABLES["eval"].schema
    (row,) = table.to_pylist()
    name = kernel_ids([S], runs)[0]
    wanted = {
        **stated,
        "row_id": name,
        "kernel_id": name,
        "task": "trimul",
        "gpu": "H200",
        "reference_code": reference("trimul"),
        "candidate_code": CODES[0],
        "speedup": 1.71,
        "bin": 6,
        "bin_scheme": "paper",
        "language": "triton",
        "n_measurements": 3,
        "speedup_min": 1.6,
        "speedup_max": 1.8,
        "search_id": "s",
    }
    assert {key: row[key] for key in wanted} == wanted


def hashed(key, name):
    """What kernels and rows are sorted by."""
    return sha256_hex(f"{key}{name}".encode())


def test_cap_takes_the_smallest_hashes_in_order():
    """A full cell gives the kernels with the smallest hash of their id; rows are in another."""
    searches = [Search("a", "trimul"), Search("b", "cross_entropy")]
    runs = [Run("ab"[i % 2], code, 1.1 if i % 3 else 3.0) for i, code in enumerate(CODES)]
    names = kernel_ids(searches, runs)
    rows = select(searches, runs).table
    wanted = set()
    for cell in {(run.search, run.speedup) for run in runs}:
        members = [n for n, r in zip(names, runs, strict=True) if (r.search, r.speedup) == cell]
        wanted.update(sorted(members, key=lambda n: hashed("eval:", n))[:10])
    ids = rows["row_id"].to_pylist()
    assert (len(ids), set(ids)) == (40, wanted)
    assert ids == sorted(ids, key=lambda name: hashed("order:", name))


def test_empty_cells_and_tasks_show():
    """A bin or a task without kernels has a zero in the table."""
    cells = select([Search("s", "fp8_quant")], [Run("s", CODES[0], 3.0)]).facts.facts["cells"]
    assert list(cells) == sorted(GPU_MODE_TASKS)
    assert (cells["fp8_quant"], cells["trimul"]) == ([0, 0, 0, 0, 0, 0, 1, 0], [0] * 8)


def test_what_is_not_asked_about_is_counted_by_its_reason():
    """Each kernel but one is left out for a reason of its own."""
    searches = [S, Search("b", "kernelbench_l3_p48"), Search("c", reference=None)]
    searches += [Search("d", builder="generated"), Search("e")]
    runs = [
        *(Run(name, code, 2.0) for name, code in zip("sbcde", CODES, strict=False)),
        Run("s", CODES[5], 2.0, flags=("unfit",)),
        Run("s", CODES[6], 2.0, gpu="A100-80GB"),
        Run("s", CODES[7], 2.0),
    ]
    tables = make_tables(searches, runs)
    kernels = pl.DataFrame(tables["kernels/test"])
    is_last = pl.col("program_id") == program_id(CODES[7])
    cuda = kernels.with_columns(
        language=pl.when(is_last).then(pl.lit("cuda")).otherwise("language")
    )
    archive_role = pl.when(pl.col("search_id") == "e").then(pl.lit("archive")).otherwise("role")
    tables["kernels/test"] = cuda.to_arrow().cast(TABLES["kernels"].schema)
    searches = pl.DataFrame(tables["searches"]).with_columns(role=archive_role)
    tables["searches"] = searches.to_arrow().cast(TABLES["searches"].schema)
    got = select_tables(tables, gpu="H200")
    assert got.rows["candidate_program"].to_list() == [program_id(CODES[0])]
    reasons = ("other_problem", "unknown_reference", "other_builder", "flagged", "other_gpu")
    assert excluded(got) == dict.fromkeys([*reasons, "not_held_out", "other_language"], 1)
    assert got.facts.facts["gpus"] == {"A100-80GB": 1, "H200": 1}
    assert len(select_tables(tables, natural=False, gpu="H200").rows) == 2
    for languages, n in (["cuda"], 1), ([], 2), (["triton", "cuda"], 2):
        assert len(select_tables(tables, languages=languages, gpu="H200").rows) == n


def test_the_reference_itself_is_not_asked_about_in_an_archive_of_ones_own():
    """Its own row would be two runs of one text; the shipped split stays as it is."""
    codes = (reference("trimul"), *CODES[:3])
    runs = [Run("s", code, n) for code, n in zip(codes, (1.0, 0.3, 1.2, 3.0), strict=True)]
    tables = make_tables([S], runs)
    assert len(select_tables(tables, languages=[]).rows) == 4
    own = memory_tables(tables, eval_rules={})
    got = select_split(SPLITS["eval"], own, {}, canonical_definition(SPLITS["eval"], own))
    assert (len(got.rows), excluded(got)) == (3, {"reference_itself": 1})


def test_two_references_of_one_problem_stay_apart():
    """One program timed against two references is two rows."""
    other = reference("trimul", 1)
    searches = [Search("a"), Search("b", reference=other)]
    got = select(searches, [Run("a", CODES[0], 1.2), Run("b", CODES[0], 5.0)]).table.to_pylist()
    found = {(r["speedup"], r["reference_code"], r["candidate_code"]) for r in got}
    assert found == {(1.2, reference("trimul"), CODES[0]), (5.0, other, CODES[0])}


def test_variants_have_names_of_their_own():
    """A split with another cap, GPU, scheme or task list is never called canonical."""
    searches = [Search("a", gpu="A100-80GB"), Search("b", gpu="H200")]
    tables = make_tables(searches, [Run("a", CODES[0], 1.2), Run("b", CODES[1], 5.0)])
    own = memory_tables(tables, eval_rules=EVALUATION)
    base = canonical_definition(SPLITS["eval"], own)

    def name(gpu=None, **changes):
        return select_split(SPLITS["eval"], own, {}, with_changes(base, **changes), gpu).facts.name

    assert {name(), name("NVIDIA A100-SXM4-80GB")} == {"canonical"}
    changes = [{"cap": 20}, {"scheme": "released"}, {"tasks": ["trimul"]}, {"selection_key": "o:"}]
    names = {"canonical", name("h200"), *(name(**change) for change in changes)}
    assert len(names) == 6


def test_bad_speedups_name_the_kernel():
    """A speedup that is not finite and above 0 ends the selection and names the kernel."""
    tables = make_tables([S], [Run("s", CODES[0], 1.0)])
    kernels = with_column(tables["kernels/test"], "speedup", [float("nan")])
    with pytest.raises(DataError) as error:
        select_tables({**tables, "kernels/test": kernels})
    assert kernels["kernel_id"][0].as_py() in error.value.findings[0].field


def copies(n):
    """Near copies of one program: one constant differs."""
    text = program("base", size=16)
    made = [text, *(text.replace("pid + 15)", f"pid + {100 + i})") for i in range(n - 1))]
    assert min(jaccard(text, other) for other in made) >= 0.7
    return made


def test_a_cell_takes_one_of_near_copies():
    """Of five near copies and two other programs of a cell three are taken."""
    runs = [Run("s", code, 3.0) for code in (*copies(5), CODES[0], CODES[1])]
    runs.append(Run("s", program("base", size=16).replace("pid + 15)", "pid + 999)"), 1.1))
    got = select([S], runs)
    assert got.facts.facts["cells"]["trimul"] == [0, 0, 0, 0, 1, 0, 3, 0]
    assert excluded(got) == {"near_copy_in_cell": 4}
    assert len(select([S], runs, near_copy=1.0).rows) == 8


def test_what_is_near_to_training_is_left_out():
    """A near copy of a training program of the same problem is left out."""
    one, two = copies(2)
    searches = [S, Search("t", role="training"), Search("u", "fp8_quant", role="training")]
    near = select(searches, [Run("s", one, 3.0), Run("t", two, 3.0)])
    assert (len(near.rows), excluded(near)) == (0, {"near_training": 1})
    assert len(select(searches, [Run("s", one, 3.0), Run("u", two, 3.0)]).rows) == 1


def test_only_kernels_that_were_measured_often_enough():
    """Of fourteen kernels seven have the three measurements that the definition asks for."""
    often = [Run("s", code, 3.0, node=f"{code}{k}") for code in CODES[:7] for k in range(3)]
    got = select([S], [*often, *(Run("s", code, 3.0) for code in CODES[7:14])], measured=3)
    assert got.rows["n_measurements"].to_list() == [3] * 7
    assert excluded(got) == {"measured_too_seldom": 7}


def test_the_shipped_transfer_splits_select_by_their_own_rules():
    """Held-out problems in every language; and the six tasks in CUDA C++ alone."""
    problems = ("nbody_forces", "histogram", "trimul")
    searches = [Search(problem, problem) for problem in problems]
    runs = [Run(problem, program(problem), 3.0, node=k) for problem in problems for k in "abc"]
    tables = memory_tables(make_tables(searches, runs))
    for name, tasks in ("eval_problems", ["nbody_forces"]), ("eval_cuda", []), ("eval", ["trimul"]):
        got = select_split(SPLITS[name], tables, {}, load_definition(name))
        assert got.rows["task"].to_list() == tasks


@settings(max_examples=25, deadline=None)
@given(
    picks=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.1, 0.25, 1.1, 3.0])), max_size=40
    ),
    cap=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_cells_of_any_archive(picks, cap, seed):
    """No cell is over the cap or has near copies; the order of the tables says nothing."""
    searches = [Search("a"), Search("b"), Search("c", "fp8_quant")]
    pool = [*copies(10), *CODES]
    runs = [Run(name, code, s) for (name, s), code in zip(picks, pool, strict=False)]
    first, again = (select(searches, runs, cap=cap, rng=rng) for rng in (None, random.Random(seed)))
    assert first.table.equals(again.table)
    cells = pl.DataFrame(first.table).partition_by("task", "bin")
    for rows in cells:
        codes = rows["candidate_code"].to_list()
        assert len(codes) <= cap
        assert all(jaccard(a, b) < 0.7 for i, a in enumerate(codes) for b in codes[:i])
        assert set(map(bin_of, rows["speedup"])) == set(rows["bin"])
    if len(runs) < 10:
        return
    alone = select(searches, runs[10:], cap=cap).facts.facts["cells"]
    for task, problem_searches in (("trimul", "ab"), ("fp8_quant", "c")):
        counts = [0] * 8
        for run in runs[10:]:
            counts[bin_of(run.speedup) - 1] += run.search in problem_searches
        assert alone[task] == [min(cap, n) for n in counts]
