"""Walsh-Hadamard transform of every row."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """Butterflies of sums and differences in float32 (natural order), divided by the root of the length."""
    (x,) = data
    n = x.shape[-1]
    y = x.float()
    h = 1
    while h < n:
        y = y.view(-1, n // (2 * h), 2, h)
        y = torch.stack((y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]), dim=2)
        h *= 2
    return (y.reshape(x.shape) * n**-0.5).to(x.dtype)
'''
OUTPUTS: Final = ("y",)
CORRECTNESS_CASES: Final = ({"rows": 21, "cols": 1024},)
SMALL_CASE: Final = {"rows": 6, "cols": 64}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x bf16 [rows, cols],)``, cols a power of two. Structured: rows over several octaves, sparse rows, constant rows."""
    import torch

    rows, cols = case["rows"], case["cols"]
    x = torch.randn((rows, cols), generator=gen, device=device)
    if variant == "structured":
        x[::3, : cols // 2] = 0
        x[1::7] = 1
        x *= torch.exp2(torch.arange(rows, device=device) % 5 - 3.0)[:, None]
    return (x.to(torch.bfloat16),)


def work(case: dict[str, Any]) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=2 * n, bytes_written=2 * n, flops=n * max(1, case["cols"].bit_length() - 1))
