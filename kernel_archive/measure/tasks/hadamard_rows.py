"""Walsh-Hadamard transform of every row."""

from kernel_archive.measure.tasks.base import Case, Data, Draw, Work

REFERENCE = '''import torch


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
OUTPUTS = ("y",)
CORRECTNESS_CASES = ({"rows": 21, "cols": 1024},)
SMALL_CASE = {"rows": 6, "cols": 64}


def make_input(case: Case, draw: Draw) -> Data:
    """``(x bf16 [rows, cols],)``, cols a power of two. Structured: rows over several octaves, sparse rows, constant rows."""
    rows, cols = case["rows"], case["cols"]
    x = draw.randn(rows, cols)
    if draw.variant == "structured":
        x[::3, : cols // 2] = 0
        x[1::7] = 1
        x *= (draw.arange(rows) % 5 - 3.0).exp2()[:, None]
    return (x.bfloat16(),)


def work(case: Case) -> Work:
    n = case["rows"] * case["cols"]
    return Work(bytes_read=2 * n, bytes_written=2 * n, flops=n * max(1, case["cols"].bit_length() - 1))
