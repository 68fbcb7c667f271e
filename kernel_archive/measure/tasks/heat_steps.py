"""Eight explicit steps of the heat equation."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Task, Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """Steps of x += rate * (sum of the four neighbours - 4 x) inside; the border keeps its values."""
    x, cfg = data
    for _ in range(cfg["steps"]):
        y = x.clone()
        neighbours = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        y[1:-1, 1:-1] = x[1:-1, 1:-1] + cfg["rate"] * (neighbours - 4 * x[1:-1, 1:-1])
        x = y
    return x
'''


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x f32 [height, width], {"steps", "rate"})``. Structured: a hot corner, stripes, a cold border."""
    import torch

    h, w = case["height"], case["width"]
    x = torch.randn((h, w), generator=gen, device=device)
    if variant == "structured":
        x += torch.where(torch.arange(w, device=device) // 3 % 2 == 0, 2.0, -2.0)
        x[: h // 4, : w // 4] += 20
        x[0], x[-1], x[:, 0], x[:, -1] = -5.0, -5.0, -5.0, -5.0
    return x, {"steps": case["steps"], "rate": 0.2}


def work(case: dict[str, Any]) -> Work:
    n = case["height"] * case["width"]
    return Work(bytes_read=4 * n, bytes_written=4 * n, flops=6 * n * case["steps"])


TASK: Final = Task.of(
    "heat_steps",
    reference=REFERENCE,
    outputs=("x",),
    correctness_cases=({"height": 70, "width": 133, "steps": 8},),
    small_case={"height": 17, "width": 20, "steps": 3},
    make_input=make_input,
    work=work,
)
