"""``init``: the recipe and the query that are written for a folder, and what they read."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support.builds import build_archive

from kernel_archive.archive.open import open_archive
from kernel_archive.databases import sql_name
from kernel_archive.drafting import guesses
from kernel_archive.drafting.draft import draft_recipe, preview, write_recipe
from kernel_archive.errors import DataError
from kernel_archive.readers.sql import parse_query

if TYPE_CHECKING:
    from pathlib import Path


def start(folder: Path, place: Path, **stated: str) -> tuple[dict[str, Any], str, list[str]]:
    """Draft, write and read a recipe: what comes out, the query, and what a person must look at."""
    draft = draft_recipe(place)
    write_recipe(draft, folder / "builder.toml", name="me/mine", stated=stated)
    query = (folder / "import.sql").read_text() if draft.query is not None else ""
    return preview(folder / "builder.toml"), query, draft.notes


def write_table(path: Path, head: list[str], *rows: list[Any]) -> None:
    """A CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([head, *rows])


def test_a_table_with_programs_in_files(tmp_path: Path) -> None:
    """The program is the file that differs between rows of a problem."""
    place = tmp_path / "results"
    rows = []
    for n in range(6):
        task, status = "gemm" if n < 4 else "relu", "ok" if n != 2 else "wrong answer"
        rows.append([task, f"refs/{task}.py", f"out/{task}_{n}.py", status, 4.0, 2.0 + n])
        if n != 2:
            (place / "out").mkdir(parents=True, exist_ok=True)
            (place / f"out/{task}_{n}.py").write_text(f"def k(): return {n}\n")
    (place / "refs").mkdir()
    for task in ("gemm", "relu"):
        (place / f"refs/{task}.py").write_text(f"def ref(): return '{task}'\n")
    head = ["task", "reference_path", "kernel path", "status", "torch_ms", "kernel_ms"]
    write_table(place / "results.csv", head, *rows)
    shown, query, notes = start(tmp_path, place, gpu="H100")
    assert shown["outcomes"] == {"success": 5, "refused": 1}
    assert (shown["problems"], shown["gpus"]) == (2, {"H100": 6})
    assert [row["speedup"] for row in shown["first"]] == [2.0, 4 / 3, 0.8]
    assert shown["first"][0]["code"] == "def k(): return 0"
    assert "program.content AS code,  -- the file that kernel path names" in query
    assert not notes
    assert [f.code for f in shown["findings"]] == ["failure-without-program"]


@pytest.mark.parametrize("place", ["", "t.csv"])
@pytest.mark.parametrize("cells", ["k/{}.cu", "{}"])
def test_programs_that_are_missing_are_named(tmp_path: Path, place: str, cells: str) -> None:
    """Also those of the first rows, and where the table alone is named."""
    rows = [["gemm", cells.format(f"v{n}"), 3.0, 1.0 + n] for n in range(5)]
    write_table(tmp_path / "data/t.csv", ["op", "name", "torch_ms", "ms"], *rows)
    (tmp_path / "data/k").mkdir()
    for n in (1, 3, 4):
        (tmp_path / f"data/k/v{n}.cu").write_text(f"void k() {{ {n}; }}\n")
    shown, _, notes = start(tmp_path, tmp_path / "data" / place, gpu="H100")
    assert (shown["outcomes"], notes) == ({"success": 3}, [])
    missing = " (no file k/v0.cu, k/v2.cu): 2 rows (2, 4)".replace("k/", cells[:-5])
    assert [
        f.message.removeprefix("rows without a program are left out") for f in shown["findings"]
    ] == [missing]


def test_paths_of_windows(tmp_path: Path) -> None:
    """A table that was written there, and unpacked here."""
    rows = [["gemm", rf".\k\{n}.py", 2.0 + n] for n in range(3)]
    write_table(tmp_path / "t.csv", ["op", "kernel_path", "speedup"], *rows)
    (tmp_path / "k").mkdir()
    for n in range(3):
        (tmp_path / f"k/{n}.py").write_text(f"def k():\n    return {n}\n")
    shown, _, notes = start(tmp_path, tmp_path, gpu="H100")
    assert (shown["outcomes"], notes) == ({"success": 3}, [])


def test_programs_none_of_which_is_there_are_named(tmp_path: Path) -> None:
    """A table that was copied without them; texts in another column count before such names."""
    rows = [["gemm", f"k/{n}.py", 2.0] for n in range(4)]
    write_table(tmp_path / "t.csv", ["op", "kernel_path", "speedup"], *rows)
    shown, _, _ = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    assert "no file k/0.py, k/1.py, k/2.py and 1 more" in shown["findings"][0].message
    texts = [[*row, f"def k{n}():\n    1"] for n, row in enumerate(rows)]
    write_table(tmp_path / "t.csv", ["op", "kernel_path", "speedup", "code"], *texts)
    shown, _, _ = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    assert shown["outcomes"] == {"success": 4}


def test_another_gpu_than_the_rows_say(tmp_path: Path) -> None:
    """Both are named, with the first row; another spelling is no other GPU."""
    rows = [["p", f"def k():\n    {n}", 2.0, "NVIDIA A100-SXM4-80GB"] for n in range(2)]
    write_table(tmp_path / "t.csv", ["op", "code", "speedup", "gpu"], *rows)
    shown, _, _ = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    (finding,) = shown["findings"]
    assert finding.render().startswith("t.csv:2: gpu: --gpu says H100, and 2 rows say A100-80GB. ")
    assert start(tmp_path, tmp_path / "t.csv", gpu="a100-80gb")[0]["findings"] == []


def test_a_table_of_another_encoding(tmp_path: Path) -> None:
    """Its first line that is not UTF-8 is named."""
    (tmp_path / "t.csv").write_bytes("op,code,speedup\ngemm,x y,2\ncafé,x y,2\n".encode("latin-1"))
    for place in (tmp_path, tmp_path / "t.csv"):
        with pytest.raises(DataError, match=r"t\.csv:3: the file is not UTF-8 \(got café"):
            draft_recipe(place)


def test_two_recipes_of_one_folder_have_two_queries(tmp_path: Path) -> None:
    """The query is named after its recipe."""
    for name in ("a", "b"):
        row = [name, "def a():\n    1", 2.0]
        write_table(tmp_path / f"{name}.csv", ["op", "code", "speedup"], row)
        draft = draft_recipe(tmp_path / f"{name}.csv")
        write_recipe(draft, tmp_path / f"{name}.toml", name="me/mine", stated={})
    for name in ("a", "b"):
        assert preview(tmp_path / f"{name}.toml")["first"][0]["problem"] == name
    assert sorted(path.name for path in tmp_path.glob("*.sql")) == ["a.sql", "b.sql"]


def test_a_table_with_programs_in_a_column(tmp_path: Path) -> None:
    """A unit that no name states, and a word that is not known, are said; nothing is made up."""
    head = ["problem", "code", "latency", "baseline_latency", "status", "mood"]
    rows = ["p", "def a(): ...", 1, 2, "passed", "x"], ["p", "def b(): ...", 2, 2, "meh", "y"]
    write_table(tmp_path / "t.csv", head, *rows)
    shown, query, notes = start(tmp_path, tmp_path / "t.csv")
    assert shown["evaluations"] == 1
    where = "--reference FILE, in the folder of the recipe ({problem} stands for its name)"
    assert shown["missing"] == [
        "the gpu of 1 row: type --gpu NAME, or return it in the query",
        f"the reference program of 1 program: type {where}",
    ]
    assert len(notes) == 4
    assert "ms is a guess" in notes[0]
    assert "meh" in notes[2]
    assert "nothing is read from these columns: mood" in query


@pytest.mark.parametrize("name", ["kernel", "op", "name", "task"])
def test_a_column_that_names_kernels_is_the_problem(tmp_path: Path, name: str) -> None:
    """With a question in the query; a label or an id is not taken, and the nearest is asked for."""
    programs = [f"def k():\n    return {n}\n" for n in range(2)]
    rows = [["gemm", n, programs[n], 1, 2] for n in range(2)]
    write_table(tmp_path / "t.csv", [name, "id", "code", "time_ms", "ref_ms"], *rows)
    shown, query, notes = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    assert (shown["problems"], shown["outcomes"], notes) == (1, {"success": 2}, [])
    assert f't."{name}" AS problem,  -- LOOK: is this the problem?' in query
    write_table(tmp_path / "u.csv", ["label", "id", "text", "time_ms", "ref_ms"], *rows)
    _, query, notes = start(tmp_path, tmp_path / "u.csv", gpu="H100")
    assert "AS problem" not in query
    assert notes[0].startswith(
        "no column of a known name holds the problem (where all are of one: "
    )
    assert notes[0].endswith("--problem NAME). Is it the column label?")
    assert notes[1].endswith("or the name of its file. Is it the column text?")


def test_files_of_one_shape_are_one_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern names them all, and no file of another shape."""
    head, row = ["op", "code", "speedup"], ["gemm", "def a():\n    1", 2.0]
    monkeypatch.setattr("kernel_archive.drafting.draft._MAX_NAMED", 2)
    for n in range(3):
        write_table(tmp_path / f"in/run{n}/results.csv", head, [*row[:2], 2.0 + n])
    shown, _, notes = start(tmp_path / "in", tmp_path / "in")
    recipe = tomllib.loads((tmp_path / "in/builder.toml").read_text())
    assert [source["path"] for source in recipe["source"]] == ["*/results.csv"]
    assert (shown["runs"], notes) == (3, [])
    for name in ("a", "b"):
        write_table(tmp_path / f"two/{name}/{name}.csv", head, row)
    write_table(tmp_path / "two/c/c.csv", ["x", "y"], [1, 2])
    (tmp_path / "two/b.parquet").write_bytes(b"PAR1xxxxPAR1")
    for n in range(2):
        shutil.copy(tmp_path / "two/c/c.csv", tmp_path / f"two/c/e{n}.csv")
    draft = draft_recipe(tmp_path / "two")
    assert [source["path"][-8:] for source in draft.sources] == ["/a/a.csv", "/b/b.csv"]
    broken, other, more = draft.notes
    assert broken.startswith("not read: b.parquet: ")
    assert "Footer length error" in broken
    assert other == "not read: c/c.csv: its columns are not those of a/a.csv"
    assert more == "not read: 2 more tables"
    for n in range(2):
        (tmp_path / f"logs/run_{n}").mkdir(parents=True)
        (tmp_path / f"logs/run_{n}/events.jsonl").write_text("{}\n")
    (source,) = draft_recipe(tmp_path / "logs").sources
    assert source == {"path": f"{tmp_path}/logs/*", "format": "puct-events"}


def record(n: int) -> dict[str, Any]:
    """What a run says of one kernel, with an object inside."""
    return {"code": f"def k():\n    {n}", "time_ms": 1.0 + n % 2, "baseline": {"ms": 3.0}}


@pytest.mark.parametrize(
    ("n", "content", "words"),
    [
        (2, [{"kernel": f"k{n}", **record(n)} for n in range(2)], "/baseline/ms"),
        (2, {"took_s": 9, "runs": [{"kernel": f"k{n}", **record(n)} for n in range(2)]}, "unnest("),
        (2, {"k0": record(0), "it's 1": record(1)}, "unnest(map_entries("),
        (2, {"a": {"op": "x", **record(0)}, "b": {"op": "y", **record(1)}}, "AS problem,"),
        (300, {"of": {"n": 2}, "results": {f"k{n}": record(n) for n in range(300)}}, "unnest(map_"),
        (1, {"kernel": "a", **record(0), "cases": [{"op": "a", "ms": 7}] * 2}, "/code"),
    ],
    ids=[
        "fields",
        "a list",
        "an object of objects",
        "named by another field",
        "300 below a field",
        "cases of a row",
    ],
)
def test_nested_results(tmp_path: Path, n: int, content: Any, words: str) -> None:
    """Lists and objects of kernels give a row each; inner fields are read by their path."""
    (tmp_path / "result.json").write_text(json.dumps(content))
    shown, query, notes = start(tmp_path, tmp_path / "result.json", gpu="H100")
    assert (shown["problems"], shown["outcomes"]) == (n, {"success": n})
    assert not any("columns: name" in note for note in notes)
    assert shown["first"][0]["speedup"] == 3.0
    assert words in query


def test_every_row_has_a_place_to_open(tmp_path: Path) -> None:
    """A line of CSV and of JSON lines, also of nested ones; else the number of a row."""
    rows = [["k0", "def k():\n    0", 2.0], ["k1", "def k():\n    1", 3.0]]
    write_table(tmp_path / "t.csv", ["op", "code", "speedup"], *rows)
    runs = [{"runs": [{"kernel": f"k{n}{i}", **record(n)} for i in range(2)]} for n in range(2)]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    (tmp_path / "n.json").write_text(json.dumps(runs, indent=1))
    deep = [{str(n): {"turns": [record(n)] * 2}} for n in range(2)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(run) + "\n" for run in deep))
    places = {
        "t.csv": ["t.csv:2", "t.csv:4"],
        "n.jsonl": ["n.jsonl:1", "n.jsonl:1", "n.jsonl:2"],
        "d.jsonl": ["d.jsonl:1", "d.jsonl:1", "d.jsonl:2"],
        "n.json": ["n.json row 1", "n.json row 2", "n.json row 3"],
    }
    for name, expected in places.items():
        shown, _, _ = start(tmp_path, tmp_path / name, gpu="H100")
        assert [row["from"] for row in shown["first"]] == expected


@pytest.mark.parametrize(
    "late",
    [{"code": False}, {"problem": 7}, {"gpu_clock": 1.5}],
    ids=["a program that is false", "a problem that is a number", "a key of later lines"],
)
def test_cells_are_texts_whatever_comes_later(tmp_path: Path, late: dict[str, Any]) -> None:
    """A cell of another type, or a key of its own, leaves the other rows as they are."""
    good = {"problem": "relu", "code": "def a():\n    1", "speedup": 2.0}
    lines = [good] * 3 + [good | late]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown, *_ = start(tmp_path, tmp_path / "r.jsonl", gpu="H100")
    first = shown["first"][0]
    assert (first["problem"], first["code"]) == ("relu", "def a():")
    assert shown["outcomes"]["success"] >= 3


def test_keys_with_quotes_are_names(tmp_path: Path) -> None:
    """A key of JSON is no SQL."""
    rows = {f"k{n}": {"code": "def a(): 1", "speedup": 1.0 + n} for n in range(2)}
    (tmp_path / "r.json").write_text(json.dumps({'it\'s "a"': rows}))
    shown, *_ = start(tmp_path, tmp_path / "r.json", gpu="H100")
    assert shown["outcomes"] == {"success": 2}


def test_attempts_below_levels_and_problems(tmp_path: Path) -> None:
    """Numbered keys name the problem, a list below them holds its attempts; all runs are read."""
    for run, device in (("a", "cuda:1"), ("b", "cuda:0")):
        stats = {"device": device, "hardware": "H100", "runtime_error": None}
        turns = [
            {"extracted_code": f"def k():\n    {n}", "eval": {"runtime": 2.0, "ref_runtime": 3.0}}
            | {"status": "correct", f"only_in_{run}": 1, "metadata": stats}
            for n in range(2)
        ]
        problems = {str(p): {"extracted_code": "def k():\n  1", "turns": turns} for p in (2, 7)}
        file = tmp_path / f"runs/{run}/results.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"meta": {"n": 1}, "levels": {"1": problems, "2": problems}}))
    shown, query, _ = start(tmp_path, tmp_path / "runs")
    assert (shown["runs"], shown["outcomes"], shown["problems"]) == (2, {"success": 16}, 4)
    assert (shown["first"][0]["problem"], shown["first"][0]["speedup"]) == ("level_1_2", 1.5)
    assert shown["gpus"] == {"H100": 16}
    assert "t.place AS problem,  -- LOOK" in query


@pytest.mark.parametrize("form", ["a list", "lines", "a file a sample", "an object"])
def test_a_folder_for_each_problem(tmp_path: Path, form: str) -> None:
    """Programs are beside the table, by the number of their sample; files may lack keys."""
    for problem in ("level1/19_ReLU", "level1/23_Softmax"):
        folder = tmp_path / "run" / problem
        folder.mkdir(parents=True)
        samples = []
        for n in range(3):
            (folder / f"sample_{n}.py").write_text(f"class New: n = '{problem} {n}'\n")
            said = {"sample_id": n, "compiled": True, "correctness": True, "ref_runtime": 3.0}
            said |= {"metadata": {"device": "cuda:0", "hardware": "NVIDIA H100"}, "runtime": 2.0}
            if n == 1 and problem.endswith("ReLU"):
                said |= {"correctness": False, "runtime": -1.0}
                said["metadata"] |= {"runtime_error": "an illegal memory access"}
            if n == 2 and problem.endswith("ReLU"):
                said = {"sample_id": n, "compiled": False, "metadata": {"compilation_error": "x"}}
            samples.append(said)
            if form == "a file a sample":
                (folder / f"sample_{n}.json").write_text(json.dumps(said))
        lines = "".join(json.dumps(said) + "\n" for said in samples)
        whole = {"a list": json.dumps(samples), "lines": lines}
        whole["an object"] = json.dumps({str(n): said for n, said in enumerate(samples)})
        if form in whole:
            (folder / ("r.jsonl" if form == "lines" else "r.json")).write_text(whole[form])
    shown, query, notes = start(tmp_path, tmp_path / "run", gpu="H100")
    expected = {"success": 4, "runtime_error": 1, "compile_failed": 1}
    assert (shown["outcomes"], shown["problems"]) == (expected, 2)
    assert (shown["first"][0]["problem"], shown["gpus"]) == ("level1/19_ReLU", {"H100": 6})
    assert shown["first"][0]["code"] == "class New: n = 'level1/19_ReLU 0'"
    (source,) = tomllib.loads((tmp_path / "builder.toml").read_text())["source"]
    assert source["problem"] == "{folder}"
    assert not [note for note in notes if "not read" in note or "Is it the column" in note]
    assert re.search(r"[./]runtime_error", query.replace('"', ""))
    if form == "a list":  # a build reads the others as the preview does
        build_archive([str(tmp_path)], out=tmp_path / "out", jobs=1)
        query = "SELECT DISTINCT problem FROM kernels ORDER BY 1"
        problems = open_archive(tmp_path / "out").sql(query)["problem"].to_pylist()
        assert problems == ["kernelbench_l1_p19", "kernelbench_l1_p23"]


def test_two_numbers_in_the_names_of_programs(tmp_path: Path) -> None:
    """A column that is one of them joins nothing; one that follows the other's is the last."""
    head, names = ["problem", "problem_id", "sample_id", "speedup"], []
    for n in range(2):
        for k in range(2):
            names.append([f"p{n}", n, k, 1.5])
            (tmp_path / f"problem_{n}_sample_{k}.py").write_text(f"def k(): {n}{k}\n")
    write_table(tmp_path / "t.csv", head, *names)
    _, query, notes = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    assert "AS code" not in query
    assert guesses.KNOWN["lacks"]["code"] in notes[0]
    names = [f"run/level_1_sample_{n}.py" for n in (1, 2)]
    column = guesses.numbered_files({"sample": ["1", "2"]}, names, tmp_path.__class__("run"))
    assert column is not None
    assert (column.before, column.ending) == ("level_1_sample_", ".py")


def test_folders_of_one_name_name_no_problem(tmp_path: Path) -> None:
    """Runs of several problems in folders that are all called run_0."""
    for problem in ("a", "b"):
        folder = tmp_path / "runs" / problem / "run_0"
        folder.mkdir(parents=True)
        (folder / "sample_0.py").write_text(f"def k(): {problem}\n")
        said = [{"sample_id": 0, "speedup": 2.0, 'an "odd" / key': "x"}]
        (folder / "results.json").write_text(json.dumps(said))
    shown, _, notes = start(tmp_path, tmp_path / "runs", gpu="H100")
    assert shown["problems"] == 0
    assert guesses.KNOWN["lacks"]["problem"] in notes[0]


@pytest.mark.parametrize("column", ["error", "exception"])
def test_failures_by_the_words_of_their_error(tmp_path: Path, column: str) -> None:
    """Only where nothing else says which; numbers and names of errors are no texts."""
    says = {
        "nvcc: kernel.cu(3): expected ;": "compile_failed",
        "CUDA error: an illegal memory access. Compile with TORCH_USE_CUDA_DSA": "runtime_error",
        "triton.compiler.errors.CompilationError: at 3:1": "compile_failed",
        '1 error detected in the compilation of "k.cu".': "compile_failed",
        "Failed to compile custom CUDA kernel": "compile_failed",
        "Output mismatch after compiling": "incorrect",
        "no idea": "incorrect" if column == "error" else "runtime_error",
    }
    head = ["op", "code", "time_ms", "ref_ms", "status", column, "max_error"]
    rows = [["gemm", f"def k{n}(): ...", "", 2, "failed", text, 0.1] for n, text in enumerate(says)]
    rows += [["gemm", "def k(): ...", 1, 2, "ok", "", 0.2]]
    write_table(tmp_path / "t.csv", head, *rows)
    shown, query, _ = start(tmp_path, tmp_path / "t.csv", gpu="H100")
    assert shown["outcomes"] == {**Counter(says.values()), "success": 1}
    assert "LOOK: by its error" in query
    assert "max_error" not in query.partition("SELECT")[2]


def test_no_error_and_no_device_is_asked_for(tmp_path: Path) -> None:
    """As what could be the problem or the program; the number of a device is no GPU."""
    row = [1.0, 2.0, "cuda:0", "nvcc: a long text of an error", ""]
    write_table(tmp_path / "t.csv", ["time_ms", "ref_ms", "device", "build_error", "log"], row)
    _, query, notes = start(tmp_path, tmp_path / "t.csv")
    assert "AS gpu" not in query
    assert notes[:2] == [guesses.KNOWN["lacks"][name] for name in ("problem", "code")]


def test_programs_beside_the_folder_of_the_table(tmp_path: Path) -> None:
    """The folder above is read then; problems of two levels with one number are two."""
    rows = [[level, 1, f"{level}.py", 2.0, True, "H100"] for level in (1, 2)]
    head = ["level", "problem_id", "solution", "speedup", "correct", "hardware"]
    write_table(tmp_path / "in/results/all.csv", head, *rows)
    (tmp_path / "in/solutions").mkdir()
    for level in (1, 2):
        (tmp_path / f"in/solutions/{level}.py").write_text(f"class New: n = {level}\n")
    shown, query, _ = start(tmp_path, tmp_path / "in")
    assert (shown["outcomes"], shown["problems"]) == ({"success": 2}, 2)
    places = [row["from"].removeprefix("in/") for row in shown["first"]]
    assert places == ["results/all.csv:2", "results/all.csv:3"]
    assert "getvariable" not in query


def test_runs_with_programs_of_one_name(tmp_path: Path) -> None:
    """Each run's own count: the folder above is not read."""
    for run in ("a", "b"):
        write_table(tmp_path / f"{run}/t.csv", ["op", "file", "speedup"], ["gemm", "k.cu", 2.0])
        (tmp_path / f"{run}/k.cu").write_text(f"void {run}() {{}}\n")
    shown, _, _ = start(tmp_path, tmp_path, gpu="H100")
    assert (shown["runs"], [row["code"] for row in shown["first"]]) == (
        2,
        ["void a() {}", "void b() {}"],
    )


def test_a_name_without_a_word_says_nothing(tmp_path: Path) -> None:
    """Such a column is no time."""
    write_table(tmp_path / "t.csv", ["#", "op", "code", "speedup"], [7, "p", "def a(): ...", 2.0])
    shown, query, _ = start(tmp_path, tmp_path / "t.csv")
    assert shown["first"][0]["speedup"] == 2.0
    assert 't."#"' not in query


def test_names_are_data(tmp_path: Path) -> None:
    """Names of columns."""
    place = tmp_path / "a'b\"; {x} [y]"
    (tmp_path / "secret.py").write_text("secret text\n")
    bad = 'code"; DROP TABLE t; -- SELECT 1'
    row = ["def a(): ...", 2.0, "1", "it's ok'); --", str(tmp_path / "secret.py")]
    write_table(place / "t'.csv", ["code", "speedup", bad, "status", "kernel_path"], row)
    shown, query, _ = start(tmp_path, place)
    parse_query(query)
    assert "secret text" not in repr(shown)
    recipe = tomllib.loads((tmp_path / "builder.toml").read_text())
    assert recipe["source"][0]["path"] == "a'b\"; ?x? [[]y]/t'.csv"
    assert shown["runs"] == 1
    assert sql_name('a"b') == '"a""b"'


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no files"),
        ({"a.txt": "x", "b.txt": "y", "c": "z"}, "2 .txt, 1 c"),
        ({"t.csv": "\0\xff"}, "1 .csv"),
    ],
)
def test_nothing_is_recognised(tmp_path: Path, files: dict[str, str], words: str) -> None:
    """What was seen is listed, with the way out; a folder that is not there is said."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        draft_recipe(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        draft_recipe(tmp_path / "none")


def test_shipped_queries_and_own_formats(tmp_path: Path) -> None:
    """They are known by the files that they read."""
    programs = tmp_path / "evolve/checkpoints/checkpoint_1/programs"
    programs.mkdir(parents=True)
    for n, parent in enumerate((None, "p0")):
        value = {"id": f"p{n}", "code": f"def k(): return {n}", "parent_id": parent}
        value |= {"metrics": {"ms": 4.0 - n}, "iteration_found": n}
        (programs / f"p{n}.json").write_text(json.dumps(value))
    shown, query, _ = start(tmp_path, tmp_path / "evolve", gpu="L40S", problem="mine")
    assert "Checkpoints of OpenEvolve" in query
    assert (shown["evaluations"], shown["gpus"], shown["missing"]) == (2, {"L40S": 2}, [])
    write_table(tmp_path / "cuda/h100.json", ["x"], [1])
    assert "cuda-l1" in draft_recipe(tmp_path / "cuda").found
    (tmp_path / "own/run_0").mkdir(parents=True)
    (tmp_path / "own/run_0/events.jsonl").write_text("{}\n")
    assert draft_recipe(tmp_path / "own").sources[0]["format"] == "puct-events"


def test_a_folder_a_thousand_deep(tmp_path: Path) -> None:
    """It is looked at without recursion, as far as paths go; a table beside it is found."""
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_100):
        os.mkdir("d" * 8, dir_fd=folder)
        inner = os.open("d" * 8, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    write_table(tmp_path / "t.csv", ["problem", "code", "speedup"], ["p", "def a(): ...", 2.0])
    try:
        shown, _, _ = start(tmp_path / "..", tmp_path)
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 8))], check=True)
    assert shown["outcomes"] == {"success": 1}


def test_a_link_to_itself_is_passed_over_and_a_pipe_is_no_table(tmp_path: Path) -> None:
    """Neither stops the others of a folder."""
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe.csv")
    write_table(tmp_path / "t.csv", ["problem", "code", "speedup"], ["p", "def a(): ...", 2.0])
    shown, _, _ = start(tmp_path / "..", tmp_path)
    assert shown["outcomes"] == {"success": 1}
    with pytest.raises(DataError, match="a pipe"):
        draft_recipe(tmp_path / "pipe.csv")


def test_a_table_of_a_hundred_thousand_columns(tmp_path: Path) -> None:
    """It is refused; nothing is made up."""
    names = ["problem", "code", "speedup", *(f"c{n}" for n in range(100_000))]
    write_table(tmp_path / "t.csv", names, ["p", "def a(): ...", 2.0, *range(100_000)])
    with pytest.raises(DataError, match=r"1 \.csv"):
        draft_recipe(tmp_path)
