"""Tests on a real GPU: run by hand with ``pytest -m gpu``; none runs in CI.

The programs are those of the CPU tests, on the tasks' full inputs, and those that need streams.
"""

from __future__ import annotations

import pytest
from support import cheats

from kernel_measure.measurer import Measurer
from kernel_measure.settings import Settings
from kernel_measure.tasks import TASK_NAMES, get_task

torch = pytest.importorskip("torch", reason="needs torch (the extra gpu)")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def gpu():
    """One measurer; a worker serves many programs, to save its start."""
    settings = Settings(max_runs=30, max_case_seconds=0.3, timeout_s=60, candidates_per_worker=100)
    name = torch.cuda.get_device_name(0)
    with Measurer("cuda", settings, gpu=name) as m:
        yield m


#: References that launch so many kernels that the host sets their time, which varies by the second.
HOST_BOUND = {"linear_attention", "selective_scan"}


@pytest.mark.parametrize("task", TASK_NAMES)
def test_reference_is_as_fast_as_itself(gpu, task):
    """Every task's reference passes as a program on its full cases, at 1.00x within 5 %."""
    m = gpu.measure(task, get_task(task).reference_program)
    assert (m.outcome, m.error) == ("success", "")
    assert abs(m.speedup - 1.0) < (0.15 if task in HOST_BOUND else 0.05)
    assert all(c.over_limit >= 1.0 for c in m.cases)


@pytest.mark.parametrize("name", [*cheats.TORCH, *cheats.CUDA])
def test_cheat_is_refused(gpu, name):
    """Every planted cheat is refused on the GPU, with the reason that names it."""
    cheats.refused(gpu, (cheats.TORCH | cheats.CUDA)[name])


def test_sticky_error_costs_one_program(gpu):
    """A kernel that reads out of bounds is a runtime error."""
    code = (
        "import torch\n\n\ndef custom_kernel(data):\n    x, x_q, x_s = data\n"
        "    at = torch.full((1,), 1 << 40, dtype=torch.int64, device=x.device)\n"
        "    x_s.fill_(x.view(-1)[at][0])\n    return x_q, x_s\n"
    )
    m = gpu.measure("fp8_quant", code)
    assert m.outcome == "runtime_error", m
    assert gpu.measure("fp8_quant", cheats.HONEST["fp8_quant"]).outcome == "success"
