"""Cross entropy with its gradient over a large vocabulary; logits in bfloat16."""

from kernel_archive.measure.tasks.base import Bounds, Case, Data, Draw, Work

ROWS = 4096

REFERENCE = '''import torch


def reference(data):
    """Per-row cross entropy and its gradient with respect to the logits."""
    logits, targets, grad_output = data
    x = logits.float()
    logp = torch.log_softmax(x, dim=-1)
    losses = -logp.gather(1, targets[:, None]).squeeze(1)
    p = torch.softmax(logits.float(), dim=-1)
    rows = torch.arange(x.shape[0], device=x.device)
    p[rows, targets] -= 1.0
    grad = (p * grad_output[:, None]).to(logits.dtype)
    return losses, grad
'''
OUTPUTS = ("losses", "grad_logits")
CORRECTNESS_CASES = ({"vocab_size": 32000},)
SMALL_CASE = {"vocab_size": 512, "rows": 16}
TOLERANCE_NOTE = "losses: atol 1e-3 + rtol 1e-2; grad_logits: 2e-2 of the element + 1e-3 |grad_output| / V of its row"
STRESS = True


def make_input(case: Case, draw: Draw) -> Data:
    """``(logits bf16 [rows, V], targets int64 [rows], grad_output f32 [rows])``.

    Structured: each row has its own slope over the vocabulary, odd and even columns and the two halves differ, and a
    few columns dominate; no logit leaves [-30, 30], so that a sum of exponentials stays finite in float32.
    Stress: magnitudes of up to several hundred, where only a sum that is shifted by the row's maximum stays finite.
    """
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


def work(case: Case) -> Work:
    """The logits in once and the gradient out once; an exponential counts as one operation."""
    rows, v = case.get("rows", ROWS), case["vocab_size"]
    return Work(bytes_read=rows * v * 2 + rows * 12, bytes_written=rows * v * 2 + rows * 4, flops=4 * rows * v)


def tolerances(data: Data) -> Bounds:
    """Of the gradient, relative to itself: an element is about ``grad_output / V``, far below any fixed tolerance.

    2 % covers the rounding of logits and result to bfloat16 (0.4 % each) and of probabilities in half precision.
    """
    logits, _, grad_output = data
    return (1e-2, 1e-3), (2e-2, 1e-3 * grad_output.abs() / logits.shape[1])
