"""The shipped recipes of public archives, each on a made sample; every key explained."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.programs import program
from support.puct import RunLog, recipe

from kernel_archive.archive.jobs import jobs_of
from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe import find_recipe, load_recipe, shipped_recipes
from kernel_archive.errors import RecipeError
from kernel_archive.pipeline import build
from kernel_archive.readers.sql import run_query

if TYPE_CHECKING:
    from pathlib import Path


OTHER_BASELINES = ("torch_compile_default", "torch_compile_reduce_overhead", "cudnn")


def cuda_l1(folder: Path) -> None:
    """A file per GPU; three programs, two rows without code, one without score."""
    for card in ("a100", "h100", "h20", "l40", "3090"):
        rows = [
            {"level_id": 1 + (n > 0), "task_id": n + 1, "ref_code": f"class Model: n = {n}"}
            | {"custom_code": f"class New: {card!r}, {n}", "score_default": 1.2 + n}
            | {"score_cuda_graph": 0.2 + n, "cuda_graph_code": "Graph", "cudnn_code": "Flags"}
            | {f"score_{name}": 2.2 + n for name in OTHER_BASELINES}
            for n in range(3)
        ]
        rows += [{**rows[0], "custom_code": None}, {**rows[1], "score_default": None}]
        rows += [{**rows[2], "custom_code": "None"}]
        text = "\n".join(map(json.dumps, rows))
        (folder / f"{card}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def ai_cuda_engineer(folder: Path) -> None:
    """Right and wrong kernels, and one whose speedup is not the ratio of its times."""
    rows = [
        {"Level_ID": 2, "Task_ID": n % 2 + 1, "Kernel_Name": f"k{n}"}
        | {"CUDA_Code": f"__global__ void k{n}() {{}}", "CUDA_Runtime": 2.0}
        | {"PyTorch_Code_Module": f"class Model: n = {n % 2}", "PyTorch_Native_Runtime": 2.0 + n}
        | {"CUDA_Speedup_Native": 40.0 if n == 7 else (2.0 + n) / 2.0}
        | {"Correct": n != 6, "Error": "mismatch" if n == 6 else None}
        for n in range(1, 8)
    ]
    (folder / "AI-CUDA-Engineer-Archive").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "AI-CUDA-Engineer-Archive/level_1.parquet")


def kernelbench_v3(folder: Path) -> None:
    """Three programs that pass, one that is wrong, and a failure without a program."""
    place = folder / "public/data/v3"
    for name in ("solutions", "references"):
        (place / name).mkdir(parents=True)
    (place / "references/a.py").write_text("class Model: a = 1\n")
    lines = ["model,gpu,level,problem,compiled,correct,speedup,ref_ms,sol_ms,run_dir"]
    lines[0] += ",solution_link,baseline_link"
    for n, card in enumerate(["H100", "B200", "RTX3090", "H100", "H100"]):
        passed = f"True,True,{1.5 + n},{3.0 + 2 * n},2.0" if n < 3 else "False,False,,,"
        file = f"m 1_{card}_{n}_a.py.txt"
        link = f"/data/solutions/{file}" if n < 4 else ""
        if link:
            (place / "solutions" / file).write_text(f"class New: n = {n}\n")
        lines.append(f"m 1,{card},1,a.py,{passed},r,{link},/data/references/a.py")
    (place / "results.csv").write_text("\n".join(lines) + "\n")


def cuda_l2(folder: Path) -> None:
    """Two shapes on one GPU and one on another."""
    (folder / "eval_results").mkdir()
    samples = {"h100_F32F16F16F32": ["64_64_64", "64_64_128"], "3090_F16F16F16F16": ["64_64_64"]}
    for name, shapes in samples.items():
        rows = [f"{shape},{1.5 + n},1.1" for n, shape in enumerate(shapes)]
        table = folder / f"eval_results/cuda_l2_{name}_speedup_offline.csv"
        table.write_text("\n".join(["mnk,torch.matmul,cuBLAS-max", *rows]) + "\n")
        programs = folder / f"kernels/{name}"
        programs.mkdir(parents=True)
        for shape in shapes:
            (programs / f"{shape}.cu").write_text(f"__global__ void k_{name}_{shape}() {{}}\n")


def kernelbench_hard(folder: Path) -> None:
    """A program that passes, one without a baseline at its shapes, one that is wrong."""
    runs = [("h100", "01_gemm", True, 2), ("h100", "02_kda", True, 2)]
    runs += [("b200", "01_gemm", False, 0)]
    for place in ("data/rundetail/h100", "data/rundetail/b200", "runs/h100", "runs/b200"):
        (folder / "public" / place).mkdir(parents=True)
    for n, (card, problem, correct, shapes) in enumerate(runs):
        detail = {"run_id": f"r{n}", "bench": "hard", "gpu": card, "problem": problem}
        detail |= {"model": "m", "harness": "codex", "correct": correct}
        detail |= {"failure_reason": "pass" if correct else "check_failed"}
        detail |= {"stats": {"input_tokens": 5, "output_tokens": 6}}
        detail |= {"shapes": [{"ms": ms, "label": str(ms)} for ms in (1.0, 4.0)[:shapes]]}
        (folder / f"public/data/rundetail/{card}/r{n}.json").write_text(json.dumps(detail))
        program = folder / f"public/runs/{card}/r{n}_solution.py.txt"
        program.write_text(f"class Model: n = {n}\n")
        reference = folder / f"benchmarks/hard/problems-{card}/{problem}/reference.py"
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(f"class Model: name = {problem!r}\n")
    (folder / "benchmarks/hard/results").mkdir()
    times = {"01_gemm": {"eager": {"ms": 6.0, "n_shapes": 2}}}
    times["02_kda"] = {"eager": {"ms": 6.0, "n_shapes": 1}}
    for card in ("", ".h100", ".b200"):
        path = folder / f"benchmarks/hard/results/problem_baselines{card}.json"
        path.write_text(json.dumps({"problems": times}))


def robust_kbench(folder: Path) -> None:
    """A forward program and a backward one of the same task."""
    (folder / "highlighted").mkdir()
    (folder / "tasks/norm").mkdir(parents=True)
    (folder / "tasks/norm/func_forward.py").write_text("def forward_fn(x): return x\n")
    (folder / "highlighted/results.csv").write_text(
        "Correct,Runtime (ms),Speedup,Code,task_name,forward\n"
        'True,0.5,3.0,"__global__ void a() {\n}",norm,True\n'
        'True,0.25,1.5,"__global__ void b() {\n}",norm,False\n'
    )


DOUBTED = {"speedup-contradicted": 1, "fast-failure": 1}


@pytest.mark.parametrize(
    ("name", "sample", "speedups", "codes"),
    [
        ("kernelbench-hard", kernelbench_hard, [3.0], {"no-speedup": 1}),
        ("robust-kbench", robust_kbench, [1.5, 3.0], {}),
        ("kernelbench-v3", kernelbench_v3, [1.5, 2.5, 3.5], {"failure-without-program": 1}),
        ("cuda-l2", cuda_l2, [1.5, 1.5, 2.5], {}),
        ("cuda-l1", cuda_l1, [1.2] * 5 + [2.2] * 5 + [3.2] * 5, {"no-code": 5, "no-speedup": 5}),
        ("ai-cuda-engineer", ai_cuda_engineer, [1.5, 2.0, 2.5, 3.0, 3.5], DOUBTED),
    ],
)
def test_recipes_of_public_archives(
    tmp_path: Path, name: str, sample: Any, speedups: list[float], codes: dict[str, int]
) -> None:
    """A local copy gives an archive of its own name, and findings about what is doubted."""
    sample(tmp_path)
    result = build([name], out=tmp_path / "out", source=tmp_path)
    archive = open_archive(result.path)
    assert archive.manifest.name == f"kernel-archive/{name}"
    assert sorted(archive.arrow("kernels")["speedup"].to_pylist()) == pytest.approx(speedups)
    assert archive.manifest.findings["by_code"] == codes


@pytest.mark.parametrize(
    ("baseline", "least", "reference"),
    [
        ("cuda_graph", 0.2, "Graph"),
        *((name, 2.2, "class Model: n = 0") for name in OTHER_BASELINES[:2]),
        ("cudnn", 2.2, "Flags"),
    ],
)
def test_the_other_baselines_of_cuda_l1(
    tmp_path: Path, baseline: str, least: float, reference: str
) -> None:
    """One word of the query chooses the baseline, with its program where there is one."""
    cuda_l1(tmp_path)
    query = shipped_recipes()["cuda-l1"].with_name("import.sql").read_text()
    chosen = query.replace("(SELECT 'default' AS", f"(SELECT '{baseline}' AS")
    table = run_query(chosen, tmp_path, {"file": "h100.jsonl.gz"})
    first = table.sort_by("speedup").to_pylist()[0]
    assert (float(first["speedup"]), first["reference_code"]) == (least, reference)


def test_every_shipped_recipe_can_be_read() -> None:
    """Each is called like its folder, and none of them has the name of the shipped data."""
    for name, path in shipped_recipes().items():
        recipe = load_recipe(path).recipe
        assert recipe.name == name
        assert recipe.default is False or recipe.archive is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('gpu = "H1000"', "Did you mean 'H100'?"),
        ('gpu = "Quantum 9"', '[gpu."Quantum 9"]'),
        ('format = "attempt"', "Did you mean 'attempts'?"),
        ('format = "measurements"', 'Any table: format = "sql"'),
        ('query = "q.sql"', "only the format 'sql' takes query"),
        ('format = "sql"', "needs a query"),
        ('format = "sql"\nquery = "../q.sql"', "cannot be read"),
        ('format = "sql"\nquery = "none.sql"', "cannot be read"),
        ('format = "sql"\nquery = "SELECT 1; SELECT 2"', "exactly one SELECT"),
        ('path = "."', "the logs of a search need a path"),
        ('role = "heldout"', "Did you mean 'held_out'?"),
        ('formatt = "x"', "Did you mean 'format'?"),
    ],
)
def test_mistakes_of_a_source(tmp_path: Path, more: str, words: str) -> None:
    """File and field are named, with what was probably meant."""
    base = {"path": '"t.csv"', "format": '"attempts"', "role": '"archive"'}
    base |= {"generation_method": '"x"'}
    stated = dict(line.split(" = ", 1) for line in more.split("\n"))
    source = "\n".join(f"{key} = {value}" for key, value in {**base, **stated}.items())
    (tmp_path / "builder.toml").write_text(
        f'name = "a"\nlicence = "MIT"\ndescription = "x"\n[[source]]\n{source}\n'
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "builder.toml")
    assert words in str(caught.value)
    assert "source[0]" in str(caught.value)


@pytest.fixture
def source(tmp_path):
    """A recipe of one run."""
    log = RunLog()
    log.root(program("seed"), 1.0)
    log.write(tmp_path / "src/logs/run")
    return recipe(tmp_path / "src", ("logs/*", "held_out"))


@pytest.mark.parametrize(
    "path", ["", ".", "/", "*/" * 200, "**/" * 200, "logs/\\u0000", "a" * 5000, "/" * 3, "~"]
)
def test_a_path_that_names_nothing_is_one_clear_error(source, path):
    """Empty, absolute, endless and impossible paths: file and field are named."""
    source.write_text(source.read_text().replace("logs/*", path))
    with pytest.raises(RecipeError) as caught:
        jobs_of([find_recipe(str(source))])
    assert caught.value.findings[0].field == "source[0].path"


def test_a_path_that_leads_up_and_down_again_is_followed(source, tmp_path):
    """``..`` in the middle of a path, and an absolute path, name the run as the plain one does."""
    plain = source.read_text()
    (wanted,) = jobs_of([find_recipe(str(source))])
    for path in ("../src/logs/*", str(tmp_path / "src/logs/*")):
        source.write_text(plain.replace("logs/*", path))
        (found,) = jobs_of([find_recipe(str(source))])
        assert found.path == wanted.path
        assert found.run_id == "made/run"
