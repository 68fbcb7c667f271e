"""Tests of following programs without a GPU; what needs torch runs where its CPU build is."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from support.archives import Run, Search, make_archive

from kernel_archive.archive.open import open_archive
from kernel_archive.archive.recipe_files import FULL_LAUNCH_LINE
from kernel_archive.errors import KernelArchiveError, TargetExistsError
from kernel_archive.ids import program_id
from kernel_archive.toml_files import toml_beside
from kernel_archive.untrusted import Lines
from kernel_measure import following, kernel_text
from kernel_measure.cli import main
from kernel_measure.dry_run import FollowOptions, follow_programs, launch_lines
from kernel_measure.tasks import get_task
from kernel_measure.worker import Reply

PROGRAMS = toml_beside(__file__, "followed.toml")
NAMES = ("torch", "raises", "exits", "endless")


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

    nothing = contextlib.nullcontext()
    yield lambda text: following.follow(text, Bytes(), nothing, nothing)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("triton", "program")]:
        del sys.modules[name]
    sys.modules |= kept


@pytest.fixture
def calls(follow):
    """The calls of the program above."""
    return follow(PROGRAMS["triton"])


def test_launches_of_gluon_are_recorded(follow):
    """Its kernels are launched as Triton's are; its own copies and products are counted."""
    (call,) = follow(PROGRAMS["gluon"])
    usual, other = "from triton.experimental import", "import triton.experimental.gluon as"
    assert follow(PROGRAMS["gluon"].replace(usual, other)) == [call]
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


@pytest.fixture
def archive(tmp_path):
    """Programs that can be followed and others; one of a problem without a task."""
    searches = [Search("s/1", "matmul_bf16"), Search("s/2", "kernelbench_l3_p48")]
    runs = [Run("s/1", PROGRAMS[name], 1.0 + i / 10) for i, name in enumerate(NAMES)]
    runs[1] = Run("s/1", PROGRAMS["raises"], None, outcome="runtime_error")
    runs.append(Run("s/2", PROGRAMS["torch"] + "# another\n", 1.5))
    return open_archive(make_archive(tmp_path / "a", searches, runs))


def test_an_existing_file_stays(archive, tmp_path):
    """Found before any program is followed."""
    (tmp_path / "o.jsonl").write_text("mine")
    with pytest.raises(TargetExistsError):
        follow_programs(archive, tmp_path / "o.jsonl", FollowOptions(trusted=True))
    assert (tmp_path / "o.jsonl").read_text() == "mine"


def test_a_killed_call_goes_on(archive, tmp_path, monkeypatch):
    """What was followed is not followed again; each program has its lines once, in their order."""
    asked, stops = [], [3, 99]

    class Worker:
        """Answers with one call, and is interrupted at the third program."""

        def __init__(self, *_):
            self.kill = lambda: None
            self.ready = lambda _: True

        def ask(self, code, *_, **__):
            asked.append(code)
            if len(asked) == stops[0]:
                raise KeyboardInterrupt
            return Reply(result={"cases": [[{"kind": "operator", "name": "add"}]]})

    monkeypatch.setattr("kernel_measure.dry_run.WorkerProcess", Worker)
    output, done = tmp_path / "o.jsonl", []
    with pytest.raises(KeyboardInterrupt):
        follow_programs(archive, output, FollowOptions())
    assert not output.exists()
    stops.pop(0)
    followed = follow_programs(archive, output, FollowOptions(), advance=lambda *a: done.append(a))
    assert [n for n, _, _ in done] == [3, 4]
    assert (followed.programs, followed.followed, followed.lines) == (4, 4, 4)
    assert len(set(asked)) == len(asked) - 1 == 4
    ids = [line.program_id for line in lines_of(output)]
    assert ids == sorted(ids)
    assert not list(tmp_path.glob("*unfinished*"))


@pytest.fixture
def timed_worker(monkeypatch):
    """Answers each program with one call, and takes a second of the package's time for it."""
    clock = SimpleNamespace(now=0.0, asked=[])

    class Worker:
        """Counts in ``clock``."""

        def __init__(self, *_):
            self.kill = lambda: None
            self.ready = lambda _: True

        def ask(self, code, *_, **__):
            clock.now += 1.0
            clock.asked.append(code)
            return Reply(result={"cases": [[{"kind": "operator", "name": f"op{len(code)}"}]]})

    monkeypatch.setattr("kernel_measure.dry_run.WorkerProcess", Worker)
    time = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("kernel_measure.dry_run.time", time)
    return clock


@pytest.mark.parametrize("mode", ["dry", "profile"])
def test_what_a_time_limit_left_is_gone_on_with(archive, tmp_path, timed_worker, mode):
    """Each program is asked once, and the file is that of one call without an end."""
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    follow_programs(archive, whole, FollowOptions(mode=mode))
    asked = timed_worker.asked.copy()
    short = FollowOptions(mode=mode, seconds=1.5)
    assert follow_programs(archive, parts, short).followed == 2
    assert 0 < len(lines_of(parts)) < len(lines_of(whole))
    assert [path.name for path in tmp_path.glob("parts.*.unfinished-*")] != []
    follow_programs(archive, parts, FollowOptions(mode=mode), force=True)
    assert timed_worker.asked == asked * 2
    assert parts.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a", parts.name, whole.name]


def test_two_calls_do_not_share_a_file(archive, tmp_path, timed_worker):
    """The second ends at once with an error; the first is not disturbed."""
    output, refused = tmp_path / "o.jsonl", []

    def follow_again(*_):
        with pytest.raises(KernelArchiveError, match="another call is at work") as error:
            follow_programs(archive, output, FollowOptions())
        refused.append(error)

    assert follow_programs(archive, output, FollowOptions(), advance=follow_again).followed == 4
    assert len(refused) == len(timed_worker.asked) == 4
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["a", "o.jsonl"]


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
    ids = {name: program_id(PROGRAMS[name]) for name in NAMES}
    assert by_program == {
        (ids["torch"], "launch"): len(cases),
        (ids["torch"], "operator"): len(cases),
        **{(ids[name], "not_followed"): 1 for name in NAMES[1:]},
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
    how = FollowOptions(trusted=True, workers=2)
    follow_programs(archive, tmp_path / "o.jsonl", how, advance=lambda *a: seen.append(a))
    assert sorted(done for done, _, _ in seen) == [1, 2, 3, 4]


def test_a_program_sees_the_multiprocessors_of_its_gpu(tmp_path):
    """Those of an A100 in its archive: kernels that stay resident launch a block on each."""
    pytest.importorskip("torch")
    count = "torch.cuda.get_device_properties(0).multi_processor_count"
    code = PROGRAMS["torch"].replace("triton.cdiv(x.numel(), 256)", count)
    searches = [Search("s/1", "matmul_bf16", gpu="A100-80GB")]
    opened = open_archive(make_archive(tmp_path / "a", searches, [Run("s/1", code, 1.0)]))
    follow_programs(opened, tmp_path / "o.jsonl", FollowOptions(trusted=True))
    launches = [line for line in lines_of(tmp_path / "o.jsonl") if line.kind == "launch"]
    assert {line.grid_x for line in launches} == {108}


def test_a_program_in_the_form_of_kernelbench_is_followed(tmp_path):
    """On the inputs of its reference; weights and inputs have no values. A reference is, too.

    A program that changes the type that torch makes tensors of changes nothing for the next.
    """
    pytest.importorskip("torch")
    problems = {"s": "kernelbench_l1_p1", "t": "kernelbench_l1_p2"}
    searches = [Search(s, p, reference=PROGRAMS["model_reference"]) for s, p in problems.items()]
    change, model = "import torch\ntorch.set_default_dtype(torch.float16)\n", PROGRAMS["model"]
    codes = [model, change + model, model.replace("x.numel(), B", "x.item(), B")]
    runs = [Run("s", code, 1.0 + i) for i, code in enumerate(codes)]
    runs.append(Run("t", PROGRAMS["model_reference"] + "# again\n", 1.2))
    opened = open_archive(make_archive(tmp_path / "a", searches, runs))
    done = follow_programs(opened, tmp_path / "o.jsonl", FollowOptions(trusted=True))
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
    """The stand-in runs program text: no other module imports it."""
    modules = Path(following.__file__).parent.glob("*.py")
    importing = [p.name for p in modules if "kernel_measure.following import" in p.read_text()]
    assert importing == ["worker.py"]


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
