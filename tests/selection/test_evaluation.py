"""The evaluation split on archives whose right rows are known."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.archives import MemoryTables, Run, Search, kernel_ids, make_tables, program, reference
from support.programs import jaccard

from kernel_archive.bins import SCHEMES, bin_of
from kernel_archive.errors import DataError, UsageError
from kernel_archive.ids import program_id, sha256_hex
from kernel_archive.problems import GPU_MODE_TASKS
from kernel_archive.schema import TABLES
from kernel_archive.selection import evaluation
from kernel_archive.selection.definitions import canonical_definition, load_definition, with_changes
from kernel_archive.selection.evaluation import AmbiguousGpuError, select_eval, selection_hash
from kernel_archive.splits import SPLITS

RULE = with_changes(load_definition("eval"), measured=1)
# One program per run keeps what the examples cost small; texts are made once.
CODES = [program(f"e{i}") for i in range(64)]


@pytest.fixture(scope="module", autouse=True)
def measured_once():
    """The canonical definition is the shipped one, but for programs that were measured once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            evaluation,
            "canonical_definition",
            lambda split, tables: (
                RULE if tables.evaluation is None else canonical_definition(split, tables)
            ),
        )
        yield


def select(searches, runs, definition=RULE, **options):
    """The split of a hand-made archive."""
    return select_eval(
        SPLITS["eval"], MemoryTables(make_tables(searches, runs)), definition, **options
    )


def cells(selection):
    """(task, bin) -> row ids, in order."""
    found = {}
    for row in selection.rows.select(["task", "bin", "row_id"]).to_dicts():
        found.setdefault((row["task"], row["bin"]), []).append(row["row_id"])
    return found


def test_table_has_exactly_the_schema_and_the_texts():
    """The table follows the data contract.

    Both programs stand in it, and the row is named by its kernel.
    """
    searches, runs = [Search("s", "trimul")], [Run("s", CODES[0], 1.71)]
    table = select(searches, runs).table
    assert table.schema == TABLES["eval"].schema
    (row,) = table.to_pylist()
    assert (row["row_id"], row["kernel_id"]) == (kernel_ids(searches, runs)[0],) * 2
    assert (row["reference_code"], row["candidate_code"]) == (reference("trimul"), CODES[0])
    assert (row["task"], row["gpu"], row["speedup"], row["bin"], row["bin_scheme"]) == (
        "trimul",
        "H200",
        1.71,
        6,
        "paper",
    )


def test_cap_takes_the_smallest_hashes_in_order():
    """A full cell gives the kernels with the smallest hash of their id, sorted by task, bin and
    that hash.
    """
    searches = [Search("a", "trimul"), Search("b", "cross_entropy")]
    runs = [Run("ab"[i % 2], code, 1.1 if i % 3 else 3.0) for i, code in enumerate(CODES)]
    names = kernel_ids(searches, runs)
    got = select(searches, runs, RULE)
    for search, task in (("a", "trimul"), ("b", "cross_entropy")):
        for speedup in (1.1, 3.0):
            members = [
                n
                for n, r in zip(names, runs, strict=True)
                if (r.search, r.speedup) == (search, speedup)
            ]
            wanted = sorted(members, key=lambda n: selection_hash("eval:", n))[:10]
            assert sorted(cells(got)[task, bin_of(speedup)]) == sorted(wanted)
    ids = got.table["row_id"].to_pylist()
    assert len(ids) == 40
    assert ids == sorted(ids, key=lambda name: sha256_hex(f"order:{name}".encode()))


@pytest.mark.parametrize("scheme", ["paper", "released"])
@pytest.mark.parametrize("edge", [0.25, 0.5, 2**-0.5, 1.0, 2**0.5, 2.0, 2**1.5, 4.0])
def test_edges_are_labelled_by_the_scheme(scheme, edge):
    """Speedups exactly at an edge, one step below and one above get the label that the scheme's
    own intervals say.
    """
    import math

    speedups = [math.nextafter(edge, 0), edge, math.nextafter(edge, 9)]
    runs = [Run("s", code, s) for code, s in zip(CODES, speedups, strict=False)]
    got = select([Search("s")], runs, with_changes(RULE, scheme=scheme))
    found = {row["speedup"]: row["bin"] for row in got.rows.to_dicts()}
    rule = SCHEMES[scheme]
    for s in speedups:
        low, high = rule.interval(found[s])
        inside = low < s <= high if rule.right_closed else low <= s < high
        assert inside, (s, found[s])
    assert got.scheme == scheme
    assert set(got.rows["bin_scheme"].to_list()) == {scheme}


def test_empty_cells_and_tasks_show():
    """A bin or a task without kernels has a zero in the table, and counts as short."""
    facts = select([Search("s", "fp8_quant")], [Run("s", CODES[0], 3.0)]).facts.facts
    assert list(facts["cells"]) == sorted(GPU_MODE_TASKS)
    assert facts["cells"]["fp8_quant"] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert facts["cells"]["trimul"] == [0] * 8
    assert facts["short_cells"] == 48


def test_only_held_out_searches():
    """A kernel that stands in test though its search is not held out does not enter."""
    runs = [Run("s", CODES[0], 3.0)]
    searches = make_tables([Search("s", role="archive")], runs)["searches"]
    got = select_eval(
        SPLITS["eval"],
        MemoryTables({**make_tables([Search("s")], runs), "searches": searches}),
        RULE,
    )
    assert len(got) == 0
    assert got.facts.facts["excluded"]["not_held_out"] == 1


def test_other_problems_and_unknown_references_are_counted_out():
    """Problems that are no task, and kernels whose reference no log states, are no rows."""
    searches = [Search("a"), Search("b", "kernelbench_l3_p48"), Search("c", reference=None)]
    runs = [Run("a", CODES[0], 2.0), Run("b", CODES[1], 2.0), Run("c", CODES[2], 2.0)]
    got = select(searches, runs)
    assert got.rows["search_id"].to_list() == ["a"]
    assert got.facts.facts["excluded"] == {
        "near_training": 0,
        "other_gpu": 0,
        "other_problem": 1,
        "unknown_reference": 1,
    }


def test_the_reference_itself_is_not_asked_about_in_an_archive_of_ones_own():
    """Where a search's first program is its reference, its own row would be two runs of one
    text; the shipped split stays as it is.
    """
    runs = [
        Run("s", reference("trimul"), 1.0),
        *(Run("s", code, n) for code, n in zip(CODES, (0.3, 1.2, 3.0), strict=False)),
    ]
    tables = MemoryTables(make_tables([Search("s")], runs))
    assert len(select_eval(SPLITS["eval"], tables, RULE)) == 4
    tables.evaluation = {}
    got = select_eval(SPLITS["eval"], tables, canonical_definition(SPLITS["eval"], tables))
    assert reference("trimul") not in got.table["candidate_code"].to_pylist()
    assert (len(got), got.facts.facts["excluded"]["reference_itself"]) == (3, 1)


def test_flags_exclude_only_when_the_definition_says_so():
    """By default a flag drops nothing.

    A definition that lists it drops its kernels and makes a variant.
    """
    runs = [Run("s", CODES[0], 2.0, flags=("unstable",)), Run("s", CODES[1], 2.0)]
    assert len(select([Search("s")], runs)) == 2
    strict = select([Search("s")], runs, with_changes(RULE, exclude_flags=["unstable"]))
    assert len(strict) == 1
    assert strict.facts.facts["excluded"]["flagged"] == 1
    assert strict.variant.startswith("eval-")


def test_two_references_of_one_problem_stay_apart():
    """One program timed against two references is two rows."""
    other = reference("trimul", 1)
    searches = [Search("a"), Search("b", reference=other)]
    got = select(searches, [Run("a", CODES[0], 1.2), Run("b", CODES[0], 5.0)]).table.to_pylist()
    assert {(r["speedup"], r["reference_code"]) for r in got} == {
        (1.2, reference("trimul")),
        (5.0, other),
    }
    assert {program_id(r["candidate_code"]) for r in got} == {program_id(CODES[0])}
    facts = select(searches, [Run("a", CODES[0], 1.2), Run("b", CODES[0], 5.0)]).facts.facts
    assert facts["references"] == 2
    ids = [program_id(reference("trimul")), program_id(other)]
    assert facts["several_references"] == {"trimul": dict.fromkeys(ids, 1)}


def test_one_program_on_two_gpus_enters_once():
    """A split has one GPU: the same program's other measurement is left out, and counted."""
    searches = [Search("a", gpu="A100-80GB"), Search("b", gpu="H200")]
    got = select(searches, [Run("a", CODES[0], 1.2), Run("b", CODES[0], 5.0)])
    assert got.rows["speedup"].to_list() == [1.2]
    assert got.facts.facts["excluded"]["other_gpu"] == 1
    assert got.facts.facts["gpus"] == {"A100-80GB": 1, "H200": 1}


def test_gpu_choice():
    """The preferred GPU when present, else the only one, else the user must say."""

    def pick(gpus, **options):
        searches = [Search(g, gpu=g) for g in gpus]
        return select(
            searches, [Run(g, c, 1.2) for g, c in zip(gpus, CODES, strict=False)], **options
        )

    assert pick(["A100-80GB", "H200"]).facts.parameters["gpu"] == "A100-80GB"
    assert pick(["L40S"]).facts.parameters["gpu"] == "L40S"
    with pytest.raises(AmbiguousGpuError, match="H200, L40S"):
        pick(["L40S", "H200"])
    assert pick(["L40S", "H200"], gpu="NVIDIA H200").rows["gpu"].to_list() == ["H200"]
    with pytest.raises(UsageError, match=r"H100\. GPUs with such kernels: H200, L40S"):
        pick(["L40S", "H200"], gpu="H100")


def test_variants_say_what_differs():
    """A split with another cap, GPU, scheme or task list is never called canonical."""
    searches = [Search("a", gpu="A100-80GB"), Search("b", gpu="H200")]
    runs = [Run("a", CODES[0], 1.2), Run("b", CODES[1], 5.0)]
    names = {
        "canonical": {},
        "eval-cap20": {"definition": with_changes(RULE, cap=20)},
        "eval-h200": {"gpu": "h200"},
        "eval-cap5-h200-released": {
            "definition": with_changes(RULE, cap=5, scheme="released"),
            "gpu": "H200",
        },
    }
    for name, options in names.items():
        assert select(searches, runs, **options).variant == name
    assert select(searches, runs, gpu="NVIDIA A100-SXM4-80GB").variant == "canonical"
    assert select(
        searches, runs, with_changes(RULE, gpu="H200", tasks=["trimul"])
    ).variant.startswith("eval-h200-")
    assert select(searches, runs, with_changes(RULE, selection_key="other:")).variant != "canonical"


def test_a_definition_that_prefers_an_absent_gpu_is_a_variant():
    """It gives the canonical rows here, yet not by the canonical parameters."""
    searches, runs = [Search("a", gpu="H200")], [Run("a", CODES[0], 1.2)]
    canonical, other = (
        select(searches, runs),
        select(searches, runs, with_changes(RULE, gpu="B200")),
    )
    assert (canonical.variant, other.variant) == ("canonical", "eval-prefersb200")
    assert canonical.rows.equals(other.rows)
    assert canonical.parameters != other.parameters
    assert select([], []).variant == "canonical"
    assert select([], [], with_changes(RULE, gpu="B200")).variant == "eval-prefersb200"
    assert select(searches, runs, gpu="H200").parameters == canonical.parameters


def test_bad_speedups_name_the_kernel():
    """A speedup that is not finite and above 0 ends the selection and names the kernel."""
    tables = make_tables([Search("s")], [Run("s", CODES[0], 1.0)])
    broken = tables["kernels/test"]
    at = broken.schema.get_field_index("speedup")
    broken = broken.set_column(at, broken.schema.field(at), pa.array([float("nan")]))
    with pytest.raises(DataError) as error:
        select_eval(SPLITS["eval"], MemoryTables({**tables, "kernels/test": broken}), RULE)
    assert broken["kernel_id"][0].as_py() in error.value.findings[0].field


SPEEDUPS = st.sampled_from([0.1, 0.25, 0.3, 0.6, 0.9, 1.0, 1.3, 1.71, 2.0, 3.0, 4.0, 4.5])
PLACES = st.tuples(st.sampled_from(["trimul", "fp8_quant"]), SPEEDUPS)


@st.composite
def measured(draw, least=0, most=40):
    """Held-out runs of two tasks, one program each."""
    places = draw(st.lists(PLACES, min_size=least, max_size=most))
    return [Run(f"s/{task}", code, s) for (task, s), code in zip(places, CODES, strict=False)]


TWO = [Search("s/trimul", "trimul"), Search("s/fp8_quant", "fp8_quant")]


@settings(max_examples=25, deadline=None)
@given(runs=measured(), cap=st.integers(1, 4))
def test_no_cell_is_over_the_cap_and_none_is_short_without_need(runs, cap):
    """A cell holds the lesser of the cap and the kernels that there are."""
    got = select(TWO, runs, with_changes(RULE, cap=cap))
    facts = got.facts.facts
    for task, counts in facts["available"].items():
        assert facts["cells"][task] == [min(cap, n) for n in counts]
        assert sum(counts) == sum(r.search == f"s/{task}" for r in runs)
    assert all(row["bin"] == bin_of(row["speedup"]) for row in got.rows.to_dicts())


def rule(**changes):
    """The canonical definition, changed."""
    return with_changes(RULE, **changes)


def test_only_natural_programs():
    """Programs of a builder that says nothing of how they were written are left out and counted;
    other rules take them.
    """
    searches, runs = (
        [Search("s", builder="generated"), Search("n")],
        [Run("s", CODES[0], 3.0), Run("n", CODES[1], 3.0)],
    )
    got = select(searches, runs)
    assert got.rows["search_id"].to_list() == ["n"]
    assert got.facts.facts["excluded"]["other_builder"] == 1
    assert len(select(searches, runs, rule(natural=False))) == 2


def test_only_the_languages_that_the_definition_names():
    """The language is that of the text; no language means every one."""
    tables = make_tables([Search("s")], [Run("s", CODES[0], 3.0), Run("s", CODES[1], 3.0)])
    kernels = tables["kernels/test"]
    at = kernels.schema.get_field_index("language")
    tables["kernels/test"] = kernels.set_column(
        at, kernels.schema.field(at), pa.array(["cuda", "triton"])
    )
    for languages, expected in (
        (["triton"], ["triton"]),
        (["cuda"], ["cuda"]),
        ([], ["cuda", "triton"]),
    ):
        got = select_eval(SPLITS["eval"], MemoryTables(tables), rule(languages=languages))
        assert sorted(got.rows["language"].to_list()) == expected
        assert got.facts.facts["excluded"].get("other_language", 0) == 2 - len(expected)


def test_a_row_shows_what_a_forecaster_may_see_and_how_sure_its_label_is():
    """Cases and tolerances are those of the reference."""
    tables = make_tables(
        [Search("s")], [Run("s", CODES[0], s, node=f"n{s}") for s in (3.0, 2.0, 2.5)]
    )
    references = tables["references"].drop_columns(["benchmark_cases", "rtol", "atol"])
    for name, value in (("benchmark_cases", '[{"n":1}]'), ("rtol", 0.01), ("atol", 0.001)):
        references = references.append_column(name, pa.array([value]))
    tables["references"] = references
    (row,) = select_eval(SPLITS["eval"], MemoryTables(tables), RULE).table.to_pylist()
    assert (row["benchmark_cases"], row["rtol"], row["atol"]) == ('[{"n":1}]', 0.01, 0.001)
    assert (row["n_measurements"], row["speedup_min"], row["speedup"], row["speedup_max"]) == (
        3,
        2.0,
        2.5,
        3.0,
    )
    assert row["language"] == "triton"


def copies(n, base="base"):
    """Near copies of one program: one constant differs."""
    text = program(base, size=16)
    made = [text, *(text.replace("pid + 15)", f"pid + {100 + i})") for i in range(n - 1))]
    assert min(jaccard(text, other) for other in made) >= 0.7
    return made


def test_a_cell_takes_one_of_near_copies():
    """Of five near copies and two other programs of a cell three are taken."""
    runs = [Run("s", code, 3.0) for code in (*copies(5), CODES[0], CODES[1])]
    runs.append(Run("s", program("base", size=16).replace("pid + 15)", "pid + 999)"), 1.1))
    got = select([Search("s")], runs)
    assert {cell: len(rows) for cell, rows in cells(got).items()} == {
        ("trimul", 5): 1,
        ("trimul", 7): 3,
    }
    assert got.facts.facts["excluded"]["near_copy_in_cell"] == 4
    assert len(select([Search("s")], runs, rule(near_copy=1.0))) == 8


def test_what_is_near_to_training_is_left_out():
    """A near copy of a training program of the same problem is left out."""
    one, two = copies(2)
    searches = [
        Search("s"),
        Search("t", role="training"),
        Search("u", "fp8_quant", role="training"),
    ]
    near = select(searches, [Run("s", one, 3.0), Run("t", two, 3.0)])
    assert (len(near), near.facts.facts["excluded"]["near_training"]) == (0, 1)
    assert len(select(searches, [Run("s", one, 3.0), Run("u", two, 3.0)])) == 1


def test_only_kernels_that_were_measured_often_enough():
    """Of fourteen kernels seven have the three measurements that the definition asks for."""
    runs = [
        Run("s", code, 3.0, node=f"{i}.{k}")
        for i, code in enumerate(CODES[:14])
        for k in range(1 + 2 * (i % 2))
    ]
    got = select([Search("s")], runs, rule(measured=3))
    assert got.rows["n_measurements"].to_list() == [3] * 7
    assert got.facts.facts["excluded"]["measured_too_seldom"] == 7


def test_the_shipped_transfer_splits_select_by_their_own_rules():
    """Held-out problems in every language; and the six tasks in CUDA C++ alone."""
    searches = [Search("a", "nbody_forces"), Search("b", "histogram"), Search("c", "trimul")]
    runs = [
        Run(s.search_id, CODES[i], 3.0, node=f"n{k}") for i, s in enumerate(searches) for k in "abc"
    ]
    tables = MemoryTables(make_tables(searches, runs))
    for name, tasks in (
        ("eval_problems", ["nbody_forces"]),
        ("eval_cuda", []),
        ("eval", ["trimul"]),
    ):
        got = select_eval(SPLITS[name], tables, load_definition(name))
        assert got.rows["task"].to_list() == tasks


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_do_not_depend_on_the_order_of_the_tables(data):
    """Any mixture of searches, problems and measurements gives the same rows, shuffled or not."""
    names = ["a", "b", "c"]
    searches = [
        Search(name, task)
        for name, task in zip(names, ("trimul", "trimul", "fp8_quant"), strict=True)
    ]
    picks = data.draw(
        st.lists(st.tuples(st.sampled_from(names), st.integers(1, 4)), min_size=1, max_size=30)
    )
    pool = [*copies(10), *CODES]
    runs = [
        Run(name, pool[i], 3.0 if i % 2 else 1.1, node=f"{i}.{k}")
        for i, (name, n) in enumerate(picks)
        for k in range(n)
    ]
    tables = MemoryTables(make_tables(searches, runs))
    definition = rule(cap=data.draw(st.integers(1, 5)))
    first = select_eval(SPLITS["eval"], tables, definition)
    again = select_eval(
        SPLITS["eval"], tables.shuffled(random.Random(data.draw(st.integers(0, 9)))), definition
    )
    assert first.table.equals(again.table)
    code = dict(
        zip(
            first.table["row_id"].to_pylist(),
            first.table["candidate_code"].to_pylist(),
            strict=True,
        )
    )
    for rows in cells(first).values():
        assert len(rows) <= definition.cap
        assert all(jaccard(code[a], code[b]) < 0.7 for i, a in enumerate(rows) for b in rows[:i])
