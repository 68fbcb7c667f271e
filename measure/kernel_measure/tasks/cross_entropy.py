"""Cross entropy with its gradient over a large vocabulary; logits in bfloat16."""

from kernel_measure.tasks.base import Bounds, Case, Data, Draw

ROWS = 4096

OUTPUTS = ("losses", "grad_logits")
CORRECTNESS_CASES = ({"vocab_size": 32000},)
SMALL_CASE = {"vocab_size": 512, "rows": 16}
STRESS = True


def make_input(case: Case, draw: Draw) -> Data:
    # Structured: each row has its own slope over the vocabulary, odd and even columns and the two
    # halves differ, and a few columns dominate; no logit leaves [-30, 30], so that a sum of
    # exponentials stays finite in float32. Stress: magnitudes of up to several hundred, where
    # only a sum that is shifted by the row's maximum stays finite.
    rows, v = case.get("rows", ROWS), case["vocab_size"]
    logits = draw.randn(rows, v, dtype=draw.torch.bfloat16)
    targets = draw.randint(0, v, (rows,))
    grad_output = draw.randn(rows)
    if draw.variant == "stress":
        logits = (logits.float() * 40 + draw.linspace(-300.0, 300.0, rows)[:, None]).bfloat16()
    if draw.variant == "structured":
        at = draw.arange(v)
        slope = draw.linspace(-3.0, 3.0, rows)[:, None]
        shape = slope * (at / v - 0.5) + 1.5 * (at % 2) + draw.torch.where(at >= v // 2, 0.75, 0.0)
        logits = (logits.float() + shape).bfloat16()
        peaks = draw.randint(0, v, (rows, 3))
        logits.scatter_(1, peaks, draw.torch.full_like(peaks, 14, dtype=draw.torch.bfloat16))
        targets = draw.torch.where(draw.arange(rows) % 3 == 0, peaks[:, 0], targets)
    return logits, targets, grad_output


def tolerances(data: Data) -> Bounds:
    """Of the gradient, relative to itself.

    2 % covers the rounding of logits and result to bfloat16 (0.4 % each) and of probabilities in
    half precision.
    """
    logits, _, grad_output = data
    return (1e-2, 1e-3), (2e-2, 1e-3 * grad_output.abs() / logits.shape[1])
