"""One kernel file, one verdict."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from support.chains import write
from support.cheats import NO_MAXIMUM, NUMPY_HONEST

from kernel_archive.cli import cli
from kernel_archive.ids import program_id
from kernel_measure.cli import cli as measure_cli
from kernel_measure.tasks import get_task


def run(*args):
    """The JSON that a command prints; ``measure`` ends with 1 when a program does not pass."""
    group = measure_cli if args[0] in measure_cli.commands else cli
    result = CliRunner().invoke(group, [str(a) for a in args])
    assert result.exit_code in (0, 1), result.output
    assert result.stdout, (args, result.output, result.exception)
    return json.loads(result.stdout)


def programs(task):
    """Name -> program."""
    passes = get_task(task).reference_program
    call = passes.replace("def custom_kernel(", "def once(")
    last = "(out[0], out[1] * 1.5)" if len(get_task(task).outputs) == 2 else "out * 1.5"
    return {
        "passes": passes,
        "slow": f"{call}\n\ndef custom_kernel(data):\n    for _ in range(3):\n        once(data)\n    return once(data)\n",  # noqa: E501
        "wrong": f"{call}\n\ndef custom_kernel(data):\n    out = once(data)\n    return {last}\n",
        "fails": f'{call}\n\ndef custom_kernel(data):\n    raise ValueError("no")\n',
        "broken": passes.replace("def custom_kernel(data):", "def custom_kernel(data)"),
    }


def check(tmp_path, task, device, near, flagged=()):
    """Measure, record, build and show the same programs; ``flagged`` ones have that flag."""
    codes = programs(task) | dict(flagged)
    files = {name: tmp_path / f"{name}.py" for name in codes}
    for name, path in files.items():
        path.write_text(codes[name])
    settings = ["max_runs=20", "max_case_seconds=0.5", "timeout_s=60"]
    pairs = [part for pair in settings for part in ("--set", pair)]
    measured_files = run(
        "measure", task, *files.values(), "--device", device, "--gpu", "H200", *pairs, "--json"
    )["results"]
    by_hand = dict(zip(codes, (r["measurement"] for r in measured_files), strict=True))
    for i, code in enumerate(codes.values(), 1):
        write(tmp_path / "chains" / "a01" / task, i, code)
    (tmp_path / "plan.toml").write_text(
        f'name = "same"\ngpu = "H200"\n[settings]\n{chr(10).join(s.replace("=", " = ") for s in settings)}\n'  # noqa: E501
        '[[search]]\nmethod = "agentic"\nchains = "chains/*/*"\n'
    )
    out = tmp_path / "src" / "logs"
    run("record", tmp_path / "plan.toml", "--out", out, "--device", device, "--json")
    (tmp_path / "src" / "builder.toml").write_text(
        'name = "same"\nversion = "1"\nlicence = "CC-BY-4.0"\ndescription = "d"\ncitation = "c"\n[[source]]\npath = "logs/agentic/*"\nformat = "attempts"\n'  # noqa: E501
        'role = "held_out"\ngeneration_method = "agentic"\n'
    )
    run("build", tmp_path / "src", "--out", tmp_path / "archive", "--json")
    expected = dict.fromkeys(codes, "success") | {
        "wrong": "incorrect",
        "fails": "runtime_error",
        "broken": "compile_failed",
    }
    for name, code in codes.items():
        shown = run("show", program_id(code), "--archive", tmp_path / "archive", "--json")
        (measured,) = shown["measurements"]
        assert {by_hand[name]["outcome"], measured["outcome"]} == {expected[name]}, name
        if expected[name] == "success":
            assert shown["kernel"]["table"] == "kernels"
            flags = {"artificial", "narrow_domain"} & set(shown["kernel"]["flags"])
            assert flags == {name} & {flag for flag, _ in flagged}, name
            assert shown["kernel"]["speedup"] == measured["speedup"]
            assert abs(math.log(by_hand[name]["speedup"] / measured["speedup"])) < math.log(near), (
                name
            )
        else:
            assert shown["kernel"]["table"] == "failures"
            assert measured["speedup"] is by_hand[name]["speedup"] is None


def test_on_the_stand_in(tmp_path):
    """Without a GPU: times of a shared machine, so only nearly the same speedup.

    The archive marks programs that are narrow or lose time by intent.
    """
    wasteful = "    for _ in range(2):\n        w = np.sort(data[0])\n    return honest"
    artificial = NUMPY_HONEST.replace("    return honest", wasteful)
    flagged = [("artificial", artificial), ("narrow_domain", NO_MAXIMUM)]
    check(tmp_path, "rehearsal", "standin", 2.0, flagged)


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["fp8_quant", "gdn_chunk_fwd_o"])
def test_on_a_gpu(tmp_path, task):
    """On a GPU: the same verdict, speedups of two worker processes within 15 %."""
    torch = pytest.importorskip("torch", reason="needs torch (the extra gpu)")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    check(tmp_path, task, "cuda", 1.15)
