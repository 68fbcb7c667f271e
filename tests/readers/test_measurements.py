"""``measurements``: tables of others, with every spelling of a missing value."""

from __future__ import annotations

import csv
import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from readers.reading import Read, read, write_lines

from kernel_archive.archive.guess import guess
from kernel_archive.readers import READERS
from kernel_archive.readers.files import RunFiles

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = {"code": "custom_code", "speedup": "score", "level": "level_id", "number": "task_id", "reference_code": "ref"}


def row(code: Any, score: Any, task: int = 1) -> dict[str, Any]:
    """A row as an independent project might write it."""
    return {"level_id": 1, "task_id": task, "ref": "reference", "custom_code": code, "score": score}


ROWS = [
    row("a = 1", 2.0, 1),
    row(None, 1.5, 2),  # a score but no code
    row("None", 1.5, 3),  # the text "None"
    row("b = 1", None, 4),  # code but no score
    row(None, None, 5),  # neither
    row("None", None, 6),
    row("c = 1", 1.0, 7),
]
COUNTS = {
    "rows": 7,
    "rows_without_code": 4,
    "rows_without_speedup": 3,
    "rows_without_code_and_speedup": 2,
    "rows_left_out": 5,
}


def _check(result: Read) -> None:
    assert [(e.code, e.speedup, e.problem) for e in result.evaluations] == [
        ("a = 1", 2.0, "kernelbench_l1_p1"),
        ("c = 1", 1.0, "kernelbench_l1_p7"),
    ]
    assert result.facts.counts == COUNTS
    assert {e.reference_code for e in result.evaluations} == {"reference"}
    assert {(f.code, f.severity) for f in result.findings} == {
        ("no-code", "warning"),
        ("no-speedup", "warning"),
        ("no-measurement", "warning"),
    }


def test_json_lines(tmp_path: Path) -> None:
    """Rows without code or score are counted and left out, in whichever way both are missing."""
    result = read("measurements", write_lines(tmp_path / "t.jsonl", ROWS), columns=COLUMNS)
    _check(result)
    assert [(e.node_id, e.source_line) for e in result.evaluations] == [("row-1", 1), ("row-7", 7)]


def test_json_list_gzip_and_parquet(tmp_path: Path) -> None:
    """The same table as one JSON list, gzipped, and as Parquet gives the same."""
    (tmp_path / "list.json").write_text(json.dumps(ROWS))
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    for name in ("list.json", "t.jsonl.gz", "t.parquet"):
        _check(read("measurements", tmp_path / name, columns=COLUMNS))


def test_csv_has_numbers_as_text(tmp_path: Path) -> None:
    """In CSV all is text: numbers are read, empty cells and spellings of nothing are missing, code keeps its lines."""
    with (tmp_path / "t.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ROWS[0])
        writer.writeheader()
        writer.writerows(ROWS)
        writer.writerow(row("d\n= 1", "3.5", 8))
        writer.writerow(row("e = 1", "NaN", 9))
    result = read("measurements", tmp_path / "t.csv", columns=COLUMNS)
    assert [(e.code, e.speedup) for e in result.evaluations] == [("a = 1", 2.0), ("c = 1", 1.0), ("d\n= 1", 3.5)]
    assert result.facts.counts["rows_without_speedup"] == 4


def test_plain_values_on_the_way_to_the_rows(tmp_path: Path) -> None:
    """A reference's time beside a list counts for each row of it; a speedup or verdict of the whole does not; own values win."""
    rows = [{"code": f"a = {n}", "ms": n, **own} for n, own in ((1, {}), (2, {"op": "own"}))]
    task = {"op": "gemm", "torch_ms": 4, "speedup": 9.0, "correct": False, "status": "failed", "tries": rows}
    (tmp_path / "t.jsonl").write_text(json.dumps(task) + "\n" + json.dumps({**task, "op": "b"}))
    times = {"runtime": {"column": "ms", "unit": "ms"}, "reference_runtime": {"column": "torch_ms", "unit": "ms"}}
    columns = {"code": "code", "problem": "op", **times}
    result = read("measurements", tmp_path / "t.jsonl", columns=columns, rows="tries")
    assert [(e.problem, e.speedup, e.source_line) for e in result.evaluations] == [
        ("gemm", 4.0, 1), ("own", 2.0, 1), ("b", 4.0, 2), ("own", 2.0, 2),
    ]  # fmt: skip
    assert len({e.node_id for e in result.evaluations}) == 4
    assert result.codes == ["same-row"]


def test_one_file_for_many_rows(tmp_path: Path) -> None:
    """A file without a column in its name is the program of one row; the others are refused, and it is said."""
    (tmp_path / "k.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "t.csv").write_text("x\n2.0\n3.0\n4.0\n")
    result = read("measurements", tmp_path / "t.csv", columns={"code": {"file": "k.py"}, "speedup": "x"})
    assert [(e.code, e.speedup) for e in result.evaluations] == [("a = 1\nb = 2\n", 2.0)]
    assert [(f.code, f.line) for f in result.findings] == [("one-program", 3)]
    assert "2 rows (lines 3, 4)" in result.findings[0].message


def test_numbers_with_their_units(tmp_path: Path) -> None:
    """A cell's own unit counts; a speedup may end in x, and a time that does is none."""
    rows = [
        "code;ms;ref;x",
        "a = 1;500 us;1.0;2x",
        "b = 1;0.5;1000000 ns;2.0\u00d7",
        "c = 1;2x;1.0;",
        "d = 1;0.5;0.001s;2 ms",
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    times = {"runtime": {"column": "ms", "unit": "ms"}, "reference_runtime": {"column": "ref", "unit": "ms"}}
    result = read("measurements", tmp_path / "t.csv", columns={"code": "code", "speedup": "x", **times})
    assert [(e.code, e.speedup, e.runtime_us, e.reference_runtime_us) for e in result.evaluations] == [
        ("a = 1", 2.0, 500.0, 1000.0), ("b = 1", 2.0, 500.0, 1000.0),
    ]  # fmt: skip
    assert sorted(result.codes) == ["bad-value", "no-speedup"]


@pytest.mark.parametrize("score", ["nan", "N/A", "", " None ", float("nan"), None])
def test_every_spelling_of_no_score(tmp_path: Path, score: Any) -> None:
    """A missing score is missing, never 0."""
    result = read("measurements", write_lines(tmp_path / "t.jsonl", [row("a = 1", score)]), columns=COLUMNS)
    assert not result.evaluations
    assert result.facts.counts == {"rows": 1, "rows_without_speedup": 1, "rows_left_out": 1}


@pytest.mark.parametrize("score", [0, 0.0, -1.5, "fast", True, float("inf"), [1]])
def test_scores_that_are_none(tmp_path: Path, score: Any) -> None:
    """A value that is no speedup is reported, not taken."""
    result = read("measurements", write_lines(tmp_path / "t.jsonl", [row("a = 1", score)]), columns=COLUMNS)
    assert not result.evaluations
    assert [(f.code, f.line, f.field) for f in result.findings] == [("bad-value", 1, "score")]
    assert result.facts.counts["rows_bad_value"] == 1


def test_outcome_column(tmp_path: Path) -> None:
    """With outcomes, failures are kept without a speedup; an unknown outcome is reported."""
    rows = [
        {"c": "a = 1", "s": 2.0, "o": "success"},
        {"c": "b = 1", "s": None, "o": "compile_failed"},
        {"c": "d = 1", "s": 3.0, "o": "incorrect"},
        {"c": "e = 1", "s": 1.0, "o": True},
        {"c": "g = 1", "s": 1.0, "o": False},
        {"c": "f = 1", "s": 1.0, "o": "weird"},
    ]
    columns = {"code": "c", "speedup": "s", "outcome": "o"}
    result = read("measurements", write_lines(tmp_path / "t.jsonl", rows), columns=columns)
    assert [(e.code, e.outcome, e.speedup) for e in result.evaluations] == [
        ("a = 1", "success", 2.0), ("b = 1", "compile_failed", None), ("d = 1", "incorrect", None),
        ("e = 1", "success", 1.0), ("g = 1", "incorrect", None),
    ]  # fmt: skip
    assert [(f.code, f.line) for f in result.findings] == [("fast-failure", 3), ("unknown-outcome", 6)]


def test_every_column_of_ours(tmp_path: Path) -> None:
    """Each of our columns can come from one of theirs."""
    theirs = {
        "code": "a = 1", "speedup": 2.0, "problem": "trimul", "gpu": "L40S", "reference_code": "r", "outcome": "success",
        "node_id": "n1", "parent_node_id": 5, "step": 3, "runtime_us": 10.0, "reference_runtime_us": 20.0, "model": "m",
        "input_tokens": 7, "output_tokens": 8, "gpu_seconds": 0.0, "started_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    result = read("measurements", write_lines(tmp_path / "t.jsonl", [theirs]), columns={k: k for k in theirs})
    (record,) = result.evaluations
    assert (record.node_id, record.parent_node_id, record.step) == ("n1", "5", 3)
    assert (record.problem, record.gpu, record.model) == ("trimul", "L40S", "m")
    assert (record.runtime_us, record.reference_runtime_us, record.gpu_seconds) == (10.0, 20.0, 0.0)
    assert (record.input_tokens, record.output_tokens) == (7, 8)


def test_node_ids_that_stand_twice_stay_apart(tmp_path: Path) -> None:
    """Two rows of one id are two evaluations, with a warning."""
    rows = [{"c": "a = 1", "s": 1.0, "n": "x"}, {"c": "b = 1", "s": 2.0, "n": "x"}]
    columns = {"code": "c", "speedup": "s", "node_id": "n"}
    result = read("measurements", write_lines(tmp_path / "t.jsonl", rows), columns=columns)
    assert list(result.by_node) == ["x", "x@2"]
    assert result.codes == ["duplicate-node"]


@pytest.mark.parametrize(
    ("columns", "code", "words"),
    [
        (None, "bad-columns", "code and speedup"),
        ({"code": "custom_code"}, "bad-columns", "code and speedup"),
        ({**COLUMNS, "sped": "x"}, "bad-columns", "speedup"),
        ({**COLUMNS, "code": "kode", "speedup": "skore"}, "wrong-format", "no column kode"),
        ({**COLUMNS, "code": "kode"}, "wrong-format", "no column kode"),
        ({**COLUMNS, "gpu": "device"}, "wrong-format", "no column device"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: Any, code: str, words: str) -> None:
    """A mapping to columns that the table hasn't is one error that names them."""
    path = write_lines(tmp_path / "t.jsonl", ROWS)
    result = read("measurements", path, **({"columns": columns} if columns is not None else {}))
    assert not result.evaluations
    (finding,) = result.findings
    assert finding.code == code
    assert words in finding.render()


def test_sparse_rows_may_lack_keys(tmp_path: Path) -> None:
    """JSON lines may leave a missing value's key out: a column counts as absent only when the first rows lack it all."""
    rows = [{"custom_code": "a = 1", "score": 2.0, "level_id": 1, "task_id": 2, "ref": "r"}, {"custom_code": "b"}]
    result = read("measurements", write_lines(tmp_path / "t.jsonl", rows), columns=COLUMNS)
    assert len(result.evaluations) == 1
    assert result.facts.counts["rows_without_speedup"] == 1


# -- where columns come from


def table(tmp_path: Path, *rows: dict[str, Any], name: str = "t.jsonl", **settings: Any) -> Read:
    """A table of these rows, read."""
    return read("measurements", write_lines(tmp_path / name, list(rows)), **settings)


@pytest.mark.parametrize(("unit", "us"), [("s", 2e6), ("ms", 2e3), ("us", 2.0), ("ns", 2e-3)])
def test_units(tmp_path: Path, unit: str, us: float) -> None:
    """A time has its unit in the recipe; a speedup is the ratio of the two, whatever their units."""
    columns = {
        "code": "c",
        "runtime": {"column": "t", "unit": unit},
        "reference_runtime": {"column": "r", "unit": "us"},
    }
    (record,) = table(tmp_path, {"c": "a = 1", "t": 2, "r": us * 3}, columns=columns).evaluations
    assert (record.runtime_us, record.reference_runtime_us) == (us, us * 3)
    assert record.speedup == pytest.approx(3.0)


def test_nested_json(tmp_path: Path) -> None:
    """Dotted paths go into objects, lists by number, and texts that are JSON; a column with a dot in its name is itself."""
    row = {"x": {"src": ["-", "a = 1"]}, "m": '{"ms": {"mean": 4.0}}', "base.ms": 8.0}
    columns = {
        "code": "x.src.1",
        "runtime": {"column": "m.ms.mean", "unit": "ms"},
        "reference_runtime": {"column": "base.ms", "unit": "ms"},
    }
    (record,) = table(tmp_path, row, columns=columns).evaluations
    assert (record.code, record.speedup) == ("a = 1", 2.0)


def test_code_from_files(tmp_path: Path) -> None:
    """A program lies in the file that the row names, inside the folder that the recipe names and nowhere else."""
    (tmp_path / "k").mkdir()
    (tmp_path / "k/a.cu").write_text("__global__ a")
    (tmp_path / "secret.cu").write_text("__global__ secret")
    rows = [{"f": "a", "s": 2.0}, {"f": "../secret", "s": 3.0}, {"f": "gone", "s": 4.0}]
    result = table(tmp_path, *rows, columns={"code": {"file": "k/{f}.cu"}, "speedup": "s"})
    assert [(e.code, e.speedup) for e in result.evaluations] == [("__global__ a", 2.0)]
    assert {(f.code, f.line) for f in result.findings if f.severity == "error"} == {
        ("bad-path", 2),
        ("no-code-file", 3),
    }


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    """It is said like that of a file that is not there, and a first look takes it for no program's."""
    rows = [{"f": "x" * 5000, "s": 2.0}]
    result = table(tmp_path, *rows, columns={"code": {"file": "{f}"}, "speedup": "s"})
    assert result.codes == ["no-code-file", "nothing-counts"]
    assert "code" not in guess([*rows, {"f": "a", "s": 2.0}], tmp_path, ["a.cu"]).columns


def test_a_changed_code_file_is_read_again(tmp_path: Path) -> None:
    """The files that a table names are among the run's files, whose digests name what was staged."""
    (tmp_path / "a.cu").write_text("__global__ a")
    path = write_lines(tmp_path / "t.jsonl", [{"f": "a.cu", "s": 2.0}])
    spec = READERS["measurements"]
    files = RunFiles(path, tmp_path, spec, {"columns": {"code": {"file": "{f}"}, "speedup": "s"}}).files
    assert [file.name for file in files] == ["t.jsonl", "a.cu"]


def test_constants(tmp_path: Path) -> None:
    """A column of ours can be the same for all rows."""
    columns = {"code": "c", "speedup": "s", "gpu": {"value": "L40S"}, "level": {"value": 2}, "number": "n"}
    (record,) = table(tmp_path, {"c": "a = 1", "s": 2.0, "n": 7}, columns=columns).evaluations
    assert (record.gpu, record.problem) == ("L40S", "kernelbench_l2_p7")


def test_tsv_and_a_table_of_failures_alone(tmp_path: Path) -> None:
    """Failures need no speedup column: what failed is kept as it failed."""
    (tmp_path / "t.tsv").write_text("src\tok\tbuilt\twhy\na = 1\tFalse\tTrue\tmismatch\nb = 1\tFalse\tFalse\tnvcc\n")
    columns = {"code": "src", "correct": "ok", "compiled": "built", "error_text": "why"}
    result = read("measurements", tmp_path / "t.tsv", columns=columns)
    assert [(e.outcome, e.error_text) for e in result.evaluations] == [
        ("incorrect", "mismatch"),
        ("compile_failed", "nvcc"),
    ]
    assert not result.findings


def test_words_for_outcomes(tmp_path: Path) -> None:
    """Words of theirs become outcomes of ours; a word that is not named is refused with the way to name it."""
    rows = [{"c": "a = 1", "s": 2.0, "o": "DONE"}, {"c": "b = 1", "o": "CE"}, {"c": "d = 1", "o": "TLE"}]
    rows += [{"c": f"e = {n}", "o": word} for n, word in enumerate(["FAIL_NUMERIC", "tle", "weird"])]
    outcome = {"column": "o", "values": {"done": "success", "CE": "compile_failed"}}
    result = table(tmp_path, *rows, columns={"code": "c", "speedup": "s", "outcome": outcome})
    assert result.outcomes == {"success": 1, "compile_failed": 1}
    (finding,) = result.findings
    assert (finding.code, finding.line, finding.value) == ("unknown-outcome", 3, "TLE, FAIL_NUMERIC, weird")
    said = '"done" = "success", "CE" = "compile_failed", "tle" = "runtime_error", "fail_numeric" = "incorrect", "weird" = "?"'
    assert said in str(finding.fix)  # never a success
    assert "4 rows (lines 3, 4, 5, 6)" in finding.message


DOCUMENT = {"run": {"p1": [{"c": "a = 1", "s": 2.0}, {"c": "b = 1", "s": 3.0}], "p2": [{"c": "d = 1", "s": 4.0}]}}


@pytest.mark.parametrize(
    ("document", "rows", "problems"),
    [
        (DOCUMENT, "run.{problem}", ["p1", "p1", "p2"]),
        (DOCUMENT, "run.{problem}.{n}", ["p1", "p1", "p2"]),
        ({"p1": DOCUMENT["run"]["p1"][0], "p2": DOCUMENT["run"]["p2"][0]}, None, ["p1", "p2"]),
        ({"c": "a = 1", "s": 2.0, "key": "p1"}, None, ["p1"]),
    ],
)
def test_rows_of_a_document(tmp_path: Path, document: Any, rows: str | None, problems: list[str]) -> None:
    """One JSON value holds rows wherever the recipe says, with its keys as columns."""
    (tmp_path / "t.json").write_text(json.dumps(document, indent=1))
    columns = {"code": "c", "speedup": "s", "problem": "problem" if rows else "key"}
    result = read("measurements", tmp_path / "t.json", columns=columns, **({"rows": rows} if rows else {}))
    assert [e.problem for e in result.evaluations] == problems
    assert not result.findings


def test_no_rows_where_the_recipe_says(tmp_path: Path) -> None:
    """A place without rows is said."""
    (tmp_path / "t.json").write_text(json.dumps(DOCUMENT))
    result = read("measurements", tmp_path / "t.json", columns={"code": "c", "speedup": "s"}, rows="runs.{p}")
    assert "at runs.{p}" in result.findings[0].message


JOIN = [{"name": "base", "path": "base.csv", "on": {"task": "id"}}]
JOINED = {
    "code": "c",
    "runtime": {"column": "ms", "unit": "ms"},
    "reference_runtime": {"column": "base.us", "unit": "us"},
    "gpu": "gpu",
}


def test_joins(tmp_path: Path) -> None:
    """Rows of two tables belong together by key; a key without a row, and one that stands twice, give no speedup."""
    (tmp_path / "base.csv").write_text("id,us\n1,3000\n2,1\n2,2\n")
    rows = [{"c": f"a = {n}", "ms": 1.5, "task": str(n), "gpu": "L40S"} for n in (1, 2, 3)]
    result = table(tmp_path, *rows, columns=JOINED, join=JOIN)
    assert [(e.node_id, e.speedup) for e in result.evaluations] == [("row-1", 2.0)]
    assert {(f.code, f.line) for f in result.findings} == {("join-ambiguous", 4), ("no-partner", 2), ("no-speedup", 2)}
    assert result.facts.counts["rows_without_partner"] == 2


# -- lies


TIMED = {
    "code": "c",
    "speedup": "s",
    "runtime": {"column": "t", "unit": "us"},
    "reference_runtime": {"column": "r", "unit": "us"},
}
HONEST = {"c": "h = 1", "s": 2.0, "t": 5.0, "r": 10.0}


@pytest.mark.parametrize(
    ("speedup", "code", "words"),
    [
        (2.03, None, ""),
        (2.05, "speedup-doubtful", "(2)"),
        (1.7, "speedup-doubtful", "(2)"),
        (2.5, "speedup-contradicted", "does not count"),
        (0.5, "speedup-contradicted", "inverse"),
        (2000.0, "speedup-contradicted", "a unit?"),
    ],
)
def test_speedup_against_its_times(tmp_path: Path, speedup: float, code: str | None, words: str) -> None:
    """More than 2 % off is a finding, more than 20 % does not count; both name line, column, value and way out."""
    lie = {"c": "a = 1", "s": speedup, "t": 5.0, "r": 10.0}
    result = table(tmp_path, HONEST, lie, columns=TIMED)
    found = {f.code: f for f in result.findings}
    off = max(speedup / 2, 2 / speedup)
    assert set(found) == (set() if off <= 1.02 else {code})
    assert (result.by_node["row-2"].excluded is not None) == (off > 1.20)
    if found:
        (finding,) = found.values()
        assert (finding.file, finding.line, finding.field, finding.value) == ("t.jsonl", 2, "s", str(speedup))
        assert words in finding.message
        assert "speedup_from" in str(finding.fix)


@pytest.mark.parametrize(("counts", "speedup"), [("column", 0.5), ("times", 2.0)])
def test_the_recipe_says_which_counts(tmp_path: Path, counts: str, speedup: float) -> None:
    """A contradiction is settled by the recipe."""
    lie = {"c": "a = 1", "s": 0.5, "t": 5.0, "r": 10.0}
    result = table(tmp_path, lie, columns=TIMED, speedup_from=counts)
    assert [(e.speedup, e.excluded) for e in result.evaluations] == [(speedup, None)]
    assert not result.findings


@pytest.mark.parametrize(
    ("change", "settings", "code", "field"),
    [
        ({"s": 1.0, "t": 10.0}, {}, "equal-times", "t"),
        ({"c": "kernels/softmax.cu"}, {}, "no-program", "c"),
        ({"c": "5f0c1f3e-77aa"}, {}, "no-program", "c"),
        ({"c": "my kernel.py"}, {}, "no-program", "c"),
        ({"correct": False}, {}, "unmapped-failure", "correct"),
        ({"passed": "no"}, {}, "unmapped-failure", "passed"),
        ({"s": None, "t": None}, {}, "no-speedup", "s"),
        ({"g": "A100-80GB"}, {"gpu": "L40S", "columns": {**TIMED, "reference_gpu": "g"}}, "two-gpus", "g"),
    ],
)
def test_lies(tmp_path: Path, change: dict[str, Any], settings: dict[str, Any], code: str, field: str) -> None:
    """What contradicts itself is found, with line, field and value; whatever is not a mere remark does not count."""
    result = table(
        tmp_path, {**HONEST, "g": "L40S"}, {**HONEST, "g": "L40S", **change}, **{"columns": TIMED, **settings}
    )
    (finding,) = result.findings
    assert (finding.code, finding.file, finding.line, finding.field) == (code, "t.jsonl", 2, field)
    assert finding.fix
    counted = [e.node_id for e in result.evaluations if e.excluded is None]
    assert counted == (["row-1", "row-2"] if code == "equal-times" else ["row-1"])


def test_another_gpu_where_none_is_read_from(tmp_path: Path) -> None:
    """A late row, and a document beside its rows, name another GPU than the recipe: the rows are refused, with the column."""
    rows = [{**HONEST, "c": f"a = {n}"} for n in range(150)]
    late = table(tmp_path, *rows, {**HONEST, "gpu_name": "NVIDIA A100-SXM4-80GB"}, columns=TIMED, gpu="H100 PCIe")
    assert [(f.code, f.line, f.field) for f in late.findings] == [("two-gpus", 151, "gpu_name")]
    assert sum(e.excluded is None for e in late.evaluations) == 150
    assert not table(tmp_path, {**HONEST, "device": "NVIDIA H100 80GB HBM3"}, columns=TIMED, gpu="H100 PCIe").findings
    assert not table(tmp_path, {**HONEST, "device": "cuda:0"}, columns=TIMED, gpu="H100").findings
    document = {
        "meta": {"gpu": "RTX 5090"},
        "eager": {"device": "A100-80GB"},
        "tries": [HONEST, {**HONEST, "gpu": "H100"}],
    }
    (tmp_path / "t.json").write_text(json.dumps(document))
    for settings, fields in (({"gpu": "H100"}, ["meta.gpu"]), ({"columns": {**TIMED, "gpu": "meta.gpu"}}, ["gpu"])):
        read_ = read("measurements", tmp_path / "t.json", **{"columns": TIMED, "rows": "tries", **settings})
        assert [f.field for f in read_.findings if f.code == "two-gpus"] == fields


def test_failures_with_figures_copies_and_the_roots_own_time(tmp_path: Path) -> None:
    """Each is a remark: a failure with a speedup, a row that stands twice, another program with exactly the root's time."""
    columns = {"code": "c", "runtime": {"column": "t", "unit": "ms"}, "correct": "ok"}
    times = [
        ("a = 1", 4.0, True),
        ("a = 2", 2.0, False),
        ("a = 3", 4.0, True),
        ("a = 4", 2.0, True),
        ("a = 4", 2.0, True),
    ]
    rows = [{"c": code, "t": time, "ok": right} for code, time, right in [*times, ("a = 1", 4.1, True)]]
    result = table(tmp_path, *rows, columns=columns, reference="root")
    assert [(f.code, f.line) for f in result.findings] == [("fast-failure", 2), ("equal-times", 3), ("same-row", 5)]
    assert [e.outcome for e in result.evaluations].count("incorrect") == 1


def test_one_program_at_several_shapes(tmp_path: Path) -> None:
    """Its rows would be repeats of one kernel, which is said, with the mapping that keeps them apart."""
    rows = [
        {"c": "a = 1", "s": s, "op": "gemm", "shape": shape}
        for s, shape in ((2.0, [64, 32]), (0.5, [8, 8]), (2.1, [64, 32]))
    ]
    columns: dict[str, Any] = {"code": "c", "speedup": "s", "problem": "op"}
    (finding,) = table(tmp_path, *rows, columns=columns).findings
    assert (finding.code, finding.line, finding.field) == ("several-shapes", 2, "shape")
    assert 'problem = { value = "{op}_{shape}" }' in finding.render()
    apart = table(tmp_path, *rows, columns={**columns, "problem": {"value": "{op}_{shape}"}})
    assert not apart.findings
    assert [e.problem for e in apart.evaluations] == ["gemm_64x32", "gemm_8x8", "gemm_64x32"]
    assert table(tmp_path, *rows, columns={**columns, "problem": {"value": "{op}_{size}"}}).codes == ["wrong-format"]


def test_a_joined_time_of_another_gpu(tmp_path: Path) -> None:
    """A reference that was timed on another GPU gives no ratio, also where only the joined table names it."""
    (tmp_path / "base.csv").write_text("id,us,hardware\n1,3000,H100\n2,3000,NVIDIA L40S\n")
    rows = [{"c": f"a = {n}", "ms": 1.5, "task": n, "gpu": "L40S"} for n in (1, 2)]
    result = table(tmp_path, *rows, columns=JOINED, join=JOIN)
    assert [e.node_id for e in result.evaluations if e.excluded is None] == ["row-2"]
    assert [(f.code, f.line, f.value) for f in result.findings] == [("two-gpus", 1, "H100")]


def test_a_table_of_which_nothing_counts(tmp_path: Path) -> None:
    """Where every row is refused the recipe is wrong: nothing comes out, and the last finding says so."""
    result = table(tmp_path, {"c": "x.cu", "s": 2.0}, columns={"code": "c", "speedup": "s"})
    assert not result.evaluations
    assert result.codes == ["no-program", "nothing-counts"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"code": "c", "runtime": "t", "speedup": "s"}, 'runtime = { column = "t", unit = "ms" }'),
        ({**TIMED, "reference_runtime": {"column": "t", "unit": "us"}}, "every speedup would be 1"),
        ({"code": {"column": "c", "value": "x"}, "speedup": "s"}, "exactly one"),
        ({"code": "c", "speedup": {"colum": "s"}}, "colum"),
        ({"code": "c", "speedup": {"file": "{s}"}}, "only code"),
        ({"code": "c", "speedup": {"column": "s", "unit": "ms"}}, "only times"),
        ({"code": "c", "speedup": "ss"}, "Did you mean 's'?"),
    ],
)
def test_mappings_that_can_not_be_meant(tmp_path: Path, columns: Any, words: str) -> None:
    """A mapping at fault is one error with its field and the way out."""
    (finding,) = table(tmp_path, HONEST, columns=columns).findings
    assert str(finding.field).startswith("columns.")
    assert words in finding.render()


# -- loops


LOOP = "iter\tus\tstatus\n1\t80\tbaseline\n2\t40\tkeep\n3\t\tcrash\n4\t50\tdiscard\n5\t20\tkeep\n"


def test_a_loop_with_snapshots(tmp_path: Path) -> None:
    """The first program is the reference; each was made from the last one kept; programs are snapshots by number."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "log.tsv").write_text(LOOP)
    for n in range(1, 6):
        (tmp_path / f"snapshots/kernel_{n:03}.py").write_text(f"def kernel(x): return x + {n}")
    columns = {
        "code": {"file": "snapshots/kernel_{iter:3}.py"},
        "runtime": {"column": "us", "unit": "us"},
        "node_id": "iter",
        "step": "iter",
        "kept": "status",
        "outcome": {
            "column": "status",
            "values": {"crash": "runtime_error", **dict.fromkeys(("baseline", "keep", "discard"), "success")},
        },
    }
    result = read("measurements", tmp_path / "log.tsv", columns=columns, reference="root")
    assert [(e.node_id, e.parent_node_id, e.outcome, e.speedup) for e in result.evaluations] == [
        ("1", None, "success", 1.0), ("2", "1", "success", 2.0), ("3", "2", "runtime_error", None),
        ("4", "2", "success", 1.6), ("5", "2", "success", 4.0),
    ]  # fmt: skip
    assert {e.reference_code for e in result.successes} == {"def kernel(x): return x + 1"}
    assert not result.findings


def test_a_kept_row_that_is_missing_breaks_the_lineage(tmp_path: Path) -> None:
    """Row 2 was kept, but nobody has its program: what follows was not made from row 1."""
    log = "iter,us,status,src\n1,80,baseline,a = 1\n2,40,keep,\n3,50,discard,a = 3\n4,20,keep,a = 4\n5,10,keep,a = 5\n"
    (tmp_path / "log.csv").write_text(log)
    words = {"column": "status", "values": dict.fromkeys(("baseline", "keep", "discard"), "success")}
    columns = {"code": "src", "runtime": {"column": "us", "unit": "us"}, "node_id": "iter", "kept": "status"}
    result = read("measurements", tmp_path / "log.csv", columns={**columns, "outcome": words}, reference="root")
    parents = {e.node_id: e.parent_node_id for e in result.evaluations}
    assert parents == {"1": None, "3": None, "4": None, "5": "4"}


def test_semicolons(tmp_path: Path) -> None:
    """What spreadsheets of half of Europe write as CSV."""
    (tmp_path / "t.csv").write_text("src;x\na = 1, 2;2.0\n")
    result = read("measurements", tmp_path / "t.csv", columns={"code": "src", "speedup": "x"})
    assert [(e.code, e.speedup) for e in result.evaluations] == [("a = 1, 2", 2.0)]


def test_a_speedup_that_implies_another_reference(tmp_path: Path) -> None:
    """Four rows say that the reference takes 12 ms; the fifth would need 118.8. With its time given, each row is checked by itself."""
    rows = [{"c": f"a = {n}", "t": 12.0 / s, "s": s} for n, s in enumerate((1.0, 2.0, 3.0, 4.0))]
    columns = {"code": "c", "speedup": "s", "runtime": {"column": "t", "unit": "ms"}}
    result = table(tmp_path, *rows, {"c": "b = 1", "t": 12.0, "s": 9.9}, columns=columns)
    assert [(f.code, f.line, f.value) for f in result.findings] == [("odd-reference", 5, "9.9")]
    assert not table(tmp_path, *rows, columns=columns).findings
    sizes = [{"c": f"a = {n}", "t": 4.0**n, "s": 2.0} for n in range(5)]  # references of many sizes
    assert not table(tmp_path, *sizes, columns=columns).findings


def test_a_speedup_without_its_time(tmp_path: Path) -> None:
    """It counts on the column alone, which is said."""
    result = table(tmp_path, HONEST, {**HONEST, "t": None}, columns=TIMED)
    assert [(f.code, f.line, f.field) for f in result.findings] == [("unchecked-speedup", 2, "t")]
    assert len(result.evaluations) == 2


@pytest.mark.parametrize(
    ("change", "columns", "field", "words"),
    [
        ({"r": None}, {"correct": "ok"}, "r", "the baseline of their problem"),
        ({"t": None}, {"correct": "ok"}, "t", "no failures by their outcome"),
        ({"t": "1,87"}, {}, "t", "a point, not a comma"),
        ({"t": None}, {}, "t", "map outcome"),
    ],
)
def test_what_a_success_without_speedup_lacks(
    tmp_path: Path, change: dict[str, Any], columns: dict[str, str], field: str, words: str
) -> None:
    """The figure that is missing, or is no number; to map an outcome is the advice only where none is mapped."""
    row = {"c": "a = 1", "t": 1.0, "r": 2.0, "ok": True}
    times = {name: {"column": key, "unit": "ms"} for name, key in (("runtime", "t"), ("reference_runtime", "r"))}
    result = table(tmp_path, row, {**row, **change}, columns={"code": "c", **times, **columns})
    (finding,) = result.findings
    assert (finding.code, finding.field) == ("no-speedup", field)
    assert words in str(finding.fix)
    assert ("map outcome" in str(finding.fix)) == (words == "map outcome")


def test_a_bad_time_is_named_where_the_speedup_is_missing(tmp_path: Path) -> None:
    """A time below 0 is the fault, as the table spells it, not the speedup that nobody could compute."""
    rows = [{"c": "a = 1", "s": 2.0, "ms": 1.9807, "ref": 3.9614}, {"c": "b = 1", "s": None, "ms": -1.0, "ref": 2.0}]
    rows.append({"c": "d = 1", "s": 1.0, "ms": 1.9807, "ref": 1.9807})
    times = {"runtime": {"column": "ms", "unit": "ms"}, "reference_runtime": {"column": "ref", "unit": "ms"}}
    findings = {f.code: f for f in table(tmp_path, *rows, columns={"code": "c", "speedup": "s", **times}).findings}
    assert (findings["no-speedup"].field, findings["no-speedup"].value) == ("ms", "-1.0")
    assert (findings["equal-times"].field, findings["equal-times"].value) == ("ms", "1.9807")
