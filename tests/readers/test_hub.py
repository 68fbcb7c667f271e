"""The published tables: events of several searches, and the three splits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readers.reading import read
from support.puct import V2, gpu_mode, ulid

from kernel_archive.bins import bin_of

if TYPE_CHECKING:
    from pathlib import Path


def event_rows(events: list[dict[str, Any]], search: str) -> list[dict[str, Any]]:
    """Events as the published table has them."""
    return [
        {"event_index": i, "event_kind": e["kind"], "payload": e, "source_search": search}
        for i, e in enumerate(events)
    ]


def two_searches() -> list[dict[str, Any]]:
    """Two small searches, one behind the other."""
    first = V2().step(0).child(1, gpu_mode(2.0)).child(2, gpu_mode(kind="incorrect"), parent=1)
    second = V2(gpu_mode(1.5), root=50).step(0).child(51, gpu_mode(3.0), parent=50)
    second.ask(52, parent=50)
    return event_rows(first.end(0).rows, "s1") + event_rows(second.end(0).rows, "s2")


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a table as the Hub has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("form", ["structs", "json text"])
def test_searches_of_one_file_stay_apart(tmp_path: Path, form: str) -> None:
    """Each search has its own evaluations and facts, whether payloads are structs (with nulls) or
    text.
    """
    rows = two_searches()
    if form == "json text":
        rows = [{**row, "payload": json.dumps(row["payload"])} for row in rows]
    path = write_table(tmp_path / "events-00000-of-00001.parquet", rows)
    result = read("hub-events", path)
    assert {(e.search, e.node_id, e.outcome, e.speedup) for e in result.evaluations} == {
        ("s1", ulid(0), "success", 1.0),
        ("s1", ulid(1), "success", 2.0),
        ("s1", ulid(2), "incorrect", None),
        ("s2", ulid(50), "success", 1.5),
        ("s2", ulid(51), "success", 3.0),
    }
    facts = {f.search: f for f in result.all_facts}
    assert (facts["s1"].n_pending, facts["s2"].n_pending) == (0, 1)
    assert {f.problem for f in result.all_facts} == {"cross_entropy"}
    assert not result.findings
    assert result.by_node[ulid(1)].cases[0].shape == {"vocab_size": 1000}


def test_settings_from_the_summaries(tmp_path: Path) -> None:
    """Where the table of summaries lies beside, each search takes problem, GPU and model from its
    own.
    """
    first = {"pack": "cross_entropy", "hardware": {"gpu": "L40S"}}
    second = {"mutator_model_slug": "m", "hardware": {"gpu": "H100"}}
    settings = {"s1": json.dumps(first), "s2": json.dumps(second)}
    summaries = [{"source_search": s, "config_snapshot": c} for s, c in settings.items()]
    write_table(tmp_path / "s_summaries" / "x.parquet", summaries)
    path = write_table(tmp_path / "s" / "events.parquet", two_searches())
    facts = {f.search: f for f in read("hub-events", path, tmp_path).all_facts}
    assert (facts["s1"].gpu, facts["s1"].finished) == ("L40S", True)
    assert (facts["s2"].gpu, facts["s2"].model) == ("H100", "m")


def eval_row(n: int, speedup: float = 2.5, **more: Any) -> dict[str, Any]:
    """A row of the published evaluation set."""
    return {
        "comparison_id": f"c{n}",
        "pack": "trimul",
        "anchor_code": "anchor",
        "candidate_code": f"candidate {n}",
        "hardware": "NVIDIA A100-SXM4-80GB",
        "aggregated_speedup": speedup,
        "true_bin": bin_of(speedup, "released"),
        "source_search": "s1",
        **more,
    }


def test_evaluation_set_is_kept_as_published_and_measured(tmp_path: Path) -> None:
    """Each row is a published row, in order, and a measurement of its candidate against its
    reference.
    """
    rows = [eval_row(3, 0.3), eval_row(1, 4.0), eval_row(2, 1.1, source_search="s2")]
    result = read("hub-eval-set", write_table(tmp_path / "t.parquet", rows))
    assert [(p.row_id, p.order, p.label, p.speedup) for p in result.published] == [
        ("c3", 0, 1, 0.3),
        ("c1", 1, 8, 4.0),
        ("c2", 2, 4, 1.1),
    ]
    measured = [("c3", "s1", 0.3), ("c1", "s1", 4.0), ("c2", "s2", 1.1)]
    assert [(e.node_id, e.search, e.speedup) for e in result.evaluations] == measured
    shared = {(e.reference_code, e.gpu, e.problem) for e in result.evaluations}
    assert shared == {("anchor", "NVIDIA A100-SXM4-80GB", "trimul")}
    counts = {"s1": {"published_rows": 2}, "s2": {"published_rows": 1}}
    assert {f.search: f.counts for f in result.all_facts} == counts
    assert not result.findings


def test_faults_of_published_rows(tmp_path: Path) -> None:
    """Missing or impossible values and repeated ids are reported and left out."""
    rows = [
        eval_row(1),
        eval_row(1),
        eval_row(2, candidate_code=None),
        eval_row(3, aggregated_speedup=0.0),
        eval_row(4, true_bin=9),
        eval_row(5, true_bin=0),
        eval_row(6, true_bin=8),
        eval_row(7, comparison_id=""),
        eval_row(8, true_bin=6.0),
        eval_row(9, aggregated_speedup=float("nan")),
    ]
    result = read("hub-eval-set", write_table(tmp_path / "t.parquet", rows))
    assert [(p.row_id, p.label) for p in result.published] == [("c1", 6), ("c6", 8), ("c8", 6)]
    assert [(f.code, f.line) for f in result.findings] == [
        ("duplicate-row", 2),
        ("bad-row", 3),
        ("bad-row", 4),
        ("bad-row", 5),
        ("bad-row", 6),
        ("label-differs", 7),
        ("bad-row", 8),
        ("bad-row", 10),
    ]
    assert result.facts.counts == {"published_rows": 3, "rows_skipped": 7}
