"""Eight explicit steps of the heat equation."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

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
OUTPUTS: Final = ("x",)
CORRECTNESS_CASES: Final = ({"height": 70, "width": 133, "steps": 8},)
SMALL_CASE: Final = {"height": 17, "width": 20, "steps": 3}


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
