"""Softmax over keys up to each batch entry's length."""

from kernel_measure.tasks.base import Case, Data, Draw

OUTPUTS = ("p",)
CORRECTNESS_CASES = ({"batch": 4, "heads": 2, "queries": 33, "keys": 256},)
SMALL_CASE = {"batch": 3, "heads": 2, "queries": 8, "keys": 64}


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: lengths of zero, one and all, and one key in every row far above the rest.
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
