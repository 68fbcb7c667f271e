"""Counts of byte values."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """How often each of the 256 values occurs."""
    (x,) = data
    return torch.bincount(x, minlength=256)
'''
OUTPUTS: Final = ("counts",)
CORRECTNESS_CASES: Final = ({"n": 100003, "skew": False}, {"n": 65536, "skew": True})
SMALL_CASE: Final = {"n": 5000, "skew": False}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(x u8 [n],)``; with ``skew`` most bytes are few values. Structured: long runs of one value, values that never occur."""
    import torch

    n = case["n"]
    u = torch.rand((n,), generator=gen, device=device)
    if case["skew"]:
        u = u**6
    if variant == "structured":
        u = torch.where(torch.arange(n, device=device) // 4096 % 3 == 0, 0.3, u * 0.8)
    return ((u * 256).clamp(max=255).to(torch.uint8),)


def work(case: dict[str, Any]) -> Work:
    return Work(bytes_read=case["n"], bytes_written=2048, flops=case["n"])
