"""Rows quantised to 8-bit integers by their largest magnitude."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """q = round(x / s) with s = max |x| / 127 of the row (at least 1e-10); ties to even."""
    (x,) = data
    wide = x.float()
    scale = wide.abs().amax(dim=-1).clamp(min=1e-10) / 127.0
    return torch.round(wide / scale[:, None]).clamp(-127, 127).to(torch.int8), scale
'''
OUTPUTS: Final = ("q", "scale")
CORRECTNESS_CASES: Final = ({"rows": 29, "cols": 1024},)
SMALL_CASE: Final = {"rows": 9, "cols": 256}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x bf16 [rows, cols],)``. Structured: rows over twenty octaves, rows of zeros, the largest value at any place."""
    import torch

    rows, cols = case["rows"], case["cols"]
    x = torch.randn((rows, cols), generator=gen, device=device)
    if variant == "structured":
        at = (torch.arange(rows, device=device) * 7919 % cols)[:, None]
        x.scatter_(1, at, -8.0)
        scale = torch.exp2(torch.arange(rows, device=device) % 20 - 10.0)
        scale[torch.arange(rows, device=device) % 23 == 7] = 0.0
        x *= scale[:, None]
    return (x.to(torch.bfloat16),)


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=2 * n, bytes_written=n + 4 * case["rows"], flops=3 * n)


TOLERANCE_NOTE: Final = "q: within 1; scale: rtol 1e-5"


def tolerances(data: Any) -> tuple[tuple[float, Any], ...]:
    """A quotient next to a half may round either way."""
    del data
    return (0.0, 1.0), (1e-5, 0.0)
