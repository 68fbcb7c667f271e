"""Tests of following programs without a GPU; what needs torch runs where its CPU build is."""

from __future__ import annotations

import importlib.util
import inspect
import json
import linecache
import sys
from collections import Counter

import msgspec
import pytest
from support.archives import Run, Search, make_archive

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe_files import FULL_LAUNCH_LINE
from kernel_archive.errors import TargetExistsError
from kernel_archive.ids import program_id
from kernel_archive.untrusted import Lines
from kernel_measure import following, kernel_text
from kernel_measure.cli import main
from kernel_measure.dry_run import Following, follow_programs, launch_lines
from kernel_measure.tasks import get_task

KERNELS = """import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.autotune([triton.Config({"B": 64}, num_warps=8), triton.Config({"B": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["B"] == 0})
@triton.jit
def tuned(x, y, n, B: tl.constexpr, EVEN: tl.constexpr):
    for i in range(0, n, B):
        for j in range(3):
            tl.store(y + i, tl.exp(tl.load(x + i)) + tl.load(x + j))
    tl.atomic_add(y, tl.sum(tl.load(x)))


@triton.jit
def plain(x, d, dtype, B: tl.constexpr = 32):
    while True:
        tl.dot(x, x)
"""
HOST = """

def custom_kernel(data):
    n = 1024
    tuned[lambda a: (triton.cdiv(n, a["B"]), 2 if a["EVEN"] else 1)](data, data, n)
    descriptor = TensorDescriptor.from_tensor(data, [64])
    for _ in range(3):
        plain[(7,)](data, descriptor, tl.float32, num_warps=2, num_stages=4)
    plain[tl.odd](data, descriptor, tl.float32, num_warps=tl.odd)
    plain[(tl.odd, 5)](data, descriptor, tl.float32, num_stages=tl.odd)
"""
TORCH = """import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, B: tl.constexpr):
    tl.store(y, tl.load(x))


def custom_kernel(data):
    x = next(v for v in data if hasattr(v, "numel"))
    y = torch.empty_like(x, device="cuda")
    copy[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    copy[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
    return y + 1
"""
MODEL = """import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, y, n, B: tl.constexpr):
    tl.store(y, tl.load(x))


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = torch.empty_like(x)
        copy[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
        return y * self.scale.to("cuda")
"""
MODEL_REFERENCE = """import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.randn(1000, 64)]


def get_init_inputs():
    return [64]
"""
GLUON = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma


@gluon.jit
def product(x, y, n, B: gl.constexpr, layout: gl.constexpr):
    for k in range(0, n, B):
        tma.async_copy_global_to_shared(x, [k], y)
        warpgroup_mma(x, y, x)
    gl.store(y, x)


def custom_kernel(data):
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    product[(8, 2)](data, data, 256, 64, layout, num_warps=8)
"""
RAISES = "import triton\n\n\ndef custom_kernel(data):\n    raise KeyError('gone \\x1b')\n"
EXITS = "import triton\n\n\ndef custom_kernel(data):\n    raise SystemExit(3)\n"
ENDLESS = "import triton\n\n\ndef custom_kernel(data):\n    while True:\n        pass\n"


class Bytes:
    """What a launch asks of a tensor."""

    def numel(self):
        """Elements."""
        return 1000

    def element_size(self):
        """Bytes of one."""
        return 2


@pytest.fixture
def follow(monkeypatch):
    """The calls of a program, of which only Triton is replaced."""
    kept = {name: m for name, m in sys.modules.items() if name.partition(".")[0] == "triton"}
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    following.install_triton()

    def run(text):
        path = "/kernels_of_a_test.py"
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        module = type(sys)("kernels_of_a_test")
        module.__file__ = path
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(text, path, "exec"), module.__dict__)
        following.CALLS.clear()
        module.custom_kernel(Bytes())
        return list(following.CALLS)

    yield run
    for name in [n for n in sys.modules if n.partition(".")[0] == "triton"]:
        del sys.modules[name]
    sys.modules |= kept


@pytest.fixture
def calls(follow):
    """The calls of the program above."""
    return follow(KERNELS + HOST)


def test_launches_of_gluon_are_recorded(follow):
    """Its kernels are launched as Triton's are; its own copies and products are counted."""
    (call,) = follow(GLUON)
    other = GLUON.replace("from triton.experimental import", "import triton.experimental.gluon as")
    assert follow(other) == [call]
    facts = ("name", "grid_x", "grid_y", "warps", "loads", "stores", "dots", "trips", "bytes")
    assert tuple(call[f] for f in facts) == ("product", 8, 2, 8, 1, 1, 1, 4.0, 4000)


def test_a_launch_is_recorded_with_its_first_configuration(calls):
    """Grid callables and heuristics see the configuration; trips of nested loops multiply."""
    assert calls[0] == {
        "kind": "launch",
        "name": "tuned",
        "grid_x": 16,
        "grid_y": 2,
        "grid_z": 1,
        "warps": 8,
        "stages": 3,
        "configurations": 2,
        "bytes": 4000,
        "largest_tile": 1024,
        "trips": 16.0 * 3,
        "loads": 3,
        "stores": 1,
        "dots": 0,
        "reductions": 1,
        "transcendentals": 1,
        "atomics": 1,
        "loops": 2,
    }


def test_what_a_placeholder_gives_is_recorded_as_a_plain_number(calls):
    """Zero for a part of the grid, the default for an option; a line may hold each call."""
    keys = ("grid_x", "grid_y", "warps", "stages")
    assert [tuple(c[k] for k in keys) for c in calls[1:]] == [
        *[(7, 1, 2, 4)] * 3,
        (0, 1, 4, 3),
        (0, 5, 4, 3),
    ]
    assert {type(v) for call in calls for v in call.values()} == {str, int, float}
    assert calls[1]["trips"] == kernel_text.UNKNOWN_TRIPS
    assert list(following.Placeholder("tl.anything")) == []  # would not end otherwise
    ours = {"program_id": "0" * 32, "problem": "trimul", "case": 0, "n": 1}
    for call in calls:
        msgspec.convert({**call, **ours}, FULL_LAUNCH_LINE)


@pytest.mark.parametrize(
    "answer",
    [
        *(None, 7, {}, {"cases": 3}, {"cases": [[3]]}, {"cases": [[{"kind": "launch"}]]}),
        {"cases": [[{"kind": "launch", "name": "k", "bytes": -1}]]},
    ],
)
def test_an_answer_that_is_none_is_a_program_that_was_not_followed(answer):
    """A program can write into the pipe; no answer of it gets into the file unchecked."""
    (line,) = launch_lines({"program_id": "0" * 32, "problem": "trimul"}, answer)
    assert (line.kind, line.name) == ("not_followed", "garbage")


def test_a_program_does_not_name_another():
    """Which program an answer is about is ours to say."""
    call = {"kind": "operator", "name": "add", "program_id": "f" * 32, "case": 9}
    (line,) = launch_lines({"program_id": "0" * 32, "problem": "trimul"}, {"cases": [[call]]})
    assert (line.program_id, line.case) == ("0" * 32, 0)


CODES = {"good": TORCH, "raises": RAISES, "exits": EXITS, "endless": ENDLESS}


@pytest.fixture
def archive(tmp_path):
    """Programs that can be followed and others; one of a problem without a task."""
    searches = [Search("s/1", "matmul_bf16"), Search("s/2", "kernelbench_l3_p48")]
    runs = [Run("s/1", code, 1.0 + i / 10) for i, code in enumerate(CODES.values())]
    runs[1] = Run("s/1", RAISES, None, outcome="runtime_error")
    runs.append(Run("s/2", TORCH + "# another\n", 1.5))
    return open_archive(make_archive(tmp_path / "a", searches, runs))


def test_an_existing_file_stays(archive, tmp_path):
    """Found before any program is followed."""
    (tmp_path / "o.jsonl").write_text("mine")
    with pytest.raises(TargetExistsError):
        follow_programs(archive, tmp_path / "o.jsonl", Following(trusted=True))
    assert (tmp_path / "o.jsonl").read_text() == "mine"


def lines_of(path):
    """The lines of a file."""
    read = Lines(path, max_bytes=1 << 20, max_lines=1000)
    return [msgspec.json.decode(text, type=FULL_LAUNCH_LINE) for _, text in read]


@pytest.mark.parametrize("name", ["o.jsonl", "o.jsonl.zst"])
def test_an_archive_is_followed(archive, tmp_path, capsys, name):
    """A line per kind of call and case, and one for each program that can't be followed.

    With --json: programs, those followed, and the reasons of the others.
    """
    pytest.importorskip("torch")
    command = ["dry-run", "-o", str(tmp_path / name), "--archive", str(archive.path), "--trusted"]
    assert main([*command, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["programs"], done["followed"]) == (4, 1)
    assert done["not_followed"] == {"KeyError": 1, "SystemExit": 1, "timeout": 1}
    lines = lines_of(tmp_path / name)
    assert len(lines) == done["lines"]
    by_program = Counter((line.program_id, line.kind) for line in lines)
    cases = get_task("matmul_bf16").benchmark_cases
    ids = {key: program_id(code) for key, code in CODES.items()}
    assert by_program == {
        (ids["good"], "launch"): len(cases),
        (ids["good"], "operator"): len(cases),
        **{(ids[key], "not_followed"): 1 for key in ("raises", "exits", "endless")},
    }
    launch, add = (
        next(line for line in lines if (line.kind, line.case) == (kind, 0))
        for kind in ("launch", "operator")
    )
    size = cases[0]["m"] * cases[0]["k"]
    assert (launch.name, launch.n, launch.grid_x) == ("copy", 2, -(-size // 256))
    assert (add.name, launch.bytes, add.bytes, add.flops) == ("add", 4 * size, 4 * size, 0)
    (why,) = [line.name for line in lines if line.program_id == ids["raises"]]
    assert why.startswith("KeyError: 'gone")
    assert "\x1b" not in why
    assert main(command) == 1
    assert "exists already" in capsys.readouterr().err


def test_every_program_is_reported_by_every_process(archive, tmp_path):
    """Programs done, of all, whichever process followed them."""
    pytest.importorskip("torch")
    seen = []
    how = Following(trusted=True, workers=2)
    follow_programs(archive, tmp_path / "o.jsonl", how, advance=lambda *a: seen.append(a))
    assert sorted(done for done, _, _ in seen) == [1, 2, 3, 4]


def test_a_program_sees_the_multiprocessors_of_its_gpu(tmp_path):
    """Those of an A100 in its archive: kernels that stay resident launch a block on each."""
    pytest.importorskip("torch")
    count = "torch.cuda.get_device_properties(0).multi_processor_count"
    code = TORCH.replace("triton.cdiv(x.numel(), 256)", count)
    searches = [Search("s/1", "matmul_bf16", gpu="A100-80GB")]
    opened = open_archive(make_archive(tmp_path / "a", searches, [Run("s/1", code, 1.0)]))
    follow_programs(opened, tmp_path / "o.jsonl", Following(trusted=True))
    launches = [line for line in lines_of(tmp_path / "o.jsonl") if line.kind == "launch"]
    assert {line.grid_x for line in launches} == {108}


def test_a_program_in_the_form_of_kernelbench_is_followed(tmp_path):
    """On the inputs of its reference; weights and inputs have no values. A reference is, too.

    A program that changes the type that torch makes tensors of changes nothing for the next.
    """
    pytest.importorskip("torch")
    problems = {"s": "kernelbench_l1_p1", "t": "kernelbench_l1_p2"}
    searches = [Search(s, p, reference=MODEL_REFERENCE) for s, p in problems.items()]
    change = "import torch\ntorch.set_default_dtype(torch.float16)\n"
    codes = [MODEL, change + MODEL, MODEL.replace("x.numel(), B", "x.item(), B")]
    runs = [Run("s", code, 1.0 + i) for i, code in enumerate(codes)]
    runs.append(Run("t", MODEL_REFERENCE + "# again\n", 1.2))
    opened = open_archive(make_archive(tmp_path / "a", searches, runs))
    done = follow_programs(opened, tmp_path / "o.jsonl", Following(trusted=True))
    assert (done.programs, done.followed, done.not_followed) == (4, 3, {"RuntimeError": 1})
    lines = lines_of(tmp_path / "o.jsonl")
    ids = [program_id(code) for code in codes]
    calls = {(line.program_id, line.kind, line.name): line for line in lines}
    launch = calls[ids[0], "launch", "copy"]
    assert (launch.problem, launch.case, launch.grid_x) == ("kernelbench_l1_p1", 0, 250)
    assert launch.bytes == 2 * 64_000 * 4
    assert calls[ids[0], "operator", "mul"].bytes == (2 * 64_000 + 64) * 4
    (product,) = [line for line in lines if line.problem == "kernelbench_l1_p2"]
    assert (product.name, product.flops) == ("addmm", 2 * 1000 * 64 * 64)
    assert product.bytes == (2 * 64_000 + 64 * 64 + 64) * 4


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is here")
def test_without_torch_the_command_says_so(archive, tmp_path, capsys):
    """One line, no traceback, and no file."""
    output = tmp_path / "o.jsonl"
    assert main(["dry-run", "-o", str(output), "--archive", str(archive.path), "--trusted"])
    said = capsys.readouterr().err
    assert "No module named 'torch'" in said
    assert "Traceback" not in said
    assert not output.exists()


def test_only_the_worker_follows_programs():
    """The stand-in runs program text: the driver never imports it."""
    import kernel_measure.dry_run as driver

    assert "standin" not in inspect.getsource(driver).split('"""', 2)[2]


def counting(x, n, step):
    """A stand-in for a kernel: its text is read, and it is never called."""
    for _ in range(2):
        i = 0
        while i < n:
            j = 9
            while j >= 2:
                j -= 2
            i += step
    while x:
        x.load()
    i = 1
    while i < 8:
        i *= 2


def test_trips_of_while_loops():
    """Twice ``n / step`` times four, and a loop without a counter; unknown without the numbers."""
    unknown = kernel_text.UNKNOWN_TRIPS
    assert kernel_text.loop_trips(counting, {"n": 10, "step": 3}) == 2 * 4 * 4 + 2 * unknown
    assert kernel_text.loop_trips(counting, {"n": 10}) == 2 * unknown * 4 + 2 * unknown
    for n in (float("inf"), float("nan"), 10**400):
        assert kernel_text.loop_trips(counting, {"n": n, "step": 3}) >= unknown
    assert kernel_text.loop_trips(counting, {"n": 10, "step": -3}) == 2 * unknown * 4 + 2 * unknown


def within(n, x):
    """A stand-in for a kernel with a block that holds a loop, and a choice of loops."""
    with x:
        for _ in range(n):
            pass
    if x:
        for _ in range(3):
            pass
    else:
        x.store()


def test_loops_within_a_block_count():
    """Below ``with`` as they stand, of an ``if`` the longer side; an infinite end is unknown."""
    unknown = kernel_text.UNKNOWN_TRIPS
    assert kernel_text.loop_trips(within, {"n": 50}) == 50 + 3
    assert kernel_text.loop_trips(within, {"n": float("inf")}) == unknown + 3
