"""Tests of the guards."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext

import pytest
from support import cheats

from kernel_measure import guards
from kernel_measure.device import StandIn, TimedCall
from kernel_measure.evaluate import Evaluator
from kernel_measure.measurer import Measurer
from kernel_measure.settings import Settings, WorkerConfig
from kernel_measure.tasks import TASK_NAMES, get_task
from kernel_measure.tasks.base import Work

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch (the extra gpu)")


@pytest.fixture(scope="module")
def standin():
    """One measurer on the stand-in device."""
    with Measurer("standin", Settings(max_runs=12, timeout_s=30)) as m:
        yield m


@pytest.fixture(scope="module")
def cpu():
    """One measurer on torch's CPU with small cases."""
    with Measurer(
        "cpu", Settings(max_runs=6, cases="small", timeout_s=60, candidates_per_worker=100)
    ) as m:
        yield m


@pytest.mark.parametrize("name", cheats.NUMPY)
def test_cheat_is_refused(standin, name):
    """Each way to look fast without the work is refused, with the reason that names it."""
    assert cheats.refused(standin, cheats.NUMPY[name]).speedup is None


@needs_torch
@pytest.mark.parametrize("task", sorted({cheat.task for cheat in cheats.TORCH.values()}))
def test_honest_torch_program_passes(cpu, task):
    """The torch programs that the cheats start from are successes."""
    m = cpu.measure(task, cheats.HONEST[task])
    assert (m.outcome, m.error) == ("success", "")


@needs_torch
@pytest.mark.parametrize("task", TASK_NAMES)
def test_reference_is_a_program_of_its_task(cpu, task):
    """Every task's reference passes as a program, at about its own speed."""
    m = cpu.measure(task, get_task(task).reference_program)
    assert (m.outcome, m.error) == ("success", "")
    assert 0.3 < m.speedup < 3


@needs_torch
@pytest.mark.parametrize("name", cheats.TORCH)
def test_torch_cheat_is_refused(cpu, name):
    """The same on torch tensors, on the six tasks' own inputs."""
    cheats.refused(cpu, cheats.TORCH[name])


@needs_torch
def test_reduced_precision_beyond_the_tolerance_is_refused(cpu):
    """bfloat16 products fail the 1e-3 check of a float32 task."""
    code = get_task("gdn_recompute_w_u").reference_program.replace(
        "u = Ac @ (chunks(v) * bc)", "u = (Ac.bfloat16() @ (chunks(v) * bc).bfloat16()).float()"
    )
    m = cpu.measure("gdn_recompute_w_u", code)
    assert m.outcome == "incorrect"
    assert "outside rtol" in m.error


@needs_torch
def test_precision_switches_of_a_program_do_not_reach_the_reference(cpu):
    """A program may allow tf32 for itself."""
    switch = "torch.backends.cuda.matmul.allow_tf32"
    for line in (f"{switch} = True", f"assert not {switch}"):
        code = f"import torch\n{line}\n{cheats.HONEST['cross_entropy']}"
        assert cpu.measure("cross_entropy", code).outcome == "success"


def _timed_calls(time, host, tail, n=5):
    return [TimedCall(time_ns=time, host_ns=host, tail_ns=tail, output=None) for _ in range(n)]


class _Gpu(StandIn):
    """A stand-in whose timer is not the host's clock."""

    timer_is_host = False


@pytest.mark.parametrize(
    ("candidate", "guard"),
    [((1e6, 1.03e6, 1e4), None), ((1e5, 4.0e6, 1e4), "clock"), ((1e5, 2.1e6, 2e6), "stream")],
    ids=["the same for both", "a timer that runs slow", "busy after the stop event"],
)
def test_clocks_have_to_agree(candidate, guard):
    """Launch latency and the cost of waiting are no fault; a slow timer and hidden work are."""
    refused = pytest.raises(guards.Refusal, match=guard) if guard else nullcontext()
    with refused:
        guards.check_clock(_Gpu(), _timed_calls(*candidate), _timed_calls(4e6, 4.03e6, 1e4))


@pytest.mark.parametrize(("stalls", "outcome"), [(0, "none"), (1, "none"), (2, "incorrect")])
def test_clocks_are_asked_twice(tmp_path, monkeypatch, stalls, outcome):
    """A host that stalls once is no lie; clocks that disagree again are."""
    asked = []

    def check(*_):
        asked.append(1)
        if len(asked) <= stalls:
            raise guards.Refusal("clock", "the host stalled")

    monkeypatch.setattr(guards, "check_clock", check)
    settings = Settings(cases="small", max_runs=5, ring=2, warm_calls=1, remeasure=0)
    config = WorkerConfig(
        mode="time", task="rehearsal", device="standin", settings=settings, scratch=str(tmp_path)
    )
    result = Evaluator(get_task("rehearsal"), StandIn(), config).evaluate(cheats.NUMPY_HONEST)
    assert result.failure_kind == outcome
    assert len(asked) == min(stalls + 1, 2)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ((10**9, 60 * 2**20, 1), (pytest.approx(1e9 / 4800), "memory bandwidth")),
        ((1, 0, 2 * 989_500_000_000), (pytest.approx(1e6), "arithmetic rate")),
    ],
)
def test_limit_is_bytes_over_bandwidth_or_operations_over_rate(work, expected):
    """A gigabyte read on an H200 (4,800 GB/s) takes 208 us; arithmetic counts at twice the dense
    bf16 rate, which no float32 program can beat.
    """
    read, written, flops = work
    work = Work(bytes_read=read, bytes_written=written, flops=flops)
    assert guards.limit_ns(work, "H200") == expected


def test_impossible_time_is_refused_and_possible_one_is_not():
    """Below the limit: refused with both figures. Above it: the ratio."""
    work = Work(bytes_read=10**9, bytes_written=0, flops=1)
    with pytest.raises(guards.Refusal, match=r"guard limit: 150\.00 us is below the 208\.33 us"):
        guards.check_limit(work, "H200", 150_000.0)
    assert guards.check_limit(work, "NVIDIA H200", 416_666.0) == pytest.approx(2.0, rel=1e-3)


def test_unknown_gpu_has_no_limit():
    """Without figures of a GPU nothing is refused, and nothing is claimed."""
    work = Work(bytes_read=10**9, bytes_written=0, flops=1)
    assert guards.limit_ns(work, "Quantum 9") is None
    assert guards.check_limit(work, "Quantum 9", 1.0) is None
