"""Softmax over keys up to each batch entry's length."""

from __future__ import annotations

from typing import Any, Final

from kernel_archive.measure.tasks.base import Variant, Work

REFERENCE: Final = '''import torch


def reference(data):
    """Softmax over the first lengths[b] keys; a row without keys is all zeros."""
    scores, lengths = data
    keys = torch.arange(scores.shape[-1], device=scores.device)
    masked = keys >= lengths[:, None, None, None]
    p = torch.softmax(scores.masked_fill(masked, float("-inf")), dim=-1)
    return p.masked_fill(masked, 0.0)
'''
OUTPUTS: Final = ("p",)
CORRECTNESS_CASES: Final = ({"batch": 4, "heads": 2, "queries": 33, "keys": 256},)
SMALL_CASE: Final = {"batch": 3, "heads": 2, "queries": 8, "keys": 64}


def make_input(case: dict[str, Any], gen: Any, variant: Variant, device: str) -> Any:
    """``(scores float32 [batch, heads, queries, keys], lengths int32 [batch])``.

    Structured: lengths of zero, one and all, and one key in every row far above the rest.
    """
    import torch

    b, h, q, k = case["batch"], case["heads"], case["queries"], case["keys"]
    scores = torch.randn((b, h, q, k), generator=gen, device=device) * 2
    lengths = torch.randint(k // 4, k + 1, (b,), generator=gen, device=device).int()
    if variant == "structured":
        lengths = torch.where(torch.arange(b, device=device) % 3 == 0, lengths, lengths * 0 + k).int()
        lengths[0], lengths[-1] = 0, 1
        at = torch.randint(0, k, (b, h, q, 1), generator=gen, device=device)
        scores.scatter_(-1, at, 40.0)
        scores *= torch.linspace(0.1, 2.0, q, device=device)[:, None]
    return scores, lengths


def work(case: dict[str, Any]) -> Work:
    n = case["batch"] * case["heads"] * case["queries"] * case["keys"]
    return Work(bytes_read=n, bytes_written=4 * n, flops=n)  # a quarter of the keys may be all there is to read
