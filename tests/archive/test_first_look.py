"""``kernel-archive init``: folders as people have them, from a first look to an archive with an evaluation split."""

from __future__ import annotations

import csv
import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kernel_archive.archive.first_look import look, preview, recipe_text
from kernel_archive.archive.guess import guess
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe import load_recipe
from kernel_archive.cli import cli
from kernel_archive.errors import DataError
from kernel_archive.forecasters.features import GPU_FEATURES, gpu_features
from kernel_archive.forecasters.pairs import load_asked_pairs
from kernel_archive.gpus import Gpu
from kernel_archive.llm.prompts import load_questions
from kernel_archive.pipeline import build

if TYPE_CHECKING:
    from pathlib import Path

SPEEDUPS = (0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 5.0)


def program(n: int) -> str:
    """A program unlike the others."""
    return f"import torch\n\n\ndef kernel_{n}(x):\n" + "".join(
        f"    y{n}_{i} = x.op_{n * 31 + i}()\n" for i in range(12)
    )


def kernelbench(top: Path) -> Path:
    """A run of one level with its baselines and the reference programs."""
    run = top / "runs/mine"
    run.mkdir(parents=True)
    results: dict[str, Any] = {}
    for n, speedup in enumerate(SPEEDUPS):
        failed = {"compiled": n != 3, "correctness": n != 3}
        results.setdefault(str(n % 2 + 1), []).append(
            {"sample_id": n // 2, **failed, "metadata": {"hardware": "NVIDIA L40S"}, "runtime": 4.0 / speedup}
        )
        (run / f"level_1_problem_{n % 2 + 1}_sample_{n // 2}_kernel.py").write_text(program(n))
    (run / "eval_results.json").write_text(json.dumps(results))
    (top / "timing/L40S").mkdir(parents=True)
    timing = {"level1": {f"{p}_Op.py": {"mean": 4.0, "hardware": "NVIDIA L40S"} for p in (1, 2)}}
    (top / "timing/L40S/baseline_time_torch.json").write_text(json.dumps(timing))
    (top / "KernelBench/level1").mkdir(parents=True)
    for p in (1, 2):
        (top / f"KernelBench/level1/{p}_Op.py").write_text(f"class Model: n = {p}")
    return top


def openevolve(top: Path) -> Path:
    """Two checkpoints of a run whose evaluator gave a time and a verdict."""
    for last in (4, 8):
        folder = top / f"openevolve_output/checkpoints/checkpoint_{last}/programs"
        folder.mkdir(parents=True)
        for n, speedup in enumerate((1.0, *SPEEDUPS)[:last]):
            metrics = {"latency_ms": 8.0 / speedup, "correctness": float(n != 3), "combined_score": 0.5}
            value = {
                "id": f"p{n}",
                "code": program(n),
                "parent_id": f"p{n // 2}" if n else None,
                "iteration_found": n,
                "metrics": metrics,
            }
            (folder / f"p{n}.json").write_text(json.dumps(value))
    return top


def milliseconds(top: Path) -> Path:
    """A CSV of times in milliseconds, with the programs in files."""
    (top / "kernels").mkdir(parents=True)
    with (top / "bench.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["op", "kernel_file", "kernel_ms", "torch_ms", "passed"])
        for n, speedup in enumerate(SPEEDUPS):
            (top / f"kernels/k{n}.cu").write_text(program(n))
            writer.writerow(["softmax", f"k{n}.cu", 2.0 / speedup, 2.0, n != 3])
    return top


def loop(top: Path) -> Path:
    """The log of a loop, with snapshots by number."""
    (top / "snapshots").mkdir(parents=True)
    lines = ["iteration\tlatency_us\tstatus\tdescription"]
    for n, speedup in enumerate((1.0, *SPEEDUPS)):
        (top / f"snapshots/kernel_{n:03}.py").write_text(program(n))
        status = "baseline" if not n else "crash" if n == 4 else "keep" if n % 2 else "discard"
        lines.append(f"{n}\t{'' if status == 'crash' else 80 / speedup}\t{status}\ttried {n}")
    (top / "results.tsv").write_text("\n".join(lines))
    return top


@pytest.mark.parametrize(
    ("make", "options", "kernels", "failures", "pairs"),
    [
        (kernelbench, [], 7, 1, 0),
        (openevolve, ["--gpu", "H100", "--problem", "gemm"], 7, 1, 4),
        (milliseconds, ["--gpu", "RTX 5090"], 7, 1, 0),
        (loop, ["--gpu", "H100", "--problem", "gemm"], 8, 1, 7),
    ],
)
def test_from_a_folder_to_a_benchmark(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    options: list[str],
    kernels: int,
    failures: int,
    pairs: int,
) -> None:
    """``init`` and ``build`` give an archive of one's own with an evaluation split and a card, and nothing had to be edited."""
    make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "data", "--name", "me/mine", *options, "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["evaluations"] == kernels + failures
    assert len(result["first"]) == 3
    archive = open_archive(build(["builder.toml"]).path)
    assert archive.path.as_posix() == "me/mine"
    # The first program of a search is its reference, which is not asked about.
    rows = {name: archive.arrow(name).num_rows for name in ("kernels", "failures", "discovery_pairs", "eval")}
    assert rows == {"kernels": kernels, "failures": failures, "discovery_pairs": pairs, "eval": kernels - bool(pairs)}
    card = (archive.path / "README.md").read_text()
    assert "me/mine" in card
    assert "in a few sentences" not in card
    has_references = bool(archive.arrow("references").num_rows)
    assert ("read a reference program and a candidate" in card, "read a candidate" in card) == (
        has_references,
        not has_references,
    )


def test_facts_of_a_gpu_that_is_stated_reach_whoever_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, the card, the prompts and the features of pairs, also where rows spell the GPU with its maker."""
    milliseconds(tmp_path / "data")
    table = tmp_path / "data/bench.csv"
    head, *rows = table.read_text().split()
    table.write_text("\n".join([f"{head},gpu", *(f"{row},NVIDIA GeForce RTX 5090" for row in rows)]))
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["init", "data", "--name", "me/mine"]).exit_code == 0
    recipe = tmp_path / "builder.toml"
    facts = '[gpu."RTX 5090"]\ncompute_capability = "12.0"\nmemory_bandwidth_gb_s = 1792\nsource = "a datasheet"\n'
    text, n = re.subn(r'\[gpu."NVIDIA GeForce RTX 5090"\].*', facts, recipe.read_text())
    assert n == 1
    recipe.write_text(text)
    result = build(["builder.toml"])
    assert result.findings == 0
    archive = open_archive(result.path)
    card = (archive.path / "README.md").read_text()
    assert "as the recipe states it: compute capability 12.0, 1,792 GB/s (a datasheet)" in card
    assert "1,792 GB/s" in next(iter(load_questions(archive, "eval"))).text
    pairs = load_asked_pairs(archive, "eval").take([0, 1])
    features = dict(zip(GPU_FEATURES, gpu_features(pairs.gpus[0], pairs.stated_gpus), strict=True))
    assert (features["compute_capability"], features["memory_bandwidth_gb_s"]) == (12.0, math.log2(1792))
    odd = {"X": Gpu(name="X", compute_capability="sm", memory_bandwidth_gb_s=-1.0)}
    assert all(math.isnan(value) for value in gpu_features("X", odd))


def test_every_key_of_a_recipe_is_explained() -> None:
    """``readers --keys`` needs no site: every key has a text."""
    shown = CliRunner().invoke(cli, ["readers", "--keys", "--json"])
    assert shown.exit_code == 0, shown.output
    keys = json.loads(shown.stdout)
    assert {"name", "archive.name", "eval.roles", "source.path", "source.join.on", "exclude.reason"} <= keys.keys()
    assert all(keys.values())


def test_what_no_file_says_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU and the problem of a loop: said on the terminal, marked in the recipe, which is whole but for them."""
    loop(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "data"])
    assert shown.exit_code == 0
    assert "missing: the GPU of 9 rows" in shown.stderr
    assert "# gpu = ...  # NEEDED" in (tmp_path / "builder.toml").read_text()
    assert load_recipe(tmp_path / "builder.toml").recipe.archive is not None
    again = CliRunner().invoke(cli, ["init", "data"])
    assert again.exit_code == 1 or "is there already" in str(again.exception)


def test_answers_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is asked for, and stands in the recipe."""
    loop(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kernel_archive.cli.build._asks", lambda: True)
    shown = CliRunner().invoke(cli, ["init", "data"], input="H100\ngemm\n\n")
    assert shown.exit_code == 0, shown.output
    (source,) = load_recipe(tmp_path / "builder.toml").recipe.source
    assert (source.gpu, source.problem, source.reference) == ("H100", "gemm", "root")


def test_nothing_that_is_known(tmp_path: Path) -> None:
    """A folder without results is said with what is in it."""
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(DataError, match=r"1 \.md"):
        look(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        look(tmp_path / "gone")


def test_kernelbench_without_a_baseline_of_its_gpu(tmp_path: Path) -> None:
    """A baseline of another GPU is not taken; what is missing is said."""
    kernelbench(tmp_path)
    path = tmp_path / "timing/L40S/baseline_time_torch.json"
    path.write_text(path.read_text().replace("L40S", "H100"))
    found = look(tmp_path)
    assert "baseline" not in found.sources[0]
    assert "of L40S" in found.open["baseline"]


@pytest.mark.parametrize("name", ["eval_results.json", "evals.json", "level_1_problem_{p}_sample_{s}_eval_result.json"])
def test_relatives_of_kernelbench(tmp_path: Path, name: str) -> None:
    """Results by sample, under another name, or a file for each: recognised, and all of them come out."""
    kernelbench(tmp_path / "data")
    run = tmp_path / "data/runs/mine"
    results = json.loads((run / "eval_results.json").read_text())
    (run / "eval_results.json").unlink()
    by_sample = {p: {str(r["sample_id"]): r for r in found} for p, found in results.items()}
    for p, found in by_sample.items():
        for s, result in found.items():
            text = result if "{" in name else by_sample
            (run / name.format(p=p, s=s)).write_text(json.dumps(text))
    found = look(tmp_path / "data")
    assert [source["format"] for source in found.sources] == ["kernelbench"]
    (tmp_path / "b.toml").write_text(recipe_text(found, tmp_path, name="me/x", answers={}))
    shown = preview(tmp_path / "b.toml")
    assert (shown["evaluations"], shown["findings"]) == (len(SPEEDUPS), [])


@pytest.mark.parametrize("text", ['{"1": [{"sample_id": 0, "comp', "[]", "", "null"])
def test_a_damaged_run_among_good_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A truncated ``eval_results.json`` is named; the other run is shown as ever. Alone it is named, too."""
    kernelbench(tmp_path / "data")
    (tmp_path / "data/runs/bad").mkdir()
    (tmp_path / "data/runs/bad/eval_results.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "data", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["evaluations"] == len(SPEEDUPS)
    assert "cannot be read" in result["open"]["run bad"]
    assert any(finding["file"].endswith("bad/eval_results.json") for finding in result["findings"])
    alone = CliRunner().invoke(cli, ["init", "data/runs/bad", "-o", "b.toml", "--json"])
    assert alone.exit_code == 1, alone.output
    assert json.loads(alone.stdout)["missing"] == ["nothing comes out: see the findings"]


@pytest.mark.parametrize(
    ("names", "options", "problems"),
    [
        (("gelu", "softmax"), [], {"gelu", "softmax"}),
        (("run_1", "run_2"), ["--problem", "gemm"], {"gemm"}),
        (("gelu", "softmax"), ["--problem", "gemm"], {"gemm"}),
    ],
)
def test_runs_of_openevolve_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], options: list[str], problems: set[str]
) -> None:
    """Runs in folders of their own, outside of the recipe's: one source that builds, the problem by the folder's name."""
    for name in names:
        for path in openevolve(tmp_path / "oe" / name).rglob("*.json"):
            path.write_text(path.read_text().replace("kernel_", f"{name}_"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shown = CliRunner().invoke(cli, ["init", "../oe", "--gpu", "H100", "--name", "me/oe", *options, "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert (result["runs"], result["evaluations"], result["missing"]) == (2, 16, [])
    archive = open_archive(build(["builder.toml"]).path)
    assert set(archive.arrow("kernels")["problem"].to_pylist()) == problems
    assert archive.arrow("searches").num_rows == 2


def test_an_openevolve_speedup_that_its_runtime_denies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both metrics are mapped, though failures have a time of 0; the one that nothing is read from is named."""
    for path in openevolve(tmp_path / "data").rglob("*.json"):
        value = json.loads(path.read_text())
        time = value["metrics"].pop("latency_ms")
        right = value["metrics"]["correctness"]
        value["metrics"] |= {"speedup": 9.9 if value["id"] == "p5" else right * 8.0 / time, "runtime_ms": right * time}
        path.write_text(json.dumps(value))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "data", "--gpu", "H100", "--problem", "gemm", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["sources"][0]["columns"]["runtime"] == {"column": "metrics.runtime_ms", "unit": "ms"}
    assert [(f["code"], f["value"]) for f in result["findings"]] == [("odd-reference", "9.9")]
    assert "nothing is read from: metrics.combined_score" in (tmp_path / "builder.toml").read_text()


def test_runs_that_only_a_wider_path_would_match(tmp_path: Path) -> None:
    """A path that would match a folder without programs is not proposed."""
    for name in ("gelu", "softmax"):
        openevolve(tmp_path / name)
    (tmp_path / "notes/openevolve_output").mkdir(parents=True)
    assert [source["path"] for source in look(tmp_path).sources] == [
        str(tmp_path / name / "openevolve_output") for name in ("gelu", "softmax")
    ]


def test_the_kernels_that_are_shown_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each problem, by the line that tells them apart; columns that name files are read."""
    (tmp_path / "d/src").mkdir(parents=True)
    rows = ["op,source_file,kernel_ms,torch_ms,note"]
    for n, speedup in enumerate(SPEEDUPS):
        (tmp_path / f"d/src/k{n}.py").write_text(program(n))
        rows.append(f"op{n // 4},src/k{n}.py,{2 / speedup},2,x{n}")
    (tmp_path / "d/b.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "d", "--gpu", "H100", "--json"])
    assert shown.exit_code == 0, shown.output
    first = json.loads(shown.stdout)["first"]
    assert [(row["problem"], row["code"]) for row in first] == [
        (f"op{n // 4}", f"def kernel_{n}(x):") for n in (0, 4, 1)
    ]
    assert "nothing is read from: note" in (tmp_path / "builder.toml").read_text()


def test_what_was_left_out_is_in_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that became no evaluation are counted in the audit, with the findings that say which and why."""
    milliseconds(tmp_path / "data")
    table = tmp_path / "data/bench.csv"
    table.write_text(table.read_text() + "softmax,gone.cu,1,2,True\nsoftmax,k1.cu,,2,True\n")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["init", "data", "--gpu", "H100", "--name", "me/x"]).exit_code == 0
    build(["builder.toml"])
    result = json.loads(CliRunner().invoke(cli, ["audit", "--json"]).stdout)
    assert (result["rows_left_out"], result["findings"]["by_code"]) == (
        2,
        {"no-code-file": 1, "no-speedup": 1},
    )
    assert [(f["line"], f["field"]) for f in result["findings"]["first"] if f["code"] == "no-speedup"] == [
        (11, "kernel_ms")
    ]
    text = CliRunner().invoke(cli, ["audit"]).stdout
    assert "rows of tables that became no evaluation: 2" in text
    assert "bench.csv:11: kernel_ms: no speedup without both times" in text


TWO_TABLES = {
    "bench.csv": ["op,kernel_file,ms", *(f"op{n % 2},k{n}.cu,{2 / s}" for n, s in enumerate(SPEEDUPS))],
    "torch.csv": ["task,torch_ms", "op0,2", "op1,2", "op2,2"],
}


@pytest.mark.parametrize(
    ("tables", "joined", "said"),
    [
        (TWO_TABLES, [("torch", {"op": "task"})], "the only key that fits, op = task"),
        # An index of programs and the measurements of them: rows are measurements.
        (
            {"index.tsv": ["id\tfile", *(f"a{n}\tk{n}.cu" for n in range(8))],
             "m.jsonl": [json.dumps({"kernel": f"a{min(n, 6)}", "speedup": s, "op": "x"}) for n, s in enumerate(SPEEDUPS)]},
            [("index", {"kernel": "id"})], "kernel = id",
        ),
        # Only both columns together are a key.
        (
            {"bench.csv": ["op,size,kernel_file,ms", *(f"op{n % 2},{n // 2 % 2},k{n}.cu,{2 / s}" for n, s in enumerate(SPEEDUPS))],
             "torch.csv": ["op,size,torch_ms", *(f"op{a},{b},2" for a in (0, 1) for b in (0, 1))]},
            [("torch", {"op": "op", "size": "size"})], "op = op, size = size",
        ),
        # Two keys fit: none is taken, and both are named.
        (TWO_TABLES | {"torch.csv": ["task,other,torch_ms", "op0,op1,2", "op1,op0,2"]}, [], "op = task or op = other"),
        # The key stands twice in the second table.
        (TWO_TABLES | {"torch.csv": ["task,torch_ms", "op0,2", "op0,3", "op1,2"]}, [], None),
    ],
)  # fmt: skip
def test_joins_of_two_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Any, joined: Any, said: str | None
) -> None:
    """A second table that completes the first one is joined by the only key that fits, and it is said."""
    (tmp_path / "d").mkdir()
    for n in range(8):
        (tmp_path / f"d/k{n}.cu").write_text(program(n))
    for name, lines in tables.items():
        (tmp_path / "d" / name).write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "d", "--gpu", "H100", "--problem", "x", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert [(join["name"], join["on"]) for join in result["sources"][0].get("join", [])] == joined
    assert (said or "join") in " ".join(f"{key} {text}" for key, text in result["open"].items()) or said is None
    if joined:
        assert [round(row["speedup"], 6) for row in result["first"][:1]] == [0.2]
        assert (result["evaluations"], result["findings"]) == (8, [])


@pytest.mark.parametrize("make", [milliseconds, loop])
def test_a_table_by_its_name(tmp_path: Path, make: Any) -> None:
    """A table that is named itself finds the programs beside it, as the folder does."""
    make(tmp_path)
    (table,) = (path for path in tmp_path.iterdir() if path.is_file())
    assert look(table).sources == look(tmp_path).sources
    assert "file" in look(table).sources[0]["columns"]["code"]


def cards(top: Path, *names: str) -> Path:
    """Tables of one shape, their times those of different cards."""
    for factor, name in enumerate(names, 1):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"op": "gemm", "code": program(n), "kernel_ms": factor / s, "torch_ms": factor}
            for n, s in enumerate(SPEEDUPS)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return top


@pytest.mark.parametrize(
    ("names", "options", "gpus", "open_"),
    [
        (["results_H100.jsonl", "results_RTX4090.jsonl"], [], {"H100": 8, "RTX4090": 8}, ""),
        (["results_H100.jsonl", "results_H200.jsonl"], ["--gpu", "H100"], {"H100": 8, "H200": 8}, ""),
        (["H100/r.jsonl", "NVIDIA L40S/r.jsonl"], [], {"H100": 8, "L40S": 8}, ""),
        (["H100_a.jsonl", "b_L40S.jsonl"], ["--gpu", "H100"], {"H100": 8, "L40S": 8}, "two GPUs"),
        (["H100_a.jsonl", "other.jsonl"], ["--gpu", "L40S"], {"H100": 8, "L40S": 8}, "two GPUs"),
        (["bench_RTX4090.jsonl"], [], {"RTX4090": 8}, "gpu"),
        (["bench_RTX4090.jsonl"], ["--gpu", "RTX 4090"], {"RTX 4090": 8}, ""),
        (["bench_RTX4090.jsonl"], ["--gpu", "H100"], {"H100": 8}, "two GPUs"),
        (["monday.jsonl", "tuesday.jsonl"], ["--gpu", "H100"], {"H100": 16}, ""),
        (["a/r.jsonl", "b/r.jsonl"], ["--gpu", "H100"], {"H100": 16}, ""),
    ],
)
def test_the_gpu_in_a_files_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    options: list[str],
    gpus: dict[str, int],
    open_: str,
) -> None:
    """The cards of tables called after them are kept apart, whatever ``--gpu`` says; a contradiction is said."""
    cards(tmp_path / "data", *names)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "data", *options, "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["gpus"] == gpus
    assert open_ in {"", *result["open"]}
    assert open_ or not {"gpu", "two GPUs"} & result["open"].keys()


def test_times_that_are_printed_with_their_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TSV index of files in folders, with texts such as 1.2ms, Y and N; a GPU that is not known gets its table."""
    rows = ["#file\tproblem\ttime\tbaseline time\tpass\tGPU"]
    for n, speedup in enumerate(SPEEDUPS):
        (tmp_path / f"d/op{n % 2}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"d/op{n % 2}/v{n}.cu").write_text(program(n))
        rows.append(f"op{n % 2}/v{n}.cu\top{n % 2}\t{2000 / speedup} us\t2.0ms\t{'N' if n == 3 else 'Y'}\tRTX 5090")
    (tmp_path / "d/index.tsv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "d", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert (result["outcomes"], result["findings"]) == ({"success": 7, "incorrect": 1}, [])
    assert [round(row["speedup"], 6) for row in result["first"]] == [0.2, 0.4, 0.6]
    assert '[gpu."RTX 5090"]' in (tmp_path / "builder.toml").read_text()


def tree(top: Path) -> None:
    """A folder for each kernel: its result, its program and the reference."""
    for n, speedup in enumerate(SPEEDUPS):
        folder = top / f"op{n % 2}/try{n}"
        folder.mkdir(parents=True)
        (folder / "kernel.py").write_text(program(n))
        (folder / "reference.py").write_text("def reference(x): ...")
        (folder / "result.json").write_text(
            json.dumps({"mean_ms": 2 / speedup, "ref_ms": 2.0, "ok": n != 3, "gpu": "H100"})
        )


def lists(top: Path) -> None:
    """A line for each task with a list of candidates in it, and the reference's time beside the list."""
    top.mkdir()
    rows = [
        {
            "task": f"op{p}",
            "gpu": "H100",
            "torch_us": 2000.0,
            "candidates": [
                {"program": program(n), "latency_us": 2000 / SPEEDUPS[n], "passed": n != 3} for n in range(p, 8, 2)
            ],
        }
        for p in (0, 1)
    ]
    (top / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))


def listed(top: Path) -> None:
    """The same as one JSON list."""
    lists(top)
    rows = [json.loads(line) for line in (top / "log.jsonl").read_text().split("\n")]
    (top / "log.jsonl").unlink()
    (top / "all.json").write_text(json.dumps(rows))


def wide(top: Path) -> None:
    """Times of two GPUs in columns beside each other; the references of the other one stand first."""
    milliseconds(top)
    lines = (top / "bench.csv").read_text().split()
    rows = [f"{op},{file},9,{b},7,{a},{ok}" for op, file, a, b, ok in (line.split(",") for line in lines[1:])]
    (top / "bench.csv").write_text(
        "\n".join(["op,kernel_file,L40S torch (ms),H100 torch (ms),L40S (ms),H100 (ms),ok", *rows])
    )


@pytest.mark.parametrize(("make", "problems"), [(tree, 2), (lists, 2), (listed, 2), (wide, 1)])
def test_odd_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, problems: int) -> None:
    """Rows in folders of their own, in lists of a line, and in columns by GPU."""
    make(tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(cli, ["init", "d", "--json"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert (result["outcomes"], result["findings"]) == ({"success": 7, "incorrect": 1}, [])
    assert (result["problems"], set(result["gpus"])) == (problems, {"H100"})
    assert {round(row["speedup"], 6) for row in result["first"]} <= {*SPEEDUPS}
    assert ("L40S" in result["open"].get("other GPUs", "")) == (make is wide)
    if make is tree:
        assert result["sources"][0]["columns"]["reference_code"] == {"file": "reference.py"}
    assert open_archive(build(["builder.toml"]).path).arrow("kernels").num_rows == 7


def test_rows_by_problem_and_by_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both levels of a document are read, not the first problem alone; what is taken for the problem is said."""
    rows = {
        f"op{p}": {f"v{n}": {"src": program(n), "ms": 2 / SPEEDUPS[n], "torch_ms": 2} for n in range(p, 8, 2)}
        for p in (0, 1)
    }
    (tmp_path / "r.json").write_text(json.dumps(rows))
    monkeypatch.chdir(tmp_path)
    result = json.loads(CliRunner().invoke(cli, ["init", "r.json", "--gpu", "H100", "--json"]).stdout)
    assert (result["evaluations"], result["problems"], result["sources"][0]["rows"]) == (8, 2, "{key}.{sample}")
    assert "op0, op1" in result["open"]["problem"]


def test_programs_under_any_name_and_times_of_0(tmp_path: Path) -> None:
    """The only column of programs is taken, and said; failures with a time of 0 do not hide what times are."""
    rows = [
        {
            "op": "gemm",
            "impl": program(n),
            "note": "slow\nbut right",
            "runtime": 0 if n == 3 else 2 / s,
            "torch_runtime": 2,
            "speedup": 0 if n == 3 else s,
            "ok": n != 3,
        }
        for n, s in enumerate(SPEEDUPS)
    ]
    (tmp_path / "r.json").write_text(json.dumps({"hardware": "NVIDIA L40S", "results": rows}))
    found = look(tmp_path / "r.json")
    columns = found.sources[0]["columns"]
    assert (columns["code"], columns["gpu"], columns["runtime"]["column"]) == ("impl", "hardware", "runtime")
    assert "impl" in found.open["programs"]
    assert found.sources[0]["rows"] == "results"


@pytest.mark.parametrize(
    ("names", "problems"),
    [(("gelu.csv", "softmax.csv"), {"gelu", "softmax"}), (("a_gelu/r.csv", "a_softmax/r.csv"), {"gelu", "softmax"}),
     (("run_1.csv", "run_2.csv"), None), (("train.csv", "test.csv"), None)],
)  # fmt: skip
def test_tables_called_after_their_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], problems: set[str] | None
) -> None:
    """Where no column says what the programs compute, names of files or folders that differ in a word do."""
    for k, name in enumerate(names):
        milliseconds(tmp_path / f"made{k}")
        rows = (tmp_path / f"made{k}/bench.csv").read_text().replace("softmax,", "").replace("op,", "").split()
        place = tmp_path / "d" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(rows))
        (place.parent / "kernels").mkdir(exist_ok=True)
        for n in range(8):
            (place.parent / f"kernels/k{n}.cu").write_text(program(n + 10 * k))
    monkeypatch.chdir(tmp_path)
    result = json.loads(CliRunner().invoke(cli, ["init", "d", "--gpu", "H100", "--json"]).stdout)
    assert (result["evaluations"], result["problems"]) == (16, len(problems or ()))
    assert (result["sources"][0].get("problem") == "{p}") == (problems is not None)
    if problems is not None:
        assert problems == {row["problem"] for row in result["first"]}
        assert all(name in result["open"]["problem"] for name in problems)


def test_decimal_commas_are_said(tmp_path: Path) -> None:
    """They are no numbers, and nobody has to guess why no time was found."""
    (tmp_path / "t.csv").write_text("op;code;time (ms)\n" + f"gemm;{'x = 1' * 20};0,5\n" * 3)
    found = look(tmp_path / "t.csv")
    assert "time (ms)" in found.open["numbers"]
    assert "point" in found.open["numbers"]


CODE = "def kernel(x):\n    return x\n"


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"custom_code": CODE, "ref_code": CODE, "score_default": 2.0, "level_id": 1, "task_id": 3},
         {"code": "custom_code", "reference_code": "ref_code", "speedup": "score_default", "level": "level_id", "number": "task_id"}),
        ({"CUDA_Code": CODE, "PyTorch_Code_Module": CODE, "CUDA_Runtime": 1.0, "PyTorch_Native_Runtime": 2.0, "CUDA_Speedup_Native": 2.0, "CUDA_Speedup_Compile": 1.0, "Correct": True, "Level_ID": 1, "Task_ID": 3, "Error": None},
         {"code": "CUDA_Code", "reference_code": "PyTorch_Code_Module", "speedup": "CUDA_Speedup_Native", "correct": "Correct", "level": "Level_ID", "number": "Task_ID",
          "runtime": {"column": "CUDA_Runtime", "unit": "ms"}, "reference_runtime": {"column": "PyTorch_Native_Runtime", "unit": "ms"}}),
        ({"source": CODE, "metrics": {"speedup": 2.0, "correct": 1}, "hw": {"gpu": "L40S"}, "task": "gemm"},
         {"code": "source", "speedup": "metrics.speedup", "correct": "metrics.correct", "gpu": "hw.gpu", "problem": "task"}),
        ({"kernel": CODE, "mean_us": 5.0, "std_us": 0.1, "baseline_us": 10.0, "compile_time_ms": 900.0, "op": "gemm"},
         {"code": "kernel", "problem": "op", "runtime": {"column": "mean_us", "unit": "us"}, "reference_runtime": {"column": "baseline_us", "unit": "us"}}),
    ],
)  # fmt: skip
def test_guesses(row: dict[str, Any], columns: dict[str, Any]) -> None:
    """Names as public tables have them."""
    assert guess([row, row]).columns == columns


def test_a_column_without_a_name() -> None:
    """As pandas writes its index, here one that repeats."""
    found = guess([{"": 0, "code": CODE, "speedup": 2.0}] * 2)
    assert (found.columns, found.unused) == ({"code": "code", "speedup": "speedup"}, [""])


def test_values_of_other_names_are_not_looked_into() -> None:
    """Whether values fit is asked where the name does, not of a log's megabytes for every column of ours."""
    asked = 0

    class Large:
        def __str__(self) -> str:
            nonlocal asked
            asked += 1
            return "x"

    assert guess([{"code": CODE, "speedup": 2.0, "blob": Large()}]).unused == ["blob"]
    assert asked == 1  # for the words of an outcome


def test_a_time_without_a_unit_is_asked_about() -> None:
    """Milliseconds are a guess, and said to be."""
    found = guess([{"code": CODE, "runtime": 5.0, "torch_time": 10.0}])
    assert found.columns["runtime"] == {"column": "runtime", "unit": "ms"}
    assert set(found.open) == {"unit of runtime", "unit of torch_time"}


ROWS = [{"task": "gemm", "gpu": "L40S", "code": program(n), "speedup": s} for n, s in enumerate(SPEEDUPS)]


@pytest.mark.parametrize(
    ("document", "at"),
    [
        ({"meta": {"v": 1}, "report": {"results": ROWS}}, "report.results"),
        ({"runs": {"gelu": {"attempts": ROWS[:4]}, "gemm": {"attempts": ROWS[4:]}}}, "runs.{key}.attempts"),
        ({"gelu": ROWS[:4], "gemm": ROWS[4:]}, "{key}"),
        ({"by_id": {str(n): row for n, row in enumerate(ROWS)}, "v": 1}, "by_id.{key}"),
    ],
)
def test_rows_deep_in_a_document(tmp_path: Path, document: Any, at: str) -> None:
    """The place with the most rows is found, and the recipe names it."""
    (tmp_path / "out.json").write_text(json.dumps(document, indent=1))
    found = look(tmp_path / "out.json")
    assert found.sources[0]["rows"] == at
    assert found.sources[0]["columns"]["code"] == "code"


@pytest.mark.parametrize("name", ["decision", "verdict", "what happened"])
def test_a_loops_words_are_known_by_what_they_say(tmp_path, name):
    """Kept, discarded and crashed are outcomes and parents whatever their column is called, and a recipe says so."""
    words = ["keep", "discard", "keep", "crash", "discard"]
    rows = [{"iter": n, "us": 9.0 - n, name: word, "code": program(n)} for n, word in enumerate(words)]
    found = guess(rows)
    assert found.columns["kept"] == name
    mapped = {"keep": "success", "discard": "success", "crash": "runtime_error"}
    assert found.columns["outcome"] == {"column": name, "values": mapped}
    assert "crash is runtime_error" in found.open["kept"]


def test_a_loops_words_beside_an_outcome(tmp_path):
    """An outcome of its own stays; a boolean says what was kept, and that it says no failure; loose words are said."""
    both = [
        {"us": 1.0, "status": s, "step_verdict": v, "code": program(1)}
        for s, v in (("ok", "kept"), ("ce", "discarded"))
    ]
    found = guess(both).columns
    assert (found["kept"], found["outcome"]["column"]) == ("step_verdict", "status")
    flags = guess([{"us": 1.0, "kept": kept, "code": program(1)} for kept in ("True", "False")])
    assert flags.columns["kept"] == "kept"
    assert "not what failed" in flags.open["kept"]
    loose = guess([{"us": 1.0, "verdict": v, "code": program(1)} for v in ("pass", "FAIL_BUILD")])
    assert loose.columns["outcome"]["values"] == {"pass": "success", "fail_build": "compile_failed"}
    assert "fail_build is compile_failed" in loose.open["failures in verdict"]


def test_what_is_needed_is_said_whole(tmp_path):
    """NEEDED of a GPU names its table, that of a reference all its three ways; a reference's own time needs no baseline."""
    rows = "\n".join(json.dumps({"code": program(n), "problem": "gemm", "speedup": 1.5}) for n in range(2))
    (tmp_path / "r.jsonl").write_text(rows)
    text = recipe_text(look(tmp_path / "r.jsonl"), tmp_path, name="me/x", answers={})
    assert re.search(r'# gpu = .*NEEDED: .*\[gpu."NAME"\]', text)
    assert re.search(r'# reference = .*NEEDED: .*"root"', text)
    result = tmp_path / "kb/level_2_problem_1_sample_0_eval_result.json"
    result.parent.mkdir()
    for own in (0.0, 2.5):
        result.write_text(json.dumps({"compiled": True, "correctness": True, "runtime": 1.0, "ref_runtime": own}))
        assert ("baseline" in look(tmp_path / "kb").open) == (own == 0)
