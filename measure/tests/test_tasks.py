"""Tests of the tasks: what they declare, and that a new one could be added by the recipe."""

from __future__ import annotations

import importlib.util

import pytest

from kernel_archive.problems import PROBLEMS
from kernel_measure.device import StandIn
from kernel_measure.tasks import REHEARSAL, TASK_NAMES, get_task
from kernel_measure.tasks.base import VARIANTS, case_seed
from kernel_measure.torch_device import TorchDevice

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch (the extra gpu)"
)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_tolerances_by_output_are_said_in_words(name):
    """And the work of a case is that of the problem's data."""
    task, facts = get_task(name), PROBLEMS[name]
    assert (f"{name}_tolerances" in task._functions) == bool(task.tolerance_note)
    for case in facts.cases:
        assert task.least_work(case.shape) == case.least_work


def test_default_tolerances_are_one_pair_for_each_output():
    """Tasks without tolerances of their own use rtol and atol for every output."""
    assert get_task(REHEARSAL).tolerances(None) == ((1e-6, 1e-9), (1e-6, 1e-9))


def test_seeds_differ_in_every_part():
    """Every case, variant, repetition and salt has inputs of its own."""
    parts = [(42, "t", "a", 0), (43, "t", "a", 0), (42, "u", "a", 0)]
    parts += [(42, "t", "b", 0), (42, "t", "a", 1)]
    assert len({case_seed(*p) for p in parts}) == 5
    assert case_seed(42, "t", 1) == case_seed(42, "t", 1)
    assert 0 <= case_seed(1, "x") < 2**62


@pytest.mark.parametrize(
    "name", [REHEARSAL, *(pytest.param(n, marks=needs_torch) for n in TASK_NAMES)]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_inputs_are_seeded_finite_and_fit_the_reference(name, variant):
    """The same seed gives the same inputs, another seed others."""
    task = get_task(name)
    device = TorchDevice("cpu") if task.framework == "torch" else StandIn()
    a, b, c = (task.input_of(task.small_case, seed, variant, "cpu") for seed in (1, 1, 2))
    assert all(device.equal(x, y) for x, y in zip(device.leaves(a), device.leaves(b), strict=True))
    assert not device.equal(device.leaves(a)[0], device.leaves(c)[0])
    outputs = task.load_reference()(device.clone(a))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert len(outputs) == len(task.outputs)
    assert all(bool((abs(o) < 1e30).all()) for o in outputs)


@needs_torch
@pytest.mark.parametrize("name", TASK_NAMES)
def test_meta_input_has_the_shapes_of_the_input(name):
    """What is compiled ahead is what is measured: same shapes and dtypes, case by case."""
    device, task = TorchDevice("cpu"), get_task(name)
    real, meta = (task.input_of(task.small_case, 1, "standard", name) for name in ("cpu", "meta"))
    forms = ([(t.shape, t.dtype) for t in device.leaves(data)] for data in (real, meta))
    assert next(forms) == next(forms)


@needs_torch
def test_half_of_a_row_passes_the_standard_input_and_fails_the_structured_one():
    """The shortcut that once passed: a normaliser over every other logit is right on i.i.d."""
    import torch

    device, task = TorchDevice("cpu"), get_task("cross_entropy")
    verdicts = {}
    for variant in VARIANTS:
        data = task.input_of({"vocab_size": 32000, "rows": 24}, 7, variant, "cpu")
        logits, targets, _ = data
        half = torch.logsumexp(logits[:, ::2].float(), dim=-1) + 0.6931471805599453
        losses = half - logits.gather(1, targets[:, None]).squeeze(1).float()
        expected = task.load_reference()(data)[0]
        verdicts[variant] = device.difference(losses, expected, task.rtol, task.atol)
    assert verdicts["standard"] is None
    assert verdicts["structured"] is not None


@needs_torch
@pytest.mark.parametrize("name", ["gdn_chunk_fwd_h", "gdn_chunk_fwd_o", "gdn_recompute_w_u"])
def test_structured_gdn_inputs_are_not_larger(name):
    """The tolerance is as strict on the structured inputs as on the standard ones."""
    task = get_task(name)
    sizes = [
        max(
            float(t.abs().max())
            for t in task.load_reference()(task.input_of(task.small_case, 3, v, "cpu"))
        )
        for v in VARIANTS
    ]
    assert sizes[1] < 4 * sizes[0]
