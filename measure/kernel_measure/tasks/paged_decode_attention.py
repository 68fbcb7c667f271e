"""Attention of one new query per sequence over a paged cache."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("out",)
CORRECTNESS_CASES = ({"batch": 5, "max_context": 256, "heads": 8, "kv_heads": 2, "dim": 128},)
SMALL_CASE = {"batch": 2, "max_context": 64, "heads": 4, "kv_heads": 2, "dim": 32}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: lengths of 1, of a page, of a page and one, and of the most; one loud key in
    # every sequence.
    b, most, h, kv, d = (
        case["batch"],
        case["max_context"],
        case["heads"],
        case["kv_heads"],
        case["dim"],
    )
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
