"""Attention of one new query per sequence over a paged cache."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch
import torch.nn.functional as F


def reference(data):
    """Gather every sequence's pages and attend over its first lengths[b] keys; heads share keys in groups."""
    q, k_cache, v_cache, table, lengths = data
    b, h, d = q.shape
    kv = k_cache.shape[2]
    k = k_cache[table.long()].reshape(b, -1, kv, d).transpose(1, 2)
    v = v_cache[table.long()].reshape(b, -1, kv, d).transpose(1, 2)
    seen = torch.arange(k.shape[2], device=q.device) < lengths[:, None]
    out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True)
    return out[:, :, 0]
'''
OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 5, "max_context": 256, "heads": 8, "kv_heads": 2, "dim": 128},)
SMALL_CASE = {"batch": 2, "max_context": 64, "heads": 4, "kv_heads": 2, "dim": 32}


def make_input(case: Case, draw: Draw) -> Data:
    """``(q, k_cache, v_cache, table, lengths)``; the pages of a sequence lie anywhere.

    q bf16 [batch, heads, dim], caches bf16 [pages, 16, kv_heads, dim], table int32 [batch, pages a sequence], lengths int32.
    Structured: lengths of 1, of a page, of a page and one, and of the most; one loud key in every sequence.
    """
    b, most, h, kv, d = case["batch"], case["max_context"], case["heads"], case["kv_heads"], case["dim"]
    each = most // 16
    q = draw.randn(b, h, d)
    shape = (b * each, 16, kv, d)
    k = draw.randn(shape, dtype=draw.torch.bfloat16)
    v = draw.randn(shape, dtype=draw.torch.bfloat16)
    table = draw.rand(b * each).argsort().reshape(b, each).int()
    lengths = draw.randint(most // 8, most + 1, (b,)).int()
    if draw.variant == "structured":
        special = draw.torch.tensor([1, 16, 17, most], dtype=draw.torch.int32, device=draw.device)
        lengths[: min(4, b)] = special[: min(4, b)]
        k[:, 0] *= 3
        q *= draw.linspace(0.25, 2.0, h)[:, None]
    return q.bfloat16(), k, v, table, lengths


def work(case: Case) -> Work:
    b, most, h, kv, d = case["batch"], case["max_context"], case["heads"], case["kv_heads"], case["dim"]
    tokens = b * most // 4  # half of the mean length: lengths are drawn anew for every input
    return Work(bytes_read=4 * tokens * kv * d, bytes_written=2 * b * h * d, flops=4 * tokens * h * d)
