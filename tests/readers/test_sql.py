"""``sql``: what a query may read and return."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from readers.reading import Read, read

from kernel_archive.readers import READERS, sql
from kernel_archive.readers.files import RunFiles
from kernel_archive.readers.records import Evaluation
from kernel_archive.readers.sql import QueryError, parse_query, patterns_of
from kernel_archive.readers.sql_doubts import COLUMNS, Judge
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    from pathlib import Path


def ask(folder: Path, query: str) -> Read:
    """What a query says over a folder."""
    return read("sql", folder, folder, query=query)


def values(*rows: tuple[Any, ...], columns: str) -> str:
    """A query that returns these rows."""
    listed = ", ".join(
        "(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in rows
    )
    return f"SELECT * FROM (VALUES {listed}) t({columns})"


def judged(query: str) -> Read:
    """What is doubted of the rows of a query that reads no file: without the sandbox."""
    judge = Judge(duckdb.sql(query).to_arrow_table(), lambda name: name or "q")
    result = Read(findings=judge.findings)
    if not judge.refused:
        result.evaluations = [
            Evaluation(**{**row, "source_file": row["source_file"] or "q"}) for row in judge.rows()
        ]
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table, two programs, and a file beside it that is not for reading."""
    place = tmp_path / "data"
    (place / "k").mkdir(parents=True)
    (place / "t.csv").write_text("task,path,x\nrelu,k/a.py,2.0\nrelu,k/b.py,0.5\n")
    (place / "k/a.py").write_text("def a(): ...\n")
    (place / "k/b.py").write_text("def b(): ...\n")
    (tmp_path / "secret.txt").write_text("secret text")
    return place


JOINED = """
SELECT t.task AS problem, p.content AS code, t.x AS speedup, t.filename AS source_file,
       t.row AS source_row
FROM (SELECT *, row_number() OVER () + 1 AS row FROM read_csv('t.csv', filename = true)) t
LEFT JOIN read_text('k/*.py') p ON ends_with(p.filename, t.path) ORDER BY t.row"""


def test_a_table_with_programs_in_files(folder: Path) -> None:
    """Rows keep file and row; the files that are read are the inputs of the run."""
    result = ask(folder, JOINED)
    assert [
        (e.code, e.speedup, e.problem, e.source_file, e.source_line) for e in result.evaluations
    ] == [("def a(): ...\n", 2.0, "relu", "t.csv", 2), ("def b(): ...\n", 0.5, "relu", "t.csv", 3)]
    assert not result.findings
    run = RunFiles(folder, folder, READERS["sql"], JOINED)
    assert [run.name(p) for p in run.files] == ["k/a.py", "k/b.py", "t.csv"]


@pytest.mark.parametrize(
    ("query", "patterns"),
    [
        ("SELECT 1 FROM 'a.csv', read_text(['b', 'c'])", ["a.csv", "b", "c"]),
        ("SELECT 1 FROM read_csv(getvariable('x'))", ["v", "x"]),
        ("SELECT 1 FROM read_csv('a' || 'b')", ["**", "a", "b"]),
        ("SELECT 1 FROM query('SELECT 1')", ["**", "SELECT 1"]),
        ("SELECT 1 FROM json_execute_serialized_sql('{}')", ["**", "{}"]),
        ("SELECT 1 FROM read_csv('ab.csv'[2:])", ["**", "ab.csv"]),
        ("SELECT 1 FROM read_csv(12::VARCHAR)", ["**"]),
        ("SELECT 1 FROM read_csv('a', filename = true, types = ['INT'])", ["INT", "a"]),
        ("SELECT 1 FROM results.csv, a.b.parquet", ["a.b.parquet", "results.csv"]),
        ("SELECT 1 FROM range(3), unnest([upper('a')])", ["a"]),
    ],
)
def test_the_patterns_of_a_query(query: str, patterns: list[str]) -> None:
    """Every text may name files; a path that is computed may name any file of the folder."""
    given = ["v"] if "getvariable" in query else []
    assert patterns_of(parse_query(query), given) == patterns


@pytest.mark.parametrize("source", ["'k/.a.csv'", "k.csv", "'k/*.csv'"])
def test_every_file_that_is_read_names_the_fragment(folder: Path, source: str) -> None:
    """Also one without quotes, and one whose name begins with a dot: DuckDB reads them."""
    for name in ("k/.a.csv", "k.csv"):
        (folder / name).write_text(f"code,speedup\ndef {name[-5]}(): ...,2\n")
    query = f"SELECT code, speedup, filename AS source_file FROM {source}"
    run = RunFiles(folder, folder, READERS["sql"], query)
    assert [e.source_file for e in ask(folder, query).evaluations] == [*map(run.name, run.files)]


@pytest.mark.parametrize(
    "query", ["", "SELEC 1", "SELECT 1; SELECT 2", "COPY (SELECT 1) TO 'x.csv'", "ATTACH 'x.db'"]
)
def test_exactly_one_select(folder: Path, query: str) -> None:
    """Anything else is refused before anything runs."""
    with pytest.raises(QueryError):
        parse_query(query)
    assert ask(folder, query).codes == ["wrong-format"]
    assert sorted(p.name for p in folder.iterdir()) == ["k", "t.csv"]


@pytest.mark.parametrize(
    "path", ["../secret.txt", "{outside}", "k/../../secret.txt", "http://localhost:1/x"]
)
def test_nothing_outside_is_read(folder: Path, path: str) -> None:
    """Neither by a path that leads out, nor over a network."""
    name = path.replace("{outside}", str(folder.parent / "secret.txt"))
    result = ask(folder, f"SELECT content AS code, 2 AS speedup FROM read_text('{name}')")
    assert result.codes == ["wrong-format"]
    assert "only files in the folder of its source" in str(result.findings[0].fix)
    assert "secret text" not in repr(result)


@pytest.mark.parametrize("search_path", [":/nowhere", "."])
def test_no_module_of_the_folder_is_imported(
    folder: Path, search_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the environment has Python look in the working directory."""
    for name in ("csv", "duckdb", "pandas", "encodings"):
        (folder / f"{name}.py").write_text("import os; os._exit(77)\n")
    monkeypatch.setenv("PYTHONPATH", search_path)
    assert sql.run_query("SELECT 1 AS n", folder, {})["n"].to_pylist() == [1]


@pytest.mark.parametrize("pattern", ["*.txt", "leak.txt", "out/*.txt", "**/*.txt"])
def test_links(folder: Path, pattern: str) -> None:
    """A link inside of the folder is a file like others."""
    (folder / "own.py").symlink_to("k/a.py")
    query = "SELECT content AS code, 2 AS speedup FROM read_text('{}')"
    assert ask(folder, query.format("own.py")).evaluations[0].code == "def a(): ...\n"
    (folder / "leak.txt").symlink_to("../secret.txt")
    (folder / "out").symlink_to("..")
    result = ask(folder, query.format(pattern))
    assert not result.evaluations
    assert "the link" in result.findings[0].message
    assert "secret text" not in repr(result)


def test_columns_are_those_of_an_evaluation(folder: Path) -> None:
    """A wrong one is named with the nearest; the program and a measurement are needed."""
    for columns, said in {
        "'x y' AS code, 1 AS speeedup": "Did you mean 'speedup'?",
        "1 AS speedup": "no code",
        "'x y' AS code, 1 AS runtime_us": "no speedup",
        "'x' AS code, 'y' AS code, 1 AS speedup": "two columns",
    }.items():
        (finding,) = ask(folder, f"SELECT {columns}").findings
        assert said in finding.render()
    fields = {*COLUMNS} - {
        "mean_runtime_us",
        "program_file",
        "baseline_us",
        "reference_gpu",
        "source_row",
    }
    known = {"runtime_us", "reference_runtime_us", *Evaluation.__struct_fields__}
    assert fields <= known


def test_time_and_memory_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without end, or with too much in memory, is refused and says so."""
    monkeypatch.setattr(sql, "MEMORY_BYTES", 200 << 20)
    large = "SELECT list(range)::VARCHAR AS code, 1 AS speedup FROM range(100000000)"
    assert "Memory" in ask(folder, large).findings[0].message
    numbers = "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t)"
    endless = f"{numbers} SELECT a FROM t WHERE a < 0"
    with pytest.raises(QueryError, match="more than 1 s"):
        sql.run_query(endless, folder, {}, seconds=1.0)


@pytest.mark.parametrize(
    ("reader", "data"),
    [("read_csv", b"\xff\xfe\0"), ("read_json", b"[" * 100_000), ("read_parquet", b"PAR1" * 9)],
)
def test_damaged_tables_are_refused_whole(tmp_path: Path, reader: str, data: bytes) -> None:
    """No row of a table that DuckDB cannot read to its end counts."""
    (tmp_path / "t").write_bytes(data)
    result = ask(tmp_path, f"SELECT code, speedup FROM {reader}('t')")
    assert result.codes == ["wrong-format"]
    assert not result.evaluations


@pytest.mark.parametrize(
    "damage", [b'p1,"def', b"p1", b"\xff\xfe\0junk", b'p1,"def z(): ...",1.0,H200,more']
)
@pytest.mark.parametrize("place", [0, 1, 30])
def test_damaged_lines_of_a_csv_file(tmp_path: Path, damage: bytes, place: int) -> None:
    """Wherever one stands, it is an error with its line, and the rest is read."""
    lines = [b"problem,code,speedup,gpu"]
    lines += [b'p,"def k%d():\n  return 1",%d.5,H200' % (n, n) for n in range(40)]
    lines.insert(place, damage)
    (tmp_path / "t.csv").write_bytes(b"\n".join(lines) + b"\n")
    query = "SELECT code, TRY_CAST(speedup AS DOUBLE) AS speedup, 'xé' AS problem"
    dialect = ", all_varchar = true, header = true, delim = ','" if place else ""
    dialect += """, quote = '"', escape = '"'""" if place == 30 else ""  # as init writes it
    result = ask(tmp_path, f"{query} FROM read_csv('t.csv'{dialect}) t")
    assert len(result.successes) >= 39
    if place or result.findings:  # DuckDB itself passes over some lines above a header
        first = result.findings[0]
        assert (first.code, first.file, first.line) == ("bad-row", "t.csv", 2 * place or 1)


@pytest.mark.parametrize(("mark", "damage"), [(",", ""), (";", "p;far;too;many"), ("\t", "")])
def test_a_row_of_a_csv_file_has_the_line_where_it_begins(
    tmp_path: Path, mark: str, damage: str
) -> None:
    """Its header is row 1, programs take several lines, and empty and damaged lines are no rows."""
    lines = [f'p{mark}"def k{n}():\n  return {n}"{mark}{n}.5' for n in range(1, 4)]
    lines.insert(2, damage)
    head = mark.join(("problem", "code", "speedup"))
    (tmp_path / "t.csv").write_text("\n".join([head, *lines, ""]))
    query = f"""SELECT code, speedup::DOUBLE AS speedup, source_row, 't.csv' AS source_file FROM (
      SELECT *, row_number() OVER () + 1 AS source_row
      FROM read_csv('t.csv', all_varchar = true, header = true, delim = '{mark}'))"""
    result = ask(tmp_path, query)
    assert [e.source_line for e in result.evaluations] == [2, 4, 7]


# -- doubts


def codes(*rows: tuple[Any, ...], columns: str) -> tuple[list[str], list[Any]]:
    """Codes of the findings of rows, and what became of each."""
    result = judged(values(*rows, columns=columns))
    return result.codes, [(e.speedup, e.excluded) for e in result.evaluations]


def test_a_speedup_against_its_times() -> None:
    """Over 20 % off it does not count; the numbers and a likely unit are said."""
    columns = "code, speedup, runtime_us, reference_runtime_us"
    rows = [("a b", 2.0, 1.0, 2.0), ("c d", 2.1, 1.0, 2.0), ("e f", 4.0, 1.0, 2.0)]
    rows.append(("g h", 2.0, 1.0, 2000.0))
    result = judged(values(*rows, columns=columns))
    assert [e.excluded is None for e in result.evaluations] == [True, True, False, False]
    assert result.codes == ["speedup-contradicted", "speedup-doubtful"]
    assert "4 is not the ratio of the two times, 2" in result.findings[0].message
    assert "2 rows (3, 4)" in result.findings[0].message
    (finding, _) = judged(values(rows[3], columns=columns)).findings
    assert "another unit" in finding.message
    assert "inverse" in judged(values(("a b", 0.5, 1.0, 2.0), columns=columns)).findings[0].message


@pytest.mark.parametrize("code", ["7", "k/a.py", "4f9c-aa", "my kernel.cu", "C:\\x\\y.py"])
def test_a_name_is_no_program(code: str) -> None:
    """An id or a path in the place of the program: the row is left out."""
    result = judged(values((code, 2.0), ("def f(): ...", 1.0), columns="code, speedup"))
    assert result.codes == ["no-program"]
    assert len(result.evaluations) == 1


def test_the_reference_is_no_program() -> None:
    """One text in most rows of a problem."""
    rows = [("p", "class Model: ...", 1.0 + n) for n in range(4)] + [("p", "def own(): ...", 1.0)]
    found, rows_ = codes(*rows, columns="problem, code, speedup")
    assert found == ["reference-as-program"]
    assert [why is None for _, why in rows_] == [False] * 4 + [True]
    message = judged(values(*rows, columns="problem, code, speedup")).findings[0].message
    assert "4 of the 5 rows of problem p" in message
    again = [("p", "class Model: ...", 1.0 + n / 50) for n in range(5)]
    assert codes(*again, columns="problem, code, speedup")[0] == []
    same = [("p", "class Model: ...", "class Model: ...", 1.0 + n / 50) for n in range(5)]
    assert "nothing-counts" in codes(*same, columns="problem, code, reference_code, speedup")[0]


def test_a_failure_without_a_program() -> None:
    """It is a failure, and said; a success without a program is left out."""
    rows = [
        ("def f(): ...", "success", 2.0),
        (None, "compile_failed", None),
        (None, "success", 2.0),
    ]
    result = judged(values(*rows, columns="code, outcome, speedup"))
    assert [(e.outcome, e.code, e.excluded) for e in result.evaluations] == [
        ("success", "def f(): ...", None),
        ("compile_failed", "", "a failure without a program"),
    ]
    assert result.codes == ["no-code", "failure-without-program"]


def test_missing_files_of_programs_are_named() -> None:
    """The first three, and how many more; also those of failures."""
    rows = [(f"k/{n}.py", "success", 2.0, None) for n in (0, 1, 1, 2, 3, 4)]
    rows += [("k/9.py", "incorrect", None, None), ("k/8.py", "success", 2.0, "def f(): ...")]
    result = judged(values(*rows, columns="program_file, outcome, speedup, code"))
    messages = {f.code: f.message for f in result.findings}
    assert "left out (no file k/0.py, k/1.py, k/2.py and 2 more): 6 rows" in messages["no-code"]
    assert "failures without a program (no file k/9.py): " in messages["failure-without-program"]


def test_cells_that_are_no_number_are_said_in_words() -> None:
    """With the first row."""
    result = judged(
        values(("a b", "fast", "x"), ("c d", "slow", "1"), columns="code, speedup, step")
    )
    messages = [finding.message for finding in result.findings]
    assert messages[:2] == [
        "no number in 2 cells, first in row 1",
        "no whole number in 1 cell, first in row 1",
    ]


def test_a_baseline_that_cannot_be() -> None:
    """More than half of the rows below 0.25x are refused with the numbers."""
    rows = [(f"def f{n}(): ...", 1000.0, 1.0 + n) for n in range(5)]
    columns = "code, runtime_us, reference_runtime_us"
    result = judged(values(*rows, columns=columns))
    assert (result.codes, result.evaluations) == (["bad-baseline", "nothing-counts"], [])
    assert result.findings[1].message == "none of 5 rows counts"
    assert "5 of 5 speedups are below 0.25x, their median is 0.003x" in result.findings[0].message
    assert "AS speedup" in str(result.findings[0].fix)
    ratio = "reference_runtime_us / runtime_us AS speedup"
    stated = f"SELECT *, {ratio} FROM ({values(*rows, columns=columns)})"
    assert len(judged(stated).successes) == 5


def test_words_that_are_no_outcome() -> None:
    """They are counted and left out; never a success."""
    words = ("success", "FAIL_BUILD", "meh", "compile_error", None)
    rows = [(f"def f{n}(): ...", word) for n, word in enumerate(words)]
    query = f"SELECT *, 2 AS speedup FROM ({values(*rows, columns='code, outcome')})"
    result = judged(query)
    assert [e.outcome for e in result.evaluations] == ["success", "compile_failed"]
    (finding,) = [f for f in result.findings if f.code == "unknown-outcome"]
    assert "left out, FAIL_BUILD 1x, meh 1x, nothing 1x: 3 rows (2, 3, 5)" in finding.message


TIMES = "code, runtime_us, reference_runtime_us"
# fmt: off
#: Finding -> columns and rows that cause it, and how many successes count.
DOUBTS: dict[str, tuple[str, list[Any], int]] = {
    "two-gpus": (f"{TIMES}, gpu, reference_gpu",
                 [("a b", 1, 2, "H100", "A100-80GB"), ("c d", 1, 2, "H100", "NVIDIA H100")], 1),
    "runtime-contradicted": (f"{TIMES}, mean_runtime_us",
                             [("a b", 1.0, 2.0, 3.0), ("c d", 1.0, 2.0, 1.01)], 1),
    "equal-times": (TIMES, [("a b", 1.0, 1.0)], 1),
    "several-shapes": (TIMES, [("a b", 1.0, 2.0), ("a b", 10.0, 20.0)], 2),
    "fast-failure": ("code, outcome, speedup", [("a b", "incorrect", 2.0)], 0),
    "same-row": ("code, speedup", [("a b", 2.0), ("a b", 2.0)], 2),
    "odd-reference": ("code, speedup, runtime_us",
                      [("a b", 2, 1), ("c d", 1, 2), ("e f", 0.5, 4), ("g h", 4, 4)], 4),
    "joined-twice": ("code, speedup, source_file, source_row",
                     [("a b", 2.0, "t", 1), ("c d", 2.0, "t", 1)], 0),
    "bad-value": ("code, speedup", [("a b", "fast"), ("c d", "2.0")], 1),
    "unchecked-speedup": (f"{TIMES}, speedup", [("a b", 1.0, None, 2.0)], 1),
    "no-speedup": ("code, speedup", [("a b", None), ("c d", -1.0), ("e f", 1.0)], 1),
    "no-measurement": ("code, speedup", [(None, None), ("e f", 1.0)], 1),
}
# fmt: on


@pytest.mark.parametrize("code", DOUBTS)
def test_what_else_is_doubted(code: str) -> None:
    """Each doubt is one finding, and says whether its rows count."""
    columns, rows, n_counting = DOUBTS[code]
    result = judged(values(*rows, columns=columns))
    assert code in result.codes
    assert len([e for e in result.successes if e.excluded is None]) == n_counting


# -- shipped queries


def shipped(name: str) -> str:
    """The text of a shipped query."""
    return (content_path("builders") / f"{name}.sql").read_text()


L40S = {"hardware": "NVIDIA L40S"}


def result(sample: int, runtime: float = -1.0, **more: Any) -> dict[str, Any]:
    """A result of KernelBench; a pass where nothing else is said."""
    passed = {"compiled": True, "correctness": True, "metadata": L40S, "runtime_stats": {}}
    return {"sample_id": sample, "runtime": runtime, **passed, **more}


WRONG = {"correctness": False}
RESULTS = {
    "1": [result(0, 1.5), result(1, 6.0)],
    "2": [
        result(0, compiled=False, **WRONG, metadata={**L40S, "compilation_error": "nvcc"}),
        result(1, **WRONG, metadata={**L40S, "runtime_error": "illegal access"}),
        result(2, **WRONG, metadata={**L40S, "correctness_issue": "mismatch"}),
        result(3, **WRONG),
    ],
}


def kernelbench(place: Path, results: Any = RESULTS, hardware: str = "NVIDIA L40S") -> Path:
    """A folder with a run, its programs, baselines of two GPUs, and the reference programs."""
    run = place / "runs/mine"
    run.mkdir(parents=True, exist_ok=True)
    (run / "eval_results.json").write_text(json.dumps(results))
    for problem, found in RESULTS.items():
        for sample in range(len(found)):
            (run / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(
                f"class ModelNew: n = {problem}{sample}\n"
            )
    for gpu, mean in ((hardware, 3.0), ("NVIDIA B200", 9.0)):
        times = {f"{n}_X.py": {"mean": mean, "hardware": gpu} for n in (1, 2)}
        (place / f"timing/{gpu}").mkdir(parents=True, exist_ok=True)
        (place / f"timing/{gpu}/baseline_time_torch.json").write_text(json.dumps({"level1": times}))
    (place / "KernelBench/level1").mkdir(parents=True, exist_ok=True)
    (place / "KernelBench/level1/1_Square.py").write_text("class Model: ...\n")
    return place


def by_sample(results: dict[str, Any]) -> dict[str, Any]:
    """The same results, by sample."""
    return {p: {str(r["sample_id"]): r for r in found} for p, found in results.items()}


@pytest.mark.parametrize(
    "results",
    [
        RESULTS,
        by_sample(RESULTS),
        {"1": by_sample(RESULTS)},
        {"level1": RESULTS},
        {f"problem_{p}": v for p, v in by_sample(RESULTS).items()},
        None,
    ],
)
def test_kernelbench_and_its_relatives(tmp_path: Path, results: Any) -> None:
    """The counts and values of the reader before 1.0."""
    place = kernelbench(tmp_path, results)
    if results is None:
        (place / "runs/mine/eval_results.json").unlink()
        for problem, found in RESULTS.items():
            for each in found:
                name = f"level_1_problem_{problem}_sample_{each['sample_id']}_eval_result.json"
                (place / "runs/mine" / name).write_text(json.dumps(each))
    got = ask(place, shipped("queries/kernelbench"))
    first, second = got.successes
    assert (first.node_id, first.speedup) == ("1/1/0", 2.0)
    assert (second.node_id, second.speedup) == ("1/1/1", 0.5)
    assert (first.problem, first.gpu) == ("kernelbench_l1_p1", "NVIDIA L40S")
    assert (first.code, first.reference_code) == ("class ModelNew: n = 10\n", "class Model: ...\n")
    failures = [(e.outcome, e.error_text) for e in got.evaluations if e.outcome != "success"]
    assert failures == [
        ("compile_failed", "nvcc"),
        ("runtime_error", "illegal access"),
        ("incorrect", "mismatch"),
        ("incorrect", None),
    ]
    assert not got.findings


def test_kernelbench_baselines(tmp_path: Path) -> None:
    """A baseline of another GPU gives no ratio."""
    place = kernelbench(tmp_path, hardware="NVIDIA H100")
    got = ask(place, shipped("queries/kernelbench"))
    assert "two-gpus" in got.codes
    assert not [e for e in got.successes if e.excluded is None]
    odd = {"1": [result(0, 1.5, runtime_stats={"mean": 4.5}), result(1, 6.0, ref_runtime=3.0)]}
    got = ask(kernelbench(tmp_path, odd), shipped("queries/kernelbench"))
    assert [(e.node_id, e.speedup) for e in got.successes] == [("1/1/1", 0.5)]
    assert "runtime-contradicted" in got.codes


@pytest.mark.parametrize(("own", "counting"), [(3.1, [True, True]), (30.0, [False, True])])
def test_a_baseline_that_the_run_contradicts(
    tmp_path: Path, own: float, counting: list[bool]
) -> None:
    """The timing file of another version of a problem is known by what the run itself timed."""
    results = {"1": [result(0, 1.5), result(1, 1.5, ref_runtime=own)]}
    got = ask(kernelbench(tmp_path, results), shipped("queries/kernelbench"))
    assert [e.excluded is None for e in got.successes] == counting
    assert [e.speedup for e in got.successes] == [2.0, own / 1.5]
    assert got.codes == ([] if all(counting) else ["baseline-contradicted"])
    assert all("in 1 of 1 rows, 10x another" in f.message for f in got.findings)


def test_the_baseline_of_the_compile_mode_and_the_gpu(tmp_path: Path) -> None:
    """The line BASELINE chooses the timing file; a problem without a level is no error."""
    place = kernelbench(tmp_path)
    name = "baseline_time_torch_compile_inductor_default.json"
    text = (place / "timing/NVIDIA L40S/baseline_time_torch.json").read_text()
    (place / f"timing/NVIDIA L40S/{name}").write_text(text.replace("3.0", "1.5"))
    query = shipped("queries/kernelbench").replace("'baseline_time_torch.json'", f"'{name}'")
    assert [e.speedup for e in ask(place, query).successes] == [1.0, 0.25]
    for program in place.glob("runs/mine/*.py"):
        program.unlink()
    assert "no-measurement" in ask(place, query).codes


PROGRAMS = [
    ("root", None, 0, {"ms": 8.0, "combined_score": 0.1}),
    ("a", "root", 3, {"ms": 4.0, "combined_score": 0.2}),
    ("b", "a", 7, {"ms": 2.0, "combined_score": 0.4}),
]


def checkpoint(place: Path, number: int, programs: list[Any]) -> None:
    """A checkpoint of OpenEvolve, a file for each program."""
    folder = place / f"checkpoints/checkpoint_{number}/programs"
    folder.mkdir(parents=True)
    for name, parent, iteration, metrics in programs:
        value = {"id": name, "parent_id": parent, "metrics": metrics, "iteration_found": iteration}
        value["code"] = f"def kernel_{name.split('_migrant')[0]}(): ..."
        (folder / f"{name}.json").write_text(json.dumps(value))


def test_openevolve_migrants_and_failures(tmp_path: Path) -> None:
    """Copies on other islands count once."""
    errors = [{"error": e} for e in ("CompilationError: at 12:4", "RuntimeError: device", 0.0)]
    failed = [
        (f"p{n}", "root", n + 8, {"ms": 0.0, "ok": 0.0, **error})
        for n, error in enumerate([*errors, {}])
    ]
    first, second = "a_migrant_1", "a_migrant_1_migrant_2"
    copies = [(first, "a", 3, PROGRAMS[1][3]), (second, first, 3, PROGRAMS[1][3])]
    checkpoint(tmp_path, 9, [*PROGRAMS, *copies, ("c", second, 8, {"ms": 1.0}), *failed])
    got = ask(tmp_path, shipped("queries/openevolve"))
    edges = [("root", None), ("a", "root"), ("b", "a"), ("c", "a")]
    assert [(e.node_id, e.parent_node_id) for e in got.successes] == edges
    assert [(e.outcome, e.error_type) for e in got.evaluations if e.outcome != "success"] == [
        ("compile_failed", "CompilationError"),
        ("runtime_error", "RuntimeError"),
        ("incorrect", None),
        ("incorrect", None),
    ]
