"""Softmax over keys up to each batch entry's length."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


def reference(data):
    """Softmax over the first lengths[b] keys; a row without keys is all zeros."""
    scores, lengths = data
    keys = torch.arange(scores.shape[-1], device=scores.device)
    masked = keys >= lengths[:, None, None, None]
    p = torch.softmax(scores.masked_fill(masked, float("-inf")), dim=-1)
    return p.masked_fill(masked, 0.0)
'''
OUTPUTS = ("p",)
CORRECTNESS_CASES = ({"batch": 4, "heads": 2, "queries": 33, "keys": 256},)
SMALL_CASE = {"batch": 3, "heads": 2, "queries": 8, "keys": 64}


def make_input(case: Case, draw: Draw) -> Data:
    """``(scores float32 [batch, heads, queries, keys], lengths int32 [batch])``.

    Structured: lengths of zero, one and all, and one key in every row far above the rest.
    """
    b, h, q, k = case["batch"], case["heads"], case["queries"], case["keys"]
    scores = draw.randn(b, h, q, k) * 2
    lengths = draw.randint(k // 4, k + 1, (b,)).int()
    if draw.variant == "structured":
        lengths = draw.torch.where(draw.arange(b) % 3 == 0, lengths, lengths * 0 + k).int()
        lengths[0], lengths[-1] = 0, 1
        at = draw.randint(0, k, (b, h, q, 1))
        scores.scatter_(-1, at, 40.0)
        scores *= draw.linspace(0.1, 2.0, q)[:, None]
    return scores, lengths


def work(case: Case) -> Work:
    n = case["batch"] * case["heads"] * case["queries"] * case["keys"]
    return Work(bytes_read=n, bytes_written=4 * n, flops=n)  # a quarter of the keys may be all there is to read
