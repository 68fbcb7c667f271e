"""Rows quantised to 8-bit integers by their largest magnitude."""

from kernel_archive.measure.tasks.base import Bounds, Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """q = round(x / s) with s = max |x| / 127 of the row (at least 1e-10); ties to even."""
    (x,) = data
    wide = x.float()
    scale = wide.abs().amax(dim=-1).clamp(min=1e-10) / 127.0
    return torch.round(wide / scale[:, None]).clamp(-127, 127).to(torch.int8), scale
'''
OUTPUTS = ("q", "scale")
CORRECTNESS_CASES = ({"rows": 29, "cols": 1024},)
SMALL_CASE = {"rows": 9, "cols": 256}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x bf16 [rows, cols],)``. Structured: rows over twenty octaves, rows of zeros, the largest value at any place."""
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        at = (draw.arange(rows) * 7919 % cols)[:, None]
        x.scatter_(1, at, -8.0)
        scale = (draw.arange(rows) % 20 - 10.0).exp2()
        scale[draw.arange(rows) % 23 == 7] = 0.0
        x *= scale[:, None]
    return (x.bfloat16(),)


def work(case: Case) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=2 * n, bytes_written=n + 4 * case["rows"], flops=3 * n)


TOLERANCE_NOTE = "q: within 1; scale: rtol 1e-5"


def tolerances(data: Data) -> Bounds:
    """A quotient next to a half may round either way."""
    del data
    return (0.0, 1.0), (1e-5, 0.0)
