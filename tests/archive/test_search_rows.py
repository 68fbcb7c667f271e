"""From records to rows: what a log can say wrongly is a finding with its place."""

from __future__ import annotations

import pytest
from support.programs import program

from kernel_archive.archive.jobs import RunJob
from kernel_archive.archive.recipe import LoadedRecipe, Recipe, Source
from kernel_archive.archive.search_rows import SearchRows
from kernel_archive.readers.records import Evaluation, SearchFacts

REFERENCE = program("reference")


@pytest.fixture
def search(tmp_path):
    """An empty search of one problem on one GPU."""
    source = Source(
        path="x", format="puct-events", role="held_out", generation_method="tree_search"
    )
    recipe = Recipe(name="made", licence="MIT", description="Made.", source=[source])
    loaded = LoadedRecipe(recipe=recipe, file=tmp_path / "builder.toml")
    job = RunJob(run_id="made/x", loaded=loaded, index=0, path=tmp_path / "x", base=tmp_path)
    rows = SearchRows(job, "made/x")
    rows.facts = SearchFacts(problem="trimul", gpu="H200", reference_code=REFERENCE)
    return rows


def record(node, line=1, **more):
    """A success of a program called after its node."""
    fields = {"code": program(f"p_{node}"), "outcome": "success", "speedup": 2.0, **more}
    return Evaluation(node_id=node, source_file="log.jsonl", source_line=line, **fields)


def found(search):
    """Codes, lines and fields of the findings."""
    return [(f.code, f.line, f.field) for f in search.findings]


def test_a_refused_record_does_not_give_its_parent_away(search):
    """Of two records of one node the first is refused."""
    search.evaluations = [
        record("a"),
        record("b"),
        record("child", 3, speedup=float("inf"), parent_node_id="a"),
        record("child", 4, parent_node_id="b"),
    ]
    rows = {row["node_id"]: row for row in search.rows(0)}
    assert rows["child"]["parent_kernel_id"] == rows["b"]["kernel_id"]
    assert (rows["child"]["parent_distance"], rows["child"]["source_line"]) == (1, 4)
    assert found(search) == [("bad-speedup", 3, "speedup")]


@pytest.mark.parametrize(
    ("code", "field", "value"),
    [
        *(("bad-speedup", "speedup", value) for value in (1e308, 1e-308, 0.0, -1.0, None)),
        *(("bad-speedup", "speedup", float(text)) for text in ("inf", "nan")),
        ("bad-value", "step", 2**31),
        ("bad-value", "input_tokens", 2**63),
        ("bad-value", "n_logged", 2**31),
        ("bad-value", "gpu_seconds", 1e308),
        ("bad-value", "gpu_seconds", float("nan")),
        ("bad-value", "reference_runtime_us", float("inf")),
    ],
)
def test_a_number_that_is_none_is_a_finding(search, code, field, value):
    """Medians and quotients of speedups must stay finite, and numbers fit their column."""
    search.evaluations = [record("a"), record(node="b", line=9), record("c", 10)]
    setattr(search.evaluations[1], field, value)
    assert [row["node_id"] for row in search.rows(0)] == ["a", "c"]
    assert found(search) == [(code, 9, field)]


def test_what_the_reference_does_is_not_artificial(search):
    """Each program is held against its own reference, wherever that stands."""
    double = "def custom_kernel(x):\n    return x.double()\n"
    search.evaluations = [
        record("a", code=double),
        record("b", code=double, reference_code="def reference(x):\n    return x.double()\n"),
        record("c", code=f"{double}# c", outcome="incorrect", speedup=None),
        record("d"),
    ]
    assert [row["artificial"] for row in search.rows(0)] == [True, False, False, False]
